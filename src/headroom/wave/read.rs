//! Reads what `kubectl get nodes,pods -o json` prints, object by object: of a cluster's gigabyte only what a plan needs is kept.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Amounts, Cluster, Pod, PodKind, Role, in_units};
use crate::api::policies::Labels;
use crate::api::tolerant::{few, null_is_default};
use crate::headroom::classes::never_preempts;
use crate::headroom::effective::{self, Resources};
use crate::headroom::node::Node;
use crate::headroom::object::PodSpec;
use crate::headroom::quantity::Quantity;

/// An object that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Malformed {
    what: String,
    source: serde_json::Error,
}

/// What marks a placeholder: labels of the pod and its class.
pub type IsPlaceholder<'a> = &'a (dyn Fn(&Labels, Option<&str>) -> bool + Sync);

/// What was read, by one of several readers.
#[derive(Default)]
pub struct Reader {
    nodes: Vec<Node>,
    pods: Vec<Reduced>,
    kinds: HashMap<String, Arc<Kind>>,
    names: HashMap<String, Arc<str>>,
    waiting: usize,
    /// `NAMESPACE/DEPLOYMENT` that a cluster-proportional-autoscaler scales.
    scaled_by_size: Vec<String>,
}

struct Reduced {
    namespace: Arc<str>,
    name: Box<str>,
    node: Arc<str>,
    role: Role,
    owner: Arc<str>,
    kind: Arc<Kind>,
}

struct Kind {
    spec: PodSpec,
    request: Resources,
    not_modelled: Option<&'static str>,
}

