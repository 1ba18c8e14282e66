//! `DeletionCostPolicy`: which pods get a deletion cost, and from which signals.

mod problems;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LabelSelector;

/// Turns measured work into deletion costs for the pods that `selector` matches.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "pecking-order.dev",
    version = "v1alpha1",
    kind = "DeletionCostPolicy",
    plural = "deletioncostpolicies",
    shortname = "dcp",
    category = "pecking-order",
    label("app.kubernetes.io/name", "pecking-order"),
    namespaced,
    status = "DeletionCostPolicyStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reachable","type":"string","jsonPath":".status.conditions[?(@.type==\"BackendReachable\")].status"}"#,
    printcolumn = r#"{"name":"Matching","type":"string","jsonPath":".status.conditions[?(@.type==\"SeriesMatchTargets\")].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"integer","jsonPath":".status.pods"}"#,
    printcolumn = r#"{"name":"Busy","type":"integer","jsonPath":".status.busy"}"#,
    printcolumn = r#"{"name":"Idle","type":"integer","jsonPath":".status.idle"}"#,
    printcolumn = r#"{"name":"Unknown","type":"integer","jsonPath":".status.unknown"}"#,
    printcolumn = r#"{"name":"Polled","type":"date","jsonPath":".status.lastPoll"}"#,
    printcolumn = r#"{"name":"Dry Run","type":"boolean","jsonPath":".spec.dryRun"}"#,
    printcolumn = r#"{"name":"Backend","type":"string","priority":1,"jsonPath":".spec.backend"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.preset) || size(self.signals) > 0")
        .message("found no signals, wanted at least one, or a preset").field_path(".signals"),
    validation = Rule::new("has(self.preset) || !has(self.parameters)")
        .message("found parameters, wanted none, since no preset would use them").field_path(".parameters"),
    validation = Rule::new("has(self.preset) || self.signals.all(s, has(s.query) && has(s.weight) && has(s.cap))")
        .message("wanted a query, a weight and a cap in each, where there is no preset to take them from").field_path(".signals"),
    validation = Rule::new("self.signals.all(s, (!has(s.weight) || s.weight > 0.0) && (!has(s.cap) || s.cap > 0.0))")
        .message("wanted a weight and a cap above 0").field_path(".signals"),
    validation = Rule::new("(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)")
        .message("found a selector that names no label, wanted labels that the pods have: without one, every pod of the namespace would match").field_path(".selector"),
    validation = Rule::new("self.edgeCases.terminating <= self.maxCost && (self.edgeCases.notReady <= self.maxCost || self.edgeCases.notReady == 50) && (self.edgeCases.newPod <= self.maxCost || self.edgeCases.newPod == 500) && (self.edgeCases.noMetrics <= self.maxCost || self.edgeCases.noMetrics == 500)")
        .message("wanted costs of at most maxCost").field_path(".edgeCases"),
    validation = Rule::new("self.resolution * 2 <= self.maxCost")
        .message("wanted at most half of maxCost: idle, unknown and busy are at least three steps up to maxCost").field_path(".resolution"),
    validation = Rule::new("self.tieBreak == 'None' || (self.resolution >= 2 && self.jitter.max == 0)")
        .message("wanted None, or a resolution of at least 2 and no jitter: a tie-break stays below one step").field_path(".tieBreak"),
    validation = Rule::new("self.jitter.min <= self.jitter.max").message("wanted at most jitter.max").field_path(".jitter.min"),
    validation = Rule::new("self.jitter.max < self.resolution")
        .message("wanted less than one resolution step, or it would outweigh work").field_path(".jitter.max"),
    validation = Rule::new("self.samples.keepLastSeconds >= self.samples.maxAgeSeconds && self.samples.keepLastSeconds >= 2 * self.pollSeconds")
        .message("wanted at least maxAgeSeconds, and at least two poll periods").field_path(".samples.keepLastSeconds")
)]
pub struct DeletionCostPolicySpec {
    /// The pods that this policy governs. Only pods of a ReplicaSet or a ReplicationController have a deletion cost.
    /// Where two policies of one namespace match a pod, the one whose name sorts first governs it.
    pub selector: LabelSelector,
    /// A backend named in the server configuration.
    #[serde(default = "defaults::backend")]
    #[schemars(length(min = 1, max = 253))]
    pub backend: String,
    /// How a result row names its pod.
    #[serde(default)]
    pub pod_key: PodKey,
    /// The signals of a kind of workload: `trino`, `http` or `queue`. Entries of `signals` with the same names override them, field
    /// by field. The queries of presets are PromQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// What differs between installations of the preset's workload, such as names of metrics. Each preset documents its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub parameters: BTreeMap<String, String>,
    /// The signals whose points add up to a pod's cost.
    #[serde(default)]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub signals: Vec<SignalSpec>,
    /// The highest cost; points beyond it do not count.
    #[serde(default = "defaults::max_cost")]
    #[schemars(range(min = 2, max = 1_000_000))]
    pub max_cost: i32,
    /// Costs are rounded to a multiple of this, so that noise causes no write. At most half of `maxCost`: work above zero is
    /// at least two steps, so that it never looks idle and what is unknown fits in between.
    #[serde(default = "defaults::resolution")]
    #[schemars(range(min = 1, max = 500_000))]
    pub resolution: i32,
    /// Seconds between two polls of the backend.
    #[serde(default = "defaults::poll_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub poll_seconds: u32,
    /// Costs of pods that have no measured work.
    #[serde(default)]
    pub edge_cases: EdgeCases,
    /// How long a unit of work may take, in seconds. Pods whose `terminationGracePeriodSeconds` is shorter cannot finish it, which
    /// the condition `GracePeriodSuffices` says. A preset may have a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub work_seconds: Option<u32>,
    /// A pod younger than this, in seconds, is new.
    #[serde(default = "defaults::new_pod_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub new_pod_seconds: u32,
    /// A pod without measured work ranks below every pod of its ReplicaSet that has some.
    #[serde(default = "defaults::yes")]
    pub new_pod_yields_to_work: bool,
    /// Added to a cost; derived from the pod's UID, so it is the same in every run. Stays below one `resolution` step, so
    /// that it never outweighs work.
    #[serde(default)]
    pub jitter: Jitter,
    /// Which of several pods of equal cost goes first. Below one `resolution` step, so that work always wins; with less than two in a
    /// step, or with `jitter`, there is no room for it.
    #[serde(default)]
    pub tie_break: TieBreak,
    /// How old a sample may be.
    #[serde(default)]
    pub samples: Samples,
    /// When costs are written.
    #[serde(default)]
    pub write: Write,
    /// What to do with a cost that somebody else wrote.
    #[serde(default)]
    pub foreign_values: ForeignValues,
    /// Keeps the autoscaler's minimum at the number of pods at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
    /// Compute, log, count and report; write nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Which label of a result row names the pod: `{label: NAME}` holds the pod's name, `{ip: NAME}` its IP address, with or
/// without a port or a scheme around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PodKey {
    Label(String),
    Ip(String),
}

