//! Who goes when a workload is scaled down, through every door, with the stored costs reversed beforehand.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{COST, Cluster, MARK, MEASURED, Test, block_on, is_ready, names, policy, workload};

const PODS: usize = 20;
const GO: usize = 8;
const ROUNDS: usize = 20;

pub const BEFORE: &[(&str, Test)] = &[("scale_downs::without_the_webhook_the_wrong_pods_go", without_the_webhook)];

pub const TESTS: &[(&str, Test)] = &[
    ("scale_downs::kubectl_scale_removes_the_right_pods", |cluster| through(cluster, Door::KubectlScale)),
    ("scale_downs::apply_removes_the_right_pods", |cluster| through(cluster, Door::Apply)),
    ("scale_downs::an_hpa_removes_the_right_pods", |cluster| through(cluster, Door::Hpa)),
    ("scale_downs::a_replica_set_removes_the_right_pods", |cluster| through(cluster, Door::ReplicaSet)),
    ("scale_downs::a_replication_controller_removes_the_right_pods", |cluster| through(cluster, Door::ReplicationController)),
    ("scale_downs::an_argo_rollout_gets_the_right_costs", an_argo_rollout),
    ("scale_downs::dc_04_old_samples_are_measured_again_first", dc_04_old_samples),
    ("scale_downs::a_busy_pod_that_is_not_ready_goes_and_that_is_said", outranked_by_readiness),
    ("scale_downs::dc_07_idle_pods_go_in_each_zone", dc_07_zones),
    ("scale_downs::a_dry_run_writes_nothing", a_dry_run_writes_nothing),
    ("scale_downs::a_rollout_finishes", a_rollout_finishes),
    ("scale_downs::dc_18_a_rollout_takes_busy_pods_last", dc_18_busy_pods_go_last),
    ("scale_downs::dc_33_a_label_that_somebody_adds_meanwhile_stays", dc_33_other_writers),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Door {
    KubectlScale,
    Apply,
    Hpa,
    ReplicaSet,
    ReplicationController,
}

impl Door {
    fn namespace(self) -> &'static str {
        match self {
            Self::KubectlScale => "door-scale",
            Self::Apply => "door-apply",
            Self::Hpa => "door-hpa",
            Self::ReplicaSet => "door-replicaset",
            Self::ReplicationController => "door-rc",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            _ => "Deployment",
        }
    }

    /// Each round takes five seconds; the doors that share their way with another are tried less often.
    fn rounds(self) -> usize {
        if self == Self::ReplicationController { 5 } else { ROUNDS }
    }

    fn scale(self, cluster: &Cluster, namespace: &str, replicas: usize) -> anyhow::Result<()> {
        let count = format!("--replicas={replicas}");
        match self {
            Self::KubectlScale => cluster.admin.run(&["scale", "deployment/web", "-n", namespace, &count]).map(|_| ()),
            Self::ReplicaSet => cluster.admin.run(&["scale", "replicaset/web", "-n", namespace, &count]).map(|_| ()),
            Self::ReplicationController => cluster.admin.run(&["scale", "rc/web", "-n", namespace, &count]).map(|_| ()),
            Self::Apply => cluster.admin.apply(&workload("Deployment", namespace, replicas).to_string()).map(|_| ()),
            Self::Hpa => {
                let hpa = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web", "namespace": namespace},
                    "spec": {"minReplicas": replicas, "maxReplicas": replicas, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
                cluster.admin.apply(&hpa.to_string()).map(|_| ())
            }
        }
    }
}

/// Work for each pod, all different, in an order that changes with the round.
fn work(pods: &[String], round: usize) -> BTreeMap<String, i64> {
    // 7 and 20 have no common factor, so this is a permutation.
    pods.iter().enumerate().map(|(i, pod)| (pod.clone(), ((i * 7 + round * 3) % PODS + 1) as i64 * 10)).collect()
}

/// One scale-down; returns how many of those that should have gone did.
async fn round(cluster: &Cluster, door: Door, namespace: &str, round: usize) -> anyhow::Result<usize> {
    let pods = names(&cluster.pods(namespace, PODS).await?);
    let work = work(&pods, round);
    cluster.exporter.set(namespace, work.iter().map(|(pod, value)| (pod.clone(), *value as f64)));
    sleep(MEASURED).await;
    let most = (PODS as i64 + 1) * 10;
    cluster.store_costs(namespace, work.iter().map(|(pod, value)| (pod.clone(), most - value))).await?;
    sleep(Duration::from_millis(300)).await;

    tokio::task::block_in_place(|| door.scale(cluster, namespace, PODS - GO))?;
    let stay: BTreeSet<String> = names(&cluster.pods(namespace, PODS - GO).await?).into_iter().collect();
    let mut by_work: Vec<&String> = pods.iter().collect();
    by_work.sort_by_key(|pod| work[*pod]);
    let right = by_work[..GO].iter().filter(|pod| !stay.contains(**pod)).count();
    tokio::task::block_in_place(|| door.scale(cluster, namespace, PODS))?;
    Ok(right)
}

fn rounds(cluster: &'static Cluster, door: Door, namespace: &'static str, count: usize) -> anyhow::Result<usize> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let mut right = 0;
        for n in 0..count {
            right += round(cluster, door, namespace, n).await?;
        }
        Ok(right)
    })
}

