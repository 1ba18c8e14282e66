//! `requestsSet`: a placeholder without requests holds nothing, and one with absurd requests holds next to nothing.
//!
//! The scheduler reserves what is requested, not what is used. On a template a limit stands for the request that is missing: the
//! API server copies it when the pod is made. `m` on memory is thousandths of a byte, and a bare 8 is eight bytes.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::api::headroom_pool::Mode;
use crate::headroom::effective;
use crate::headroom::native::{About, Twin};
use crate::headroom::object::{Object, PodSpec, Resources};
use crate::headroom::quantity::Quantity;

/// Less memory than this holds no room for anything; whoever writes it meant another unit.
const LEAST_MEMORY: Quantity = Quantity { nanos: (1 << 20) * 1_000_000_000 };

pub const RULE: Rule = Rule { id: "requestsSet", mode, check, native, unseen: "that no node has so much" };

/// Absurd requests are a matter of opinion, so they are never more than a warning.
fn mode(pool: &Pool, object: &Object) -> Mode {
    let mode = pool.spec.rules.requests_set;
    if object.pod_spec().is_some_and(reserves_something) { mode.at_most_warn() } else { mode }
}

fn check(context: &Context<'_>) -> Option<Finding> {
    let spec = context.pod_spec()?;
    if !reserves_something(spec) {
        return Some(Finding {
            field: context.below_spec("containers[0].resources.requests"),
            found: "none".into(),
            wanted: "the cpu and memory that it should hold".into(),
            why: "a pod without requests reserves nothing, so it holds no room".into(),
            evidence: vec!["none".into()],
        });
    }
    if let Some((resource, most, wanted)) =
        effective::short_of(context.largest, &effective::request(spec)).first().filter(|_| !context.largest.is_empty())
    {
        let amount = |amount: Quantity| effective::amount_in_words(resource, amount);
        return Some(Finding {
            field: context.below_spec("containers[0].resources.requests"),
            found: format!("{resource} {}", amount(*wanted)),
            wanted: format!("at most {resource} {}", amount(*most)),
            why: "that is more than any node has now, so the placeholder may stay Pending for ever".into(),
            evidence: vec![format!("{resource} {}", wanted.nanos)],
        });
    }
    let absurd = |(index, container): (usize, &crate::headroom::object::Container)| {
        let text = container.resources.reserved("memory")?;
        let too_little = Quantity::parse(&text).is_ok_and(|memory| memory < LEAST_MEMORY);
        too_little.then_some((index, text))
    };
    let (index, text) = spec.containers.iter().enumerate().find_map(absurd)?;
    let why = if text.ends_with('m') {
        let number = text.trim_end_matches('m');
        format!("on memory `m` means thousandths of a byte; did you mean {number}M or {number}Mi?")
    } else {
        "that many bytes hold no room; was a unit such as Mi or Gi left out?".into()
    };
    Some(Finding {
        field: context.below_spec(&format!("containers[{index}].resources.requests[memory]")),
        wanted: "at least 1Mi".into(),
        why,
        evidence: vec![text.clone()],
        found: text,
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let mode = pool.spec.rules.requests_set;
    let some = |of: &str| format!("(has({of}) && {of}.exists(name, quantity(string({of}[name])).isGreaterThan(quantity('0'))))");
    let of_resources = |resources: &str| {
        format!("(has({resources}) && ({} || {}))", some(&format!("{resources}.requests")), some(&format!("{resources}.limits")))
    };
    let reserves = |spec: &str| {
        format!(
            "{spec}.containers.exists(container, {}) || {}",
            of_resources("container.resources"),
            of_resources(&format!("{spec}.resources"))
        )
    };
    let memory = |of: &str| format!("has(container.resources.{of}) && 'memory' in container.resources.{of}");
    let little = |of: &str| format!("quantity(string(container.resources.{of}['memory'])).isLessThan(quantity('1Mi'))");
    let absurd = |spec: &str| {
        let by_request = format!("({} ? {} : {} && {})", memory("requests"), little("requests"), memory("limits"), little("limits"));
        format!("{spec}.containers.exists(container, has(container.resources) && {by_request})")
    };
    let twin = |part, mode, holds, was_so, message: &str| Twin {
        part,
        about: About::PodsAndTemplates,
        mode,
        holds,
        was_so,
        message: message.into(),
    };
    vec![
        twin(
            "",
            mode,
            reserves("variables.spec"),
            format!("!({})", reserves("variables.old")),
            "'found none, wanted requests: a pod without them reserves nothing'",
        ),
        twin(
            "absurd",
            mode.at_most_warn(),
            format!("!({})", absurd("variables.spec")),
            absurd("variables.old"),
            "'found less than 1Mi of memory: on memory m means thousandths of a byte, and no unit means bytes'",
        ),
    ]
}

fn reserves_something(spec: &PodSpec) -> bool {
    spec.containers.iter().map(|container| &container.resources).chain([&spec.resources]).any(Resources::reserve_something)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::check_pod;
    use super::*;

    fn found(resources: Value) -> Option<Finding> {
        check_pod(&RULE, json!({}), json!({"containers": [{"name": "pause", "resources": resources}]}))
    }

    #[test]
    fn more_than_any_node_has_is_a_warning() {
        let pool = super::super::tests::pool(json!({}));
        let object = |cpu: &str| {
            let spec = json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}]});
            Object::read(crate::headroom::object::Kind::Pod, &json!({"spec": spec}).to_string()).unwrap()
        };
        let largest = effective::Resources::from([
            ("cpu".to_owned(), Quantity::parse("64").unwrap()),
            ("memory".to_owned(), Quantity::parse("256Gi").unwrap()),
        ]);
        let look = |object: &Object, largest: &effective::Resources| {
            check(&Context { object, old: None, pool: &pool, classes: &Default::default(), shapes: &Default::default(), largest })
        };
        assert_eq!(look(&object("64"), &largest), None);
        let finding = look(&object("64001m"), &largest).unwrap();
        assert_eq!((finding.found.as_str(), finding.wanted.as_str()), ("cpu 64001m", "at most cpu 64"));
        assert_eq!(mode(&pool, &object("64001m")), Mode::Warn);
        assert_eq!(look(&object("64001m"), &Default::default()), None, "what nodes have is not known");
    }

    /// C1, C4.
    #[test]
    fn c1_a_pod_without_requests_is_refused() {
        for resources in [json!({}), json!(null), json!({"requests": {}}), json!({"requests": {"cpu": "0", "memory": 0}})] {
            assert_eq!(found(resources.clone()).map(|finding| finding.found), Some("none".into()), "{resources}");
        }
        assert!(check_pod(&RULE, json!({}), json!({})).is_some());
        assert_eq!(found(json!({"requests": {"cpu": "1"}})), None);
        assert_eq!(found(json!({"requests": {"cpu": 1}})), None, "YAML numbers reach us as numbers");
        assert_eq!(found(json!({"limits": {"cpu": "2", "memory": "3Gi"}})), None, "limits are copied");
        assert_eq!(found(json!({"limits": {"nvidia.com/gpu": 1}})), None);
        assert_eq!(
            check_pod(&RULE, json!({}), json!({"resources": {"requests": {"cpu": "1"}}, "containers": [{}]})),
            None,
            "of the pod as a whole"
        );
    }

    /// C3, and the sample that was commented as 8 GiB.
    #[test]
    fn c3_absurd_memory_is_said() {
        let finding = found(json!({"requests": {"cpu": "750m", "memory": "750m"}})).unwrap();
        assert_eq!((finding.found.as_str(), finding.why.contains("750M or 750Mi")), ("750m", true));
        assert!(found(json!({"requests": {"memory": 8}})).unwrap().why.contains("unit"));
        assert_eq!(found(json!({"requests": {"memory": "1Mi"}})), None);
    }

    #[test]
    fn absurd_requests_only_warn() {
        let pool = super::super::tests::pool(json!({}));
        let pod = |resources: Value| {
            let json = json!({"spec": {"containers": [{"resources": resources}]}});
            Object::read(crate::headroom::object::Kind::Pod, &json.to_string()).unwrap()
        };
        assert_eq!(mode(&pool, &pod(json!({"requests": {"memory": "8"}}))), Mode::Warn);
        assert_eq!(mode(&pool, &pod(json!({}))), Mode::Enforce);
    }
}
