//! Holds an object against the rules of every pool that marks it.

use std::sync::Arc;

use super::Shapes;
use super::classes::{Classes, never_preempts};
use super::effective::Resources;
use super::object::{Body, Object};
use super::rules::{ALL, Context, Finding};
use crate::api::documents::nearest;
use crate::api::headroom_pool::Mode;
use crate::api::{Policies, Pool};

/// What a review looks things up in.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub classes: Arc<Classes>,
    pub shapes: Arc<Shapes>,
    /// The most that any node has of each resource; empty where that is not known.
    pub largest: Arc<Resources>,
}

/// What came of a review: nothing at all for an object that no pool marks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Review {
    /// Broken rules, with the pool and the rule's id, in the rules' order.
    pub broken: Vec<Broken>,
    /// What could not be looked at, because something that it names is not known.
    pub unresolved: Vec<String>,
    /// What is odd without breaking a rule.
    pub notes: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    pub rule: &'static str,
    pub pool: String,
    pub mode: Mode,
    pub finding: Finding,
}

impl Broken {
    /// Whether a later finding says nothing that this one does not.
    fn covers(&self, later: &Self) -> bool {
        let known = |evidence| self.finding.evidence.contains(evidence);
        self.rule == later.rule && self.mode == later.mode && later.finding.evidence.iter().all(known)
    }
}

impl Review {
    pub fn with_mode(&self, mode: Mode) -> impl Iterator<Item = &Broken> {
        self.broken.iter().filter(move |broken| broken.mode == mode)
    }
}

/// Reviews an object; `old` is what an UPDATE replaces. What `old` breaks already, in the same way, is not held against an
/// UPDATE: only what a request introduces is its fault, or the object could never be repaired or removed.
pub fn review(object: &Object, old: Option<&Object>, policies: &Policies, known: &Known) -> Review {
    let classes = &known.classes;
    let mut review = Review::default();
    if object.leaving || object.made_by_a_reviewed_template {
        return review;
    }
    for pool in policies.pools().filter(|pool| object.is_marked_by(pool) && !pool.exempts(&object.namespace)) {
        let before: Vec<_> = old.filter(|old| old.is_marked_by(pool)).map(|old| broken(old, None, pool, known)).unwrap_or_default();
        let introduced = broken(object, old, pool, known).into_iter().filter(|now| !before.iter().any(|then| then.covers(now)));
        review.broken.extend(introduced);
        let class = |object: &Object| object.pod_spec().and_then(|spec| spec.priority_class_name.clone());
        if object.is_template()
            && let Some(class) = class(object).filter(|name| old.and_then(class).as_ref() != Some(name))
            && classes.value(Some(&class)).is_none()
        {
            let field = format!("{}.priorityClassName", object.kind.pod_spec_path());
            review.unresolved.push(format!("{field}: class `{class}` is not known (yet); its pods are checked when they are created"));
        }
        let shape =
            pool.spec.shape.as_ref().filter(|_| pool.spec.rules.matches_shape != Mode::Off && known.shapes.of(&pool.name).is_none());
        if let Some(shape) = shape.filter(|_| object.is_template() && old.is_none()) {
            review.notes.push(format!("[matchesShape] {shape} is not known (yet), so the shape is not checked"));
        }
    }
    for pool in policies.pools().filter(|pool| !object.is_marked_by(pool)) {
        review.notes.extend(old.is_none().then(|| outranked(object, pool, classes)).flatten());
        let before = old.and_then(|old| never_served(old, pool, classes));
        review.notes.extend(never_served(object, pool, classes).filter(|now| before.as_ref() != Some(now)));
    }
    if let Some(mark) = object.mark()
        && policies.pool(mark).is_none()
        && old.and_then(Object::mark) != Some(mark)
    {
        let hint = nearest(mark, policies.pools().map(|pool| pool.name.as_str()))
            .map(|name| format!("; did you mean `{name}`?"))
            .unwrap_or_default();
        review.unresolved.push(format!("label pecking-order.dev/headroom: no HeadroomPool `{mark}`, so no rule is checked{hint}"));
    }
    review
}

