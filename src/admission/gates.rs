//! Pods that wait for room: our scheduling gate at CREATE, or a refusal where they would wait in vain.

use serde::Deserialize;

use super::answer::{Cause, Denial, DenialStatus};
use super::{Mutation, Operation, PodPatch, Request, Snapshot, Unreadable};
use crate::api::headroom_claim::CLAIM_ANNOTATION;
use crate::api::policies::Labels;
use crate::api::tolerant::{few, null_is_default};
use crate::headroom::object::Kind;
use crate::headroom::room::{GATE, Newcomer, Verdict};

/// When to try again: a placeholder that was preempted is back when a node has booted, and others end sooner.
const RETRY_AFTER_SECONDS: u32 = 10;

/// The gate, where the pod has to wait.
pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Mutation, Unreadable> {
    let Some(pod) = read(request)? else { return Ok(Mutation::default()) };
    let has_gate = pod.spec.scheduling_gates.iter().any(|gate| gate.name == GATE);
    // A pod that has its node already cannot have gates.
    let can_wait = pod.spec.node_name.as_deref().is_none_or(str::is_empty) && !has_gate;
    let waits = can_wait && verdict(request, &pod, snapshot) == Verdict::Gate;
    Ok(Mutation::patch(waits.then(|| PodPatch::gate(pod.spec.has_gates()))))
}

/// Why the pod is refused, if it is.
pub fn denial(request: &Request<'_>, snapshot: &Snapshot) -> Result<Option<Denial>, Unreadable> {
    let Some(pod) = read(request)? else { return Ok(None) };
    let name = if pod.metadata.name.is_empty() { pod.metadata.generate_name.clone() } else { pod.metadata.name.clone() };
    let denial = |status, field: &str, reason: &str, message: String| {
        let cause = Cause { reason: reason.into(), field: field.into(), message: format!("{message} (pecking-order; docs/room.md)") };
        Denial {
            status,
            message: format!("Pod `{name}`: {message}"),
            group: String::new(),
            kind: "Pod".into(),
            name: name.clone(),
            causes: vec![cause],
        }
    };
    Ok(match verdict(request, &pod, snapshot) {
        Verdict::Pass | Verdict::Gate => None,
        Verdict::NoRoom { pool } => Some(denial(
            DenialStatus::TooManyRequests { retry_after_seconds: RETRY_AFTER_SECONDS },
            "metadata.labels",
            "NoRoom",
            format!("HeadroomPool {pool} has no free placeholder now (spec.gate.onNoRoom: Deny); try again in {RETRY_AFTER_SECONDS} s"),
        )),
        Verdict::CannotPreempt { pool, why } => Some(denial(
            DenialStatus::Invalid,
            "spec.priorityClassName",
            "CannotPreempt",
            format!(
                "found a pod that waits for room of HeadroomPool {pool} and can never take it: {why}; wanted a class above the placeholders' that may preempt"
            ),
        )),
    })
}

fn verdict(request: &Request<'_>, pod: &Pod, snapshot: &Snapshot) -> Verdict {
    let claim = pod.metadata.annotations.get(CLAIM_ANNOTATION).map(String::as_str);
    let (priority, preemption_policy) = (pod.spec.priority, pod.spec.preemption_policy.as_deref());
    let newcomer = Newcomer { namespace: &request.namespace, labels: &pod.metadata.labels, claim, priority, preemption_policy };
    snapshot.gates.verdict(&newcomer, &snapshot.policies, &snapshot.headroom.classes)
}

/// The pod of a CREATE that some pool may be concerned with.
fn read(request: &Request<'_>) -> Result<Option<Pod>, Unreadable> {
    let is_pod = Kind::find(&request.kind.group, &request.kind.kind) == Some(Kind::Pod) && request.sub_resource.is_empty();
    let Some(object) = request.object.filter(|_| is_pod && request.operation == Operation::Create) else { return Ok(None) };
    serde_json::from_str(object.get()).map(Some).map_err(|source| Unreadable { field: "request.object", source })
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default, deserialize_with = "null_is_default")]
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    generate_name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    labels: Labels,
    #[serde(default, deserialize_with = "null_is_default")]
    annotations: Labels,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    #[serde(default, deserialize_with = "few")]
    scheduling_gates: Vec<SchedulingGate>,
    priority: Option<i32>,
    preemption_policy: Option<String>,
}

#[derive(Deserialize)]
struct SchedulingGate {
    #[serde(default)]
    name: String,
}

impl Spec {
    fn has_gates(&self) -> bool {
        !self.scheduling_gates.is_empty()
    }
}
