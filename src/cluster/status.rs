//! Says on our own objects what is the matter with them: conditions, counts and Events. Every replica knows what should stand
//! there; only the leader writes it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::events::{Event, EventType, Recorder, Reporter as EventReporter};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::conditions::{self, NONE_HONOURED, Said};
use super::leadership::Leadership;
use crate::api::policies::PolicyKey;
use crate::api::{CostPolicy, DeletionCostPolicy};
use crate::signals::report::Poll;

/// Names us in `managedFields`.
pub const FIELD_MANAGER: &str = "pecking-order";

/// Longer messages are cut; the API server accepts 32 KiB in a condition and 1 KiB in an Event.
const MESSAGE_CHARS: usize = 4096;
const EVENT_CHARS: usize = 1000;

/// A change of a condition is written at once, but no sooner than this after the last write of the same object.
const AFTER_A_CHANGE: Duration = Duration::from_secs(5);
/// Counts and wordings change at every poll; they are written this seldom.
const COUNTS: Duration = Duration::from_secs(60);
/// With nothing new, the time of the last poll is still written now and then.
const NOTHING_NEW: Duration = Duration::from_secs(300);
/// How often it is looked at what is due.
const TICK: Duration = Duration::from_millis(500);
/// How long one write may take.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Something to say about an object of ours.
enum Report {
    Document {
        resource: ApiResource,
        object: Box<DynamicObject>,
        ready: Said,
    },
    Poll {
        key: PolicyKey,
        said: Vec<Said>,
        counts: Value,
        time: Timestamp,
    },
    /// Only the replica that admitted it knows of a scale-down, so that one says it, leader or not.
    ScaleDown {
        key: PolicyKey,
        last: Value,
    },
    Event {
        about: Box<ObjectReference>,
        event: Event,
    },
    Gone {
        kind: String,
        key: PolicyKey,
    },
}

/// Takes what there is to say, and writes it in a task of its own: nothing waits for it.
#[derive(Clone)]
pub struct Reporter(mpsc::UnboundedSender<Report>);

impl Reporter {
    /// The client must not retry by itself. The queue is emptied into one entry per object at once, so it is as long as the list
    /// of our own objects.
    pub fn start(client: Client, leadership: Leadership) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(client, leadership, receiver));
        Self(sender)
    }

    /// Whether this version of a document is in force.
    pub fn document(&self, resource: &ApiResource, object: DynamicObject, result: Result<(), (&'static str, String)>) {
        let ready = Said::ready(result);
        self.send(Report::Document { resource: resource.clone(), object: Box::new(object), ready });
    }

    /// What the last scale-down of a policy's pods came to.
    pub fn scale_down(&self, policy: &PolicyKey, last: Value) {
        self.send(Report::ScaleDown { key: policy.clone(), last });
    }

    pub fn event(&self, about: ObjectReference, event: Event) {
        self.send(Report::Event { about: Box::new(about), event });
    }

    pub fn gone(&self, kind: &str, key: &PolicyKey) {
        self.send(Report::Gone { kind: kind.into(), key: key.clone() });
    }

    fn send(&self, report: Report) {
        // The task ends only with the process.
        let _ = self.0.send(report);
    }
}

/// Says what the polls of one policy come to: in the log of this replica when it changes, and on the status.
pub struct PollReporter {
    reporter: Option<Reporter>,
    last: Vec<Said>,
}

impl PollReporter {
    /// Without a reporter, where policies come from files, only the log is told.
    pub fn new(reporter: Option<Reporter>) -> Self {
        Self { reporter, last: vec![] }
    }

    pub fn report(&mut self, policy: &CostPolicy, poll: Poll) {
        let said = conditions::of_poll(policy, &poll);
        for now in &said {
            let before = self.last.iter().find(|before| before.type_ == now.type_);
            let (namespace, name, condition, reason, message) = (&policy.namespace, &policy.name, now.type_, now.reason, &now.message);
            match before {
                Some(before) if !now.differs_in_kind(before.status.as_str(), before.reason) => {}
                None if !now.is_trouble => {}
                _ if now.is_trouble => warn!(namespace, policy = name, condition, reason, message),
                _ => info!(namespace, policy = name, condition, reason, message),
            }
        }
        if let Some(reporter) = &self.reporter {
            let census = &poll.census;
            let counts = json!({"pods": census.pods(), "busy": census.busy, "idle": census.idle,
                "unknown": census.unknown() + census.outranked.count});
            reporter.send(Report::Poll { key: policy.key().clone(), said: said.clone(), counts, time: poll.time });
        }
        self.last = said;
    }
}

