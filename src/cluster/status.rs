//! Says on our own objects what is the matter with them: conditions, counts and Events. Every replica knows what should stand
//! there; only the leader writes it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::StreamExt;
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
use tracing::warn;

use super::conditions::{self, NONE_HONOURED, Said};
use super::doors::Doors;
use super::leadership::Leadership;
use crate::api::deletion_cost_policy::FloorTarget;
use crate::api::policies::PolicyKey;
use crate::api::{CostPolicy, DeletionCostPolicy, HeadroomPool};
use crate::signals::report::Poll;

mod polls;

pub use polls::PollReporter;

/// Names us in `managedFields`.
pub const FIELD_MANAGER: &str = "pecking-order";

/// Longer messages are cut; the API server accepts 32 KiB in a condition and 1 KiB in an Event.
const MESSAGE_BYTES: usize = 16 << 10;
const EVENT_BYTES: usize = 1000;

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
/// Statuses that are written at once.
const PARALLEL: usize = 8;
/// Words about single scale-downs that may wait to be written; beyond it they are dropped, and that is logged.
const WAITING: usize = 256;

/// An object of ours, by kind.
type Id = (String, PolicyKey);

/// A word about one scale-down. Only the replica that admitted it knows of it, so that one says it, leader or not.
enum Word {
    LastScaleDown { key: PolicyKey, last: Value },
    Event { about: Box<ObjectReference>, event: Event },
}

/// Keeps what there is to say about each object, the newest only, for a task that writes it: nothing waits for it.
#[derive(Clone)]
pub struct Reporter {
    entries: Arc<Mutex<HashMap<Id, Entry>>>,
    /// What is known of the installed webhook configuration.
    doors: Arc<ArcSwapOption<Doors>>,
    words: mpsc::Sender<Word>,
}

impl Reporter {
    /// The reporter, and the task that writes; the client must not retry by itself.
    pub fn new(client: Client, leadership: Leadership) -> (Self, impl Future<Output = ()> + Send) {
        let (words, waiting) = mpsc::channel(WAITING);
        let reporter = Self { entries: Arc::default(), doors: Arc::default(), words };
        (reporter.clone(), run(client, leadership, reporter, waiting))
    }

