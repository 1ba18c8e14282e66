//! Writes costs to pods.

use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

use super::status::FIELD_MANAGER;
use crate::admission::scale_downs::PodWrite;
use crate::cost::annotation::{COST, MARK};

/// The pause before a write is tried again, doubled each time; the caller's deadline ends it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// The pod is gone, or another pod has its name: nothing is left to rank.
    Gone,
    /// The API server refuses it for good.
    Refused,
}

/// Writes a pod's cost; tries again until it is answered for good. The caller sets the time.
pub trait PodWriter: Send + Sync {
    fn write<'a>(&'a self, write: &'a PodWrite) -> BoxFuture<'a, Written>;
}

/// Writes through the API server.
pub struct ApiWriter {
    client: Client,
}

impl ApiWriter {
    /// The client must not retry by itself: kube's own retries wait up to a thousand seconds.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl PodWriter for ApiWriter {
    fn write<'a>(&'a self, write: &'a PodWrite) -> BoxFuture<'a, Written> {
        Box::pin(async move {
            let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &write.namespace);
            let text = write.cost.to_string();
            // A merge patch without resourceVersion does not clash with other writers of the pod. The UID must fit, or the
            // API server answers with a conflict: a new pod of the same name keeps its own cost.
            let patch = json!({ "metadata": { "uid": write.uid, "annotations": { COST: text, MARK: text } } });
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
            let mut pause = FIRST_PAUSE;
            loop {
                match api.patch(&write.name, &params, &Patch::Merge(&patch)).await {
                    Ok(_) => return Written::Yes,
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => return Written::Gone,
                    Err(kube::Error::Api(status)) if status.code != 429 && status.code < 500 => {
                        tracing::warn!(
                            namespace = write.namespace,
                            pod = write.name,
                            code = status.code,
                            reason = status.reason,
                            "the API server refuses a cost"
                        );
                        return Written::Refused;
                    }
                    Err(e) => {
                        tracing::debug!(namespace = write.namespace, pod = write.name, error = %e, "writing a cost failed; trying again")
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        })
    }
}
