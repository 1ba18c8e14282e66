//! Holds a scale-down for as long as it takes to put the right costs on the pods, and no longer than its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::info;

use super::World;
use super::budget::Budget;
use super::truth::{Decision, Observer};
use super::writer::{PodWriter, Written};
use crate::admission::Validation;
use crate::admission::answer::Notes;
use crate::admission::scale_downs::{Plan, PodWrite, ScaleDown, Workload, plan};
use crate::api::policies::PolicyKey;
use crate::cost::outcome::Circumstances;
use crate::cost::{GovernedPod, Stored};
use crate::server::metrics::Metrics;

/// Writes under way at once, over all scale-downs. 150 writes, 64 at a time, take 0.3 to 0.5 s on a small API server.
const PARALLEL_WRITES: usize = 64;

/// Writes under way at once of one scale-down.
const OWN_WRITES: usize = 32;

/// `scaleDowns.settleMilliseconds` of the server configuration: how long the controller's caches are given after our own watch has seen the
/// last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settle {
    /// At Deployments and Rollouts.
    deployments: u32,
    /// At ReplicaSets and ReplicationControllers. This door is the later one: nothing else happens between its answer and the choice of
    /// victims.
    replica_sets: u32,
}

impl Default for Settle {
    fn default() -> Self {
        Self { deployments: 100, replica_sets: 250 }
    }
}

impl Settle {
    /// Longer than this a scale-down should not wait for a cache: it would come near the deadline.
    const LONGEST: u32 = 5000;

    /// What is wrong with the numbers, if anything.
    pub fn problem(&self) -> Option<String> {
        let fields = [("deployments", self.deployments), ("replicaSets", self.replica_sets)];
        let (field, value) = fields.into_iter().find(|(_, value)| *value > Self::LONGEST)?;
        Some(format!("scaleDowns.settleMilliseconds.{field}: found {value}, wanted 0 to {}", Self::LONGEST))
    }

    fn at(self, workload: &Workload) -> Duration {
        Duration::from_millis(match workload {
            Workload::Parent(_) => self.deployments.into(),
            Workload::Owner { .. } => self.replica_sets.into(),
        })
    }
}

/// The share of the time to the deadline that a fresh poll may take; writes and the settle time come after it.
const FRESH_SHARE: f64 = 0.5;

/// How many names a log line has.
const NAMES: usize = 50;

/// What became of a plan.
#[derive(Debug, Default)]
struct Carried {
    /// Written and seen by our own watch, or without an object any more.
    seen: usize,
    refused: usize,
    /// The deadline came first.
    late: bool,
}

pub struct ScaleDowns {
    world: Arc<World>,
    writer: Arc<dyn PodWriter>,
    budget: Arc<Budget>,
    observer: Arc<Observer>,
    metrics: Arc<Metrics>,
    settle: Settle,
    writes: Semaphore,
}

impl ScaleDowns {
    pub fn new(
        world: Arc<World>,
        writer: Arc<dyn PodWriter>,
        budget: Arc<Budget>,
        observer: Arc<Observer>,
        metrics: Arc<Metrics>,
        settle: Settle,
    ) -> Self {
        Self { world, writer, budget, observer, metrics, settle, writes: Semaphore::new(PARALLEL_WRITES) }
    }

    /// Always allows, at the latest at `deadline`.
    pub async fn admit(&self, scale_down: &ScaleDown, deadline: Instant) -> Validation {
        let door = scale_down.door;
        // The controller does not sort when all go.
        if scale_down.to == 0 {
            self.metrics.scale_downs(door, "to_zero");
            return Validation::default();
        }
        let family = self.world.pods.family(&scale_down.namespace, &scale_down.workload);
        let mut active = family.replica_sets.iter().filter(|(_, pods)| pods.iter().any(|pod| pod.is_active()));
        let (owner, pods) = match (active.next(), active.next()) {
            (None, _) => {
                self.metrics.scale_downs(door, "not_governed");
                return Validation::default();
            }
            // In a rollout the Deployment controller decides how many of each go; each ReplicaSet comes to its own door.
            (Some(_), Some(_)) => {
                self.metrics.scale_downs(door, "rollout");
                return Validation::default();
            }
            (Some((owner, pods)), None) => (owner, pods),
        };
        let is_stale = match scale_down.dry_run {
            true => self.is_stale(pods),
            false => self.freshen(pods, deadline).await,
        };
        let plan = plan(pods, &family.all, scale_down.to, &self.world.snapshot(), Timestamp::now());
        let written = match scale_down.dry_run || plan.writes.is_empty() {
            true => Carried::default(),
            false => self.carry_out(&plan, &scale_down.workload, deadline).await,
        };
        let outcome = match () {
            () if scale_down.dry_run => "dry_run",
            () if plan.writes.is_empty() => "no_write_needed",
            () if written.late => "deadline",
            () if written.refused > 0 => "refused",
            () => "written",
        };
        self.metrics.scale_downs(door, outcome);
        let validation = self.note(scale_down, &plan, &written, is_stale);
        // What the policy forbade to write is no verdict over what was written.
        if !scale_down.dry_run && plan.withheld == 0 {
            let how = Circumstances { incomplete: written.late || written.refused > 0, stale: is_stale };
            let policy = pods.iter().find_map(|pod| Some(self.world.costs.get(&pod.uid)?.policy.key().clone()));
            let (go, owner) = (plan.victims.len(), owner.as_str().into());
            self.observer.watch(scale_down, Decision { owner, go, written: written.seen, how, policy, pods: plan.pods });
        }
        validation
    }

