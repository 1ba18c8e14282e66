//! What a scale-down came to: afterwards, the pods that went are compared with those that should have gone. The difference is
//! counted, said in an Event on the workload, and noted on the policy's status.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::{Event, EventType};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::World;
use super::status::Reporter;
use crate::admission::scale_downs::{Parent, ParentKind, ScaleDown, Workload};
use crate::api::policies::PolicyKey;
use crate::cost::outcome::{Circumstances, Decided, Outcome, Verdict, judge};
use crate::cost::victims::Tier;
use crate::server::metrics::Metrics;

/// How long the pods are watched. A ReplicaSet of a thousand pods loses them within a few seconds.
const WATCHED: Duration = Duration::from_secs(60);
/// How often it is looked, at most.
const LOOK: Duration = Duration::from_millis(200);
/// Scale-downs watched at once; those beyond count as unobserved.
const WATCHES: usize = 1000;
/// How many names an Event has.
const NAMES: usize = 10;

/// A scale-down as it was decided and carried out.
pub struct Decision {
    /// UID of the ReplicaSet or ReplicationController.
    pub owner: Arc<str>,
    pub pods: Vec<Decided>,
    /// How many of them go.
    pub go: usize,
    pub written: usize,
    pub how: Circumstances,
    /// The policy that governs the pods.
    pub policy: Option<PolicyKey>,
}

pub struct Observer {
    world: Arc<World>,
    metrics: Arc<Metrics>,
    reporter: Option<Reporter>,
    /// ReplicaSets whose pods are being watched, and for which decision. A scale-down of a Deployment comes by a second time, at the
    /// ReplicaSet's door; only if it wrote something there is that the one that counts.
    watched: Mutex<HashMap<Arc<str>, u64>>,
    decisions: AtomicU64,
    places: Arc<Semaphore>,
}

impl Observer {
    /// Without a reporter there is no cluster to tell.
    pub fn new(world: Arc<World>, metrics: Arc<Metrics>, reporter: Option<Reporter>) -> Arc<Self> {
        Arc::new(Self {
            world,
            metrics,
            reporter,
            watched: Mutex::default(),
            decisions: AtomicU64::new(0),
            places: Arc::new(Semaphore::new(WATCHES)),
        })
    }

