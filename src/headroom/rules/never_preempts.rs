//! `neverPreempts`: a placeholder whose class may preempt takes room from others' lower placeholders.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::headroom::native::{About, Twin};
use crate::headroom::object::Body;

pub const RULE: Rule = Rule { id: "neverPreempts", mode: |pool, _| pool.spec.rules.never_preempts, check, native, unseen: "" };

fn check(context: &Context<'_>) -> Option<Finding> {
    let Body::Class { preemption_policy, .. } = &context.object.body else { return None };
    // What the API server fills in (`k8s.io/api/scheduling/v1`).
    let policy = preemption_policy.as_deref().unwrap_or("PreemptLowerPriority");
    (policy != "Never").then(|| Finding {
        field: "preemptionPolicy".into(),
        found: policy.into(),
        wanted: "Never".into(),
        why: "placeholders of this class would evict another team's that lie lower, instead of waiting for a node".into(),
        evidence: vec![policy.into()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let never = |object: &str| format!("has({object}.preemptionPolicy) && {object}.preemptionPolicy == 'Never'");
    vec![Twin {
        part: "",
        about: About::Classes,
        mode: pool.spec.rules.never_preempts,
        holds: never("object"),
        was_so: format!("!({})", never("oldObject")),
        message: "'wanted preemptionPolicy Never: it would take room from lower placeholders'".into(),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::check;
    use super::*;
    use crate::headroom::object::Kind;

    #[test]
    fn only_never_is_accepted() {
        let class = |policy: serde_json::Value| json!({"metadata": {"name": "c"}, "value": -10, "preemptionPolicy": policy});
        assert_eq!(check(&RULE, json!({}), Kind::PriorityClass, class(json!("Never"))), None);
        for policy in [json!("PreemptLowerPriority"), json!(null)] {
            assert_eq!(check(&RULE, json!({}), Kind::PriorityClass, class(policy)).unwrap().found, "PreemptLowerPriority");
        }
    }
}
