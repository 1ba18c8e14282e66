//! How costs get onto pods outside of scale-downs, and that they leave them alone.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::sleep;

use super::{COST, Cluster, MARK, MEASURED, Test, block_on, names, policy, workload};

pub const TESTS: &[(&str, Test)] = &[
    ("costs::a_new_pod_has_its_cost_from_the_start", a_new_pod_has_its_cost_from_the_start),
    ("costs::an_update_carries_the_measured_cost", an_update_carries_the_measured_cost),
    ("costs::a_foreign_cost_is_left_alone", a_foreign_cost_is_left_alone),
    ("costs::a_steady_state_writes_nothing", a_steady_state_writes_nothing),
    ("costs::pods_without_a_policy_are_untouched", pods_without_a_policy_are_untouched),
    ("costs::come_from_the_clusters_own_pod_metrics", come_from_pod_metrics),
];

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn a_new_pod_has_its_cost_from_the_start(cluster: &'static Cluster) -> anyhow::Result<()> {
    cluster.make_namespace("new-pods")?;
    cluster.admin.apply(&policy("new-pods", json!({})).to_string())?;
    sleep_blocking(500);
    cluster.admin.apply(&workload("Deployment", "new-pods", 3).to_string())?;
    block_on(async {
        for pod in cluster.pods("new-pods", 3).await? {
            ensure!(annotation(&pod, COST) == Some("500") && annotation(&pod, MARK) == Some("500"), "{:?}", pod.metadata.annotations);
        }
        Ok(())
    })
}

fn an_update_carries_the_measured_cost(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "updates";
    cluster.deploy(namespace, json!({}), 2)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 2).await?);
        cluster.exporter.set(namespace, [(pods[0].clone(), 42.0), (pods[1].clone(), 7.0)]);
        sleep(MEASURED).await;
        cluster.admin.run(&["label", "pod", &pods[0], "-n", namespace, "touched=yes"])?;
        for pod in cluster.pods(namespace, 2).await? {
            // The other pod yields to nobody: it was not touched, so it keeps the cost that it was made with.
            let wanted = if pod.metadata.name.as_deref() == Some(&pods[0]) { "42" } else { "500" };
            ensure!(annotation(&pod, COST) == Some(wanted), "{:?}: {:?}, wanted {wanted}", pod.metadata.name, annotation(&pod, COST));
        }
        Ok(())
    })
}

/// DC-29: a value of somebody else stays, and the pod ranks by it.
fn a_foreign_cost_is_left_alone(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "foreign";
    cluster.deploy(namespace, json!({}), 3)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 3).await?);
        cluster.exporter.set(namespace, pods.iter().map(|pod| (pod.clone(), 50.0)));
        sleep(MEASURED).await;
        cluster.admin.run(&["annotate", "pod", &pods[1], "-n", namespace, "--overwrite", &format!("{COST}=-3")])?;
        cluster.admin.run(&["label", "pod", &pods[1], "-n", namespace, "touched=yes"])?;
        let cost = |pods: &[Pod], name: &str| {
            pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name)).and_then(|pod| annotation(pod, COST).map(str::to_owned))
        };
        ensure!(cost(&cluster.pods(namespace, 3).await?, &pods[1]).as_deref() == Some("-3"), "the foreign value was replaced");
        sleep(Duration::from_millis(300)).await;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=2"])?;
        let left = names(&cluster.pods(namespace, 2).await?);
        ensure!(!left.contains(&pods[1]), "the pod with the foreign value of -3 stayed");
        Ok(())
    })
}

