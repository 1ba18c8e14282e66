//! Holds a scale-down for as long as it takes to put the right costs on the pods, and no longer than its deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::info;

use super::World;
use super::writer::{PodWriter, Written};
use crate::admission::Validation;
use crate::admission::answer::Notes;
use crate::admission::scale_downs::{Plan, PodWrite, ScaleDown, Workload, plan};
use crate::cost::Stored;
use crate::server::metrics::Metrics;

/// Writes under way at once, over all scale-downs. 150 writes, 64 at a time, take 0.3 to 0.5 s on a small API server.
const PARALLEL_WRITES: usize = 64;

/// How long the controller's caches are given after our own watch has seen the last write. The ReplicaSet door is the later
/// one: nothing else happens between its answer and the choice of victims.
const SETTLE_AT_DEPLOYMENT: Duration = Duration::from_millis(100);
const SETTLE_AT_REPLICA_SET: Duration = Duration::from_millis(250);

/// How many names an audit annotation or a log line has.
const NAMES: usize = 50;

pub struct ScaleDowns {
    world: Arc<World>,
    writer: Arc<dyn PodWriter>,
    metrics: Arc<Metrics>,
    writes: Semaphore,
}

impl ScaleDowns {
    pub fn new(world: Arc<World>, writer: Arc<dyn PodWriter>, metrics: Arc<Metrics>) -> Self {
        Self { world, writer, metrics, writes: Semaphore::new(PARALLEL_WRITES) }
    }

    /// Always allows, at the latest at `deadline`.
    pub async fn admit(&self, scale_down: &ScaleDown, deadline: Instant) -> Validation {
        let door = scale_down.workload.door();
        // The controller does not sort when all go.
        if scale_down.to == 0 {
            self.metrics.scale_downs(door, "to_zero");
            return Validation::default();
        }
        let family = self.world.pods.family(&scale_down.namespace, &scale_down.workload);
        let mut active = family.replica_sets.iter().filter(|(_, pods)| pods.iter().any(|pod| pod.is_active()));
        let pods = match (active.next(), active.next()) {
            (None, _) => {
                self.metrics.scale_downs(door, "not_governed");
                return Validation::default();
            }
            // In a rollout the Deployment controller decides how many of each go; each ReplicaSet comes to its own door.
            (Some(_), Some(_)) => {
                self.metrics.scale_downs(door, "rollout");
                return Validation::default();
            }
            (Some((_, pods)), None) => pods,
        };
        let plan = plan(pods, &family.all, scale_down.to, &self.world.snapshot(), Timestamp::now());
        let written =
            if scale_down.dry_run || plan.writes.is_empty() { 0 } else { self.carry_out(&plan, &scale_down.workload, deadline).await };
        let in_time = scale_down.dry_run || written == plan.writes.len();
        self.metrics.scale_downs(
            door,
            match (scale_down.dry_run, in_time, plan.writes.is_empty()) {
                (true, ..) => "dry_run",
                (_, false, _) => "deadline",
                (_, true, true) => "no_write_needed",
                (_, true, false) => "written",
            },
        );
        self.note(scale_down, &plan, written, in_time)
    }

    /// Writes in parallel, waits until our own watch shows it, then for the settle time. Returns how many writes are seen.
    async fn carry_out(&self, plan: &Plan, workload: &Workload, deadline: Instant) -> usize {
        let settle = match workload {
            Workload::Deployment { .. } => SETTLE_AT_DEPLOYMENT,
            Workload::ReplicaSet { .. } => SETTLE_AT_REPLICA_SET,
        };
        let seen = AtomicUsize::new(0);
        let writes = async {
            let mut under_way: FuturesUnordered<_> = plan.writes.iter().map(|write| self.write_and_see(write)).collect();
            while let Some(outcome) = under_way.next().await {
                if outcome != Written::Refused {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        if timeout_at(deadline, writes).await.is_ok() {
            sleep_until(deadline.min(Instant::now() + settle)).await;
        }
        seen.into_inner()
    }

    async fn write_and_see(&self, write: &PodWrite) -> Written {
        let permit = self.writes.acquire().await;
        let outcome = self.writer.write(write).await;
        drop(permit);
        self.metrics.pod_writes(match outcome {
            Written::Yes => "written",
            Written::Gone => "gone",
            Written::Refused => "refused",
        });
        if outcome == Written::Yes {
            let mut changes = self.world.pods.changes();
            while !self.is_seen(write) && changes.changed().await.is_ok() {}
        }
        outcome
    }

    fn is_seen(&self, write: &PodWrite) -> bool {
        match self.world.pods.find(&write.namespace, &write.uid) {
            Some(pod) => pod.stored == Stored::Ours(write.cost) || !pod.is_active(),
            None => true,
        }
    }

    fn note(&self, scale_down: &ScaleDown, plan: &Plan, written: usize, in_time: bool) -> Validation {
        let victims = plan.victims.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(",");
        let (Workload::Deployment { name } | Workload::ReplicaSet { name, .. }) = &scale_down.workload;
        info!(
            namespace = scale_down.namespace,
            door = scale_down.workload.door(),
            workload = name,
            from = scale_down.from,
            to = scale_down.to,
            dry_run = scale_down.dry_run,
            needed = plan.writes.len(),
            written,
            withheld = plan.withheld,
            in_time,
            victims,
            "scale-down"
        );
        let mut notes = Notes {
            warnings: vec![],
            audit: BTreeMap::from([("scale-down-written", format!("{written} of {}", plan.writes.len())), ("scale-down-victims", victims)]),
        };
        if !in_time {
            let warning =
                format!("pecking-order: {written} of {} deletion costs were written in time; busy pods may go", plan.writes.len());
            notes.warnings.push(warning);
        }
        Validation { denial: None, notes }
    }
}
