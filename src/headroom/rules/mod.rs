//! One file per rule, all of one shape: a constant `RULE` with the rule's id, its mode in a pool, and its check.
//!
//! To add a rule: write its file, add its line to [`ALL`] and its field to `Rules` of the HeadroomPool.

use std::fmt;

use super::Shapes;
use super::classes::Classes;
use super::effective::Resources;
use super::native::Twin;
use super::object::{Body, Kind, Object, PodSpec};
use crate::api::Pool;
use crate::api::headroom_pool::Mode;

mod can_refill;
mod immutable_value;
mod matches_shape;
mod never_preempts;
mod not_global_default;
mod off_spot;
mod off_spot_strict;
mod placeholder_class;
mod priority_above_cutoff;
mod priority_below_workloads;
mod requests_set;
mod spreads;
mod supported_image;
mod zero_grace_period;

pub use zero_grace_period::is_fixed_at_create;

/// All rules, in the order in which their findings are listed.
pub const ALL: &[Rule] = &[
    priority_above_cutoff::RULE,
    priority_below_workloads::RULE,
    not_global_default::RULE,
    never_preempts::RULE,
    immutable_value::RULE,
    placeholder_class::RULE,
    zero_grace_period::RULE,
    off_spot::RULE,
    off_spot_strict::RULE,
    requests_set::RULE,
    matches_shape::RULE,
    can_refill::RULE,
    spreads::RULE,
    supported_image::RULE,
];

/// One way in which a placeholder fails in silence.
pub struct Rule {
    /// The field of `spec.rules` in a HeadroomPool; also named in every message.
    pub id: &'static str,
    /// What the pool wants done about this object, should it break the rule.
    pub mode: fn(&Pool, &Object) -> Mode,
    /// What is wrong, if anything is. Never wrong because something is not known.
    pub check: fn(&Context<'_>) -> Option<Finding>,
    /// The same in CEL, as far as CEL can say it.
    pub native: fn(&Pool) -> Vec<Twin>,
    /// What that cannot see, in words for the documentation; empty where it sees all.
    pub unseen: &'static str,
}

/// Such as `` `a` or `b` ``.
fn one_of<'a>(values: impl IntoIterator<Item = &'a String>) -> String {
    values.into_iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" or ")
}

/// A rule that CEL cannot say.
fn no_twin(_: &Pool) -> Vec<Twin> {
    vec![]
}

/// What a check may look at.
pub struct Context<'a> {
    pub object: &'a Object,
    /// What an UPDATE replaces.
    pub old: Option<&'a Object>,
    pub pool: &'a Pool,
    pub classes: &'a Classes,
    pub shapes: &'a Shapes,
    /// The most that any node has of each resource; empty where that is not known.
    pub largest: &'a Resources,
}

/// A broken rule: where, what was found, what is wanted, and why it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub field: String,
    pub found: String,
    pub wanted: String,
    pub why: String,
    /// What breaks the rule, without where it stands: an UPDATE is held to account for what is new here.
    pub evidence: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, wanted {}: {}", self.field, self.found, self.wanted, self.why)
    }
}

impl Context<'_> {
    /// The priority that the object has or gives, and the field that says so; `None` where a class is not known.
    fn priority(&self) -> Option<(i32, String)> {
        let spec = match &self.object.body {
            Body::Class { value, .. } => return Some((*value, "value".into())),
            Body::Pod { spec, .. } => spec,
        };
        let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
        let field = if spec.priority.is_some() && class.is_none() { "priority" } else { "priorityClassName" };
        let priority = spec.priority.or_else(|| self.classes.value(class))?;
        Some((priority, self.below_spec(field)))
    }

    /// The priority in words: the number, and the class that it comes from.
    fn priority_in_words(&self, priority: i32) -> String {
        match self.pod_spec() {
            None => priority.to_string(),
            Some(PodSpec { priority_class_name: Some(class), .. }) if !class.is_empty() => format!("`{class}` with priority {priority}"),
            Some(_) => format!("no class, so priority {priority}"),
        }
    }

    fn pod_spec(&self) -> Option<&PodSpec> {
        self.object.pod_spec()
    }

    /// A field of the pod spec, as a path from the object's root.
    fn below_spec(&self, field: &str) -> String {
        format!("{}.{field}", self.object.kind.pod_spec_path())
    }
}

impl Object {
    pub fn pod_spec(&self) -> Option<&PodSpec> {
        match &self.body {
            Body::Pod { spec, .. } => Some(spec),
            Body::Class { .. } => None,
        }
    }

    pub fn is_template(&self) -> bool {
        !matches!(self.kind, Kind::PriorityClass | Kind::Pod)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::HeadroomPool;

    /// A pool with this spec.
    pub(crate) fn pool(spec: Value) -> Pool {
        let pool: HeadroomPool = serde_json::from_value(json!({"metadata": {"name": "general"}, "spec": spec})).unwrap();
        assert_eq!(pool.spec.problems(), []);
        Pool::compile(&pool)
    }

    /// The rule's finding for a pod with this spec.
    pub(crate) fn check_pod(rule: &Rule, pool_spec: Value, spec: Value) -> Option<Finding> {
        check(rule, pool_spec, Kind::Pod, json!({"metadata": {"name": "p"}, "spec": spec}))
    }

    pub(crate) fn check(rule: &Rule, pool_spec: Value, kind: Kind, object: Value) -> Option<Finding> {
        let object = Object::read(kind, &object.to_string()).unwrap();
        let class = |value: i32| crate::headroom::Class { value, ..Default::default() };
        let classes = Classes::new([("spot-headroom".into(), class(-10)), ("deep".into(), class(-11))]);
        (rule.check)(&Context {
            object: &object,
            old: None,
            pool: &pool(pool_spec),
            classes: &classes,
            shapes: &Shapes::default(),
            largest: &Resources::new(),
        })
    }
}
