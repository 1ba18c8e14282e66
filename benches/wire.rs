//! The server as a whole process: idle memory, and CPU time per pod review over TLS keep-alive beside two floors measured in
//! the same run: a server that answers a constant, and one that only reads the same fields first.
//!
//! Figures of one run are compared with each other, never with those of another machine or day.

use std::io::BufRead;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::Server;
use control_plane::process::{cpu_ticks, memory_kib};
use futures::future::try_join_all;
use pecking_order::admission::request::{self, Body};
use pecking_order::cluster::certificate_authority::{new_authority, new_leaf};
use serde::Deserialize;
use serde_json::{Value, json};

const CONNECTIONS: usize = 16;
const REQUESTS: usize = 40_000;
/// Clock ticks of /proc are 10 ms.
const MICROSECONDS_PER_TICK: f64 = 10_000.0;

const CONSTANT: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2Fubm90YXRpb25zIiwidmFsdWUiOnsiY29udHJvbGxlci5rdWJlcm5ldGVzLmlvL3BvZC1kZWxldGlvbi1jb3N0IjoiMTIwIiwicGVja2luZy1vcmRlci5kZXYvZGVsZXRpb24tY29zdCI6IjEyMCJ9fV0=","patchType":"JSONPatch"}}"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    pecking_order::server::install_crypto_provider();
    let args: Vec<String> = std::env::args().collect();
    if let Some(position) = args.iter().position(|arg| arg == "--floor") {
        return floor(&args[position + 1]).await;
    }
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reviews/world");
    let server = Server::start(Path::new(env!("CARGO_BIN_EXE_pecking-order")), &world)?;
    println!("idle memory of the server: {:.1} MB", server.memory_kib()? as f64 / 1024.0);

    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["body", "server", "reviews/s", "CPU per review", "beside reading the fields", "memory"]);
    for (name, body) in [("7 KB", review(3)), ("25 KB", review(12))] {
        let mut floor_cpu = 0.0;
        for kind in ["constant", "minimal", "pecking-order"] {
            let (url, authority, id, _floor) = match kind {
                "pecking-order" => (server.url("/mutate/pods?timeout=2s"), server.authority()?, server.id(), None),
                _ => {
                    let floor = Floor::start(kind)?;
                    (floor.url.clone(), floor.authority.clone(), floor.child.id(), Some(floor))
                }
            };
            let (rate, cpu) = load(&url, &authority, id, &body).await?;
            if kind == "minimal" {
                floor_cpu = cpu;
            }
            let beside = if kind == "constant" { String::new() } else { format!("{:.2} x", cpu / floor_cpu) };
            let memory = format!("{:.1} MB", memory_kib(id)? as f64 / 1024.0);
            table.add_row([name.to_owned(), kind.into(), format!("{rate:.0}"), format!("{cpu:.1} µs"), beside, memory]);
        }
    }
    println!("\n{table}");
    Ok(())
}

/// A pod UPDATE with both objects, about twice `annotations` times 1 KB and the pod itself.
fn review(annotations: usize) -> Vec<u8> {
    let mut map: serde_json::Map<String, Value> =
        (0..annotations).map(|i| (format!("example.com/note-{i}"), json!("n".repeat(900)))).collect();
    map.insert("pecking-order.dev/deletion-cost".into(), json!("10"));
    map.insert("controller.kubernetes.io/pod-deletion-cost".into(), json!("10"));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-b", "namespace": "shop", "uid": "uid-web-b", "labels": {"app": "web"},
        "annotations": map, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7c9d", "uid": "rs-web", "controller": true}]},
        "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "web", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "name": "web-b", "namespace": "shop", "operation": "UPDATE",
        "userInfo": {"username": "someone"}, "object": pod, "oldObject": pod, "dryRun": false}})
    .to_string()
    .into_bytes()
}

/// Reviews per second, and CPU time per review in microseconds.
async fn load(url: &str, authority: &[u8], id: u32, body: &[u8]) -> anyhow::Result<(f64, f64)> {
    let body = Bytes::copy_from_slice(body);
    let client = reqwest::Client::builder().tls_certs_only(reqwest::Certificate::from_pem_bundle(authority)?).build()?;
    let send = async |count: usize| {
        let one = || async {
            for _ in 0..count / CONNECTIONS {
                let answer = client.post(url).body(body.clone()).send().await?.error_for_status()?.bytes().await?;
                anyhow::ensure!(answer.windows(9).any(|window| window == b"patchType"), "an answer without a patch");
            }
            Ok(())
        };
        try_join_all((0..CONNECTIONS).map(|_| one())).await
    };
    send(CONNECTIONS * 100).await?;
    let (before, start) = (cpu_ticks(id)?, Instant::now());
    send(REQUESTS).await?;
    let ticks = (cpu_ticks(id)? - before) as f64;
    Ok((REQUESTS as f64 / start.elapsed().as_secs_f64(), ticks * MICROSECONDS_PER_TICK / REQUESTS as f64))
}

/// A floor: another process of this program.
struct Floor {
    child: Child,
    url: String,
    authority: Vec<u8>,
}

impl Floor {
    fn start(kind: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?).args(["--floor", kind]).stdout(Stdio::piped()).spawn()?;
        let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line)?;
        let (port, authority): (u16, String) = serde_json::from_str(&line)?;
        Ok(Self { child, url: format!("https://localhost:{port}/"), authority: authority.into_bytes() })
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn floor(kind: &str) -> anyhow::Result<()> {
    let authority = new_authority()?;
    let leaf = new_leaf(&authority, &["localhost".into()])?;
    let config = RustlsConfig::from_pem(leaf.certificate.into_bytes(), leaf.key.into_bytes()).await?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    println!("{}", serde_json::to_string(&(listener.local_addr()?.port(), authority.certificate))?);
    let app = match kind {
        "constant" => Router::new().route("/", post(|_: Bytes| async { CONSTANT })),
        _ => Router::new().route("/", post(|body: Bytes| async move { if read(&body) { CONSTANT } else { "" } })),
    };
    let acceptor = RustlsAcceptor::new(config).acceptor(NoDelayAcceptor::new());
    axum_server::from_tcp(listener)?.acceptor(acceptor).http1_only().serve(app.into_make_service()).await?;
    Ok(())
}

/// Reads the fields that the pod hook reads.
fn read(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Pod {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        uid: String,
        labels: std::collections::BTreeMap<String, String>,
        annotations: std::collections::BTreeMap<String, String>,
        owner_references: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference>,
    }
    let Body::Request(request) = request::read(body) else { return false };
    let Some(pod) = request.object.and_then(|object| serde_json::from_str::<Pod>(object.get()).ok()) else { return false };
    !pod.metadata.uid.is_empty()
        && !pod.metadata.labels.is_empty()
        && !pod.metadata.annotations.is_empty()
        && !pod.metadata.owner_references.is_empty()
}