fn without_the_webhook(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "door-none";
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&workload("Deployment", namespace, PODS).to_string())?;
    let right = rounds(cluster, Door::KubectlScale, namespace, 2)?;
    println!("without the webhook: {right}/{} victims right", 2 * GO);
    // Reversed costs: the eight with the most work go. None of them is among the eight with the least.
    ensure!(right == 0, "expected no right victim, found {right}: the test proves nothing");
    Ok(())
}

fn through(cluster: &'static Cluster, door: Door) -> anyhow::Result<()> {
    let namespace = door.namespace();
    cluster.make_namespace(namespace)?;
    // Pod updates would correct the reversed costs before the scale-down comes.
    cluster
        .admin
        .apply(&policy(namespace, json!({"newPodSeconds": 0, "write": {"onScaleDown": true, "onPodUpdate": false}})).to_string())?;
    cluster.admin.apply(&workload(door.kind(), namespace, PODS).to_string())?;
    if door == Door::Hpa {
        door.scale(cluster, namespace, PODS)?;
    }
    let right = rounds(cluster, door, namespace, door.rounds())?;
    let all = door.rounds() * GO;
    println!("{door:?}: {right}/{all} victims right");
    match door {
        Door::ReplicaSet | Door::ReplicationController => {
            ensure!(right * 100 >= all * 99, "{right} of {all} victims right, wanted at least 99 %")
        }
        _ => ensure!(right == all, "{right} of {all} victims right, wanted all"),
    }
    observed(cluster, door, namespace, right == all)
}

/// What the product itself says of these scale-downs, afterwards.
fn observed(cluster: &'static Cluster, door: Door, namespace: &str, all_right: bool) -> anyhow::Result<()> {
    let series = match door {
        Door::KubectlScale => "deployments/scale",
        Door::Apply => "deployments",
        Door::ReplicaSet => "replicasets/scale",
        Door::ReplicationController => "replicationcontrollers/scale",
        // The other Deployments share its door.
        Door::Hpa => return Ok(()),
    };
    let verdicts =
        |verdict: &str| cluster.metric(&format!("pecking_order_scale_downs_observed_total{{door=\"{series}\",verdict=\"{verdict}\"}}"));
    if !all_right {
        return Ok(());
    }
    // A verdict comes a moment after the pods have gone.
    control_plane::wait_for("as many verdicts of right as scale-downs", Duration::from_secs(10), || {
        (verdicts("right").ok()? >= door.rounds() as f64).then_some(())
    })?;
    control_plane::wait_for("the last scale-down on the status", Duration::from_secs(10), || {
        let last = cluster.admin.get(&["dcp", "web", "-n", namespace]).ok()?["status"]["lastScaleDown"].clone();
        (last["outcome"] == "right" && last["from"] == PODS && last["to"] == PODS - GO && last["wrong"] == 0).then_some(())
    })
}

