//! The last known sample of each signal for each pod, and which answers are believed.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::GovernedPod;
use crate::api::CostPolicy;
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

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Its samples are in use.
    Believed,
    /// It has nothing for any pod, and that means nothing: last known values stay in use.
    Empty,
    /// All zero, right after an outage: not believed until the next poll says so too.
    Doubted,
}

/// What the last poll of a signal came to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// There was none.
    #[default]
    None,
    /// An answer with samples.
    Samples,
    /// An answer without, which was believed to mean zero.
    Zeros,
    Doubted,
    /// No answer, or one that has nothing for any pod.
    Outage,
}

/// Samples by pod UID, one slot for each signal. One per policy.
#[derive(Debug, Default)]
pub struct Readings {
    by_pod: HashMap<Arc<str>, Box<[Slot]>>,
    last: Vec<Last>,
}

/// A sample or none, in as little room as it takes: there are as many as pods times signals.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// NaN where there is none.
    value: f64,
    /// Milliseconds since 1970.
    time: i64,
}

impl Slot {
    const EMPTY: Self = Self { value: f64::NAN, time: i64::MIN };

    fn new(sample: Sample) -> Self {
        Self { value: sample.value, time: sample.time.as_millisecond() }
    }

    fn sample(self) -> Option<Sample> {
        let time = Timestamp::from_millisecond(self.time).ok().filter(|_| !self.value.is_nan())?;
        Some(Sample { value: self.value, time })
    }
}

/// What a query brought: a sample or none for each pod, in their order; or nothing, where there was no answer.
pub type Answer<'a> = Option<&'a [Option<Sample>]>;

