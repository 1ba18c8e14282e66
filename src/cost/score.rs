//! From readings to costs.
//!
//! A cost only ranks the pods of one ReplicaSet, so what counts is the order: measured work above everything that is merely
//! unknown, and equal pods at equal costs, so that Kubernetes' own rules (spreading, age) go on working between them.

use std::collections::HashMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::pod::GovernedPod;
use super::readings::{Reading, Readings};
use super::tie_break::{self, Nodes};
use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::DeletionCostPolicySpec;

/// A pod's cost and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// 0 to `maxCost`.
    pub cost: i32,
    pub basis: Basis,
    /// Some of it rests on a last known value that is older than `maxAgeSeconds`.
    pub stale: bool,
    /// It yields to the measured work of another pod of its ReplicaSet.
    pub yields: bool,
    /// When the oldest sample that it rests on was taken.
    pub sampled: Option<Timestamp>,
}

/// What decided the cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Measured, and more than nothing: at least two steps.
    Work,
    /// Measured, and nothing.
    Idle,
    New,
    NotReady,
    NoMetrics,
    /// Being deleted, or ended.
    Terminating,
    /// Not measured since we started: what was written before.
    Written,
}

impl Basis {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Idle => "idle",
            Self::New => "new",
            Self::NotReady => "not_ready",
            Self::NoMetrics => "no_metrics",
            Self::Terminating => "terminating",
            Self::Written => "written before",
        }
    }
}

/// Costs of the pods of one policy, in the order of `pods`.
pub fn score(policy: &CostPolicy, pods: &[impl AsRef<GovernedPod>], readings: &Readings, nodes: &Nodes, now: Timestamp) -> Vec<Score> {
    let spec = &policy.spec;
    let counts = signals_that_count(policy, pods, readings, now);
    let mut scores: Vec<Score> = pods.iter().map(|pod| score_alone(policy, pod.as_ref(), readings, &counts, now)).collect();
    if spec.new_pod_yields_to_work {
        let least = least_work(pods, &scores);
        for (pod, score) in pods.iter().zip(&mut scores) {
            if let (Basis::New | Basis::NotReady | Basis::NoMetrics, Some(least)) = (score.basis, least.get(&*pod.as_ref().owner)) {
                score.yields = true;
                score.cost = score.cost.min(below(spec, *least));
            }
        }
    }
    for (pod, score) in pods.iter().zip(&mut scores) {
        score.cost = (score.cost + jitter(spec, &pod.as_ref().uid)).min(spec.max_cost);
    }
    tie_break::apply(policy, pods, &mut scores, nodes);
    scores
}

/// Which signals count. One of several is left out, so that the rest still ranks, if its last answer had a series for nobody, and
/// nothing is kept of it either. A query that *failed* is not left out: what it would have said is unknown. Where all signals say
/// nothing, nothing is left out, and every pod is unknown.
pub fn signals_that_count(policy: &CostPolicy, pods: &[impl AsRef<GovernedPod>], readings: &Readings, now: Timestamp) -> Vec<bool> {
    let mut counts: Vec<bool> = (0..policy.signals.len()).map(|signal| !readings.is_silent(signal)).collect();
    for pod in pods {
        for (counts, reading) in counts.iter_mut().zip(readings.of_pod(policy, &pod.as_ref().uid, now)) {
            *counts |= reading != Reading::Nothing;
        }
        if counts.iter().all(|counts| *counts) {
            break;
        }
    }
    if counts.contains(&true) { counts } else { vec![true; policy.signals.len()] }
}

/// The cost of a pod that is only just being created, so that it has no UID yet: the new-pod cost, below the least work
/// measured in its ReplicaSet.
pub fn new_pod_cost(spec: &DeletionCostPolicySpec, least_work: Option<i32>) -> i32 {
    let cost = whole_steps(spec, spec.edge_cases.new_pod.into());
    match least_work {
        Some(least) if spec.new_pod_yields_to_work => cost.min(below(spec, least)),
        _ => cost,
    }
}

