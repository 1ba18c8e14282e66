//! A server without a cluster, for tests of the wire: its own directory, free ports, stopped when it is dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control_plane::installation::http_get;
use control_plane::plane::free_ports;
use serde_json::Value;

pub struct Server {
    child: Child,
    pub port: u16,
    pub health_port: u16,
    directory: tempfile::TempDir,
}

impl Server {
    /// Serves the world in `tests/reviews/world`, once its first poll is done.
    pub fn start() -> Self {
        let [port, health_port] = free_ports().unwrap();
        let directory = tempfile::tempdir().unwrap();
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reviews/world"), directory.path());
        let config = format!(
            "listen: 127.0.0.1:{port}\nhealthListen: 127.0.0.1:{health_port}\ncertificates: {{ephemeral: {{caFile: ca.crt}}}}\n\
             backends: {{default: {{file: {{path: samples.yaml}}}}}}\ndrainSeconds: 1\n"
        );
        std::fs::write(directory.path().join("server.yaml"), config).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_pecking-order"))
            .args(["serve", "--standalone"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self { child, port, health_port, directory };
        let start = Instant::now();
        while server.metric("pecking_order_polls_total{backend=\"default\",result=\"ok\"}") < 1.0 {
            assert!(start.elapsed() < Duration::from_secs(20), "the server does not start:\n{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// A client that trusts the server's authority and no other.
    pub fn client(&self) -> reqwest::Client {
        pecking_order::server::install_crypto_provider();
        let ca = std::fs::read(self.ca_file()).unwrap();
        reqwest::Client::builder().tls_certs_only(reqwest::Certificate::from_pem_bundle(&ca).unwrap()).build().unwrap()
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }

    /// The value of a series; 0 where there is none.
    pub fn metric(&self, series: &str) -> f64 {
        let text = http_get(self.health_port, "/metrics").unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap_or(0.0)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub fn terminate(&self) {
        assert!(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap().success());
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Resident memory, in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { std::fs::copy(&path, &target).map(|_| ()).unwrap() }
    }
}

/// A whole AdmissionReview around a request.
pub fn review(request: &Value) -> Value {
    serde_json::json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
}
