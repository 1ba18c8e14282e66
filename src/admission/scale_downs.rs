//! Scale-downs, through whichever door they come: a Deployment, an Argo Rollout, a ReplicaSet, a ReplicationController, or the
//! scale of one of them.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{Operation, Request, Snapshot, Unreadable};
use crate::api::CostPolicy;
use crate::api::policies::PolicyKey;
use crate::api::tolerant::null_is_default;
use crate::cost::outcome::Decided;
use crate::cost::plan::{Candidate, fewest_writes};
use crate::cost::{Cost, GovernedPod, victims};

/// A request to run fewer pods.
#[derive(Debug, PartialEq, Eq)]
pub struct ScaleDown {
    pub namespace: String,
    pub workload: Workload,
    /// The resource that was asked for, with its subresource: the door's name in metrics.
    pub door: &'static str,
    pub from: usize,
    pub to: usize,
    pub dry_run: bool,
}

/// What is scaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// Has ReplicaSets, which have pods.
    Parent(Parent),
    /// Has pods itself: a ReplicaSet or a ReplicationController.
    Owner { uid: String, name: String },
}

/// What controls ReplicaSets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    pub kind: ParentKind,
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentKind {
    Deployment,
    /// Of Argo Rollouts, whose ReplicaSets are Kubernetes' own.
    Rollout,
}

impl Workload {
    pub fn name(&self) -> &str {
        let (Self::Parent(Parent { name, .. }) | Self::Owner { name, .. }) = self;
        name
    }
}

/// Reads a scale-down; `None` for every other request. A Scale carries no labels and no owner, only a name and a UID, which
/// are those of its workload.
pub fn read(request: &Request<'_>) -> Result<Option<ScaleDown>, Unreadable> {
    let door = match (request.resource.group.as_str(), request.resource.resource.as_str(), request.sub_resource.as_str()) {
        ("apps", "deployments", "") => "deployments",
        ("apps", "deployments", "scale") => "deployments/scale",
        ("apps", "replicasets", "") => "replicasets",
        ("apps", "replicasets", "scale") => "replicasets/scale",
        ("argoproj.io", "rollouts", "") => "rollouts",
        ("argoproj.io", "rollouts", "scale") => "rollouts/scale",
        ("", "replicationcontrollers", "") => "replicationcontrollers",
        ("", "replicationcontrollers", "scale") => "replicationcontrollers/scale",
        _ => return Ok(None),
    };
    let is_update = request.operation == Operation::Update;
    let (Some(new), Some(old)) = (request.object.filter(|_| is_update), request.old_object) else { return Ok(None) };
    let new: Scaled = serde_json::from_str(new.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    let old: Scaled = serde_json::from_str(old.get()).map_err(|source| Unreadable { field: "request.oldObject", source })?;
    // In a Scale zero replicas are left out; elsewhere nothing means one.
    let absent = if request.sub_resource == "scale" { 0 } else { 1 };
    let count = |scaled: &Scaled| usize::try_from(scaled.spec.replicas.unwrap_or(absent)).unwrap_or(0);
    let (from, to) = (count(&old), count(&new));
    if to >= from || new.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let name = request.name.clone();
    let workload = match request.resource.resource.as_str() {
        "deployments" => Workload::Parent(Parent { kind: ParentKind::Deployment, name }),
        "rollouts" => Workload::Parent(Parent { kind: ParentKind::Rollout, name }),
        _ => Workload::Owner { uid: new.metadata.uid, name },
    };
    Ok(Some(ScaleDown { namespace: request.namespace.clone(), workload, door, from, to, dry_run: request.dry_run }))
}

#[derive(Deserialize)]
struct Scaled {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default, deserialize_with = "null_is_default")]
    uid: String,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct Spec {
    replicas: Option<i32>,
}

/// A cost to be written to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodWrite {
    pub namespace: String,
    pub name: String,
    pub uid: Arc<str>,
    pub cost: i32,
    /// Whose budget it is taken from.
    pub policy: PolicyKey,
}

/// What a scale-down asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Fewest, and each with the pod's current cost.
    pub writes: Vec<PodWrite>,
    /// Writes that the policy forbids (`dryRun`, `write.onScaleDown: false`).
    pub withheld: usize,
    /// The pods that will go once the writes are seen, in order.
    pub victims: Vec<String>,
    /// Every active pod, for a verdict afterwards.
    pub pods: Vec<Decided>,
}