    /// Watches the pods of a scale-down that has been allowed, in a task of its own.
    pub fn watch(self: &Arc<Self>, scale_down: &ScaleDown, decision: Decision) {
        if decision.go == 0 {
            return;
        }
        let Some(number) = self.begin(&decision) else { return };
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.end(&decision.owner, number);
            return self.metrics.scale_down_outcomes(scale_down.door, Outcome::Unobserved.as_str(), 0, 0);
        };
        let (observer, namespace, workload, door) =
            (self.clone(), scale_down.namespace.clone(), scale_down.workload.clone(), scale_down.door);
        let (from, to) = (scale_down.from, scale_down.to);
        tokio::spawn(async move {
            let owner = decision.owner.clone();
            let observed = observer.observe(&namespace, decision, number).await;
            observer.end(&owner, number);
            if let Some(observed) = observed {
                observer.tell(&namespace, &workload, door, (from, to), observed).await;
            }
            drop(place);
        });
    }

    /// The decision's number, unless another that is being watched counts.
    fn begin(&self, decision: &Decision) -> Option<u64> {
        let mut watched = self.watched();
        if watched.contains_key(&decision.owner) && decision.written == 0 {
            return None;
        }
        let number = self.decisions.fetch_add(1, Ordering::Relaxed);
        watched.insert(decision.owner.clone(), number);
        Some(number)
    }

    fn end(&self, owner: &Arc<str>, number: u64) {
        let mut watched = self.watched();
        if watched.get(owner) == Some(&number) {
            watched.remove(owner);
        }
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until as many pods have gone as were to go; `None` where another decision counts by then.
    async fn observe(&self, namespace: &str, mut decision: Decision, number: u64) -> Option<(Decision, Verdict)> {
        let end = Instant::now() + WATCHED;
        let mut changes = self.world.pods.changes();
        let mut gone: HashSet<Arc<str>> = HashSet::new();
        loop {
            if self.watched().get(&decision.owner) != Some(&number) {
                return None;
            }
            for pod in &mut decision.pods {
                if gone.contains(&pod.uid) {
                    continue;
                }
                match self.world.pods.find(namespace, &pod.uid).filter(|found| found.is_active() && found.owner == decision.owner) {
                    // Readiness decides as it is when the controller looks, so the last that was seen counts.
                    Some(found) => pod.tier = Tier::of(&found),
                    None => {
                        gone.insert(pod.uid.clone());
                    }
                }
            }
            let policy_is_gone = decision.policy.as_ref().is_some_and(|policy| self.world.policies().policy(policy).is_none());
            if policy_is_gone {
                // Nothing is known of its pods any more.
                return Some((decision, Verdict { outcome: Outcome::Unobserved, wrong: vec![] }));
            }
            if gone.len() >= decision.go {
                let verdict = judge(&decision.pods, &gone, decision.how);
                return Some((decision, verdict));
            }
            if Instant::now() >= end {
                return Some((decision, Verdict { outcome: Outcome::Unobserved, wrong: vec![] }));
            }
            sleep(LOOK).await;
            // Whatever changed while we slept is seen at once.
            let _ = timeout(end.saturating_duration_since(Instant::now()), changes.changed()).await;
        }
    }

    async fn tell(
        &self,
        namespace: &str,
        workload: &Workload,
        door: &'static str,
        (from, to): (usize, usize),
        (decision, verdict): (Decision, Verdict),
    ) {
        let Verdict { outcome, wrong } = verdict;
        let right = if outcome == Outcome::Unobserved { 0 } else { decision.go.saturating_sub(wrong.len()) };
        self.metrics.scale_down_outcomes(door, outcome.as_str(), right, wrong.len());
        let names = wrong.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
        match outcome {
            Outcome::Right | Outcome::Unobserved => {
                info!(namespace, workload = workload.name(), door, from, to, outcome = outcome.as_str(), "scale-down observed");
            }
            _ => warn!(namespace, workload = workload.name(), door, from, to, outcome = outcome.as_str(), wrong = names, "wrong pods went"),
        }
        let Some(reporter) = &self.reporter else { return };
        if let Some(policy) = &decision.policy {
            let last = json!({"time": Time(Timestamp::now()), "workload": workload.name(), "from": from, "to": to,
                "written": decision.written, "wrong": wrong.len(), "outcome": outcome.as_str()});
            reporter.scale_down(policy, last);
        }
        if !wrong.is_empty() {
            let note = format!(
                "{} of {} pods that were removed were at work while others were not ({}): {}",
                wrong.len(),
                decision.go,
                outcome.as_str(),
                names
            );
            let event = Event {
                type_: EventType::Warning,
                reason: "BusyPodsRemoved".into(),
                note: Some(note),
                action: "ScaleDown".into(),
                secondary: None,
            };
            reporter.event(reference(namespace, workload, door), event);
        }
    }
}

fn reference(namespace: &str, workload: &Workload, door: &str) -> ObjectReference {
    let (api_version, kind) = match workload {
        Workload::Parent(Parent { kind: ParentKind::Deployment, .. }) => ("apps/v1", "Deployment"),
        Workload::Parent(Parent { kind: ParentKind::Rollout, .. }) => ("argoproj.io/v1alpha1", "Rollout"),
        Workload::Owner { .. } if door.starts_with("replicationcontrollers") => ("v1", "ReplicationController"),
        Workload::Owner { .. } => ("apps/v1", "ReplicaSet"),
    };
    let uid = match workload {
        Workload::Owner { uid, .. } => Some(uid.clone()),
        Workload::Parent(_) => None,
    };
    ObjectReference {
        api_version: Some(api_version.into()),
        kind: Some(kind.into()),
        namespace: Some(namespace.into()),
        name: Some(workload.name().into()),
        uid,
        ..ObjectReference::default()
    }
}
