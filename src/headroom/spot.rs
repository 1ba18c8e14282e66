//! Which node labels mean spot, and when a pod requires them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::object::PodSpec;

/// One node label by which a provider or a tool tells spot nodes from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpotRow {
    /// Who sets the label; shown in messages.
    #[serde(default)]
    pub provider: String,
    /// The label's key.
    pub key: String,
    /// Values that mean spot.
    pub spot: Vec<String>,
    /// Values that mean a regular node; none where a regular node does not carry the label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regular: Vec<String>,
    /// Further values that do not mean spot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other: Vec<String>,
}

/// A row of the built-in table.
struct BuiltIn {
    provider: &'static str,
    key: &'static str,
    spot: &'static [&'static str],
    regular: &'static [&'static str],
    other: &'static [&'static str],
}

/// The built-in table. Sources are the providers' documentation and the source of the tools that set the labels.
#[rustfmt::skip]
const TABLE: &[BuiltIn] = &[
    BuiltIn { provider: "Karpenter, EKS Auto Mode, AKS node auto-provisioning", key: "karpenter.sh/capacity-type", spot: &["spot"], regular: &["on-demand"], other: &["reserved"] },
    BuiltIn { provider: "EKS managed node groups", key: "eks.amazonaws.com/capacityType", spot: &["SPOT"], regular: &["ON_DEMAND"], other: &["CAPACITY_BLOCK"] },
    BuiltIn { provider: "Karpenter on AWS", key: "karpenter.k8s.aws/capacity-reservation-interruptible", spot: &["true"], regular: &["false"], other: &[] },
    BuiltIn { provider: "GKE spot VMs", key: "cloud.google.com/gke-spot", spot: &["true"], regular: &[], other: &[] },
    BuiltIn { provider: "GKE preemptible VMs", key: "cloud.google.com/gke-preemptible", spot: &["true"], regular: &[], other: &[] },
    BuiltIn { provider: "GKE", key: "cloud.google.com/gke-provisioning", spot: &["spot", "preemptible"], regular: &["standard"], other: &[] },
    BuiltIn { provider: "AKS", key: "kubernetes.azure.com/scalesetpriority", spot: &["spot"], regular: &[], other: &["regular"] },
    BuiltIn { provider: "Karpenter on Azure", key: "kubernetes.azure.com/priority", spot: &["spot"], regular: &["regular"], other: &[] },
    BuiltIn { provider: "Oracle OKE", key: "oci.oraclecloud.com/oke-is-preemptible", spot: &["true"], regular: &[], other: &[] },
    BuiltIn { provider: "Alibaba ACK", key: "node.alibabacloud.com/spot-strategy", spot: &["SpotWithPriceLimit", "SpotAsPriceGo"], regular: &["NoSpot"], other: &[] },
    BuiltIn { provider: "Yandex", key: "yandex.cloud/preemptible", spot: &["true"], regular: &["false"], other: &[] },
    BuiltIn { provider: "OpenShift Machine API", key: "machine.openshift.io/interruptible-instance", spot: &[""], regular: &[], other: &[] },
    BuiltIn { provider: "Spot Ocean", key: "spotinst.io/node-lifecycle", spot: &["spot"], regular: &["od"], other: &[] },
    BuiltIn { provider: "CAST AI", key: "scheduling.cast.ai/spot", spot: &["true"], regular: &[], other: &[] },
    BuiltIn { provider: "convention", key: "lifecycle", spot: &["spot", "Ec2Spot"], regular: &["OnDemand", "normal", "on-demand"], other: &[] },
    BuiltIn { provider: "convention", key: "node.kubernetes.io/lifecycle", spot: &["spot"], regular: &["normal", "on-demand"], other: &[] },
    BuiltIn { provider: "convention", key: "kubernetes.io/lifecycle", spot: &["spot"], regular: &["normal", "on-demand"], other: &[] },
    BuiltIn { provider: "convention", key: "node-lifecycle", spot: &["spot"], regular: &["normal", "on-demand"], other: &[] },
    BuiltIn { provider: "convention", key: "aws.amazon.com/spot", spot: &["true"], regular: &["false"], other: &[] },
    BuiltIn { provider: "convention", key: "node-role.kubernetes.io/spot-worker", spot: &["true"], regular: &[], other: &[] },
    BuiltIn { provider: "convention", key: "spot", spot: &["true"], regular: &["false"], other: &[] },
];

/// Whether a node with these labels is a spot node.
pub fn is_spot(labels: &BTreeMap<String, String>, rows: &[SpotRow]) -> bool {
    rows.iter().any(|row| labels.get(&row.key).is_some_and(|value| row.spot.contains(value)))
}

/// The built-in rows.
pub fn built_in() -> Vec<SpotRow> {
    let texts = |values: &[&str]| values.iter().map(ToString::to_string).collect();
    let row = |row: &BuiltIn| SpotRow {
        provider: row.provider.into(),
        key: row.key.into(),
        spot: texts(row.spot),
        regular: texts(row.regular),
        other: texts(row.other),
    };
    TABLE.iter().map(row).collect()
}

