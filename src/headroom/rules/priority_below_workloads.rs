//! `priorityBelowWorkloads`: a placeholder at or above the lowest real priority is never preempted by it.
//!
//! The scheduler preempts only pods of strictly lower priority (`pkg/scheduler/framework/plugins/defaultpreemption`). A pod
//! without a class has priority 0, and so does a placeholder whose class was forgotten.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::headroom::native::{About, Twin, by_priority};

pub const RULE: Rule = Rule {
    id: "priorityBelowWorkloads",
    mode: |pool, _| pool.spec.rules.priority_below_workloads,
    check,
    native,
    unseen: "a template's class that does not exist yet; that a template without a class gets the cluster's default class",
};

fn check(context: &Context<'_>) -> Option<Finding> {
    let floor = context.pool.spec.workload_priority_floor;
    let (priority, field) = context.priority()?;
    (priority >= floor).then(|| Finding {
        field,
        found: context.priority_in_words(priority),
        wanted: format!("less than {floor}"),
        why: format!("a pod of priority {floor}, the lowest of a real workload, cannot preempt it, so its room is never given away"),
        evidence: vec![priority.to_string()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let (mode, floor) = (pool.spec.rules.priority_below_workloads, pool.spec.workload_priority_floor);
    let message =
        |found: &str| format!("'found ' + {found} + ', wanted less than {floor}: the lowest of a real workload cannot preempt it'");
    let mut twins = by_priority(mode, &format!("< {floor}"), false, message);
    if floor <= 0 {
        twins.push(Twin {
            part: "noclass",
            about: About::Templates,
            mode,
            holds: "has(variables.spec.priorityClassName) && variables.spec.priorityClassName != ''".into(),
            was_so: "!has(variables.old.priorityClassName) || variables.old.priorityClassName == ''".into(),
            message: message("'no class, so priority 0'"),
        });
    }
    twins
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{check, check_pod};
    use super::*;
    use crate::headroom::object::Kind;

    /// Webhook case 21: 0 and 1 cannot be preempted by default workloads.
    #[test]
    fn the_lowest_real_priority_is_refused() {
        for (value, refused) in [(-10, false), (-1, false), (0, true), (1, true), (1_000_000_000, true)] {
            let class = json!({"metadata": {"name": "c"}, "value": value});
            assert_eq!(check(&RULE, json!({}), Kind::PriorityClass, class).is_some(), refused, "{value}");
        }
        let class = json!({"metadata": {"name": "c"}, "value": -50});
        let pool = json!({"workloadPriorityFloor": -100, "expendablePriorityCutoff": -500});
        assert_eq!(check(&RULE, pool, Kind::PriorityClass, class).unwrap().wanted, "less than -100");
    }

    /// A4: a placeholder without a class has priority 0.
    #[test]
    fn a4_a_forgotten_class_is_refused_on_pods_and_templates() {
        let finding = check_pod(&RULE, json!({}), json!({"priority": 0})).unwrap();
        assert_eq!((finding.field.as_str(), finding.found.as_str()), ("spec.priority", "no class, so priority 0"));
        let finding = check(&RULE, json!({}), Kind::StatefulSet, json!({"spec": {"template": {"spec": {}}}})).unwrap();
        assert_eq!(finding.field, "spec.template.spec.priorityClassName");
    }
}
