//! The costs that the webhook looks up: by pod UID, bounded in number and in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use moka::Expiry;
use moka::sync::Cache;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Stored;
use super::score::Basis;
use crate::api::CostPolicy;
use crate::api::policies::PolicyKey;

/// The most costs that are kept. Kubernetes is tested to 150,000 pods per cluster, so a full cluster fits; beyond it the
/// least used ones go, and their pods count as pods of which nothing is known.
pub const CAPACITY: u64 = 150_000;

/// A pod's current cost.
#[derive(Debug, Clone)]
pub struct Cost {
    pub value: i32,
    pub basis: Basis,
    pub stale: bool,
    /// It yields to the measured work of another pod, so it says more than that nothing is known.
    pub yields: bool,
    /// When the oldest sample that it rests on was taken; none where it rests on no sample.
    pub sampled: Option<Timestamp>,
    /// The policy as it was when the cost was computed. Whether it may be written is up to the one in force.
    pub policy: Arc<CostPolicy>,
}

impl Cost {
    /// A cost that rests on no sample.
    pub fn unmeasured(value: i32, basis: Basis, policy: Arc<CostPolicy>) -> Self {
        Self { value, basis, stale: false, yields: false, sampled: None, policy }
    }

    /// Whether it rests on a sample that is older by now than the policy allows to be current.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        let max_age = SignedDuration::from_secs(self.policy.spec.samples.max_age_seconds.into());
        self.stale || self.sampled.is_some_and(|sampled| now.duration_since(sampled) > max_age)
    }

    /// The value that should stand on a pod where `stored` does, if it may be written there. What is unknown replaces
    /// nothing that was known.
    pub fn replaces(&self, stored: Stored, in_force: &CostPolicy) -> Option<i32> {
        let nothing_new = match stored {
            Stored::Ours(value) => self.basis == Basis::NoMetrics && !(self.yields && self.value < value),
            _ => false,
        };
        (!nothing_new && stored.is_ours_to_write(in_force.spec.foreign_values)).then_some(self.value)
    }
}

/// The least measured work of each ReplicaSet, by its UID.
type LeastWork = Arc<HashMap<String, i32>>;

/// Costs by pod UID, and what a pod that is being created would get.
#[derive(Clone)]
pub struct CostCache {
    costs: Cache<Arc<str>, Cost>,
    /// One immutable map per policy.
    least_work: Arc<ArcSwap<HashMap<PolicyKey, LeastWork>>>,
}

impl Default for CostCache {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl CostCache {
    pub fn with_capacity(capacity: u64) -> Self {
        Self {
            costs: Cache::builder().max_capacity(capacity).expire_after(KeepLast).support_invalidation_closures().build(),
            least_work: Arc::default(),
        }
    }

    pub fn get(&self, uid: &str) -> Option<Cost> {
        self.costs.get(uid)
    }

    pub fn insert(&self, uid: impl Into<Arc<str>>, cost: Cost) {
        self.costs.insert(uid.into(), cost);
    }

    /// Puts a cost in, and gives back the one before it.
    pub fn replace(&self, uid: &Arc<str>, cost: Cost) -> Option<Cost> {
        let before = self.costs.get(&**uid);
        self.costs.insert(uid.clone(), cost);
        before
    }

    /// Forgets a pod that a policy does not select any more, unless another policy has given it its cost.
    pub fn remove(&self, uid: &str, policy: &PolicyKey) {
        if self.costs.get(uid).is_some_and(|cost| cost.policy.key() == policy) {
            self.costs.invalidate(uid);
        }
    }

    pub fn set_least_work(&self, policy: &PolicyKey, least_work: HashMap<String, i32>) {
        let least_work = Arc::new(least_work);
        self.least_work.rcu(|all| {
            let mut all = HashMap::clone(all);
            all.insert(policy.clone(), least_work.clone());
            all
        });
    }

    /// Forgets a policy that is gone. Its pods' costs go with them, or at the end of their time.
    pub fn forget_policy(&self, policy: &PolicyKey) {
        self.least_work.rcu(|all| {
            let mut all = HashMap::clone(all);
            all.remove(policy);
            all
        });
        let gone = policy.clone();
        // Supported because the cache is built for it below; an entry is dropped when it is next looked at.
        let _ = self.costs.invalidate_entries_if(move |_, cost| *cost.policy.key() == gone);
    }

    pub fn least_work(&self, policy: &PolicyKey, owner: &str) -> Option<i32> {
        self.least_work.load().get(policy)?.get(owner).copied()
    }

    /// How many costs are kept, about.
    pub fn len(&self) -> u64 {
        self.costs.entry_count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A cost is kept for as long as the samples that it was made from may be used.
struct KeepLast;

impl KeepLast {
    fn time(cost: &Cost) -> Duration {
        Duration::from_secs(cost.policy.spec.samples.keep_last_seconds.into())
    }
}

impl Expiry<Arc<str>, Cost> for KeepLast {
    fn expire_after_create(&self, _: &Arc<str>, cost: &Cost, _: Instant) -> Option<Duration> {
        Some(Self::time(cost))
    }

    fn expire_after_update(&self, _: &Arc<str>, cost: &Cost, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(Self::time(cost))
    }
}
