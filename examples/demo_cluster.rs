//! The whole job on a real control plane: the same scale-down without the webhook and with it, and what `kubectl` shows of
//! the refusals. `make demo-cluster` runs this.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::{ControlPlane, Exporter, Installation, Kubectl, Prometheus, wait_for};
use serde_json::{Value, json};

const PODS: usize = 12;
const STAY: usize = 5;
const BUSY: usize = 5;
/// A scrape (1 s) and a poll (1 s), with room to spare.
const MEASURED: Duration = Duration::from_secs(3);

fn main() -> anyhow::Result<()> {
    println!("Starting etcd, API server, controller manager, scheduler, kwok and Prometheus.");
    let plane = ControlPlane::start()?;
    let exporter = Exporter::start()?;
    let prometheus = Prometheus::start(&plane.parts.program("prometheus")?, &plane.directory().join("prometheus"), &exporter, "")?;
    let admin = plane.admin()?;

    println!("\nWithout the webhook: deployment/web, {PODS} pods of which {BUSY} are busy, is scaled to {STAY}.\n");
    println!("{}\n", scale_down(&admin, &exporter, "without")?);

    let directory = std::env::current_exe()?.parent().and_then(Path::parent).context("target/PROFILE/examples/demo_cluster")?.to_owned();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/install.yaml");
    let backends = format!("{{default: {{prometheus: {{url: '{}'}}}}}}", prometheus.url);
    let _installation = Installation::start(&plane, &directory.join("pecking-order"), &manifest, &backends)?;

    println!("With the webhook, and a policy of ten points for each unit of work that Prometheus measures.\n");
    admin.run(&["create", "namespace", "with"])?;
    admin.apply(&policy("with").to_string())?;
    println!("{}\n", scale_down(&admin, &exporter, "with")?);

    println!("And what is refused, as kubectl shows it:\n");
    let pool = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": "general"}, "spec": {}});
    admin.apply(&pool.to_string())?;
    admin.run(&["wait", "--for=condition=Ready", "headroompool/general", "--timeout=30s"])?;
    std::thread::sleep(Duration::from_millis(500));
    for (what, object) in refused() {
        let output = admin.try_apply(&object.to_string())?;
        println!("# {what}\n{}\n", output.stderr.trim());
    }
    Ok(())
}

fn scale_down(admin: &Kubectl, exporter: &Exporter, namespace: &str) -> anyhow::Result<Table> {
    if namespace == "without" {
        admin.run(&["create", "namespace", namespace])?;
    }
    admin.apply(&deployment(namespace).to_string())?;
    let pods = wait_for("the pods", Duration::from_secs(60), || pods(admin, namespace, PODS))?;
    // Kubernetes removes the youngest first. The busy ones are spread over the list, so that no order of its own fits.
    let busy: BTreeSet<&String> = pods.iter().step_by(2).take(BUSY).collect();
    exporter.set(namespace, pods.iter().map(|pod| (pod.clone(), if busy.contains(pod) { 80.0 } else { 0.0 })));
    std::thread::sleep(MEASURED);
    admin.run(&["scale", "deployment/web", "-n", namespace, &format!("--replicas={STAY}")])?;
    let left = wait_for("the scale-down", Duration::from_secs(60), || self::pods(admin, namespace, STAY))?;

    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["pod", "work", ""]);
    for pod in &pods {
        let work = if busy.contains(pod) { "busy" } else { "idle" };
        table.add_row([pod.as_str(), work, if left.contains(pod) { "stays" } else { "removed" }]);
    }
    let killed = busy.iter().filter(|pod| !left.contains(pod)).count();
    println!("{killed} of {BUSY} busy pods were removed:\n");
    Ok(table)
}

/// The names of the pods, once there are so many and all are Ready.
fn pods(admin: &Kubectl, namespace: &str, count: usize) -> Option<Vec<String>> {
    let pods = admin.list(&["pods", "-n", namespace]).ok()?;
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array();
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    (pods.len() == count && pods.iter().all(ready))
        .then(|| pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

fn deployment(namespace: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace}, "spec": {
        "replicas": PODS, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "web"}]}}}})
}

fn policy(namespace: &str) -> Value {
    json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "DeletionCostPolicy", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "pollSeconds": 1, "newPodSeconds": 0,
            "signals": [{"name": "work", "query": format!("sum by (pod) (work{{namespace=\"{namespace}\"}})"), "weight": 10, "cap": 1000}]}})
}

fn refused() -> [(&'static str, Value); 3] {
    let mark = json!({"pecking-order.dev/headroom": "general"});
    let pod = |name: &str, change: Value| {
        let mut spec = json!({"priorityClassName": "spot-headroom", "terminationGracePeriodSeconds": 0, "containers": [{"name": "pause", "image": "pause",
            "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}]});
        spec.as_object_mut().into_iter().for_each(|spec| spec.extend(change.as_object().cloned().unwrap_or_default()));
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "with", "labels": mark}, "spec": spec})
    };
    let class = |name: &str, value: i32, labels: Value| json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name, "labels": labels}, "value": value});
    // The class that the placeholders use is right; it comes in the same list so that the example stands by itself.
    let with_class = |pod: Value| json!({"apiVersion": "v1", "kind": "List", "items": [class("spot-headroom", -10, json!({})), pod]});
    [
        ("A PriorityClass of -11", class("too-low", -11, mark.clone())),
        ("A placeholder with grace 30", with_class(pod("slow", json!({"terminationGracePeriodSeconds": 30})))),
        ("A placeholder on spot nodes", with_class(pod("on-spot", json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}})))),
    ]
}
