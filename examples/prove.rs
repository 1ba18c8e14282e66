//! The proof of the main job, on a real control plane: scale-downs through every door, of small and large ReplicaSets, by a little
//! and by almost all, with stored costs that are absent, of another time, or the wrong way round. `make prove` runs this.
//!
//! The pods' work is different for each, so exactly one set of victims is right.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::{ControlPlane, Exporter, Installation, Prometheus};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const MARK: &str = "pecking-order.dev/deletion-cost";

/// Pods, and how often each case is tried with so many: 4 doors, 3 states and 3 drops make 216 scale-downs.
const SIZES: [(usize, usize); 2] = [(20, 4), (150, 2)];

/// Points of one unit of work.
const POINTS: usize = 5;

/// A scrape (1 s) and a poll of either replica (1 s), on a busy machine.
const MEASURED: Duration = Duration::from_millis(3000);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Door {
    DeploymentScale,
    Deployment,
    ReplicaSetScale,
    ReplicaSet,
}

impl Door {
    const ALL: [Self; 4] = [Self::DeploymentScale, Self::Deployment, Self::ReplicaSetScale, Self::ReplicaSet];

    fn name(self) -> &'static str {
        match self {
            Self::DeploymentScale => "deployments/scale",
            Self::Deployment => "deployments",
            Self::ReplicaSetScale => "replicasets/scale",
            Self::ReplicaSet => "replicasets",
        }
    }

    fn kind(self) -> &'static str {
        if matches!(self, Self::DeploymentScale | Self::Deployment) { "Deployment" } else { "ReplicaSet" }
    }

    fn is_scale(self) -> bool {
        matches!(self, Self::DeploymentScale | Self::ReplicaSetScale)
    }
}

/// What stands on the pods before a scale-down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Before {
    Unset,
    Stale,
    Reversed,
}

/// What came of one kind of scale-down.
#[derive(Default)]
struct Tally {
    scale_downs: usize,
    all_right: usize,
    victims: usize,
    right: usize,
    writes: u64,
    outcomes: BTreeMap<String, usize>,
}

struct Ground {
    client: Client,
    exporter: Exporter,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    pecking_order::server::install_crypto_provider();
    let plane = ControlPlane::start()?;
    let exporter = Exporter::start()?;
    let prometheus = Prometheus::start(&plane.parts.program("prometheus")?, &plane.directory().join("prometheus"), &exporter, "")?;
    let directory = std::env::current_exe()?.parent().and_then(Path::parent).context("target/PROFILE/examples/prove")?.to_owned();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/install.yaml");
    let backends = format!("{{default: {{prometheus: {{url: '{}'}}}}}}", prometheus.url);
    let _installation = Installation::start(&plane, &directory.join("pecking-order"), &manifest, &backends)?;
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig("admin"))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let ground = Arc::new(Ground { client: Client::try_from(config)?, exporter });

    let through = |door: Door| {
        let ground = ground.clone();
        tokio::spawn(async move { ground.through(door).await.with_context(|| door.name()) })
    };
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "door",
        "pods",
        "go",
        "stored costs",
        "scale-downs",
        "all victims right",
        "victims right",
        "writes each",
        "said to be",
    ]);
    let mut sum = Tally::default();
    for task in Door::ALL.map(through) {
        for ((door, pods, go, before), tally) in task.await?? {
            let outcomes: Vec<String> = tally.outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
            table.add_row([
                door.name().to_owned(),
                pods.to_string(),
                go.to_string(),
                format!("{before:?}").to_lowercase(),
                tally.scale_downs.to_string(),
                tally.all_right.to_string(),
                format!("{}/{}", tally.right, tally.victims),
                format!("{:.1}", tally.writes as f64 / tally.scale_downs as f64),
                outcomes.join(", "),
            ]);
            sum.scale_downs += tally.scale_downs;
            sum.all_right += tally.all_right;
            sum.victims += tally.victims;
            sum.right += tally.right;
        }
    }
    println!("{table}\n");
    println!(
        "{} of {} scale-downs with every victim right; {} of {} victims right",
        sum.all_right, sum.scale_downs, sum.right, sum.victims
    );
    Ok(())
}

type Case = (Door, usize, usize, Before);

impl Ground {
    async fn through(&self, door: Door) -> anyhow::Result<Vec<(Case, Tally)>> {
        let mut found = Vec::new();
        for (pods, rounds) in SIZES {
            let namespace = format!("prove-{}-{pods}", door.name().replace('/', "-"));
            self.set_up(door, &namespace, pods).await?;
            let mut seed = 0;
            for go in [1, pods * 2 / 5, pods - 1] {
                for before in [Before::Unset, Before::Stale, Before::Reversed] {
                    let mut tally = Tally::default();
                    for _ in 0..rounds {
                        seed += 1;
                        self.round((door, pods, go, before), &namespace, seed, &mut tally).await?;
                    }
                    found.push(((door, pods, go, before), tally));
                }
            }
            self.scale(door, &namespace, 0).await?;
        }
        Ok(found)
    }