    /// Asks for one more poll where the costs of these pods rest on samples that are too old, and says whether they still do.
    async fn freshen(&self, pods: &[Arc<GovernedPod>], deadline: Instant) -> bool {
        if !self.is_stale(pods) {
            return false;
        }
        // What comes after must have its time too.
        let limit = Instant::now() + deadline.saturating_duration_since(Instant::now()).mul_f64(FRESH_SHARE);
        let policies: BTreeSet<PolicyKey> =
            pods.iter().filter_map(|pod| Some(self.world.costs.get(&pod.uid)?.policy.key().clone())).collect();
        let asked = join_all(policies.iter().map(|policy| self.world.fresh.ask(policy, limit))).await;
        let is_stale = self.is_stale(pods);
        let result = match (asked.iter().all(|fresh| *fresh), is_stale) {
            (true, false) => "fresh",
            (true, true) => "still_stale",
            (false, _) => "late",
        };
        self.metrics.fresh_polls(result);
        is_stale
    }

    fn is_stale(&self, pods: &[Arc<GovernedPod>]) -> bool {
        let now = Timestamp::now();
        pods.iter().filter(|pod| pod.is_active()).any(|pod| self.world.costs.get(&pod.uid).is_some_and(|cost| cost.is_stale(now)))
    }

    /// Writes in parallel, waits until our own watch shows it, then for the settle time.
    async fn carry_out(&self, plan: &Plan, workload: &Workload, deadline: Instant) -> Carried {
        let settle = self.settle.at(workload);
        let (seen, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let writes = async {
            // One scale-down whose writes hang must not hold those of all others up.
            let own = Semaphore::new(OWN_WRITES);
            let mut under_way: FuturesUnordered<_> = plan.writes.iter().map(|write| self.write_and_see(write, &own, deadline)).collect();
            while let Some(outcome) = under_way.next().await {
                let count = if outcome == Written::Refused { &refused } else { &seen };
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let late = timeout_at(deadline, writes).await.is_err();
        if !late {
            sleep_until(deadline.min(Instant::now() + settle)).await;
        }
        Carried { seen: seen.into_inner(), refused: refused.into_inner(), late }
    }

    async fn write_and_see(&self, write: &PodWrite, own: &Semaphore, deadline: Instant) -> Written {
        let Some(begin) = self.budget.reserve(&write.policy, deadline) else {
            self.metrics.pod_writes("over_budget");
            return Written::Refused;
        };
        sleep_until(begin).await;
        let permits = (own.acquire().await, self.writes.acquire().await);
        let outcome = self.writer.write(write).await;
        drop(permits);
        self.metrics.pod_writes(match outcome {
            Written::Yes { .. } => "written",
            Written::Gone => "gone",
            Written::Refused => "refused",
        });
        if let Written::Yes { version } = outcome {
            let mut changes = self.world.pods.changes();
            while !self.is_seen(write, version) && changes.changed().await.is_ok() {}
        }
        outcome
    }

    /// Whether our watch has come to our write, or past it: somebody else may have written the pod right after us.
    fn is_seen(&self, write: &PodWrite, version: u64) -> bool {
        match self.world.pods.find(&write.namespace, &write.uid) {
            Some(pod) => pod.stored == Stored::Ours(write.cost) || pod.version >= version || !pod.is_active(),
            None => true,
        }
    }

    fn note(&self, scale_down: &ScaleDown, plan: &Plan, written: &Carried, is_stale: bool) -> Validation {
        let victims = plan.victims.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(",");
        info!(
            namespace = scale_down.namespace,
            door = scale_down.door,
            workload = scale_down.workload.name(),
            from = scale_down.from,
            to = scale_down.to,
            dry_run = scale_down.dry_run,
            needed = plan.writes.len(),
            written = written.seen,
            refused = written.refused,
            withheld = plan.withheld,
            late = written.late,
            stale = is_stale,
            victims,
            "scale-down"
        );
        let mut notes = Notes {
            warnings: vec![],
            // Counts only: whoever can reach us may ask, and which pods are idle is not theirs to know.
            audit: BTreeMap::from([("scale-down-written", format!("{} of {}", written.seen, plan.writes.len()))]),
        };
        if written.late || written.refused > 0 {
            let why = if written.late { "in time" } else { "as far as the API server and the write budget let us" };
            let counts = format!("{} of {}", written.seen, plan.writes.len());
            notes.warnings.push(format!("pecking-order: {counts} deletion costs were written {why}; busy pods may go"));
        }
        if is_stale {
            notes
                .warnings
                .push("pecking-order: the work of some pods could not be measured just now; their last known values were used".into());
        }
        Validation { denial: None, notes }
    }
}
