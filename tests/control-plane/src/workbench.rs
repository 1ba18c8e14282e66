//! What a proof or a measurement on the control plane is made of: the product installed, workloads whose pods do as they are told, and
//! scale-downs through each door.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::StreamExt;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{ControlPlane, Exporter, Installation, Prometheus};

pub const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub const MARK: &str = "pecking-order.dev/deletion-cost";

/// A scrape (1 s) and a poll of either replica (1 s), on a busy machine.
const MEASURED: Duration = Duration::from_millis(3000);

/// How long pods may take to come or go.
const PATIENCE: Duration = Duration::from_secs(240);

/// Writes of the workbench under way at once.
const PARALLEL: usize = 64;

/// The product on a control plane of its own.
pub struct Site {
    pub plane: ControlPlane,
    pub installation: Installation,
    pub exporter: Exporter,
    _prometheus: Prometheus,
}

impl Site {
    /// Starts everything. With a second API server the controllers stand at that one, and everybody else at the first.
    pub fn start(api_servers: usize, binary: &Path, manifest: &Path) -> anyhow::Result<Self> {
        let plane = ControlPlane::start_with(api_servers)?;
        let exporter = Exporter::start()?;
        let prometheus = Prometheus::start(&plane.parts.program("prometheus")?, &plane.directory().join("prometheus"), &exporter, "")?;
        let backends = format!("{{default: {{prometheus: {{url: '{}'}}}}}}", prometheus.url);
        let installation = Installation::start(&plane, binary, manifest, &backends)?;
        Ok(Self { plane, installation, exporter, _prometheus: prometheus })
    }

    pub async fn workbench(&self) -> anyhow::Result<Workbench> {
        Ok(Workbench { client: self.plane.client().await?, exporter: self.exporter.clone() })
    }
}

/// A way to ask for fewer pods.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Door {
    DeploymentScale,
    Deployment,
    ReplicaSetScale,
    ReplicaSet,
}

impl Door {
    pub const ALL: [Self; 4] = [Self::DeploymentScale, Self::Deployment, Self::ReplicaSetScale, Self::ReplicaSet];

    pub fn name(self) -> &'static str {
        match self {
            Self::DeploymentScale => "deployments/scale",
            Self::Deployment => "deployments",
            Self::ReplicaSetScale => "replicasets/scale",
            Self::ReplicaSet => "replicasets",
        }
    }

    pub fn kind(self) -> &'static str {
        if matches!(self, Self::DeploymentScale | Self::Deployment) { "Deployment" } else { "ReplicaSet" }
    }

    fn is_scale(self) -> bool {
        matches!(self, Self::DeploymentScale | Self::ReplicaSetScale)
    }
}

/// Acts as the administrator of the control plane.
#[derive(Clone)]
pub struct Workbench {
    pub client: Client,
    pub exporter: Exporter,
}

