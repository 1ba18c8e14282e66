//! `matchesShape`: a placeholder that is smaller than the pod it holds room for, or that stands where that pod may not, holds room for
//! nobody. Preemption clears one node, so two small placeholders on two nodes do not make room for one large pod either.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelectorTerm;

use super::{Context, Finding, Rule, no_twin};
use crate::api::Pool;
use crate::headroom::effective;
use crate::headroom::object::{PodSpec, Toleration};

pub const RULE: Rule = Rule {
    id: "matchesShape",
    mode: |pool, _| pool.spec.rules.matches_shape,
    check,
    native: no_twin,
    unseen: "all of it: an expression sees no other workload",
};

fn check(context: &Context<'_>) -> Option<Finding> {
    let (spec, shape) = (context.pod_spec()?, context.shapes.of(&context.pool.name)?);
    let like = context.pool.spec.shape.as_ref().map(ToString::to_string).unwrap_or_default();
    let (held, wanted) = (effective::request(spec), effective::request(shape));
    if !effective::short_of(&held, &wanted).is_empty() {
        let (held, wanted) = (effective::in_words(&held), effective::in_words(&wanted));
        return Some(Finding {
            field: context.below_spec("containers[0].resources.requests"),
            found: held.clone(),
            wanted: format!("at least {wanted}, the effective request of {like}"),
            why: "the room that it gives away is too small for that pod".into(),
            evidence: vec![held],
        });
    }
    let (field, found, wanted) = other_constraints(spec, shape, context.pool)?;
    Some(Finding {
        field: context.below_spec(field),
        evidence: vec![format!("{field} {found}")],
        found,
        wanted: format!("{wanted}, as {like} has it"),
        why: "the room may lie where that pod cannot run".into(),
    })
}