impl Default for PodKey {
    fn default() -> Self {
        Self::Label("pod".into())
    }
}

/// A set of signals that comes with the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Preset {
    /// Trino workers.
    Trino,
    /// HTTP servers.
    Http,
    /// Queue workers.
    Queue,
}

/// One query that gives a number per pod. Where the preset has a signal of that name, what is absent here is the preset's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalSpec {
    /// Names the signal in messages, metrics and explanations.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Leaves the preset's signal of this name out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// The query, in the backend's own language. Prometheus gets it with a matcher on the policy's namespace in each selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
    /// Points per unit of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub weight: Option<f64>,
    /// At most this many points from this signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub cap: Option<f64>,
    /// How values become units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// A value below this counts as zero: what an idle pod measures anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e12))]
    pub ignore_below: Option<f64>,
    /// What it means when the backend has no series for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Scale {
    /// The value itself.
    #[default]
    Linear,
    /// The natural logarithm of one plus the value: for values that grow while nothing happens, such as elapsed seconds.
    Log,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Missing {
    /// The pod may be busy: it is not taken for idle.
    #[default]
    Unknown,
    /// The pod does nothing of this kind.
    Zero,
}

/// Costs of pods that have no measured work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EdgeCases {
    /// A pod that is being deleted. Kubernetes drops it before it sorts.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub terminating: i32,
    /// A pod that is not Ready and not new. Kubernetes removes it before every Ready pod, whatever its cost.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub not_ready: i32,
    /// A pod younger than `newPodSeconds`.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub new_pod: i32,
    /// A pod of which nothing is known.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub no_metrics: i32,
}

