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
    /// Whether it says what to select, rather than only what to leave out.
    pub fn names_something(&self) -> bool {
        let positive = |requirement: &Requirement| matches!(requirement.operator, Operator::In | Operator::Exists);
        !self.match_labels.is_empty() || self.match_expressions.iter().any(positive)
    }

    pub(crate) fn problems(&self, path: &str, problems: &mut Problems) {
        for (key, value) in &self.match_labels {
            check_key(&format!("{path}.matchLabels"), key, problems);
            check_value(&format!("{path}.matchLabels[{key}]"), value, problems);
        }
        for (i, requirement) in self.match_expressions.iter().enumerate() {
            check_key(&format!("{path}.matchExpressions[{i}].key"), &requirement.key, problems);
            for (j, value) in requirement.values.iter().enumerate() {
                check_value(&format!("{path}.matchExpressions[{i}].values[{j}]"), value, problems);
            }
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

/// A label's name or value: at most 63 characters, alphanumeric at both ends, and `-`, `_`, `.` between
/// (`apimachinery/pkg/util/validation`, IsQualifiedName and IsValidLabelValue).
fn is_label_text(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63 && text.chars().all(inside) && end(text.chars().next()) && end(text.chars().last())
}

/// A part of a DNS name (RFC 1123), as the API server wants it of a key's prefix.
fn is_dns_label(part: &str) -> bool {
    is_label_text(part) && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn check_key(path: &str, key: &str, problems: &mut Problems) {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let good_prefix = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_dns_label));
    if !is_label_text(name) || !good_prefix {
        problems.push(path, format!("key `{key}`"), "the key of a label, such as app or example.com/app");
    }
}

fn check_value(path: &str, value: &str, problems: &mut Problems) {
    if !value.is_empty() && !is_label_text(value) {
        problems.push(
            path,
            format!("`{value}`"),
            "the value of a label: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(labels: &[(&str, &str)]) -> usize {
        let match_labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let mut problems = Problems::default();
        LabelSelector { match_labels, match_expressions: vec![] }.problems("spec.selector", &mut problems);
        problems.0.len()
    }

    #[test]
    fn refuses_what_the_api_server_would_refuse_in_a_list() {
        for good in [("app", "web"), ("example.com/app", ""), ("a_b.c-d", "A.1_b-2"), ("app", "x".repeat(63).as_str())] {
            assert_eq!(problems(&[good]), 0, "{good:?}");
        }
        for bad in [
            ("app", "Web Server"),
            ("app", "web,tier=db"),
            ("app", "-a"),
            ("", "a"),
            ("/a", "b"),
            ("a/b/c", "d"),
            ("UPPER.com/a", "b"),
            ("a_b.com/x", "y"),
            ("app", "x".repeat(64).as_str()),
        ] {
            assert_eq!(problems(&[bad]), 1, "{bad:?}");
        }
    }
}