impl Readings {
    /// Takes in the answers to all queries of a poll, one for each signal; says what became of each that there was. A pod for
    /// which an answer has nothing keeps its last known value, or has zero where the signal says so.
    pub fn take_in(
        &mut self,
        policy: &CostPolicy,
        answers: &[Answer<'_>],
        pods: &[impl AsRef<GovernedPod>],
        now: Timestamp,
    ) -> Vec<Option<Taken>> {
        self.last.resize(policy.signals.len(), Last::None);
        let taken: Vec<Option<Taken>> =
            answers.iter().enumerate().map(|(signal, answer)| self.judge(policy, signal, *answer, !pods.is_empty())).collect();
        let believed: Vec<(usize, &[Option<Sample>], bool)> = (0..)
            .zip(answers)
            .zip(&taken)
            .filter(|(_, taken)| **taken == Some(Taken::Believed))
            .filter_map(|((signal, answer), _)| Some((signal, (*answer)?, policy.signals[signal].missing == Missing::Zero)))
            .collect();
        for (position, pod) in pods.iter().map(AsRef::as_ref).enumerate() {
            let news = believed.iter().filter_map(|(signal, samples, missing_is_zero)| {
                let sample = samples.get(position).copied().flatten();
                // A clock that is ahead must not make a value look newer than the ones to come.
                let sample = sample.map(|sample| Sample { time: sample.time.min(now), ..sample });
                let zero = missing_is_zero.then_some(Sample { value: 0.0, time: now });
                sample.or(zero).map(|sample| (*signal, Slot::new(sample)))
            });
            let mut news = news.peekable();
            if news.peek().is_none() {
                continue;
            }
            let slots = match self.by_pod.get_mut(&pod.uid) {
                Some(slots) => slots,
                None => self.by_pod.entry(pod.uid.clone()).or_insert_with(|| vec![Slot::EMPTY; policy.signals.len()].into()),
            };
            for (signal, sample) in news {
                // A backend behind a load balancer may answer with an older sample than it did before.
                if sample.time >= slots[signal].time {
                    slots[signal] = sample;
                }
            }
        }
        taken
    }

    /// What an answer is worth, after what came before it.
    fn judge(&mut self, policy: &CostPolicy, signal: usize, answer: Answer<'_>, has_pods: bool) -> Option<Taken> {
        let last = &mut self.last[signal];
        let Some(samples) = answer else {
            *last = Last::Outage;
            return None;
        };
        let is_empty = samples.iter().all(Option::is_none);
        if is_empty && policy.signals[signal].missing != Missing::Zero {
            if has_pods {
                *last = Last::Outage;
            }
            return Some(Taken::Empty);
        }
        // A backend that comes back without its past, or loses an exporter, answers like one whose pods are all idle.
        let is_doubtful = match *last {
            Last::Outage => true,
            Last::Samples => is_empty,
            Last::None | Last::Zeros | Last::Doubted => false,
        };
        if is_doubtful && samples.iter().flatten().all(|sample| sample.value == 0.0) {
            *last = Last::Doubted;
            return Some(Taken::Doubted);
        }
        *last = if is_empty { Last::Zeros } else { Last::Samples };
        Some(Taken::Believed)
    }

    /// Forgets pods that are gone and samples that nothing may use any more.
    pub fn prune(&mut self, spec: &DeletionCostPolicySpec, now: Timestamp, exists: impl Fn(&str) -> bool) {
        let oldest = now.as_millisecond() - i64::from(spec.samples.keep_last_seconds) * 1000;
        self.by_pod.retain(|uid, slots| {
            slots.iter_mut().filter(|slot| slot.time < oldest).for_each(|slot| *slot = Slot::EMPTY);
            slots.iter().any(|slot| slot.time >= oldest) && exists(uid)
        });
    }

    /// One reading per signal of the policy, in its order.
    pub fn of_pod<'a>(&'a self, policy: &'a CostPolicy, uid: &str, now: Timestamp) -> impl Iterator<Item = Reading> + 'a {
        let samples = self.by_pod.get(uid);
        let limits = &policy.spec.samples;
        (0..policy.signals.len()).map(move |signal| {
            let Some(sample) = samples.and_then(|samples| samples[signal].sample()) else { return Reading::Nothing };
            let age = now.duration_since(sample.time).as_secs();
            if age <= limits.max_age_seconds.into() {
                Reading::Current(sample)
            } else if age <= limits.keep_last_seconds.into() {
                Reading::LastKnown(sample)
            } else {
                Reading::Nothing
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::api::DeletionCostPolicy;
    use crate::cost::pod::tests::pod;

    fn policy(missing: &str) -> CostPolicy {
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1000, "missing": missing}]}}))
        .unwrap();
        CostPolicy::compile(&policy)
    }

    /// One poll of two pods: what is answered for them, and the values that are in use afterwards.
    fn poll(
        readings: &mut Readings,
        policy: &CostPolicy,
        second: i64,
        answer: Option<[Option<f64>; 2]>,
    ) -> (Option<Taken>, [Option<f64>; 2]) {
        let (pods, now) = ([pod("a"), pod("b")], Timestamp::from_second(second).unwrap());
        let samples = answer.map(|values| values.map(|value| value.map(|value| Sample { value, time: now })));
        let taken = readings.take_in(policy, &[samples.as_ref().map(|samples| &samples[..])], &pods, now)[0];
        let values = ["a", "b"].map(|uid| match readings.of_pod(policy, uid, now).next() {
            Some(Reading::Current(sample) | Reading::LastKnown(sample)) => Some(sample.value),
            _ => None,
        });
        (taken, values)
    }

    /// A metrics outage that turns into a scale-down: the backend is back, and all is zero.
    #[test]
    fn zeros_right_after_an_outage_are_believed_the_second_time() {
        let (mut readings, policy) = (Readings::default(), policy("Unknown"));
        let busy = [Some(9.0), Some(3.0)];
        let zeros = Some([Some(0.0), Some(0.0)]);
        assert_eq!(poll(&mut readings, &policy, 0, Some(busy)), (Some(Taken::Believed), busy));
        assert_eq!(poll(&mut readings, &policy, 15, None), (None, busy));
        assert_eq!(poll(&mut readings, &policy, 30, zeros), (Some(Taken::Doubted), busy));
        assert_eq!(poll(&mut readings, &policy, 45, None), (None, busy), "the doubt begins anew");
        assert_eq!(poll(&mut readings, &policy, 60, zeros), (Some(Taken::Doubted), busy));
        assert_eq!(poll(&mut readings, &policy, 75, zeros), (Some(Taken::Believed), [Some(0.0), Some(0.0)]));
        // Without an outage there is nothing to doubt, and a value that is not zero is believed at once.
        assert_eq!(poll(&mut readings, &policy, 90, Some(busy)), (Some(Taken::Believed), busy));
        assert_eq!(poll(&mut readings, &policy, 105, zeros), (Some(Taken::Believed), [Some(0.0), Some(0.0)]));
        poll(&mut readings, &policy, 120, None);
        assert_eq!(poll(&mut readings, &policy, 135, Some([Some(0.0), Some(1.0)])).1, [Some(0.0), Some(1.0)]);
    }

    /// Where no series means zero, losing all of them looks like idleness.
    #[test]
    fn losing_all_series_is_doubted_where_it_would_mean_zero() {
        let (mut readings, policy) = (Readings::default(), policy("Zero"));
        assert_eq!(poll(&mut readings, &policy, 0, Some([None, None])), (Some(Taken::Believed), [Some(0.0), Some(0.0)]), "at the start");
        assert_eq!(poll(&mut readings, &policy, 15, Some([Some(7.0), None])).1, [Some(7.0), Some(0.0)]);
        assert_eq!(poll(&mut readings, &policy, 30, Some([None, None])), (Some(Taken::Doubted), [Some(7.0), Some(0.0)]));
        assert_eq!(poll(&mut readings, &policy, 45, Some([None, None])), (Some(Taken::Believed), [Some(0.0), Some(0.0)]));
        assert_eq!(poll(&mut readings, &policy, 60, Some([None, None])).0, Some(Taken::Believed));
    }

    #[test]
    fn an_answer_about_nobody_changes_nothing_and_counts_as_an_outage() {
        let (mut readings, policy) = (Readings::default(), policy("Unknown"));
        let busy = [Some(9.0), Some(3.0)];
        poll(&mut readings, &policy, 0, Some(busy));
        assert_eq!(poll(&mut readings, &policy, 15, Some([None, None])), (Some(Taken::Empty), busy));
        assert_eq!(poll(&mut readings, &policy, 30, Some([Some(0.0), None])), (Some(Taken::Doubted), busy));
    }

    proptest! {
        /// Over any history: work that was measured is only ever replaced by zero if the poll before had samples, or if two
        /// answers in a row say so.
        #[test]
        fn no_outage_alone_makes_a_pod_idle(history in prop::collection::vec(prop::option::of(0..3u8), 1..40)) {
            let (mut readings, policy) = (Readings::default(), policy("Unknown"));
            let (mut before, mut answers): (Option<f64>, Vec<Option<u8>>) = (None, vec![]);
            for (round, answer) in history.into_iter().enumerate() {
                let value = answer.map(f64::from);
                let (_, [now, _]) = poll(&mut readings, &policy, 15 * round as i64, value.map(|value| [Some(value), Some(0.0)]));
                if before.is_some_and(|value| value > 0.0) && now == Some(0.0) {
                    prop_assert!(answers.last().is_some_and(Option::is_some), "{answers:?}, then {answer:?}");
                }
                before = now;
                answers.push(answer);
            }
        }
    }
}
