//! Writes the `Ready` condition of our own kinds, and only when it changes.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

/// Names us in `managedFields`.
pub const FIELD_MANAGER: &str = "pecking-order";

/// Longer messages are cut; the API server accepts 32 KiB.
const MESSAGE_CHARS: usize = 4096;

/// How many objects' last words are remembered.
const SAID: usize = 10_000;

/// Reports that wait to be written. Beyond it the newest are dropped: the next change of the object reports again.
const QUEUE: usize = 256;

/// How long one write may take.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Whether a version of a document is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub status: bool,
    pub reason: &'static str,
    pub message: String,
}

struct Report {
    resource: ApiResource,
    object: DynamicObject,
    ready: Ready,
}

/// Writes statuses in a task of its own: what is in force must not wait for it.
#[derive(Clone)]
pub struct Reporter(mpsc::Sender<Report>);

impl Reporter {
    /// The client must not retry by itself.
    pub fn start(client: Client) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(run(client, receiver));
        Self(sender)
    }

    pub fn report(&self, resource: &ApiResource, object: DynamicObject, ready: Ready) {
        let name = object.name_any();
        if self.0.try_send(Report { resource: resource.clone(), object, ready }).is_err() {
            warn!(kind = resource.kind, name, "too many statuses wait to be written; this one is left out");
        }
    }
}

/// Each replica says a thing once. It does not look whether the status still says so: two replicas with different
/// configurations would otherwise correct each other for ever.
async fn run(client: Client, mut reports: mpsc::Receiver<Report>) {
    let mut said: HashMap<String, (Option<i64>, Ready)> = HashMap::new();
    while let Some(Report { resource, object, ready }) = reports.recv().await {
        let key = object.metadata.uid.clone().unwrap_or_default();
        let now = (object.metadata.generation, ready);
        if said.get(&key) == Some(&now) {
            continue;
        }
        match timeout(WRITE_LIMIT, write(&client, &resource, &object, &now.1)).await {
            Ok(Ok(())) => {
                said.insert(key, now);
            }
            Ok(Err(e)) => warn!(kind = resource.kind, name = object.name_any(), error = %e, "cannot write the status"),
            Err(_) => warn!(kind = resource.kind, name = object.name_any(), "the status was not written in time"),
        }
        // An entry is a few hundred bytes; objects that are gone leave theirs behind.
        if said.len() > SAID {
            said.clear();
        }
    }
}

/// Writes the condition unless it stands there already.
async fn write(client: &Client, resource: &ApiResource, object: &DynamicObject, ready: &Ready) -> kube::Result<()> {
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
