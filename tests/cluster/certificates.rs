//! The self-managed authority: made once, put into the configurations, replaced when its Secret is deleted.

use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use control_plane::wait_for;
use serde_json::{Value, json};

use super::{Cluster, Test};

pub const TESTS: &[(&str, Test)] = &[
    ("certificates::1_both_replicas_serve_leaves_of_the_one_authority", one_authority),
    ("certificates::2_nothing_but_the_bundle_is_touched", nothing_but_the_bundle),
    ("certificates::3_a_deleted_authority_is_replaced_without_a_failed_call", a_deleted_authority_is_replaced),
];

const KINDS: [&str; 2] = ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"];

fn authority(cluster: &Cluster) -> anyhow::Result<String> {
    let secret = cluster.admin.get(&["secret", "pecking-order-ca", "-n", "pecking-order"])?;
    Ok(String::from_utf8(STANDARD.decode(secret["data"]["ca.crt"].as_str().context("ca.crt")?)?)?)
}

fn hooks(cluster: &Cluster, kind: &str) -> anyhow::Result<Vec<Value>> {
    let mut configuration = cluster.admin.get(&[kind, "pecking-order"])?;
    serde_json::from_value(configuration["webhooks"].take()).context("hooks")
}

fn bundle(hook: &Value) -> anyhow::Result<String> {
    Ok(String::from_utf8(STANDARD.decode(hook["clientConfig"]["caBundle"].as_str().context("a bundle")?)?)?)
}

/// A refusal by our hook: the API server has reached us, and trusted us.
fn is_reached(cluster: &Cluster) -> anyhow::Result<()> {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -500,
        "metadata": {"name": "never-made", "labels": {"pecking-order.dev/headroom": "certificates"}}});
    let output = cluster.admin.try_apply(&class.to_string())?;
    ensure!(
        !output.success && output.stderr.contains("[priorityAboveCutoff]"),
        "the hook was not reached: {}{}",
        output.stdout,
        output.stderr
    );
    Ok(())
}

fn one_authority(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool =
        json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": "certificates"}, "spec": {}});
    cluster.admin.apply(&pool.to_string())?;
    wait_for("the pool", Duration::from_secs(10), || is_reached(cluster).ok())?;
    let authority = authority(cluster)?;
    for kind in KINDS {
        for hook in hooks(cluster, kind)? {
            ensure!(bundle(&hook)? == authority, "{}: another bundle", hook["name"]);
        }
    }
    Ok(())
}

/// The shipped configuration and the live one differ in what the API server and the bundle add, and in nothing else.
fn nothing_but_the_bundle(cluster: &'static Cluster) -> anyhow::Result<()> {
    for kind in KINDS {
        let configuration = cluster.admin.get(&[kind, "pecking-order", "--show-managed-fields"])?;
        let fields = configuration["metadata"]["managedFields"].as_array().context("managedFields")?;
        let ours = fields
            .iter()
            .filter(|entry| entry["manager"].as_str().is_some_and(|manager| manager.contains("pecking-order") || manager == "unknown"));
        let text: Vec<String> = ours.map(|entry| entry["fieldsV1"].to_string()).collect();
        ensure!(!text.is_empty(), "{kind}: nobody but kubectl has written it: {fields:?}");
        for owned in text {
            let leaves = owned.matches("f:").count();
            let bundles = owned.matches("f:caBundle").count();
            // Around each bundle stands its hook and its clientConfig, and around all of them the list.
            ensure!(bundles > 0 && leaves <= 1 + 3 * bundles, "{kind}: more than the bundles was written: {owned}");
        }
    }
    Ok(())
}

fn a_deleted_authority_is_replaced(cluster: &'static Cluster) -> anyhow::Result<()> {
    let before = authority(cluster)?;
    cluster.admin.run(&["delete", "secret", "pecking-order-ca", "-n", "pecking-order"])?;
    let mut calls = 0;
    wait_for("a new authority in every bundle", Duration::from_secs(40), || {
        if let Err(e) = is_reached(cluster) {
            return Some(Err(e));
        }
        calls += 1;
        let after = authority(cluster).ok().filter(|after| *after != before)?;
        let all = KINDS.iter().flat_map(|kind| hooks(cluster, kind).unwrap_or_default());
        all.into_iter().all(|hook| bundle(&hook).is_ok_and(|bundle| bundle.contains(after.trim()))).then_some(Ok(()))
    })??;
    ensure!(calls > 0, "no call was made meanwhile");
    // Both replicas have looked by then; the leaf that is served now is of the new authority, and still trusted.
    for _ in 0..12 {
        std::thread::sleep(Duration::from_secs(1));
        is_reached(cluster)?;
    }
    Ok(())
}
