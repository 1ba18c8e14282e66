//! Why a placeholder's grace period must be zero: how long displaced pods wait for the room of placeholders, on the real scheduler, with
//! kubelets that keep a pod for as long as its grace period allows. `make demo-headroom` runs this.

use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::{ControlPlane, Kubectl, wait_for};
use serde_json::{Value, json};

/// Four nodes of 64 CPUs take sixteen of these, and no more.
const CPU: &str = "15900m";
const PLACEHOLDERS: usize = 16;
const DISPLACED: usize = 8;

fn main() -> anyhow::Result<()> {
    println!("Starting etcd, API server, controller manager, scheduler and kwok.");
    let plane = ControlPlane::start()?;
    let admin = plane.admin()?;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "spot-headroom"}, "value": -10,
        "preemptionPolicy": "Never"});
    admin.apply(&class.to_string())?;
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["grace period of the placeholders", "until all 8 displaced pods ran"]);
    for grace in [0, 30] {
        let namespace = format!("grace-{grace}");
        admin.run(&["create", "namespace", &namespace])?;
        admin.apply(
            &deployment(
                &namespace,
                "room",
                PLACEHOLDERS,
                json!({"priorityClassName": "spot-headroom", "terminationGracePeriodSeconds": grace}),
            )
            .to_string(),
        )?;
        wait_for("the placeholders", Duration::from_secs(120), || (running(&admin, &namespace, "room")? == PLACEHOLDERS).then_some(()))?;
        let start = Instant::now();
        admin.apply(&deployment(&namespace, "displaced", DISPLACED, json!({"terminationGracePeriodSeconds": 0})).to_string())?;
        wait_for("the displaced pods", Duration::from_secs(180), || {
            (running(&admin, &namespace, "displaced")? == DISPLACED).then_some(())
        })?;
        table.add_row([format!("{grace} s"), format!("{:.1} s", start.elapsed().as_secs_f64())]);
        admin.run(&["delete", "namespace", &namespace, "--wait=true"])?;
    }
    println!("\n{DISPLACED} pods need the room of {DISPLACED} placeholders, on nodes that are full:\n\n{table}");
    Ok(())
}

fn running(admin: &Kubectl, namespace: &str, app: &str) -> Option<usize> {
    let pods = admin.list(&["pods", "-n", namespace, "-l", &format!("app={app}")]).ok()?;
    Some(pods.iter().filter(|pod| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()).count())
}

fn deployment(namespace: &str, app: &str, replicas: usize, change: Value) -> Value {
    let mut spec =
        json!({"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": {"cpu": CPU}}}]});
    if let (Some(spec), Value::Object(change)) = (spec.as_object_mut(), change) {
        spec.extend(change);
    }
    let labels = json!({ "app": app });
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
}
