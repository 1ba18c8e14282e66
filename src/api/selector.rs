//! A label selector that refuses unknown fields: a misspelt `matchLabels` would otherwise select everything.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, Selector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;

/// Selects by labels, as `metav1.LabelSelector` does: all of `matchLabels` and all of `matchExpressions` must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must be present with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// How the key relates to `values`.
    pub operator: Operator,
    /// One value at least for `In` and `NotIn`, none for `Exists` and `DoesNotExist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    pub(crate) fn problems(&self, path: &str, problems: &mut Problems) {
        for (i, requirement) in self.match_expressions.iter().enumerate() {
            let wants_values = matches!(requirement.operator, Operator::In | Operator::NotIn);
            if wants_values == requirement.values.is_empty() {
                let wanted = if wants_values { "at least one value" } else { "no values" };
                problems.push(
                    format!("{path}.matchExpressions[{i}].values"),
                    format!("{:?}", requirement.values),
                    format!("{wanted} with operator {:?}", requirement.operator),
                );
            }
        }
    }

    /// The selector in the form that matches labels here and prints itself for the API server's `labelSelector`.
    pub fn compile(&self) -> Selector {
        let labels = self.match_labels.iter().map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
        let requirements = self.match_expressions.iter().map(|requirement| {
            let key = requirement.key.clone();
            let values: BTreeSet<String> = requirement.values.iter().cloned().collect();
            match requirement.operator {
                Operator::In => Expression::In(key, values),
                Operator::NotIn => Expression::NotIn(key, values),
                Operator::Exists => Expression::Exists(key),
                Operator::DoesNotExist => Expression::DoesNotExist(key),
            }
        });
        labels.chain(requirements).collect()
    }
}
