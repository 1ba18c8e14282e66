//! Whether what must go on does: the poller of each policy shows a sign of life with every poll. One that has stopped for good would
//! leave costs as they were, for ever and in silence; a fresh process is better.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::policies::PolicyKey;

/// A poller may miss this many of its periods,
const PERIODS: u32 = 3;
/// and be silent for this long in any case: a slow backend is no reason to start again.
const LEAST: Duration = Duration::from_secs(120);

/// The last sign of each poller, and when the next one is due at the latest.
#[derive(Default)]
pub struct Progress(Mutex<HashMap<PolicyKey, Instant>>);

impl Progress {
    /// A sign of life of a policy's poller, which polls this often.
    pub fn show(&self, policy: &PolicyKey, period: Duration) {
        self.show_busy(policy, period, Duration::ZERO);
    }

    /// The same, where what it does now may take so long by itself.
    pub fn show_busy(&self, policy: &PolicyKey, period: Duration, busy: Duration) {
        self.due().insert(policy.clone(), Instant::now() + (period * PERIODS).max(LEAST) + busy);
    }

    pub fn forget_policy(&self, policy: &PolicyKey) {
        self.due().remove(policy);
    }

    /// A policy whose poller has stopped.
    pub fn stopped(&self) -> Option<PolicyKey> {
        let now = Instant::now();
        self.due().iter().find(|(_, due)| **due < now).map(|(policy, _)| policy.clone())
    }

    fn due(&self) -> MutexGuard<'_, HashMap<PolicyKey, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DC-35: red after three periods, and after two minutes at the earliest.
    #[tokio::test(start_paused = true)]
    async fn dc_35_a_poller_that_has_stopped_is_found() {
        let progress = Progress::default();
        let key = |name: &str| PolicyKey { namespace: "shop".into(), name: name.into() };
        progress.show(&key("quick"), Duration::from_secs(1));
        progress.show(&key("slow"), Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(119)).await;
        assert_eq!(progress.stopped(), None);
        progress.show(&key("quick"), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(62)).await;
        assert_eq!(progress.stopped(), Some(key("slow")));
        progress.forget_policy(&key("slow"));
        progress.show_busy(&key("waiting"), Duration::from_secs(15), Duration::from_secs(315));
        progress.forget_policy(&key("quick"));
        tokio::time::advance(Duration::from_secs(430)).await;
        assert_eq!(progress.stopped(), None, "a slow backend is no reason to start again");
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(progress.stopped(), Some(key("waiting")));
        progress.forget_policy(&key("waiting"));
        assert_eq!(progress.stopped(), None, "a policy that is gone owes nothing");
    }
}