/// DC-04: what was measured 40 s ago does not decide; it is measured again, within the deadline.
fn dc_04_old_samples(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "old-samples";
    // The next poll by itself comes in an hour.
    let samples = json!({"maxAgeSeconds": 3, "keepLastSeconds": 7200});
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&workload("Deployment", namespace, 4).to_string())?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 4).await?);
        let at_work = |busy: &[usize]| {
            cluster
                .exporter
                .set(namespace, (0..4).map(|i| (pods[i].clone(), if busy.contains(&i) { 9.0 } else { 0.0 })).collect::<Vec<_>>())
        };
        at_work(&[0, 1]);
        sleep(Duration::from_secs(2)).await;
        cluster.admin.apply(&policy(namespace, json!({"newPodSeconds": 0, "pollSeconds": 3600, "samples": samples})).to_string())?;
        // Long enough for both replicas to poll, and for their samples to be too old; meanwhile the work moves.
        sleep(Duration::from_secs(3)).await;
        at_work(&[2, 3]);
        sleep(Duration::from_secs(5)).await;
        let fresh = || cluster.metric(r#"pecking_order_fresh_polls_total{result="fresh"}"#);
        let before = fresh()?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=2"])?;
        let mut left = names(&cluster.pods(namespace, 2).await?);
        left.sort();
        let mut busy = vec![pods[2].clone(), pods[3].clone()];
        busy.sort();
        ensure!(left == busy, "{left:?} are left, {busy:?} are at work");
        ensure!(fresh()? > before, "there was no fresh poll");
        Ok(())
    })
}

/// DC-07: of pods that do nothing, one goes in each zone.
fn dc_07_zones(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "zones";
    let nodes = cluster.admin.get(&["nodes"])?;
    let nodes: Vec<&str> = nodes["items"].as_array().into_iter().flatten().filter_map(|node| node["metadata"]["name"].as_str()).collect();
    ensure!(nodes.len() >= 3, "{nodes:?}");
    for (index, node) in nodes.iter().enumerate() {
        cluster.admin.run(&["label", "node", node, "--overwrite", &format!("topology.kubernetes.io/zone=zone-{}", index % 3)])?;
    }
    // Two pods in each zone, which the scheduler sees to.
    let mut deployment = workload("Deployment", namespace, 6);
    deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]);
    cluster.make_namespace(namespace)?;
    cluster.admin.apply(&policy(namespace, json!({"newPodSeconds": 0, "resolution": 10, "tieBreak": "Zone"})).to_string())?;
    cluster.admin.apply(&deployment.to_string())?;
    block_on(async {
        let zone = |pod: &k8s_openapi::api::core::v1::Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            nodes.iter().position(|name| Some(*name) == node).map(|index| index % 3)
        };
        let zones = |pods: &[k8s_openapi::api::core::v1::Pod]| {
            let mut zones: Vec<_> = pods.iter().map(zone).collect();
            zones.sort();
            zones
        };
        let pods = cluster.pods(namespace, 6).await?;
        ensure!(zones(&pods) == [0, 0, 1, 1, 2, 2].map(Some), "the scheduler has not spread them: {:?}", zones(&pods));
        cluster.exporter.set(namespace, names(&pods).into_iter().map(|pod| (pod, 0.0)));
        sleep(MEASURED).await;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=3"])?;
        let left = cluster.pods(namespace, 3).await?;
        ensure!(zones(&left) == [0, 1, 2].map(Some), "{:?} are left", zones(&left));
        Ok(())
    })
}

/// DC-10: Kubernetes removes what is not Ready first. That is counted, and said on the workload.
fn outranked_by_readiness(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "outranked";
    cluster.deploy(namespace, json!({"newPodSeconds": 0}), 3)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 3).await?);
        cluster.exporter.set(namespace, pods.iter().enumerate().map(|(i, pod)| (pod.clone(), if i == 0 { 95.0 } else { 0.0 })));
        let unready = r#"{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}"#;
        cluster.admin.run(&["patch", "pod", &pods[0], "-n", namespace, "--subresource=status", "-p", unready])?;
        sleep(MEASURED).await;
        let counted =
            || cluster.metric(r#"pecking_order_scale_downs_observed_total{door="deployments/scale",verdict="outranked_by_readiness"}"#);
        let before = counted()?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=2"])?;
        let left = names(&cluster.pods(namespace, 2).await?);
        ensure!(!left.contains(&pods[0]), "the pod that is not Ready stayed, so this proves nothing");
        control_plane::wait_for("the verdict", Duration::from_secs(10), || (counted().ok()? == before + 1.0).then_some(()))?;
        let event = control_plane::wait_for("the Event", Duration::from_secs(10), || {
            let events = cluster.admin.get(&["events", "-n", namespace, "--field-selector=reason=BusyPodsRemoved"]).ok()?;
            events["items"].as_array()?.first().cloned()
        })?;
        ensure!(
            event["involvedObject"]["kind"] == "Deployment" && event["message"].as_str().is_some_and(|m| m.contains(&pods[0])),
            "{event}"
        );
        let last = cluster.admin.get(&["dcp", "web", "-n", namespace])?["status"]["lastScaleDown"].clone();
        ensure!(last["outcome"] == "outranked_by_readiness" && last["wrong"] == 1, "{last}");
        Ok(())
    })
}

