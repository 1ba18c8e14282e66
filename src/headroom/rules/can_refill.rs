//! `canRefill`: a placeholder that is not made again as a Pending pod does not bring a node.
//!
//! Cluster Autoscaler leaves the pods of DaemonSets out of its scale-ups. A bare pod that was preempted is gone for good, and a
//! Job makes its pods again only so many times.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::api::headroom_pool::Mode;
use crate::headroom::native::{About, Twin};
use crate::headroom::object::{Kind, Object};

pub const RULE: Rule = Rule { id: "canRefill", mode, check, native, unseen: "" };

/// Only a DaemonSet never works; the others may be what somebody wants.
fn mode(pool: &Pool, object: &Object) -> Mode {
    let mode = pool.spec.rules.can_refill;
    if object.kind == Kind::DaemonSet { mode } else { mode.at_most_warn() }
}

fn check(context: &Context<'_>) -> Option<Finding> {
    let (found, why) = match context.object.kind {
        Kind::DaemonSet => ("a DaemonSet", "an autoscaler adds no node for its pods"),
        Kind::Job | Kind::CronJob => ("a Job", "it makes a preempted pod again only so many times"),
        // Cluster Autoscaler tries a CapacityBuffer's pod out; what it makes room for is no pod at all.
        Kind::Pod if context.object.is_of_a_capacity_buffer() => return None,
        Kind::Pod if !context.object.is_controlled => ("a pod without a controller", "nothing makes it again once it is preempted"),
        _ => return None,
    };
    Some(Finding {
        field: "kind".into(),
        found: found.into(),
        wanted: "a Deployment".into(),
        why: format!("{why}, so the room is not refilled"),
        evidence: vec![found.into()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let mode = pool.spec.rules.can_refill;
    let twin = |part, about, mode, holds: &str, why: &str| Twin {
        part,
        about,
        mode,
        holds: holds.into(),
        // A kind never changes.
        was_so: "true".into(),
        message: format!("'found a ' + request.kind.kind + ', wanted a Deployment: {why}, so the room is not refilled'"),
    };
    let is_controlled =
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller)";
    let of_a_buffer = "(has(object.metadata.generateName) && object.metadata.generateName.startsWith('fake-pod-'))";
    vec![
        twin("daemonset", About::Templates, mode, "request.kind.kind != 'DaemonSet'", "an autoscaler adds no node for its pods"),
        twin(
            "job",
            About::Templates,
            mode.at_most_warn(),
            "!(request.kind.kind in ['Job', 'CronJob'])",
            "it makes a preempted pod again only so many times",
        ),
        twin(
            "pod",
            About::Pods,
            mode.at_most_warn(),
            &format!("({is_controlled}) || {of_a_buffer}"),
            "nothing makes it again once it is preempted",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{check, pool};
    use super::*;

    /// E8.
    #[test]
    fn e8_a_daemon_set_is_refused_and_what_is_not_made_again_is_warned_of() {
        let pool = pool(json!({}));
        for (kind, wanted) in [
            (Kind::DaemonSet, Some(Mode::Enforce)),
            (Kind::Job, Some(Mode::Warn)),
            (Kind::CronJob, Some(Mode::Warn)),
            (Kind::Pod, Some(Mode::Warn)),
            (Kind::Deployment, None),
            (Kind::ReplicaSet, None),
            (Kind::StatefulSet, None),
        ] {
            let object = Object::read(kind, "{}").unwrap();
            let found = check(&RULE, json!({}), kind, json!({})).map(|_| mode(&pool, &object));
            assert_eq!(found, wanted, "{kind:?}");
        }
        let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
        assert_eq!(check(&RULE, json!({}), Kind::Pod, json!({"metadata": {"ownerReferences": owners}})), None);
    }
}
