//! A server without a cluster, for tests of the wire: its own directory, free ports, stopped when it is dropped.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::installation::http_get;
use crate::plane::free_ports;
use crate::wait_for;

pub struct Server {
    child: Child,
    pub port: u16,
    pub health_port: u16,
    directory: tempfile::TempDir,
}

impl Server {
    /// Serves a copy of the directory `world` with the binary, once its first poll is done.
    pub fn start(binary: &Path, world: &Path) -> anyhow::Result<Self> {
        let [port, health_port] = free_ports()?;
        let directory = tempfile::tempdir()?;
        copy(world, directory.path())?;
        let config = format!(
            "listen: 127.0.0.1:{port}\nhealthListen: 127.0.0.1:{health_port}\ncertificates: {{ephemeral: {{caFile: ca.crt}}}}\n\
             backends: {{default: {{file: {{path: samples.yaml}}}}}}\ndrainSeconds: 1\n"
        );
        std::fs::write(directory.path().join("server.yaml"), config)?;
        let log = std::fs::File::create(directory.path().join("log"))?;
        let mut command = Command::new(binary);
        let child = command.args(["serve", "--standalone"]).arg(directory.path()).stdout(Stdio::null()).stderr(log).spawn();
        let mut server = Self { child: child.with_context(|| binary.display().to_string())?, port, health_port, directory };
        wait_for("the server's first poll", Duration::from_secs(20), || {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Some(Err(anyhow::anyhow!("the server ended with {status}:\n{}", server.log())));
            }
            (server.metric("pecking_order_polls_total{backend=\"default\",result=\"ok\"}") >= 1.0).then_some(Ok(()))
        })??;
        Ok(server)
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    /// What a client must trust.
    pub fn authority(&self) -> anyhow::Result<Vec<u8>> {
        Ok(std::fs::read(self.directory.path().join("ca.crt"))?)
    }

    /// The value of a series; 0 where there is none.
    pub fn metric(&self, series: &str) -> f64 {
        let text = http_get(self.health_port, "/metrics").unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap_or(0.0)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM.
    pub fn terminate(&self) -> anyhow::Result<()> {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        ensure!(status.success(), "kill failed: {status}");
        Ok(())
    }

    pub fn wait(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        Ok(self.child.wait()?)
    }

    pub fn memory_kib(&self) -> anyhow::Result<u64> {
        crate::process::memory_kib(self.child.id())
    }

    pub fn peak_memory_kib(&self) -> anyhow::Result<u64> {
        crate::process::peak_memory_kib(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only where the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().context("an entry has a name")?);
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            std::fs::copy(&path, &target)?;
        }
    }
    Ok(())
}
