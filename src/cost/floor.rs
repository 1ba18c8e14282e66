//! The floor under an autoscaler: its minimum, held at the number of pods at work. Pure: what is known of pods and autoscaler goes in,
//! what is to stand there comes out.
//!
//! An HPA whose replicas are below its minimum raises them at once, past its metrics and its policies. So a floor that counted
//! pods which a raise has only just made would feed itself up to `maxReplicas`. It cannot: it is never above the replicas that there are.

use std::collections::VecDeque;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::score::Basis;
use super::{Cost, GovernedPod};
use crate::api::deletion_cost_policy::{Autoscaler, Floor};

/// The annotation on an autoscaler that notes what is held there, and what its owner had written.
pub const NOTE: &str = "pecking-order.dev/floor";

/// The label by which held autoscalers are found.
pub const HELD: &str = "pecking-order.dev/floor-held";

/// Somebody who has put their value back so often means it.
const REVERTS: u32 = 2;

/// The pods of the autoscaler's workload, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// With measured work, and no longer new: these raise the floor.
    pub busy: u32,
    /// New, or of which nothing is known: they raise nothing, and for as long as they may be at work nothing is lowered on their account.
    pub uncertain: u32,
}

impl Measured {
    /// Counts active pods with their costs.
    pub fn count<'a>(pods: impl Iterator<Item = (&'a GovernedPod, Option<Cost>)>, new_pod_seconds: u32, now: Timestamp) -> Self {
        let new = SignedDuration::from_secs(new_pod_seconds.into());
        let mut measured = Self::default();
        for (pod, cost) in pods.filter(|(pod, _)| pod.is_active()) {
            // A new pod starts up, which is work of a kind too, but nobody's; it may as well have taken some over.
            let is_new = now.duration_since(pod.created) < new;
            match cost.map(|cost| cost.basis) {
                Some(Basis::Work) if !is_new => measured.busy += 1,
                Some(Basis::Idle | Basis::Terminating) => {}
                _ => measured.uncertain += 1,
            }
        }
        measured
    }
}

/// What is noted on an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The policy, in the autoscaler's namespace, that holds the floor.
    pub policy: String,
    /// The policy's generation: a changed policy starts anew where somebody had put their value back.
    pub generation: i64,
    /// The minimum as its owner had it; none where they had none.
    pub original: Option<u32>,
    /// What we wrote last.
    pub written: u32,
    /// How often somebody has put it below that.
    #[serde(default)]
    pub reverts: u32,
    /// Who did so the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Note {
    /// The minimum that should stand where the floor is let go: the original, unless somebody has changed the minimum since.
    pub fn released(&self, kind: Autoscaler, min: Option<u32>) -> Option<u32> {
        if min.unwrap_or(default_min(kind)) == self.written { self.original } else { min }
    }
}

/// An autoscaler as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub kind: Autoscaler,
    /// `minReplicas` or `minReplicaCount`.
    pub min: Option<u32>,
    pub max: u32,
    /// The replicas that its workload is asked to have.
    pub current: u32,
    pub note: Option<Note>,
    /// Whether it is labelled as held.
    pub is_labelled: bool,
    /// Who wrote the minimum last; none where that was us.
    pub writer: Option<String>,
}

/// What a minimum that nobody wrote means: one replica for Kubernetes, none for KEDA.
fn default_min(kind: Autoscaler) -> u32 {
    match kind {
        Autoscaler::HorizontalPodAutoscaler => 1,
        Autoscaler::ScaledObject => 0,
    }
}

/// How things stand with a floor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Held above the original.
    Held { value: u32, original: u32, is_clamped: bool },
    /// The original is enough.
    NotNeeded { original: u32 },
    /// The workload has no replicas, so the autoscaler is at rest.
    AtRest,
    /// Another policy holds this autoscaler.
    HeldByAnother { policy: String },
    /// Somebody keeps putting a lower value back.
    Reverted { original: u32, by: Option<String> },
    /// It is held, and the note that says what its owner had written is lost.
    NoteLost,
}

/// What is to stand on the autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub min: Option<u32>,
    pub note: Option<Note>,
}

/// Remembers, for one policy, what the floor could have been lately.
#[derive(Debug, Default)]
pub struct Holder {
    wanted: VecDeque<(Timestamp, u32)>,
    /// What we noted last; somebody may replace the whole object, and the note with it.
    noted: Option<Note>,
}

