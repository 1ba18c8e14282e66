//! What the status of a policy and its Events say.

use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::wait_for;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{COST, Cluster, MEASURED, Test, block_on, names, policy, workload};

pub const TESTS: &[(&str, Test)] = &[
    ("status::dc_44_a_wrong_pod_key_names_the_labels_and_changes_no_cost", a_wrong_pod_key),
    ("status::counts_the_pods_and_says_what_needs_a_look", counts_and_conditions),
    ("status::dc_48_pods_of_a_stateful_set_are_not_honoured", dc_48_stateful_set),
    ("status::dc_49_a_short_grace_period_is_said", dc_49_grace_period),
    ("status::a_backend_that_is_away_is_said", a_backend_that_is_away),
];

/// Waits for the condition of the policy in a namespace to have this status.
fn condition(cluster: &Cluster, namespace: &str, type_: &str, status: &str) -> anyhow::Result<Value> {
    wait_for(&format!("{type_}={status} in {namespace}"), Duration::from_secs(30), || {
        let policy = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?;
        let condition = policy["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == type_)?.clone();
        (condition["status"] == status).then_some(condition)
    })
}

fn events(cluster: &Cluster, namespace: &str, reason: &str) -> anyhow::Result<Vec<Value>> {
    let events = cluster.admin.get(&["events", "-n", namespace, &format!("--field-selector=reason={reason}")])?;
    Ok(events["items"].as_array().cloned().unwrap_or_default())
}

fn a_wrong_pod_key(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "wrong-key";
    cluster.deploy(namespace, json!({"podKey": {"label": "pod"}}), 3)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 3).await?);
        cluster.exporter.set(namespace, ["exporter-0", "exporter-1"].map(|pod| (pod.to_owned(), 7.0)));
        let said = condition(cluster, namespace, "SeriesMatchTargets", "False")?;
        let said = wait_for("the reason", Duration::from_secs(20), || {
            let said = condition(cluster, namespace, "SeriesMatchTargets", "False").ok()?;
            (said["reason"] == "NoSeriesMatchTargets").then_some(said)
        })
        .with_context(|| said.to_string())?;
        let message = said["message"].as_str().unwrap_or_default();
        ensure!(message.contains("none of 2 rows") && message.contains("their labels are: pod"), "{message}");
        // Five polls of two replicas later there is still one Event, and every pod has the cost that it was made with.
        sleep(Duration::from_secs(5)).await;
        let events = events(cluster, namespace, "NoSeriesMatchTargets")?;
        ensure!(events.len() == 1 && events[0]["series"].is_null(), "{events:?}");
        ensure!(events[0]["type"] == "Warning" && events[0]["involvedObject"]["name"] == "web", "{events:?}");
        for pod in cluster.pods(namespace, 3).await? {
            let cost = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(COST));
            ensure!(cost.map(String::as_str) == Some("500"), "{cost:?}");
        }
        // Once the series are the pods', it is said to be well again.
        cluster.exporter.set(namespace, pods.into_iter().map(|pod| (pod, 1.0)));
        condition(cluster, namespace, "SeriesMatchTargets", "True").map(|_| ())
    })
}

fn counts_and_conditions(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "census";
    cluster.deploy(namespace, json!({"newPodSeconds": 0}), 4)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 4).await?);
        cluster.exporter.set(namespace, pods.iter().zip([5.0, 0.0, 7.0]).map(|(pod, value)| (pod.clone(), value)));
        cluster.admin.run(&["annotate", "pod", &pods[0], "-n", namespace, "--overwrite", &format!("{COST}=-3")])?;
        let foreign = condition(cluster, namespace, "ForeignValues", "True")?;
        ensure!(foreign["message"].as_str().is_some_and(|message| message.contains(&pods[0])), "{foreign}");
        condition(cluster, namespace, "BackendReachable", "True")?;
        wait_for("the counts", Duration::from_secs(70), || {
            let status = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?["status"].clone();
            let counts = ["pods", "busy", "idle", "unknown"].map(|field| status[field].as_u64());
            (counts == [Some(4), Some(2), Some(1), Some(1)]).then_some(())
        })?;
        let columns = cluster.admin.run(&["get", "dcp", "-n", namespace])?;
        let wanted = ["True", "True", "True", "4", "2", "1", "1"];
        let row: Vec<&str> = columns.lines().last().unwrap_or_default().split_whitespace().skip(1).take(wanted.len()).collect();
        ensure!(row == wanted, "{columns}");
        ensure!(cluster.metric(r#"pecking_order_pods{state="busy"}"#)? >= 2.0, "the metric counts too");
        ensure!(cluster.metric(r#"pecking_order_samples_total{backend="default",outcome="used"}"#)? >= 3.0, "and the samples");
        Ok(())
    })
}

fn dc_48_stateful_set(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "stateful";
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&policy(namespace, json!({})).to_string())?;
    let mut set = workload("StatefulSet", namespace, 2);
    set["spec"]["serviceName"] = json!("web");
    cluster.admin.apply(&set.to_string())?;
    let said = condition(cluster, namespace, "TargetsHonourCost", "False")?;
    ensure!(
        said["reason"] == "NoneHonoured" && said["message"].as_str().is_some_and(|m| m.contains("controlled by a StatefulSet")),
        "{said}"
    );
    let ready = condition(cluster, namespace, "Ready", "False")?;
    ensure!(ready["reason"] == "NoneHonoured", "{ready}");
    // Together with a Deployment only its pods get a cost.
    cluster.admin.apply(&workload("Deployment", namespace, 1).to_string())?;
    block_on(async {
        for pod in cluster.pods(namespace, 3).await? {
            let is_ours = pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "ReplicaSet");
            let has_cost = pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(COST));
            ensure!(is_ours == has_cost, "{:?}", pod.metadata);
        }
        wait_for("SomeNotHonoured", Duration::from_secs(20), || {
            let said = condition(cluster, namespace, "TargetsHonourCost", "False").ok()?;
            (said["reason"] == "SomeNotHonoured").then_some(())
        })?;
        condition(cluster, namespace, "Ready", "True").map(|_| ())
    })
}

fn dc_49_grace_period(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "grace-period";
    cluster.deploy(namespace, json!({"workSeconds": 600}), 1)?;
    let said = condition(cluster, namespace, "GracePeriodSuffices", "False")?;
    ensure!(said["message"].as_str().is_some_and(|message| message.contains("below 600 s")), "{said}");
    Ok(())
}

fn a_backend_that_is_away(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "nobody-answers";
    cluster.deploy(namespace, json!({"backend": "nobody"}), 2)?;
    let said = condition(cluster, namespace, "BackendReachable", "False")?;
    ensure!(said["reason"] == "Unreachable" && said["message"].as_str().is_some_and(|m| m.contains("signal `work`")), "{said}");
    block_on(async {
        sleep(MEASURED * 2).await;
        let events = events(cluster, namespace, "Unreachable")?;
        ensure!(events.len() == 1, "{events:?}");
        Ok(())
    })
}