/// The least cost of a Ready pod with measured work, by ReplicaSet. One that is not Ready goes before all of these anyway.
pub fn least_work<'a>(pods: &'a [impl AsRef<GovernedPod>], scores: &[Score]) -> HashMap<&'a str, i32> {
    let mut least = HashMap::new();
    let working = |(pod, score): &(&'a _, &Score)| score.basis == Basis::Work && AsRef::<GovernedPod>::as_ref(*pod).ready_since.is_some();
    for (pod, score) in pods.iter().zip(scores).filter(working) {
        least.entry(&*pod.as_ref().owner).and_modify(|cost: &mut i32| *cost = score.cost.min(*cost)).or_insert(score.cost);
    }
    least
}

fn score_alone(policy: &CostPolicy, pod: &GovernedPod, readings: &Readings, counts: &[bool], now: Timestamp) -> Score {
    let spec = &policy.spec;
    let (mut work, mut stale, mut unknown, mut sampled) = (0.0, false, false, None::<Timestamp>);
    let mut rests_on = |time: Timestamp| sampled = Some(sampled.map_or(time, |oldest| oldest.min(time)));
    let of_pod = policy.signals.iter().zip(readings.of_pod(policy, &pod.uid, now)).zip(counts);
    for ((signal, reading), _) in of_pod.filter(|(_, counts)| **counts) {
        match reading {
            Reading::Current(sample) => {
                rests_on(sample.time);
                work += signal.points(sample.value);
            }
            Reading::LastKnown(sample) => {
                rests_on(sample.time);
                stale = true;
                work += signal.points(sample.value);
            }
            // With `missing: Zero` a poll stores a zero, so nothing here means that there was no poll either.
            Reading::Nothing => unknown = true,
        }
    }
    let new = now.duration_since(pod.created) < SignedDuration::from_secs(spec.new_pod_seconds.into());
    let edge = &spec.edge_cases;
    let edge_case = |cost: i32| whole_steps(spec, cost.into());
    let (basis, cost) = if !pod.is_active() {
        (Basis::Terminating, edge_case(edge.terminating))
    } else if work > 0.0 {
        // A part that is known to be at work is enough: what is unknown can only add to it.
        (Basis::Work, work_cost(spec, work))
    } else if new {
        (Basis::New, edge_case(edge.new_pod))
    } else if pod.ready_since.is_none() {
        (Basis::NotReady, edge_case(edge.not_ready))
    } else if unknown {
        (Basis::NoMetrics, edge_case(edge.no_metrics))
    } else {
        (Basis::Idle, 0)
    };
    Score { cost, basis, stale, yields: false, sampled }
}

/// Rounds to the nearest multiple of `resolution`, within 0 and `maxCost`.
fn whole_steps(spec: &DeletionCostPolicySpec, points: f64) -> i32 {
    let highest = spec.max_cost / spec.resolution;
    // A sum may have overflowed to infinity, which the bound takes care of before it is cast.
    let steps = (points / f64::from(spec.resolution)).round().max(0.0).min(f64::from(highest));
    steps as i32 * spec.resolution
}

/// Work is at least two steps, so that it never looks idle, and what is unknown fits in between.
fn work_cost(spec: &DeletionCostPolicySpec, points: f64) -> i32 {
    whole_steps(spec, points).max(2 * spec.resolution)
}

fn below(spec: &DeletionCostPolicySpec, cost: i32) -> i32 {
    (cost - spec.resolution).max(0)
}

/// A number in `jitter` that depends on nothing but the UID (FNV-1a).
fn jitter(spec: &DeletionCostPolicySpec, uid: &str) -> i32 {
    let width = u64::from(spec.jitter.max.abs_diff(spec.jitter.min)) + 1;
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    spec.jitter.min + (hash % width) as i32
}

#[cfg(test)]
mod tests;
