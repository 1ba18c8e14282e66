//! Pods at CREATE and UPDATE: the two cost annotations ride on requests that happen anyway.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;

use super::request::null_is_default;
use super::{Mutation, Operation, PodPatch, Request, Snapshot, Unreadable};
use crate::api::deletion_cost_policy::DeletionCostPolicySpec;
use crate::api::policies::Labels;
use crate::cost::annotation::Annotations;
use crate::cost::pod::honours_cost;
use crate::cost::{Stored, score};

/// Decides about a pod. Never asks anybody: a cost is in the cache or it is not.
pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Mutation, Unreadable> {
    let Some(object) = request.object.filter(|_| request.sub_resource.is_empty()) else { return Ok(Mutation::default()) };
    let Pod { metadata } = serde_json::from_str(object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    // A pod on its way out has no future to rank.
    if metadata.deletion_timestamp.is_some() {
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
    let cost = score::new_pod_cost(&policy.spec, snapshot.costs.least_work(&policy.key(), &owner.uid));
    patch(&policy.spec, metadata.annotations.as_ref(), cost)
}

fn at_update(metadata: &Metadata, snapshot: &Snapshot) -> Option<PodPatch> {
    let cost = snapshot.costs.get(&metadata.uid)?;
    patch(&cost.policy.spec, metadata.annotations.as_ref(), cost.value)
}

fn patch(spec: &DeletionCostPolicySpec, annotations: Option<&Annotations>, cost: i32) -> Option<PodPatch> {
    if spec.dry_run || !spec.write.on_pod_update {
        return None;
    }
    let stored = annotations.map_or(Stored::Unset, Stored::read);
    // Somebody else's request is no place to repair a text that is no cost.
    let writable = stored != Stored::Malformed && stored.is_ours_to_write(spec.foreign_values);
    let differs = i64::from(stored.effective()).abs_diff(cost.into()) >= u64::from(spec.resolution.unsigned_abs());
    (writable && differs).then(|| PodPatch::cost(annotations, cost)).flatten()
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
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
    #[serde(default, deserialize_with = "null_is_default")]
    owner_references: Vec<OwnerReference>,
}
