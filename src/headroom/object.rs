//! The objects that can be headroom, reduced to the fields that a rule reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelectorTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::quantity::Quantity;
use crate::api::policies::Labels;
use crate::api::tolerant::{few, null_is_default};
use crate::api::{HEADROOM_LABEL, Pool};

/// A reviewed object.
#[derive(Debug)]
pub struct Object {
    pub kind: Kind,
    pub name: String,
    /// Empty where the object has none, or does not say it itself.
    pub namespace: String,
    pub labels: Labels,
    /// An object on its way out, or a pod that has ended: it is never refused.
    pub leaving: bool,
    /// The Deployment or CronJob that made this ReplicaSet or Job from a template that was reviewed there.
    pub made_by_a_reviewed_template: bool,
    /// Something makes it again when it is gone.
    pub is_controlled: bool,
    pub body: Body,
}

#[derive(Debug)]
pub enum Body {
    Class {
        value: i32,
        global_default: bool,
        preemption_policy: Option<String>,
    },
    /// A pod, or the template of one.
    Pod {
        labels: Labels,
        spec: Box<PodSpec>,
    },
}

/// The kinds that are reviewed, each with the path of its pod spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Kind {
    PriorityClass,
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    ReplicationController,
    Job,
    CronJob,
    PodTemplate,
}

impl Kind {
    pub const ALL: [Self; 10] = [
        Self::PriorityClass,
        Self::Pod,
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::ReplicationController,
        Self::Job,
        Self::CronJob,
        Self::PodTemplate,
    ];

    /// The kind with this name in this API group.
    pub fn find(group: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == kind && known.group() == group)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::PriorityClass => "PriorityClass",
            Self::Pod => "Pod",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::ReplicationController => "ReplicationController",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::PodTemplate => "PodTemplate",
        }
    }

    pub fn group(self) -> &'static str {
        match self {
            Self::PriorityClass => "scheduling.k8s.io",
            Self::Pod | Self::ReplicationController | Self::PodTemplate => "",
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet | Self::DaemonSet => "apps",
            Self::Job | Self::CronJob => "batch",
        }
    }

    pub fn pod_spec_path(self) -> &'static str {
        match self {
            Self::PriorityClass => "",
            Self::Pod => "spec",
            Self::PodTemplate => "template.spec",
            Self::CronJob => "spec.jobTemplate.spec.template.spec",
            _ => "spec.template.spec",
        }
    }
}

/// The fields of a pod spec that a rule reads. Everything else may be there and is not looked at.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    pub priority_class_name: Option<String>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<String>,
    pub termination_grace_period_seconds: Option<i64>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_is_default")]
    affinity: Affinity,
    #[serde(default, deserialize_with = "few")]
    pub tolerations: Vec<Toleration>,
    #[serde(default, deserialize_with = "few")]
    pub containers: Vec<Container>,
    #[serde(default, deserialize_with = "few")]
    pub init_containers: Vec<Container>,
    /// Of the pod as a whole.
    #[serde(default, deserialize_with = "null_is_default")]
    pub resources: Resources,
    /// What the RuntimeClass adds.
    #[serde(default, deserialize_with = "null_is_default")]
    pub overhead: BTreeMap<String, Amount>,
    pub scheduler_name: Option<String>,
    pub runtime_class_name: Option<String>,
    #[serde(default, deserialize_with = "few")]
    pub topology_spread_constraints: Vec<Spread>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    pub key: Option<String>,
    pub operator: Option<String>,
    pub value: Option<String>,
    pub effect: Option<String>,
}

/// A topology spread constraint, or a term of a pod anti-affinity: whom a pod stays away from, and how far.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    pub label_selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub image: Option<String>,
    /// `Always` makes a sidecar of an init container.
    pub restart_policy: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub resources: Resources,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Resources {
    #[serde(default, deserialize_with = "null_is_default")]
    pub requests: BTreeMap<String, Amount>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub limits: BTreeMap<String, Amount>,
}