/// Why a pod can only run on spot nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Where it says so, below the pod spec.
    pub field: String,
    pub found: String,
    pub row: SpotRow,
    /// The value is written in a way that no node carries.
    pub misspelt: bool,
}

/// Whether the node selector and the required node affinity leave only spot nodes.
///
/// The node selector and the affinity must both hold; terms are alternatives; within a term all expressions must hold; a term
/// without expressions matches no node (`component-helpers/scheduling/corev1/nodeaffinity`). So every term that can be met
/// must require spot. Preferred terms and tolerations never exclude a node. Empty where the pod may run elsewhere.
pub fn requires_spot(spec: &PodSpec, rows: &[SpotRow]) -> Vec<Evidence> {
    let no_terms = [NodeSelectorTerm::default()];
    let (terms, any_term) = match spec.required_node_terms() {
        Some(terms) => (terms, false),
        None => (no_terms.as_slice(), true),
    };
    let mut evidence = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let matches_nothing = expressions.is_empty() && term.match_fields.as_ref().is_none_or(Vec::is_empty);
        if matches_nothing && !any_term {
            continue;
        }
        let demands = Demands::new(&spec.node_selector, index, expressions);
        if !demands.can_be_met() {
            continue;
        }
        let before = evidence.len();
        evidence.extend(rows.iter().filter_map(|row| demands.require(row)));
        if evidence.len() == before {
            // One term that can be met without spot is enough.
            return vec![];
        }
    }
    evidence
}

/// What one term, together with the node selector, demands of each label.
struct Demands<'a> {
    selector: &'a BTreeMap<String, String>,
    term: usize,
    expressions: &'a [NodeSelectorRequirement],
}

impl<'a> Demands<'a> {
    fn new(selector: &'a BTreeMap<String, String>, term: usize, expressions: &'a [NodeSelectorRequirement]) -> Self {
        Self { selector, term, expressions }
    }

    fn on(&self, key: &str) -> impl Iterator<Item = (usize, &'a NodeSelectorRequirement)> {
        self.expressions.iter().enumerate().filter(move |(_, e)| e.key == key)
    }

    /// Whether a node with this value of the label, or without the label, may be chosen.
    fn allow(&self, key: &str, value: Option<&str>) -> bool {
        self.selector.get(key).is_none_or(|wanted| value == Some(wanted)) && self.on(key).all(|(_, expression)| holds(expression, value))
    }

    /// Values of the label that are named anywhere.
    fn named(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.selector.get(key).into_iter().chain(self.on(key).flat_map(|(_, e)| e.values.iter().flatten())).map(String::as_str)
    }

    /// Whether some node could exist that meets them. A number beyond all that are named stands for "any other value".
    fn can_be_met(&self) -> bool {
        let keys = self.selector.keys().chain(self.expressions.iter().map(|e| &e.key));
        keys.into_iter().all(|key| {
            let bounds = self.named(key).filter_map(|v| v.parse::<i64>().ok());
            let (below, above) =
                bounds.fold((-1, 1), |(low, high): (i64, i64), v| (low.min(v.saturating_sub(1)), high.max(v.saturating_add(1))));
            let others = [below.to_string(), above.to_string(), "any other value".into()];
            self.allow(key, None)
                || self.named(key).any(|value| self.allow(key, Some(value)))
                || others.iter().any(|value| self.allow(key, Some(value)))
        })
    }

    fn require(&self, row: &SpotRow) -> Option<Evidence> {
        let allow_any = |values: &[String]| values.iter().any(|value| self.allow(&row.key, Some(value)));
        // A value that differs from a spot value only in case was meant as that value, though no node carries it.
        let misspelt = self.named(&row.key).find(|value| {
            row.spot.iter().any(|spot| spot.eq_ignore_ascii_case(value) && spot != value) && self.allow(&row.key, Some(value))
        });
        let spot = allow_any(&row.spot) || misspelt.is_some();
        let absent = self.allow(&row.key, None);
        let only_spot = !allow_any(&row.regular) && !allow_any(&row.other) && !absent;
        // `NotIn [on-demand]` lets nodes without the label through, but shuts out every regular node that has it.
        let regular_shut_out = !row.regular.is_empty() && !allow_any(&row.regular) && absent;
        if !spot || !(only_spot || regular_shut_out) {
            return None;
        }
        let (field, found) = match (self.selector.get(&row.key), self.on(&row.key).next()) {
            (Some(value), _) => (format!("nodeSelector[{}]", row.key), value.clone()),
            (None, Some((index, expression))) => (
                format!(
                    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{}].matchExpressions[{index}]",
                    self.term
                ),
                format!("{} {} {:?}", expression.key, expression.operator, expression.values.as_deref().unwrap_or_default()),
            ),
            (None, None) => return None,
        };
        Some(Evidence { field, found, row: row.clone(), misspelt: misspelt.is_some() && !allow_any(&row.spot) })
    }
}

