//! `priorityAboveCutoff`: a placeholder below the expendable cutoff never brings a node.
//!
//! Cluster Autoscaler calls a pod expendable when its priority is set and *strictly* lower than
//! `--expendable-pods-priority-cutoff` (`pkg/core/utils/expendable.go`): -10 brings a node, -11 does not. Karpenter has no
//! cutoff, so a pool with the cutoff `None` is not held to this rule.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::api::headroom_pool::Cutoff;
use crate::headroom::native::{Twin, by_priority};

pub const RULE: Rule = Rule {
    id: "priorityAboveCutoff",
    mode: |pool, _| pool.spec.rules.priority_above_cutoff,
    check,
    native,
    unseen: "a template's class that does not exist yet",
};

fn check(context: &Context<'_>) -> Option<Finding> {
    let Cutoff::At(cutoff) = context.pool.spec.expendable_priority_cutoff else { return None };
    let (priority, field) = context.priority()?;
    (priority < cutoff).then(|| Finding {
        field,
        found: context.priority_in_words(priority),
        wanted: format!("{cutoff} or higher"),
        why: format!(
            "below Cluster Autoscaler's expendable cutoff of {cutoff} a pending pod never adds a node, so the room is not refilled \
             (without Cluster Autoscaler set expendablePriorityCutoff to None)"
        ),
        evidence: vec![priority.to_string()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let Cutoff::At(cutoff) = pool.spec.expendable_priority_cutoff else { return vec![] };
    by_priority(pool.spec.rules.priority_above_cutoff, &format!(">= {cutoff}"), true, |found| {
        format!("'found ' + {found} + ', wanted {cutoff} or higher: below the expendable cutoff a pending pod never adds a node'")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{check, check_pod};
    use super::*;
    use crate::headroom::object::Kind;

    fn class(pool: serde_json::Value, value: i32) -> Option<Finding> {
        check(&RULE, pool, Kind::PriorityClass, json!({"metadata": {"name": "c"}, "value": value}))
    }

    /// A1, webhook case 21: the cutoff itself is right, one below it is wrong.
    #[test]
    fn a1_the_cutoff_itself_is_accepted() {
        for (value, refused) in [(-11, true), (-10, false), (-1, false), (i32::MIN, true)] {
            assert_eq!(class(json!({}), value).is_some(), refused, "{value}");
        }
        assert!(class(json!({"expendablePriorityCutoff": -20}), -15).is_none());
        let finding = class(json!({}), -11).unwrap();
        assert_eq!((finding.field.as_str(), finding.found.as_str(), finding.wanted.as_str()), ("value", "-11", "-10 or higher"));
    }

    /// A2: the value of the Kubernetes documentation is right with Karpenter and wrong with Cluster Autoscaler.
    #[test]
    fn a2_without_cluster_autoscaler_every_priority_is_accepted() {
        assert!(class(json!({}), -1000).unwrap().why.contains("expendablePriorityCutoff to None"));
        assert_eq!(class(json!({"expendablePriorityCutoff": "None"}), -1000), None);
    }

    #[test]
    fn a_pod_is_judged_by_its_resolved_priority_and_a_template_by_its_class() {
        assert!(check_pod(&RULE, json!({}), json!({"priorityClassName": "spot-headroom", "priority": -11})).is_some());
        let template = |class: &str| json!({"spec": {"template": {"spec": {"priorityClassName": class}}}});
        let finding = check(&RULE, json!({}), Kind::Deployment, template("deep")).unwrap();
        assert_eq!((finding.field.as_str(), finding.found.as_str()), ("spec.template.spec.priorityClassName", "`deep` with priority -11"));
        assert_eq!(check(&RULE, json!({}), Kind::Deployment, template("spot-headroom")), None);
        assert_eq!(check(&RULE, json!({}), Kind::Deployment, template("made-later")), None, "never wrong because a class is not known");
    }
}