/// A quantity as it is written: a text, or a number where YAML has made it one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    Text(String),
    Number(serde_json::Number),
}

impl Resources {
    /// What is reserved of a resource: the request, or the limit that stands for it.
    pub fn reserved(&self, resource: &str) -> Option<String> {
        self.requests.get(resource).or_else(|| self.limits.get(resource)).map(Amount::text)
    }

    /// Whether anything is reserved at all. What cannot be read is left to the API server, which refuses it.
    pub fn reserve_something(&self) -> bool {
        self.requests
            .values()
            .chain(self.limits.values())
            .any(|amount| Quantity::parse(&amount.text()).map_or(true, |amount| amount.nanos > 0))
    }
}

impl Amount {
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Affinity {
    #[serde(default, deserialize_with = "null_is_default")]
    node_affinity: NodeAffinity,
    #[serde(default, deserialize_with = "null_is_default")]
    pod_anti_affinity: PodAntiAffinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodAntiAffinity {
    #[serde(default, deserialize_with = "few")]
    required_during_scheduling_ignored_during_execution: Vec<Spread>,
    #[serde(default, deserialize_with = "few")]
    preferred_during_scheduling_ignored_during_execution: Vec<Preferred>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Preferred {
    #[serde(default, deserialize_with = "null_is_default")]
    pod_affinity_term: Spread,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelector {
    #[serde(default, deserialize_with = "few")]
    node_selector_terms: Vec<NodeSelectorTerm>,
}

impl PodSpec {
    /// The terms of the required node affinity, which are OR-ed; `None` where there is none.
    pub fn required_node_terms(&self) -> Option<&[NodeSelectorTerm]> {
        self.affinity.node_affinity.required_during_scheduling_ignored_during_execution.as_ref().map(|s| s.node_selector_terms.as_slice())
    }

    /// Every constraint by which the pod stays away from others, with its path below the pod spec.
    pub fn spreads(&self) -> impl Iterator<Item = (String, &Spread)> {
        let anti = &self.affinity.pod_anti_affinity;
        let required = anti.required_during_scheduling_ignored_during_execution.iter();
        let preferred = anti.preferred_during_scheduling_ignored_during_execution.iter().map(|preferred| &preferred.pod_affinity_term);
        let path = "affinity.podAntiAffinity";
        let required = required.enumerate().map(move |(i, s)| (format!("{path}.requiredDuringSchedulingIgnoredDuringExecution[{i}]"), s));
        let preferred = preferred
            .enumerate()
            .map(move |(i, s)| (format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{i}].podAffinityTerm"), s));
        let constraints = self.topology_spread_constraints.iter().enumerate();
        constraints.map(|(i, s)| (format!("topologySpreadConstraints[{i}]"), s)).chain(required).chain(preferred)
    }
}

impl Object {
    /// Reads the JSON of an object of this kind.
    pub fn read(kind: Kind, json: &str) -> Result<Self, serde_json::Error> {
        let (head, body) = match kind {
            Kind::PriorityClass => {
                let raw: RawClass = serde_json::from_str(json)?;
                let body = Body::Class {
                    value: raw.value.unwrap_or(0),
                    global_default: raw.global_default.unwrap_or(false),
                    preemption_policy: raw.preemption_policy,
                };
                (Head { metadata: raw.metadata, status: Status::default() }, body)
            }
            Kind::Pod => {
                let raw: Raw<PodSpec> = serde_json::from_str(json)?;
                let labels = raw.metadata.labels.clone();
                (Head { metadata: raw.metadata, status: raw.status }, Body::Pod { labels, spec: Box::new(raw.spec) })
            }
            Kind::CronJob => {
                let raw: Raw<CronJobSpec> = serde_json::from_str(json)?;
                let JobTemplate { metadata, spec } = raw.spec.job_template;
                let mut template = spec.template;
                // The labels of the Jobs mark their pods too.
                template.metadata.labels.extend(metadata.labels);
                (Head { metadata: raw.metadata, status: Status::default() }, template.into_body())
            }
            Kind::PodTemplate => {
                let raw: RawTemplate = serde_json::from_str(json)?;
                (Head { metadata: raw.metadata, status: Status::default() }, raw.template.into_body())
            }
            Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet | Kind::DaemonSet | Kind::ReplicationController | Kind::Job => {
                let raw: Raw<WorkloadSpec> = serde_json::from_str(json)?;
                (Head { metadata: raw.metadata, status: Status::default() }, raw.spec.template.into_body())
            }
        };
        let metadata = head.metadata;
        let made_by_a_reviewed_template = metadata.owner_references.iter().any(|owner| {
            let made_by = (kind, owner.api_version.as_str(), owner.kind.as_str());
            owner.controller == Some(true)
                && matches!(made_by, (Kind::ReplicaSet, "apps/v1", "Deployment") | (Kind::Job, "batch/v1", "CronJob"))
        });
        let ended = matches!(head.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        Ok(Self {
            kind,
            namespace: metadata.namespace,
            name: if metadata.name.is_empty() { metadata.generate_name } else { metadata.name },
            labels: metadata.labels,
            leaving: metadata.deletion_timestamp.is_some() || ended,
            made_by_a_reviewed_template,
            is_controlled: metadata.owner_references.iter().any(|owner| owner.controller == Some(true)),
            body,
        })
    }

    /// Whether the pool marks this object: by label (its own or its template's), or by class.
    pub fn is_marked_by(&self, pool: &Pool) -> bool {
        pool.marks_labels(&self.labels)
            || match &self.body {
                Body::Class { .. } => pool.marks_class(&self.name),
                Body::Pod { labels, spec } => {
                    pool.marks_labels(labels) || spec.priority_class_name.as_deref().is_some_and(|class| pool.marks_class(class))
                }
            }
    }

    /// Whether it is the pod of a CapacityBuffer, which Cluster Autoscaler creates as a dry run (`pkg/capacitybuffer`).
    pub fn is_of_a_capacity_buffer(&self) -> bool {
        self.kind == Kind::Pod && self.name.starts_with("fake-pod-") && !self.is_controlled
    }

    /// The pool that the mark label names, whether or not there is such a pool.
    pub fn mark(&self) -> Option<&str> {
        let template = match &self.body {
            Body::Pod { labels, .. } => labels.get(HEADROOM_LABEL),
            Body::Class { .. } => None,
        };
        self.labels.get(HEADROOM_LABEL).or(template).map(String::as_str)
    }
}

struct Head {
    metadata: Metadata,
    status: Status,
}

/// Every field may be absent or null.
#[derive(Deserialize)]
#[serde(bound(deserialize = "S: Deserialize<'de> + Default"))]
struct Raw<S> {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: S,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

#[derive(Deserialize)]
struct RawTemplate {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    template: Template,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawClass {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    value: Option<i32>,
    global_default: Option<bool>,
    preemption_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default, deserialize_with = "null_is_default")]
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
    #[serde(default, deserialize_with = "null_is_default")]
    generate_name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    labels: Labels,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    #[serde(default, deserialize_with = "few")]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    #[serde(default, deserialize_with = "null_is_default")]
    api_version: String,
    #[serde(default, deserialize_with = "null_is_default")]
    kind: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Status {
    phase: Option<String>,
}

#[derive(Default, Deserialize)]
struct WorkloadSpec {
    #[serde(default, deserialize_with = "null_is_default")]
    template: Template,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CronJobSpec {
    #[serde(default, deserialize_with = "null_is_default")]
    job_template: JobTemplate,
}

#[derive(Default, Deserialize)]
struct Template {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
struct JobTemplate {
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: WorkloadSpec,
}

impl Template {
    fn into_body(self) -> Body {
        Body::Pod { labels: self.metadata.labels, spec: Box::new(self.spec) }
    }
}