/// Plans a scale-down of one ReplicaSet to `to` pods. `pods` are the ReplicaSet's own, `family` those of all ReplicaSets of
/// its Deployment or Rollout.
pub fn plan(pods: &[Arc<GovernedPod>], family: &[Arc<GovernedPod>], to: usize, snapshot: &Snapshot, now: Timestamp) -> Plan {
    let active: Vec<&GovernedPod> = pods.iter().map(AsRef::as_ref).filter(|pod: &&GovernedPod| pod.is_active()).collect();
    let go = active.len().saturating_sub(to);
    // The cost that each pod should have, where the policy in force lets it be written.
    let costs: Vec<Option<Cost>> = active.iter().map(|pod| snapshot.costs.get(&pod.uid)).collect();
    let in_force = |cost: &Cost| snapshot.policies.policy(cost.policy.key());
    let wanted: Vec<Option<(i32, &CostPolicy)>> = active
        .iter()
        .zip(&costs)
        .map(|(pod, cost)| {
            let cost = cost.as_ref()?;
            let policy = in_force(cost)?;
            Some((cost.replaces(pod.stored, policy)?, &**policy))
        })
        .collect();
    let candidate = |(pod, wanted): (&&GovernedPod, &Option<(i32, &CostPolicy)>)| {
        let stored = pod.stored.effective();
        Candidate { tier: victims::Tier::of(pod), stored, current: wanted.map_or(stored, |(value, _)| value) }
    };
    let candidates: Vec<Candidate> = active.iter().zip(&wanted).map(candidate).collect();

    let mut plan = Plan::default();
    let mut after: Vec<GovernedPod> = active.iter().copied().cloned().collect();
    for index in fewest_writes(&candidates, go) {
        // Only a pod whose current cost differs from the stored one is ever written.
        let Some((cost, policy)) = wanted[index] else { continue };
        if policy.spec.dry_run || !policy.spec.write.on_scale_down {
            plan.withheld += 1;
            continue;
        }
        let pod = active[index];
        after[index].stored = crate::cost::Stored::Ours(cost);
        let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
        plan.writes.push(PodWrite { namespace, name, uid, cost, policy: policy.key().clone() });
    }
    let siblings = victims::siblings_on_node(family.iter().map(AsRef::as_ref).filter(|pod: &&GovernedPod| pod.is_active()));
    let mut order: Vec<&GovernedPod> = after.iter().collect();
    victims::sort(&mut order, &siblings, now);
    plan.victims = order.into_iter().take(go).map(|pod| pod.name.clone()).collect();
    // A pod as it was planned with; where somebody else's cost stands on it, as it is worth all the same.
    let decided = |((pod, candidate), cost): ((&&GovernedPod, &Candidate), &Option<Cost>)| {
        let keeps = |cost: &&Cost| in_force(cost).is_some_and(|policy| !pod.stored.is_ours_to_write(policy.spec.foreign_values));
        let kept = cost.as_ref().filter(keeps);
        let (uid, name, tier) = (pod.uid.clone(), pod.name.clone(), candidate.tier);
        Decided { uid, name, tier, current: kept.map_or(candidate.current, |cost| cost.value), foreign: kept.is_some() }
    };
    plan.pods = active.iter().zip(&candidates).zip(&costs).map(decided).collect();
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::admission::request::{Body, read as read_body};
    use crate::api::{DeletionCostPolicy, Policies};
    use crate::cost::pod::tests::pod;
    use crate::cost::score::Basis;
    use crate::cost::{CostCache, Stored};

    fn scale_down(resource: &str, sub_resource: &str, kind: Value, old: Value, new: Value) -> Option<ScaleDown> {
        let text = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": kind, "resource": {"group": group_of(resource), "version": "v1", "resource": resource}, "subResource": sub_resource,
            "name": "web", "namespace": "x", "operation": "UPDATE", "oldObject": old, "object": new}})
        .to_string();
        let Body::Request(request) = read_body(text.as_bytes()) else { panic!("{text}") };
        read(&request).unwrap()
    }

    fn group_of(resource: &str) -> &'static str {
        match resource {
            "rollouts" => "argoproj.io",
            "replicationcontrollers" => "",
            _ => "apps",
        }
    }

    #[test]
    fn every_door_leads_to_what_has_the_pods() {
        let kind = || json!({"group": "", "version": "v1", "kind": "Any"});
        let spec = |replicas: i32| json!({"metadata": {"uid": "w"}, "spec": {"replicas": replicas}});
        let parent = |kind| Workload::Parent(Parent { kind, name: "web".into() });
        let owner = || Workload::Owner { uid: "w".into(), name: "web".into() };
        for (resource, wanted) in [
            ("deployments", parent(ParentKind::Deployment)),
            ("rollouts", parent(ParentKind::Rollout)),
            ("replicasets", owner()),
            ("replicationcontrollers", owner()),
        ] {
            for sub_resource in ["", "scale"] {
                let found = scale_down(resource, sub_resource, kind(), spec(5), spec(2)).unwrap();
                assert_eq!((&found.workload, found.from, found.to), (&wanted, 5, 2));
                assert_eq!(found.door, [resource, sub_resource].join("/").trim_end_matches('/'));
            }
        }
        // Outside of a Scale no number means one.
        let absent = || json!({"metadata": {"uid": "w"}, "spec": {}});
        assert_eq!(scale_down("rollouts", "", kind(), spec(5), absent()).unwrap().to, 1);
        assert_eq!(scale_down("rollouts", "", kind(), absent(), spec(1)), None);
    }

    /// DC-21, webhook case 14: a Scale has no labels, and leaves out zero.
    #[test]
    fn dc_21_reads_a_scale() {
        let kind = || json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        let scale = |replicas: Value| json!({"metadata": {"name": "web", "namespace": "x", "uid": "w"}, "spec": replicas});
        let found = scale_down("deployments", "scale", kind(), scale(json!({"replicas": 5})), scale(json!({"replicas": 2}))).unwrap();
        assert_eq!(
            (found.workload, found.from, found.to),
            (Workload::Parent(Parent { kind: ParentKind::Deployment, name: "web".into() }), 5, 2)
        );
        let found = scale_down("replicasets", "scale", kind(), scale(json!({"replicas": 5})), scale(json!({}))).unwrap();
        assert_eq!((found.workload, found.to), (Workload::Owner { uid: "w".into(), name: "web".into() }, 0));
    }

    #[test]
    fn other_requests_are_no_scale_downs() {
        let kind = || json!({"group": "apps", "version": "v1", "kind": "Deployment"});
        let spec = |replicas: i32| json!({"metadata": {"uid": "w"}, "spec": {"replicas": replicas}});
        assert_eq!(scale_down("deployments", "", kind(), spec(2), spec(5)), None);
        assert_eq!(scale_down("deployments", "", kind(), spec(5), spec(5)), None);
        assert_eq!(scale_down("deployments", "status", kind(), spec(5), spec(2)), None);
        assert_eq!(scale_down("statefulsets", "", kind(), spec(5), spec(2)), None);
        assert_eq!(scale_down("deployments", "", kind(), spec(5), Value::Null), None);
        let mut leaving = spec(2);
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(scale_down("replicasets", "", kind(), spec(5), leaving), None);
    }

    /// A snapshot in which the pods of policy `web` have these costs.
    fn snapshot(spec: Value, costs: &[(&str, i32, Basis)]) -> Snapshot {
        let mut whole =
            json!({"selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1000}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let policy: DeletionCostPolicy =
            serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": whole})).unwrap();
        let policy = Arc::new(CostPolicy::compile(&policy));
        let cache = CostCache::with_capacity(100);
        for (uid, value, basis) in costs {
            cache.insert(*uid, Cost::unmeasured(*value, *basis, policy.clone()));
        }
        Snapshot {
            gates: Arc::default(),
            policies: Arc::new(Policies::default().with_policy(policy)),
            headroom: Default::default(),
            costs: cache,
            contested: Default::default(),
        }
    }

    /// Plans a scale-down by one of three pods with these stored values.
    fn one_goes(snapshot: &Snapshot, stored: [Stored; 3]) -> Plan {
        let pods: Vec<_> = ["a", "b", "c"].iter().zip(stored).map(|(name, stored)| Arc::new(GovernedPod { stored, ..pod(name) })).collect();
        plan(&pods, &pods, 2, snapshot, Timestamp::from_second(1000).unwrap())
    }

    const ALL_BUSY_BUT_C: &[(&str, i32, Basis)] = &[("a", 300, Basis::Work), ("b", 200, Basis::Work), ("c", 0, Basis::Idle)];

    fn written(plan: &Plan) -> Vec<(&str, i32)> {
        plan.writes.iter().map(|write| (write.name.as_str(), write.cost)).collect()
    }

    #[test]
    fn writes_what_decides_and_foretells_who_goes() {
        let plan = one_goes(&snapshot(json!({}), ALL_BUSY_BUT_C), [Stored::Unset; 3]);
        assert_eq!((written(&plan), plan.victims.clone()), (vec![("a", 300), ("b", 200)], vec!["c".to_owned()]));
    }

    /// DC-26: a text that is no cost counts as 0, and is replaced where it decides.
    #[test]
    fn dc_26_a_malformed_value_is_replaced() {
        let plan = one_goes(&snapshot(json!({}), ALL_BUSY_BUT_C), [Stored::Malformed, Stored::Ours(200), Stored::Ours(0)]);
        assert_eq!(written(&plan), [("a", 300)]);
    }

    /// DC-29: a foreign value is skipped or overridden, as the policy in force says.
    #[test]
    fn dc_29_a_foreign_value_is_skipped_or_overridden() {
        let stored = [Stored::Foreign(-3), Stored::Ours(200), Stored::Ours(0)];
        let plan = one_goes(&snapshot(json!({}), ALL_BUSY_BUT_C), stored);
        assert_eq!((written(&plan), plan.victims.clone()), (vec![], vec!["a".to_owned()]));
        let plan = one_goes(&snapshot(json!({"foreignValues": "Override"}), ALL_BUSY_BUT_C), stored);
        assert_eq!((written(&plan), plan.victims.clone()), (vec![("a", 300)], vec!["c".to_owned()]));
    }

    #[test]
    fn a_policy_that_does_not_write_withholds() {
        for spec in [json!({"dryRun": true}), json!({"write": {"onScaleDown": false}})] {
            let plan = one_goes(&snapshot(spec, ALL_BUSY_BUT_C), [Stored::Unset; 3]);
            assert_eq!((plan.writes.len(), plan.withheld), (0, 2));
        }
    }

    /// A cost that was computed under a policy which is gone since is nobody's.
    #[test]
    fn a_policy_that_is_gone_writes_nothing() {
        let snapshot = Snapshot { policies: Arc::default(), ..snapshot(json!({}), ALL_BUSY_BUT_C) };
        assert_eq!(written(&one_goes(&snapshot, [Stored::Unset; 3])), []);
    }

    /// During an outage, or after a restart, what is unknown replaces nothing that was known; but it yields to work.
    #[test]
    fn what_is_unknown_replaces_nothing_that_was_known() {
        let unknown = snapshot(json!({}), &[("a", 500, Basis::NoMetrics), ("b", 500, Basis::NoMetrics), ("c", 500, Basis::NoMetrics)]);
        let plan = one_goes(&unknown, [Stored::Ours(990), Stored::Ours(0), Stored::Ours(700)]);
        assert_eq!((written(&plan), plan.victims.clone()), (vec![], vec!["b".to_owned()]));
        let yielding = snapshot(json!({}), &[("a", 60, Basis::Work), ("b", 70, Basis::Work)]);
        let policy = yielding.policies.policies().next().unwrap().clone();
        yielding.costs.insert("c", Cost { yields: true, ..Cost::unmeasured(50, Basis::NoMetrics, policy) });
        let plan = one_goes(&yielding, [Stored::Ours(60), Stored::Ours(70), Stored::Ours(500)]);
        assert_eq!((written(&plan), plan.victims.clone()), (vec![("c", 50)], vec!["c".to_owned()]));
    }

    /// DC-10: a busy pod that is not Ready goes first, whatever is written, so nothing is.
    #[test]
    fn dc_10_readiness_comes_before_cost() {
        let snapshot = snapshot(json!({}), ALL_BUSY_BUT_C);
        let unready = Arc::new(GovernedPod { ready_since: None, ..pod("a") });
        let pods = [unready, Arc::new(pod("b")), Arc::new(pod("c"))];
        let plan = plan(&pods, &pods, 2, &snapshot, Timestamp::from_second(1000).unwrap());
        assert_eq!((written(&plan), plan.victims.clone()), (vec![], vec!["a".to_owned()]));
    }
}
