//! `pecking-order headroom plan` over what kubectl prints of 5,000 nodes and 150,000 pods: how long it takes, and how much memory.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use control_plane::process::peak_memory_kib;
use serde_json::{Value, json};

const NODES: usize = 5000;
const PODS: usize = 150_000;
const WORKLOADS: usize = 5000;

fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("cluster.json");
    let mut out = BufWriter::new(File::create(&file)?);
    write!(out, "{{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n")?;
    for n in 0..NODES {
        writeln!(out, "{},", serde_json::to_string_pretty(&node(n))?)?;
    }
    for n in 0..PODS {
        writeln!(out, "{}{}", serde_json::to_string_pretty(&pod(n))?, if n + 1 < PODS { "," } else { "" })?;
    }
    write!(out, "    ],\n    \"kind\": \"List\"\n}}\n")?;
    out.into_inner()?.sync_all()?;
    let bytes = std::fs::metadata(&file)?.len();
    // What reading alone takes.
    let start = Instant::now();
    let (mut source, mut chunk) = (File::open(&file)?, vec![0; 1 << 20]);
    while source.read(&mut chunk)? > 0 {}
    let reading = start.elapsed();
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_pecking-order"))
        .args(["headroom", "plan", "-o", "json", "-f"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().expect("it was asked for");
    let output = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        peak = peak_memory_kib(child.id()).unwrap_or(peak);
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = start.elapsed();
    let plan: Value = serde_json::from_str(&output.join().expect("reading does not panic")?)?;
    println!(
        "\n{NODES} nodes, {PODS} pods, {} MB: {:.2} s ({:.2} s of it to read the file), {} MB at the peak; worst wave {}: {} pods, {} fit, {} placeholders needed",
        bytes >> 20,
        took.as_secs_f64(),
        reading.as_secs_f64(),
        peak / 1024,
        plan["waves"][0]["domain"],
        plan["waves"][0]["pods"],
        plan["waves"][0]["fit"],
        plan["needed"].as_array().into_iter().flatten().filter_map(|need| need["count"].as_u64()).sum::<u64>()
    );
    Ok(())
}

/// Two in three are spot, of four types in three zones.
fn node(n: usize) -> Value {
    let images: Vec<Value> =
        (0..20).map(|i| json!({"names": [format!("registry.example/app-{i}@sha256:{:064}", i)], "sizeBytes": 100_000_000 + i})).collect();
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{n}"), "labels": {
            "karpenter.sh/capacity-type": if n.is_multiple_of(3) { "on-demand" } else { "spot" }, "topology.kubernetes.io/zone": format!("z-{}", n % 5 % 3),
            "node.kubernetes.io/instance-type": format!("m{}.4xlarge", n % 7 % 4), "kubernetes.io/hostname": format!("node-{n}")}},
        "spec": {"providerID": format!("aws:///z/{n}")},
        "status": {"allocatable": {"cpu": "14500m", "memory": "58Gi", "pods": "58"}, "images": images,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]}})
}

fn pod(n: usize) -> Value {
    let workload = n % WORKLOADS;
    let environment: Vec<Value> =
        (0..12).map(|i| json!({"name": format!("VARIABLE_{i}"), "value": format!("value-of-{i}-for-{workload}")})).collect();
    let is_placeholder = workload.is_multiple_of(50);
    let labels = if is_placeholder {
        json!({"pecking-order.dev/headroom": "general"})
    } else {
        json!({"app": format!("w-{workload}"), "pod-template-hash": "7d4b9c"})
    };
    let cpu = [100, 250, 500, 1000][workload % 4];
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("w-{workload}-7d4b9c-{n:05}"), "namespace": format!("team-{}", workload % 40), "labels": labels, "uid": format!("{n:036}"),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("w-{workload}-7d4b9c"), "uid": format!("{workload:036}"), "controller": true}]},
        "spec": {"nodeName": format!("node-{}", n.wrapping_mul(2_654_435_761) % NODES), "priority": if is_placeholder { -10 } else { 0 }, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "containers": [{"name": "main", "image": "registry.example/app:1", "env": environment,
                "resources": {"requests": {"cpu": format!("{cpu}m"), "memory": format!("{cpu}Mi")}, "limits": {"memory": format!("{}Mi", cpu * 2)}},
                "volumeMounts": [{"name": format!("kube-api-access-{n}"), "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}]}],
            "volumes": [{"name": format!("kube-api-access-{n}"), "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "imageID": format!("sha256:{workload:064}")}]}})
}
