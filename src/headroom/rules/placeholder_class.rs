//! `placeholderClass`: a placeholder whose class is not one of its pool's has whatever priority that class has.
//!
//! Only for pools that list their classes.

use super::{Context, Finding, Rule, one_of};
use crate::api::Pool;
use crate::headroom::native::{About, Twin, list, quoted};

pub const RULE: Rule = Rule { id: "placeholderClass", mode: |pool, _| pool.spec.rules.placeholder_class, check, native, unseen: "" };

fn check(context: &Context<'_>) -> Option<Finding> {
    let spec = context.pod_spec()?;
    let classes = &context.pool.spec.placeholders.priority_class_names;
    let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
    if classes.is_empty() || class.is_some_and(|class| context.pool.marks_class(class)) {
        return None;
    }
    Some(Finding {
        field: context.below_spec("priorityClassName"),
        found: class.map_or("none".into(), |class| format!("`{class}`")),
        wanted: one_of(classes),
        why: "it is marked as a placeholder of the pool, but has not the priority of one".into(),
        evidence: vec![class.unwrap_or("none").into()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let names = &pool.spec.placeholders.priority_class_names;
    if names.is_empty() {
        return vec![];
    }
    let names = list(names);
    let class = "has(variables.spec.priorityClassName) ? variables.spec.priorityClassName : ''";
    vec![Twin {
        part: "",
        about: About::PodsAndTemplates,
        mode: pool.spec.rules.placeholder_class,
        holds: format!("({class}) in {names}"),
        was_so: format!("(has(variables.old.priorityClassName) ? variables.old.priorityClassName : '') == ({class})"),
        message: format!("'found class ' + ({class}) + ', wanted one of ' + {}", quoted(&names)),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::check_pod;
    use super::*;

    #[test]
    fn a_class_of_the_pool_is_wanted_where_it_lists_some() {
        let pool = || json!({"placeholders": {"priorityClassNames": ["spot-headroom", "more"]}});
        assert_eq!(check_pod(&RULE, pool(), json!({"priorityClassName": "more"})), None);
        assert_eq!(check_pod(&RULE, json!({}), json!({"priorityClassName": "other"})), None);
        let finding = check_pod(&RULE, pool(), json!({"priorityClassName": "other"})).unwrap();
        assert_eq!((finding.found.as_str(), finding.wanted.as_str()), ("`other`", "`spot-headroom` or `more`"));
        assert_eq!(check_pod(&RULE, pool(), json!({})).unwrap().found, "none");
    }
}
