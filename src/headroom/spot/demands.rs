//! What a pod's node selector and one term of its affinity demand of a node's labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use crate::headroom::node::holds;
use crate::headroom::object::PodSpec;

/// What one term, together with the node selector, demands of each label.
pub struct Demands<'a> {
    pub selector: &'a BTreeMap<String, String>,
    pub term: usize,
    expressions: &'a [NodeSelectorRequirement],
}

impl<'a> Demands<'a> {
    /// One for each alternative that some node can meet.
    ///
    /// The node selector and the affinity must both hold; terms are alternatives; within a term all expressions must hold; a term
    /// without expressions matches no node (`component-helpers/scheduling/corev1/nodeaffinity`). Preferred terms never exclude a node.
    pub fn of(spec: &'a PodSpec) -> Vec<Self> {
        let Some(terms) = spec.required_node_terms() else { return vec![Self::new(&spec.node_selector, 0, &[])] };
        let can_match = |(_, term): &(usize, &NodeSelectorTerm)| {
            term.match_expressions.as_ref().is_some_and(|e| !e.is_empty()) || term.match_fields.as_ref().is_some_and(|f| !f.is_empty())
        };
        let demands = |(index, term): (usize, &'a NodeSelectorTerm)| {
            Self::new(&spec.node_selector, index, term.match_expressions.as_deref().unwrap_or_default())
        };
        terms.iter().enumerate().filter(can_match).map(demands).filter(Self::can_be_met).collect()
    }

    fn new(selector: &'a BTreeMap<String, String>, term: usize, expressions: &'a [NodeSelectorRequirement]) -> Self {
        Self { selector, term, expressions }
    }

    pub fn on(&self, key: &str) -> impl Iterator<Item = (usize, &'a NodeSelectorRequirement)> {
        self.expressions.iter().enumerate().filter(move |(_, e)| e.key == key)
    }

    /// Whether a node with this value of the label, or without the label, may be chosen.
    pub fn allow(&self, key: &str, value: Option<&str>) -> bool {
        self.selector.get(key).is_none_or(|wanted| value == Some(wanted)) && self.on(key).all(|(_, expression)| holds(expression, value))
    }

    /// Values of the label that are named anywhere.
    pub fn named(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.selector.get(key).into_iter().chain(self.on(key).flat_map(|(_, e)| e.values.iter().flatten())).map(String::as_str)
    }

    /// Whether some node could exist that meets them. A number beyond all that are named stands for "any other value".
    pub fn can_be_met(&self) -> bool {
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
}
