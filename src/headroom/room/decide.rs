//! Who gets the room that there is: claims and waiting pods in one queue, the oldest first.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Claim, Ending, Index, Ledger, Pod, Useless, View};
use crate::api::headroom_pool::{Holder, HolderKind, MOST_HOLDERS, OnMaxWait};

/// What is to be done about one pool.
#[derive(Debug, Default)]
pub struct Decision<'a> {
    pub ledger: Ledger,
    /// Claims that have ended.
    pub ended: Vec<(&'a Claim, Ending)>,
    /// Claims that hold a slot, whether they were told or not.
    pub bound: Vec<&'a Claim>,
    pub refused: Vec<(&'a Claim, Refusal)>,
    /// Waiting pods that hold a slot now.
    pub let_go: Vec<&'a Pod>,
    /// The waiting pod that goes without room, because it has waited for as long as it may. One at a time: after a long outage of ours there
    /// may be many, and they must not come at once.
    pub gave_up: Option<&'a Pod>,
    /// Waiting pods that have waited for as long as they may, and must fail.
    pub failed: Vec<&'a Pod>,
    /// Everybody who holds a slot after this.
    pub holders: Vec<Holder>,
}

/// Why a claim has no slot; the reason and the message of its condition `Bound`. Neither changes while the cause does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    NamespaceNotAllowed { pool: String },
    NoPlaceholders { pool: String },
    NoRoom,
    ClaimLimit { max: u32 },
    NamespaceLimit { max: u32 },
    Quota { why: String },
    Useless(Useless),
}

impl Refusal {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NamespaceNotAllowed { .. } => "NamespaceNotAllowed",
            Self::NoPlaceholders { .. } => "NoPlaceholders",
            Self::NoRoom => "NoRoom",
            Self::ClaimLimit { .. } => "ClaimLimit",
            Self::NamespaceLimit { .. } => "NamespaceLimit",
            Self::Quota { .. } => "Quota",
            Self::Useless(Useless::CannotPreempt { .. }) => "CannotPreempt",
            Self::Useless(Useless::TooSmall { .. }) => "PlaceholdersTooSmall",
            Self::Useless(Useless::OtherNodes { .. }) => "PlaceholdersOnOtherNodes",
        }
    }
}

impl std::fmt::Display for Useless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CannotPreempt { why } => write!(f, "the workload of spec.shape {why}: it can never take a placeholder's room"),
            Self::TooSmall { held, wanted } => write!(f, "a placeholder holds {held}, and the workload of spec.shape needs {wanted}"),
            Self::OtherNodes { node, why } => {
                write!(f, "the workload of spec.shape may not run on node {node}, where a placeholder is: {why}")
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NamespaceNotAllowed { pool } => write!(f, "HeadroomPool {pool} does not list this namespace in spec.claims.namespaces"),
            Self::NoPlaceholders { pool } => write!(f, "HeadroomPool {pool} has no placeholder"),
            Self::NoRoom => write!(f, "no placeholder is bound to a healthy node and free"),
            Self::ClaimLimit { max } => write!(f, "spec.claims.max of the pool is {max}"),
            Self::NamespaceLimit { max } => write!(f, "spec.claims.maxPerNamespace of the pool is {max}"),
            Self::Quota { why } => write!(f, "the job's pod would be refused: {why}"),
            Self::Useless(useless) => useless.fmt(f),
        }
    }
}

/// Who waits.
enum Asking<'a> {
    Claim(&'a Claim),
    Pod(&'a Pod),
}

impl Asking<'_> {
    /// First come, first served; the UID breaks the tie, so that every leader sees the same order.
    fn since(&self) -> (Timestamp, &str) {
        match self {
            Self::Claim(claim) => (claim.created, &claim.uid),
            Self::Pod(pod) => (pod.created, &pod.uid),
        }
    }
}

