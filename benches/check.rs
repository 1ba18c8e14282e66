//! `pecking-order check` over two thousand manifests: how long one run takes, and how much memory.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use control_plane::process::peak_memory_kib;

const MANIFESTS: usize = 2000;
const PER_FILE: usize = 10;

fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let pool = "apiVersion: pecking-order.dev/v1alpha1\nkind: HeadroomPool\nmetadata: {name: general}\nspec:\n  placeholders: {priorityClassNames: [room]}\n";
    std::fs::write(directory.path().join("pool.yaml"), pool)?;
    for file in 0..MANIFESTS / PER_FILE {
        let mut text = String::new();
        for n in 0..PER_FILE {
            // One in four is a placeholder, and one in eight a bad one.
            let class = if n % 4 == 0 { "system-node-critical" } else { "web" };
            let _ = write!(
                text,
                "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d-{file}-{n}\n  namespace: shop\n  labels: {{app: d, pecking-order.dev/headroom: {}}}\n\
                 spec:\n  replicas: 2\n  selector:\n    matchLabels: {{app: d}}\n  template:\n    metadata:\n      labels: {{app: d}}\n    spec:\n      \
                 priorityClassName: {class}\n      terminationGracePeriodSeconds: {}\n      containers:\n        - name: main\n          image: registry.example/app:1\n          \
                 env:\n            - {{name: A, value: b}}\n            - {{name: C, value: d}}\n          resources:\n            requests: {{cpu: 500m, memory: 512Mi}}\n            \
                 limits: {{memory: 1Gi}}\n          readinessProbe:\n            httpGet: {{path: /ready, port: 8080}}\n",
                if n % 4 == 0 { "general" } else { "\"\"" },
                n % 2 * 30
            );
        }
        std::fs::write(directory.path().join(format!("{file}.yaml")), text)?;
    }
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_pecking-order")).arg("check").arg(directory.path()).stdout(Stdio::null()).spawn()?;
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        peak = peak_memory_kib(child.id()).unwrap_or(peak);
        std::thread::sleep(Duration::from_millis(2));
    }
    println!(
        "\n{MANIFESTS} manifests in {} files: {:.2} s, {} MB at the peak",
        MANIFESTS / PER_FILE,
        start.elapsed().as_secs_f64(),
        peak / 1024
    );
    Ok(())
}
