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

/// How many objects' words are remembered. An entry is a few hundred bytes; objects that are gone leave theirs behind.
const SAID: usize = 10_000;

/// The pause before what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(10);

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
pub struct Reporter(mpsc::UnboundedSender<Report>);

impl Reporter {
    /// The client must not retry by itself. The queue is as long as the list of our own objects, whose newest report each
    /// counts: it is emptied into a map at once.
    pub fn start(client: Client) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(client, receiver));
        Self(sender)
    }

    pub fn report(&self, resource: &ApiResource, object: DynamicObject, ready: Ready) {
        // The task ends only with the process.
        let _ = self.0.send(Report { resource: resource.clone(), object, ready });
    }
}

/// Each replica says a thing once. It does not look whether the status still says so: two replicas with different
/// configurations would otherwise correct each other for ever.
async fn run(client: Client, mut reports: mpsc::UnboundedReceiver<Report>) {
    let mut said: HashMap<String, (Option<i64>, Ready)> = HashMap::new();
    let mut pending: HashMap<String, Report> = HashMap::new();
    loop {
        let wait = if pending.is_empty() { Duration::MAX } else { AGAIN };
        match timeout(wait, reports.recv()).await {
            Ok(None) => return,
            Ok(Some(report)) => take(&mut pending, report),
            Err(_) => {}
        }
        while let Ok(report) = reports.try_recv() {
            take(&mut pending, report);
        }
        for (uid, Report { resource, object, ready }) in std::mem::take(&mut pending) {
            let now = (object.metadata.generation, ready);
            if said.get(&uid) == Some(&now) {
                continue;
            }
            let written = timeout(WRITE_LIMIT, write(&client, &resource, &object, &now.1)).await;
            let why = match written {
                Ok(Ok(())) => {
                    said.insert(uid, now);
                    continue;
                }
                Ok(Err(e)) => e.to_string(),
                Err(_) => format!("no answer within {WRITE_LIMIT:?}"),
            };
            warn!(kind = resource.kind, name = object.name_any(), why, "cannot write the status; trying again");
            pending.insert(uid, Report { resource, object, ready: now.1 });
        }
        if said.len() > SAID {
            said.clear();
        }
    }
}

/// Only the newest report of an object counts.
fn take(pending: &mut HashMap<String, Report>, report: Report) {
    pending.insert(report.object.metadata.uid.clone().unwrap_or_default(), report);
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
