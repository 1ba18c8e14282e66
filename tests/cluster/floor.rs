//! Floors: the minimum of an autoscaler, held at the pods at work, with the real HPA controller beside it.

use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::wait_for;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::costs::apply_pod_metrics_kind;
use super::{Cluster, MEASURED, Test, block_on, names, policy, workload};

pub const TESTS: &[(&str, Test)] = &[
    ("floor::dc_38_an_hpa_goes_no_lower_than_the_pods_at_work", follows_the_work),
    ("floor::dc_36_ends_at_the_maximum_and_goes_with_its_policy", ends_at_the_maximum),
    ("floor::dc_40_two_reverts_end_it", two_reverts),
    ("floor::dc_39_keda_keeps_its_hpa", keda_keeps_its_hpa),
    ("floor::dc_41_an_autoscaler_at_rest_is_left_alone", at_rest),
];

const SOON: Duration = Duration::from_secs(20);

/// A policy with a floor of one above the pods at work.
pub fn with_floor(namespace: &str, kind: &str, name: &str, hold_down_seconds: u32) -> Value {
    let floor = json!({"target": {"kind": kind, "name": name}, "buffer": 1, "holdDownSeconds": hold_down_seconds});
    policy(namespace, json!({"newPodSeconds": 0, "floor": floor}))
}

/// An HPA that goes by memory, which nobody measures until somebody says how much it is.
pub fn hpa(namespace: &str, min: u32, max: u32) -> Value {
    json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web", "namespace": namespace}, "spec": {
        "minReplicas": min, "maxReplicas": max, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "100Mi"}}}]}})
}

pub fn minimum(cluster: &Cluster, namespace: &str) -> Option<u64> {
    cluster.admin.get(&["hpa", "web", "-n", namespace]).ok()?["spec"]["minReplicas"].as_u64()
}

fn wait_for_minimum(cluster: &Cluster, namespace: &str, wanted: u64) -> anyhow::Result<()> {
    wait_for(&format!("a minimum of {wanted} in {namespace}"), SOON, || (minimum(cluster, namespace)? == wanted).then_some(()))
        .with_context(|| format!("it is {:?}, and FloorHeld is {:?}", minimum(cluster, namespace), said(cluster, namespace)))
}

/// The condition `FloorHeld`: its reason and its message.
fn said(cluster: &Cluster, namespace: &str) -> Option<(String, String)> {
    let policy = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?;
    let said = policy["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "FloorHeld")?.clone();
    Some((said["reason"].as_str()?.into(), said["message"].as_str()?.into()))
}

fn wait_for_reason(cluster: &Cluster, namespace: &str, reason: &str) -> anyhow::Result<String> {
    let found = wait_for(reason, SOON, || said(cluster, namespace).filter(|(found, _)| found == reason));
    Ok(found.with_context(|| format!("{:?}", said(cluster, namespace)))?.1)
}

/// Nothing of ours is left on an autoscaler.
fn ensure_untouched(cluster: &Cluster, kind: &str, name: &str, namespace: &str) -> anyhow::Result<()> {
    let metadata = cluster.admin.get(&[kind, name, "-n", namespace])?["metadata"].clone();
    for field in ["labels", "annotations"] {
        let left = metadata[field].as_object().into_iter().flatten().find(|(key, _)| key.starts_with("pecking-order.dev/"));
        ensure!(left.is_none(), "{kind} {name} still has {left:?}");
    }
    Ok(())
}

/// A namespace with a policy that holds a floor on the HPA `web`, and a Deployment of so many pods.
fn set_up(cluster: &Cluster, namespace: &str, hold_down_seconds: u32, pods: usize) -> anyhow::Result<()> {
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&with_floor(namespace, "HorizontalPodAutoscaler", "web", hold_down_seconds).to_string())?;
    cluster.admin.apply(&workload("Deployment", namespace, pods).to_string()).map(|_| ())
}

/// Lets so many of these pods be at work.
fn at_work(cluster: &Cluster, namespace: &str, pods: &[String], busy: usize) {
    cluster.exporter.set(namespace, pods.iter().enumerate().map(|(i, pod)| (pod.clone(), if i < busy { 50.0 } else { 0.0 })));
}