/// The first constraint that differs. Those on spot are left out: the workload may be on spot, where its headroom must not be.
fn other_constraints(spec: &PodSpec, shape: &PodSpec, pool: &Pool) -> Option<(&'static str, String, String)> {
    let is_spot = |key: &str| pool.spot_rows.iter().any(|row| row.key == key);
    let selector = |spec: &PodSpec| -> BTreeMap<String, String> {
        spec.node_selector.iter().filter(|(key, _)| !is_spot(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let terms = |spec: &PodSpec| -> Vec<NodeSelectorTerm> {
        let mut terms = spec.required_node_terms().unwrap_or_default().to_vec();
        for term in &mut terms {
            term.match_expressions = term.match_expressions.take().map(|all| all.into_iter().filter(|e| !is_spot(&e.key)).collect());
        }
        terms.retain(|term| term.match_expressions.as_ref().is_some_and(|e| !e.is_empty()) || term.match_fields.is_some());
        terms
    };
    let tolerations = |spec: &PodSpec| -> Vec<Toleration> {
        // The API server adds two of its own to every pod.
        let is_added = |t: &Toleration| t.key.as_deref().is_some_and(|key| key.starts_with("node.kubernetes.io/"));
        let of_spot = |t: &Toleration| t.key.as_deref().is_some_and(is_spot);
        spec.tolerations.iter().filter(|t| !is_added(t) && !of_spot(t)).cloned().collect()
    };
    let scheduler = |spec: &PodSpec| spec.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".into());
    let runtime = |spec: &PodSpec| spec.runtime_class_name.clone().unwrap_or_else(|| "none".into());
    let differing = |field, a: String, b: String| (a != b).then_some((field, a, b));
    let terms_in_words = |spec: &PodSpec| {
        let words = |term: &NodeSelectorTerm| {
            let each = term
                .match_expressions
                .iter()
                .flatten()
                .map(|e| format!("{} {} {:?}", e.key, e.operator, e.values.clone().unwrap_or_default()));
            each.collect::<Vec<_>>().join(" and ")
        };
        or_none(terms(spec).iter().map(words).collect::<Vec<_>>().join(" or "))
    };
    let tolerations_in_words = |spec: &PodSpec| {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let words =
            |t: &Toleration| format!("{} {} {} {}", text(&t.key), text(&t.operator), text(&t.value), text(&t.effect)).trim().to_owned();
        let mut all: Vec<String> = tolerations(spec).iter().map(words).collect();
        all.sort();
        or_none(all.join(", "))
    };
    let selector_in_words =
        |spec: &PodSpec| or_none(selector(spec).iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", "));
    differing("nodeSelector", selector_in_words(spec), selector_in_words(shape))
        .or_else(|| differing("affinity.nodeAffinity", terms_in_words(spec), terms_in_words(shape)))
        .or_else(|| differing("tolerations", tolerations_in_words(spec), tolerations_in_words(shape)))
        .or_else(|| differing("schedulerName", scheduler(spec), scheduler(shape)))
        .or_else(|| differing("runtimeClassName", runtime(spec), runtime(shape)))
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".into() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::pool;
    use super::*;
    use crate::headroom::object::{Kind, Object};
    use crate::headroom::{Classes, Shapes};

    fn found(spec: Value, shape: Value) -> Option<Finding> {
        let pool = pool(json!({"shape": {"like": {"kind": "Deployment", "namespace": "ci", "name": "runner-job"}}}));
        let object = Object::read(Kind::Deployment, &json!({"spec": {"template": {"spec": spec}}}).to_string()).unwrap();
        let shapes = Shapes::default().with("general", Some(serde_json::from_value(shape).unwrap()));
        check(&Context {
            object: &object,
            old: None,
            pool: &pool,
            classes: &Classes::default(),
            shapes: &shapes,
            largest: &Default::default(),
        })
    }

    fn containers(all: &[(&str, &str)]) -> Value {
        let container = |(cpu, memory): &(&str, &str)| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        json!({"containers": all.iter().map(container).collect::<Vec<_>>()})
    }

    /// C6: both vectors are in the message.
    #[test]
    fn c6_a_job_that_is_bigger_than_its_placeholder() {
        let finding = found(containers(&[("2", "4Gi")]), containers(&[("2", "4Gi"), ("500m", "512Mi")])).unwrap();
        assert_eq!(finding.found, "cpu 2, memory 4Gi");
        assert_eq!(finding.wanted, "at least cpu 2500m, memory 4608Mi, the effective request of Deployment ci/runner-job");
        assert_eq!(found(containers(&[("3", "5Gi")]), containers(&[("2", "4Gi"), ("500m", "512Mi")])), None, "larger is fine");
    }

    #[test]
    fn other_constraints_are_named_and_those_on_spot_left_out() {
        let with = |field: &str, value: Value| {
            let mut spec = containers(&[("1", "1Gi")]);
            spec[field] = value;
            spec
        };
        let plain = || containers(&[("1", "1Gi")]);
        let finding = found(plain(), with("nodeSelector", json!({"disk": "ssd"}))).unwrap();
        assert_eq!((finding.field.as_str(), finding.found.as_str()), ("spec.template.spec.nodeSelector", "none"));
        assert_eq!(finding.wanted, "disk=ssd, as Deployment ci/runner-job has it");
        assert_eq!(found(plain(), with("nodeSelector", json!({"karpenter.sh/capacity-type": "spot"}))), None);
        let taint = json!([{"key": "team", "operator": "Equal", "value": "ci", "effect": "NoSchedule"}]);
        assert!(found(plain(), with("tolerations", taint)).unwrap().field.ends_with("tolerations"));
        assert!(found(with("schedulerName", json!("other")), plain()).unwrap().field.ends_with("schedulerName"));
        assert_eq!(found(with("schedulerName", json!("default-scheduler")), plain()), None);
        assert!(found(plain(), with("runtimeClassName", json!("gvisor"))).unwrap().field.ends_with("runtimeClassName"));
        let zone = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}, {"key": "spot", "operator": "Exists"}]}]}}});
        assert_eq!(found(plain(), with("affinity", zone.clone())).unwrap().wanted, "zone In [\"a\"], as Deployment ci/runner-job has it");
        assert_eq!(found(with("affinity", zone.clone()), with("affinity", zone)), None);
    }

    #[test]
    fn a_shape_that_is_not_known_is_no_fault() {
        let pool = pool(json!({}));
        let object = Object::read(Kind::Pod, "{}").unwrap();
        assert_eq!(
            check(&Context {
                object: &object,
                old: None,
                pool: &pool,
                classes: &Classes::default(),
                shapes: &Shapes::default(),
                largest: &Default::default()
            }),
            None
        );
    }
}
