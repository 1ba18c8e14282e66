//! A world read from files instead of an API server: policies, pods, ReplicaSets, PriorityClasses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;

use super::World;
use super::governance::parent_of;
use super::pods::ReplicaSet;
use super::world::List;
use super::writer::{OwnCost, PodWriter, Written};
use crate::admission::scale_downs::PodWrite;
use crate::api::Policies;
use crate::api::documents;
use crate::api::policies::PolicyKey;
use crate::cost::{GovernedPod, Stored};
use crate::headroom::{self, Classes};

/// Reads policies from a directory. At the start nothing good is in force yet, so a bad document stops it.
pub fn read_policies(directory: &Path) -> anyhow::Result<Policies> {
    let (documents, errors) = documents::read_directory(directory);
    if !errors.is_empty() {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        bail!("{} of the policies cannot be used:\n{}", errors.len(), lines.join("\n"));
    }
    Ok(documents.iter().fold(Policies::default(), Policies::with_document))
}

/// Reads `policies/` and `cluster.yaml` of a directory into a world.
pub fn read_world(directory: &Path, world: &World) -> anyhow::Result<()> {
    let policies = read_policies(&directory.join("policies"))?;
    let file = directory.join("cluster.yaml");
    let text = documents::read_text(&file).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).with_context(|| file.display().to_string())?;
    let mut classes = BTreeMap::new();
    for object in objects {
        read_object(object, &policies, world, &mut classes).with_context(|| file.display().to_string())?;
    }
    world.classes.store(Arc::new(Classes::new(classes)));
    world.update_policies(|_| policies.clone());
    for list in [List::Policies, List::Pools, List::Classes] {
        world.has_read(list);
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Class {
    metadata: kube::core::ObjectMeta,
    value: i32,
    #[serde(default)]
    global_default: bool,
    preemption_policy: Option<String>,
}

fn read_object(object: Value, policies: &Policies, world: &World, classes: &mut BTreeMap<String, headroom::Class>) -> anyhow::Result<()> {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    match kind.as_str() {
        "Pod" => {
            let pod: Pod = serde_json::from_value(object).context("a Pod")?;
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let labels = pod.metadata.labels.clone().unwrap_or_default();
            if let (Some(policy), Some(pod)) = (policies.governing(&namespace, &labels), GovernedPod::read(&pod)) {
                world.pods.apply(policy.key(), pod);
            }
        }
        "ReplicaSet" => {
            let metadata: kube::core::ObjectMeta =
                serde_json::from_value(object.get("metadata").cloned().unwrap_or_default()).context("a ReplicaSet")?;
            world.pods.apply_replica_set(ReplicaSet {
                namespace: metadata.namespace.unwrap_or_default(),
                uid: metadata.uid.unwrap_or_default(),
                parent: parent_of(metadata.owner_references.unwrap_or_default()),
            });
        }
        "PriorityClass" => {
            let class: Class = serde_json::from_value(object).context("a PriorityClass")?;
            let known = headroom::Class::new(class.value, class.global_default, class.preemption_policy.as_deref());
            classes.insert(class.metadata.name.unwrap_or_default(), known);
        }
        "List" => {
            let Some(Value::Array(items)) = object.get("items") else { bail!("a List without items") };
            for item in items.clone() {
                read_object(item, policies, world, classes)?;
            }
        }
        other => bail!("kind: found `{other}`, wanted Pod, ReplicaSet, PriorityClass or List"),
    }
    Ok(())
}

/// Writes to the pods in memory.
pub struct MemoryWriter {
    pub world: Arc<World>,
}

impl MemoryWriter {
    fn store(&self, policy: &PolicyKey, pod: &GovernedPod, stored: Stored) -> Written {
        self.world.pods.apply(policy, GovernedPod { stored, ..GovernedPod::clone(pod) });
        Written::Yes { version: 0 }
    }
}

impl PodWriter for MemoryWriter {
    fn write<'a>(&'a self, write: &'a PodWrite) -> BoxFuture<'a, Written> {
        let found = self.world.pods.find(&write.namespace, &write.uid);
        let policy = self.world.costs.get(&write.uid).map(|cost| cost.policy.key().clone());
        let written = match (found, policy) {
            (Some(pod), Some(policy)) => self.store(&policy, &pod, Stored::Ours(write.cost)),
            _ => Written::Gone,
        };
        Box::pin(std::future::ready(written))
    }

    /// Without a cluster nobody leads, and nothing is taken away.
    fn erase<'a>(&'a self, _: &'a OwnCost) -> BoxFuture<'a, Written> {
        Box::pin(std::future::ready(Written::Gone))
    }
}