fn follows_the_work(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "floor";
    apply_pod_metrics_kind(cluster)?;
    set_up(cluster, namespace, 6, 8)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 8).await?);
        at_work(cluster, namespace, &pods, 5);
        sleep(MEASURED).await;
        cluster.admin.apply(&hpa(namespace, 2, 20).to_string())?;
        wait_for_minimum(cluster, namespace, 6)?;
        // From here on the HPA would rather have one.
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let usage = |pod: &String| {
            json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "timestamp": now, "window": "1s",
                "metadata": {"name": pod, "namespace": namespace, "labels": {"app": "web"}},
                "containers": [{"name": "web", "usage": {"cpu": "1m", "memory": "5Mi"}}]})
        };
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.iter().map(usage).collect::<Vec<_>>()});
        cluster.admin.apply(&list.to_string())?;
        let left = names(&cluster.pods(namespace, 6).await?);
        ensure!(pods[..5].iter().all(|pod| left.contains(pod)), "{left:?} are left of {pods:?}, of which the first five are at work");
        let message = wait_for_reason(cluster, namespace, "Held")?;
        ensure!(message.contains("is 6, for 5 busy pods; without us it is 2"), "{message}");
        sleep(Duration::from_secs(3)).await;
        ensure!(cluster.pods(namespace, 6).await.is_ok(), "the floor did not hold");

        at_work(cluster, namespace, &pods, 1);
        wait_for_minimum(cluster, namespace, 2)?;
        let left = names(&cluster.pods(namespace, 2).await?);
        ensure!(left.contains(&pods[0]), "{left:?} are left; {} is at work", pods[0]);
        wait_for_reason(cluster, namespace, "NotNeeded")?;
        ensure_untouched(cluster, "hpa", "web", namespace)
    })
}

fn ends_at_the_maximum(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "floor-maximum";
    set_up(cluster, namespace, 300, 6)?;
    cluster.admin.apply(&hpa(namespace, 4, 6).to_string())?;
    let pods = names(&block_on(cluster.pods(namespace, 6))?);
    at_work(cluster, namespace, &pods, 6);
    wait_for_minimum(cluster, namespace, 6)?;
    wait_for_reason(cluster, namespace, "Clamped")?;
    // The policy goes on without a floor, well before the hold-down ends.
    cluster.admin.apply(&policy(namespace, json!({"newPodSeconds": 0})).to_string())?;
    wait_for_minimum(cluster, namespace, 4)?;
    ensure_untouched(cluster, "hpa", "web", namespace)?;
    wait_for("the condition to go", SOON, || said(cluster, namespace).is_none().then_some(()))?;

    cluster.admin.apply(&with_floor(namespace, "HorizontalPodAutoscaler", "web", 300).to_string())?;
    wait_for_minimum(cluster, namespace, 6)?;
    cluster.admin.run(&["delete", "dcp", "web", "-n", namespace])?;
    wait_for_minimum(cluster, namespace, 4)?;
    ensure_untouched(cluster, "hpa", "web", namespace)
}

fn two_reverts(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "floor-reverted";
    set_up(cluster, namespace, 300, 5)?;
    let apply = || {
        let input = hpa(namespace, 2, 20).to_string();
        cluster.admin.run_with(&["apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-"], &input)
    };
    apply()?;
    let pods = names(&block_on(cluster.pods(namespace, 5))?);
    at_work(cluster, namespace, &pods, 3);
    for _ in 0..2 {
        wait_for_minimum(cluster, namespace, 4)?;
        apply()?;
    }
    let message = wait_for_reason(cluster, namespace, "Reverted")?;
    ensure!(message.starts_with("`gitops` has put minReplicas of HorizontalPodAutoscaler web back twice, and it is 2 now"), "{message}");
    std::thread::sleep(Duration::from_secs(5));
    ensure!(minimum(cluster, namespace) == Some(2), "it was written again");
    // A changed policy is another try.
    cluster.admin.apply(&with_floor(namespace, "HorizontalPodAutoscaler", "web", 299).to_string())?;
    wait_for_minimum(cluster, namespace, 4)
}

