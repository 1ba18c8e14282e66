//! Pods at CREATE and UPDATE: the two cost annotations ride on requests that happen anyway.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;

use super::{Mutation, Operation, PodPatch, Request, Snapshot, Unreadable};
use crate::api::CostPolicy;
use crate::api::policies::Labels;
use crate::api::tolerant::{few, null_is_default};
use crate::cost::annotation::Annotations;
use crate::cost::pod::honours_cost;
use crate::cost::score::Basis;
use crate::cost::{Cost, Stored, score};

/// Decides about a pod. Never asks anybody: a cost is in the cache or it is not.
pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Mutation, Unreadable> {
    let Some(object) = request.object.filter(|_| request.sub_resource.is_empty()) else { return Ok(Mutation::default()) };
    let Pod { metadata, status } = serde_json::from_str(object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    // A pod that has ended, or is on its way out, has no future to rank.
    if metadata.deletion_timestamp.is_some() || matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Ok(Mutation::default());
    }
    Ok(Mutation::patch(match request.operation {
        Operation::Create => at_create(request, &metadata, snapshot),
        Operation::Update => at_update(&metadata, snapshot),
        Operation::Delete | Operation::Other => None,
    }))
}

/// A pod has no UID yet when it is created, so its cost is that of a new pod of its ReplicaSet. A cost that its template
/// gives it is somebody else's.
fn at_create(request: &Request<'_>, metadata: &Metadata, snapshot: &Snapshot) -> Option<PodPatch> {
    let owner = metadata.owner_references.iter().find(|owner| owner.controller == Some(true) && honours_cost(owner))?;
    let policy = snapshot.policies.governing(&request.namespace, &metadata.labels)?;
    let cost = score::new_pod_cost(&policy.spec, snapshot.costs.least_work(policy.key(), &owner.uid));
    let cost = Cost::unmeasured(cost, Basis::New, policy.clone());
    patch(&cost, policy, metadata.annotations.as_ref())
}

fn at_update(metadata: &Metadata, snapshot: &Snapshot) -> Option<PodPatch> {
    let cost = snapshot.costs.get(&metadata.uid)?;
    let policy = snapshot.policies.policy(cost.policy.key())?;
    if snapshot.contested.is_contested(&metadata.uid) {
        return None;
    }
    patch(&cost, policy, metadata.annotations.as_ref())
}

fn patch(cost: &Cost, policy: &CostPolicy, annotations: Option<&Annotations>) -> Option<PodPatch> {
    let spec = &policy.spec;
    let stored = annotations.map_or(Stored::Unset, Stored::read);
    // Somebody else's request is no place to repair a text that is no cost.
    if spec.dry_run || !spec.write.on_pod_update || stored == Stored::Malformed {
        return None;
    }
    let value = cost.replaces(stored, policy)?;
    let differs = i64::from(stored.effective()).abs_diff(value.into()) >= u64::from(spec.resolution.unsigned_abs());
    differs.then(|| PodPatch::cost(annotations, value)).flatten()
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    phase: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default, deserialize_with = "null_is_default")]
    uid: String,
    #[serde(default, deserialize_with = "null_is_default")]
    labels: Labels,
    /// Absent and empty are different: only below a map that is there can a key be added.
    annotations: Option<Annotations>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    #[serde(default, deserialize_with = "few")]
    owner_references: Vec<OwnerReference>,
}
