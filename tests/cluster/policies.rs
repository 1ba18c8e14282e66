//! Our own kinds: what the API server and the webhook refuse, and what the status says.

use std::time::Duration;

use anyhow::ensure;
use control_plane::wait_for;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{COST, Cluster, MEASURED, Test, block_on, names, policy, workload};

pub const TESTS: &[(&str, Test)] = &[
    ("policies::a_bad_policy_is_refused_with_its_path", a_bad_policy_is_refused),
    ("policies::a_good_policy_is_said_to_be_in_force", a_good_policy_is_in_force),
    ("policies::the_last_good_version_stays_in_force", the_last_good_version_stays_in_force),
];

fn ready(cluster: &Cluster, namespace: &str, status: &str) -> anyhow::Result<Value> {
    wait_for(&format!("Ready={status} of the policy in {namespace}"), Duration::from_secs(20), || {
        let policy = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?;
        let ready = policy["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "Ready")?.clone();
        (ready["status"] == json!(status) && ready["observedGeneration"] == policy["metadata"]["generation"]).then_some(ready)
    })
}

fn a_bad_policy_is_refused(cluster: &'static Cluster) -> anyhow::Result<()> {
    cluster.make_namespace("bad-policies")?;
    for (change, text) in [
        // By the schema, that is by the API server alone.
        (json!({"maxCost": 0}), "spec.maxCost"),
        (json!({"wieght": 1}), "unknown field \"spec.wieght\""),
        (json!({"signals": []}), "spec.signals: Invalid value: found no signals, wanted at least one, or a preset"),
        (
            json!({"signals": [{"name": "a", "query": "a", "cap": 1}]}),
            "spec.signals: Invalid value: wanted a query, a weight and a cap in each",
        ),
        (
            json!({"signals": [{"name": "a", "query": "a", "weight": -1, "cap": 1}]}),
            "spec.signals: Invalid value: wanted a weight and a cap above 0",
        ),
        (json!({"parameters": {"a": "b"}}), "spec.parameters: Invalid value: found parameters, wanted none"),
        (json!({"preset": "presto"}), "spec.preset: Unsupported value: \"presto\": supported values: \"trino\", \"http\", \"queue\""),
        (json!({"resolution": 600}), "spec.resolution: Invalid value: wanted at most half of maxCost"),
        (json!({"jitter": {"min": 1, "max": 0}}), "spec.jitter.min: Invalid value: wanted at most jitter.max"),
        (json!({"jitter": {"min": 0, "max": 10}}), "spec.jitter.max: Invalid value: wanted less than one resolution step"),
        (
            json!({"samples": {"maxAgeSeconds": 100, "keepLastSeconds": 50}}),
            "spec.samples.keepLastSeconds: Invalid value: wanted at least maxAgeSeconds, and at least two poll periods",
        ),
        // By us, since a schema cannot say it.
        (json!({"selector": {}}), "spec.selector: Invalid value: found a selector that names no label"),
        (json!({"edgeCases": {"newPod": 2000}}), "spec.edgeCases: Invalid value: wanted costs of at most maxCost"),
        (json!({"backend": ""}), "spec.backend"),
        (json!({"signals": [{"name": "a", "query": "a", "weight": 1, "cap": 1, "ignoreBelow": -1}]}), "spec.signals[0].ignoreBelow"),
        (json!({"preset": "trino", "signals": [], "parameters": {"runingSplits": "x"}}), "did you mean `runningSplits`?"),
        (json!({"preset": "trino", "signals": [{"name": "spill", "weight": 1}]}), "spec.signals[0].query: found none, wanted a value"),
        (
            json!({"signals": [{"name": "a", "query": "sum by (pod (work)", "weight": 1, "cap": 1}]}),
            "spec.signals[0].query: found `sum by (pod (work)`, wanted a query that can be kept to its namespace",
        ),
    ] {
        let output = cluster.admin.try_apply(&policy("bad-policies", change.clone()).to_string())?;
        ensure!(!output.success, "accepted: {change}");
        ensure!(output.stderr.contains(text), "no `{text}` in: {}", output.stderr);
    }
    Ok(())
}

fn a_good_policy_is_in_force(cluster: &'static Cluster) -> anyhow::Result<()> {
    cluster.make_namespace("good-policy")?;
    cluster.admin.apply(&policy("good-policy", json!({})).to_string())?;
    let condition = ready(cluster, "good-policy", "True")?;
    ensure!(condition["reason"] == "InForce", "{condition}");
    let columns = cluster.admin.run(&["get", "dcp", "-A", "-o", "wide"])?;
    ensure!(columns.contains("InForce"), "{columns}");
    Ok(())
}

fn the_last_good_version_stays_in_force(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "last-good";
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&policy(namespace, json!({})).to_string())?;
    ready(cluster, namespace, "True")?;
    cluster.admin.apply(&policy(namespace, json!({"backend": "defualt"})).to_string())?;
    let condition = ready(cluster, namespace, "False")?;
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(condition["reason"] == "UnknownBackend" && message.contains("did you mean `default`?"), "{condition}");
    cluster.admin.apply(&workload("Deployment", namespace, 1).to_string())?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 1).await?);
        cluster.exporter.set(namespace, [(pods[0].clone(), 33.0)]);
        sleep(MEASURED).await;
        cluster.admin.run(&["label", "pod", &pods[0], "-n", namespace, "touched=yes"])?;
        let pod = &cluster.pods(namespace, 1).await?[0];
        let cost = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(COST));
        ensure!(cost.is_some_and(|cost| cost == "33"), "the version with the good backend is not in force: {cost:?}");
        Ok(())
    })
}
