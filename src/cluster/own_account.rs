//! What the leader writes on its own account: stored costs are kept near the truth where a policy asks for it, and the costs of a
//! policy that is gone are taken away. Both inside the write budget.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tracing::info;

use super::World;
use super::budget::Budget;
use super::leadership::Leadership;
use super::writer::{PodWriter, Written};
use crate::admission::scale_downs::PodWrite;
use crate::api::CostPolicy;
use crate::api::policies::PolicyKey;
use crate::cost::score::Basis;
use crate::cost::{GovernedPod, Stored};
use crate::server::metrics::Metrics;

/// Writes under way at once: these are in no hurry, and scale-downs are.
const PARALLEL: usize = 8;

/// How long taking away the costs of a policy may take: a hundred thousand pods at the default budget.
const CLEANUP_LIMIT: Duration = Duration::from_secs(3600);

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
        let within_budget = due.into_iter().take_while(|_| self.leadership.is_mine() && self.budget.try_take(policy.key()));
        let writes: Vec<PodWrite> = within_budget.map(|(_, write)| write).collect();
        let write = |write: PodWrite| async move { self.counted(self.writer.write(&write).await) };
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

    /// Takes away the costs of a policy that is gone, where they are still what we wrote and no other policy governs the pod.
    pub async fn clean_up(self, policy: PolicyKey, pods: Vec<Arc<GovernedPod>>) {
        if !self.leadership.is_mine() {
            return;
        }
        let ours: Vec<Arc<GovernedPod>> = pods.into_iter().filter(|pod| matches!(pod.stored, Stored::Ours(_))).collect();
        let (count, deadline) = (ours.len(), Instant::now() + CLEANUP_LIMIT);
        let erase = |pod: Arc<GovernedPod>| {
            let (this, policy) = (&self, &policy);
            async move {
                let Some(begin) = this.budget.reserve(policy, deadline) else { return };
                sleep_until(begin).await;
                // Another policy may have come in the meantime, and another leader.
                let is_governed = this.world.pods.find(&pod.namespace, &pod.uid).is_some();
                if this.leadership.is_mine() && !is_governed {
                    this.counted(this.writer.erase(&pod).await);
                }
            }
        };
        futures::stream::iter(ours).map(erase).buffer_unordered(PARALLEL).for_each(|()| std::future::ready(())).await;
        self.budget.forget_policy(&policy);
        info!(namespace = policy.namespace, policy = policy.name, pods = count, "the costs of a policy that is gone were taken away");
    }

    fn counted(&self, written: Written) {
        self.metrics.own_writes(match written {
            Written::Yes { .. } => "written",
            Written::Gone => "gone",
            Written::Refused => "refused",
        });
    }
}
