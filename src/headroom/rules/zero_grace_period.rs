//! `zeroGracePeriod`: a placeholder that lingers keeps the room it should give away.
//!
//! A preempted pod is given its own `terminationGracePeriodSeconds`, and while it is going the pod that displaced it waits.
//! The API server fills in 30 before a webhook sees the object, so 30 may be written or left out; and a Helm chart that
//! wraps the field in `with` or `if` drops a 0. A negative number is accepted and behaves as 1.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::api::headroom_pool::{FixableMode, Mode};
use crate::headroom::native::{About, Twin};
use crate::headroom::object::Object;

/// What the API server fills in (`k8s.io/api/core/v1`, DefaultTerminationGracePeriodSeconds).
pub const DEFAULT: i64 = 30;

pub const RULE: Rule =
    Rule { id: "zeroGracePeriod", mode, check, native, unseen: "`Fix`: it changes nothing, so a pod's 30 passes with a warning" };

fn mode(pool: &Pool, object: &Object) -> Mode {
    match pool.spec.rules.zero_grace_period.plain() {
        Some(mode) => mode,
        // Changing a template would fight with GitOps and start a rollout; its pods are fixed when they are created.
        None if object.is_template() && grace_period(object) == Some(DEFAULT) => Mode::Warn,
        None => Mode::Enforce,
    }
}

fn native(pool: &Pool) -> Vec<Twin> {
    let twin = |part, mode, wanted: &str| {
        Twin {
        part,
        about: About::PodsAndTemplates,
        mode,
        holds: format!("has(variables.spec.terminationGracePeriodSeconds) && variables.spec.terminationGracePeriodSeconds in {wanted}"),
        was_so: "variables.old.terminationGracePeriodSeconds == variables.spec.terminationGracePeriodSeconds".into(),
        message: "'found ' + string(variables.spec.terminationGracePeriodSeconds) + ', wanted 0: a displaced pod would wait that long; 30 is also what the API server fills in'"
            .into(),
    }
    };
    match pool.spec.rules.zero_grace_period.plain() {
        Some(mode) => vec![twin("", mode, "[0]")],
        None => vec![twin("", Mode::Enforce, "[0, 30]"), twin("default", Mode::Warn, "[0]")],
    }
}

/// Whether the pod's grace period is to be set to 0 at CREATE. Only one that is there can be replaced; the API server has
/// always filled it in.
pub fn is_fixed_at_create(pool: &Pool, pod: &Object) -> bool {
    let written = pod.pod_spec().and_then(|spec| spec.termination_grace_period_seconds);
    pool.spec.rules.zero_grace_period == FixableMode::Fix && written == Some(DEFAULT)
}

fn grace_period(object: &Object) -> Option<i64> {
    object.pod_spec().map(|spec| spec.termination_grace_period_seconds.unwrap_or(DEFAULT))
}

fn check(context: &Context<'_>) -> Option<Finding> {
    let seconds = grace_period(context.object)?;
    let why = match seconds {
        0 => return None,
        DEFAULT => "a displaced pod would wait that long. 30 is also what the API server fills in when the field is left out: \
                    check that your chart really renders 0"
            .into(),
        ..0 => "a negative number behaves as 1".into(),
        _ => format!("a displaced pod would wait up to {seconds} s"),
    };
    Some(Finding {
        field: context.below_spec("terminationGracePeriodSeconds"),
        found: seconds.to_string(),
        wanted: "0".into(),
        why,
        evidence: vec![seconds.to_string()],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{check, check_pod, pool};
    use super::*;
    use crate::headroom::object::Kind;

    /// B1, B2, B3.
    #[test]
    fn b_only_zero_is_accepted() {
        for (seconds, refused) in
            [(json!(0), false), (json!(1), true), (json!(30), true), (json!(45), true), (json!(-1), true), (json!(null), true)]
        {
            let finding = check_pod(&RULE, json!({}), json!({"terminationGracePeriodSeconds": seconds}));
            assert_eq!(finding.is_some(), refused, "{seconds}");
        }
        let finding = check_pod(&RULE, json!({}), json!({"terminationGracePeriodSeconds": 30})).unwrap();
        assert!(finding.why.contains("API server fills in"), "30 may not have been written by the user");
        let finding = check_pod(&RULE, json!({}), json!({"terminationGracePeriodSeconds": 45})).unwrap();
        assert!(finding.why.contains("up to 45 s"));
    }

    #[test]
    fn the_path_leads_to_the_field_in_every_kind() {
        let finding =
            check(&RULE, json!({}), Kind::CronJob, json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {}}}}}})).unwrap();
        assert_eq!(finding.field, "spec.jobTemplate.spec.template.spec.terminationGracePeriodSeconds");
        assert_eq!(check(&RULE, json!({}), Kind::PriorityClass, json!({"value": -10})), None);
    }

    #[test]
    fn fix_changes_only_a_pods_30_and_warns_of_a_templates() {
        let pool = pool(json!({"rules": {"zeroGracePeriod": "Fix"}}));
        let pod = |seconds: i64| Object::read(Kind::Pod, &json!({"spec": {"terminationGracePeriodSeconds": seconds}}).to_string()).unwrap();
        assert!(is_fixed_at_create(&pool, &pod(30)));
        assert!(!is_fixed_at_create(&pool, &pod(45)));
        assert!(!is_fixed_at_create(&pool, &pod(0)));
        let template = |seconds: i64| {
            let json = json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": seconds}}}});
            Object::read(Kind::Deployment, &json.to_string()).unwrap()
        };
        assert_eq!(mode(&pool, &template(30)), Mode::Warn);
        assert_eq!(mode(&pool, &template(45)), Mode::Enforce);
        assert_eq!(mode(&pool, &pod(45)), Mode::Enforce);
    }
}