    /// Whether this version of a document is in force; and if not, whether an earlier one is.
    pub fn document(&self, resource: &ApiResource, object: DynamicObject, ready: Said, some_version_in_force: bool) {
        let id = (resource.kind.clone(), PolicyKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() });
        let mut entries = self.entries();
        let entry = entries.entry(id).or_insert_with(|| Entry::new(resource.clone(), object.clone(), ready.clone()));
        entry.document(object, ready, some_version_in_force);
        self.look_at_doors(&resource.kind, entry);
    }

    fn poll(&self, policy: &CostPolicy, said: Vec<Said>, poll: &Poll) {
        let id = (DeletionCostPolicy::kind(&()).into_owned(), policy.key().clone());
        // A poll that overtakes its document is followed by another.
        if let Some(entry) = self.entries().get_mut(&id) {
            entry.polled = Some(Polled { said, generation: poll.generation, time: poll.time, counts: counts(poll) });
        }
    }

    /// How things stand with the floor of a policy, at this generation.
    pub fn floor(&self, policy: &PolicyKey, generation: i64, said: Said) {
        let id = (DeletionCostPolicy::kind(&()).into_owned(), policy.clone());
        if let Some(entry) = self.entries().get_mut(&id) {
            entry.floor = Some((said, generation));
        }
    }

    /// Whether the room of a pool can be given away, at this generation.
    pub fn room(&self, pool: &str, generation: i64, said: Said) {
        let id = (HeadroomPool::kind(&()).into_owned(), PolicyKey { namespace: String::new(), name: pool.into() });
        if let Some(entry) = self.entries().get_mut(&id) {
            entry.room = Some((said, generation));
        }
    }

    /// Whether there is a policy of which no version is in force, and which wants a floor on this autoscaler: its document says so, whatever else
    /// is wrong with it.
    pub fn not_in_force_but_wants_floor(&self, namespace: &str, by: Option<&str>, target: &FloorTarget) -> bool {
        let entries = self.entries();
        entries.iter().any(|((kind, key), entry)| {
            let is_it =
                kind == DeletionCostPolicy::kind(&()).as_ref() && key.namespace == namespace && by.is_none_or(|name| key.name == name);
            is_it && !entry.in_force && wants_floor_on(&entry.object.data, target)
        })
    }

    /// Forgets what only a leader finds out: another one may say otherwise meanwhile.
    fn forget_findings(&self) {
        self.entries().values_mut().for_each(|entry| (entry.floor, entry.doors, entry.room) = (None, None, None));
        self.doors.store(None);
    }

    /// Whether scale-downs come to us, for every policy.
    pub fn doors(&self, doors: Doors) {
        self.doors.store(Some(Arc::new(doors)));
        self.entries().iter_mut().for_each(|((kind, _), entry)| self.look_at_doors(kind, entry));
    }

    fn look_at_doors(&self, kind: &str, entry: &mut Entry) {
        let doors = self.doors.load();
        let namespace = entry.object.namespace().filter(|_| kind == DeletionCostPolicy::kind(&()));
        let said = doors.as_ref().zip(namespace).map(|(doors, namespace)| conditions::scale_downs_reviewed(doors, &namespace));
        entry.doors = said.zip(entry.object.metadata.generation);
    }

    /// What the last scale-down of a policy's pods came to.
    pub fn scale_down(&self, policy: &PolicyKey, last: Value) {
        self.say(Word::LastScaleDown { key: policy.clone(), last });
    }

    pub fn event(&self, about: ObjectReference, event: Event) {
        self.say(Word::Event { about: Box::new(about), event });
    }

    fn say(&self, word: Word) {
        if self.words.try_send(word).is_err() {
            warn!("too many scale-downs to write about at once; one is left out");
        }
    }

    pub fn gone(&self, kind: &str, key: &PolicyKey) {
        self.entries().remove(&(kind.to_owned(), key.clone()));
    }

    /// Forgets every object of a kind that a list did not show.
    pub fn retain(&self, kind: &str, seen: &HashSet<PolicyKey>) {
        self.entries().retain(|(other, key), _| other != kind || seen.contains(key));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Id, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a policy's document asks for a floor on this autoscaler, whatever else is wrong with it.
fn wants_floor_on(document: &Value, target: &FloorTarget) -> bool {
    let spec = &document["spec"];
    let floor = serde_json::from_value::<FloorTarget>(spec["floor"]["target"].clone());
    spec["dryRun"] != true && floor.is_ok_and(|floor| floor == *target)
}

fn counts(poll: &Poll) -> Value {
    let census = &poll.census;
    json!({"pods": census.pods(), "busy": census.busy, "idle": census.idle, "unknown": census.unknown() + census.outranked.count})
}

/// What the last poll came to.
struct Polled {
    said: Vec<Said>,
    generation: i64,
    time: Timestamp,
    counts: Value,
}

/// What is known and wanted of one object.
struct Entry {
    resource: ApiResource,
    object: DynamicObject,
    /// As they stand on the object, as far as we know.
    conditions: Vec<Condition>,
    ready: Said,
    /// None while no version of the policy is in force: then nothing is polled, and nothing of an earlier poll holds.
    polled: Option<Polled>,
    /// How things stand with the floor, and for which generation of the policy that was found.
    floor: Option<(Said, i64)>,
    /// Whether scale-downs come to us.
    doors: Option<(Said, i64)>,
    /// Whether room can be given away.
    room: Option<(Said, i64)>,
    in_force: bool,
    /// The counts that were written last, and when.
    written: Option<(Value, Instant)>,
    under_way: bool,
}

impl Entry {
    fn new(resource: ApiResource, object: DynamicObject, ready: Said) -> Self {
        let in_force = !ready.is_trouble;
        let conditions = conditions_of(&object);
        Self {
            resource,
            object,
            conditions,
            ready,
            polled: None,
            floor: None,
            doors: None,
            room: None,
            in_force,
            written: None,
            under_way: false,
        }
    }

    fn document(&mut self, object: DynamicObject, ready: Said, some_version_in_force: bool) {
        if self.object.uid() != object.uid() {
            // Deleted and made anew: nothing that was said about the old one holds.
            (self.polled, self.floor, self.room, self.written) = (None, None, None, None);
        }
        self.in_force = some_version_in_force;
        if !some_version_in_force {
            (self.polled, self.floor) = (None, None);
        }
        // A floor that the policy no longer asks for has nothing to say; one that it still does is looked at again at once.
        (self.conditions, self.object, self.ready) = (conditions_of(&object), object, ready);
        if !self.wants_floor() {
            self.floor = None;
        }
    }

    /// The conditions that should stand there, with the generation that each is about.
    fn wanted(&self) -> Vec<(Cow<'_, Said>, Option<i64>)> {
        let in_vain = |said: &&Said| said.type_ == "TargetsHonourCost" && said.reason == NONE_HONOURED && !self.ready.is_trouble;
        let polled = self.polled.as_ref();
        // A policy of which no pod can have a cost that counts is as good as not in force.
        let ready = match polled.and_then(|polled| polled.said.iter().find(in_vain)) {
            Some(said) => Cow::Owned(Said { type_: "Ready", ..said.clone() }),
            None => Cow::Borrowed(&self.ready),
        };
        let of_poll = polled.into_iter().flat_map(|polled| polled.said.iter().map(|said| (Cow::Borrowed(said), Some(polled.generation))));
        let others = [&self.doors, &self.floor, &self.room]
            .into_iter()
            .flatten()
            .filter(|_| self.in_force)
            .map(|(said, generation)| (Cow::Borrowed(said), Some(*generation)));
        std::iter::once((ready, self.object.metadata.generation)).chain(of_poll).chain(others).collect()
    }

    fn find(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    fn is_due(&self) -> bool {
        if self.under_way {
            return false;
        }
        let wanted = self.wanted();
        let stands_for_nothing = !self.in_force && (self.conditions.len() > wanted.len() || self.has_counts());
        let changed = stands_for_nothing
            || wanted.iter().any(|(said, generation)| {
                self.find(said.type_)
                    .is_none_or(|stands| said.differs_in_kind(&stands.status, &stands.reason) || stands.observed_generation != *generation)
            });
        let Some((counts, at)) = &self.written else { return changed || self.polled.is_some() };
        let reworded =
            wanted.iter().any(|(said, _)| self.find(said.type_).is_some_and(|stands| stands.message != cut(&said.message, MESSAGE_BYTES)));
        let pause = match &self.polled {
            _ if changed => AFTER_A_CHANGE,
            Some(polled) if reworded || *counts != polled.counts => COUNTS,
            None if reworded => COUNTS,
            Some(_) => NOTHING_NEW,
            None => return false,
        };
        at.elapsed() >= pause
    }

    fn wants_floor(&self) -> bool {
        self.object.data.pointer("/spec/floor").is_some_and(|floor| !floor.is_null())
    }

    fn has_counts(&self) -> bool {
        self.object.data.pointer("/status/lastPoll").is_some_and(|time| !time.is_null())
    }

    /// What is to be written now.
    fn write(&mut self) -> Write {
        let now = Timestamp::now();
        let wanted = self.wanted();
        let condition = |(said, generation): &(Cow<'_, Said>, Option<i64>)| {
            let before = self.find(said.type_).filter(|before| before.status == said.status.as_str());
            Condition {
                type_: said.type_.into(),
                status: said.status.as_str().into(),
                reason: said.reason.into(),
                message: cut(&said.message, MESSAGE_BYTES),
                observed_generation: *generation,
                last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
            }
        };
        let mut conditions: Vec<Condition> = wanted.iter().map(condition).collect();
        // What a leader before us has found out stands until we have.
        let is_asked_for = |type_: &str| {
            self.in_force && (matches!(type_, "ScaleDownsReviewed" | "RoomUsable") || (type_ == "FloorHeld" && self.wants_floor()))
        };
        let not_yet = |stands: &&Condition| is_asked_for(&stands.type_) && wanted.iter().all(|(said, _)| said.type_ != stands.type_);
        conditions.extend(self.conditions.iter().filter(not_yet).cloned());
        let counts = self.polled.as_ref().map_or(Value::Null, |polled| polled.counts.clone());
        let mut status = match &self.polled {
            Some(polled) => polled.counts.clone(),
            // A merge patch takes away what is null.
            None if self.has_counts() => json!({"pods": null, "busy": null, "idle": null, "unknown": null, "lastPoll": null}),
            None => json!({}),
        };
        if let Some(polled) = &self.polled {
            status["lastPoll"] = json!(Time(polled.time));
        }
        status["conditions"] = json!(conditions);
        let events = wanted.iter().map(|(said, _)| &**said).filter(|said| self.turned(said)).map(event).collect();
        // Even one that fails counts: what cannot be written is tried again after the pause.
        (self.written, self.under_way) = (Some((counts, Instant::now())), true);
        Write { resource: self.resource.clone(), object: self.object.clone(), patch: json!({ "status": status }), conditions, events }
    }

    /// Whether a condition has turned; one that was well from the start has not.
    fn turned(&self, said: &Said) -> bool {
        match self.find(said.type_) {
            Some(stands) => said.differs_in_kind(&stands.status, &stands.reason),
            None => said.is_trouble,
        }
    }
}

fn conditions_of(object: &DynamicObject) -> Vec<Condition> {
    let conditions = object.data.pointer("/status/conditions").cloned();
    conditions.and_then(|conditions| serde_json::from_value(conditions).ok()).unwrap_or_default()
}

fn event(said: &Said) -> Event {
    Event {
        type_: if said.is_trouble { EventType::Warning } else { EventType::Normal },
        reason: said.reason.into(),
        note: Some(cut(&said.message, EVENT_BYTES)),
        action: said.type_.into(),
        secondary: None,
    }
}

/// One status, as it is to be written.
struct Write {
    resource: ApiResource,
    object: DynamicObject,
    patch: Value,
    conditions: Vec<Condition>,
    events: Vec<Event>,
}

/// What became of a write.
enum Fate {
    Written,
    /// The object is gone.
    Gone,
    Failed,
}

impl Write {
    async fn carry_out(&self, client: &Client, recorder: &Recorder) -> Fate {
        let name = self.object.name_any();
        let api: Api<DynamicObject> = match self.object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        };
        let why = match timeout(WRITE_LIMIT, api.patch_status(&name, &by_us(), &Patch::Merge(&self.patch))).await {
            Ok(Ok(_)) => {
                for event in &self.events {
                    publish(recorder, &self.object.object_ref(&self.resource), event).await;
                }
                return Fate::Written;
            }
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() => return Fate::Gone,
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("no answer within {WRITE_LIMIT:?}"),
        };
        warn!(kind = self.resource.kind, name, why, "cannot write the status; trying again");
        Fate::Failed
    }
}

async fn run(client: Client, leadership: Leadership, reporter: Reporter, mut words: mpsc::Receiver<Word>) {
    let recorder = Recorder::new(client.clone(), EventReporter { controller: FIELD_MANAGER.into(), instance: None });
    let lock = || reporter.entries();
    loop {
        match timeout(TICK, words.recv()).await {
            Ok(None) => return,
            Ok(Some(Word::LastScaleDown { key, last })) => write_last_scale_down(&client, &key, last).await,
            Ok(Some(Word::Event { about, event })) => publish(&recorder, &about, &event).await,
            Err(_) => {}
        }
        if !leadership.is_mine() {
            reporter.forget_findings();
            continue;
        }
        let due: Vec<(Id, Write)> =
            lock().iter_mut().filter(|(_, entry)| entry.is_due()).map(|(id, entry)| (id.clone(), entry.write())).collect();
        let (client, recorder, leadership) = (&client, &recorder, &leadership);
        let carry_out = |(id, write): (Id, Write)| async move {
            // It may have been lost since the first of these was written.
            let fate = if leadership.is_mine() { write.carry_out(client, recorder).await } else { Fate::Failed };
            (id, write, fate)
        };
        let mut under_way = futures::stream::iter(due).map(carry_out).buffer_unordered(PARALLEL);
        while let Some((id, write, fate)) = under_way.next().await {
            let mut entries = lock();
            let Some(entry) = entries.get_mut(&id) else { continue };
            entry.under_way = false;
            match fate {
                Fate::Written => entry.conditions = write.conditions,
                Fate::Failed => {}
                Fate::Gone => {
                    entries.remove(&id);
                }
            }
        }
    }
}

async fn write_last_scale_down(client: &Client, key: &PolicyKey, last: Value) {
    let api: Api<DeletionCostPolicy> = Api::namespaced(client.clone(), &key.namespace);
    let patch = json!({ "status": { "lastScaleDown": last } });
    match timeout(WRITE_LIMIT, api.patch_status(&key.name, &by_us(), &Patch::Merge(&patch))).await {
        Ok(Ok(_)) => {}
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => {}
        Ok(Err(e)) => warn!(namespace = key.namespace, policy = key.name, error = %e, "cannot note the last scale-down"),
        Err(_) => warn!(namespace = key.namespace, policy = key.name, "cannot note the last scale-down in time"),
    }
}

async fn publish(recorder: &Recorder, about: &ObjectReference, event: &Event) {
    match timeout(WRITE_LIMIT, recorder.publish(event, about)).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => warn!(error = %e, reason = event.reason, "cannot write an Event"),
        Err(_) => warn!(reason = event.reason, "cannot write an Event in time"),
    }
}

fn by_us() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

/// At most so many bytes, in whole characters.
fn cut(message: &str, bytes: usize) -> String {
    message[..message.floor_char_boundary(bytes)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::deletion_cost_policy::Autoscaler;

    #[test]
    fn a_policy_that_cannot_be_used_wants_its_floor_all_the_same() {
        let target = FloorTarget { kind: Autoscaler::HorizontalPodAutoscaler, name: "web".into() };
        let document = |spec: Value| json!({ "spec": spec });
        let floor = || json!({"target": {"kind": "HorizontalPodAutoscaler", "name": "web"}, "buffer": -1});
        assert!(wants_floor_on(&document(json!({"backend": "gone", "fieldOfALaterVersion": 1, "floor": floor()})), &target));
        assert!(!wants_floor_on(&document(json!({"floor": floor(), "dryRun": true})), &target));
        assert!(!wants_floor_on(&document(json!({"floor": {"target": {"kind": "ScaledObject", "name": "web"}}})), &target));
        assert!(!wants_floor_on(&document(json!({})), &target));
    }
}
