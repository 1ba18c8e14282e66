//! The whole job without a cluster: serves `examples/standalone` and sends it reviews over TLS, as an API server would.
//! `make demo` runs this.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use control_plane::Server;
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    pecking_order::server::install_crypto_provider();
    let binary = binary()?;
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/standalone");
    let server = Server::start(&binary, &world)?;
    let authority = reqwest::Certificate::from_pem_bundle(&server.authority()?)?;
    let client = reqwest::Client::builder().tls_certs_only(authority).build()?;
    let ask = async |path: &str, request: Value| -> anyhow::Result<Value> {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let answer = client.post(server.url(&format!("{path}?timeout=10s"))).body(review.to_string()).send().await?.bytes().await?;
        Ok(serde_json::from_slice::<Value>(&answer)?["response"].take())
    };

    println!("Eight pods of deployment/web; web-b, web-d, web-f and web-h have requests in flight, and web-h is not ready.\n");

    println!("1. Somebody labels web-b. The review's answer puts its deletion cost on it: 12 requests, 10 points each.\n");
    let pod = json!({"metadata": {"name": "web-b", "namespace": "shop", "uid": "uid-web-b", "labels": {"app": "web", "touched": "yes"}}});
    show(&ask("/mutate/pods", json!({"uid": "1", "operation": "UPDATE", "namespace": "shop", "name": "web-b", "object": pod})).await?)?;

    println!("2. The HPA scales deployment/web from 8 to 4. In this order the pods would be removed:\n");
    let order = ["order", "deployment/web", "-n", "shop", "--replicas", "4", "--standalone"];
    let table = Command::new(&binary).args(order).arg(&world).output()?;
    anyhow::ensure!(table.status.success(), "{}", String::from_utf8_lossy(&table.stderr));
    println!("{}", indent(&String::from_utf8_lossy(&table.stdout)));
    println!("   Only the costs that decide are written, before the scale-down is answered:\n");
    let scale =
        |replicas: i32| json!({"metadata": {"name": "web", "namespace": "shop", "uid": "deploy-web"}, "spec": {"replicas": replicas}});
    let resource = json!({"group": "apps", "version": "v1", "resource": "deployments"});
    let request = json!({"uid": "2", "operation": "UPDATE", "namespace": "shop", "name": "web", "resource": resource, "subResource": "scale",
        "oldObject": scale(8), "object": scale(4)});
    show(&ask("/validate/scale-downs", request).await?)?;

    println!("3. A PriorityClass for placeholders, one below Cluster Autoscaler's cutoff.\n");
    let class = json!({"metadata": {"name": "spot-headroom"}, "value": -11});
    let kind = json!({"group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass"});
    show(&ask("/validate/headroom", json!({"uid": "3", "operation": "CREATE", "kind": kind, "object": class})).await?)?;

    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "placeholder-6d4f", "uid": "rs-placeholder", "controller": true});
    let placeholder = |change: Value| {
        let pause =
            json!({"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}});
        let mut spec =
            json!({"priorityClassName": "spot-headroom", "priority": -10, "terminationGracePeriodSeconds": 0, "containers": [pause]});
        spec.as_object_mut().into_iter().for_each(|spec| spec.extend(change.as_object().cloned().unwrap_or_default()));
        json!({"uid": "4", "operation": "CREATE", "namespace": "ci", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "object": {"metadata": {"generateName": "placeholder-", "ownerReferences": [owner]}, "spec": spec}})
    };
    println!("4. A placeholder with a grace period of 30 s.\n");
    show(&ask("/validate/headroom", placeholder(json!({"terminationGracePeriodSeconds": 30}))).await?)?;
    println!("5. A placeholder that asks for spot nodes.\n");
    show(&ask("/validate/headroom", placeholder(json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}))).await?)?;
    println!("6. A placeholder with neither mistake.\n");
    show(&ask("/validate/headroom", placeholder(json!({}))).await?)
}

/// The binary that was built together with this example.
fn binary() -> anyhow::Result<PathBuf> {
    let directory = std::env::current_exe()?.parent().and_then(Path::parent).context("target/PROFILE/examples/demo")?.to_owned();
    Ok(directory.join("pecking-order"))
}

fn show(response: &Value) -> anyhow::Result<()> {
    if response["allowed"] == json!(true) {
        println!("   allowed");
    } else {
        println!("   refused with {} {}", response["status"]["code"], response["status"]["reason"].as_str().unwrap_or_default());
        for cause in response["status"]["details"]["causes"].as_array().into_iter().flatten() {
            println!("   * {}: {}", cause["field"].as_str().unwrap_or_default(), cause["message"].as_str().unwrap_or_default());
        }
    }
    if let Some(patch) = response["patch"].as_str() {
        let operations: Vec<Value> = serde_json::from_slice(&STANDARD.decode(patch)?)?;
        for operation in operations {
            println!(
                "   patch: {} {} {}",
                operation["op"].as_str().unwrap_or_default(),
                operation["path"].as_str().unwrap_or_default(),
                operation["value"]
            );
        }
    }
    for (key, text) in response["auditAnnotations"].as_object().into_iter().flatten() {
        println!("   {key}: {}", text.as_str().unwrap_or_default());
    }
    println!();
    Ok(())
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("   {line}\n")).collect()
}
