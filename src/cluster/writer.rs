//! Writes costs to pods.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::status::FIELD_MANAGER;
use crate::admission::scale_downs::PodWrite;
use crate::cost::annotation::{COST, MARK};
use crate::cost::{GovernedPod, Stored};

/// The pause before a write is tried again, doubled each time; the caller's deadline ends it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A write takes a few milliseconds; one that has taken this long is lost in a connection that is half open.
const ATTEMPT: Duration = Duration::from_secs(2);

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The pod has this `resourceVersion` now.
    Yes { version: u64 },
    /// The pod is gone, or another pod has its name: nothing is left to rank.
    Gone,
    /// The API server refuses it for good.
    Refused,
}

/// A cost of ours, as it stands on a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnCost {
    pub namespace: String,
    pub name: String,
    pub uid: Arc<str>,
    pub value: i32,
}

impl OwnCost {
    /// `None` where the pod has no cost, or somebody else's.
    pub fn of(pod: &GovernedPod) -> Option<Self> {
        let Stored::Ours(value) = pod.stored else { return None };
        Some(Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone(), value })
    }

    /// The same, of whatever pod.
    pub fn read(metadata: &ObjectMeta) -> Option<Self> {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(String::as_str);
        let Stored::Ours(value) = Stored::from_texts(annotation(COST), annotation(MARK)) else { return None };
        let (namespace, name, uid) = (metadata.namespace.clone()?, metadata.name.clone()?, metadata.uid.as_deref()?.into());
        Some(Self { namespace, name, uid, value })
    }
}

/// Writes a pod's cost; tries again until it is answered for good. The caller sets the time.
pub trait PodWriter: Send + Sync {
    fn write<'a>(&'a self, write: &'a PodWrite) -> BoxFuture<'a, Written>;

    /// Takes a cost away, if it is still the one that we wrote.
    fn erase<'a>(&'a self, cost: &'a OwnCost) -> BoxFuture<'a, Written>;
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
        let text = write.cost.to_string();
        // A merge patch without resourceVersion does not clash with other writers of the pod. The UID must fit, or the
        // API server answers with a conflict: a new pod of the same name keeps its own cost.
        let patch = json!({ "metadata": { "uid": &*write.uid, "annotations": { COST: text, MARK: text } } });
        Box::pin(self.patch(&write.namespace, &write.name, Patch::Merge(patch)))
    }

    fn erase<'a>(&'a self, own: &'a OwnCost) -> BoxFuture<'a, Written> {
        let path = |key: &str| format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        let (cost, mark, text) = (path(COST), path(MARK), own.value.to_string());
        // All of it or nothing: a value that is somebody else's by now fails the test, and stays.
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": &*own.uid},
            {"op": "test", "path": cost, "value": text}, {"op": "test", "path": mark, "value": text},
            {"op": "remove", "path": cost}, {"op": "remove", "path": mark},
        ]);
        let patch = serde_json::from_value(patch).expect("these are operations");
        Box::pin(self.patch(&own.namespace, &own.name, Patch::Json::<()>(patch)))
    }
}

impl ApiWriter {
    /// Patches a pod; tries again until it is answered for good.
    async fn patch<P: serde::Serialize + std::fmt::Debug>(&self, namespace: &str, name: &str, patch: Patch<P>) -> Written {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let mut pause = FIRST_PAUSE;
        loop {
            match timeout(ATTEMPT, api.patch(name, &params, &patch)).await {
                Ok(Ok(pod)) => {
                    let version = pod.metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or(0);
                    return Written::Yes { version };
                }
                Ok(Err(kube::Error::Api(status))) if status.is_not_found() || is_another_pod(&status) => return Written::Gone,
                // A conflict is with a writer that was faster: the next attempt is on what they wrote.
                Ok(Err(kube::Error::Api(status))) if !matches!(status.code, 409 | 429) && status.code < 500 => {
                    let kube::core::Status { code, reason, .. } = *status;
                    warn!(namespace, pod = name, code, reason, "the API server refuses a cost");
                    return Written::Refused;
                }
                Ok(Err(e)) => debug!(namespace, pod = name, error = %e, "writing a cost failed; trying again"),
                Err(_) => debug!(namespace, pod = name, "writing a cost was not answered; trying again"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The API server's answer where the UID in a patch is not that of the object (`apiserver/pkg/registry/rest/update.go`).
fn is_another_pod(status: &kube::core::Status) -> bool {
    status.is_conflict() && status.message.to_lowercase().contains("uid")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::api::policies::PolicyKey;

    fn status(code: u16, reason: &str, message: &str) -> ResponseTemplate {
        let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message});
        ResponseTemplate::new(code).set_body_json(body)
    }

    fn patched() -> ResponseTemplate {
        let metadata = json!({"name": "a", "namespace": "shop", "resourceVersion": "9"});
        ResponseTemplate::new(200).set_body_json(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
    }

    /// Writes to a server that answers with these, one after the other. Returns what became of it, and the bodies that were sent.
    async fn write(answers: Vec<ResponseTemplate>) -> (Written, Vec<Value>) {
        crate::server::install_crypto_provider();
        let server = MockServer::start().await;
        for answer in answers {
            // The earlier ones first, each once.
            Mock::given(method("PATCH"))
                .and(path("/api/v1/namespaces/shop/pods/a"))
                .respond_with(answer)
                .up_to_n_times(1)
                .mount(&server)
                .await;
        }
        let mut config = kube::Config::new(server.uri().parse().unwrap());
        config.default_retry = false;
        let writer = ApiWriter::new(Client::try_from(config).unwrap());
        let policy = PolicyKey { namespace: "shop".into(), name: "web".into() };
        let write = PodWrite { namespace: "shop".into(), name: "a".into(), uid: "u".into(), cost: 70, policy };
        let written = writer.write(&write).await;
        let bodies = server.received_requests().await.unwrap().iter().map(|request| request.body_json().unwrap()).collect();
        (written, bodies)
    }

    /// DC-33: one key, no resourceVersion, so nobody else's write is in the way; and what passes by itself is tried again.
    #[tokio::test]
    async fn dc_33_a_write_neither_conflicts_nor_gives_up() {
        let (written, bodies) = write(vec![patched()]).await;
        assert_eq!(written, Written::Yes { version: 9 });
        assert_eq!(bodies, [json!({"metadata": {"uid": "u", "annotations": {COST: "70", MARK: "70"}}})]);
        let busy = vec![
            status(429, "TooManyRequests", "later"),
            status(503, "ServiceUnavailable", "later"),
            status(409, "Conflict", "modified"),
            patched(),
        ];
        let (written, bodies) = write(busy).await;
        assert_eq!((written, bodies.len()), (Written::Yes { version: 9 }, 4));
    }

    #[tokio::test]
    async fn dc_33_a_pod_that_is_gone_is_no_error() {
        assert_eq!(write(vec![status(404, "NotFound", "pods \"a\" not found")]).await.0, Written::Gone);
        let other = "Precondition failed: UID in precondition: u, UID in object meta: v";
        assert_eq!(write(vec![status(409, "Conflict", other)]).await.0, Written::Gone);
        assert_eq!(write(vec![status(403, "Forbidden", "no")]).await.0, Written::Refused);
    }
}
