//! The room of a pool, and who may have it: how many slots its placeholders hold, how many of those are spoken for, and which claims and
//! waiting pods come next.
//!
//! A placeholder is room while it is bound to a node that will last. The scheduler gives that room to a pod of higher priority and to no
//! other, so whoever asks first is told first, and nobody is told more than is there. Somebody else's pod may still be faster: the answer
//! is a promise about *our* callers, not about the cluster.

mod claim;
mod decide;
mod gates;
mod pod;
mod quota;

#[cfg(test)]
mod model;

pub use claim::{Claim, ClaimName, Ending};
pub use decide::{Decision, Refusal, decide};
pub use gates::{Gates, Newcomer, Room, Verdict, labels_of};
pub use pod::{GATE, Owner, Pod};
pub use quota::Quota;

use std::collections::{BTreeSet, HashMap, HashSet};

use k8s_openapi::jiff::Timestamp;

use super::classes::{Classes, never_preempts};
use super::effective::{self, Resources};
use super::node::Nodes;
use super::object::PodSpec;
use super::spot;
use crate::api::Pool;
use crate::api::headroom_pool::{Holder, HolderKind};

/// Everything that a decision about one pool looks at.
pub struct View<'a> {
    pub pool: &'a Pool,
    pub pods: &'a [&'a Pod],
    pub nodes: &'a Nodes,
    /// All claims of the cluster that name the pool.
    pub claims: &'a [&'a Claim],
    /// What one placeholder must make room for; where it is not known, each placeholder is one slot.
    pub shape: Option<&'a PodSpec>,
    pub classes: &'a Classes,
    pub quotas: &'a [Quota],
    /// Who was told that it has a slot, as the pool's status says.
    pub holders: &'a [Holder],
    /// Whether the namespace of a pod is one of `gate.pods`.
    pub is_gated_namespace: &'a dyn Fn(&str) -> bool,
    pub now: Timestamp,
}

/// What belongs together, looked up rather than searched for: there may be a thousand claims and ten thousand pods.
pub struct Index<'a> {
    /// The pods of each claim, by its UID.
    pods: HashMap<&'a str, Vec<&'a Pod>>,
    /// The claim of each pod, by its UID.
    claims: HashMap<&'a str, &'a Claim>,
    by_uid: HashMap<&'a str, &'a Pod>,
    /// Claims that may have a slot, by what is known now.
    live: HashSet<&'a str>,
}

impl<'a> Index<'a> {
    pub fn new(view: &View<'a>) -> Self {
        let (mut by_name, mut by_job) = (HashMap::new(), HashMap::new());
        for claim in view.claims {
            by_name.insert((claim.namespace.as_str(), claim.name.as_str()), *claim);
            by_job.extend(claim.job.as_deref().map(|job| ((claim.namespace.as_str(), job), *claim)));
        }
        let mut index = Self { pods: HashMap::new(), claims: HashMap::new(), by_uid: HashMap::new(), live: HashSet::new() };
        for pod in view.pods {
            index.by_uid.insert(&pod.uid, pod);
            let named = pod.claim.as_deref().and_then(|name| by_name.get(&(pod.namespace.as_str(), name)));
            let claim = named.or_else(|| by_job.get(&(pod.namespace.as_str(), pod.job.as_deref()?)));
            if let Some(claim) = claim.filter(|_| pod.placeholder_of.is_empty()) {
                index.pods.entry(&claim.uid).or_default().push(pod);
                index.claims.insert(&pod.uid, claim);
            }
        }
        let is_live = |claim: &&&Claim| claim.is_live() && claim.ending(index.pods_of(claim), view.now).is_none();
        index.live = view.claims.iter().filter(is_live).map(|claim| claim.uid.as_str()).collect();
        index
    }

    fn pods_of(&self, claim: &Claim) -> &[&'a Pod] {
        self.pods.get(claim.uid.as_str()).map(Vec::as_slice).unwrap_or_default()
    }

    fn claim_of(&self, pod: &Pod) -> Option<&'a Claim> {
        self.claims.get(pod.uid.as_str()).copied()
    }

    fn is_live(&self, claim: &Claim) -> bool {
        self.live.contains(claim.uid.as_str())
    }
}

/// How much room there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Placeholders that there are and that are not on their way out.
    pub desired: u32,
    /// How many of those are bound to a node that will last.
    pub healthy: u32,
    /// The slots of these.
    pub bound: u32,
    /// Placeholders without a node, and since when the oldest waits.
    pub pending: u32,
    pub oldest_pending: Option<Timestamp>,
    /// Placeholders on spot nodes.
    pub on_spot: u32,
    /// Slots that are spoken for.
    pub in_flight: u32,
    pub free: u32,
    /// Who still holds a slot, of those that were told so.
    pub holders: Vec<Holder>,
    /// Why placeholders that are bound are no room.
    pub useless: Option<Useless>,
    /// Pools that mark some of the same placeholders, and that count them.
    pub counted_by: BTreeSet<String>,
}

