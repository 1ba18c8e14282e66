//! A real Prometheus, and a small exporter that says what a test wants its pods to be doing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::plane::free_ports;
use crate::process::Process;
use crate::wait_for;

/// A series of a namespace.
#[derive(Clone)]
struct Series {
    /// Name and labels, as they are exposed.
    key: String,
    value: f64,
    /// How much the value grows each second, as counters do.
    per_second: f64,
}

/// Serves `work{namespace, pod}` to Prometheus, and whatever else a test exposes.
#[derive(Clone)]
pub struct Exporter {
    port: u16,
    started: Instant,
    by_namespace: Arc<Mutex<BTreeMap<String, Vec<Series>>>>,
}

impl Exporter {
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let exporter = Self { port: listener.local_addr()?.port(), started: Instant::now(), by_namespace: Arc::default() };
        let serving = exporter.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A scrape that breaks off is made again a second later.
                let _ = serving.answer(stream);
            }
        });
        Ok(exporter)
    }

    /// Replaces what the pods of a namespace are doing.
    pub fn set(&self, namespace: &str, work: impl IntoIterator<Item = (String, f64)>) {
        self.expose(
            namespace,
            work.into_iter().map(|(pod, value)| (format!("work{{namespace=\"{namespace}\",pod=\"{pod}\"}}"), value, 0.0)),
        );
    }

    /// Replaces the series of a namespace: name and labels, the value, and how much it grows each second.
    pub fn expose(&self, namespace: &str, series: impl IntoIterator<Item = (String, f64, f64)>) {
        let series = series.into_iter().map(|(key, value, per_second)| Series { key, value, per_second }).collect();
        self.by_namespace.lock().unwrap_or_else(|e| e.into_inner()).insert(namespace.into(), series);
    }

    fn answer(&self, mut stream: std::net::TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let _ = stream.read(&mut [0; 4096])?;
        let mut body = String::new();
        let seconds = self.started.elapsed().as_secs_f64();
        for Series { key, value, per_second } in self.by_namespace.lock().unwrap_or_else(|e| e.into_inner()).values().flatten() {
            let _ = writeln!(body, "{key} {}", value + per_second * seconds);
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())
    }
}

pub struct Prometheus {
    process: Process,
    program: PathBuf,
    directory: PathBuf,
    port: u16,
    pub url: String,
}

impl Prometheus {
    /// Scrapes the exporter every second. `web` is its web configuration (users and their passwords), as YAML.
    pub fn start(program: &Path, directory: &Path, exporter: &Exporter, web: &str) -> anyhow::Result<Self> {
        let [port] = free_ports()?;
        let target = exporter.port;
        std::fs::create_dir_all(directory)?;
        std::fs::write(
            directory.join("prometheus.yaml"),
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
                 scrape_configs: [{{job_name: pods, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
            ),
        )?;
        std::fs::write(directory.join("web.yaml"), web)?;
        let process = run(program, directory, port)?;
        Ok(Self { process, program: program.into(), directory: directory.into(), port, url: format!("http://127.0.0.1:{port}") })
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// On the same port, with what it had stored.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = run(&self.program, &self.directory, self.port)?;
        Ok(())
    }
}

fn run(program: &Path, directory: &Path, port: u16) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", directory.join("prometheus.yaml").display()))
        .arg(format!("--web.config.file={}", directory.join("web.yaml").display()))
        .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let process = Process::start("prometheus", &mut command, directory)?;
    wait_for("Prometheus", Duration::from_secs(30), || std::net::TcpStream::connect(("127.0.0.1", port)).ok())?;
    Ok(process)
}
