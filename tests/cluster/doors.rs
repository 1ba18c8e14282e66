//! Whether the installed webhook still sees every scale-down.

use std::time::Duration;

use anyhow::ensure;
use control_plane::wait_for;
use serde_json::{Value, json};

use super::{Cluster, Test, policy};

pub const TESTS: &[(&str, Test)] = &[("doors::dc_19_a_lost_rule_is_said_on_the_policies", a_lost_rule)];

fn wait_for_reason(cluster: &Cluster, namespace: &str, reason: &str) -> anyhow::Result<Value> {
    wait_for(&format!("{reason} in {namespace}"), Duration::from_secs(40), || {
        let policy = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?;
        let said = policy["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "ScaleDownsReviewed")?.clone();
        (said["reason"] == reason).then_some(said)
    })
}

fn a_lost_rule(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "doors";
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&policy(namespace, json!({})).to_string())?;
    // Every hook excludes this namespace, but a policy there is easily written.
    cluster.admin.apply(&policy("kube-public", json!({})).to_string())?;
    wait_for_reason(cluster, namespace, "AllDoors")?;
    wait_for_reason(cluster, "kube-public", "NamespaceExcluded")?;
    cluster.admin.run(&["delete", "dcp", "web", "-n", "kube-public"])?;

    let hooks = cluster.admin.get(&["validatingwebhookconfiguration", "pecking-order"])?["webhooks"].clone();
    let index = hooks.as_array().and_then(|hooks| hooks.iter().position(|hook| hook["name"] == "scale-downs.pecking-order.dev"));
    let patch = |resources: &Value| {
        let path = format!("/webhooks/{}/rules/0/resources", index.unwrap_or_default());
        let patch = json!([{"op": "replace", "path": path, "value": resources}]).to_string();
        cluster.admin.run(&["patch", "validatingwebhookconfiguration", "pecking-order", "--type=json", "-p", &patch])
    };
    let whole = &hooks[index.unwrap_or_default()]["rules"][0]["resources"];
    patch(&json!(["deployments", "replicasets", "replicasets/scale"]))?;
    let said = wait_for_reason(cluster, namespace, "DoorClosed");
    patch(whole)?;
    let said = said?;
    ensure!(said["message"].as_str().is_some_and(|m| m.ends_with("has no rule for UPDATE of deployments/scale of apps")), "{said}");
    wait_for_reason(cluster, namespace, "AllDoors").map(|_| ())
}
