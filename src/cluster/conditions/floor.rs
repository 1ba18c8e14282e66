//! What `FloorHeld` says.

use super::{Said, Status};
use crate::api::deletion_cost_policy::FloorTarget;
use crate::cluster::autoscalers::{Unfit, field};
use crate::cost::floor::{Measured, Standing};

const FLOOR_HELD: &str = "FloorHeld";

/// Such as `minReplicas of HorizontalPodAutoscaler web`.
fn minimum(target: &FloorTarget) -> String {
    format!("{} of {}", field(target.kind), autoscaler(target))
}

fn autoscaler(target: &FloorTarget) -> String {
    format!("{:?} {}", target.kind, target.name)
}

fn trouble(reason: &'static str, message: String) -> Said {
    Said::trouble(FLOOR_HELD, Status::False, reason, message)
}

/// After a look at an autoscaler.
pub fn held(target: &FloorTarget, measured: Measured, standing: &Standing, dry_run: bool) -> Said {
    let (minimum, Measured { busy, uncertain }) = (minimum(target), measured);
    let said = |status, reason, message| Said::new(FLOOR_HELD, status, reason, message);
    match standing {
        Standing::Held { value, original, .. } if dry_run => {
            said(Status::False, "DryRun", format!("{minimum} would be held at {value} rather than {original}; this policy writes nothing"))
        }
        Standing::Held { value, original, is_clamped: false } => {
            let uncertain = if uncertain == 0 { String::new() } else { format!(", {uncertain} new or not measured") };
            said(Status::True, "Held", format!("{minimum} is {value}, for {busy} busy pods{uncertain}; without us it is {original}"))
        }
        Standing::Held { value, original, is_clamped: true } => {
            let message = format!("{minimum} is {value}, its maximum, for {busy} busy pods; without us it is {original}");
            Said { is_trouble: true, ..said(Status::True, "Clamped", message) }
        }
        Standing::NotNeeded { original } => {
            said(Status::False, "NotNeeded", format!("{minimum} is {original}, as without us: that is enough for {busy} busy pods"))
        }
        Standing::AtRest => said(Status::False, "AtRest", format!("{} has no replicas; it is left alone", autoscaler(target))),
        Standing::HeldByAnother { policy } => trouble(
            "HeldByAnother",
            format!("policy {policy} holds a floor on {} already; one autoscaler has one floor", autoscaler(target)),
        ),
        Standing::Reverted { original, by } => {
            let writer = by.as_deref().unwrap_or("somebody");
            let message = format!(
                "`{writer}` has put {minimum} back twice, and it is {original} now; it is left alone. Let them leave the field out, \
                 and then change this policy to start again"
            );
            trouble("Reverted", message)
        }
        Standing::NoteLost => trouble(
            "NoteLost",
            format!(
                "{} is labelled as held, and the annotation with what its owner had written is gone. Write {} anew, and take the label \
                 pecking-order.dev/floor-held away",
                autoscaler(target),
                field(target.kind)
            ),
        ),
    }
}

/// No floor can be held there.
pub fn unfit(target: &FloorTarget, unfit: &Unfit) -> Said {
    let autoscaler = autoscaler(target);
    match unfit {
        Unfit::NotFound => trouble("TargetNotFound", format!("found no {autoscaler}, wanted one in the policy's namespace")),
        Unfit::Owned { kind, name } if kind == "ScaledObject" => {
            let advice = format!("wanted spec.floor.target {{kind: ScaledObject, name: {name}}}");
            trouble("RefusedKedaOwned", format!("ScaledObject {name} owns {autoscaler} and undoes every change of it; {advice}"))
        }
        Unfit::Owned { kind, name } => trouble(
            "RefusedOwned",
            format!("{kind} {name} owns {autoscaler} and would undo every change of it; wanted one that nobody owns"),
        ),
        Unfit::OtherWorkload { kind, name } => trouble(
            "WorkloadNotHonoured",
            format!("{autoscaler} scales {kind} {name}, wanted a Deployment or a Rollout: others are not supported"),
        ),
        Unfit::Paused { annotation } => {
            Said::new(FLOOR_HELD, Status::False, "Paused", format!("{autoscaler} is paused ({annotation}); it is left alone"))
        }
        Unfit::NotReported => {
            let message = format!("it is not known how many replicas {autoscaler} has: its status does not say");
            Said::new(FLOOR_HELD, Status::Unknown, "NotReported", message)
        }
        Unfit::Failed { why } => Said::trouble(FLOOR_HELD, Status::Unknown, "ReadFailed", format!("{autoscaler} cannot be read: {why}")),
    }
}

/// The policy governs nothing that the autoscaler scales.
pub fn without_pods(target: &FloorTarget, workload: &str) -> Said {
    let message = format!("{} scales {workload}, of which this policy governs no pod; see spec.selector", autoscaler(target));
    trouble("NoGovernedPods", message)
}

/// The API server refuses what we write.
pub fn refused(target: &FloorTarget, why: &str) -> Said {
    trouble("WriteRefused", format!("{} cannot be written: {why}", minimum(target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::deletion_cost_policy::Autoscaler;

    #[test]
    fn who_undoes_a_floor_is_named() {
        let target = FloorTarget { kind: Autoscaler::HorizontalPodAutoscaler, name: "web".into() };
        let measured = Measured { busy: 5, uncertain: 0 };
        let said = held(&target, measured, &Standing::Reverted { original: 2, by: Some("argocd-controller".into()) }, false);
        assert!(
            said.is_trouble
                && said
                    .message
                    .starts_with("`argocd-controller` has put minReplicas of HorizontalPodAutoscaler web back twice, and it is 2")
        );
        let said = held(&target, measured, &Standing::Held { value: 6, original: 2, is_clamped: false }, false);
        assert_eq!(said.message, "minReplicas of HorizontalPodAutoscaler web is 6, for 5 busy pods; without us it is 2");
        let said = held(&target, measured, &Standing::Held { value: 6, original: 2, is_clamped: false }, true);
        assert_eq!((said.status, said.reason), (Status::False, "DryRun"));
    }

    /// DC-39.
    #[test]
    fn dc_39_keda_is_told_apart() {
        let target = FloorTarget { kind: Autoscaler::HorizontalPodAutoscaler, name: "keda-hpa-web".into() };
        let said = unfit(&target, &Unfit::Owned { kind: "ScaledObject".into(), name: "web".into() });
        assert_eq!((said.status, said.reason), (Status::False, "RefusedKedaOwned"));
        assert!(said.message.ends_with("wanted spec.floor.target {kind: ScaledObject, name: web}"), "{}", said.message);
    }
}
