//! A node, as far as room on it is concerned: what it offers, whether it will last, and which pods it takes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as ApiNode, NodeSelectorRequirement, NodeSelectorTerm, Taint};

use super::effective::Resources;
use super::object::{PodSpec, Toleration};
use super::quantity::Quantity;
use crate::api::policies::Labels;

/// Taints by which somebody says that a node is about to go. A name that ends in `/` stands for all that begin so.
///
/// Karpenter `pkg/apis/v1/taints.go`; Cluster Autoscaler `pkg/utils/taints`; aws-node-termination-handler `pkg/node/node.go`; GKE's
/// node termination handler; `k8s.io/api/core/v1/well_known_taints.go`.
const DISRUPTION_TAINTS: [&str; 7] = [
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
    "node.kubernetes.io/out-of-service",
];

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    /// What pods may request of it.
    pub allocatable: Resources,
    pub is_ready: bool,
    pub is_cordoned: bool,
    pub is_leaving: bool,
}

impl Node {
    pub fn read(node: ApiNode) -> Self {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        let amount = |(resource, text): (String, _)| {
            let k8s_openapi::apimachinery::pkg::api::resource::Quantity(text) = text;
            Some((resource, Quantity::parse(&text).ok()?))
        };
        Self {
            name: node.metadata.name.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            allocatable: status.allocatable.unwrap_or_default().into_iter().filter_map(amount).collect(),
            is_ready: status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True"),
            is_cordoned: spec.unschedulable.unwrap_or(false),
            is_leaving: node.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Why room on this node is none; `None` where it will last as far as anybody has said.
    pub fn unfit(&self) -> Option<String> {
        let announced = |taint: &&Taint| {
            DISRUPTION_TAINTS.iter().any(|known| if known.ends_with('/') { taint.key.starts_with(known) } else { taint.key == *known })
        };
        if self.is_leaving {
            return Some("being deleted".into());
        }
        if !self.is_ready {
            return Some("not Ready".into());
        }
        if self.is_cordoned {
            return Some("cordoned".into());
        }
        self.taints.iter().find(announced).map(|taint| format!("tainted {}", taint.key))
    }

    /// Why the scheduler would not put such a pod here whatever room there is; `None` where it may.
    pub fn refuses(&self, spec: &PodSpec) -> Option<Refusal> {
        if let Some((key, value)) = spec.node_selector.iter().find(|(key, value)| self.labels.get(*key) != Some(value)) {
            return Some(Refusal::Selector(format!("nodeSelector {key}={value}")));
        }
        if spec.required_node_terms().is_some_and(|terms| !terms.iter().any(|term| self.meets(term))) {
            return Some(Refusal::Selector("required node affinity".into()));
        }
        let is_kept_off = |taint: &&Taint| {
            matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !spec.tolerations.iter().any(|t| tolerates(t, taint))
        };
        self.taints.iter().find(is_kept_off).map(|taint| Refusal::Taint(taint.key.clone()))
    }

    /// Whether the node meets a term of a node affinity: all of its requirements, of which there must be one.
    fn meets(&self, term: &NodeSelectorTerm) -> bool {
        let (expressions, fields) =
            (term.match_expressions.as_deref().unwrap_or_default(), term.match_fields.as_deref().unwrap_or_default());
        let name = |field: &NodeSelectorRequirement| (field.key == "metadata.name").then_some(self.name.as_str());
        (!expressions.is_empty() || !fields.is_empty())
            && expressions.iter().all(|e| holds(e, self.labels.get(&e.key).map(String::as_str)))
            && fields.iter().all(|field| name(field).is_some_and(|name| holds(field, Some(name))))
    }
}

/// Why a node takes no pod of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    Selector(String),
    /// A taint that the pod does not tolerate.
    Taint(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Selector(what) => write!(f, "the node does not meet its {what}"),
            Self::Taint(key) => write!(f, "it does not tolerate the taint {key}"),
        }
    }
}

/// Whether a toleration lets a pod onto nodes with a taint (`k8s.io/component-helpers/scheduling`, ToleratesTaint).
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (if key.is_empty() { exists } else { key == taint.key })
        && (exists || text(&toleration.value) == taint.value.clone().unwrap_or_default())
}

/// Whether a requirement holds for a label's value, or for its absence (`apimachinery/pkg/labels`, Requirement.Matches).
pub fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|v| v == value);
    let compare = |greater: bool| match (value.and_then(|v| v.parse::<i64>().ok()), values) {
        (Some(found), [bound]) => bound.parse::<i64>().is_ok_and(|bound| if greater { found > bound } else { found < bound }),
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(true),
        "Lt" => compare(false),
        _ => false,
    }
}

/// Nodes by name.
pub type Nodes = BTreeMap<String, Node>;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(change: Value) -> Node {
        let mut node = json!({"metadata": {"name": "n", "labels": {"zone": "a", "size": "8"}},
            "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}});
        json_patch::merge(&mut node, &change);
        Node::read(serde_json::from_value(node).unwrap())
    }

    /// F10.
    #[test]
    fn f10_a_node_that_will_not_last_is_no_room() {
        assert_eq!(node(json!({})).unfit(), None);
        let taint = |key: &str, effect: &str| json!({"spec": {"taints": [{"key": key, "effect": effect}]}});
        for (change, why) in [
            (json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}), "not Ready"),
            (json!({"spec": {"unschedulable": true}}), "cordoned"),
            (taint("karpenter.sh/disrupted", "NoSchedule"), "tainted karpenter.sh/disrupted"),
            (taint("aws-node-termination-handler/spot-itn", "NoSchedule"), "tainted aws-node-termination-handler/spot-itn"),
            (taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"), "tainted DeletionCandidateOfClusterAutoscaler"),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "being deleted"),
        ] {
            assert_eq!(node(change).unfit().as_deref(), Some(why));
        }
        assert_eq!(node(taint("team", "NoSchedule")).unfit(), None);
    }

    #[test]
    fn a_pod_is_kept_off_by_selector_affinity_and_taint() {
        let refuses = |node: &Node, spec: Value| node.refuses(&serde_json::from_value(spec).unwrap()).is_some();
        let terms = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let plain = node(json!({}));
        assert!(!refuses(&plain, json!({})));
        assert!(refuses(&plain, json!({"nodeSelector": {"zone": "b"}})));
        assert!(!refuses(&plain, terms(json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]))));
        assert!(!refuses(&plain, terms(json!([{"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}]}]))));
        assert!(refuses(&plain, terms(json!([{}]))), "an empty term matches nothing");
        assert!(refuses(&plain, terms(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}]))));
        let tainted = node(json!({"spec": {"taints": [{"key": "team", "value": "ci", "effect": "NoSchedule"}]}}));
        assert!(refuses(&tainted, json!({})));
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": "team", "value": "ci"}),
            json!({"key": "team", "operator": "Exists", "effect": "NoSchedule"}),
        ] {
            assert!(!refuses(&tainted, json!({"tolerations": [toleration]})));
        }
        assert!(refuses(&tainted, json!({"tolerations": [{"key": "team", "value": "other"}]})));
        let soft = node(json!({"spec": {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}}));
        assert!(!refuses(&soft, json!({})));
    }
}
