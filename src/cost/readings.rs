//! The last known sample of each signal for each pod, and which answers are believed.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{GovernedPod, Stored};
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
    /// All zero, right after an outage: work that was known before stands until the next poll says so too.
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
    /// An answer that has nothing for any pod, where that does not mean zero.
    Silent,
    /// No answer.
    Outage,
}

impl Last {
    /// After one of these a zero may only mean that the backend has lost its past.
    fn is_outage(self) -> bool {
        matches!(self, Self::Outage | Self::Silent)
    }
}

/// Samples by pod UID, one slot for each signal. One per policy.
#[derive(Debug, Default)]
pub struct Readings {
    by_pod: HashMap<Arc<str>, Box<[Slot]>>,
    signals: Vec<Track>,
}

/// What is remembered of a signal's polls.
#[derive(Debug, Default, Clone, Copy)]
struct Track {
    last: Last,
    doubt: Option<Doubt>,
}

/// After an outage, and at the start, a zero is not believed at once where there was work.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    until: Timestamp,
    /// There was no answer before it.
    at_the_start: bool,
}

impl Track {
    fn doubt(&self, now: Timestamp) -> Option<Doubt> {
        self.doubt.filter(|doubt| now < doubt.until)
    }
}

/// A sample or none, in as little room as it takes: there are as many as pods times signals.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// NaN where there is none.
    value: f64,
    /// Milliseconds since 1970.
    time: i64,
    /// Since when the answers have had nothing for this pod, which means zero: if it is still so half a period later. In
    /// milliseconds since 1970; `MAX` where the last answer had something.
    absent_since: i64,
}

impl Slot {
    const EMPTY: Self = Self { value: f64::NAN, time: i64::MIN, absent_since: i64::MAX };

    fn new(sample: Sample) -> Self {
        Self { value: sample.value, time: sample.time.as_millisecond(), absent_since: i64::MAX }
    }

    /// Takes in a sample. A backend behind a load balancer may answer with an older one than it did before; but any is better
    /// than a zero that only stands for nothing. `is_doubtful`: a zero is not yet believed where there was work.
    fn take(&mut self, sample: Sample, is_doubtful: bool) {
        let new = Self::new(sample);
        let is_filled = self.absent_since != i64::MAX && self.value == 0.0;
        if (new.time >= self.time || is_filled) && !(is_doubtful && new.value == 0.0 && self.value > 0.0) {
            *self = new;
        }
    }

    /// Takes in that there is no series, where that means zero: once may be a scrape that came late.
    fn miss(&mut self, now: Timestamp, is_doubtful: bool, confirmed_after: SignedDuration) {
        let (had_work, since) = (self.value > 0.0, self.absent_since.min(now.as_millisecond()));
        let is_confirmed = i128::from(now.as_millisecond() - since) >= confirmed_after.as_millis() && self.absent_since != i64::MAX;
        if !had_work || (is_confirmed && !is_doubtful) {
            *self = Self::new(Sample { value: 0.0, time: now });
        }
        self.absent_since = since;
    }

    fn sample(self) -> Option<Sample> {
        let time = Timestamp::from_millisecond(self.time).ok().filter(|_| !self.value.is_nan())?;
        Some(Sample { value: self.value, time })
    }
}

