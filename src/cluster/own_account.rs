//! What the leader writes on its own account: stored costs are kept near the truth where a policy asks for it, and the costs of a
//! policy that is gone are taken away. Both inside the write budget.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout};
use tracing::{info, warn};

use super::World;
use super::budget::Budget;
use super::leadership::Leadership;
use super::writer::{OwnCost, PodWriter, Written};
use crate::admission::scale_downs::PodWrite;
use crate::api::CostPolicy;
use crate::cost::GovernedPod;
use crate::cost::score::Basis;
use crate::server::metrics::Metrics;

/// Writes under way at once: these are in no hurry, and scale-downs are.
const PARALLEL: usize = 8;

/// How long one write may take, with its repetitions: less than passes between the end of a leadership and the next.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// How long taking away the costs of a policy may take: a hundred thousand pods at the default budget.
const CLEANUP_LIMIT: Duration = Duration::from_secs(3600);
/// Before it begins.
const BEFORE_CLEANUP: Duration = Duration::from_secs(5);
/// Between two looks at whether it may go on.
const AGAIN: Duration = Duration::from_millis(200);

/// Everything that such writes need.
#[derive(Clone)]
pub struct OwnAccount {
    pub world: Arc<World>,
    pub writer: Arc<dyn PodWriter>,
    pub budget: Arc<Budget>,
    pub leadership: Leadership,
    pub metrics: Arc<Metrics>,
}

impl OwnAccount {
    /// Keeps the stored costs of a policy near the truth, for as long as it is polled. Without `write.refresh` it never does
    /// anything.
    pub async fn refresh(self, policy: Arc<CostPolicy>) {
        let refresh = policy.spec.write.refresh;
        if refresh.every_seconds == 0 || policy.spec.dry_run {
            return;
        }
        let mut ticks = tokio::time::interval(Duration::from_secs(refresh.every_seconds.into()));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.leadership.is_mine() {
                self.refresh_once(&policy).await;
            }
        }
    }

    /// The furthest off first, for as long as there is something in the budget.
    async fn refresh_once(&self, policy: &CostPolicy) {
        let pods = self.world.pods.governed_by(policy, &self.world.policies());
        let mut due: Vec<(u32, PodWrite)> = pods.iter().filter_map(|pod| self.off_by(policy, pod)).collect();
        due.sort_by_key(|(off, _)| std::cmp::Reverse(*off));
        let within_budget = due.into_iter().take_while(|_| self.leadership.is_mine() && self.budget.try_take_spare(policy.key()));
        let writes: Vec<PodWrite> = within_budget.map(|(_, write)| write).collect();
        let write = |write: PodWrite| async move { self.counted(timeout(WRITE_LIMIT, self.writer.write(&write)).await.ok()) };
        futures::stream::iter(writes).map(write).buffer_unordered(PARALLEL).for_each(|()| std::future::ready(())).await;
    }

    /// How far a pod's stored cost is from the truth, and the write that would mend it.
    fn off_by(&self, policy: &CostPolicy, pod: &GovernedPod) -> Option<(u32, PodWrite)> {
        if !pod.is_active() || self.world.contested.is_contested(&pod.uid) {
            return None;
        }
        // What is not measured is no truth to keep near to.
        let current = self.world.costs.get(&pod.uid).filter(|cost| matches!(cost.basis, Basis::Work | Basis::Idle))?;
        let cost = current.replaces(pod.stored, policy)?;
        let off = cost.abs_diff(pod.stored.effective());
        let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
        (off >= policy.spec.write.refresh.min_change).then(|| (off, PodWrite { namespace, name, uid, cost, policy: policy.key().clone() }))
    }

    /// Takes away the costs of a policy that is gone, where they are still what we wrote and no other policy governs the pod. Every
    /// replica sets out to do it; whichever leads does, so a change of leaders in the middle loses nothing.
    pub async fn clean_up(self, policy: Arc<CostPolicy>, pods: Vec<Arc<GovernedPod>>) {
        let key = policy.key();
        let deadline = Instant::now() + CLEANUP_LIMIT;
        // A policy that was only renamed comes back at once, and must have listed its pods before it is known what it governs.
        sleep(BEFORE_CLEANUP).await;
        let mut taken = 0;
        for own in pods.iter().filter_map(|pod| OwnCost::of(pod)).filter(|_| !policy.spec.dry_run) {
            while !self.may_erase(&own) || (!self.is_governed(&own) && !self.budget.try_take_spare(key)) {
                if Instant::now() >= deadline {
                    warn!(namespace = key.namespace, policy = key.name, taken, "not all costs of a policy that is gone were taken away");
                    return self.budget.forget_policy(key);
                }
                sleep(AGAIN).await;
            }
            if !self.is_governed(&own) {
                let erased = timeout(WRITE_LIMIT, self.writer.erase(&own)).await.ok();
                taken += usize::from(matches!(erased, Some(Written::Yes { .. })));
                self.counted(erased);
            }
        }
        self.budget.forget_policy(key);
        info!(namespace = key.namespace, policy = key.name, taken, "the costs of a policy that is gone were taken away");
    }

    /// Only the leader erases, and only once every policy of the namespace knows its pods.
    fn may_erase(&self, own: &OwnCost) -> bool {
        let policies = self.world.policies();
        let all_listed = policies.in_namespace(&own.namespace).all(|other| self.world.pods.is_listed(other.key()));
        self.leadership.is_mine() && all_listed
    }

    fn is_governed(&self, own: &OwnCost) -> bool {
        self.world.pods.find(&own.namespace, &own.uid).is_some()
    }

    fn counted(&self, written: Option<Written>) {
        self.metrics.own_writes(match written {
            Some(Written::Yes { .. }) => "written",
            Some(Written::Gone) => "gone",
            Some(Written::Refused) => "refused",
            None => "late",
        });
    }
}
