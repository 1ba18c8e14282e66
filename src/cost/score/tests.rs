//! Table and property tests of the score.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::DeletionCostPolicy;
use crate::cost::pod::tests::pod;
use crate::cost::readings::Sample;

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn policy(change: serde_json::Value) -> CostPolicy {
    let mut base = json!({
        "selector": {"matchLabels": {"app": "web"}},
        "signals": [{"name": "work", "query": "work", "weight": 1, "cap": 1000}],
    });
    base.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": base})).unwrap();
    assert_eq!(policy.spec.problems(), []);
    CostPolicy::compile(&policy)
}

/// Readings of pods whose samples are given per signal as (pod, value, age in seconds).
fn readings(policy: &CostPolicy, pods: &[GovernedPod], samples: &[&[(&str, f64, i64)]]) -> Readings {
    let answer = |samples: &&[(&str, f64, i64)]| {
        let of_pod = |pod: &GovernedPod| {
            let (_, value, age) = samples.iter().find(|(name, ..)| *name == pod.name)?;
            Some(Sample { value: *value, time: at(NOW - age) })
        };
        pods.iter().map(of_pod).collect::<Vec<_>>()
    };
    let answers: Vec<Vec<Option<Sample>>> = samples.iter().map(answer).collect();
    let mut readings = Readings::default();
    readings.take_in(policy, &answers.iter().map(|answer| Some(&answer[..])).collect::<Vec<_>>(), pods, at(NOW));
    readings
}

fn costs(policy: &CostPolicy, pods: &[GovernedPod], samples: &[&[(&str, f64, i64)]]) -> Vec<i32> {
    score(policy, pods, &readings(policy, pods, samples), &Nodes::new(), at(NOW)).iter().map(|score| score.cost).collect()
}

/// The seed's arithmetic: 40 running splits, 3 high-priority tasks and one full core are 400 + 45 + 50 = 495, and such a
/// pod outranks a new one, whose cost of 500 would be higher.
#[test]
fn a_busy_pod_outranks_a_new_one() {
    let policy = policy(json!({"resolution": 5, "signals": [
        {"name": "splits", "query": "s", "weight": 10, "cap": 400, "missing": "Zero"},
        {"name": "tasks", "query": "t", "weight": 15, "cap": 150, "missing": "Zero"},
        {"name": "cpu", "query": "c", "weight": 0.5, "cap": 50, "missing": "Zero"},
    ]}));
    let new = GovernedPod { created: at(NOW - 20), ..pod("new") };
    let found = costs(&policy, &[pod("busy"), new, pod("idle")], &[&[("busy", 40.0, 1)], &[("busy", 3.0, 1)], &[("busy", 100.0, 1)]]);
    assert_eq!(found, [495, 490, 0]);
}

/// The same with the preset as it comes: what it rounds to is in whole steps of 10.
#[test]
fn the_trino_preset_ranks_as_its_table_says() {
    let policy = policy(json!({"preset": "trino", "signals": [], "resolution": 5}));
    let new = GovernedPod { created: at(NOW - 20), ..pod("new") };
    let pods = [pod("busy"), new, pod("idle"), pod("buffers"), pod("all")];
    let of = |busy, buffers, all| [("busy", busy, 1), ("idle", 0.0, 1), ("buffers", buffers, 1), ("all", all, 1)];
    let samples = [of(40.0, 0.0, 1e6), of(0.0, 0.0, 1e6), of(3.0, 0.0, 1e6), of(0.0, 0.0, 1e6), of(100.0, 3.0, 1e6), of(0.0, 7.0, 1e6)];
    let samples: Vec<&[(&str, f64, i64)]> = samples.iter().map(|signal| &signal[..]).collect();
    assert_eq!(costs(&policy, &pods, &samples), [495, 345, 0, 350, 1000]);
}

/// DC-42 in its smallest form: what is unknown is neither idle nor above work.
#[test]
fn what_is_unknown_fits_between_idle_and_the_least_work() {
    let found = costs(&policy(json!({})), &[pod("idle"), pod("unknown"), pod("busy")], &[&[("idle", 0.0, 1), ("busy", 0.2, 1)]]);
    assert_eq!(found, [0, 10, 20]);
}

/// DC-42 as it was told: a new pod is protected above a little work, where the policy says so.
#[test]
fn dc_42_a_new_pod_can_be_kept_above_a_little_work() {
    let c = GovernedPod { created: at(NOW - 20), ..pod("c") };
    let found = costs(&policy(json!({"newPodYieldsToWork": false})), &[pod("a"), pod("b"), c], &[&[("a", 300.0, 1), ("b", 20.0, 1)]]);
    assert_eq!(found, [300, 20, 500]);
}

