//! `HeadroomPool`: which pods are placeholders, and which rules they must keep.

use std::borrow::Cow;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

mod room;

pub use room::{Claims, DrainWith, Drained, Gate, GatedPods, HeadroomPoolStatus, Holder, HolderKind, MOST_HOLDERS, OnMaxWait, OnNoRoom};

use super::documents::nearest;
use super::{LabelSelector, Problem, Problems};
use crate::headroom::object::{Kind, Object};
use crate::headroom::spot::{self, SpotRow};

/// The highest priority that a user's PriorityClass may have (`pkg/apis/scheduling/types.go`, HighestUserDefinablePriority).
const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;

/// Marks placeholders and says which rules hold for them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "pecking-order.dev",
    version = "v1alpha1",
    kind = "HeadroomPool",
    plural = "headroompools",
    shortname = "hp",
    category = "pecking-order",
    label("app.kubernetes.io/name", "pecking-order"),
    status = "HeadroomPoolStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".status.desired"}"#,
    printcolumn = r#"{"name":"Bound","type":"integer","jsonPath":".status.bound"}"#,
    printcolumn = r#"{"name":"In flight","type":"integer","jsonPath":".status.inFlight"}"#,
    printcolumn = r#"{"name":"Free","type":"integer","jsonPath":".status.free"}"#,
    printcolumn = r#"{"name":"Pending","type":"integer","jsonPath":".status.pending"}"#,
    printcolumn = r#"{"name":"Oldest pending","type":"date","jsonPath":".status.oldestPending"}"#,
    printcolumn = r#"{"name":"Violations","type":"integer","jsonPath":".status.violations"}"#,
    printcolumn = r#"{"name":"Cutoff","type":"string","jsonPath":".spec.expendablePriorityCutoff","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadroomPoolSpec {
    /// Any of these marks a placeholder, its template, or its class. So does the label `pecking-order.dev/headroom` with the
    /// pool's name, which always works.
    #[serde(default)]
    pub placeholders: Placeholders,
    /// Cluster Autoscaler's `--expendable-pods-priority-cutoff`, or `None` where no Cluster Autoscaler runs (Karpenter).
    #[serde(default)]
    pub expendable_priority_cutoff: Cutoff,
    /// The lowest priority of a real workload: placeholders must lie below it.
    #[serde(default)]
    #[schemars(range(min = -2_147_483_648i64, max = 1_000_000_000))]
    pub workload_priority_floor: i32,
    /// What each rule does when it is broken.
    #[serde(default)]
    pub rules: Rules,
    /// Namespaces in which no rule holds, such as one where placeholders are tried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub exempt_namespaces: Vec<String>,
    /// Rows added to the built-in table of spot labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub spot_nodes: Vec<SpotRow>,
    /// The keys of that table by which this cluster's spot nodes are told, for `offSpotStrict`: shutting the spot nodes of all of these out
    /// is proof. Where absent, what stands for one provider's spot nodes is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub spot_keys_in_use: Vec<String>,
    /// Every spot node has a taint with the key and value of its label (as on AKS, and on GKE Autopilot), for `offSpotStrict`: what does
    /// not tolerate it is off spot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot_nodes_tainted: bool,
    /// What one placeholder must make room for, for `matchesShape`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Who may claim room before a job's pod exists.
    #[serde(default, skip_serializing_if = "is_default")]
    pub claims: Claims,
    /// Pods that wait for room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// The placeholder workloads go to 0 replicas when these pods begin to stop, and back when new ones run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_with: Option<DrainWith>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shape {
    /// The workload whose pods need the room.
    pub like: Like,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Like {
    pub kind: LikeKind,
    #[schemars(length(min = 1, max = 253))]
    pub namespace: String,
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Kinds with a template of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LikeKind {
    Deployment,
    StatefulSet,
    ReplicaSet,
    CronJob,
    PodTemplate,
}

impl LikeKind {
    /// The reviewed kind that this is.
    pub fn kind(self) -> Kind {
        match self {
            Self::Deployment => Kind::Deployment,
            Self::StatefulSet => Kind::StatefulSet,
            Self::ReplicaSet => Kind::ReplicaSet,
            Self::CronJob => Kind::CronJob,
            Self::PodTemplate => Kind::PodTemplate,
        }
    }
}

impl Like {
    /// Whether an object has this kind and this name, in whatever namespace.
    pub fn is_called_as(&self, object: &Object) -> bool {
        object.kind == self.kind.kind() && object.name == self.name
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Like { kind, namespace, name } = &self.like;
        write!(f, "{kind:?} {namespace}/{name}")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Placeholders {
    /// Names of the placeholders' PriorityClasses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub priority_class_names: Vec<String>,
    /// Labels of the placeholders, of their templates, or of their classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A pod whose priority lies below the cutoff never brings a node. -10 is the default of Cluster Autoscaler's flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cutoff {
    /// The flag's value.
    At(i32),
    /// No Cluster Autoscaler: every priority brings a node.
    None,
}

impl Default for Cutoff {
    fn default() -> Self {
        Self::At(-10)
    }
}

impl Serialize for Cutoff {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::At(value) => serializer.serialize_i32(*value),
            Self::None => serializer.serialize_str("None"),
        }
    }
}

impl<'de> Deserialize<'de> for Cutoff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrNone;
        impl de::Visitor<'_> for NumberOrNone {
            type Value = Cutoff;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a 32-bit number, or the word None where no Cluster Autoscaler runs")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Cutoff, E> {
                i32::try_from(value).map(Cutoff::At).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Cutoff, E> {
                i32::try_from(value).map(Cutoff::At).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Cutoff, E> {
                // A YAML reader hands a plain -10 to `deserialize_any` as a number, but a quoted one as text.
                match value {
                    "None" => Ok(Cutoff::None),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(NumberOrNone)
    }
}

impl JsonSchema for Cutoff {
    fn schema_name() -> Cow<'static, str> {
        "Cutoff".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "x-kubernetes-validations": [
            { "rule": "type(self) == int ? (self >= -2147483648 && self <= 2147483647) : self == 'None'",
              "message": "a 32-bit number, or the word None where no Cluster Autoscaler runs" } ] })
    }
}

