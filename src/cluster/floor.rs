//! Holds the floors of policies, as long as we lead: looks at each autoscaler in turn, and lets go of those that no policy wants
//! held any more.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::{MissedTickBehavior, sleep, timeout};
use tracing::{info, warn};

use super::World;
use super::autoscalers::{Autoscalers, Written};
use super::conditions::{self, Said};
use super::leadership::Leadership;
use super::status::Reporter;
use super::world::List;
use crate::admission::scale_downs::Workload;
use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::{Floor, FloorTarget};
use crate::api::policies::PolicyKey;
use crate::cost::floor::{Change, Holder, Measured};
use crate::server::metrics::Metrics;

/// How often an autoscaler is looked at, at most.
const LOOK: Duration = Duration::from_secs(2);

/// How often it is looked for floors that nobody wants held any more, at the least.
const SWEEP: Duration = Duration::from_secs(60);
/// And how soon after the policies have changed: a policy that was only renamed comes back at once.
const AFTER_A_CHANGE: Duration = Duration::from_secs(5);

/// Everything that holding a floor needs.
#[derive(Clone)]
pub struct Floors {
    pub world: Arc<World>,
    pub autoscalers: Autoscalers,
    pub leadership: Leadership,
    pub reporter: Reporter,
    pub metrics: Arc<Metrics>,
}

impl Floors {
    /// Holds the floor of a policy for as long as it is polled. Without one it never does anything.
    pub async fn hold(self, policy: Arc<CostPolicy>) {
        let Some(floor) = &policy.spec.floor else { return };
        let mut holder = Holder::default();
        let mut ticks = tokio::time::interval(LOOK.max(Duration::from_secs(policy.spec.poll_seconds.into())));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Until every pod is known and measured, there would be too few of them.
            let knows_pods = self.world.knows(List::Pods) && self.world.pods.is_listed(policy.key());
            if self.leadership.is_mine() && knows_pods {
                if let Some(said) = self.look(&policy, floor, &mut holder).await {
                    self.reporter.floor(policy.key(), policy.generation, said);
                }
            } else {
                holder = Holder::default();
            }
        }
    }

    /// Looks once, writes what is due, and says how things stand; `None` where that is to be seen the next time.
    async fn look(&self, policy: &CostPolicy, floor: &Floor, holder: &mut Holder) -> Option<Said> {
        let mut found = match self.autoscalers.find(&policy.namespace, &floor.target).await {
            Ok(found) => found,
            Err(unfit) => return Some(conditions::floor::unfit(&floor.target, &unfit)),
        };
        let pods = self.world.pods.family(&policy.namespace, &Workload::Parent(found.workload.clone())).all;
        if pods.is_empty() && found.target.current > 0 {
            return Some(conditions::floor::without_pods(&floor.target, &found.workload.name));
        }
        let with_costs = pods.iter().map(|pod| (&**pod, self.world.costs.get(&pod.uid)));
        let now = Timestamp::now();
        let measured = Measured::count(with_costs, policy.spec.new_pod_seconds, now);
        if let Some(note) = found.target.note.as_mut().filter(|note| !self.is_wanted(&policy.namespace, Some(&note.policy), &floor.target))
        {
            // Its holder is gone, or wants another one: what it held is held on.
            (note.policy, note.generation) = (policy.name.clone(), i64::MIN);
        }
        let (standing, change) = holder.decide(floor, (&policy.name, policy.generation), measured, &found.target, now);
        let said = conditions::floor::held(&floor.target, measured, &standing, found.writer.as_deref(), policy.spec.dry_run);
        let Some(change) = change.filter(|_| !policy.spec.dry_run && self.leadership.is_mine()) else { return Some(said) };
        let written = self.autoscalers.write(&found.handle, &change).await;
        self.count(&written, &change, found.target.min);
        match written {
            Written::Yes => {
                holder.written(&change);
                let (namespace, policy, min) = (&policy.namespace, &policy.name, change.min);
                info!(namespace, policy, autoscaler = floor.target.name, min, before = found.target.min, "floor");
                Some(said)
            }
            Written::Conflict => None,
            Written::Refused { why } => Some(conditions::floor::refused(&floor.target, &why)),
        }
    }

    /// Whether this policy, or any of the namespace, wants a floor on this autoscaler.
    fn is_wanted(&self, namespace: &str, by: Option<&str>, target: &FloorTarget) -> bool {
        let policies = self.world.policies();
        let wants = |policy: &Arc<CostPolicy>| {
            by.is_none_or(|name| policy.name == name)
                && !policy.spec.dry_run
                && policy.spec.floor.as_ref().is_some_and(|floor| floor.target == *target)
        };
        policies.in_namespace(namespace).any(wants)
    }

    /// Lets go of floors that no policy wants held, for as long as it is polled.
    pub async fn let_go(self) {
        let mut changes = self.world.policy_changes();
        loop {
            // After a change, or when it is time again.
            let _ = timeout(SWEEP, changes.changed()).await;
            sleep(AFTER_A_CHANGE).await;
            if !self.leadership.is_mine() || !self.world.knows(List::Policies) {
                continue;
            }
            let held = match self.autoscalers.held().await {
                Ok(held) => held,
                Err(e) => {
                    warn!(error = %e, "cannot list the autoscalers on which floors are held; trying again");
                    continue;
                }
            };
            for (handle, note) in held {
                let target = handle.target();
                if self.is_wanted(handle.namespace(), None, &target) || !self.leadership.is_mine() {
                    continue;
                }
                let written = self.autoscalers.release(&handle, &note).await;
                self.metrics.floor_writes(if written == Written::Yes { "let_go" } else { "refused" });
                let policy = PolicyKey { namespace: handle.namespace().into(), name: note.policy };
                match written {
                    Written::Yes => info!(namespace = policy.namespace, policy = policy.name, autoscaler = target.name, "floor let go"),
                    Written::Conflict => {}
                    Written::Refused { why } => {
                        warn!(namespace = policy.namespace, autoscaler = target.name, why, "a floor that no policy wants cannot be let go");
                    }
                }
            }
        }
    }

    fn count(&self, written: &Written, change: &Change, before: Option<u32>) {
        self.metrics.floor_writes(match written {
            Written::Yes if change.min > before => "raised",
            Written::Yes if change.min < before => "lowered",
            Written::Yes => "noted",
            Written::Conflict => "conflict",
            Written::Refused { .. } => "refused",
        });
    }
}
