//! What is read once: an object, a list page by page, and a whole world, with the rights of whoever asks, for commands.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::ReplicaSet as ApiReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::warn;

use super::World;
use super::governance::read_replica_set;
use crate::api::DeletionCostPolicy;
use crate::api::documents::Document;
use crate::api::policies::PolicyKey;
use crate::cost::GovernedPod;

/// How long one call may take: less than passes between the end of a leadership and the next.
pub const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Objects per page of a list.
const PAGE: u32 = 500;

/// Reads the policies, ReplicaSets and pods of a namespace. Pods that no policy governs are read too: they have an order all
/// the same.
pub async fn read_namespace(client: &Client, namespace: &str, world: &World) -> anyhow::Result<()> {
    let resource = ApiResource::erase::<DeletionCostPolicy>(&());
    let policies: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let put_in_force = |object: DynamicObject| {
        if let Some(policy) = usable("DeletionCostPolicy", object) {
            world.update_policies(|policies| policies.with_document(&policy));
        }
    };
    match policies.list(&ListParams::default()).await {
        Ok(list) => list.items.into_iter().for_each(put_in_force),
        // Without our kinds in the cluster there are no policies, and Kubernetes has an order nevertheless.
        Err(e) if is_absent(&e) => {}
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

/// One object; `None` where there is none, nor anything of its kind. The error is in words.
pub async fn find<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, name: &str) -> Result<Option<K>, String> {
    match timeout(CALL_LIMIT, api.get(name)).await {
        Ok(Ok(object)) => Ok(Some(object)),
        Ok(Err(e)) if is_absent(&e) => Ok(None),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("no answer within {CALL_LIMIT:?}")),
    }
}

/// Whether there is no such thing. By its code: where a whole group is absent, the API server says so in plain text, which has no reason.
pub fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
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

/// A document of ours as the cluster has it. One that cannot be used is not in force there either; its status says why.
pub fn usable(kind: &str, object: DynamicObject) -> Option<Document> {
    let name = object.name_any();
    let value = serde_json::to_value(object).ok();
    let document = value.and_then(|value| Document::from_value(kind, value).ok()).filter(|document| document.problems().is_empty());
    if document.is_none() {
        warn!(kind, name, "this object cannot be used; see its status");
    }
    document
}
