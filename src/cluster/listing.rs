//! Lists that are read once and page by page; and a whole world, with the rights of whoever asks, for commands.

use std::fmt::Debug;

use anyhow::Context;
use k8s_openapi::api::apps::v1::ReplicaSet as ApiReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;

use super::World;
use super::governance::read_replica_set;
use crate::api::documents::Document;
use crate::api::policies::PolicyKey;
use crate::api::{CostPolicy, DeletionCostPolicy};
use crate::cost::GovernedPod;

/// Objects per page of a list.
const PAGE: u32 = 500;

/// Reads the policies, ReplicaSets and pods of a namespace. Pods that no policy governs are read too: they have an order all
/// the same.
pub async fn read_namespace(client: &Client, namespace: &str, world: &World) -> anyhow::Result<()> {
    let resource = ApiResource::erase::<DeletionCostPolicy>(&());
    let policies: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match policies.list(&ListParams::default()).await {
        Ok(list) => list.items.into_iter().for_each(|object| put_in_force(world, object)),
        // Without our kinds in the cluster there are no policies, and Kubernetes has an order nevertheless. Where a whole group is
        // absent, the API server says so in plain text, which has no reason.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(e) => return Err(e).context("cannot list deletioncostpolicies"),
    }
    let sets: Api<PartialObjectMeta<ApiReplicaSet>> = Api::namespaced(client.clone(), namespace);
    for set in sets.list(&ListParams::default()).await.context("cannot list replicasets")? {
        world.pods.apply_replica_set(read_replica_set(namespace, set));
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let in_force = world.policies();
    let read = |pod: Pod| {
        let governing = in_force.governing(namespace, pod.labels()).map(|policy| policy.key().clone());
        let key = governing.unwrap_or_else(|| PolicyKey { namespace: namespace.into(), name: String::new() });
        if let Some(pod) = GovernedPod::read(&pod) {
            world.pods.apply(&key, pod);
        }
    };
    each(&pods, ListParams::default(), read).await.context("cannot list pods")
}

/// Reads a list page by page, and lets go of each page before the next.
pub async fn each<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, params: ListParams, mut read: impl FnMut(K)) -> kube::Result<()> {
    let mut params = params.limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut read);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// A policy that cannot be used is not in force in the cluster either; its status says why.
fn put_in_force(world: &World, object: DynamicObject) {
    let name = object.name_any();
    let document =
        serde_json::to_value(object).map_err(|e| e.to_string()).and_then(|value| Document::from_value("DeletionCostPolicy", value));
    match document {
        Ok(Document::DeletionCostPolicy(policy)) if policy.spec.problems().is_empty() => {
            let compiled = std::sync::Arc::new(CostPolicy::compile(&policy));
            world.update_policies(|policies| policies.with_policy(compiled.clone()));
        }
        _ => tracing::warn!(policy = name, "this policy cannot be used; see its status"),
    }
}