/// The highest priority that a placeholder of the pool may have, as far as its classes are known.
fn highest_placeholder(pool: &Pool, classes: &Classes) -> Option<i32> {
    pool.spec.placeholders.priority_class_names.iter().filter_map(|name| classes.value(Some(name))).max()
}

/// The workload for which a pool holds room, where its pods can never take it.
fn never_served(object: &Object, pool: &Pool, classes: &Classes) -> Option<String> {
    let like = &pool.spec.shape.as_ref()?.like;
    let spec = object.pod_spec().filter(|_| like.is_called_as(object) && object.namespace == like.namespace)?;
    let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
    let priority = spec.priority.or_else(|| classes.value(class))?;
    let highest = highest_placeholder(pool, classes)?;
    let why = match never_preempts(spec.preemption_policy.as_deref()) || class.is_some_and(|name| classes.never_preempts(name)) {
        true => "never preempts".to_owned(),
        false if priority <= highest => format!("has priority {priority}, and the placeholders {highest}"),
        false => return None,
    };
    Some(format!("[matchesShape] it {why}: it can never take the room of pool {}", pool.name))
}

/// A class that is nobody's headroom, and lies below a pool's: its pods would be preempted before the placeholders are.
fn outranked(object: &Object, pool: &Pool, classes: &Classes) -> Option<String> {
    let Body::Class { value, .. } = &object.body else { return None };
    let highest = highest_placeholder(pool, classes)?;
    let is_off = pool.spec.rules.priority_below_workloads == Mode::Off;
    (*value < highest && !is_off).then(|| {
        format!("[priorityBelowWorkloads] {value} is below the headroom of pool {} ({highest}): its pods are preempted first", pool.name)
    })
}