#[test]
fn a_pod_that_is_not_ready_or_has_ended_sets_no_mark_for_others() {
    let unready = GovernedPod { ready_since: None, ..pod("unready") };
    let ended = GovernedPod { phase: crate::cost::pod::Phase::Finished, ..pod("ended") };
    let found = costs(&policy(json!({})), &[unready, ended, pod("unknown")], &[&[("unready", 30.0, 1), ("ended", 30.0, 1)]]);
    assert_eq!(found, [30, 0, 500]);
}

/// A backend whose clock is ahead, or a file with a slip in its year, must not pin a value.
#[test]
fn a_sample_from_the_future_gives_way_to_the_next_one() {
    let policy = policy(json!({}));
    let mut readings = Readings::default();
    for (value, age) in [(300.0, -1_000_000), (50.0, 0)] {
        let answer = [Some(Sample { value, time: at(NOW - age) })];
        readings.take_in(&policy, &[Some(&answer[..])], &[pod("p")], at(NOW));
    }
    assert_eq!(score(&policy, &[pod("p")], &readings, &Nodes::new(), at(NOW))[0].cost, 50);
}

#[test]
fn each_signal_counts_up_to_its_cap_and_all_up_to_the_maximum() {
    let policy = policy(json!({"signals": [
        {"name": "a", "query": "a", "weight": 10, "cap": 400},
        {"name": "b", "query": "b", "weight": 1, "cap": 900},
    ]}));
    let found = costs(&policy, &[pod("p"), pod("q")], &[&[("p", 1e9, 0), ("q", 39.0, 0)], &[("p", f64::MAX, 0), ("q", 0.0, 0)]]);
    assert_eq!(found, [1000, 390]);
}

#[test]
fn work_never_rounds_to_idle() {
    let found = costs(&policy(json!({})), &[pod("idle"), pod("one")], &[&[("idle", 0.0, 0), ("one", 0.001, 0)]]);
    assert_eq!(found, [0, 20]);
}

/// DC-42: pods without samples.
#[test]
fn dc_42_a_pod_without_samples_is_never_taken_for_idle() {
    let policy = policy(json!({"samples": {"maxAgeSeconds": 60, "keepLastSeconds": 7200}}));
    let c = GovernedPod { created: at(NOW - 20), ..pod("c") };
    let pods = [pod("a"), pod("b"), c, pod("d"), pod("e")];
    let found = costs(&policy, &pods, &[&[("a", 300.0, 1), ("b", 20.0, 1), ("d", 250.0, 7000)]]);
    // c is new, e has never been measured: both yield to b, which works.
    assert_eq!(found, [300, 20, 10, 250, 10]);
}

/// DC-45: a sample older than `maxAgeSeconds` is the last known value, and nothing once it is older than `keepLastSeconds`.
#[test]
fn dc_45_an_old_sample_is_only_the_last_known_one() {
    let policy = policy(json!({}));
    let pods = [pod("old"), pod("lost")];
    let readings = readings(&policy, &pods, &[&[("old", 9.0, 270), ("lost", 9.0, 601)]]);
    let scores = score(&policy, &pods, &readings, &Nodes::new(), at(NOW));
    assert_eq!((scores[0].basis, scores[0].stale), (Basis::Work, true));
    assert_eq!((scores[1].basis, scores[1].stale, scores[1].cost), (Basis::NoMetrics, false, 10));
}

/// DC-10: readiness outranks cost in Kubernetes, but the work is real.
#[test]
fn dc_10_a_pod_that_is_not_ready_keeps_its_work() {
    let unready = |name| GovernedPod { ready_since: None, ..pod(name) };
    let found = costs(&policy(json!({})), &[unready("busy"), unready("idle")], &[&[("busy", 95.0, 0), ("idle", 0.0, 0)]]);
    assert_eq!(found, [100, 50]);
}

/// DC-11: jitter must not invert work, and the same snapshot gives the same costs.
#[test]
fn dc_11_jitter_never_outweighs_work() {
    let policy = policy(json!({"jitter": {"min": 0, "max": 9}}));
    for seed in 0..1000 {
        let pods = [pod(&format!("idle-{seed}")), pod(&format!("busy-{seed}"))];
        let samples = [(pods[0].name.as_str(), 0.0, 0), (pods[1].name.as_str(), 5.0, 0)];
        let found = costs(&policy, &pods, &[&samples]);
        assert!(found[0] < found[1], "{found:?}");
        assert_eq!(found, costs(&policy, &pods, &[&samples]));
    }
}

/// DC-25: whatever the numbers, the cost is a plain integer in range.
#[test]
fn dc_25_odd_values_give_plain_costs() {
    for (value, cost) in [(1000.4, 1000), (1e12, 1000), (f64::INFINITY, 1000), (-5.0, 0), (-0.0, 0)] {
        assert_eq!(costs(&policy(json!({})), &[pod("p")], &[&[("p", value, 0)]]), [cost], "{value}");
    }
}

