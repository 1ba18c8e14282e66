//! A claim, and how it ends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Pod;

/// A sign of life that lies further ahead of our clock than this is none.
const SKEW: SignedDuration = SignedDuration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub pool: String,
    pub ttl: SignedDuration,
    pub created: Timestamp,
    pub renewed: Option<Timestamp>,
    pub job: Option<String>,
    pub is_leaving: bool,
    /// As they stand on the object.
    pub conditions: Vec<Condition>,
}

/// A claim's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimName {
    namespace: String,
    name: String,
}

impl ClaimName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// Why a claim has ended; the reason of its condition `Released`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The job's pod has a node.
    PodPlaced,
    /// The claim is being deleted.
    Deleted,
    /// No sign of its holder for as long as it may be silent.
    Expired,
    /// The job's pod has ended, or has gone, before it had a node.
    PlacementFailed,
}

impl Ending {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodPlaced => "PodPlaced",
            Self::Deleted => "Deleted",
            Self::Expired => "Expired",
            Self::PlacementFailed => "PlacementFailed",
        }
    }
}

impl Claim {
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    pub fn is_released(&self) -> bool {
        self.condition("Released").is_some_and(|condition| condition.status == "True")
    }

    pub fn is_bound(&self) -> bool {
        self.condition("Bound").is_some_and(|condition| condition.status == "True")
    }

    /// Whether it may have a slot, or may get one.
    pub fn is_live(&self) -> bool {
        !self.is_leaving && !self.is_released()
    }

    /// Whether a pod is the job's that this claim is for.
    pub fn is_of(&self, pod: &Pod) -> bool {
        pod.namespace == self.namespace && (pod.claim.as_ref() == Some(&self.name) || (self.job.is_some() && pod.job == self.job))
    }

    pub fn expires(&self, now: Timestamp) -> Timestamp {
        let sign = self.renewed.filter(|renewed| *renewed <= now.saturating_add(SKEW).unwrap_or(now)).unwrap_or(self.created);
        sign.max(self.created).saturating_add(self.ttl).unwrap_or(Timestamp::MAX)
    }

    /// How a claim that still stands has ended, by its own pods.
    pub fn ending(&self, its_own: &[&Pod], now: Timestamp) -> Option<Ending> {
        if self.is_released() {
            return None;
        }
        if its_own.iter().any(|pod| pod.node.is_some()) {
            return Some(Ending::PodPlaced);
        }
        if self.is_leaving {
            return Some(Ending::Deleted);
        }
        if !its_own.is_empty() && its_own.iter().all(|pod| !pod.is_alive()) {
            return Some(Ending::PlacementFailed);
        }
        (self.expires(now) <= now).then_some(Ending::Expired)
    }
}