impl Reader {
    /// Reads one object; those of other kinds are passed over.
    pub fn read(&mut self, json: &[u8], is_placeholder: IsPlaceholder<'_>) -> Result<(), Malformed> {
        let malformed = |what: &str| {
            let what = what.to_owned();
            move |source| Malformed { what, source }
        };
        let item: Item<'_> = serde_json::from_slice(json).map_err(malformed("an object"))?;
        match &*item.kind {
            "Node" => {
                let what = format!("Node {}", item.metadata.name);
                self.nodes.push(Node::read(serde_json::from_slice(json).map_err(malformed(&what))?));
            }
            "Pod" => {
                let what = format!("Pod {}/{}", item.metadata.namespace, item.metadata.name);
                self.pod(item, is_placeholder).map_err(malformed(&what))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn pod(&mut self, item: Item<'_>, is_placeholder: IsPlaceholder<'_>) -> Result<(), serde_json::Error> {
        let status: Status = item.status.map_or(Ok(Status::default()), |status| serde_json::from_str(status.get()))?;
        let Some(spec) = item.spec.map(RawValue::get) else { return Ok(()) };
        let place: Place = serde_json::from_str(spec)?;
        let metadata = item.metadata;
        if metadata.deletion_timestamp.is_some() || matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Ok(());
        }
        for container in place.containers.iter().filter(|container| container.image.contains("cluster-proportional-autoscaler")) {
            let words = container.args.iter().chain(&container.command);
            let target = words.filter_map(|word| word.strip_prefix("--target=deployment/")).next();
            self.scaled_by_size.extend(target.map(|target| format!("{}/{target}", metadata.namespace)));
        }
        let owner = metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
        let is_mirror = metadata.annotations.contains_key("kubernetes.io/config.mirror");
        let node = place.node_name.unwrap_or_default();
        if node.is_empty() {
            self.waiting += usize::from(place.scheduling_gates.is_empty());
            return Ok(());
        }
        let role = match owner.map(|owner| &*owner.kind) {
            _ if is_placeholder(&metadata.labels, place.priority_class_name.as_deref()) => Role::Placeholder,
            Some("DaemonSet" | "Node") => Role::OfNode,
            _ if is_mirror => Role::OfNode,
            _ => Role::Movable,
        };
        let kind = self.kind(spec, &node)?;
        let (namespace, node) = (self.name(&metadata.namespace), self.name(&node));
        let owner = self.name(owner.map_or("", |owner| &owner.name));
        self.pods.push(Reduced { namespace, name: metadata.name.as_ref().into(), node, role, owner, kind });
        Ok(())
    }

    /// Pods of one template have the same spec, but for the node, and the name of a volume or two.
    fn kind(&mut self, spec: &str, node: &str) -> Result<Arc<Kind>, serde_json::Error> {
        let wanted: Wanted<'_> = serde_json::from_str(spec)?;
        let key = wanted.key(node);
        if let Some(kind) = self.kinds.get(&key) {
            return Ok(kind.clone());
        }
        let (spec, constraints): (PodSpec, Constraints) = (serde_json::from_str(spec)?, serde_json::from_str(spec)?);
        let kind = Arc::new(Kind { request: effective::request(&spec), not_modelled: constraints.not_modelled(), spec });
        self.kinds.insert(key, kind.clone());
        Ok(kind)
    }

    fn name(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.names.get(text) {
            return known.clone();
        }
        let name: Arc<str> = text.into();
        self.names.insert(text.to_owned(), name.clone());
        name
    }

    /// Puts together what several readers have read.
    pub fn cluster(readers: impl IntoIterator<Item = Self>) -> Cluster {
        let mut cluster = Cluster { resources: vec!["cpu".into(), "memory".into()], ..Cluster::default() };
        let readers: Vec<Self> = readers.into_iter().collect();
        for kind in readers.iter().flat_map(|reader| reader.kinds.values()) {
            for resource in kind.request.keys().filter(|resource| *resource != "pods") {
                if !cluster.resources.contains(resource) {
                    cluster.resources.push(resource.clone());
                }
            }
        }
        let scaled: Vec<String> = readers.iter().flat_map(|reader| reader.scaled_by_size.clone()).collect();
        let mut kinds: HashMap<*const Kind, Arc<PodKind>> = HashMap::new();
        let mut scaled_placeholders: BTreeMap<String, ()> = BTreeMap::new();
        for reader in &readers {
            cluster.waiting += reader.waiting;
            for node in &reader.nodes {
                cluster.nodes.insert(node.name.as_str().into(), node.clone());
            }
            for pod in &reader.pods {
                let kind = kinds.entry(Arc::as_ptr(&pod.kind)).or_insert_with(|| Arc::new(compile(&pod.kind, &cluster.resources))).clone();
                if pod.role == Role::Placeholder {
                    let is_scaled =
                        |target: &&String| pod.owner.starts_with(&format!("{}-", target.split_once('/').map_or("", |(_, name)| name)));
                    scaled_placeholders.extend(scaled.iter().find(is_scaled).map(|target| (target.clone(), ())));
                }
                let (namespace, name, node, role) = (pod.namespace.clone(), pod.name.clone(), pod.node.clone(), pod.role);
                cluster.pods.push(Pod { namespace, name, node, role, kind });
            }
        }
        cluster.scaled_by_size = scaled_placeholders
            .into_keys()
            .map(|target| format!("a cluster-proportional-autoscaler scales the placeholders of Deployment {target}"))
            .collect();
        cluster
    }
}

fn compile(kind: &Kind, resources: &[String]) -> PodKind {
    let none = Quantity { nanos: 0 };
    let request: Amounts =
        resources.iter().map(|resource| in_units(resource, kind.request.get(resource).copied().unwrap_or(none))).collect();
    PodKind {
        priority: kind.spec.priority.unwrap_or(0),
        never_preempts: never_preempts(kind.spec.preemption_policy.as_deref()),
        request,
        not_modelled: kind.not_modelled,
        spec: kind.spec.clone(),
    }
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(deserialize_with = "null_is_default")]
    labels: Labels,
    #[serde(deserialize_with = "null_is_default")]
    annotations: HashMap<String, serde::de::IgnoredAny>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    #[serde(deserialize_with = "few")]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Status {
    phase: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Place {
    node_name: Option<String>,
    priority_class_name: Option<String>,
    #[serde(deserialize_with = "few")]
    scheduling_gates: Vec<serde::de::IgnoredAny>,
    #[serde(deserialize_with = "few")]
    containers: Vec<Words>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Words {
    image: String,
    #[serde(deserialize_with = "few")]
    args: Vec<String>,
    #[serde(deserialize_with = "few")]
    command: Vec<String>,
}

/// The parts of a spec by which pods of one kind are told, as they are written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted<'a> {
    #[serde(borrow)]
    node_selector: Option<&'a RawValue>,
    #[serde(borrow)]
    affinity: Option<&'a RawValue>,
    #[serde(borrow)]
    tolerations: Option<&'a RawValue>,
    #[serde(borrow)]
    topology_spread_constraints: Option<&'a RawValue>,
    #[serde(borrow)]
    overhead: Option<&'a RawValue>,
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
    #[serde(borrow)]
    resource_claims: Option<&'a RawValue>,
    priority: Option<i32>,
    preemption_policy: Option<Cow<'a, str>>,
    #[serde(borrow, deserialize_with = "few")]
    containers: Vec<Part<'a>>,
    #[serde(borrow, deserialize_with = "few")]
    init_containers: Vec<Part<'a>>,
    #[serde(deserialize_with = "few")]
    volumes: Vec<Volume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Part<'a> {
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
    restart_policy: Option<Cow<'a, str>>,
    #[serde(deserialize_with = "few")]
    ports: Vec<Port>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    host_port: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    persistent_volume_claim: Option<serde::de::IgnoredAny>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

impl Wanted<'_> {
    fn key(&self, node: &str) -> String {
        let mut key = String::with_capacity(512);
        let parts = [
            self.node_selector,
            self.affinity,
            self.tolerations,
            self.topology_spread_constraints,
            self.overhead,
            self.resources,
            self.resource_claims,
        ];
        let text = |part: &Option<&RawValue>| part.map_or("", RawValue::get).to_owned();
        parts.iter().for_each(|part| key.push_str(&text(part)));
        for container in self.containers.iter().chain(&self.init_containers) {
            key.push_str(&text(&container.resources));
            key.push_str(container.restart_policy.as_deref().unwrap_or("|"));
            key.extend(container.ports.iter().any(|port| port.host_port.is_some()).then_some('p'));
        }
        let has_volume = self.volumes.iter().any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
        key.push_str(&format!("{:?}{:?}{has_volume}{}", self.priority, self.preemption_policy, self.containers.len()));
        // A pod that names its own node in its affinity is a kind of its own.
        if key.contains("matchFields") {
            key.push_str(node);
        }
        key
    }
}

/// What keeps pods from nodes, and is not looked at.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Constraints {
    #[serde(deserialize_with = "null_is_default")]
    affinity: OtherAffinity,
    #[serde(deserialize_with = "few")]
    topology_spread_constraints: Vec<Spread>,
    #[serde(deserialize_with = "few")]
    containers: Vec<Ports>,
    #[serde(deserialize_with = "few")]
    volumes: Vec<Volume>,
    #[serde(deserialize_with = "few")]
    resource_claims: Vec<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OtherAffinity {
    #[serde(deserialize_with = "null_is_default")]
    pod_affinity: Terms,
    #[serde(deserialize_with = "null_is_default")]
    pod_anti_affinity: Terms,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terms {
    #[serde(deserialize_with = "few")]
    required_during_scheduling_ignored_during_execution: Vec<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spread {
    when_unsatisfiable: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ports {
    #[serde(deserialize_with = "few")]
    ports: Vec<Port>,
}

impl Constraints {
    fn not_modelled(&self) -> Option<&'static str> {
        let has = |terms: &Terms| !terms.required_during_scheduling_ignored_during_execution.is_empty();
        let spreads = self.topology_spread_constraints.iter().any(|spread| spread.when_unsatisfiable != "ScheduleAnyway");
        let ports = self.containers.iter().flat_map(|container| &container.ports).any(|port| port.host_port.is_some());
        let volumes = self.volumes.iter().any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
        [
            (has(&self.affinity.pod_affinity), "its required pod affinity"),
            (has(&self.affinity.pod_anti_affinity), "its required pod anti-affinity"),
            (spreads, "its topology spread constraint"),
            (ports, "its host port"),
            (volumes, "where its volume can be attached"),
            (!self.resource_claims.is_empty(), "its resource claim"),
        ]
        .into_iter()
        .find_map(|(is_there, what)| is_there.then_some(what))
    }
}