/// What is known and wanted of one object.
struct Entry {
    resource: ApiResource,
    object: DynamicObject,
    /// As they stand on the object, as far as we know.
    conditions: Vec<Condition>,
    wanted: BTreeMap<&'static str, Said>,
    /// Whether this version is in force, by itself.
    ready: Said,
    counts: Value,
    polled: Option<Timestamp>,
    /// The counts that were written last, and when.
    written: Option<(Value, Instant)>,
}

type Entries = HashMap<(String, PolicyKey), Entry>;

async fn run(client: Client, leadership: Leadership, mut reports: mpsc::UnboundedReceiver<Report>) {
    let reporter = EventReporter { controller: FIELD_MANAGER.into(), instance: None };
    let recorder = Recorder::new(client.clone(), reporter);
    let mut entries = Entries::new();
    loop {
        let mut news = match timeout(TICK, reports.recv()).await {
            Ok(None) => return,
            Ok(Some(report)) => vec![report],
            Err(_) => vec![],
        };
        while let Ok(report) = reports.try_recv() {
            news.push(report);
        }
        for report in news {
            match report {
                Report::ScaleDown { key, last } => write_last_scale_down(&client, &key, last).await,
                Report::Event { about, event } => publish(&recorder, &about, event).await,
                report => take(&mut entries, report),
            }
        }
        for entry in entries.values_mut().filter(|entry| entry.is_due()) {
            if !leadership.is_mine() {
                break;
            }
            entry.write(&client, &recorder).await;
        }
    }
}

fn take(entries: &mut Entries, report: Report) {
    match report {
        Report::Document { resource, object, ready } => {
            let key = PolicyKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
            let conditions = object.data.pointer("/status/conditions").cloned();
            let conditions: Vec<Condition> = conditions.and_then(|conditions| serde_json::from_value(conditions).ok()).unwrap_or_default();
            let entry = entries.entry((resource.kind.clone(), key)).or_insert_with(|| Entry {
                resource,
                object: *object.clone(),
                conditions: vec![],
                wanted: BTreeMap::new(),
                ready: ready.clone(),
                counts: json!({}),
                polled: None,
                written: None,
            });
            if entry.object.uid() != object.uid() {
                // Deleted and made anew: nothing that was said about the old one holds.
                (entry.wanted, entry.counts, entry.polled, entry.written) = (BTreeMap::new(), json!({}), None, None);
            }
            (entry.object, entry.conditions, entry.ready) = (*object, conditions, ready);
            entry.settle_ready();
        }
        Report::Poll { key, said, counts, time } => {
            // A poll that overtakes its document is followed by another.
            if let Some(entry) = entries.get_mut(&(DeletionCostPolicy::kind(&()).into_owned(), key)) {
                let polled = ["BackendReachable", "SeriesMatchTargets", "GracePeriodSuffices"];
                entry.wanted.retain(|type_, _| !polled.contains(type_));
                entry.wanted.extend(said.into_iter().map(|said| (said.type_, said)));
                (entry.counts, entry.polled) = (counts, Some(time));
                entry.settle_ready();
            }
        }
        Report::Gone { kind, key } => {
            entries.remove(&(kind, key));
        }
        // These are written as they come.
        Report::ScaleDown { .. } | Report::Event { .. } => {}
    }
}