impl Default for EdgeCases {
    fn default() -> Self {
        Self { terminating: 0, not_ready: 50, new_pod: 500, no_metrics: 500 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Jitter {
    #[schemars(range(min = 0, max = 999_999))]
    pub min: i32,
    #[schemars(range(min = 0, max = 999_999))]
    pub max: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TieBreak {
    /// As Kubernetes has it: the node with the most siblings, then age.
    #[default]
    None,
    /// Zones (`topology.kubernetes.io/zone`) stay balanced.
    Zone,
    /// Nodes are emptied, the emptiest first.
    NodePack,
    /// Those that stay are on as many nodes as may be.
    NodeSpread,
    /// Pods on spot nodes go first.
    SpotFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Samples {
    /// A sample older than this, in seconds, is not current.
    #[schemars(range(min = 1, max = 86400))]
    pub max_age_seconds: u32,
    /// The last known value stands in for a current one until it is this old, in seconds; at least two poll periods.
    #[schemars(range(min = 1, max = 604_800))]
    pub keep_last_seconds: u32,
}

impl Default for Samples {
    fn default() -> Self {
        Self { max_age_seconds: 60, keep_last_seconds: 600 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Write {
    /// Write the costs that decide, at the moment a scale-down is admitted.
    pub on_scale_down: bool,
    /// Ride on pod CREATE and UPDATE requests that happen anyway.
    pub on_pod_update: bool,
    /// Keep stored costs near the truth between scale-downs. Off by default: a scale-down writes what it needs by itself.
    pub refresh: Refresh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Refresh {
    /// Seconds between two rounds; 0 is off.
    #[schemars(range(min = 0, max = 86400))]
    pub every_seconds: u32,
    /// A stored cost that is off by less is left as it is.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_change: u32,
}

impl Default for Refresh {
    fn default() -> Self {
        Self { every_seconds: 0, min_change: 25 }
    }
}

impl Default for Write {
    fn default() -> Self {
        Self { on_scale_down: true, on_pod_update: true, refresh: Refresh::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ForeignValues {
    /// Leave the value alone; the pod ranks by it.
    #[default]
    Skip,
    /// Replace the value.
    Override,
}

/// Holds `minReplicas` of an autoscaler at the number of pods at work plus `buffer`, so that a scale-down never asks for more pods than
/// are idle. Never below what the autoscaler's owner wrote there, and never above the replicas that there are: a floor does not scale
/// anything up by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Floor {
    pub target: FloorTarget,
    /// Replicas above those at work.
    #[serde(default = "defaults::buffer")]
    #[schemars(range(min = 0, max = 100_000))]
    pub buffer: u32,
    /// The floor is at least this, as far as there are so many replicas.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub baseline: u32,
    /// The floor is raised at once, and lowered when it could have been lower for so many seconds.
    #[serde(default = "defaults::hold_down_seconds")]
    #[schemars(range(min = 0, max = 86_400))]
    pub hold_down_seconds: u32,
}

/// The autoscaler, in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FloorTarget {
    pub kind: Autoscaler,
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The kinds of autoscalers that a floor can be held on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Autoscaler {
    /// Kubernetes' own, where no controller owns it: its `minReplicas`.
    HorizontalPodAutoscaler,
    /// Of KEDA, which owns an HPA and writes over whatever is changed there: its `minReplicaCount`.
    ScaledObject,
}

/// What the product says about the policy. Numbers are of the last poll that was reported, at most a minute old.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionCostPolicyStatus {
    /// `Ready`: this version is in force. `BackendReachable`: every query was answered. `SeriesMatchTargets`: the answers are about
    /// governed pods. `BusyPodsReady`: no pod at work is outranked because it is not Ready. `ForeignValues`: somebody else writes
    /// costs. `TargetsHonourCost`: a ReplicaSet or a ReplicationController controls each selected pod. `GracePeriodSuffices`: pods
    /// have the time to finish their work. `FloorHeld`: the autoscaler's minimum is held up. `ScaleDownsReviewed`: the installed webhook
    /// sees every scale-down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Pods that the policy governs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<u32>,
    /// Ready pods with measured work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u32>,
    /// Pods that are measured to do nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<u32>,
    /// The others: new, not Ready, or not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<u32>,
    /// The last scale-down of pods of this policy that was followed to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_down: Option<LastScaleDown>,
    /// When the backend was last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_poll: Option<Time>,
}

/// A scale-down, and what it came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastScaleDown {
    pub time: Time,
    pub workload: String,
    pub from: u32,
    pub to: u32,
    /// Costs that were written for it.
    pub written: u32,
    /// Pods that went although one of lower current cost stayed.
    pub wrong: u32,
    /// `right`, `outranked_by_readiness`, `foreign_value`, `stale`, `deadline`, `raced` or `unobserved`.
    pub outcome: String,
}

mod defaults {
    pub fn backend() -> String {
        "default".into()
    }
    pub fn max_cost() -> i32 {
        1000
    }
    pub fn resolution() -> i32 {
        10
    }
    pub fn poll_seconds() -> u32 {
        15
    }
    pub fn new_pod_seconds() -> u32 {
        180
    }
    pub fn yes() -> bool {
        true
    }
    pub fn buffer() -> u32 {
        1
    }
    pub fn hold_down_seconds() -> u32 {
        300
    }
}
