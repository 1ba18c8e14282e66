//! What a poll showed of a policy's pods, counted: for its status, for metrics and for the log.

use k8s_openapi::jiff::Timestamp;

use super::readings::{Reading, Readings};
use super::score::{Basis, Score};
use super::{GovernedPod, Stored};
use crate::api::CostPolicy;

/// Names of pods that a message gives as examples.
const EXAMPLES: usize = 3;

/// Counts of the active pods of one policy.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Census {
    /// Ready, with measured work.
    pub busy: u32,
    /// With measured work, but not Ready: Kubernetes removes them before every Ready pod, whatever their cost.
    pub outranked: Group,
    /// Measured to do nothing.
    pub idle: u32,
    pub new: u32,
    pub not_ready: u32,
    pub no_metrics: u32,
    /// Costs that rest on a last known value older than `maxAgeSeconds`.
    pub stale: u32,
    /// Costs that somebody else wrote.
    pub foreign: Group,
    /// Texts in the place of a cost that are none.
    pub malformed: Group,
    /// Pods with less time to stop than a unit of work may take.
    pub short_grace: Group,
    /// The age of the oldest sample that a cost rests on, in seconds.
    pub oldest_sample_seconds: Option<u32>,
}

/// Some pods.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Group {
    pub count: u32,
    /// The first few names, in their order.
    pub examples: Vec<String>,
}

impl Group {
    fn add(&mut self, pod: &GovernedPod) {
        self.count += 1;
        let place = self.examples.partition_point(|name| *name < pod.name);
        if place < EXAMPLES {
            self.examples.insert(place, pod.name.clone());
            self.examples.truncate(EXAMPLES);
        }
    }

    /// Such as `3 pods (a, b, c)`, or `9 pods (a, b, c, …)`.
    pub fn in_words(&self) -> String {
        let more = if self.count as usize > self.examples.len() { ", …" } else { "" };
        let noun = if self.count == 1 { "pod" } else { "pods" };
        format!("{} {noun} ({}{more})", self.count, self.examples.join(", "))
    }
}

impl Census {
    /// Counts pods with their scores.
    pub fn count(policy: &CostPolicy, pods: &[impl AsRef<GovernedPod>], scores: &[Score], readings: &Readings, now: Timestamp) -> Self {
        let mut census = Self::default();
        let work_seconds = policy.work_seconds().unwrap_or(0);
        for (pod, score) in pods.iter().map(AsRef::as_ref).zip(scores).filter(|(pod, _)| pod.is_active()) {
            match score.basis {
                Basis::Work if pod.ready_since.is_some() => census.busy += 1,
                Basis::Work => census.outranked.add(pod),
                Basis::Idle => census.idle += 1,
                Basis::New => census.new += 1,
                Basis::NotReady => census.not_ready += 1,
                Basis::NoMetrics | Basis::Written => census.no_metrics += 1,
                Basis::Terminating => {}
            }
            census.stale += u32::from(score.stale);
            match pod.stored {
                Stored::Foreign(_) => census.foreign.add(pod),
                Stored::Malformed => census.malformed.add(pod),
                Stored::Unset | Stored::Ours(_) => {}
            }
            if pod.grace_seconds < work_seconds {
                census.short_grace.add(pod);
            }
            let age = |reading| match reading {
                Reading::Current(sample) | Reading::LastKnown(sample) => {
                    Some(u32::try_from(now.duration_since(sample.time).as_secs()).unwrap_or(0))
                }
                Reading::Nothing => None,
            };
            let oldest = readings.of_pod(policy, &pod.uid, now).filter_map(age).max();
            census.oldest_sample_seconds = census.oldest_sample_seconds.max(oldest);
        }
        census
    }

    /// New, not Ready without work, or not measured.
    pub fn unknown(&self) -> u32 {
        self.new + self.not_ready + self.no_metrics
    }

    pub fn pods(&self) -> u32 {
        self.busy + self.outranked.count + self.idle + self.unknown()
    }

    /// The counts by state, for metrics.
    pub fn states(&self) -> [(&'static str, u32); 6] {
        [
            ("busy", self.busy),
            ("busy_not_ready", self.outranked.count),
            ("idle", self.idle),
            ("new", self.new),
            ("not_ready", self.not_ready),
            ("no_metrics", self.no_metrics),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::DeletionCostPolicy;
    use crate::cost::pod::tests::pod;
    use crate::cost::readings::Sample;
    use crate::cost::score::score;

    #[test]
    fn counts_each_pod_once_and_names_a_few() {
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"workSeconds": 60,
            "selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1000}]}}))
        .unwrap();
        let (policy, now) = (CostPolicy::compile(&policy), Timestamp::from_second(1_000_000).unwrap());
        let unready = GovernedPod { ready_since: None, ..pod("outranked") };
        let foreign = |name: &str| GovernedPod { stored: Stored::Foreign(7), grace_seconds: 600, ..pod(name) };
        let gone = GovernedPod { terminating: true, ..pod("gone") };
        let pods = [pod("busy"), pod("idle"), unready, foreign("d"), foreign("c"), foreign("b"), foreign("a"), gone];
        let sample = |value, age| Some(Sample { value, time: now - k8s_openapi::jiff::SignedDuration::from_secs(age) });
        let samples = [sample(5.0, 1), sample(0.0, 2), sample(9.0, 70), None, None, None, None, sample(9.0, 500)];
        let mut readings = Readings::default();
        readings.take_in(&policy, &[Some(&samples[..])], &pods, now);
        let census = Census::count(&policy, &pods, &score(&policy, &pods, &readings, &Default::default(), now), &readings, now);
        assert_eq!((census.busy, census.idle, census.no_metrics, census.stale), (1, 1, 4, 1));
        assert_eq!((census.pods(), census.unknown(), census.oldest_sample_seconds), (7, 4, Some(70)));
        // DC-10: what is at work but not Ready is not protected.
        assert_eq!(census.outranked.in_words(), "1 pod (outranked)");
        assert_eq!(census.foreign.in_words(), "4 pods (a, b, c, …)");
        assert_eq!(census.short_grace.count, 3);
        assert_eq!(census.states().iter().map(|(_, count)| count).sum::<u32>(), census.pods());
    }
}