#[test]
fn an_unknown_signal_keeps_a_pod_from_being_idle_but_not_from_being_busy() {
    let policy = policy(json!({"newPodYieldsToWork": false, "signals": [
        {"name": "a", "query": "a", "weight": 1, "cap": 400},
        {"name": "b", "query": "b", "weight": 1, "cap": 400},
    ]}));
    let pods = [pod("p"), pod("q"), pod("r")];
    let found = costs(&policy, &pods, &[&[("p", 0.0, 0), ("q", 30.0, 0), ("r", 0.0, 0)], &[("r", 0.0, 0)]]);
    assert_eq!(found, [500, 30, 0]);
}

/// One signal of several that is missing for all pods says nothing about any of them.
#[test]
fn a_signal_that_nobody_has_is_left_out() {
    let policy = policy(json!({"signals": [
        {"name": "a", "query": "a", "weight": 1, "cap": 400},
        {"name": "b", "query": "b", "weight": 1, "cap": 400},
    ]}));
    let pods = [pod("p"), pod("q")];
    assert_eq!(costs(&policy, &pods, &[&[("p", 0.0, 0), ("q", 30.0, 0)], &[]]), [0, 30]);
    assert_eq!(costs(&policy, &pods, &[&[], &[]]), [500, 500], "where nobody has anything, nothing is known");
}

#[test]
fn a_pod_that_is_being_created_yields_to_the_least_work() {
    let policy = policy(json!({}));
    assert_eq!(new_pod_cost(&policy.spec, None), 500);
    assert_eq!(new_pod_cost(&policy.spec, Some(900)), 500);
    assert_eq!(new_pod_cost(&policy.spec, Some(40)), 30);
    assert_eq!(new_pod_cost(&policy.spec, Some(20)), 10, "above idle, below the least work there can be");
}

proptest! {
    /// More of any signal, all else equal, never lowers a pod's cost; and what a signal's shape is does not matter.
    #[test]
    fn costs_rise_with_every_signal(
        values in prop::collection::vec((0.0..500.0f64, 0.0..500.0f64), 3),
        shapes in prop::collection::vec((0.01..20.0f64, 1.0..600.0f64, any::<bool>(), 0.0..50.0f64), 3),
        resolution in 1..100i32,
    ) {
        let signal = |(i, (weight, cap, log, ignore)): (usize, &(f64, f64, bool, f64))| json!({"name": format!("s{i}"), "query": "q",
            "weight": weight, "cap": cap, "scale": if *log { "Log" } else { "Linear" }, "ignoreBelow": ignore});
        let signals: Vec<_> = shapes.iter().enumerate().map(signal).collect();
        let policy = policy(json!({"resolution": resolution, "signals": signals}));
        let pods = [pod("less"), pod("more"), pod("same")];
        let samples: Vec<Vec<(&str, f64, i64)>> =
            values.iter().map(|(a, b)| vec![("less", a.min(*b), 0), ("more", a.max(*b), 0), ("same", a.max(*b), 0)]).collect();
        let found = costs(&policy, &pods, &samples.iter().map(|samples| &samples[..]).collect::<Vec<_>>());
        prop_assert!(found[0] <= found[1] && found[1] == found[2], "{found:?}");
        prop_assert!(found.iter().all(|cost| (0..=1000).contains(cost) && cost % resolution == 0), "{found:?}");
    }

    #[test]
    fn costs_are_in_range_in_whole_steps_and_rise_with_work(
        values in prop::collection::vec(prop::option::of(0.0..2000.0f64), 1..8),
        resolution in 1..200i32, max_cost in 400..2000i32, weight in 0.01..100.0f64, cap in 0.01..3000.0f64,
    ) {
        let policy = policy(json!({"resolution": resolution, "maxCost": max_cost, "edgeCases": {"newPod": 150, "noMetrics": 150},
            "signals": [{"name": "work", "query": "work", "weight": weight, "cap": cap}]}));
        let pods: Vec<GovernedPod> = (0..values.len()).map(|i| pod(&i.to_string())).collect();
        let names: Vec<String> = (0..values.len()).map(|i| i.to_string()).collect();
        let samples: Vec<(&str, f64, i64)> = values.iter().zip(&names).filter_map(|(v, n)| v.map(|v| (n.as_str(), v, 0))).collect();
        let found = costs(&policy, &pods, &[&samples]);
        for (i, cost) in found.iter().enumerate() {
            prop_assert!((0..=max_cost).contains(cost));
            prop_assert_eq!(cost % resolution, 0);
            for (j, other) in found.iter().enumerate() {
                match (values[i], values[j]) {
                    (Some(a), Some(b)) if a >= b => prop_assert!(cost >= other, "more work, lower cost"),
                    (Some(a), None) if a > 0.0 => prop_assert!(cost > other, "unmeasured above work"),
                    (None, None) => prop_assert_eq!(cost, other),
                    _ => {}
                }
            }
        }
        let mut reversed = pods.clone();
        reversed.reverse();
        let mut again = costs(&policy, &reversed, &[&samples]);
        again.reverse();
        prop_assert_eq!(again, found, "the order of the input matters");
    }
}
