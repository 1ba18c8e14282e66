//! A real Prometheus, and a small exporter that says what a test wants its pods to be doing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::plane::{ControlPlane, free_ports};
use crate::process::Process;
use crate::wait_for;

/// Serves `work{namespace, pod}` to Prometheus.
#[derive(Clone)]
pub struct Exporter {
    port: u16,
    work: Arc<Mutex<BTreeMap<(String, String), f64>>>,
}

impl Exporter {
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let exporter = Self { port: listener.local_addr()?.port(), work: Arc::default() };
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
        let mut all = self.work.lock().unwrap_or_else(|e| e.into_inner());
        all.retain(|(other, _), _| other != namespace);
        all.extend(work.into_iter().map(|(pod, value)| ((namespace.to_owned(), pod), value)));
    }

    fn answer(&self, mut stream: std::net::TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let _ = stream.read(&mut [0; 4096])?;
        let mut body = String::from("# TYPE work gauge\n");
        for ((namespace, pod), value) in self.work.lock().unwrap_or_else(|e| e.into_inner()).iter() {
            let _ = writeln!(body, "work{{namespace=\"{namespace}\",pod=\"{pod}\"}} {value}");
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
    pub url: String,
}

impl Prometheus {
    /// Scrapes the exporter every second.
    pub fn start(plane: &ControlPlane, exporter: &Exporter) -> anyhow::Result<Self> {
        let [port] = free_ports()?;
        let config = plane.directory().join("prometheus.yaml");
        let target = exporter.port;
        std::fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
                 scrape_configs: [{{job_name: pods, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
            ),
        )?;
        let mut command = Command::new(plane.parts.program("prometheus")?);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", plane.directory().join("prometheus").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::start("prometheus", &mut command, plane.directory())?;
        let url = format!("http://127.0.0.1:{port}");
        wait_for("Prometheus", Duration::from_secs(30), || std::net::TcpStream::connect(("127.0.0.1", port)).ok())?;
        Ok(Self { process, url })
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }
}
