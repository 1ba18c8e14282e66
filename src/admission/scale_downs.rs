//! Scale-downs, through whichever door they come: a Deployment or a ReplicaSet, or the scale of either.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{Operation, Request, Snapshot, Unreadable};
use crate::api::CostPolicy;
use crate::api::tolerant::null_is_default;
use crate::cost::plan::{Candidate, fewest_writes};
use crate::cost::{GovernedPod, victims};

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    Deployment { name: String },
    ReplicaSet { uid: String, name: String },
}

/// Reads a scale-down; `None` for every other request. A Scale carries no labels and no owner, only a name and a UID, which
/// are those of its workload.
pub fn read(request: &Request<'_>) -> Result<Option<ScaleDown>, Unreadable> {
    let door = match (request.resource.group.as_str(), request.resource.resource.as_str(), request.sub_resource.as_str()) {
        ("apps", "deployments", "") => "deployments",
        ("apps", "deployments", "scale") => "deployments/scale",
        ("apps", "replicasets", "") => "replicasets",
        ("apps", "replicasets", "scale") => "replicasets/scale",
        _ => return Ok(None),
    };
    let is_update = request.operation == Operation::Update;
    let (Some(new), Some(old)) = (request.object.filter(|_| is_update), request.old_object) else { return Ok(None) };
    // In a Scale zero replicas are left out; the other kinds always say.
    let new: Scaled = serde_json::from_str(new.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    let old: Scaled = serde_json::from_str(old.get()).map_err(|source| Unreadable { field: "request.oldObject", source })?;
    if new.spec.replicas >= old.spec.replicas || new.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let name = request.name.clone();
    let workload = match request.resource.resource.as_str() {
        "deployments" => Workload::Deployment { name },
        _ => Workload::ReplicaSet { uid: new.metadata.uid, name },
    };
    let count = |replicas: i32| usize::try_from(replicas).unwrap_or(0);
    let (from, to) = (count(old.spec.replicas), count(new.spec.replicas));
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
    #[serde(default, deserialize_with = "null_is_default")]
    replicas: i32,
}

/// A cost to be written to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodWrite {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub cost: i32,
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
}

/// Plans a scale-down of one ReplicaSet to `to` pods. `pods` are the ReplicaSet's own, `family` those of all ReplicaSets of
/// its Deployment.
pub fn plan(pods: &[Arc<GovernedPod>], family: &[Arc<GovernedPod>], to: usize, snapshot: &Snapshot, now: Timestamp) -> Plan {
    let active: Vec<&GovernedPod> = pods.iter().map(AsRef::as_ref).filter(|pod: &&GovernedPod| pod.is_active()).collect();
    let go = active.len().saturating_sub(to);
    // The cost that each pod should have, where the policy in force lets it be written.
    let wanted: Vec<Option<(i32, &CostPolicy)>> = active
        .iter()
        .map(|pod| {
            let cost = snapshot.costs.get(&pod.uid)?;
            let policy = snapshot.policies.policy(&cost.policy.key())?;
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
        plan.writes.push(PodWrite { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone(), cost });
    }
    let siblings = victims::siblings_on_node(family.iter().map(AsRef::as_ref).filter(|pod: &&GovernedPod| pod.is_active()));
    let mut order: Vec<&GovernedPod> = after.iter().collect();
    victims::sort(&mut order, &siblings, now);
    plan.victims = order.into_iter().take(go).map(|pod| pod.name.clone()).collect();
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::admission::request::{Body, read as read_body};

    fn scale_down(resource: &str, sub_resource: &str, kind: Value, old: Value, new: Value) -> Option<ScaleDown> {
        let text = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": kind, "resource": {"group": "apps", "version": "v1", "resource": resource}, "subResource": sub_resource,
            "name": "web", "namespace": "x", "operation": "UPDATE", "oldObject": old, "object": new}})
        .to_string();
        let Body::Request(request) = read_body(text.as_bytes()) else { panic!("{text}") };
        read(&request).unwrap()
    }

    /// DC-21, webhook case 14: a Scale has no labels, and leaves out zero.
    #[test]
    fn dc_21_reads_a_scale() {
        let kind = || json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        let scale = |replicas: Value| json!({"metadata": {"name": "web", "namespace": "x", "uid": "w"}, "spec": replicas});
        let found = scale_down("deployments", "scale", kind(), scale(json!({"replicas": 5})), scale(json!({"replicas": 2}))).unwrap();
        assert_eq!((found.workload, found.from, found.to), (Workload::Deployment { name: "web".into() }, 5, 2));
        let found = scale_down("replicasets", "scale", kind(), scale(json!({"replicas": 5})), scale(json!({}))).unwrap();
        assert_eq!((found.workload, found.to), (Workload::ReplicaSet { uid: "w".into(), name: "web".into() }, 0));
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
}