impl Holder {
    /// How things stand, and what is to be written, if anything. `who` is the policy's name and generation. [`Self::written`] must be
    /// told once it is.
    pub fn decide(
        &mut self,
        floor: &Floor,
        who: (&str, i64),
        measured: Measured,
        target: &Target,
        now: Timestamp,
    ) -> (Standing, Option<Change>) {
        let min = target.min.unwrap_or(default_min(target.kind));
        let note = match target.note.as_ref().or(self.noted.as_ref()) {
            Some(note) if note.policy != who.0 => return (Standing::HeldByAnother { policy: note.policy.clone() }, None),
            note => note.map(|note| seen(note, who.1, target, min)),
        };
        if let Some(note) = note.as_ref().filter(|note| note.reverts >= REVERTS) {
            let change = Change { min: target.min, note: Some(note.clone()) };
            let standing = Standing::Reverted { original: min, by: note.by.clone() };
            return (standing, (target.note.as_ref() != Some(note)).then_some(change));
        }
        if note.is_none() && target.is_labelled {
            return (Standing::NoteLost, None);
        }
        if target.current == 0 {
            // Woken up, it would jump to what was held when it went to sleep.
            self.wanted.clear();
            let change = note.as_ref().map(|note| Change { min: note.released(target.kind, target.min), note: None });
            return (Standing::AtRest, change);
        }
        let original = note.as_ref().map_or(target.min, |note| note.original);
        let least = original.unwrap_or(default_min(target.kind));
        let held = note.as_ref().map_or(least, |note| note.written);
        if self.wanted.is_empty() {
            // What another leader held is held on, for as long as if it had been wanted now.
            self.wanted.push_back((now, held));
        }
        let bound = |value: u32| value.min(target.current).min(target.max).max(least);
        let wanted = self.highest(wanted(floor, measured, held, least), floor, now);
        let value = bound(wanted);
        let is_clamped = wanted > target.max && value == target.max;
        let standing = match value > least {
            true => Standing::Held { value, original: least, is_clamped },
            false => Standing::NotNeeded { original: least },
        };
        let reverts = note.as_ref().map_or(0, |note| note.reverts);
        let keeps_note = value > least || reverts > 0;
        let policy = || who.0.to_owned();
        let change = Change {
            min: if value > least { Some(value) } else { original },
            note: keeps_note.then(|| Note {
                policy: policy(),
                generation: who.1,
                original,
                written: value,
                reverts,
                by: note.as_ref().and_then(|note| note.by.clone()),
            }),
        };
        let stands = change.note == target.note && value == min && target.is_labelled == change.note.is_some();
        (standing, (!stands).then_some(change))
    }

    /// Notes that a change has been written.
    pub fn written(&mut self, change: &Change) {
        self.noted = change.note.clone();
    }

    /// Whether a change has been written is not known, or it was to another object of that name: only what stands there counts.
    pub fn forget_note(&mut self) {
        self.noted = None;
    }

    /// The highest of what was wanted within the hold-down.
    fn highest(&mut self, wanted: u32, floor: &Floor, now: Timestamp) -> u32 {
        let since = now - SignedDuration::from_secs(floor.hold_down_seconds.into());
        // Something that was lower before something higher is never the highest again.
        while self.wanted.back().is_some_and(|(_, value)| *value <= wanted) {
            self.wanted.pop_back();
        }
        self.wanted.push_back((now, wanted));
        while self.wanted.front().is_some_and(|(at, _)| *at <= since && *at != now) {
            self.wanted.pop_front();
        }
        self.wanted.front().map_or(wanted, |(_, value)| *value)
    }
}

/// What the pods ask for, whatever the autoscaler allows.
fn wanted(floor: &Floor, measured: Measured, held: u32, least: u32) -> u32 {
    // An autoscaler that may go to zero does so when nothing is at work.
    let for_busy = |busy: u32| if busy == 0 && least == 0 { 0 } else { busy.saturating_add(floor.buffer).max(floor.baseline) };
    for_busy(measured.busy).max(held.min(for_busy(measured.busy.saturating_add(measured.uncertain))))
}

/// The note, with what its autoscaler shows: whether somebody has changed the minimum since. Below what we hold they undo it; what they
/// wrote is the original from then on.
fn seen(note: &Note, generation: i64, target: &Target, min: u32) -> Note {
    let mut note = note.clone();
    if note.generation != generation {
        (note.generation, note.reverts, note.by) = (generation, 0, None);
    }
    if min != note.written {
        // What we wrote ourselves, and do not remember, is nobody's revert.
        if min < note.written && target.writer.is_some() {
            (note.reverts, note.by) = (note.reverts + 1, target.writer.clone());
        }
        if target.writer.is_some() {
            note.original = target.min;
        }
        note.written = min;
    }
    note
}

#[cfg(test)]
mod tests;