/// What there is to take in of one signal.
struct Told<'a> {
    signal: usize,
    samples: &'a [Option<Sample>],
    missing_is_zero: bool,
    doubt: Option<Doubt>,
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
        self.signals.resize(policy.signals.len(), Track::default());
        // A second answer says something only if it is not of the same moment: a poll may come out of turn.
        let confirmed_after = SignedDuration::from_millis(i64::from(policy.spec.poll_seconds) * 500);
        let taken: Vec<Option<Taken>> = answers
            .iter()
            .enumerate()
            .map(|(signal, answer)| self.judge(policy, signal, *answer, !pods.is_empty(), now, confirmed_after))
            .collect();
        let believed = (0..).zip(answers).zip(&taken).filter(|(_, taken)| matches!(taken, Some(Taken::Believed | Taken::Doubted)));
        let told: Vec<Told<'_>> = believed
            .filter_map(|((signal, answer), _)| {
                Some(Told {
                    signal,
                    samples: (*answer)?,
                    missing_is_zero: policy.signals[signal].missing == Missing::Zero,
                    doubt: self.signals[signal].doubt(now),
                })
            })
            .collect();
        for (position, pod) in pods.iter().map(AsRef::as_ref).enumerate() {
            for told in &told {
                let sample = told.samples.get(position).copied().flatten();
                if sample.is_none() && !told.missing_is_zero {
                    continue;
                }
                // Before the first answer, what we wrote on a pod before is what is known of its work.
                let was_busy = matches!(pod.stored, Stored::Ours(value) if value > 0);
                let doubt = told.doubt.filter(|doubt| !doubt.at_the_start || was_busy);
                let slots = match self.by_pod.get_mut(&pod.uid) {
                    Some(slots) => slots,
                    None => self.by_pod.entry(pod.uid.clone()).or_insert_with(|| vec![Slot::EMPTY; policy.signals.len()].into()),
                };
                let slot = &mut slots[told.signal];
                let is_zero = sample.is_none_or(|sample| sample.value == 0.0);
                match sample {
                    _ if is_zero && doubt.is_some_and(|doubt| doubt.at_the_start) && slot.value.is_nan() => {}
                    // A clock that is ahead must not make a value look newer than the ones to come.
                    Some(sample) => slot.take(Sample { time: sample.time.min(now), ..sample }, doubt.is_some()),
                    None => slot.miss(now, doubt.is_some(), confirmed_after),
                }
            }
        }
        taken
    }

    /// What an answer is worth, after what came before it.
    fn judge(
        &mut self,
        policy: &CostPolicy,
        signal: usize,
        answer: Answer<'_>,
        has_pods: bool,
        now: Timestamp,
        confirmed_after: SignedDuration,
    ) -> Option<Taken> {
        let track = &mut self.signals[signal];
        let Some(samples) = answer else {
            track.last = Last::Outage;
            return None;
        };
        let is_empty = samples.iter().all(Option::is_none);
        if is_empty && policy.signals[signal].missing != Missing::Zero {
            if has_pods {
                track.last = Last::Silent;
            }
            return Some(Taken::Empty);
        }
        // A backend that comes back without its past, or loses an exporter, answers like one whose pods are all idle.
        let at_the_start = track.last == Last::None;
        if track.last.is_outage() || at_the_start {
            track.doubt = Some(Doubt { until: now + confirmed_after, at_the_start });
        }
        let after_an_outage = track.doubt(now).is_some_and(|doubt| !doubt.at_the_start);
        let is_doubtful = after_an_outage || (track.last == Last::Samples && is_empty);
        if is_doubtful && samples.iter().flatten().all(|sample| sample.value == 0.0) {
            track.last = Last::Doubted;
            return Some(Taken::Doubted);
        }
        track.last = if is_empty { Last::Zeros } else { Last::Samples };
        Some(Taken::Believed)
    }

    /// Whether the last answer had nothing for any pod, where that does not mean zero.
    pub fn is_silent(&self, signal: usize) -> bool {
        self.signals.get(signal).is_some_and(|track| track.last == Last::Silent)
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

    /// A Prometheus that has come back has scraped three of twenty targets: the other pods did not become idle.
    #[test]
    fn after_an_outage_each_zero_is_doubted_where_there_was_work() {
        for missing in ["Unknown", "Zero"] {
            let (mut readings, policy) = (Readings::default(), policy(missing));
            poll(&mut readings, &policy, 0, Some([Some(9.0), Some(3.0)]));
            poll(&mut readings, &policy, 15, None);
            let partial = if missing == "Zero" { [Some(4.0), None] } else { [Some(4.0), Some(0.0)] };
            assert_eq!(poll(&mut readings, &policy, 30, Some(partial)), (Some(Taken::Believed), [Some(4.0), Some(3.0)]), "{missing}");
            assert_eq!(poll(&mut readings, &policy, 45, Some(partial)).1, [Some(4.0), Some(0.0)], "{missing}");
        }
    }

    /// A scrape that comes late must not make a busy pod idle for a whole period.
    #[test]
    fn one_absence_is_not_yet_a_zero() {
        let (mut readings, policy) = (Readings::default(), policy("Zero"));
        poll(&mut readings, &policy, 0, Some([Some(9.0), Some(3.0)]));
        assert_eq!(poll(&mut readings, &policy, 15, Some([None, Some(3.0)])).1, [Some(9.0), Some(3.0)]);
        assert_eq!(poll(&mut readings, &policy, 30, Some([Some(8.0), None])).1, [Some(8.0), Some(3.0)]);
        assert_eq!(poll(&mut readings, &policy, 45, Some([Some(8.0), None])).1, [Some(8.0), Some(0.0)]);
    }

    /// Datadog and CloudWatch stamp their points a minute or two in the past.
    #[test]
    fn a_zero_that_stands_for_nothing_gives_way_to_any_sample() {
        let (mut readings, policy) = (Readings::default(), policy("Zero"));
        poll(&mut readings, &policy, 1000, Some([None, Some(1.0)]));
        let old = Timestamp::from_second(900).unwrap();
        let samples = [Some(Sample { value: 7.0, time: old }), None];
        let now = Timestamp::from_second(1015).unwrap();
        readings.take_in(&policy, &[Some(&samples[..])], &[pod("a"), pod("b")], now);
        assert!(matches!(readings.of_pod(&policy, "a", now).next(), Some(Reading::LastKnown(sample)) if sample.value == 7.0));
    }

    /// A restart of ours and of the backend at once: what we wrote on a pod says that it was at work.
    #[test]
    fn the_first_zeros_of_a_pod_that_was_at_work_wait_for_a_second_time() {
        let (mut readings, policy) = (Readings::default(), policy("Unknown"));
        let pods = [GovernedPod { stored: Stored::Ours(400), ..pod("a") }, pod("b")];
        let mut poll = |second: i64| {
            let now = Timestamp::from_second(second).unwrap();
            let samples = [Some(Sample { value: 0.0, time: now }); 2];
            readings.take_in(&policy, &[Some(&samples[..])], &pods, now);
            ["a", "b"].map(|uid| readings.of_pod(&policy, uid, now).next() != Some(Reading::Nothing))
        };
        assert_eq!(poll(0), [false, true]);
        assert_eq!(poll(15), [true, true]);
    }

    /// A poll out of turn, milliseconds after the first answer, confirms nothing.
    #[test]
    fn a_second_answer_of_the_same_moment_confirms_nothing() {
        for missing in ["Unknown", "Zero"] {
            let (mut readings, policy) = (Readings::default(), policy(missing));
            let busy = [Some(9.0), Some(3.0)];
            poll(&mut readings, &policy, 0, Some(busy));
            poll(&mut readings, &policy, 15, None);
            let zeros = Some([Some(0.0), Some(0.0)]);
            for second in [30, 31, 32] {
                assert_eq!(poll(&mut readings, &policy, second, zeros), (Some(Taken::Doubted), busy), "{missing} {second}");
            }
            assert_eq!(poll(&mut readings, &policy, 45, zeros).1, [Some(0.0), Some(0.0)]);
        }
        let (mut readings, policy) = (Readings::default(), policy("Zero"));
        poll(&mut readings, &policy, 0, Some([Some(9.0), Some(3.0)]));
        for second in [15, 16, 17] {
            assert_eq!(poll(&mut readings, &policy, second, Some([None, Some(3.0)])).1, [Some(9.0), Some(3.0)], "{second}");
        }
        assert_eq!(poll(&mut readings, &policy, 30, Some([None, Some(3.0)])).1, [Some(0.0), Some(3.0)]);
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