async fn write_last_scale_down(client: &Client, key: &PolicyKey, last: Value) {
    let api: Api<DeletionCostPolicy> = Api::namespaced(client.clone(), &key.namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let patch = json!({ "status": { "lastScaleDown": last } });
    match timeout(WRITE_LIMIT, api.patch_status(&key.name, &params, &Patch::Merge(&patch))).await {
        Ok(Ok(_)) => {}
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => {}
        Ok(Err(e)) => warn!(namespace = key.namespace, policy = key.name, error = %e, "cannot note the last scale-down"),
        Err(_) => warn!(namespace = key.namespace, policy = key.name, "cannot note the last scale-down in time"),
    }
}

async fn publish(recorder: &Recorder, about: &ObjectReference, event: Event) {
    match timeout(WRITE_LIMIT, recorder.publish(&event, about)).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => warn!(error = %e, reason = event.reason, "cannot write an Event"),
        Err(_) => warn!(reason = event.reason, "cannot write an Event in time"),
    }
}

impl Entry {
    /// A policy of which no pod can have a cost that counts is as good as not in force.
    fn settle_ready(&mut self) {
        let in_vain = self.wanted.get("TargetsHonourCost").filter(|said| said.reason == NONE_HONOURED && !self.ready.is_trouble);
        let ready = match in_vain {
            Some(said) => Said { type_: "Ready", ..said.clone() },
            None => self.ready.clone(),
        };
        self.wanted.insert("Ready", ready);
    }

    fn find(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    fn is_due(&self) -> bool {
        let changed = self.wanted.values().any(|said| {
            self.find(said.type_).is_none_or(|stands| {
                said.differs_in_kind(&stands.status, &stands.reason) || stands.observed_generation != self.object.metadata.generation
            })
        });
        let Some((counts, at)) = &self.written else { return changed || self.polled.is_some() };
        let reworded = self.wanted.values().any(|said| self.find(said.type_).is_some_and(|stands| stands.message != cut(&said.message)));
        let pause = match () {
            () if changed => AFTER_A_CHANGE,
            () if reworded || *counts != self.counts => COUNTS,
            () if self.polled.is_some() => NOTHING_NEW,
            () => return false,
        };
        at.elapsed() >= pause
    }

    async fn write(&mut self, client: &Client, recorder: &Recorder) {
        let now = Timestamp::now();
        let condition = |said: &Said| {
            let before = self.find(said.type_).filter(|before| before.status == said.status.as_str());
            Condition {
                type_: said.type_.into(),
                status: said.status.as_str().into(),
                reason: said.reason.into(),
                message: cut(&said.message),
                observed_generation: self.object.metadata.generation,
                last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
            }
        };
        let conditions: Vec<Condition> = self.wanted.values().map(condition).collect();
        let mut status = self.counts.clone();
        status["conditions"] = json!(conditions);
        if let Some(time) = self.polled {
            status["lastPoll"] = json!(Time(time));
        }
        // Even one that fails counts: what cannot be written is tried again after the pause.
        self.written = Some((self.counts.clone(), Instant::now()));
        let name = self.object.name_any();
        let api: Api<DynamicObject> = match self.object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        };
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = json!({ "status": status });
        let why = match timeout(WRITE_LIMIT, api.patch_status(&name, &params, &Patch::Merge(&patch))).await {
            Ok(Ok(_)) => {
                let events = self.events();
                self.conditions = conditions;
                for event in events {
                    publish(recorder, &self.object.object_ref(&self.resource), event).await;
                }
                return;
            }
            // It is gone, which the watch will tell.
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() => return,
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("no answer within {WRITE_LIMIT:?}"),
        };
        warn!(kind = self.resource.kind, name, why, "cannot write the status; trying again");
    }

    /// One Event for each condition that turned, and none for those that were well from the start.
    fn events(&self) -> Vec<Event> {
        let turned = |said: &&Said| match self.find(said.type_) {
            Some(stands) => said.differs_in_kind(&stands.status, &stands.reason),
            None => said.is_trouble,
        };
        let event = |said: &Said| Event {
            type_: if said.is_trouble { EventType::Warning } else { EventType::Normal },
            reason: said.reason.into(),
            note: Some(said.message.chars().take(EVENT_CHARS).collect()),
            action: said.type_.into(),
            secondary: None,
        };
        self.wanted.values().filter(turned).map(event).collect()
    }
}

fn cut(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS).collect()
}
