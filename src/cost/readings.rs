//! The last known sample of each signal for each pod.

use std::collections::HashMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::deletion_cost_policy::{DeletionCostPolicySpec, Missing};

/// A signal's value for one pod, with the time it was taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Not negative and not NaN; may be infinite, which counts as the cap.
    pub value: f64,
    pub time: Timestamp,
}

/// What is known of one signal for one pod, now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reading {
    /// Not older than `maxAgeSeconds`.
    Current(Sample),
    /// The last known value, not older than `keepLastSeconds`.
    LastKnown(Sample),
    Nothing,
}

/// Samples by signal and pod UID. One per policy.
#[derive(Debug, Default)]
pub struct Readings {
    by_signal: Vec<HashMap<String, Sample>>,
}

impl Readings {
    /// Takes in the answer to one signal's query. A pod for which the answer has nothing keeps its last known value, or has
    /// zero where the signal says so. `pods` are the UIDs that the policy governs.
    pub fn take_in<'a>(
        &mut self,
        spec: &DeletionCostPolicySpec,
        signal: usize,
        answer: HashMap<String, Sample>,
        pods: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) {
        self.by_signal.resize_with(spec.signals.len(), HashMap::new);
        if spec.signals[signal].missing == Missing::Zero {
            for uid in pods.filter(|uid| !answer.contains_key(*uid)) {
                self.by_signal[signal].insert(uid.into(), Sample { value: 0.0, time: now });
            }
        }
        for (uid, mut sample) in answer {
            // A clock that is ahead must not make a value look newer than the ones to come.
            sample.time = sample.time.min(now);
            // A backend behind a load balancer may answer with an older sample than it did before.
            let known = self.by_signal[signal].entry(uid).or_insert(sample);
            if sample.time >= known.time {
                *known = sample;
            }
        }
    }

    /// Forgets pods that are gone and samples that nothing may use any more.
    pub fn prune(&mut self, spec: &DeletionCostPolicySpec, now: Timestamp, exists: impl Fn(&str) -> bool) {
        let oldest = now - SignedDuration::from_secs(spec.samples.keep_last_seconds.into());
        for samples in &mut self.by_signal {
            samples.retain(|uid, sample| sample.time >= oldest && exists(uid));
        }
    }

    /// One reading per signal of the policy, in its order.
    pub fn of_pod<'a>(&'a self, spec: &'a DeletionCostPolicySpec, uid: &'a str, now: Timestamp) -> impl Iterator<Item = Reading> + 'a {
        (0..spec.signals.len()).map(move |signal| {
            let Some(sample) = self.by_signal.get(signal).and_then(|samples| samples.get(uid)) else { return Reading::Nothing };
            let age = now.duration_since(sample.time).as_secs();
            if age <= spec.samples.max_age_seconds.into() {
                Reading::Current(*sample)
            } else if age <= spec.samples.keep_last_seconds.into() {
                Reading::LastKnown(*sample)
            } else {
                Reading::Nothing
            }
        })
    }
}
