//! The part of a HeadroomPool that is about giving its room away: to claims and to pods that wait for it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{LabelSelector, Problems};

/// The most that holds room at once: each holder is an entry of the pool's status, which must stay far below 1.5 MB.
pub const MOST_HOLDERS: u32 = 1000;

/// Who may claim room, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Claims {
    /// Namespaces whose claims are served; all where empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub namespaces: Vec<String>,
    /// At most so many claims in flight, however much room there is; 0 serves none. No limit but the room where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub max: Option<u32>,
    /// At most so many of one namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub max_per_namespace: Option<u32>,
}

/// Pods that wait for room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gate {
    pub pods: GatedPods,
    #[serde(default)]
    pub on_no_room: OnNoRoom,
    /// How long a pod waits at most, in seconds since its creation, 1 to 604800.
    #[serde(default = "an_hour")]
    #[schemars(range(min = 1, max = 604_800))]
    pub max_wait_seconds: u32,
    #[serde(default)]
    pub on_max_wait: OnMaxWait,
}

fn an_hour() -> u32 {
    3600
}

/// Which pods wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatedPods {
    /// The namespaces, by their labels; all where empty. `kubernetes.io/metadata.name` is a namespace's name.
    pub namespace_selector: LabelSelector,
    /// The pods, by their labels.
    pub selector: LabelSelector,
}

/// What becomes of a pod for which there is no room when it is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnNoRoom {
    /// It waits, with a scheduling gate.
    #[default]
    Gate,
    /// It is refused with 429, and a hint when to try again.
    Deny,
}

/// What becomes of a pod that has waited for as long as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnMaxWait {
    /// It goes to the scheduler without room, at most one a second.
    #[default]
    Release,
    /// Its phase becomes Failed, as for a pod that could not be run.
    Fail,
}

/// Whose end is the end of the placeholders too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainWith {
    #[schemars(length(min = 1, max = 253))]
    pub namespace: String,
    /// The runners, by their labels.
    pub selector: LabelSelector,
}

/// What the product says about the pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadroomPoolStatus {
    /// `Ready`: whether this version of the pool is in force. `RoomUsable`: whether its room can be given away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Placeholders that there are and that are not on their way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<u32>,
    /// Slots of placeholders that are bound to a healthy node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<u32>,
    /// Placeholders without a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<u32>,
    /// Since when the oldest of these has been waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending: Option<Time>,
    /// Slots that are spoken for, by claims and by pods that have no node yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Slots that a claim or a waiting pod may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u32>,
    /// Placeholders that break a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violations: Option<u32>,
    /// Who holds a slot. Written before anybody is told, so that no two leaders give the same one away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// Placeholder workloads that were scaled to zero with their runners.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drained: Vec<Drained>,
    /// The replica that wrote this, so that its successor can shut it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_by: Option<String>,
}

/// Who holds one slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    pub kind: HolderKind,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum HolderKind {
    HeadroomClaim,
    Pod,
}

/// A workload that was scaled to zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drained {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// What it had before.
    pub replicas: u32,
}

impl Gate {
    pub(super) fn problems(&self, p: &mut Problems) {
        let selector = &self.pods.selector;
        if !selector.names_something() {
            let wanted = "labels that the pods have: without one, every pod of these namespaces would wait";
            p.push("spec.gate.pods.selector", "a selector that names no label", wanted);
        }
        selector.problems("spec.gate.pods.selector", p);
        self.pods.namespace_selector.problems("spec.gate.pods.namespaceSelector", p);
        p.range("spec.gate.maxWaitSeconds", self.max_wait_seconds, 1, 604_800);
    }
}

impl DrainWith {
    pub(super) fn problems(&self, p: &mut Problems) {
        if self.namespace.is_empty() {
            p.push("spec.drainWith.namespace", "nothing", "the namespace of the runners");
        }
        if !self.selector.names_something() {
            p.push("spec.drainWith.selector", "a selector that names no label", "labels that the runners have");
        }
        self.selector.problems("spec.drainWith.selector", p);
    }
}

impl Claims {
    pub(super) fn problems(&self, p: &mut Problems) {
        for (field, value) in [("max", self.max), ("maxPerNamespace", self.max_per_namespace)] {
            p.range(format!("spec.claims.{field}"), value.unwrap_or_default(), 0, MOST_HOLDERS);
        }
    }
}
