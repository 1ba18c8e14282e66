//! How long a scale-down takes on the real control plane, with all stored costs wrong and with all of them right.

use std::path::Path;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::{ControlPlane, Exporter, Installation, Prometheus, wait_for};
use serde_json::{Value, json};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const MARK: &str = "pecking-order.dev/deletion-cost";

fn main() -> anyhow::Result<()> {
    let plane = ControlPlane::start()?;
    let exporter = Exporter::start()?;
    let prometheus = Prometheus::start(&plane.parts.program("prometheus")?, &plane.directory().join("prometheus"), &exporter, "")?;
    let admin = plane.admin()?;
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/install.yaml");
    let backends = format!("{{default: {{prometheus: {{url: '{}'}}}}}}", prometheus.url);
    let installation = Installation::start(&plane, Path::new(env!("CARGO_BIN_EXE_pecking-order")), &manifest, &backends)?;

    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["pods", "go", "stored costs", "writes", "kubectl scale took"]);
    for pods in [20, 150] {
        let namespace = format!("bench-{pods}");
        admin.run(&["create", "namespace", &namespace])?;
        for (stored, reversed) in [("right", false), ("all wrong", true)] {
            let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "pollSeconds": 1, "resolution": 1, "newPodSeconds": 0, "write": {"onPodUpdate": false},
                "signals": [{"name": "work", "query": format!("sum by (pod) (work{{namespace=\"{namespace}\"}})"), "weight": 1, "cap": 1000}]});
            let metadata = json!({"name": "web", "namespace": namespace});
            admin.apply(
                &json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "DeletionCostPolicy", "metadata": metadata, "spec": spec})
                    .to_string(),
            )?;
            let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "w", "image": "w"}]}});
            let spec = json!({"replicas": pods, "selector": {"matchLabels": {"app": "web"}}, "template": template});
            admin.apply(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}).to_string())?;
            let running = || {
                let found = admin.list(&["pods", "-n", &namespace]).ok()?;
                let all = found.len() == pods
                    && found.iter().all(|pod| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null());
                all.then(|| found.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect::<Vec<_>>())
            };
            let names = wait_for("the pods", Duration::from_secs(120), running)?;
            exporter.set(&namespace, names.iter().enumerate().map(|(i, pod)| (pod.clone(), (i + 1) as f64)));
            std::thread::sleep(Duration::from_secs(3));
            let annotated: Vec<Value> = names.iter().enumerate().map(|(i, name)| {
                let cost = if reversed { pods - i } else { i + 1 }.to_string();
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "annotations": {COST: cost, MARK: cost}}})
            }).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "items": annotated}).to_string();
            admin.run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list)?;
            std::thread::sleep(Duration::from_secs(1));

            let go = pods * 2 / 5;
            let written = || installation.metric(r#"pecking_order_pod_writes_total{result="written"}"#);
            let (before, start) = (written()?, Instant::now());
            admin.run(&["scale", "deployment/web", "-n", &namespace, &format!("--replicas={}", pods - go)])?;
            let took = start.elapsed();
            table.add_row([
                pods.to_string(),
                go.to_string(),
                stored.into(),
                format!("{:.0}", written()? - before),
                format!("{:.2} s", took.as_secs_f64()),
            ]);
        }
    }
    println!("\n{table}\n\nStarting kubectl itself is part of every figure.");
    Ok(())
}