impl Workbench {
    /// Makes a namespace with a policy, whose spec `change` adds to, and a workload `web` of so many pods.
    pub async fn set_up(&self, kind: &str, namespace: &str, change: Value, pods: usize) -> anyhow::Result<()> {
        self.apply("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await?;
        let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "pollSeconds": 1, "resolution": 1, "newPodSeconds": 0,
            "maxCost": 10_000, "write": {"onPodUpdate": false},
            "signals": [{"name": "work", "query": "sum by (pod) (work)", "weight": 1, "cap": 10_000}]});
        if let (Some(spec), Value::Object(change)) = (spec.as_object_mut(), change) {
            spec.extend(change);
        }
        let metadata = json!({"name": "web", "namespace": namespace});
        let policy = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "DeletionCostPolicy", "metadata": metadata, "spec": spec});
        self.apply(namespace, policy).await?;
        self.apply(namespace, workload(kind, "web", namespace, pods, "1")).await
    }

    /// Lets each pod do as much as it says, and waits until both replicas know of it.
    pub async fn measure(&self, namespace: &str, work: &BTreeMap<String, usize>) {
        self.exporter.set(namespace, work.iter().map(|(pod, value)| (pod.clone(), *value as f64)));
        sleep(MEASURED).await;
    }

    /// Waits until there are so many pods, all of them Ready.
    pub async fn pods(&self, namespace: &str, count: usize) -> anyhow::Result<Vec<Pod>> {
        wait_for_pods(&self.client, namespace, count, PATIENCE).await
    }

    pub async fn names(&self, namespace: &str, count: usize) -> anyhow::Result<Vec<String>> {
        Ok(self.pods(namespace, count).await?.iter().map(ResourceExt::name_any).collect())
    }

    /// Puts costs on pods as an earlier run of ours would have, or takes them away.
    pub async fn store(&self, namespace: &str, costs: BTreeMap<String, Option<usize>>) -> anyhow::Result<()> {
        store_costs(&self.client, namespace, costs.into_iter().map(|(pod, cost)| (pod, cost.map(|cost| cost as i64)))).await?;
        // The watches of the replicas come to know of it.
        sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    pub async fn scale(&self, door: Door, namespace: &str, replicas: usize) -> anyhow::Result<()> {
        let api = self.dynamic("apps/v1", door.kind(), namespace);
        let patch = json!({ "spec": { "replicas": replicas } });
        match door.is_scale() {
            true => api.patch_scale("web", &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())?,
            false => api.patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())?,
        }
        Ok(())
    }

    /// What the product says of the last scale-down in a namespace.
    pub async fn last_scale_down(&self, namespace: &str) -> anyhow::Result<Value> {
        let policy = self.dynamic("pecking-order.dev/v1alpha1", "DeletionCostPolicy", namespace).get("web").await?;
        Ok(policy.data["status"]["lastScaleDown"].clone())
    }

    pub async fn apply(&self, namespace: &str, object: Value) -> anyhow::Result<()> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let api = self.dynamic(&text("apiVersion"), &text("kind"), namespace);
        api.patch(&name, &PatchParams::apply("workbench").force(), &Patch::Apply(&object)).await?;
        Ok(())
    }

    pub fn dynamic(&self, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let plural = if kind == "DeletionCostPolicy" { "deletioncostpolicies".into() } else { format!("{}s", kind.to_lowercase()) };
        let resource =
            ApiResource { group: group.into(), version: version.into(), api_version: api_version.into(), kind: kind.into(), plural };
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }
}

/// Waits until the workload `web` has so many pods that are Ready and not on their way out.
pub async fn wait_for_pods(client: &Client, namespace: &str, count: usize, patience: Duration) -> anyhow::Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let start = Instant::now();
    loop {
        let pods = api.list(&ListParams::default().labels("app=web")).await?.items;
        if pods.len() == count && pods.iter().all(is_ready) {
            return Ok(pods);
        }
        ensure!(start.elapsed() < patience, "waited in vain for {count} Ready pods in {namespace}; there are {}", pods.len());
        sleep(Duration::from_millis(50)).await;
    }
}

/// Writes costs with our mark, as an earlier run of ours would have, or takes them away.
pub async fn store_costs(client: &Client, namespace: &str, costs: impl IntoIterator<Item = (String, Option<i64>)>) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let write = |(pod, cost): (String, Option<i64>)| {
        let api = api.clone();
        async move {
            let text = cost.map(|cost| cost.to_string());
            let patch = json!({ "metadata": { "annotations": { COST: text, MARK: text } } });
            api.patch(&pod, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())
        }
    };
    Ok(futures::stream::iter(costs).map(write).buffer_unordered(PARALLEL).try_collect::<()>().await?)
}

/// A workload of pods that stop at once. Another `image` is another version.
pub fn workload(kind: &str, name: &str, namespace: &str, pods: usize, image: &str) -> Value {
    let labels = json!({ "app": name });
    // The oldest kind has labels for a selector, and a group without a name.
    let (version, selector) = match kind {
        "ReplicationController" => ("v1", labels.clone()),
        _ => ("apps/v1", json!({ "matchLabels": labels })),
    };
    let template = json!({"metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": name, "image": format!("{name}:{image}")}]}});
    let spec = json!({"replicas": pods, "selector": selector, "template": template});
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none() && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}
