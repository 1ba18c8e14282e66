//! What is left when things are taken away: first Prometheus, then every replica of ours.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::{COST, Cluster, MEASURED, Test, block_on, names};

pub const OF_PROMETHEUS: &[(&str, Test)] = &[("outage::1_without_prometheus_the_last_costs_stay", without_prometheus)];

pub const OF_REPLICAS: &[(&str, Test)] = &[
    ("outage::2_with_every_replica_gone_the_cluster_works", with_every_replica_gone),
    ("outage::3_no_shipped_hook_fails_closed_or_reaches_the_system", no_shipped_hook_fails_closed),
];

fn without_prometheus(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "no-prometheus";
    cluster.deploy(namespace, json!({"newPodSeconds": 0}), 6)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 6).await?);
        let busy = [&pods[1], &pods[4]];
        cluster.exporter.set(namespace, pods.iter().map(|pod| (pod.clone(), if busy.contains(&pod) { 90.0 } else { 0.0 })));
        sleep(MEASURED).await;
        cluster.prometheus().kill();
        sleep(Duration::from_secs(3)).await;
        let failed = cluster.metric(r#"pecking_order_polls_total{backend="default",result="unreachable"}"#)?;
        ensure!(failed > 0.0, "no poll failed, so this proves nothing");
        cluster.admin.run(&["label", "pod", busy[0], "-n", namespace, "touched=yes"])?;
        let pod = cluster.admin.get(&["pod", busy[0], "-n", namespace])?;
        ensure!(pod["metadata"]["annotations"][COST] == "90", "{}", pod["metadata"]["annotations"]);
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=2"])?;
        let left = names(&cluster.pods(namespace, 2).await?);
        ensure!(busy.iter().all(|pod| left.contains(pod)), "a busy pod went: {left:?} are left of {busy:?}");
        Ok(())
    })
}

/// DESIGN, invariant 7.
fn with_every_replica_gone(cluster: &'static Cluster) -> anyhow::Result<()> {
    cluster.installation().as_mut().context("nothing is installed")?.kill_all();
    let namespace = "all-gone";
    cluster.deploy(namespace, json!({}), 4)?;
    block_on(async {
        cluster.pods(namespace, 4).await?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=2"])?;
        cluster.pods(namespace, 2).await?;
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -500,
            "metadata": {"name": "all-gone", "labels": {"pecking-order.dev/headroom": "general"}}});
        cluster.admin.apply(&class.to_string())?;
        Ok(())
    })
}

fn no_shipped_hook_fails_closed(cluster: &'static Cluster) -> anyhow::Result<()> {
    let mut hooks = 0;
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let configuration = cluster.admin.get(&[kind, "pecking-order"])?;
        for hook in configuration["webhooks"].as_array().context("hooks")? {
            hooks += 1;
            let name = &hook["name"];
            ensure!(hook["failurePolicy"] == "Ignore", "{name} fails closed");
            let excluded = &hook["namespaceSelector"]["matchExpressions"][0];
            ensure!(excluded["key"] == "kubernetes.io/metadata.name" && excluded["operator"] == "NotIn", "{name}: {excluded}");
            ensure!(excluded["values"] == json!(["kube-system", "kube-public", "kube-node-lease", "pecking-order"]), "{name}: {excluded}");
            ensure!(hook["objectSelector"] == json!({}), "{name} has an objectSelector, which hides scale-downs");
            let limit = if name == "scale-downs.pecking-order.dev" { 10 } else { 5 };
            ensure!(hook["timeoutSeconds"].as_i64().is_some_and(|seconds| seconds <= limit), "{name}: {}", hook["timeoutSeconds"]);
            for rule in hook["rules"].as_array().context("rules")? {
                ensure!(!rule.to_string().contains("\"*\"") || rule["scope"] == "*", "{name} has a wildcard: {rule}");
            }
        }
    }
    ensure!(hooks == 9, "{hooks} hooks were looked at");
    Ok(())
}
