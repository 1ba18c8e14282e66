//! Our own metrics. Labels come from closed lists: no names of objects or users.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::api::policies::PolicyKey;
use crate::cost::census::Census;
use crate::headroom::room::Ledger;
use crate::signals::matching::Matched;

/// From a tenth of a millisecond to the longest time-out that a scale-down hook can have.
const REVIEW_BUCKETS: [f64; 11] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];
/// Costs are 0 to `maxCost`, which is 1000 by default.
const COST_BUCKETS: [f64; 10] = [0.0, 20.0, 50.0, 100.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 10_000.0];
/// From a second to the half hour that a node may take to boot.
const REFILL_BUCKETS: [f64; 9] = [1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
const POLL_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

/// Two labels whose names are fixed and whose values come from closed lists, or from the server configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pair<const A: usize>(String, &'static str);

/// The label names of a [`Pair`], by its index.
const NAMES: [[&str; 2]; 7] = [
    ["hook", "outcome"],
    ["backend", "result"],
    ["door", "outcome"],
    ["backend", "outcome"],
    ["door", "verdict"],
    ["pool", "state"],
    ["pool", "outcome"],
];

impl<const A: usize> EncodeLabelSet for Pair<A> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
        [(NAMES[A][0], self.0.as_str()), (NAMES[A][1], self.1)].encode(encoder)
    }
}

type One = [(&'static str, &'static str); 1];

/// Handles of all metrics.
pub struct Metrics {
    registry: Registry,
    reviews: Family<Pair<0>, Counter>,
    review_seconds: Family<One, Histogram>,
    polls: Family<Pair<1>, Counter>,
    poll_seconds: Histogram,
    samples: Family<Pair<3>, Counter>,
    costs: Histogram,
    pods: Family<One, Gauge>,
    stale_costs: Gauge,
    oldest_sample: Gauge,
    /// The last census of each policy; the gauges above are their sums.
    censuses: Mutex<HashMap<PolicyKey, Census>>,
    scale_downs: Family<Pair<2>, Counter>,
    pod_writes: Family<One, Counter>,
    own_writes: Family<One, Counter>,
    floor_writes: Family<One, Counter>,
    resynced: Counter,
    fresh_polls: Family<One, Counter>,
    observed: Family<Pair<4>, Counter>,
    victims: Family<Pair<2>, Counter>,
    governed_pods: Gauge,
    cached_costs: Gauge,
    certificate_expiry: Gauge<f64, AtomicU64>,
    slots: Family<Pair<5>, Gauge>,
    placeholders: Family<Pair<5>, Gauge>,
    oldest_pending: Family<OfPool, Gauge>,
    refill_seconds: Family<OfPool, Histogram>,
    claims: Family<Pair<6>, Counter>,
    wave_pods: Family<One, Gauge>,
    wave_needed: Gauge,
    gated_pods: Family<Pair<6>, Counter>,
    /// Pools of which there are gauges.
    pools: Mutex<HashSet<String>>,
}

/// The label `pool`: pools are as few as the operator has written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    pool: String,
}

