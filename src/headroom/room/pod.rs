//! A pod, as far as room is concerned: a placeholder, or one that wants a placeholder's room, or a runner.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::jiff::Timestamp;

use crate::api::headroom_claim::{CLAIM_ANNOTATION, JOB_ANNOTATION};
use crate::api::policies::Labels;
use crate::headroom::effective::{self, Resources};
use crate::headroom::object::{Kind, Object};

/// Our scheduling gate: the scheduler does not look at a pod that has it.
pub const GATE: &str = "pecking-order.dev/room";

#[derive(Debug, Clone)]
pub struct Pod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    pub created: Timestamp,
    /// `spec.nodeName`: a nominated node is no node.
    pub node: Option<String>,
    pub is_leaving: bool,
    pub has_ended: bool,
    pub is_running: bool,
    pub has_our_gate: bool,
    pub has_other_gates: bool,
    /// Its claim, by name.
    pub claim: Option<String>,
    pub job: Option<String>,
    pub owner: Option<Owner>,
    /// The pools that mark it, by name.
    pub placeholder_of: Vec<String>,
    pub request: Resources,
    pub priority: i32,
    /// As the rules see it; of placeholders only.
    pub object: Option<Arc<Object>>,
}

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl Pod {
    /// Reads what the API server says of a pod; `marked_by` says which pools mark it.
    pub fn read(pod: &ApiPod, marked_by: impl Fn(&Object) -> Vec<String>) -> Option<Self> {
        let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let gates = spec.scheduling_gates.iter().flatten();
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(key).cloned());
        let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let object = serde_json::to_string(pod).ok().and_then(|text| Object::read(Kind::Pod, &text).ok())?;
        let placeholder_of = marked_by(&object);
        Some(Self {
            uid: metadata.uid.clone()?,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            node: spec.node_name.clone().filter(|name| !name.is_empty()),
            is_leaving: metadata.deletion_timestamp.is_some(),
            has_ended: matches!(phase, Some("Succeeded" | "Failed")),
            is_running: phase == Some("Running"),
            has_our_gate: gates.clone().any(|gate| gate.name == GATE),
            has_other_gates: gates.clone().any(|gate| gate.name != GATE),
            claim: annotation(CLAIM_ANNOTATION),
            job: annotation(JOB_ANNOTATION),
            owner: owner.map(|owner| Owner { kind: owner.kind.clone(), name: owner.name.clone(), uid: owner.uid.clone() }),
            request: object.pod_spec().map(effective::request).unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            object: Some(Arc::new(object)).filter(|_| !placeholder_of.is_empty()),
            placeholder_of,
        })
    }

    pub fn is_alive(&self) -> bool {
        !self.is_leaving && !self.has_ended
    }

    /// Whether it may still get a node.
    pub fn awaits_a_node(&self) -> bool {
        self.is_alive() && self.node.is_none()
    }
}
