//! What the scheduler would make of a wave: it does not pack. Each pod goes where most is left, in the order of coming, and takes placeholders
//! only where nothing is free. A pod is promised a place only where it has one in every order that is tried.

use std::collections::HashMap;
use std::sync::Arc;

use super::pack::{Bin, candidates, largest_first};
use super::{Pod, PodKind};

/// Steps of all orders together: one pod looking at one node.
const STEPS: usize = 60_000_000;

/// Orders that are tried at the most of a large wave: by size, both ways, and mixed.
const ORDERS: usize = 8;

/// Of a wave of at most so many pods, every order is tried.
const ALL_ORDERS: usize = 6;

/// How many pods of each kind, by its address, have a place in every order. Which of them it is makes no difference.
pub fn placed_in_every_order(pods: &[&Pod], bins: &[Bin]) -> HashMap<*const PodKind, usize> {
    let candidates = candidates(pods, bins);
    let steps: usize = pods.iter().map(|pod| candidates[&Arc::as_ptr(&pod.kind)].len()).sum();
    let largest = largest_first(pods, bins);
    let orders: Vec<Vec<usize>> = if pods.len() <= ALL_ORDERS {
        permutations(&largest)
    } else {
        let count = (STEPS / steps.max(1)).clamp(2, ORDERS);
        let both_ways = [largest.clone(), largest.iter().rev().copied().collect()];
        both_ways.into_iter().chain((2..count).map(|seed| mixed(pods.len(), seed as u64))).collect()
    };
    let mut always: HashMap<*const PodKind, usize> = HashMap::new();
    pods.iter().for_each(|pod| *always.entry(Arc::as_ptr(&pod.kind)).or_default() += 1);
    for mut order in orders {
        // The queue is by priority first.
        order.sort_by_key(|pod| std::cmp::Reverse(pods[*pod].kind.priority));
        let mut bins = bins.to_vec();
        let mut placed: HashMap<*const PodKind, usize> = HashMap::new();
        for pod in order {
            let kind = &pods[pod].kind;
            let open = &candidates[&Arc::as_ptr(kind)];
            let free = open.iter().copied().filter(|bin| bins[*bin].fits_free(&kind.request));
            let best = free.max_by(|a, b| score(&bins[*a], &kind.request).total_cmp(&score(&bins[*b], &kind.request)));
            let best = best.or_else(|| {
                let with_victims = open.iter().filter_map(|bin| Some((bins[*bin].victims(kind)?.len(), *bin)));
                with_victims.min().map(|(_, bin)| bin)
            });
            *placed.entry(Arc::as_ptr(kind)).or_default() += usize::from(best.is_some_and(|bin| bins[bin].place(kind)));
        }
        always.iter_mut().for_each(|(kind, count)| *count = (*count).min(placed.get(kind).copied().unwrap_or(0)));
    }
    always
}

/// How much is left after a pod, as a share of all (`noderesources/least_allocated.go`): CPU and memory alike.
fn score(bin: &Bin, request: &[i64]) -> f64 {
    let left = bin.free.iter().zip(request).zip(&bin.capacity).take(2);
    left.map(|((free, request), capacity)| (free - request) as f64 / (*capacity).max(1) as f64).sum()
}

fn permutations(pods: &[usize]) -> Vec<Vec<usize>> {
    let Some((first, rest)) = pods.split_first() else { return vec![vec![]] };
    let with_first_at = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, *first);
        order
    };
    permutations(rest).iter().flat_map(|order| (0..=order.len()).map(|at| with_first_at(order, at)).collect::<Vec<_>>()).collect()
}

/// An order that looks like chance, and is the same each time.
fn mixed(count: usize, seed: u64) -> Vec<usize> {
    let key = |i: usize| (i as u64 ^ (seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|i| key(*i));
    order
}
