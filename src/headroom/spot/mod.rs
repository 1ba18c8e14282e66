//! Which node labels mean spot, and what a pod's constraints say of them: it requires spot, is proven off it, or may land on it.

mod demands;
mod table;

use demands::Demands;
pub use table::{SpotRow, built_in, is_spot};

use super::object::{PodSpec, Toleration};

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

/// Whether the node selector and the required node affinity leave only spot nodes: every alternative that can be met must require spot.
/// Empty where the pod may run elsewhere.
pub fn requires_spot(spec: &PodSpec, rows: &[SpotRow]) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    for demands in Demands::of(spec) {
        let before = evidence.len();
        evidence.extend(rows.iter().filter_map(|row| require(&demands, row)));
        if evidence.len() == before {
            // One alternative without spot is enough.
            return vec![];
        }
    }
    evidence
}

/// What is known of the spot nodes of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse<'a> {
    /// Keys by which they are told; none where that is not known, and any row may be in use.
    pub keys: &'a [String],
    /// They all have a taint with the key and the value of their label, as AKS and GKE Autopilot put it.
    pub tainted: bool,
}

/// Why a pod may land on a spot node, in words; `None` where it is proven off spot.
pub fn may_land(spec: &PodSpec, rows: &[SpotRow], in_use: &InUse<'_>) -> Option<(String, String)> {
    let tolerates = |row: &&SpotRow| spec.tolerations.iter().any(|toleration| tolerates_spot(toleration, row));
    if in_use.tainted {
        return rows.iter().find(tolerates).map(|row| ("tolerations".into(), format!("a toleration of the taint {}", row.key)));
    }
    let leaking = Demands::of(spec).into_iter().find(|demands| !is_proven_off(demands, rows, in_use))?;
    Some(match spec.required_node_terms() {
        Some(terms) if terms.len() > 1 => (format!("{TERMS}[{}]", leaking.term), format!("term {} of {}", leaking.term + 1, terms.len())),
        Some(_) => (format!("{TERMS}[{}]", leaking.term), "a required node affinity that leaves spot nodes".into()),
        None if spec.node_selector.is_empty() => ("affinity".into(), "nothing that keeps it off spot nodes".into()),
        None => ("nodeSelector".into(), "a nodeSelector that leaves spot nodes".into()),
    })
}

/// Whether an alternative can only be met by nodes that are not spot.
fn is_proven_off(demands: &Demands<'_>, rows: &[SpotRow], in_use: &InUse<'_>) -> bool {
    let allows = |row: &SpotRow, values: &[String]| values.iter().any(|value| demands.allow(&row.key, Some(value)));
    let excludes = |row: &SpotRow| !allows(row, &row.spot);
    // A node with a provider's label for regular nodes is one, whatever other labels there are.
    let is_pinned =
        |row: &SpotRow| excludes(row) && !demands.allow(&row.key, None) && (allows(row, &row.regular) || allows(row, &row.other));
    if rows.iter().any(is_pinned) {
        return true;
    }
    match in_use.keys {
        // The spot nodes of one key are shut out, and so are those of every key that may stand beside it.
        [] => rows.iter().any(|row| {
            let kin = |other: &&SpotRow| other.key == row.key || (other.family.is_some() && other.family == row.family);
            demands.on(&row.key).next().is_some() && rows.iter().filter(kin).all(excludes)
        }),
        keys => rows.iter().filter(|row| keys.contains(&row.key)).all(excludes),
    }
}

/// Whether a toleration lets a pod onto nodes with the taint that goes with a row (`k8s.io/component-helpers/scheduling`).
fn tolerates_spot(toleration: &Toleration, row: &SpotRow) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.clone().unwrap_or_default();
    matches!(effect, "" | "NoSchedule") && (if key.is_empty() { exists } else { key == row.key && (exists || row.spot.contains(&value)) })
}

/// A value of a known key that no row knows, so that the pod matches no node: field, value, and the row.
pub fn unknown_value<'a>(spec: &PodSpec, rows: &'a [SpotRow]) -> Option<(String, String, &'a SpotRow)> {
    rows.iter().filter(|row| row.has_every_value()).find_map(|row| {
        let value = spec.node_selector.get(&row.key).filter(|value| row.values().all(|known| known != *value))?;
        let meant_as_spot = row.spot.iter().any(|spot| spot.eq_ignore_ascii_case(value));
        (!meant_as_spot).then(|| (format!("nodeSelector[{}]", row.key), value.clone(), row))
    })
}

const TERMS: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

fn require(demands: &Demands<'_>, row: &SpotRow) -> Option<Evidence> {
    let allow_any = |values: &[String]| values.iter().any(|value| demands.allow(&row.key, Some(value)));
    // A value that differs from a spot value only in case was meant as that value, though no node carries it.
    let misspelt = demands.named(&row.key).find(|value| {
        row.spot.iter().any(|spot| spot.eq_ignore_ascii_case(value) && spot != value) && demands.allow(&row.key, Some(value))
    });
    let spot = allow_any(&row.spot) || misspelt.is_some();
    let absent = demands.allow(&row.key, None);
    let only_spot = !allow_any(&row.regular) && !allow_any(&row.other) && !absent;
    // `NotIn [on-demand]` lets nodes without the label through, but shuts out every regular node that has it.
    let regular_shut_out = !row.regular.is_empty() && !allow_any(&row.regular) && absent;
    if !spot || !(only_spot || regular_shut_out) {
        return None;
    }
    let (field, found) = match (demands.selector.get(&row.key), demands.on(&row.key).next()) {
        (Some(value), _) => (format!("nodeSelector[{}]", row.key), value.clone()),
        (None, Some((index, expression))) => (
            format!("{TERMS}[{}].matchExpressions[{index}]", demands.term),
            format!("{} {} {:?}", expression.key, expression.operator, expression.values.as_deref().unwrap_or_default()),
        ),
        (None, None) => return None,
    };
    Some(Evidence { field, found, row: row.clone(), misspelt: misspelt.is_some() && !allow_any(&row.spot) })
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
