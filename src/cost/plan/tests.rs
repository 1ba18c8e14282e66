//! The plan against brute force over all subsets of writes.

use proptest::prelude::*;

use super::*;
use crate::cost::pod::{GovernedPod, tests::pod};

fn tier(ready: bool) -> Tier {
    let pod = pod("p");
    Tier::of(&GovernedPod { ready_since: pod.ready_since.filter(|_| ready), ..pod })
}

fn ready(stored: i32, current: i32) -> Candidate {
    Candidate { tier: tier(true), stored, current }
}

/// Whether the right pods go however ties fall: looks at the definition, not at the plan's way of reaching it.
fn is_right(pods: &[Candidate], writes: &[usize], go: usize) -> bool {
    let stored = |i: usize| if writes.contains(&i) { pods[i].current } else { pods[i].stored };
    let key = |i: usize| (pods[i].tier, stored(i));
    (0..pods.len()).all(|stays| {
        (0..pods.len()).all(|goes| {
            let wrong = pods[stays].tier == pods[goes].tier && pods[stays].current < pods[goes].current;
            // `goes` can go while `stays` stays: with every tie in its favour `goes` is among the first, and with every tie
            // against it (that of `goes` included) `stays` is not.
            let ahead_of_goes = (0..pods.len()).filter(|&i| i != goes && key(i) < key(goes)).count();
            let ahead_of_stays = (0..pods.len()).filter(|&i| i != stays && key(i) <= key(stays)).count();
            let possible = stays != goes && ahead_of_goes < go && ahead_of_stays >= go && key(goes) <= key(stays);
            !(wrong && possible)
        })
    })
}

fn fewest_by_brute_force(pods: &[Candidate], go: usize) -> usize {
    (0u32..1 << pods.len())
        .filter(|set| is_right(pods, &(0..pods.len()).filter(|i| set & (1 << i) != 0).collect::<Vec<_>>(), go))
        .map(u32::count_ones)
        .min()
        .unwrap() as usize
}

#[test]
fn busy_pods_with_unset_costs_are_the_only_ones_written() {
    // DC-01: six pods, c and e busy, three go.
    let pods: Vec<_> = [0, 0, 70, 0, 30, 0].map(|current| ready(0, current)).into();
    assert_eq!(fewest_writes(&pods, 3), [2, 4]);
}

#[test]
fn fresh_costs_need_no_write() {
    let pods: Vec<_> = [0, 10, 70, 20, 30, 0].map(|current| ready(current, current)).into();
    for go in 0..=pods.len() {
        assert!(fewest_writes(&pods, go).is_empty());
    }
}

#[test]
fn scale_to_zero_and_no_scale_down_write_nothing() {
    let pods: Vec<_> = [0, 0, 70].map(|current| ready(0, current)).into();
    assert!(fewest_writes(&pods, 0).is_empty());
    assert!(fewest_writes(&pods, 3).is_empty());
    assert!(fewest_writes(&pods, 9).is_empty());
}

#[test]
fn pods_that_are_not_ready_count_first() {
    let unready = Candidate { tier: tier(false), stored: 0, current: 900 };
    let pods = [ready(0, 50), unready, ready(0, 0)];
    assert!(fewest_writes(&pods, 1).is_empty(), "only the one that is not ready goes");
    assert_eq!(fewest_writes(&pods, 2), [0]);
}

#[test]
fn a_reversed_order_needs_only_one_side() {
    let pods: Vec<_> = (0..20).map(|i| ready(190 - i * 10, i * 10)).collect();
    assert!(fewest_writes(&pods, 8).len() <= 16);
    assert!(is_right(&pods, &fewest_writes(&pods, 8), 8));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn the_plan_is_right_and_no_smaller_one_is(
        pods in prop::collection::vec((prop::bool::weighted(0.8), -1..4i32, prop::option::of(-1..4i32)), 1..8),
        go in 0..9usize,
    ) {
        // A pod without a current cost must not be written and ranks by what is stored.
        let pods: Vec<_> = pods.into_iter()
            .map(|(ready, stored, current)| Candidate { tier: tier(ready), stored, current: current.unwrap_or(stored) })
            .collect();
        let writes = fewest_writes(&pods, go);
        prop_assert!(writes.iter().all(|&i| pods[i].stored != pods[i].current), "a write that changes nothing");
        prop_assert!(is_right(&pods, &writes, go.min(pods.len())), "not right");
        prop_assert_eq!(writes.len(), fewest_by_brute_force(&pods, go.min(pods.len())), "not the fewest");
    }
}
