//! `offSpot`: a placeholder that requires spot nodes is reclaimed together with the pods it should make room for.

use super::{Context, Finding, Rule};
use crate::headroom::spot;

pub const RULE: Rule = Rule { id: "offSpot", mode: |pool, _| pool.spec.rules.off_spot, check };

fn check(context: &Context<'_>) -> Option<Finding> {
    let all = spot::requires_spot(context.pod_spec()?, &context.pool.spot_rows);
    let evidence = all.first()?;
    let row = &evidence.row;
    let hint = if evidence.misspelt {
        format!("; the value is written {}, so this one matches no node at all", quoted(&row.spot))
    } else {
        String::new()
    };
    let wanted = match row.regular.is_empty() {
        true => format!("nodes without the label {}", row.key),
        false => format!("{} {}", row.key, quoted(&row.regular)),
    };
    Some(Finding {
        field: context.below_spec(&evidence.field),
        found: format!("`{}`", evidence.found),
        wanted,
        why: format!("that is a spot node ({}), which a reclaim takes away together with the pods that need the room{hint}", row.provider),
        evidence: all.iter().map(|evidence| format!("{} {}", evidence.row.key, evidence.found)).collect(),
    })
}

fn quoted(values: &[String]) -> String {
    values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" or ")
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

    /// D15: home-grown keys are data.
    #[test]
    fn d15_a_row_of_the_pool_counts_as_a_built_in_one() {
        let spec = json!({"nodeSelector": {"example.com/market": "cheap"}});
        assert_eq!(check_pod(&RULE, json!({}), spec.clone()), None);
        let rows = json!({"spotNodes": [{"provider": "us", "key": "example.com/market", "spot": ["cheap"]}]});
        assert_eq!(check_pod(&RULE, rows, spec).unwrap().wanted, "nodes without the label example.com/market");
    }
}