/// Why bound placeholders are no room for the pool's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Useless {
    /// F9: the pods that the room is for can never take it.
    CannotPreempt { why: String },
    /// C6.
    TooSmall { held: String, wanted: String },
    /// Every one is on a node where such a pod may not run.
    OtherNodes { node: String, why: String },
}

impl Ledger {
    pub fn of(view: &View<'_>, index: &Index<'_>) -> Self {
        let mut ledger = Self::default();
        let wanted = view.shape.map(effective::request);
        for pod in view.pods {
            let Some(counted_by) = pod.placeholder_of.first().filter(|_| pod.placeholder_of.contains(&view.pool.name) && pod.is_alive())
            else {
                continue;
            };
            // Two pools that mark the same pod: the first by name has it.
            if *counted_by != view.pool.name {
                ledger.counted_by.insert(counted_by.clone());
                continue;
            }
            ledger.desired += 1;
            let Some(node) = &pod.node else {
                ledger.pending += 1;
                ledger.oldest_pending = ledger.oldest_pending.into_iter().chain([pod.created]).min();
                continue;
            };
            let Some(node) = view.nodes.get(node) else { continue };
            ledger.on_spot += u32::from(spot::is_spot(&node.labels, &view.pool.spot_rows));
            if node.unfit().is_some() {
                continue;
            }
            ledger.healthy += 1;
            match view.slots(pod, node, wanted.as_ref()) {
                Ok(slots) => ledger.bound += slots,
                Err(useless) => ledger.useless = Some(useless),
            }
        }
        let holds = |holder: &&Holder| match holder.kind {
            HolderKind::HeadroomClaim => index.live.contains(holder.uid.as_str()),
            HolderKind::Pod => index.by_uid.get(holder.uid.as_str()).is_some_and(|pod| pod.awaits_a_node()),
        };
        ledger.holders = view.holders.iter().filter(holds).cloned().collect();
        let announced: HashSet<&str> = ledger.holders.iter().map(|holder| holder.uid.as_str()).collect();
        let taking = view.pods.iter().filter(|pod| view.takes_room_unannounced(pod, index, &announced)).count();
        ledger.in_flight = ledger.holders.len() as u32 + taking as u32;
        ledger.free = ledger.bound.saturating_sub(ledger.in_flight);
        ledger
    }
}

impl View<'_> {
    /// How many pods of the pool's shape the room of a bound placeholder is for.
    fn slots(&self, placeholder: &Pod, node: &super::node::Node, wanted: Option<&Resources>) -> Result<u32, Useless> {
        let (Some(shape), Some(wanted)) = (self.shape, wanted) else { return Ok(1) };
        if let Some(why) = self.cannot_preempt(shape, placeholder.priority) {
            return Err(Useless::CannotPreempt { why });
        }
        if let Some(refusal) = node.refuses(shape) {
            return Err(Useless::OtherNodes { node: node.name.clone(), why: refusal.to_string() });
        }
        let times = wanted.iter().map(|(resource, wanted)| placeholder.request.get(resource).map_or(0, |held| held.nanos / wanted.nanos));
        match times.min().unwrap_or(1) {
            ..1 => Err(Useless::TooSmall { held: effective::in_words(&placeholder.request), wanted: effective::in_words(wanted) }),
            slots => Ok(u32::try_from(slots).unwrap_or(u32::MAX)),
        }
    }

    /// Why a pod can never take the room of a placeholder of this priority: the scheduler removes only what is strictly lower, and nothing
    /// at all for a pod that never preempts.
    pub fn cannot_preempt(&self, spec: &PodSpec, placeholder: i32) -> Option<String> {
        let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
        if never_preempts(spec.preemption_policy.as_deref()) || class.is_some_and(|name| self.classes.never_preempts(name)) {
            return Some("never preempts".into());
        }
        let priority = spec.priority.or_else(|| self.classes.value(class))?;
        (priority <= placeholder).then(|| format!("has priority {priority}, and the placeholders {placeholder}"))
    }

    /// Whether a pod matches `gate.pods`.
    fn is_gated(&self, pod: &Pod) -> bool {
        self.pool.gates(&pod.labels) && (self.is_gated_namespace)(&pod.namespace)
    }

    /// Whether a pod that the scheduler may place at any moment takes room of which nobody was told: it was made while we were away, its
    /// claim has ended, or it was let go after it had waited long enough.
    fn takes_room_unannounced(&self, pod: &Pod, index: &Index<'_>, announced: &HashSet<&str>) -> bool {
        if !pod.awaits_a_node() || pod.has_other_gates || pod.has_our_gate || !pod.placeholder_of.is_empty() {
            return false;
        }
        let claim = index.claim_of(pod);
        let is_announced = announced.contains(pod.uid.as_str()) || claim.is_some_and(|claim| announced.contains(claim.uid.as_str()));
        !is_announced && (claim.is_some() || self.is_gated(pod))
    }
}