fn keda_keeps_its_hpa(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "floor-keda";
    cluster.make_namespace(namespace)?;
    cluster.define_kind(("keda.sh", "v1alpha1"), ("ScaledObject", "scaledobjects"), "Namespaced", json!({}))?;
    let scaled = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "web-scaler", "namespace": namespace},
        "spec": {"minReplicaCount": 2, "maxReplicaCount": 20, "scaleTargetRef": {"name": "web"}}, "status": {"hpaName": "web"}});
    cluster.admin.apply(&scaled.to_string())?;
    let uid = cluster.admin.get(&["scaledobject", "web-scaler", "-n", namespace])?["metadata"]["uid"].clone();
    let mut owned = hpa(namespace, 2, 20);
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "web-scaler", "uid": uid, "controller": true}]);
    cluster.admin.apply(&workload("Deployment", namespace, 6).to_string())?;
    cluster.admin.apply(&owned.to_string())?;
    cluster.admin.apply(&with_floor(namespace, "HorizontalPodAutoscaler", "web", 300).to_string())?;
    let pods = names(&block_on(cluster.pods(namespace, 6))?);
    at_work(cluster, namespace, &pods, 4);
    let message = wait_for_reason(cluster, namespace, "RefusedKedaOwned")?;
    ensure!(message.contains("{kind: ScaledObject, name: web-scaler}"), "{message}");
    std::thread::sleep(Duration::from_secs(4));
    let managers = cluster.admin.run(&["get", "hpa", "web", "-n", namespace, "--show-managed-fields", "-o", "json"])?;
    ensure!(!managers.contains("\"manager\": \"pecking-order\""), "the HPA of KEDA was written: {managers}");

    // What the message advises.
    cluster.admin.apply(&with_floor(namespace, "ScaledObject", "web-scaler", 300).to_string())?;
    let count = || cluster.admin.get(&["scaledobject", "web-scaler", "-n", namespace]).ok()?["spec"]["minReplicaCount"].as_u64();
    wait_for("the ScaledObject's minimum", SOON, || (count()? == 5).then_some(()))
        .with_context(|| format!("it is {:?}; {:?}", count(), said(cluster, namespace)))?;
    wait_for_reason(cluster, namespace, "Held")?;
    // KEDA brings its HPA up to date, labels and annotations included. A change of a policy has us look for what nobody wants held.
    let scaled = cluster.admin.get(&["scaledobject", "web-scaler", "-n", namespace])?["metadata"].clone();
    let copied = json!({"metadata": {"labels": scaled["labels"], "annotations": scaled["annotations"]}, "spec": {"minReplicas": 5}});
    cluster.admin.run(&["patch", "hpa", "web", "-n", namespace, "--type=merge", "-p", &copied.to_string()])?;
    cluster.make_namespace("floor-keda-other")?;
    cluster.admin.apply(&policy("floor-keda-other", json!({})).to_string())?;
    std::thread::sleep(Duration::from_secs(10));
    let managers = cluster.admin.run(&["get", "hpa", "web", "-n", namespace, "--show-managed-fields", "-o", "json"])?;
    ensure!(
        !managers.contains("\"manager\": \"pecking-order\"") && minimum(cluster, namespace) == Some(5),
        "the HPA is KEDA's: {managers}"
    );
    cluster.admin.run(&["patch", "hpa", "web", "-n", namespace, "--type=merge", "-p", r#"{"spec": {"minReplicas": 2}}"#])?;
    cluster.admin.run(&["delete", "dcp", "web", "-n", namespace])?;
    wait_for("the ScaledObject's own minimum", SOON, || (count()? == 2).then_some(()))?;
    ensure_untouched(cluster, "scaledobject", "web-scaler", namespace)
}

fn at_rest(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "floor-at-rest";
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&workload("Deployment", namespace, 0).to_string())?;
    cluster.admin.apply(&hpa(namespace, 2, 20).to_string())?;
    let mut held = with_floor(namespace, "HorizontalPodAutoscaler", "web", 300);
    held["spec"]["floor"]["baseline"] = json!(5);
    cluster.admin.apply(&held.to_string())?;
    wait_for_reason(cluster, namespace, "AtRest")?;
    std::thread::sleep(Duration::from_secs(4));
    let deployment = cluster.admin.get(&["deployment", "web", "-n", namespace])?;
    ensure!(deployment["spec"]["replicas"] == 0 && minimum(cluster, namespace) == Some(2), "{deployment}");
    ensure_untouched(cluster, "hpa", "web", namespace)
}