/// What happens when a rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// The request is refused.
    Enforce,
    /// The request passes with a warning.
    Warn,
    /// The request passes; the finding is counted and put into the audit annotations.
    Audit,
    /// The rule is not looked at.
    Off,
}

impl Mode {
    /// For what may as well be meant so: it is never refused.
    pub fn at_most_warn(self) -> Self {
        if self == Self::Enforce { Self::Warn } else { self }
    }
}

/// What happens when the grace period is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FixableMode {
    Enforce,
    /// A pod's 30, which is also what the API server fills in, becomes 0 at CREATE; a template with 30 gets a warning.
    /// Every other value is refused.
    Fix,
    Warn,
    Audit,
    Off,
}

impl FixableMode {
    /// The same as a plain mode; `None` for `Fix`, which is no one mode.
    pub fn plain(self) -> Option<Mode> {
        match self {
            Self::Enforce => Some(Mode::Enforce),
            Self::Fix => None,
            Self::Warn => Some(Mode::Warn),
            Self::Audit => Some(Mode::Audit),
            Self::Off => Some(Mode::Off),
        }
    }
}

/// One entry per rule, named by the rule's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rules {
    /// A priority below the cutoff never brings a node.
    pub priority_above_cutoff: Mode,
    /// A priority at or above the lowest real one cannot be preempted.
    pub priority_below_workloads: Mode,
    /// A placeholder that lingers keeps the room it should give away.
    pub zero_grace_period: FixableMode,
    /// A placeholder that requires spot nodes goes with them.
    pub off_spot: Mode,
    /// A placeholder class that is the cluster's default makes placeholders of all pods without a class.
    pub not_global_default: Mode,
    /// A placeholder class that may preempt takes room from lower placeholders.
    pub never_preempts: Mode,
    /// A placeholder without requests holds nothing. Absurd requests are at most a warning.
    pub requests_set: Mode,
    /// A DaemonSet, a bare pod or a Job does not refill the room. Only a DaemonSet is ever refused.
    pub can_refill: Mode,
    /// The pause image from a retired registry.
    pub supported_image: Mode,
    /// A placeholder whose class is not one of the pool's, where the pool lists some.
    pub placeholder_class: Mode,
    /// A changed value of a class, which the API server refuses in any case.
    pub immutable_value: Mode,
    /// A placeholder that may land on a spot node.
    pub off_spot_strict: Mode,
    /// A placeholder that is smaller than what `shape.like` needs, or that has other constraints.
    pub matches_shape: Mode,
    /// A spread constraint or an anti-affinity that does not match the placeholder itself.
    pub spreads: Mode,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            priority_above_cutoff: Mode::Enforce,
            priority_below_workloads: Mode::Enforce,
            zero_grace_period: FixableMode::Enforce,
            off_spot: Mode::Enforce,
            not_global_default: Mode::Enforce,
            never_preempts: Mode::Warn,
            requests_set: Mode::Enforce,
            can_refill: Mode::Enforce,
            supported_image: Mode::Warn,
            placeholder_class: Mode::Enforce,
            immutable_value: Mode::Warn,
            off_spot_strict: Mode::Off,
            matches_shape: Mode::Warn,
            spreads: Mode::Warn,
        }
    }
}