fn broken(object: &Object, old: Option<&Object>, pool: &Pool, known: &Known) -> Vec<Broken> {
    let context = Context { object, old, pool, classes: &known.classes, shapes: &known.shapes, largest: &known.largest };
    ALL.iter()
        .filter_map(|rule| {
            let mode = (rule.mode)(pool, object);
            let finding = (mode != Mode::Off).then(|| (rule.check)(&context)).flatten()?;
            Some(Broken { rule: rule.id, pool: pool.name.clone(), mode, finding })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::headroom::Class;
    use crate::headroom::object::Kind;
    use crate::headroom::rules::tests::pool;

    fn policies(spec: Value) -> Policies {
        Policies::default().with_pool(pool(spec))
    }

    fn object(kind: Kind, json: Value) -> Object {
        Object::read(kind, &json.to_string()).unwrap()
    }

    fn pod(grace: i64, labels: Value) -> Object {
        object(
            Kind::Pod,
            json!({"metadata": {"name": "p", "labels": labels}, "spec": {"priority": -10, "terminationGracePeriodSeconds": grace}}),
        )
    }

    fn ids(review: &Review) -> Vec<&str> {
        review.broken.iter().map(|broken| broken.rule).collect()
    }

    /// A pool that marks by label. The objects of these tests are bare, so the rules about what they lack are off.
    fn by_label() -> Value {
        json!({"placeholders": {"selector": {"matchLabels": {"headroom": "yes"}}}, "rules": {"requestsSet": "Off", "canRefill": "Off"}})
    }

    /// A11, webhook case 50.
    #[test]
    fn a11_an_unmarked_object_passes_untouched() {
        let bad = object(Kind::Pod, json!({"spec": {"priority": -50, "nodeSelector": {"spot": "true"}}}));
        assert_eq!(review(&bad, None, &policies(by_label()), &Known::default()), Review::default());
    }

    #[test]
    fn each_mark_marks() {
        let marked = |spec: Value, object: Object| !review(&object, None, &policies(spec), &Known::default()).broken.is_empty();
        assert!(marked(json!({}), pod(30, json!({"pecking-order.dev/headroom": "general"}))));
        assert!(marked(by_label(), pod(30, json!({"headroom": "yes"}))));
        let by_class = json!({"placeholders": {"priorityClassNames": ["spare"]}});
        assert!(marked(by_class.clone(), object(Kind::Pod, json!({"spec": {"priorityClassName": "spare", "priority": -10}}))));
        assert!(marked(by_class.clone(), object(Kind::PriorityClass, json!({"metadata": {"name": "spare"}, "value": 5}))));
        assert!(!marked(by_class, object(Kind::PriorityClass, json!({"metadata": {"name": "other"}, "value": 5}))));
        assert!(marked(
            by_label(),
            object(Kind::PriorityClass, json!({"metadata": {"name": "c", "labels": {"headroom": "yes"}}, "value": 5}))
        ));
        let template = json!({"spec": {"template": {"metadata": {"labels": {"headroom": "yes"}}, "spec": {}}}});
        assert!(marked(by_label(), object(Kind::Job, template)));
    }

    #[test]
    fn an_update_is_refused_only_for_what_it_introduces() {
        let policies = policies(by_label());
        let mark = json!({"headroom": "yes"});
        let review = |new: Object, old: Object| review(&new, Some(&old), &policies, &Known::default());
        assert_eq!(review(pod(30, mark.clone()), pod(30, mark.clone())), Review::default());
        assert_eq!(ids(&review(pod(30, mark.clone()), pod(0, mark.clone()))), ["zeroGracePeriod"]);
        assert_eq!(ids(&review(pod(30, mark.clone()), pod(30, json!({})))), ["zeroGracePeriod"], "marking it is introducing it");
    }

    /// Taking away the first of two reasons moves the finding to the second: that is no new one.
    #[test]
    fn an_update_that_mends_a_part_passes() {
        let policies = policies(by_label());
        let pod = |selector: Value| {
            let metadata = json!({"labels": {"headroom": "yes"}});
            object(
                Kind::Pod,
                json!({"metadata": metadata, "spec": {"priority": -10, "terminationGracePeriodSeconds": 0, "nodeSelector": selector}}),
            )
        };
        let (both, one) = (json!({"karpenter.sh/capacity-type": "spot", "spot": "true"}), json!({"spot": "true"}));
        assert_eq!(review(&pod(one), Some(&pod(both)), &policies, &Known::default()), Review::default());
    }

    #[test]
    fn an_update_that_breaks_a_rule_in_another_way_is_refused() {
        let policies = policies(by_label());
        let mark = json!({"headroom": "yes"});
        let found = review(&pod(45, mark.clone()), Some(&pod(30, mark)), &policies, &Known::default());
        assert_eq!(ids(&found), ["zeroGracePeriod"]);
    }

    /// In mode Fix a template's 30 is a warning and its 45 a refusal.
    #[test]
    fn an_update_that_makes_it_worse_is_refused() {
        let policies = policies(json!({"rules": {"zeroGracePeriod": "Fix"}}));
        let template = |grace: i64| {
            let metadata = json!({"labels": {"pecking-order.dev/headroom": "general"}});
            let spec = json!({"priorityClassName": "later", "terminationGracePeriodSeconds": grace});
            object(Kind::Deployment, json!({"metadata": metadata, "spec": {"template": {"spec": spec}}}))
        };
        let found = review(&template(45), Some(&template(30)), &policies, &Known::default());
        assert_eq!(found.with_mode(Mode::Enforce).map(|broken| broken.rule).collect::<Vec<_>>(), ["zeroGracePeriod"]);
    }

    /// Webhook case 12.
    #[test]
    fn an_object_that_is_leaving_is_never_refused() {
        let mut json = json!({"metadata": {"labels": {"headroom": "yes"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}});
        assert!(review(&object(Kind::Pod, json.clone()), None, &policies(by_label()), &Known::default()).broken.is_empty());
        json["metadata"]["deletionTimestamp"] = Value::Null;
        assert!(!review(&object(Kind::Pod, json), None, &policies(by_label()), &Known::default()).broken.is_empty());
    }

    #[test]
    fn a_replica_set_is_judged_by_itself_only_where_no_deployment_made_it() {
        let set = |owners: Value| {
            let metadata = json!({"labels": {"headroom": "yes"}, "ownerReferences": owners});
            object(Kind::ReplicaSet, json!({"metadata": metadata, "spec": {"template": {"spec": {}}}}))
        };
        let findings = |set: Object| review(&set, None, &policies(by_label()), &Known::default()).broken.len();
        assert_eq!(findings(set(json!([]))), 2);
        assert_eq!(findings(set(json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u", "controller": true}]))), 0);
    }

    /// Webhook case 23 (a).
    #[test]
    fn an_unknown_class_is_said_not_skipped() {
        let deployment = object(
            Kind::Deployment,
            json!({"metadata": {"labels": {"headroom": "yes"}},
            "spec": {"template": {"spec": {"priorityClassName": "later", "terminationGracePeriodSeconds": 0}}}}),
        );
        let found = review(&deployment, None, &policies(by_label()), &Known::default());
        assert_eq!(found.broken, []);
        assert_eq!(
            found.unresolved,
            ["spec.template.spec.priorityClassName: class `later` is not known (yet); its pods are checked when they are created"]
        );
    }

    #[test]
    fn a_mark_that_names_no_pool_is_said_with_the_nearest_name() {
        let found = review(&pod(30, json!({"pecking-order.dev/headroom": "genral"})), None, &policies(json!({})), &Known::default());
        assert_eq!(found.broken, []);
        assert!(
            found.unresolved[0].ends_with("no HeadroomPool `genral`, so no rule is checked; did you mean `general`?"),
            "{:?}",
            found.unresolved
        );
    }

    #[test]
    fn a_rule_that_is_off_is_not_looked_at() {
        let mut spec = by_label();
        spec["rules"]["zeroGracePeriod"] = json!("Off");
        assert_eq!(review(&pod(30, json!({"headroom": "yes"})), None, &policies(spec), &Known::default()), Review::default());
    }

    /// What the room is for must be able to take it.
    #[test]
    fn a_workload_that_can_never_take_its_room_is_told() {
        let spec = json!({"placeholders": {"priorityClassNames": ["spare"]}, "shape": {"like": {"kind": "Deployment", "namespace": "ci", "name": "job"}}});
        let class = |value: i32, never_preempts: bool| Class { value, never_preempts, ..Class::default() };
        let classes = [("spare", class(-10, true)), ("low", class(-10, false)), ("polite", class(5, true)), ("fine", class(5, false))];
        let known = Known { classes: Classes::new(classes.map(|(name, class)| (name.to_owned(), class))).into(), ..Known::default() };
        let job = |class: &str| {
            let template = json!({"spec": {"priorityClassName": class, "terminationGracePeriodSeconds": 0}});
            object(Kind::Deployment, json!({"metadata": {"name": "job", "namespace": "ci"}, "spec": {"template": template}}))
        };
        let notes = |new: &str, old: Option<&str>| review(&job(new), old.map(job).as_ref(), &policies(spec.clone()), &known).notes;
        assert_eq!(
            notes("low", None),
            ["[matchesShape] it has priority -10, and the placeholders -10: it can never take the room of pool general"]
        );
        assert_eq!(notes("polite", None), ["[matchesShape] it never preempts: it can never take the room of pool general"]);
        assert_eq!((notes("fine", None).len(), notes("low", Some("low")).len(), notes("low", Some("fine")).len()), (0, 0, 1));
    }
}
