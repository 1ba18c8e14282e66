//! The pure core by itself: reading a review, scoring, planning.

use divan::{Bencher, black_box};
use k8s_openapi::jiff::Timestamp;
use pecking_order::admission::request;
use pecking_order::api::{CostPolicy, DeletionCostPolicy};
use pecking_order::cost::plan::{Candidate, fewest_writes};
use pecking_order::cost::pod::Phase;
use pecking_order::cost::readings::{Readings, Sample};
use pecking_order::cost::victims::Tier;
use pecking_order::cost::{GovernedPod, Stored, score};
use serde_json::json;

fn main() {
    divan::main();
}

fn pods(count: usize) -> Vec<GovernedPod> {
    let pod = |i: usize| GovernedPod {
        namespace: "shop".into(),
        name: format!("web-{i}"),
        uid: format!("uid-{i}").into(),
        version: 0,
        owner: "rs".into(),
        node: Some(format!("node-{}", i % 50)),
        ips: vec![],
        phase: Phase::Running,
        ready_since: Some(Timestamp::UNIX_EPOCH),
        restarts: (0, 0),
        created: Timestamp::UNIX_EPOCH,
        terminating: false,
        grace_seconds: 30,
        stored: Stored::Unset,
    };
    (0..count).map(pod).collect()
}

fn policy() -> CostPolicy {
    let signals: Vec<_> = (0..6).map(|i| json!({"name": format!("s{i}"), "query": "q", "weight": 1.5, "cap": 300})).collect();
    let policy: DeletionCostPolicy =
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "signals": signals}}))
            .unwrap();
    CostPolicy::compile(&policy)
}

#[divan::bench(args = [1_000, 10_000])]
fn score_pods_with_six_signals(bencher: Bencher, count: usize) {
    let (policy, pods, now) = (policy(), pods(count), Timestamp::now());
    let mut readings = Readings::default();
    let answer = vec![Some(Sample { value: 7.0, time: now }); count];
    readings.take_in(&policy, &[Some(&answer[..]); 6], &pods, now);
    bencher.bench(|| score::score(black_box(&policy), black_box(&pods), &readings, &Default::default(), now));
}

#[divan::bench(args = [20, 150, 1_000])]
fn plan_a_reversed_replica_set(bencher: Bencher, count: usize) {
    let tier = Tier::of(&pods(1)[0]);
    let candidates: Vec<_> = (0..count as i32).map(|i| Candidate { tier, stored: count as i32 - i, current: i }).collect();
    bencher.bench(|| fewest_writes(black_box(&candidates), count * 2 / 5));
}

#[divan::bench(args = [7, 25])]
fn read_a_review_of_so_many_kb(bencher: Bencher, kilobytes: usize) {
    let filler = "x".repeat(kilobytes * 512 - 200);
    let object = json!({"metadata": {"uid": "u", "annotations": {"filler": filler}}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "object": object, "oldObject": object}});
    let body = review.to_string();
    bencher.bench(|| matches!(request::read(black_box(body.as_bytes())), request::Body::Request(_)));
}