/// DC-15, DC-28: same samples, no writes, over twenty polls in which every pod is updated by somebody.
fn a_steady_state_writes_nothing(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "steady";
    cluster.deploy(namespace, json!({"newPodSeconds": 0}), 5)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 5).await?);
        cluster.exporter.set(namespace, pods.iter().zip([0.0, 5.0, 10.0, 200.0, 0.0]).map(|(pod, value)| (pod.clone(), value)));
        sleep(MEASURED).await;
        let touch =
            |round: usize| cluster.admin.run(&["label", "pod", "-l", "app=web", "-n", namespace, "--overwrite", &format!("round={round}")]);
        touch(0)?;
        let polls = || cluster.metric(r#"pecking_order_polls_total{backend="default",result="ok"}"#);
        let (before, start) = (cluster.pods(namespace, 5).await?, polls()?);
        for round in 1..=20 {
            sleep(Duration::from_secs(1)).await;
            touch(round)?;
        }
        let after = cluster.pods(namespace, 5).await?;
        let costs = |pods: &[Pod]| pods.iter().map(|pod| annotation(pod, COST).map(str::to_owned)).collect::<Vec<_>>();
        ensure!(costs(&after) == costs(&before), "{:?} became {:?}", costs(&before), costs(&after));
        // A label is one write; each pod has had one a round, and no other.
        let by_us = |pod: &&Pod| {
            let fields = pod.metadata.managed_fields.iter().flatten();
            fields.filter(|field| field.manager.as_deref() == Some("pecking-order")).count() > 0
        };
        ensure!(after.iter().filter(by_us).count() == 0, "we wrote a pod of our own accord");
        ensure!(costs(&after).iter().flatten().count() == 5, "each pod has the cost of its work: {:?}", costs(&after));
        ensure!(polls()? >= start + 20.0, "there were no polls, so this proves nothing");
        Ok(())
    })
}

fn pods_without_a_policy_are_untouched(cluster: &'static Cluster) -> anyhow::Result<()> {
    cluster.make_namespace("no-policy")?;
    cluster.admin.apply(&workload("Deployment", "no-policy", 2).to_string())?;
    block_on(async {
        let pods = cluster.pods("no-policy", 2).await?;
        let pod = pods.first().context("a pod")?;
        ensure!(annotation(pod, COST).is_none() && annotation(pod, MARK).is_none(), "{:?}", pod.metadata.annotations);
        Ok(())
    })
}

fn sleep_blocking(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// The right to read what pods use.
const POD_METRICS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pecking-order-pod-metrics}
rules: [{apiGroups: [metrics.k8s.io], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pecking-order-pod-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pecking-order-pod-metrics}
subjects: [{kind: ServiceAccount, name: pecking-order, namespace: pecking-order}]
"#;

/// `metrics.k8s.io` as a stored kind, since no kubelet measures what kwok pretends to run.
pub fn apply_pod_metrics_kind(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.admin.apply(POD_METRICS)?;
    cluster.define_kind(("metrics.k8s.io", "v1beta1"), ("PodMetrics", "pods"), "Namespaced", json!({}))
}

fn come_from_pod_metrics(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "pod-metrics";
    apply_pod_metrics_kind(cluster)?;
    // Points per core.
    let signals = json!([{"name": "cpu", "query": "cpu", "weight": 100, "cap": 400}]);
    cluster.deploy(namespace, json!({"backend": "usage", "newPodSeconds": 0, "signals": signals}), 4)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 4).await?);
        let cores = ["1500m", "20000000n", "0", "3"];
        for (pod, cpu) in pods.iter().zip(cores) {
            let now = k8s_openapi::jiff::Timestamp::now().to_string();
            let usage = json!([{"name": "web", "usage": {"cpu": cpu, "memory": "1Mi"}}]);
            let metrics = json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": {"name": pod, "namespace": namespace},
                "timestamp": now, "window": "15s", "containers": usage});
            cluster.admin.apply(&metrics.to_string())?;
        }
        sleep(MEASURED).await;
        cluster.admin.run(&["label", "pod", "-l", "app=web", "-n", namespace, "touched=yes"])?;
        for pod in cluster.pods(namespace, 4).await? {
            let position = pods.iter().position(|name| pod.metadata.name.as_ref() == Some(name)).context("a pod that was there")?;
            let wanted = ["150", "2", "0", "300"][position];
            ensure!(annotation(&pod, COST) == Some(wanted), "{} cores gave {:?}, wanted {wanted}", cores[position], annotation(&pod, COST));
        }
        Ok(())
    })
}
