//! `spreads`: a constraint that should keep placeholders apart, and whose selector does not match the placeholders themselves, keeps
//! nothing apart: all of them may stand on the one node that a reclaim takes.

use kube::core::{Selector, SelectorExt};

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::headroom::native::{About, Twin};
use crate::headroom::object::{Body, Spread};

pub const RULE: Rule = Rule { id: "spreads", mode: |pool, _| pool.spec.rules.spreads, check, native, unseen: "" };

fn check(context: &Context<'_>) -> Option<Finding> {
    let Body::Pod { labels, spec } = &context.object.body else { return None };
    let matches = |spread: &Spread| match &spread.label_selector {
        // Without a selector a constraint matches no pod at all.
        None => false,
        // What cannot be read is left to the API server.
        Some(selector) => Selector::try_from(selector.clone()).map_or(true, |selector| selector.matches(labels)),
    };
    let (field, spread) = spec.spreads().find(|(_, spread)| !matches(spread))?;
    let found = match &spread.label_selector {
        None => "no labelSelector".to_owned(),
        Some(selector) => format!("`{}`", Selector::try_from(selector.clone()).map(|s| s.to_string()).unwrap_or_default()),
    };
    Some(Finding {
        field: context.below_spec(&format!("{field}.labelSelector")),
        found: found.clone(),
        wanted: "a selector that matches the placeholder's own labels".into(),
        why: "it keeps the placeholders apart from other pods and not from each other, so that one node may hold all of the headroom"
            .into(),
        evidence: vec![found],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let equal = "(!has(c.labelSelector.matchLabels) || c.labelSelector.matchLabels.all(k, k in variables.labels && variables.labels[k] == c.labelSelector.matchLabels[k]))";
    let holds = "e.operator == 'In' ? (e.key in variables.labels && variables.labels[e.key] in e.values) : \
                 e.operator == 'NotIn' ? !(e.key in variables.labels && variables.labels[e.key] in e.values) : \
                 e.operator == 'Exists' ? e.key in variables.labels : !(e.key in variables.labels)";
    let expressions = format!("(!has(c.labelSelector.matchExpressions) || c.labelSelector.matchExpressions.all(e, {holds}))");
    let matches = format!("has(c.labelSelector) && {equal} && {expressions}");
    let all = |spec: &str| {
        let anti = format!("{spec}.affinity.podAntiAffinity");
        let (required, preferred) = (
            format!("{anti}.requiredDuringSchedulingIgnoredDuringExecution"),
            format!("{anti}.preferredDuringSchedulingIgnoredDuringExecution"),
        );
        let of_preferred = matches.replace("c.labelSelector", "p.podAffinityTerm.labelSelector");
        format!(
            "(!has({spec}.topologySpreadConstraints) || {spec}.topologySpreadConstraints.all(c, {matches})) && \
             (!has({spec}.affinity) || !has({anti}) || ((!has({required}) || {required}.all(c, {matches})) && (!has({preferred}) || {preferred}.all(p, {of_preferred}))))"
        )
    };
    vec![Twin {
        part: "",
        about: About::PodsAndTemplates,
        mode: pool.spec.rules.spreads,
        holds: all("variables.spec"),
        // The old constraints, held against the labels of now: near enough for a warning.
        was_so: format!("!({})", all("variables.old")),
        message: "'a constraint that keeps pods apart does not match the placeholder itself'".into(),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::check;
    use super::*;
    use crate::headroom::object::Kind;

    fn found(spec: Value) -> Option<Finding> {
        check(&RULE, json!({}), Kind::Pod, json!({"metadata": {"name": "p", "labels": {"app": "room"}}, "spec": spec}))
    }

    #[test]
    fn a_constraint_must_match_the_pod_itself() {
        let spread = |selector: Value| json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]});
        assert_eq!(found(spread(json!({"matchLabels": {"app": "room"}}))), None);
        assert_eq!(found(spread(json!({}))), None, "an empty selector matches every pod");
        assert_eq!(found(json!({})), None);
        let finding = found(spread(json!({"matchLabels": {"app": "rooms"}}))).unwrap();
        assert_eq!((finding.field.as_str(), finding.found.as_str()), ("spec.topologySpreadConstraints[0].labelSelector", "`app=rooms`"));
        assert_eq!(found(spread(Value::Null)).unwrap().found, "no labelSelector");
    }

    #[test]
    fn so_must_an_anti_affinity_of_either_kind() {
        let term = |label: &str| json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": [label]}]}});
        let required =
            |label: &str| json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term(label)]}}});
        let preferred = |label: &str| json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(label)}]}}});
        assert_eq!((found(required("room")), found(preferred("room"))), (None, None));
        assert!(found(required("web")).unwrap().field.ends_with("requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector"));
        assert!(found(preferred("web")).unwrap().field.ends_with("[0].podAffinityTerm.labelSelector"));
    }
}