impl HeadroomPoolSpec {
    /// Everything that the schema cannot say, and what it says, for documents that never met an API server.
    pub fn problems(&self) -> Vec<Problem> {
        let mut p = Problems::default();
        if let Some(selector) = &self.placeholders.selector {
            if !selector.names_something() {
                p.push(
                    "spec.placeholders.selector",
                    "a selector that names no label",
                    "labels that the placeholders have: without one, every pod of the cluster would be marked",
                );
            }
            selector.problems("spec.placeholders.selector", &mut p);
        }
        for (i, name) in self.placeholders.priority_class_names.iter().enumerate() {
            if name.is_empty() || name.starts_with("system-") {
                p.push(
                    format!("spec.placeholders.priorityClassNames[{i}]"),
                    format!("`{name}`"),
                    "the name of a PriorityClass of your own",
                );
            }
        }
        p.range("spec.workloadPriorityFloor", self.workload_priority_floor, i32::MIN, HIGHEST_USER_PRIORITY);
        if let Cutoff::At(cutoff) = self.expendable_priority_cutoff
            && cutoff >= self.workload_priority_floor
        {
            p.push(
                "spec.expendablePriorityCutoff",
                cutoff,
                format!(
                    "a number below workloadPriorityFloor ({}): no priority is left for a placeholder otherwise",
                    self.workload_priority_floor
                ),
            );
        }
        for (i, row) in self.spot_nodes.iter().enumerate() {
            if row.key.is_empty() {
                p.push(format!("spec.spotNodes[{i}].key"), "an empty key", "the key of a node label");
            }
            if row.spot.is_empty() {
                p.push(format!("spec.spotNodes[{i}].spot"), "no values", "the values that mean spot");
            }
        }
        self.claims.problems(&mut p);
        self.gate.iter().for_each(|gate| gate.problems(&mut p));
        self.drain_with.iter().for_each(|drain_with| drain_with.problems(&mut p));
        let rows = spot::built_in();
        for (i, key) in self.spot_keys_in_use.iter().enumerate() {
            if !rows.iter().chain(&self.spot_nodes).any(|row| row.key == *key) {
                let nearest = nearest(key, rows.iter().chain(&self.spot_nodes).map(|row| row.key.as_str()));
                let hint = nearest.map(|key| format!("; did you mean `{key}`?")).unwrap_or_default();
                p.push(
                    format!("spec.spotKeysInUse[{i}]"),
                    format!("`{key}`"),
                    format!("a key of the table of spot labels, or of spec.spotNodes{hint}"),
                );
            }
        }
        p.0
    }
}
