//! What becomes of a pod that wants room, at the moment when it is created.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::claim::ClaimName;
use crate::api::headroom_pool::OnNoRoom;
use crate::api::policies::Labels;
use crate::api::{Policies, Pool};
use crate::headroom::classes::{Classes, never_preempts};

/// The label that every namespace has: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// How a pool stood a moment ago.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    pub free: u32,
    /// The priority of its placeholders, the lowest that there is.
    pub priority: Option<i32>,
}

/// What there is to know about the pools' room.
#[derive(Debug, Clone, Default)]
pub struct Gates {
    /// Whether anybody lets go of pods again. Where nobody does, as with policies from files, none is made to wait.
    pub are_kept: bool,
    /// By pool. One that is missing is not known yet.
    pub rooms: Arc<BTreeMap<String, Room>>,
    pub namespaces: Arc<HashMap<String, Labels>>,
    /// Claims that hold a slot.
    pub bound: Arc<HashSet<ClaimName>>,
}

/// A pod that is being created, as far as its waiting is concerned.
#[derive(Debug)]
pub struct Newcomer<'a> {
    pub namespace: &'a str,
    pub labels: &'a Labels,
    pub claim: Option<&'a str>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<&'a str>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It waits for no pool, or its claim holds a slot.
    Pass,
    Gate,
    NoRoom {
        pool: String,
    },
    CannotPreempt {
        pool: String,
        why: String,
    },
}

impl Gates {
    /// Whether a pod waits for room of a pool. Of a namespace that is not known (yet) only the name is.
    pub fn gate(&self, pool: &Pool, namespace: &str, labels: &Labels) -> bool {
        pool.gates(labels) && pool.gates_namespace(&labels_of(&self.namespaces, namespace))
    }

    pub fn verdict(&self, pod: &Newcomer<'_>, policies: &Policies, classes: &Classes) -> Verdict {
        let gating = policies.pools().find(|pool| self.are_kept && self.gate(pool, pod.namespace, pod.labels));
        let Some(pool) = gating else { return Verdict::Pass };
        let room = self.rooms.get(&pool.name);
        if let Some(why) = cannot_preempt(pool, room, pod, classes) {
            return Verdict::CannotPreempt { pool: pool.name.clone(), why };
        }
        if pod.claim.is_some_and(|claim| self.bound.contains(&ClaimName::new(pod.namespace, claim))) {
            return Verdict::Pass;
        }
        let denies = pool.spec.gate.as_ref().is_some_and(|gate| gate.on_no_room == OnNoRoom::Deny);
        match room {
            Some(Room { free: 0, .. }) if denies => Verdict::NoRoom { pool: pool.name.clone() },
            // Even where there is room: of several that come at once, not all may have it.
            _ => Verdict::Gate,
        }
    }
}

/// F9: why the pod could wait for ever.
fn cannot_preempt(pool: &Pool, room: Option<&Room>, pod: &Newcomer<'_>, classes: &Classes) -> Option<String> {
    if never_preempts(pod.preemption_policy) {
        return Some("its preemptionPolicy is Never".into());
    }
    let of_classes = || pool.spec.placeholders.priority_class_names.iter().filter_map(|name| classes.value(Some(name))).min();
    let (own, placeholders) = (pod.priority?, room.and_then(|room| room.priority).or_else(of_classes)?);
    (own <= placeholders).then(|| format!("its priority is {own}, and the placeholders' {placeholders}"))
}

pub fn labels_of(namespaces: &HashMap<String, Labels>, name: &str) -> Labels {
    namespaces.get(name).cloned().unwrap_or_else(|| [(NAMESPACE_NAME.to_owned(), name.to_owned())].into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn verdict(gate: Value, free: Option<u32>, spec: Value, claim: Option<&str>) -> Verdict {
        let mut gate = gate;
        gate["pods"] = json!({"selector": {"matchLabels": {"wait": "yes"}}, "namespaceSelector": {"matchLabels": {"team": "ci"}}});
        let pool = json!({"metadata": {"name": "general"}, "spec": {"gate": gate}});
        let policies = Policies::default().with_pool(Pool::compile(&serde_json::from_value(pool).unwrap()));
        let rooms = free.map(|free| ("general".to_owned(), Room { free, priority: Some(-10) })).into_iter().collect();
        let labels = |key: &str, value: &str| -> Labels { [(key.to_owned(), value.to_owned())].into() };
        let gates = Gates {
            are_kept: true,
            rooms: Arc::new(rooms),
            namespaces: Arc::new([("ci".to_owned(), labels("team", "ci"))].into()),
            bound: Arc::new([ClaimName::new("ci", "mine")].into()),
        };
        let (priority, preemption_policy) = (spec["priority"].as_i64().map(|p| p as i32), spec["preemptionPolicy"].as_str());
        let in_namespace = |namespace: &str| {
            gates.verdict(
                &Newcomer { namespace, labels: &labels("wait", "yes"), claim, priority, preemption_policy },
                &policies,
                &Classes::default(),
            )
        };
        assert_eq!(in_namespace("other"), Verdict::Pass, "another namespace");
        in_namespace("ci")
    }

    #[test]
    fn a_pod_waits_or_is_refused_where_there_is_no_room() {
        let pool = || "general".to_owned();
        let job = || json!({"priority": 0});
        let deny = || json!({"onNoRoom": "Deny"});
        assert_eq!(verdict(json!({}), Some(3), job(), None), Verdict::Gate);
        assert_eq!(verdict(deny(), Some(0), job(), None), Verdict::NoRoom { pool: pool() });
        assert_eq!(verdict(deny(), Some(1), job(), None), Verdict::Gate, "of ten that come at once, one has it");
        assert_eq!(verdict(deny(), None, job(), None), Verdict::Gate, "what is not known is not zero");
        assert_eq!(verdict(deny(), Some(0), job(), Some("mine")), Verdict::Pass, "it has its room");
        assert_eq!(verdict(deny(), Some(0), job(), Some("another")), Verdict::NoRoom { pool: pool() });
    }

    #[test]
    fn f9_a_pod_that_could_wait_for_ever_is_refused() {
        let why = |spec: Value| match verdict(json!({}), Some(3), spec, None) {
            Verdict::CannotPreempt { why, .. } => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(json!({"priority": 0, "preemptionPolicy": "Never"})), "its preemptionPolicy is Never");
        assert_eq!(why(json!({"priority": -10})), "its priority is -10, and the placeholders' -10");
    }
}
