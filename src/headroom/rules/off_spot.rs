//! `offSpot`: a placeholder that requires spot nodes is reclaimed together with the pods it should make room for.

use super::{Context, Finding, Rule, one_of};
use crate::api::Pool;
use crate::api::headroom_pool::Mode;
use crate::headroom::native::{About, Twin, list, quoted};
use crate::headroom::object::Object;
use crate::headroom::spot;

pub const RULE: Rule = Rule {
    id: "offSpot",
    mode,
    check,
    native,
    unseen: "that an alternative of the affinity cannot be met, alone or with the nodeSelector; several expressions about one key",
};

/// A value that nobody knows is at most a warning: somebody may know it.
fn mode(pool: &Pool, object: &Object) -> Mode {
    let requires = object.pod_spec().is_some_and(|spec| !spot::requires_spot(spec, &pool.spot_rows).is_empty());
    let mode = pool.spec.rules.off_spot;
    if requires { mode } else { mode.at_most_warn() }
}

fn check(context: &Context<'_>) -> Option<Finding> {
    let (spec, rows) = (context.pod_spec()?, &context.pool.spot_rows);
    let all = spot::requires_spot(spec, rows);
    let Some(evidence) = all.first() else {
        let (field, value, row) = spot::unknown_value(spec, rows)?;
        return Some(Finding {
            field: context.below_spec(&field),
            found: format!("`{value}`"),
            wanted: one_of(row.values()),
            why: format!("no node of {} has that value, so the placeholder would stay Pending for ever", row.provider),
            evidence: vec![format!("{} {value}", row.key)],
        });
    };
    let row = &evidence.row;
    let hint = if evidence.misspelt {
        format!("; the value is written {}, so this one matches no node at all", one_of(&row.spot))
    } else {
        String::new()
    };
    let wanted = match row.regular.is_empty() {
        true => format!("nodes without the label {}", row.key),
        false => format!("{} {}", row.key, one_of(&row.regular)),
    };
    Some(Finding {
        field: context.below_spec(&evidence.field),
        found: format!("`{}`", evidence.found),
        wanted,
        why: format!("that is a spot node ({}), which a reclaim takes away together with the pods that need the room{hint}", row.provider),
        evidence: all.iter().map(|evidence| format!("{} {}", evidence.row.key, evidence.found)).collect(),
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let map = |rows: Vec<String>| format!("{{{}}}", rows.join(", "));
    // By any case: a spot value in the wrong one was meant as spot all the same.
    let lower = |values: &[String]| values.iter().map(|value| value.to_lowercase()).collect::<Vec<_>>();
    let rows = &pool.spot_rows;
    let spot = map(rows.iter().map(|row| format!("{}: {}", quoted(&row.key), list(&lower(&row.spot)))).collect());
    let regular =
        map(rows.iter().filter(|row| !row.regular.is_empty()).map(|row| format!("{}: {}", quoted(&row.key), list(&row.regular))).collect());
    let only_spot: Vec<String> =
        rows.iter().filter(|row| row.regular.is_empty() && row.other.is_empty()).map(|row| row.key.clone()).collect();
    let is_spot = |key: &str, value: &str| format!("({key} in {spot} && {value}.lowerAscii() in {spot}[{key}])");
    let requires = format!(
        "(e.operator == 'In' && e.values.size() > 0 && e.values.all(v, {})) || (e.operator == 'Exists' && e.key in {}) || \
         (e.operator == 'NotIn' && e.key in {regular} && {regular}[e.key].all(r, r in e.values) && !e.values.exists(v, {}))",
        is_spot("e.key", "v"),
        list(&only_spot),
        is_spot("e.key", "v")
    );
    let required = |spec: &str| {
        let node = format!("{spec}.affinity.nodeAffinity");
        let all = format!("{node}.requiredDuringSchedulingIgnoredDuringExecution");
        let terms = format!("{all}.nodeSelectorTerms");
        // A term without anything matches no node, so it is no alternative.
        let is_term = "((has(t.matchExpressions) && t.matchExpressions.size() > 0) || (has(t.matchFields) && t.matchFields.size() > 0))";
        let by_term = format!("has(t.matchExpressions) && t.matchExpressions.exists(e, {requires})");
        let by_affinity = format!(
            "(has({spec}.affinity) && has({node}) && has({all}) && {terms}.exists(t, {is_term}) && {terms}.all(t, !{is_term} || ({by_term})))"
        );
        let by_selector =
            format!("(has({spec}.nodeSelector) && {spec}.nodeSelector.exists(k, {}))", is_spot("k", &format!("{spec}.nodeSelector[k]")));
        format!("({by_selector} || {by_affinity})")
    };
    let known = rows.iter().filter(|row| row.has_every_value());
    let known = map(known.map(|row| format!("{}: {}", quoted(&row.key), list(row.values()))).collect());
    let is_unknown = |spec: &str| {
        let value = format!("{spec}.nodeSelector[k]");
        format!(
            "has({spec}.nodeSelector) && {spec}.nodeSelector.exists(k, k in {known} && !({value} in {known}[k]) && !{})",
            is_spot("k", &value)
        )
    };
    let unknown = Twin {
        part: "unknown",
        about: About::PodsAndTemplates,
        mode: pool.spec.rules.off_spot.at_most_warn(),
        // Where it requires spot as well, that is what is said.
        holds: format!("{} || !({})", required("variables.spec"), is_unknown("variables.spec")),
        was_so: is_unknown("variables.old"),
        message: "'no node has that value of a capacity label, so the placeholder would stay Pending for ever'".into(),
    };
    let requires_spot = Twin {
        part: "",
        about: About::PodsAndTemplates,
        mode: pool.spec.rules.off_spot,
        holds: format!("!{}", required("variables.spec")),
        was_so: required("variables.old"),
        message: "'its nodeSelector or its required node affinity leaves only spot nodes, which a reclaim takes away together with the pods that need the room'"
            .into(),
    };
    vec![requires_spot, unknown]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::check_pod;
    use super::*;

    /// D1.
    #[test]
    fn d1_names_the_key_the_value_and_the_provider() {
        let finding = check_pod(&RULE, json!({}), json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}})).unwrap();
        assert_eq!(finding.field, "spec.nodeSelector[karpenter.sh/capacity-type]");
        assert_eq!((finding.found.as_str(), finding.wanted.as_str()), ("`spot`", "karpenter.sh/capacity-type `on-demand`"));
        assert!(finding.why.contains("Karpenter"));
    }

    /// D2.
    #[test]
    fn d2_says_that_a_misspelt_value_matches_no_node() {
        let finding = check_pod(&RULE, json!({}), json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "spot"}})).unwrap();
        assert!(finding.why.ends_with("the value is written `SPOT`, so this one matches no node at all"), "{}", finding.why);
    }

    /// D3: a value that no node has.
    #[test]
    fn d3_an_unknown_value_is_a_warning() {
        let spec = json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "ONDEMAND"}});
        let finding = check_pod(&RULE, json!({}), spec.clone()).unwrap();
        assert_eq!(finding.wanted, "`ON_DEMAND` or `CAPACITY_BLOCK` or `SPOT`");
        assert!(finding.why.contains("stay Pending for ever"));
        let object = Object::read(crate::headroom::object::Kind::Pod, &json!({"spec": spec}).to_string()).unwrap();
        assert_eq!(mode(&super::super::tests::pool(json!({})), &object), Mode::Warn);
        // What a convention means by a value is anybody's guess.
        assert_eq!(check_pod(&RULE, json!({}), json!({"nodeSelector": {"lifecycle": "long"}})), None);
    }

    /// D15: home-grown keys are data.
    #[test]
    fn d15_a_row_of_the_pool_counts_as_a_built_in_one() {
        let spec = json!({"nodeSelector": {"example.com/market": "cheap"}});
        assert_eq!(check_pod(&RULE, json!({}), spec.clone()), None);
        let rows = json!({"spotNodes": [{"provider": "us", "key": "example.com/market", "spot": ["cheap"]}]});
        assert_eq!(check_pod(&RULE, rows, spec).unwrap().wanted, "nodes without the label example.com/market");
    }
}
