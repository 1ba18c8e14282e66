//! What `headroom plan` promises, held against the real scheduler; and placeholders that are made for a workload.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::wait_for;
use serde_json::{Value, json};

use super::room::Bench;
use super::{Cluster, Test};

pub const TESTS: &[(&str, Test)] = &[
    ("plan::what_it_says_will_run_does_run_when_the_wave_comes", the_wave_comes),
    ("plan::a_placeholder_made_for_a_job_makes_room_for_it", made_for_a_job),
];

fn pecking_order(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_pecking-order")).args(arguments).env("KUBECONFIG", cluster.kubeconfig("admin")).output()?;
    ensure!(!output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

fn labelled(bench: &Bench, node: &str, capacity: &str) -> anyhow::Result<()> {
    bench.node(node)?;
    let label = format!("karpenter.sh/capacity-type={capacity}");
    bench.cluster.admin.run(&["label", "node", &format!("{}-{node}", bench.name), &label, "topology.kubernetes.io/zone=z-1"]).map(|_| ())
}

fn deployment(bench: &Bench, name: &str, replicas: u32, spec: Value) -> Value {
    let labels = json!({ "app": name });
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": bench.name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
}

fn requests(bench: &Bench, cpu: &str, change: Value) -> Value {
    let mut spec = bench.pod_spec(json!({"containers": [{"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu}}}]}));
    json_patch::merge(&mut spec, &change);
    spec
}

/// How many pods of these run, and how many have no node.
fn pods(bench: &Bench) -> Option<(usize, usize)> {
    let pods = bench.cluster.admin.list(&["pods", "-n", bench.name, "-l", "app in (large,small)"]).ok()?;
    let alive: Vec<&Value> = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
    let placed = alive.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
    Some((placed, alive.len() - placed))
}

fn the_wave_comes(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "plan", json!({}))?;
    for node in ["spot-a", "spot-b"] {
        labelled(&bench, node, "spot")?;
    }
    cluster.admin.apply(&deployment(&bench, "large", 2, requests(&bench, "40", json!({}))).to_string())?;
    cluster.admin.apply(&deployment(&bench, "small", 4, requests(&bench, "10", json!({}))).to_string())?;
    wait_for("the workload to run on spot nodes", Duration::from_secs(30), || pods(&bench).filter(|now| *now == (6, 0)))?;
    // What stays: one node with a placeholder of 40 and 24 free, and one that is used but for 14.
    labelled(&bench, "regular-a", "on-demand")?;
    bench.placeholders(0)?;
    let on_demand = json!({"nodeSelector": {"karpenter.sh/capacity-type": "on-demand", "pool": bench.name}});
    let mut held = requests(&bench, "40", on_demand.clone());
    held["priorityClassName"] = json!("plan-class");
    let mut room = deployment(&bench, "held", 1, held);
    room["spec"]["template"]["metadata"]["labels"]["app"] = json!("plan-room");
    room["spec"]["selector"]["matchLabels"]["app"] = json!("plan-room");
    cluster.admin.apply(&room.to_string())?;
    bench.status("one bound", |status| status["bound"] == 1)?;
    labelled(&bench, "regular-b", "on-demand")?;
    cluster.admin.apply(&deployment(&bench, "used", 1, requests(&bench, "50", on_demand)).to_string())?;
    let used = || {
        cluster
            .admin
            .list(&["pods", "-n", bench.name, "-l", "app=used"])
            .ok()?
            .iter()
            .any(|pod| pod["spec"]["nodeName"] == "plan-regular-b")
            .then_some(())
    };
    wait_for("the other node to be used", Duration::from_secs(30), used)?;

    let nodes = cluster.admin.run(&["get", "nodes", "-l", "pool=plan", "-o", "json"])?;
    let all = cluster.admin.run(&["get", "pods", "-n", bench.name, "-o", "json"])?;
    let directory = tempfile::tempdir()?;
    let files = [("nodes.json", nodes), ("pods.json", all)].map(|(name, text)| (directory.path().join(name), text));
    let mut arguments = vec!["headroom", "plan", "--placeholders", "app=plan-room"];
    for (file, text) in &files {
        std::fs::write(file, text)?;
        arguments.extend(["-f", file.to_str().context("a path")?]);
    }
    let (code, text) = pecking_order(cluster, &[arguments.as_slice(), &["-o", "json"]].concat())?;
    let plan: Value = serde_json::from_str(&text)?;
    let count = |what: &str| plan[what].as_array().map_or(0, Vec::len);
    let will_run = plan["placed"].as_array().into_iter().flatten().filter(|placed| placed["willRun"] == true).count();
    // 64 and 14 for 80 and 40: one large and three small at the most.
    ensure!(code == Some(1) && count("placed") == 4 && count("left") == 2, "{text}");
    ensure!(will_run == 3, "three of the small ones, whoever comes first: {text}");
    ensure!(plan["needed"][0]["count"] == 2, "{text}");
    let (_, table) = pecking_order(cluster, &arguments)?;
    ensure!(table.contains("The worst wave is `z-1 ?`: of 6 pods") && table.contains("Needed:"), "{table}");
    let (_, picture) = pecking_order(cluster, &[arguments.as_slice(), &["-o", "svg"]].concat())?;
    ensure!(picture.starts_with("<svg") && picture.ends_with("</svg>\n") && picture.contains("plan-regular-a"), "{picture}");

    // The reclaim: the nodes go, and their pods are made anew.
    cluster.admin.run(&["delete", "node", "plan-spot-a", "plan-spot-b"])?;
    cluster.admin.run(&["delete", "pods", "-n", bench.name, "-l", "app in (large,small)", "--force", "--grace-period=0"])?;
    let settled = || pods(&bench).filter(|(placed, waiting)| placed + waiting == 6 && *placed >= will_run);
    let (placed, _) = wait_for("what was promised to run", Duration::from_secs(30), settled)?;
    std::thread::sleep(Duration::from_secs(3));
    let after = pods(&bench).context("pods")?;
    eprintln!("promised {will_run}, possible {}, and {placed} to {} of 6 run", count("placed"), after.0);
    ensure!(after.0 >= will_run && after.0 <= count("placed"), "{after:?} {text}");
    Ok(())
}

fn made_for_a_job(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "made", json!({}))?;
    bench.node("a")?;
    // A job with a helper, which would rather run on spot nodes; it has priority over placeholders.
    let helper = json!({"containers": [
        {"name": "build", "image": "app", "resources": {"requests": {"cpu": "20", "memory": "4Gi"}}},
        {"name": "helper", "image": "app", "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {
            "matchExpressions": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]}}]}}});
    cluster.admin.apply(&deployment(&bench, "job", 0, bench.pod_spec(helper)).to_string())?;
    let (code, yaml) = pecking_order(
        cluster,
        &[
            "headroom",
            "placeholder",
            "--like",
            "deployment/job",
            "-n",
            "made",
            "--pool",
            "made",
            "--replicas",
            "3",
            "--class",
            "made-minus-10",
        ],
    )?;
    ensure!(code == Some(0), "{yaml}");
    let output = cluster.admin.try_apply(&yaml)?;
    ensure!(output.success && output.stderr.is_empty(), "accepted without a warning: {}", output.stderr);
    let shape = json!({"shape": {"like": {"kind": "Deployment", "namespace": "made", "name": "job"}}, "placeholders": {"selector": null}});
    bench.pool(shape)?;
    bench.status("three slots", |status| status["bound"] == 3 && status["violations"] == 0)?;
    let (_, table) = pecking_order(cluster, &["headroom", "status"])?;
    ensure!(table.lines().any(|line| line.contains("| made ") && line.contains("| 3 ")), "{table}");
    Ok(())
}
