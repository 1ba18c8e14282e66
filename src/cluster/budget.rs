//! How many costs may be written: a bucket for the whole cluster, and one for each policy. A scale-down takes from both, and so
//! does everything that we write on our own account.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::api::policies::PolicyKey;

/// A bucket's size: what may be written at once, and how fast it fills again.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    pub per_second: f64,
    pub burst: f64,
}

/// `writes` of the server configuration.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// All policies together.
    pub cluster: Rate,
    /// Each policy.
    pub policy: Rate,
}

impl Default for Limits {
    /// A scale-down of a thousand pods needs at most as many writes at once; a small API server takes some 300 a second.
    fn default() -> Self {
        Self { cluster: Rate { per_second: 100.0, burst: 2000.0 }, policy: Rate { per_second: 50.0, burst: 1000.0 } }
    }
}

impl Limits {
    /// What is wrong with the numbers, if anything.
    pub fn problem(&self) -> Option<String> {
        let named = [("cluster", self.cluster), ("policy", self.policy)];
        let fields = named.iter().flat_map(|(name, rate)| [(name, "perSecond", rate.per_second), (name, "burst", rate.burst)]);
        fields
            .into_iter()
            .find(|(.., value)| !(*value >= 1.0 && *value <= 1e6))
            .map(|(name, field, value)| format!("writes.{name}.{field}: found {value}, wanted 1 to 1000000"))
    }
}

/// Tokens, which may be owed: who comes later waits longer, in the order of coming.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, tokens: rate.burst, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + seconds * self.rate.per_second).min(self.rate.burst);
        self.at = now.max(self.at);
    }

    /// How long until there is a token for who comes now.
    fn wait(&self) -> Duration {
        Duration::from_secs_f64(((1.0 - self.tokens) / self.rate.per_second).max(0.0))
    }
}

pub struct Budget {
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    cluster: Bucket,
    policies: HashMap<PolicyKey, Bucket>,
}

impl Budget {
    pub fn new(limits: Limits) -> Self {
        let cluster = Bucket::full(limits.cluster, Instant::now());
        Self { limits, state: Mutex::new(State { cluster, policies: HashMap::new() }) }
    }

    /// When a write for this policy may begin; `None`, with nothing taken, where that would be after the deadline.
    pub fn reserve(&self, policy: &PolicyKey, deadline: Instant) -> Option<Instant> {
        self.take(policy, |now, buckets| {
            let wait = buckets.map(|bucket| bucket.wait()).into_iter().max().unwrap_or_default();
            Some(now + wait).filter(|begin| *begin <= deadline)
        })
    }

    /// Whether there is a token to spare right now, for a write that can as well be made later: half of each bucket is left to
    /// scale-downs.
    pub fn try_take_spare(&self, policy: &PolicyKey) -> bool {
        let has_spare = |bucket: &Bucket| bucket.tokens >= (bucket.rate.burst / 2.0).max(1.0);
        self.take(policy, |_, buckets| buckets.into_iter().all(has_spare).then_some(())).is_some()
    }

    /// Takes a token from the bucket of the cluster and from that of the policy, if it is granted.
    fn take<T>(&self, policy: &PolicyKey, grant: impl FnOnce(Instant, [&Bucket; 2]) -> Option<T>) -> Option<T> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { cluster, policies } = &mut *state;
        let own = policies.entry(policy.clone()).or_insert_with(|| Bucket::full(self.limits.policy, now));
        cluster.refill(now);
        own.refill(now);
        let granted = grant(now, [cluster, own])?;
        cluster.tokens -= 1.0;
        own.tokens -= 1.0;
        Some(granted)
    }

    pub fn forget_policy(&self, policy: &PolicyKey) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).policies.remove(policy);
    }

    /// Tokens in the bucket of the cluster; below zero are those that are owed.
    pub fn tokens(&self) -> f64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cluster.refill(Instant::now());
        state.cluster.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> PolicyKey {
        PolicyKey { namespace: "shop".into(), name: name.into() }
    }

    fn budget(cluster: (f64, f64), policy: (f64, f64)) -> Budget {
        let rate = |(per_second, burst)| Rate { per_second, burst };
        Budget::new(Limits { cluster: rate(cluster), policy: rate(policy) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_in_its_turn() {
        let budget = budget((10.0, 3.0), (100.0, 100.0));
        let (now, far) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let waits: Vec<u128> = (0..6).map(|_| (budget.reserve(&key("a"), far).unwrap() - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(budget.reserve(&key("a"), far), Some(Instant::now()), "it has filled again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_would_come_too_late_takes_nothing() {
        let budget = budget((10.0, 1.0), (100.0, 100.0));
        let soon = Instant::now() + Duration::from_millis(150);
        assert!(budget.reserve(&key("a"), soon).is_some() && budget.reserve(&key("a"), soon).is_some());
        assert!((0..100).all(|_| budget.reserve(&key("a"), soon).is_none()));
        assert_eq!(budget.tokens().round(), -1.0, "the hundred that were refused owe nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn one_policy_does_not_use_up_what_is_anothers() {
        let budget = budget((1000.0, 1000.0), (1.0, 2.0));
        let soon = Instant::now() + Duration::from_millis(10);
        let taken = (0..10).filter(|_| budget.reserve(&key("greedy"), soon).is_some()).count();
        assert_eq!((taken, budget.reserve(&key("other"), soon).is_some()), (2, true));
    }

    #[tokio::test]
    async fn what_is_in_no_hurry_leaves_half_to_scale_downs() {
        let budget = budget((1.0, 10.0), (1.0, 1000.0));
        assert_eq!((0..100).filter(|_| budget.try_take_spare(&key("a"))).count(), 6, "down to the half, and one");
        let soon = Instant::now() + Duration::from_millis(1);
        assert!((0..4).all(|_| budget.reserve(&key("b"), soon).is_some()));
    }

    #[test]
    fn numbers_that_would_stop_everything_are_refused() {
        let limits = |rate| Limits { cluster: rate, ..Limits::default() };
        assert_eq!(Limits::default().problem(), None);
        for rate in
            [Rate { per_second: 0.0, burst: 10.0 }, Rate { per_second: f64::NAN, burst: 10.0 }, Rate { per_second: 5.0, burst: 0.5 }]
        {
            assert!(limits(rate).problem().unwrap().starts_with("writes.cluster."));
        }
    }
}