    async fn set_up(&self, door: Door, namespace: &str, pods: usize) -> anyhow::Result<()> {
        self.apply("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await?;
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "pollSeconds": 1, "resolution": 1, "newPodSeconds": 0,
            "write": {"onPodUpdate": false},
            "signals": [{"name": "work", "query": "sum by (pod) (work)", "weight": 1, "cap": 1000}]});
        let metadata = json!({"name": "web", "namespace": namespace});
        self.apply(
            namespace,
            json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "DeletionCostPolicy", "metadata": metadata, "spec": spec}),
        )
        .await?;
        let template = json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "web", "image": "web"}]}});
        let spec = json!({"replicas": pods, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        self.apply(namespace, json!({"apiVersion": "apps/v1", "kind": door.kind(), "metadata": metadata, "spec": spec})).await
    }

    async fn round(&self, (door, count, go, before): Case, namespace: &str, seed: usize, tally: &mut Tally) -> anyhow::Result<()> {
        let pods = self.pods(namespace, count).await?;
        // Neither 20 nor 150 has a factor in common with 7, so these are permutations.
        let work = |seed: usize| -> BTreeMap<String, usize> {
            pods.iter().enumerate().map(|(i, pod)| (pod.clone(), (i * 7 + seed * 3) % count + 1)).collect()
        };
        let now = work(seed);
        // The least work that counts is two steps, so single points would make equals of the two idlest.
        self.exporter.set(namespace, now.iter().map(|(pod, value)| (pod.clone(), (*value * POINTS) as f64)));
        sleep(MEASURED).await;
        let stored: BTreeMap<String, Option<usize>> = match before {
            Before::Unset => pods.iter().map(|pod| (pod.clone(), None)).collect(),
            Before::Stale => work(seed + 5).into_iter().map(|(pod, value)| (pod, Some(value * POINTS))).collect(),
            Before::Reversed => now.iter().map(|(pod, value)| (pod.clone(), Some((count + 1 - value) * POINTS))).collect(),
        };
        self.store(namespace, stored).await?;
        sleep(Duration::from_millis(500)).await;
        self.scale(door, namespace, count - go).await?;
        let left: BTreeSet<String> = self.pods(namespace, count - go).await?.into_iter().collect();
        let right = now.iter().filter(|(pod, value)| **value <= go && !left.contains(*pod)).count();
        tally.scale_downs += 1;
        tally.all_right += usize::from(right == go);
        tally.victims += go;
        tally.right += right;
        // What the product says of it is there within a second.
        sleep(Duration::from_millis(1200)).await;
        let last =
            self.dynamic("pecking-order.dev/v1alpha1", "DeletionCostPolicy", namespace).get("web").await?.data["status"]["lastScaleDown"]
                .clone();
        if last["from"] == json!(count) && last["to"] == json!(count - go) {
            tally.writes += last["written"].as_u64().unwrap_or(0);
            *tally.outcomes.entry(last["outcome"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        self.scale(door, namespace, count).await
    }

    async fn pods(&self, namespace: &str, count: usize) -> anyhow::Result<Vec<String>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let start = Instant::now();
        loop {
            let pods = api.list(&ListParams::default()).await?.items;
            let ready = |pod: &&Pod| {
                let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                pod.metadata.deletion_timestamp.is_none() && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
            };
            if pods.len() == count && pods.iter().filter(ready).count() == count {
                return Ok(pods.iter().map(ResourceExt::name_any).collect());
            }
            ensure!(start.elapsed() < Duration::from_secs(180), "waited in vain for {count} pods in {namespace}; there are {}", pods.len());
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn store(&self, namespace: &str, costs: BTreeMap<String, Option<usize>>) -> anyhow::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let write = |(pod, cost): (String, Option<usize>)| {
            let api = api.clone();
            async move {
                let text = cost.map(|cost| cost.to_string());
                let patch = json!({ "metadata": { "annotations": { COST: text, MARK: text } } });
                api.patch(&pod, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())
            }
        };
        try_join_all(costs.into_iter().map(write)).await?;
        Ok(())
    }

    async fn scale(&self, door: Door, namespace: &str, replicas: usize) -> anyhow::Result<()> {
        let api = self.dynamic("apps/v1", door.kind(), namespace);
        let patch = json!({ "spec": { "replicas": replicas } });
        match door.is_scale() {
            true => api.patch_scale("web", &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())?,
            false => api.patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn apply(&self, namespace: &str, object: Value) -> anyhow::Result<()> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let api = self.dynamic(&text("apiVersion"), &text("kind"), namespace);
        api.patch(&name, &PatchParams::apply("prove").force(), &Patch::Apply(&object)).await?;
        Ok(())
    }

    fn dynamic(&self, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
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