fn an_argo_rollout(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "door-rollout";
    cluster.make_namespace(namespace)?;
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let subresources = json!({"status": {}, "scale": scale});
    cluster.define_kind(("argoproj.io", "v1alpha1"), ("Rollout", "rollouts"), "Namespaced", subresources)?;
    let change = json!({"newPodSeconds": 0, "write": {"onScaleDown": true, "onPodUpdate": false}});
    cluster.admin.apply(&policy(namespace, change).to_string())?;
    let rollout = json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "web", "namespace": namespace}, "spec": {"replicas": 6}});
    cluster.admin.apply(&rollout.to_string())?;
    let uid = cluster.admin.get(&["rollout", "web", "-n", namespace])?["metadata"]["uid"].clone();
    let mut set = workload("ReplicaSet", namespace, 6);
    set["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "uid": uid, "controller": true}]);
    cluster.admin.apply(&set.to_string())?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 6).await?);
        cluster.exporter.set(namespace, pods.iter().enumerate().map(|(i, pod)| (pod.clone(), if i < 2 { 50.0 } else { 0.0 })));
        sleep(MEASURED).await;
        for (door, scale) in [
            ("rollouts/scale", vec!["scale", "rollout/web", "-n", namespace, "--replicas=4"]),
            ("rollouts", vec!["patch", "rollout/web", "-n", namespace, "--type=merge", "-p", r#"{"spec": {"replicas": 2}}"#]),
        ] {
            let idle: Vec<_> = names(&cluster.pods(namespace, if door == "rollouts" { 4 } else { 6 }).await?);
            cluster.store_costs(namespace, idle.iter().map(|pod| (pod.clone(), if pods[..2].contains(pod) { 0 } else { 900 }))).await?;
            sleep(Duration::from_millis(300)).await;
            let written = || cluster.metric(&format!("pecking_order_scale_downs_total{{door=\"{door}\",outcome=\"written\"}}"));
            let before = written()?;
            cluster.admin.run(&scale)?;
            ensure!(written()? == before + 1.0, "{door} did not write");
            // The costs are there before Argo's controller lowers its ReplicaSet.
            let replicas = if door == "rollouts" { 2 } else { 4 };
            cluster.admin.run(&["scale", "replicaset/web", "-n", namespace, &format!("--replicas={replicas}")])?;
            let left = names(&cluster.pods(namespace, replicas).await?);
            ensure!(pods[..2].iter().all(|busy| left.contains(busy)), "{door}: a busy pod went; {left:?} are left");
        }
        Ok(())
    })
}

fn a_dry_run_writes_nothing(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "dry-run";
    cluster.deploy(namespace, json!({"newPodSeconds": 0}), 4)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 4).await?);
        cluster.exporter.set(namespace, pods.iter().map(|pod| (pod.clone(), 100.0)).take(1));
        sleep(MEASURED).await;
        let before = cluster.pods(namespace, 4).await?;
        let reviews = || cluster.metric(r#"pecking_order_scale_downs_total{door="deployments/scale",outcome="dry_run"}"#);
        let seen = reviews()?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=1", "--dry-run=server"])?;
        ensure!(reviews()? == seen + 1.0, "the dry run was not reviewed");
        ensure!(cluster.pods(namespace, 4).await? == before, "the dry run changed a pod");
        let written = || cluster.metric(r#"pecking_order_scale_downs_total{door="deployments/scale",outcome="written"}"#);
        let real = written()?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=1"])?;
        ensure!(written()? > real, "the real one had nothing to write either, so this proves nothing");
        Ok(())
    })
}

/// DC-18: a rollout with a scale-down in the middle is not held up, and ends with the new pods.
fn a_rollout_finishes(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "rollout";
    cluster.deploy(namespace, json!({}), 8)?;
    block_on(async {
        cluster.pods(namespace, 8).await?;
        let mut next = workload("Deployment", namespace, 8);
        next["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
        cluster.admin.apply(&next.to_string())?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=5"])?;
        cluster.admin.run(&["rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s"])?;
        let pods = cluster.pods(namespace, 5).await?;
        let new = pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.containers[0].image.as_deref() == Some("web:2")));
        ensure!(new.count() == 5, "old pods are left");
        ensure!(pods.iter().all(|pod| pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(COST))), "a new pod has no cost");
        Ok(())
    })
}