/// Whether a requirement holds for a label's value, or for its absence (`apimachinery/pkg/labels`, Requirement.Matches).
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn evidence(spec: Value) -> Option<Evidence> {
        requires_spot(&serde_json::from_value(spec).unwrap(), &built_in()).into_iter().next()
    }

    fn terms(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        terms(json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
    }

    #[test]
    fn every_row_is_found_by_selector_and_by_affinity() {
        for row in built_in() {
            for value in &row.spot {
                let found = evidence(json!({"nodeSelector": {&row.key: value}})).expect(&row.key);
                assert_eq!((found.field, found.found.as_str()), (format!("nodeSelector[{}]", row.key), value.as_str()));
                assert!(evidence(expression(&row.key, "In", &[value])).is_some(), "{}", row.key);
            }
            for value in row.regular.iter().chain(&row.other) {
                assert_eq!(evidence(json!({"nodeSelector": {&row.key: value}})), None, "{}={value}", row.key);
                let mixed = [row.spot[0].as_str(), value.as_str()];
                assert_eq!(evidence(expression(&row.key, "In", &mixed)), None, "{} {mixed:?}", row.key);
            }
            let spot: Vec<&str> = row.spot.iter().map(String::as_str).collect();
            assert_eq!(evidence(expression(&row.key, "NotIn", &spot)), None, "{}", row.key);
            assert_eq!(evidence(expression(&row.key, "DoesNotExist", &[])), None, "{}", row.key);
        }
    }

    #[test]
    fn existence_means_spot_only_where_regular_nodes_lack_the_label() {
        assert!(evidence(expression("cloud.google.com/gke-spot", "Exists", &[])).is_some());
        assert_eq!(evidence(expression("node.alibabacloud.com/spot-strategy", "Exists", &[])), None);
    }

    /// D2: the label is upper case, so the pod would match no node.
    #[test]
    fn d2_a_value_in_the_wrong_case_is_meant_as_spot() {
        assert!(!evidence(json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "SPOT"}})).unwrap().misspelt);
        assert!(evidence(json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "spot"}})).unwrap().misspelt);
    }

    /// D11: shutting out on-demand is asking for spot; listing both is not.
    #[test]
    fn d11_shutting_out_regular_nodes_requires_spot() {
        let key = "karpenter.sh/capacity-type";
        assert!(evidence(expression(key, "NotIn", &["on-demand"])).is_some());
        assert!(evidence(expression(key, "NotIn", &["on-demand", "reserved"])).is_some());
        assert_eq!(evidence(expression(key, "In", &["spot", "on-demand"])), None);
        assert_eq!(evidence(expression(key, "In", &["reserved"])), None);
        assert_eq!(evidence(expression(key, "Exists", &[])), None);
    }

    /// D8: terms are alternatives.
    #[test]
    fn d8_one_term_without_spot_is_enough() {
        let spot = json!({"matchExpressions": [{"key": "spot", "operator": "In", "values": ["true"]}]});
        let zone = json!({"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z-2"]}]});
        assert_eq!(evidence(terms(json!([spot, zone]))), None);
        assert!(evidence(terms(json!([spot, spot]))).is_some());
        assert!(evidence(terms(json!([spot, {}]))).is_some(), "an empty term matches no node");
        let impossible = json!({"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]}, {"key": "zone", "operator": "NotIn", "values": ["a"]}]});
        assert!(evidence(terms(json!([spot, impossible]))).is_some(), "a contradiction matches no node");
    }

    #[test]
    fn expressions_of_a_term_hold_together() {
        let both = terms(json!([{"matchExpressions": [
            {"key": "spot", "operator": "Exists"}, {"key": "spot", "operator": "NotIn", "values": ["false"]}]}]));
        assert!(evidence(both).is_some());
        let mut off = terms(json!([{"matchExpressions": [{"key": "spot", "operator": "Exists"}]}]));
        off["nodeSelector"] = json!({"spot": "false"});
        assert_eq!(evidence(off), None);
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        let mut spec = expression("cpus", "Gt", &["8"]);
        spec["nodeSelector"] = json!({"spot": "true"});
        assert!(evidence(spec).is_some(), "Gt can be met");
        let mut spec = terms(json!([{"matchExpressions": [{"key": "cpus", "operator": "Gt", "values": ["many"]}]}]));
        spec["nodeSelector"] = json!({"spot": "true"});
        assert_eq!(evidence(spec), None, "a bound that is no number matches no node");
    }

    /// D10, D13: a preference, or nothing at all, may land anywhere.
    #[test]
    fn preferences_and_tolerations_require_nothing() {
        assert_eq!(evidence(json!({})), None);
        assert_eq!(evidence(json!({"affinity": null, "nodeSelector": null})), None);
        assert_eq!(
            evidence(json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": [{"key": "spot", "operator": "In", "values": ["true"]}]}}]}}})),
            None
        );
        assert_eq!(evidence(json!({"tolerations": [{"key": "spot", "operator": "Exists"}]})), None);
    }
}
