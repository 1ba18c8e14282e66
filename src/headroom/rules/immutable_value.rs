//! `immutableValue`: the value of a PriorityClass cannot be changed, and its pods would keep the old number if it could.
//!
//! The API server refuses the UPDATE by itself (`pkg/apis/scheduling/validation`, ValidatePriorityClassUpdate), in a line that does not
//! say what to do, and before any validating webhook is asked. So this one speaks up where objects are still changed, earlier.

use super::{Context, Finding, Rule, no_twin};
use crate::headroom::object::Body;

pub const RULE: Rule = Rule {
    id: "immutableValue",
    mode: |pool, _| pool.spec.rules.immutable_value,
    check,
    native: no_twin,
    unseen: "all of it: the API server refuses the change before policies are asked",
};

fn check(context: &Context<'_>) -> Option<Finding> {
    let (Body::Class { value: now, .. }, Body::Class { value: before, .. }) = (&context.object.body, &context.old?.body) else {
        return None;
    };
    (now != before).then(|| Finding {
        field: "value".into(),
        found: now.to_string(),
        wanted: before.to_string(),
        why: "a class's value cannot change; make a class of another name, and let the placeholders name it. Pods that are there keep the old \
              number as long as they live"
            .into(),
        evidence: vec![now.to_string()],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::pool;
    use super::*;
    use crate::headroom::object::{Kind, Object};
    use crate::headroom::{Classes, Shapes};

    /// A6: a release that changes -10 to -11.
    #[test]
    fn a6_a_changed_value_says_what_to_do() {
        let class =
            |value: i32| Object::read(Kind::PriorityClass, &json!({"metadata": {"name": "c"}, "value": value}).to_string()).unwrap();
        let (pool, classes, shapes) = (pool(json!({})), Classes::default(), Shapes::default());
        let look = |object: &Object, old: Option<&Object>| {
            check(&Context { object, old, pool: &pool, classes: &classes, shapes: &shapes, largest: &Default::default() })
        };
        let finding = look(&class(-11), Some(&class(-10))).unwrap();
        assert!(finding.found == "-11" && finding.wanted == "-10" && finding.why.contains("another name"), "{finding}");
        assert_eq!((look(&class(-11), Some(&class(-11))), look(&class(-11), None)), (None, None));
    }
}