/// Decides about one pool.
pub fn decide<'a>(view: &View<'a>) -> Decision<'a> {
    let index = Index::new(view);
    let ended: Vec<(&Claim, Ending)> =
        view.claims.iter().filter_map(|claim| claim.ending(index.pods_of(claim), view.now).map(|ending| (*claim, ending))).collect();
    let live: Vec<&Claim> = view.claims.iter().copied().filter(|claim| index.is_live(claim)).collect();
    let ledger = Ledger::of(view, &index);
    let mut decision = Decision { ended, holders: ledger.holders.clone(), ledger, ..Decision::default() };
    let held: HashSet<String> = decision.ledger.holders.iter().map(|holder| holder.uid.clone()).collect();
    let holds = |uid: &str| held.contains(uid);
    let (mut asking, mut free) = (Vec::new(), decision.ledger.free);
    for claim in &live {
        if holds(&claim.uid) { decision.bound.push(claim) } else { asking.push(Asking::Claim(claim)) }
    }
    for pod in view.pods.iter().filter(|pod| pod.has_our_gate && pod.awaits_a_node() && !pod.has_other_gates) {
        let claim = index.claim_of(pod);
        if !view.is_gated(pod) && claim.is_none() {
            continue;
        }
        // Its claim has the slot.
        let is_served = holds(&pod.uid) || claim.is_some_and(|claim| holds(&claim.uid));
        if is_served { decision.let_go.push(pod) } else { asking.push(Asking::Pod(pod)) }
    }
    asking.sort_by(|a, b| a.since().cmp(&b.since()));
    let mut in_namespace: BTreeMap<&str, u32> = BTreeMap::new();
    decision.bound.iter().for_each(|claim| *in_namespace.entry(&claim.namespace).or_default() += 1);
    let mut claims = decision.bound.len() as u32;
    for asking in asking {
        match asking {
            Asking::Claim(claim) => {
                let same = in_namespace.entry(&claim.namespace).or_default();
                if let Some(refusal) = refusal(view, &index, &decision, claim, free, claims, *same) {
                    decision.refused.push((claim, refusal));
                    continue;
                }
                (free, claims, *same) = (free - 1, claims + 1, *same + 1);
                decision.bound.push(claim);
                decision.holders.push(holder(HolderKind::HeadroomClaim, &claim.namespace, &claim.name, &claim.uid));
            }
            Asking::Pod(pod) if free > 0 && decision.holders.len() < MOST_HOLDERS as usize => {
                free -= 1;
                decision.let_go.push(pod);
                decision.holders.push(holder(HolderKind::Pod, &pod.namespace, &pod.name, &pod.uid));
            }
            Asking::Pod(pod) => give_up(view, pod, &mut decision),
        }
    }
    decision
}

/// A pod for which there is no room: it waits, unless it has for as long as it may.
fn give_up<'a>(view: &View<'a>, pod: &'a Pod, decision: &mut Decision<'a>) {
    let Some(gate) = &view.pool.spec.gate else { return };
    let waits_no_longer =
        pod.created.saturating_add(SignedDuration::from_secs(gate.max_wait_seconds.into())).is_ok_and(|end| end <= view.now);
    if !waits_no_longer {
        return;
    }
    match gate.on_max_wait {
        OnMaxWait::Release if decision.gave_up.is_none() => decision.gave_up = Some(pod),
        OnMaxWait::Fail => decision.failed.push(pod),
        OnMaxWait::Release => {}
    }
}

fn refusal(
    view: &View<'_>,
    index: &Index<'_>,
    decision: &Decision<'_>,
    claim: &Claim,
    free: u32,
    claims: u32,
    same_namespace: u32,
) -> Option<Refusal> {
    let (wanted, ledger) = (&view.pool.spec.claims, &decision.ledger);
    let pool = || view.pool.name.clone();
    if !wanted.namespaces.is_empty() && !wanted.namespaces.contains(&claim.namespace) {
        return Some(Refusal::NamespaceNotAllowed { pool: pool() });
    }
    if let Some(max) = wanted.max.filter(|max| claims >= *max) {
        return Some(Refusal::ClaimLimit { max });
    }
    if let Some(max) = wanted.max_per_namespace.filter(|max| same_namespace >= *max) {
        return Some(Refusal::NamespaceLimit { max });
    }
    if decision.holders.len() >= MOST_HOLDERS as usize {
        return Some(Refusal::ClaimLimit { max: MOST_HOLDERS });
    }
    if free == 0 {
        return Some(match (&ledger.useless, ledger.desired, ledger.bound) {
            (_, 0, _) => Refusal::NoPlaceholders { pool: pool() },
            (Some(useless), _, 0) => Refusal::Useless(useless.clone()),
            _ => Refusal::NoRoom,
        });
    }
    // Pods that are there are in the quota's own count.
    let is_to_come = |other: &&&Claim| other.namespace == claim.namespace && index.pods_of(other).is_empty();
    let to_come = decision.bound.iter().filter(is_to_come).count() as u32;
    let quotas = view.quotas.iter().filter(|quota| quota.namespace == claim.namespace);
    quotas.filter_map(|quota| quota.refuses(view.shape, to_come)).next().map(|why| Refusal::Quota { why })
}

fn holder(kind: HolderKind, namespace: &str, name: &str, uid: &str) -> Holder {
    Holder { kind, namespace: namespace.into(), name: name.into(), uid: uid.into() }
}
