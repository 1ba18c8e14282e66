//! The product, installed as shipped: the manifests as they are, but for the address of the webhook, which runs beside the
//! control plane rather than in it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::plane::{ControlPlane, free_ports};
use crate::process::Process;
use crate::wait_for;

pub struct Installation {
    replicas: Vec<Replica>,
}

struct Replica {
    name: String,
    program: Program,
    process: Process,
    port: u16,
    health_port: u16,
}

impl Installation {
    /// Applies `manifests/install.yaml` and starts two replicas of `binary`, with `backends` (YAML) in their configuration.
    /// The hooks that mutate call the first replica, those that validate the second.
    pub fn start(plane: &ControlPlane, binary: &Path, manifest: &Path, backends: &str) -> anyhow::Result<Self> {
        let mut installation = Self { replicas: vec![] };
        let ports: [u16; 4] = free_ports()?;
        let admin = plane.admin()?;
        // The ServiceAccount's rights come with the manifests, so they are applied before the replicas start.
        admin.apply(&manifests(manifest, ports[0], ports[2])?)?;
        admin.run(&["wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/name=pecking-order", "--timeout=60s"])?;
        for (index, pair) in ports.chunks(2).enumerate() {
            installation.replicas.push(Replica::start(plane, binary, index, pair[0], pair[1], backends)?);
        }
        for replica in &mut installation.replicas {
            replica.wait_until_ready()?;
        }
        // Until the bundle is in place every call fails, and every hook lets that pass.
        wait_for("the caBundle in both configurations", Duration::from_secs(30), || {
            let configurations =
                ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"].map(|kind| admin.get(&[kind, "pecking-order"]));
            let hooks =
                configurations.iter().flatten().flat_map(|configuration| configuration["webhooks"].as_array().into_iter().flatten());
            hooks.clone().next().is_some().then_some(())?;
            hooks.into_iter().all(|hook| hook["clientConfig"]["caBundle"].is_string()).then_some(())
        })?;
        Ok(installation)
    }

    /// Kills all replicas, as a node failure would.
    pub fn kill_all(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.process.kill());
    }

    /// Kills the replica of this name, such as `pecking-order-0`.
    pub fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let replica = self.replicas.iter_mut().find(|replica| replica.name == name);
        replica.with_context(|| format!("no replica {name}"))?.process.kill();
        Ok(())
    }

    /// Starts a replica again that was killed, on the same ports, and waits until it is ready.
    pub fn start_again(&mut self, name: &str) -> anyhow::Result<()> {
        let replica = self.replicas.iter_mut().find(|replica| replica.name == name).with_context(|| format!("no replica {name}"))?;
        replica.process = replica.program.start(&replica.name)?;
        replica.wait_until_ready()
    }

    /// A counter, summed over the replicas. `series` is the name with its labels, as the replicas print it.
    pub fn metric(&self, series: &str) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for replica in &self.replicas {
            let text = http_get(replica.health_port, "/metrics")?;
            let lines = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            sum += lines.filter_map(|value| value.trim().parse::<f64>().ok()).sum::<f64>();
        }
        Ok(sum)
    }

    pub fn ports(&self) -> Vec<u16> {
        self.replicas.iter().map(|replica| replica.port).collect()
    }
}

/// What a replica is started from.
struct Program {
    binary: PathBuf,
    config: PathBuf,
    kubeconfig: PathBuf,
    directory: PathBuf,
}

impl Program {
    fn start(&self, name: &str) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--config").arg(&self.config);
        command.env("KUBECONFIG", &self.kubeconfig).env("POD_NAMESPACE", "pecking-order").env("POD_NAME", name);
        Process::start(name, &mut command, &self.directory)
    }
}

impl Replica {
    fn start(plane: &ControlPlane, binary: &Path, index: usize, port: u16, health_port: u16, backends: &str) -> anyhow::Result<Self> {
        let name = format!("pecking-order-{index}");
        let config: PathBuf = plane.directory().join(format!("{name}.yaml"));
        let text = format!(
            "listen: 127.0.0.1:{port}\nhealthListen: 127.0.0.1:{health_port}\n\
             certificates: {{selfManaged: {{names: ['127.0.0.1']}}}}\nbackends: {backends}\ndrainSeconds: 1\n"
        );
        std::fs::write(&config, text)?;
        let (kubeconfig, directory) = (plane.kubeconfig("webhook"), plane.directory().to_owned());
        let program = Program { binary: binary.to_owned(), config, kubeconfig, directory };
        Ok(Self { process: program.start(&name)?, name, program, port, health_port })
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let (process, port) = (&mut self.process, self.health_port);
        wait_for("a replica to be ready", Duration::from_secs(30), || match process.check() {
            Err(e) => Some(Err(e)),
            Ok(()) => http_get(port, "/readyz").ok().map(|_| Ok(())),
        })?
    }
}

/// The shipped manifests, with an address in place of the Service.
fn manifests(file: &Path, mutating: u16, validating: u16) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let mut hooks = 0;
    for document in &mut documents {
        let port = match document["kind"].as_str() {
            Some("MutatingWebhookConfiguration") => mutating,
            Some("ValidatingWebhookConfiguration") => validating,
            _ => continue,
        };
        for hook in document["webhooks"].as_array_mut().into_iter().flatten() {
            let path = hook["clientConfig"]["service"]["path"].as_str().context("a hook has a path")?;
            hook["clientConfig"] = json!({ "url": format!("https://127.0.0.1:{port}{path}") });
            hooks += 1;
        }
    }
    if hooks == 0 {
        bail!("{} has no hooks", file.display());
    }
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": documents }).to_string())
}

/// The body of a successful GET on this machine.
pub fn http_get(port: u16, path: &str) -> anyhow::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    anyhow::ensure!(head.split(' ').nth(1) == Some("200"), "{path}: {}", head.lines().next().unwrap_or_default());
    Ok(body.to_owned())
}