/// The states of a pool's slots, and of its placeholders.
const SLOTS: [&str; 3] = ["bound", "in_flight", "free"];
const PLACEHOLDERS: [&str; 5] = ["desired", "bound", "pending", "on_spot", "violating"];

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("pecking_order");
        let metrics = Self {
            reviews: Family::default(),
            review_seconds: Family::new_with_constructor(|| Histogram::new(REVIEW_BUCKETS)),
            polls: Family::default(),
            poll_seconds: Histogram::new(POLL_BUCKETS),
            samples: Family::default(),
            costs: Histogram::new(COST_BUCKETS),
            pods: Family::default(),
            stale_costs: Gauge::default(),
            oldest_sample: Gauge::default(),
            censuses: Mutex::default(),
            scale_downs: Family::default(),
            pod_writes: Family::default(),
            own_writes: Family::default(),
            floor_writes: Family::default(),
            resynced: Counter::default(),
            fresh_polls: Family::default(),
            observed: Family::default(),
            victims: Family::default(),
            governed_pods: Gauge::default(),
            cached_costs: Gauge::default(),
            certificate_expiry: Gauge::default(),
            slots: Family::default(),
            placeholders: Family::default(),
            oldest_pending: Family::default(),
            refill_seconds: Family::new_with_constructor(|| Histogram::new(REFILL_BUCKETS)),
            claims: Family::default(),
            wave_pods: Family::default(),
            wave_needed: Gauge::default(),
            gated_pods: Family::default(),
            pools: Mutex::default(),
            registry: Registry::default(),
        };
        registry.register("build", "The version of the binary", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("admission_reviews", "Reviews answered, by hook and outcome", metrics.reviews.clone());
        registry.register("admission_review_duration_seconds", "Time from the whole body to the answer", metrics.review_seconds.clone());
        registry.register("polls", "Queries to a backend, by backend and result", metrics.polls.clone());
        registry.register(
            "poll_duration_seconds",
            "Time of one poll of one policy: all its queries and the scoring",
            metrics.poll_seconds.clone(),
        );
        registry.register("samples", "Rows of backends' answers, by backend and what became of them", metrics.samples.clone());
        registry.register("pod_cost", "Costs of pods, as each poll computes them", metrics.costs.clone());
        registry.register("pods", "Governed pods by state, as of the last polls", metrics.pods.clone());
        registry.register("stale_costs", "Costs that rest on values older than maxAgeSeconds", metrics.stale_costs.clone());
        registry.register("oldest_sample_age_seconds", "Age of the oldest sample that a cost rests on", metrics.oldest_sample.clone());
        registry.register("scale_downs", "Scale-downs, by door and outcome", metrics.scale_downs.clone());
        registry.register("pod_writes", "Costs written to pods of our own accord, by result", metrics.pod_writes.clone());
        registry.register("own_account_writes", "Costs refreshed, or taken away with their policy, by result", metrics.own_writes.clone());
        registry.register("floor_writes", "Minimums of autoscalers written, by result", metrics.floor_writes.clone());
        registry.register("resynced_pods", "Pods of which a watch had lost an event", metrics.resynced.clone());
        registry.register("fresh_polls", "Polls out of turn that scale-downs asked for, by result", metrics.fresh_polls.clone());
        registry.register("scale_downs_observed", "Scale-downs by what they came to, by door and verdict", metrics.observed.clone());
        registry.register("victims", "Pods removed in scale-downs, by door and outcome", metrics.victims.clone());
        registry.register("governed_pods", "Pods that a policy governs", metrics.governed_pods.clone());
        registry.register("cached_costs", "Costs in the cache", metrics.cached_costs.clone());
        registry.register("certificate_expiry_timestamp_seconds", "When the serving certificate ends", metrics.certificate_expiry.clone());
        registry.register("headroom_slots", "Slots of a pool's placeholders, by state", metrics.slots.clone());
        registry.register("headroom_placeholders", "Placeholders of a pool, by state", metrics.placeholders.clone());
        registry.register(
            "headroom_oldest_pending_seconds",
            "Age of the oldest placeholder without a node",
            metrics.oldest_pending.clone(),
        );
        registry.register(
            "headroom_refill_duration_seconds",
            "Time from the creation of a placeholder until it has a node",
            metrics.refill_seconds.clone(),
        );
        registry.register("headroom_claims", "Claims, by what became of them", metrics.claims.clone());
        registry.register(
            "headroom_wave_pods",
            "Pods of the worst spot reclaim, by whether they would find room",
            metrics.wave_pods.clone(),
        );
        registry.register("headroom_wave_placeholders_needed", "Further placeholders that would make it fit", metrics.wave_needed.clone());
        registry.register("headroom_gated_pods", "Pods that waited for room, by what became of them", metrics.gated_pods.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    pub fn reviews(&self, hook: &'static str, outcome: &'static str, took: Duration) {
        self.reviews.get_or_create(&Pair(hook.into(), outcome)).inc();
        self.review_seconds.get_or_create(&[("hook", hook)]).observe(took.as_secs_f64());
    }

    pub fn polls(&self, backend: &str, result: &'static str) {
        self.polls.get_or_create(&Pair(backend.into(), result)).inc();
    }

    /// One poll of one policy.
    pub fn poll(&self, policy: &PolicyKey, took: Duration, census: &Census) {
        self.poll_seconds.observe(took.as_secs_f64());
        self.censuses().insert(policy.clone(), census.clone());
    }

    pub fn forget_policy(&self, policy: &PolicyKey) {
        self.censuses().remove(policy);
    }

    fn censuses(&self) -> std::sync::MutexGuard<'_, HashMap<PolicyKey, Census>> {
        self.censuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of the rows of one answer.
    pub fn samples(&self, backend: &str, matched: &Matched) {
        let current = matched.used().saturating_sub(matched.too_old);
        for (outcome, count) in [
            ("used", current),
            ("too_old", matched.too_old),
            ("not_a_number", matched.not_a_number),
            ("negative", matched.negative),
            ("duplicate", matched.duplicates),
            ("other_pods", matched.others),
        ] {
            self.samples.get_or_create(&Pair(backend.into(), outcome)).inc_by(count as u64);
        }
    }

    pub fn cost(&self, cost: i32) {
        self.costs.observe(cost.into());
    }

    pub fn scale_downs(&self, door: &'static str, outcome: &'static str) {
        self.scale_downs.get_or_create(&Pair(door.into(), outcome)).inc();
    }

    pub fn own_writes(&self, result: &'static str) {
        self.own_writes.get_or_create(&[("result", result)]).inc();
    }

    pub fn floor_writes(&self, result: &'static str) {
        self.floor_writes.get_or_create(&[("result", result)]).inc();
    }

    pub fn resynced(&self, pods: usize) {
        self.resynced.inc_by(pods as u64);
    }

    pub fn fresh_polls(&self, result: &'static str) {
        self.fresh_polls.get_or_create(&[("result", result)]).inc();
    }

    /// What a scale-down came to, and how many of its victims were right and wrong.
    pub fn scale_down_outcomes(&self, door: &'static str, verdict: &'static str, right: usize, wrong: usize) {
        self.observed.get_or_create(&Pair(door.into(), verdict)).inc();
        for (outcome, count) in [("right", right), ("wrong", wrong)] {
            self.victims.get_or_create(&Pair(door.into(), outcome)).inc_by(count as u64);
        }
    }

    pub fn pod_writes(&self, result: &'static str) {
        self.pod_writes.get_or_create(&[("result", result)]).inc();
    }

    /// How much room a pool has.
    pub fn room(&self, pool: &str, ledger: &Ledger, now: Timestamp) {
        self.pools().insert(pool.to_owned());
        let set = |family: &Family<Pair<5>, Gauge>, state, value: u32| {
            family.get_or_create(&Pair(pool.into(), state)).set(value.into());
        };
        SLOTS.into_iter().zip([ledger.bound, ledger.in_flight, ledger.free]).for_each(|(state, value)| set(&self.slots, state, value));
        let placeholders = [ledger.desired, ledger.healthy, ledger.pending, ledger.on_spot];
        PLACEHOLDERS.into_iter().zip(placeholders).for_each(|(state, value)| set(&self.placeholders, state, value));
        let age = ledger.oldest_pending.map_or(0, |since| now.duration_since(since).as_secs().max(0));
        self.oldest_pending.get_or_create(&OfPool { pool: pool.into() }).set(age);
    }

    /// Placeholders of a pool that break a rule.
    pub fn violations(&self, pool: &str, count: u32) {
        self.placeholders.get_or_create(&Pair(pool.into(), "violating")).set(count.into());
    }

    /// Forgets pools that are gone.
    pub fn retain_rooms(&self, is_there: impl Fn(&str) -> bool) {
        self.pools().retain(|pool| {
            let stays = is_there(pool);
            if !stays {
                SLOTS.into_iter().for_each(|state| {
                    self.slots.remove(&Pair(pool.clone(), state));
                });
                PLACEHOLDERS.into_iter().for_each(|state| {
                    self.placeholders.remove(&Pair(pool.clone(), state));
                });
                self.oldest_pending.remove(&OfPool { pool: pool.clone() });
            }
            stays
        });
    }

    fn pools(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A placeholder has got a node, so long after it was made.
    pub fn refill(&self, pool: &str, took: Duration) {
        self.refill_seconds.get_or_create(&OfPool { pool: pool.into() }).observe(took.as_secs_f64());
    }

    pub fn claims(&self, pool: &str, outcome: &'static str) {
        self.claims.get_or_create(&Pair(pool.into(), outcome)).inc();
    }

    /// What the worst spot reclaim comes to.
    pub fn wave(&self, fit: usize, left: usize, needed: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.wave_pods.get_or_create(&[("state", "fit")]).set(number(fit));
        self.wave_pods.get_or_create(&[("state", "do_not_fit")]).set(number(left));
        self.wave_needed.set(number(needed));
    }

    /// This replica does not know, or not any more.
    pub fn no_wave(&self) {
        self.wave_pods.clear();
        self.wave_needed.set(0);
    }

    pub fn gate(&self, pool: &str, outcome: &'static str) {
        self.gated_pods.get_or_create(&Pair(pool.into(), outcome)).inc();
    }

    pub fn certificate_expiry(&self, unix_seconds: i64) {
        self.certificate_expiry.set(unix_seconds as f64);
    }

    /// All metrics in the OpenMetrics text format.
    pub fn encode(&self, governed_pods: usize, cached_costs: u64) -> String {
        self.governed_pods.set(i64::try_from(governed_pods).unwrap_or(i64::MAX));
        self.cached_costs.set(i64::try_from(cached_costs).unwrap_or(i64::MAX));
        let mut sums: HashMap<&'static str, i64> = Census::default().states().map(|(state, _)| (state, 0)).into();
        let (mut stale, mut oldest) = (0, 0);
        for census in self.censuses().values() {
            census.states().into_iter().for_each(|(state, count)| *sums.entry(state).or_default() += i64::from(count));
            stale += i64::from(census.stale);
            oldest = oldest.max(i64::from(census.oldest_sample_seconds.unwrap_or(0)));
        }
        for (state, sum) in sums {
            self.pods.get_or_create(&[("state", state)]).set(sum);
        }
        self.stale_costs.set(stale);
        self.oldest_sample.set(oldest);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String does not fail");
        text
    }
}
