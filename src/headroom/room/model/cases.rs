//! Single cases of what counts as room and who gets it.

use super::*;

struct Bench {
    cluster: Cluster,
    shape: Option<PodSpec>,
    classes: Classes,
    quotas: Vec<Quota>,
}

impl Bench {
    fn new(spec: Value) -> Self {
        let mut cluster = Cluster::new(spec);
        cluster.add_node();
        (0..2).for_each(|_| cluster.add_placeholder());
        cluster.schedule();
        Self { cluster, shape: None, classes: Classes::default(), quotas: vec![] }
    }

    fn decide<T>(&self, look: impl FnOnce(&Decision<'_>) -> T) -> T {
        let claims: Vec<Claim> = self.cluster.runners.iter().map(|runner| runner.claim.clone()).collect();
        let (pods, claims): (Vec<&Pod>, Vec<&Claim>) = (self.cluster.pods.iter().collect(), claims.iter().collect());
        let is_gated = |_: &str| true;
        let view = View {
            pool: &self.cluster.pool,
            pods: &pods,
            nodes: &self.cluster.nodes,
            claims: &claims,
            shape: self.shape.as_ref(),
            classes: &self.classes,
            quotas: &self.quotas,
            holders: &self.cluster.holders,
            is_gated_namespace: &is_gated,
            now: self.cluster.now,
        };
        look(&decide(&view))
    }

    fn free(&self) -> u32 {
        self.decide(|decision| decision.ledger.free)
    }

    fn refusal(&self) -> Option<&'static str> {
        self.decide(|decision| decision.refused.first().map(|(_, refusal)| refusal.reason()))
    }
}

/// F2, F3, F10: nominated, leaving, on a node that will not last.
#[test]
fn only_what_is_bound_to_a_node_that_will_last_is_room() {
    let mut bench = Bench::new(json!({}));
    assert_eq!(bench.free(), 2);
    bench.cluster.pods[0].is_leaving = true;
    assert_eq!(bench.free(), 1, "f3");
    bench.cluster.pods[1].node = None;
    assert_eq!(bench.free(), 0, "f2: a nominated node is not looked at");
    let mut bench = Bench::new(json!({}));
    bench.cluster.nodes.values_mut().for_each(|node| node.is_cordoned = true);
    assert_eq!((bench.free(), bench.decide(|decision| decision.ledger.desired)), (0, 2), "f10");
}

/// F4: no counter can leak, since nothing is counted but what is there.
#[test]
fn f4_a_claim_that_is_gone_or_silent_holds_nothing() {
    let mut bench = Bench::new(json!({}));
    (0..2).for_each(|_| bench.cluster.add_claim());
    bench.cluster.lead(&bench.cluster.see(), false);
    assert_eq!(bench.free(), 0);
    bench.cluster.runners.remove(0);
    assert_eq!(bench.free(), 1, "deleted: no job came");
    bench.cluster.now = bench.cluster.now.saturating_add(SignedDuration::from_secs(301)).unwrap();
    assert_eq!((bench.free(), bench.decide(|decision| decision.ended[0].1)), (2, Ending::Expired), "crashed");
}

/// F6, F15, and limits of a namespace.
#[test]
fn f6_zero_means_zero_and_f15_a_cap_is_not_room() {
    let served = |claims: Value| {
        let mut bench = Bench::new(json!({ "claims": claims }));
        (0..5).for_each(|_| bench.cluster.add_claim());
        (bench.decide(|decision| decision.bound.len()), bench.refusal())
    };
    assert_eq!(served(json!({"max": 0})), (0, Some("ClaimLimit")));
    assert_eq!(served(json!({"max": 50})), (2, Some("NoRoom")));
    assert_eq!(served(json!({"maxPerNamespace": 1})), (1, Some("NamespaceLimit")));
    assert_eq!(served(json!({"namespaces": ["other"]})), (0, Some("NamespaceNotAllowed")));
}