/// DC-18: the old pods at work are the last of the old ones to go, also with a scale-down in the middle, and the rollout finishes.
fn dc_18_busy_pods_go_last(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "rollout-busy";
    let write = json!({"onScaleDown": true, "onPodUpdate": false});
    cluster.deploy(namespace, json!({"newPodSeconds": 0, "write": write}), 12)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 12).await?);
        let busy: BTreeSet<String> = [1, 4, 6].map(|i| pods[i].clone()).into();
        let work = |pod: &String| if busy.contains(pod) { 90 } else { 0 };
        cluster.exporter.set(namespace, pods.iter().map(|pod| (pod.clone(), work(pod) as f64)));
        // Twice, since a Prometheus that has just started may not have scraped at all in the time of one.
        sleep(MEASURED * 2).await;
        cluster.store_costs(namespace, pods.iter().map(|pod| (pod.clone(), 100 - work(pod)))).await?;
        sleep(Duration::from_millis(300)).await;
        let api: Api<Pod> = Api::namespaced(cluster.client().await?, namespace);
        let since = api.list(&ListParams::default()).await?.metadata.resource_version.context("a version")?;
        let mut next = workload("Deployment", namespace, 12);
        next["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
        cluster.admin.apply(&next.to_string())?;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=8"])?;
        cluster.admin.run(&["rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s"])?;
        let left = names(&cluster.pods(namespace, 8).await?);
        ensure!(left.iter().all(|pod| !pods.contains(pod)), "old pods are left: {left:?}");
        // Of the old ones, in the order in which they were told to go.
        let mut order: Vec<String> = Vec::new();
        let mut events = Box::pin(api.watch(&WatchParams::default(), &since).await?);
        while order.len() < pods.len() {
            let event = timeout(Duration::from_secs(5), events.next()).await.context("the pods' ends")?.context("the watch ended")??;
            let (WatchEvent::Modified(pod) | WatchEvent::Deleted(pod)) = event else { continue };
            let name = pod.metadata.name.clone().unwrap_or_default();
            if pods.contains(&name) && !order.contains(&name) && (pod.metadata.deletion_timestamp.is_some() || !is_ready(&pod)) {
                order.push(name);
            }
        }
        let last: BTreeSet<String> = order[pods.len() - busy.len()..].iter().cloned().collect();
        ensure!(last == busy, "the last to go were {last:?}, at work were {busy:?}");
        Ok(())
    })
}

/// DC-33: a label that comes in between our read and our write is nobody's loss.
fn dc_33_other_writers(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "other-writers";
    cluster.deploy(namespace, json!({"newPodSeconds": 0, "write": {"onScaleDown": true, "onPodUpdate": false}}), 10)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 10).await?);
        cluster.exporter.set(namespace, pods.iter().enumerate().map(|(i, pod)| (pod.clone(), (i * 10) as f64)));
        sleep(MEASURED).await;
        // With all the same, those that stay are the ones that must be written.
        cluster.store_costs(namespace, pods.iter().map(|pod| (pod.clone(), 0))).await?;
        sleep(Duration::from_millis(300)).await;
        let api: Api<Pod> = Api::namespaced(cluster.client().await?, namespace);
        // Each pod is labelled again and again while it is written.
        let label = async {
            for round in 0..20 {
                for pod in &pods[5..] {
                    let patch = json!({"metadata": {"labels": {"round": round.to_string()}}});
                    api.patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await?;
                }
            }
            anyhow::Ok(())
        };
        let deployments: Api<Deployment> = Api::namespaced(cluster.client().await?, namespace);
        let (params, fewer) = (PatchParams::default(), Patch::Merge(json!({"spec": {"replicas": 5}})));
        let scale = deployments.patch_scale("web", &params, &fewer);
        let (labelled, scaled) = tokio::join!(label, scale);
        labelled?;
        scaled?;
        let left = cluster.pods(namespace, 5).await?;
        for pod in &left {
            ensure!(pods[5..].contains(&pod.name_any()), "the wrong pods are left: {:?}", names(&left));
            ensure!(pod.labels().get("round").is_some_and(|round| round == "19"), "a label was lost: {:?}", pod.labels());
            let cost = pod.annotations().get(COST);
            ensure!(cost == pod.annotations().get(MARK) && cost.is_some_and(|cost| cost != "0"), "{:?} was not written", pod.annotations());
        }
        Ok(())
    })
}
