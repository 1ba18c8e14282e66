//! What is kept of a pod: the few fields that decide its place in the order, never the whole object.

use core::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;

use super::Stored;
use super::annotation::{COST, MARK};

/// The API server's default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: u32 = 30;

/// A pod that a ReplicaSet or a ReplicationController controls.
#[derive(Debug, Clone, PartialEq)]
pub struct GovernedPod {
    pub namespace: String,
    pub name: String,
    /// Shared with whatever else is kept of the pod.
    pub uid: Arc<str>,
    /// The `resourceVersion` of this state; 0 where there is none. Of two states of a pod the higher is the later.
    pub version: u64,
    /// UID of the controlling ReplicaSet or ReplicationController.
    pub owner: Arc<str>,
    pub node: Option<String>,
    /// One for each address family.
    pub ips: Vec<IpAddr>,
    pub phase: Phase,
    /// Since when the pod has been Ready; absent while it is not.
    pub ready_since: Option<Timestamp>,
    /// The highest restart count of a container, then of a restartable init container (a sidecar).
    pub restarts: (i32, i32),
    pub created: Timestamp,
    pub terminating: bool,
    /// How long the pod has to finish its work once it is told to stop, in seconds.
    pub grace_seconds: u32,
    pub stored: Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Pending,
    Unknown,
    Running,
    /// Succeeded or Failed: the controller drops the pod before it sorts.
    Finished,
}

impl GovernedPod {
    /// Reads a pod; `None` where no ReplicaSet or ReplicationController controls it, since nothing else reads the cost.
    pub fn read(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        if !honours_cost(owner) {
            return None;
        }
        let status = pod.status.as_ref();
        let ready = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten().find(|c| c.type_ == "Ready" && c.status == "True");
        let created = metadata.creation_timestamp.as_ref().map(|t| t.0).unwrap_or_default();
        let init_containers = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
        let is_sidecar =
            |name: &str| init_containers.into_iter().flatten().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"));
        let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let most_restarts = |statuses: Option<&Vec<ContainerStatus>>, counts: &dyn Fn(&str) -> bool| {
            statuses.into_iter().flatten().filter(|s| counts(&s.name)).map(|s| s.restart_count).max().unwrap_or(0)
        };
        Some(Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0),
            owner: owner.uid.as_str().into(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty()),
            ips: status.map(addresses).unwrap_or_default(),
            phase: match status.and_then(|s| s.phase.as_deref()) {
                Some("Running") => Phase::Running,
                Some("Succeeded" | "Failed") => Phase::Finished,
                Some("Unknown") => Phase::Unknown,
                _ => Phase::Pending,
            },
            ready_since: ready.map(|c| c.last_transition_time.as_ref().map_or(created, |t| t.0)),
            restarts: (
                most_restarts(status.and_then(|s| s.container_statuses.as_ref()), &|_| true),
                most_restarts(status.and_then(|s| s.init_container_statuses.as_ref()), &is_sidecar),
            ),
            created,
            terminating: metadata.deletion_timestamp.is_some(),
            grace_seconds: grace.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(DEFAULT_GRACE_SECONDS),
            stored: metadata.annotations.as_ref().map_or(Stored::Unset, |annotations| {
                Stored::from_texts(annotations.get(COST).map(String::as_str), annotations.get(MARK).map(String::as_str))
            }),
        })
    }

    /// Whether the controller looks at the pod at all when it counts and sorts.
    pub fn is_active(&self) -> bool {
        !self.terminating && self.phase != Phase::Finished
    }
}

fn addresses(status: &PodStatus) -> Vec<IpAddr> {
    let all = status.pod_ips.iter().flatten().map(|ip| &ip.ip).chain(&status.pod_ip);
    let mut addresses: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// What controls a pod, from a closed list: for pods whose controller does not read the cost.
pub fn controller_of(pod: &Pod) -> &'static str {
    match pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true)) {
        None => "nothing",
        Some(owner) => match owner.kind.as_str() {
            "StatefulSet" => "a StatefulSet",
            "Job" => "a Job",
            "DaemonSet" => "a DaemonSet",
            _ => "another kind",
        },
    }
}

/// Only the ReplicaSet controller, which also runs ReplicationControllers, reads the cost.
pub fn honours_cost(owner: &OwnerReference) -> bool {
    matches!((owner.kind.as_str(), owner.api_version.as_str()), ("ReplicaSet", "apps/v1") | ("ReplicationController", "v1"))
}

impl AsRef<GovernedPod> for GovernedPod {
    fn as_ref(&self) -> &GovernedPod {
        self
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Ready pod of ReplicaSet `rs` on node `node`, a day old.
    pub(crate) fn pod(name: &str) -> GovernedPod {
        GovernedPod {
            namespace: "shop".into(),
            name: name.into(),
            uid: name.into(),
            version: 0,
            owner: "rs".into(),
            node: Some("node".into()),
            ips: vec![],
            phase: Phase::Running,
            ready_since: Some(Timestamp::UNIX_EPOCH),
            restarts: (0, 0),
            created: Timestamp::UNIX_EPOCH,
            terminating: false,
            grace_seconds: 30,
            stored: Stored::Unset,
        }
    }

    #[test]
    fn reads_only_pods_whose_controller_reads_the_cost() {
        let read = |owner: serde_json::Value| {
            let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "a", "ownerReferences": [owner]}})).unwrap();
            GovernedPod::read(&pod).is_some()
        };
        let owner = |api_version: &str, kind: &str, controller: bool| serde_json::json!({"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": controller});
        assert!(read(owner("apps/v1", "ReplicaSet", true)));
        assert!(read(owner("v1", "ReplicationController", true)));
        assert!(!read(owner("apps/v1", "ReplicaSet", false)));
        assert!(!read(owner("apps/v1", "StatefulSet", true)));
        assert!(!read(owner("batch/v1", "Job", true)));
    }
}
