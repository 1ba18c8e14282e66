//! Writes the `Ready` condition of our own kinds, and only when it changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Names us in `managedFields`.
pub const FIELD_MANAGER: &str = "pecking-order";

/// Longer messages are cut; the API server accepts 32 KiB.
const MESSAGE_CHARS: usize = 4096;

/// Whether a version of a document is in force.
pub struct Ready {
    pub status: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Writes the condition unless it stands there already. Every replica may do so: all come to the same words.
pub async fn report(client: &Client, resource: &ApiResource, object: &DynamicObject, ready: &Ready) -> kube::Result<()> {
    let conditions: Vec<Condition> = object
        .data
        .pointer("/status/conditions")
        .and_then(|conditions| serde_json::from_value(conditions.clone()).ok())
        .unwrap_or_default();
    let before = conditions.iter().find(|condition| condition.type_ == "Ready");
    let mut now = Condition {
        type_: "Ready".into(),
        status: if ready.status { "True" } else { "False" }.into(),
        reason: ready.reason.into(),
        message: ready.message.chars().take(MESSAGE_CHARS).collect(),
        observed_generation: object.metadata.generation,
        last_transition_time: Time(Timestamp::now()),
    };
    if let Some(before) = before.filter(|before| before.status == now.status) {
        now.last_transition_time = before.last_transition_time.clone();
    }
    if before == Some(&now) {
        return Ok(());
    }
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let others = conditions.iter().filter(|condition| condition.type_ != "Ready");
    let all: Vec<&Condition> = others.chain([&now]).collect();
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let patch = json!({ "status": { "conditions": all } });
    match api.patch_status(&object.name_any(), &params, &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}
