//! Holds the floors of policies, as long as we lead: looks at each autoscaler in turn, and lets go of those that no policy wants
//! held any more.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::World;
use super::autoscalers::{Autoscalers, Handle, Refused, Written};
use super::conditions::{self, Said};
use super::leadership::Leadership;
use super::status::Reporter;
use super::world::List;
use crate::admission::scale_downs::Workload;
use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::{Floor, FloorTarget};
use crate::cost::floor::{Change, Holder, Measured, Note};
use crate::server::metrics::Metrics;

/// How often an autoscaler is looked at, at most.
const LOOK: Duration = Duration::from_secs(2);

/// How often it is looked for floors that nobody wants held any more, at the least.
const SWEEP: Duration = Duration::from_secs(60);
/// And how soon after the policies have changed: a policy that was only renamed comes back at once.
const AFTER_A_CHANGE: Duration = Duration::from_secs(5);

/// What is remembered of one autoscaler.
#[derive(Default)]
struct Memory {
    holder: Holder,
    uid: Option<String>,
}

/// Everything that holding a floor needs.
#[derive(Clone)]
pub struct Floors {
    pub world: Arc<World>,
    pub autoscalers: Autoscalers,
    pub leadership: Leadership,
    pub reporter: Reporter,
    pub metrics: Arc<Metrics>,
}

/// What a look at an autoscaler came to.
enum Look {
    Said(Said),
    /// Somebody else wrote it at the same time.
    Again,
}

impl Floors {
    /// Holds the floor of a policy for as long as it is polled. Without one it never does anything.
    pub async fn hold(self, policy: Arc<CostPolicy>) {
        let Some(floor) = &policy.spec.floor else { return };
        let period = LOOK.max(Duration::from_secs(policy.spec.poll_seconds.into()));
        let mut holder = Memory::default();
        loop {
            // Until every pod is known and measured, and whose it is, there would be too few of them.
            let pods = &self.world.pods;
            let knows = self.world.knows(List::Pods) && pods.is_listed(policy.key()) && pods.knows_replica_sets(&policy.namespace);
            if !self.leadership.is_mine() || !knows {
                holder = Memory::default();
                sleep(LOOK).await;
                continue;
            }
            match self.look(&policy, floor, &mut holder).await {
                Look::Said(said) => {
                    self.reporter.floor(policy.key(), policy.generation, said);
                    sleep(period).await;
                }
                Look::Again => sleep(LOOK).await,
            }
        }
    }

    /// Looks once, writes what is due, and says how things stand.
    async fn look(&self, policy: &CostPolicy, floor: &Floor, memory: &mut Memory) -> Look {
        let mut found = match self.autoscalers.find(&policy.namespace, &floor.target).await {
            Ok(found) => found,
            Err(refused) => return self.release_unfit(policy, floor, refused).await,
        };
        if memory.uid.as_deref() != found.handle.uid() {
            memory.holder.forget_note();
            memory.uid = found.handle.uid().map(str::to_owned);
        }
        let pods = self.world.pods.family(&policy.namespace, &Workload::Parent(found.workload.clone())).all;
        let with_costs = pods.iter().map(|pod| (&**pod, self.world.costs.get(&pod.uid)));
        let now = Timestamp::now();
        let measured = Measured::count(with_costs, policy.spec.new_pod_seconds, now);
        if let Some(note) = found.target.note.as_mut().filter(|note| !self.is_wanted(&policy.namespace, Some(&note.policy), &floor.target))
        {
            // Its holder is gone, or wants another one: what it held is held on.
            (note.policy, note.generation) = (policy.name.clone(), i64::MIN);
        }
        let (standing, change) = memory.holder.decide(floor, (&policy.name, policy.generation), measured, &found.target, now);
        let said = match pods.is_empty() && found.target.current > 0 {
            true => conditions::floor::without_pods(&floor.target, &found.workload.name),
            false => conditions::floor::held(&floor.target, measured, &standing, policy.spec.dry_run),
        };
        let Some(change) = change.filter(|_| !policy.spec.dry_run && self.leadership.is_mine()) else { return Look::Said(said) };
        let written = self.autoscalers.write(&found.handle, &change).await;
        self.count(&written, &change, found.target.min);
        match written {
            Written::Yes => {
                memory.holder.written(&change);
                let (namespace, policy, min) = (&policy.namespace, &policy.name, change.min);
                info!(namespace, policy, autoscaler = floor.target.name, min, before = found.target.min, "floor");
                Look::Said(said)
            }
            Written::Conflict => Look::Again,
            Written::Refused { why } => {
                // Perhaps it was written all the same, and only the answer was lost.
                memory.holder.forget_note();
                Look::Said(conditions::floor::refused(&floor.target, &why))
            }
        }
    }

    /// Where nothing can be held any more, what was held before is let go once.
    async fn release_unfit(&self, policy: &CostPolicy, floor: &Floor, refused: Refused) -> Look {
        let said = Look::Said(conditions::floor::unfit(&floor.target, &refused.unfit));
        let Some((handle, Some(note))) = refused.found.filter(|_| !policy.spec.dry_run).map(|found| *found) else { return said };
        if note.policy != policy.name {
            return said;
        }
        let written = self.release(&handle, &note, &|| self.leadership.is_mine()).await;
        if written == Written::Conflict { Look::Again } else { said }
    }

    async fn release(&self, handle: &Handle, note: &Note, may_go_on: &(dyn Fn() -> bool + Sync)) -> Written {
        let written = self.autoscalers.release(handle, note, may_go_on).await;
        self.metrics.floor_writes(if written == Written::Yes { "let_go" } else { "refused" });
        written
    }

    /// Whether this policy, or any of the namespace, wants a floor on this autoscaler. One that is not in force, because this replica has never
    /// seen a version of it that it could use, wants it all the same.
    fn is_wanted(&self, namespace: &str, by: Option<&str>, target: &FloorTarget) -> bool {
        let wants = |floor: &Floor, dry_run: bool| !dry_run && floor.target == *target;
        let policies = self.world.policies();
        let mut in_force = policies.in_namespace(namespace).filter(|policy| by.is_none_or(|name| policy.name == name));
        in_force.any(|policy| policy.spec.floor.as_ref().is_some_and(|floor| wants(floor, policy.spec.dry_run)))
            || self.reporter.not_in_force_but_wants_floor(namespace, by, target)
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
            let (held, failed) = self.autoscalers.held().await;
            failed.iter().for_each(|why| warn!(why, "not all floors that no policy wants may be found; trying again"));
            for (handle, note) in held {
                let target = handle.target();
                let may_go_on = || self.leadership.is_mine() && !self.is_wanted(handle.namespace(), None, &target);
                if !may_go_on() {
                    continue;
                }
                let (namespace, autoscaler) = (handle.namespace(), &target.name);
                let Some(note) = note else {
                    warn!(
                        namespace,
                        autoscaler, "labelled as held, but the note of what its owner had written cannot be read; see to it by hand"
                    );
                    continue;
                };
                match self.release(&handle, &note, &may_go_on).await {
                    Written::Yes => info!(namespace, policy = note.policy, autoscaler, "floor let go"),
                    Written::Conflict => {}
                    Written::Refused { why } => warn!(namespace, autoscaler, why, "a floor that no policy wants cannot be let go"),
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
