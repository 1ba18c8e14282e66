//! `notGlobalDefault`: a placeholder class that is the cluster's default makes a placeholder of every pod that names no class.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::headroom::native::{About, Twin};
use crate::headroom::object::Body;

pub const RULE: Rule = Rule { id: "notGlobalDefault", mode: |pool, _| pool.spec.rules.not_global_default, check, native, unseen: "" };

fn check(context: &Context<'_>) -> Option<Finding> {
    let Body::Class { global_default: true, .. } = context.object.body else { return None };
    Some(Finding {
        field: "globalDefault".into(),
        found: "true".into(),
        wanted: "false".into(),
        why: "every pod that names no class would get this priority and could be preempted like a placeholder".into(),
        evidence: vec!["true".into()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let is_default = |object: &str| format!("has({object}.globalDefault) && {object}.globalDefault");
    vec![Twin {
        part: "",
        about: About::Classes,
        mode: pool.spec.rules.not_global_default,
        holds: format!("!({})", is_default("object")),
        was_so: is_default("oldObject"),
        message: "'found true, wanted false: every pod without a class would become a placeholder'".into(),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::check;
    use super::*;
    use crate::headroom::object::Kind;

    /// A8, webhook case 22.
    #[test]
    fn a8_the_default_class_is_no_placeholders() {
        let class = |default: serde_json::Value| json!({"metadata": {"name": "c"}, "value": -10, "globalDefault": default});
        assert!(check(&RULE, json!({}), Kind::PriorityClass, class(json!(true))).is_some());
        assert_eq!(check(&RULE, json!({}), Kind::PriorityClass, class(json!(false))), None);
        assert_eq!(check(&RULE, json!({}), Kind::PriorityClass, class(json!(null))), None);
    }
}
