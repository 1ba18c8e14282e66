//! What the leader writes on its own account, and what it leaves to others.

use std::time::Duration;

use anyhow::ensure;
use control_plane::wait_for;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::sleep;

use super::{COST, Cluster, MARK, MEASURED, Test, block_on, names};

pub const TESTS: &[(&str, Test)] = &[
    ("own_account::a_policy_that_goes_takes_its_costs_along", a_policy_that_goes),
    ("own_account::refresh_keeps_stored_costs_near_the_truth", refresh),
    ("own_account::a_contested_cost_is_left_to_its_writer", a_contested_cost),
];

fn cost(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(COST).map(String::as_str)
}

fn costs(cluster: &Cluster, namespace: &str, count: usize) -> anyhow::Result<Vec<(String, Option<String>)>> {
    let pods = block_on(cluster.pods(namespace, count))?;
    Ok(pods.iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), cost(pod).map(str::to_owned))).collect())
}

/// DC-29, DC-34: exactly the values that are still ours go, and those of the same policy elsewhere stay.
fn a_policy_that_goes(cluster: &'static Cluster) -> anyhow::Result<()> {
    for namespace in ["goes", "stays"] {
        cluster.deploy(namespace, json!({"newPodSeconds": 0}), 4)?;
    }
    block_on(async {
        let pods = names(&cluster.pods("goes", 4).await?);
        let others = names(&cluster.pods("stays", 4).await?);
        // A pod that was made before its policy was in force has no cost yet.
        cluster.store_costs("goes", pods.iter().map(|pod| (pod.clone(), 500))).await?;
        cluster.store_costs("stays", others.into_iter().map(|pod| (pod, 500))).await?;
        sleep(MEASURED).await;
        cluster.admin.run(&["annotate", "pod", &pods[1], "-n", "goes", "--overwrite", &format!("{COST}=7")])?;
        Ok(())
    })?;
    let foreign = costs(cluster, "goes", 4)?.into_iter().find(|(_, cost)| cost.as_deref() == Some("7"));
    ensure!(foreign.is_some(), "the test's own value is not there");
    cluster.admin.run(&["delete", "dcp", "web", "-n", "goes"])?;
    wait_for("the costs to go", Duration::from_secs(20), || {
        let left = costs(cluster, "goes", 4).ok()?;
        (left.iter().filter(|(_, cost)| cost.is_some()).count() == 1).then_some(())
    })?;
    let left = costs(cluster, "goes", 4)?;
    ensure!(left.iter().any(|(_, cost)| cost.as_deref() == Some("7")), "somebody else's value went: {left:?}");
    let marks = cluster.admin.run(&["get", "pods", "-n", "goes", "-o", "yaml"])?.matches(MARK).count();
    ensure!(marks <= 2, "marks are left on pods without a cost of ours");
    let others = costs(cluster, "stays", 4)?;
    ensure!(others.iter().all(|(_, cost)| cost.is_some()), "another namespace lost its costs: {others:?}");
    Ok(())
}

fn refresh(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "refresh";
    let write = json!({"onPodUpdate": false, "refresh": {"everySeconds": 1, "minChange": 25}});
    cluster.deploy(namespace, json!({"newPodSeconds": 0, "write": write}), 4)?;
    let pods = names(&block_on(cluster.pods(namespace, 4))?);
    cluster.exporter.set(namespace, pods.iter().zip([0.0, 300.0, 20.0, 90.0]).map(|(pod, value)| (pod.clone(), value)));
    // 20 is nearer to nothing than the least change.
    wait_for("the costs of work", Duration::from_secs(20), || {
        let found = costs(cluster, namespace, 4).ok()?;
        let of = |pod: &String| found.iter().find(|(name, _)| name == pod).and_then(|(_, cost)| cost.clone()).unwrap_or_default();
        (of(&pods[1]) == "300" && of(&pods[3]) == "90" && of(&pods[2]).is_empty()).then_some(())
    })?;
    let before = costs(cluster, namespace, 4)?;
    // Noise below the least change writes nothing.
    for noise in [4.0_f64, -7.0, 3.0] {
        cluster
            .exporter
            .set(namespace, pods.iter().zip([0.0, 300.0, 20.0, 90.0]).map(|(pod, value)| (pod.clone(), (value + noise).max(0.0))));
        std::thread::sleep(Duration::from_millis(1500));
    }
    let after = costs(cluster, namespace, 4)?;
    ensure!(after == before, "noise was written: {before:?} became {after:?}");
    Ok(())
}

/// DC-30: somebody who writes over our value again and again is left to it; who it is stands in the condition.
fn a_contested_cost(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "contested";
    let write = json!({"onPodUpdate": true, "refresh": {"everySeconds": 1, "minChange": 1}});
    cluster.deploy(namespace, json!({"newPodSeconds": 0, "foreignValues": "Override", "write": write}), 2)?;
    let pods = names(&block_on(cluster.pods(namespace, 2))?);
    cluster.exporter.set(namespace, pods.iter().map(|pod| (pod.clone(), 50.0)));
    let of = |pod: &String| costs(cluster, namespace, 2).ok()?.into_iter().find(|(name, _)| name == pod)?.1;
    for round in 0..3 {
        wait_for(&format!("our value, round {round}"), Duration::from_secs(20), || (of(&pods[0]).as_deref() == Some("50")).then_some(()))?;
        // By way of the status, where no hook of ours stands.
        let patch = format!(r#"{{"metadata": {{"annotations": {{"{COST}": "-10"}}}}}}"#);
        cluster.admin.run(&[
            "patch",
            "pod",
            &pods[0],
            "-n",
            namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
            "--field-manager=probe-marker",
        ])?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let said = wait_for("the condition", Duration::from_secs(20), || {
        let policy = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?;
        let said = policy["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "ForeignValues")?.clone();
        (said["reason"] == "Contested").then_some(said)
    })?;
    ensure!(said["message"].as_str().is_some_and(|message| message.contains("`probe-marker`") && message.contains(&pods[0])), "{said}");
    std::thread::sleep(Duration::from_secs(3));
    ensure!(of(&pods[0]).as_deref() == Some("-10"), "it was written over again: {:?}", of(&pods[0]));
    ensure!(of(&pods[1]).as_deref() == Some("50"), "the other pod is nobody's business: {:?}", of(&pods[1]));
    Ok(())
}