/// C6, F9: what the room is for must fit into it, and be able to take it.
#[test]
fn room_that_the_job_cannot_take_is_none() {
    let job = |change: Value| {
        let mut spec = json!({"priority": 0, "containers": [{"resources": {"requests": {"cpu": "2500m"}}}]});
        json_patch::merge(&mut spec, &change);
        Some(serde_json::from_value(spec).unwrap())
    };
    let mut bench = Bench::new(json!({"shape": {"like": {"kind": "Deployment", "namespace": "ci", "name": "job"}}}));
    bench.cluster.add_claim();
    let cpu = |amount: &str| [("cpu".to_owned(), crate::headroom::quantity::Quantity::parse(amount).unwrap())].into();
    let mut slots = |held: &str, shape: Option<PodSpec>| {
        bench.cluster.pods.iter_mut().for_each(|pod| pod.request = cpu(held));
        bench.shape = shape;
        (bench.free(), bench.refusal())
    };
    assert_eq!(slots("2", job(json!({}))), (0, Some("PlaceholdersTooSmall")), "c6");
    assert_eq!(slots("2500m", job(json!({}))), (2, None));
    assert_eq!(slots("8", job(json!({}))), (6, None), "three times in each of two");
    assert_eq!(slots("8", job(json!({"preemptionPolicy": "Never"}))), (0, Some("CannotPreempt")), "f9");
    assert_eq!(slots("8", job(json!({"priority": -10}))), (0, Some("CannotPreempt")));
    assert_eq!(slots("8", job(json!({"nodeSelector": {"disk": "ssd"}}))), (0, Some("PlaceholdersOnOtherNodes")));
}

/// F12: after two hours away, those that waited too long go one at a time, and the others only into room.
#[test]
fn f12_nothing_stampedes_after_a_long_outage() {
    let wait = |on_max_wait: &str| {
        let mut spec = gated();
        (spec["gate"]["maxWaitSeconds"], spec["gate"]["onMaxWait"]) = (json!(3600), json!(on_max_wait));
        let mut bench = Bench::new(spec);
        (0..40).for_each(|_| bench.cluster.run(&Step::WaitingPod, &mut None));
        bench.cluster.now = bench.cluster.now.saturating_add(SignedDuration::from_secs(7200)).unwrap();
        bench.decide(|decision| (decision.let_go.len(), usize::from(decision.gave_up.is_some()), decision.failed.len()))
    };
    assert_eq!(wait("Release"), (2, 1, 0));
    assert_eq!(wait("Fail"), (2, 0, 38));
}

#[test]
fn a_pod_with_other_gates_takes_no_room() {
    let mut bench = Bench::new(gated());
    (0..2).for_each(|_| bench.cluster.run(&Step::WaitingPod, &mut None));
    let mut waiting: Vec<&mut Pod> = bench.cluster.pods.iter_mut().filter(|pod| pod.has_our_gate).collect();
    waiting[0].has_other_gates = true;
    let second = waiting[1].uid.clone();
    assert_eq!(bench.decide(|decision| decision.let_go.iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>()), [second]);
    assert_eq!(bench.decide(|decision| decision.holders.len()), 1);
}

#[test]
fn a_placeholder_that_two_pools_mark_is_counted_once() {
    let mut bench = Bench::new(json!({}));
    bench.cluster.pods[0].placeholder_of = vec!["another".into(), "general".into()];
    assert_eq!(bench.decide(|decision| (decision.ledger.free, decision.ledger.counted_by.clone())), (1, ["another".to_owned()].into()));
}

#[test]
fn a_claim_ends_with_its_pod() {
    let mut bench = Bench::new(json!({}));
    bench.cluster.add_claim();
    bench.cluster.lead(&bench.cluster.see(), false);
    bench.cluster.take_jobs();
    let ending = |bench: &Bench| bench.decide(|decision| decision.ended.first().map(|(_, ending)| *ending));
    assert_eq!((ending(&bench), bench.free()), (None, 1), "its pod is there, and has no node yet");
    let job = bench.cluster.pods.len() - 1;
    bench.cluster.pods[job].has_ended = true;
    assert_eq!((ending(&bench), bench.free()), (Some(Ending::PlacementFailed), 2));
    (bench.cluster.pods[job].has_ended, bench.cluster.pods[job].node) = (false, Some("node-1".into()));
    assert_eq!(ending(&bench), Some(Ending::PodPlaced));
    (bench.cluster.pods[job].claim, bench.cluster.pods[job].job) = (None, Some("4711".into()));
    assert_eq!(ending(&bench), None);
    bench.cluster.runners[0].claim.job = Some("4711".into());
    assert_eq!(ending(&bench), Some(Ending::PodPlaced), "a proxy names the job, not the claim");
}
