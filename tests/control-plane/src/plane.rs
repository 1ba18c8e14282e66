//! One control plane: started on free ports, with nodes that kwok plays, and stopped when it is dropped.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::kubectl::Kubectl;
use crate::parts::Parts;
use crate::process::Process;
use crate::wait_for;

/// The controller manager, the scheduler and kwok.
const CONTROLLERS: &str = "controllers";

/// Who may log in, by token: an administrator, the controllers, an ordinary user, and the ServiceAccount that the shipped manifests make.
const USERS: [(&str, &str, &str); 4] = [
    ("admin", "admin", "system:masters"),
    (CONTROLLERS, "controllers", "system:masters"),
    ("ordinary", "ordinary", "system:authenticated"),
    ("webhook", "system:serviceaccount:pecking-order:pecking-order", "system:serviceaccounts,system:serviceaccounts:pecking-order"),
];

const NODES: usize = 4;
const START_LIMIT: Duration = Duration::from_secs(60);

pub struct ControlPlane {
    pub parts: Parts,
    directory: tempfile::TempDir,
    /// In the order in which they are stopped.
    processes: Mutex<Vec<Process>>,
    /// The API servers; the controllers stand at the last one, everybody else at the first.
    servers: Vec<String>,
}

impl ControlPlane {
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(1)
    }

    /// Several API servers on one etcd: what one has written, another shows a little later.
    pub fn start_with(api_servers: usize) -> anyhow::Result<Self> {
        let parts = Parts::ensure()?;
        let directory = tempfile::Builder::new().prefix("control-plane-").tempdir()?;
        let mut plane = Self { parts, directory, processes: Mutex::default(), servers: vec![] };
        plane.start_all(api_servers)?;
        Ok(plane)
    }

    /// A directory for whatever belongs to this control plane; it goes with it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn admin(&self) -> anyhow::Result<Kubectl> {
        self.kubectl("admin")
    }

    pub fn kubectl(&self, user: &str) -> anyhow::Result<Kubectl> {
        Ok(Kubectl { program: self.parts.program("kubectl")?, kubeconfig: self.kubeconfig(user) })
    }

    /// A client of the administrator, for what would take kubectl too long.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig("admin"))?;
        Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
    }

    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.path(&format!("{user}.kubeconfig"))
    }

    /// Copies all logs to a directory that outlives the control plane, for a failed test.
    pub fn keep_logs(&self, directory: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(directory)?;
        for entry in std::fs::read_dir(self.directory.path())? {
            let file = entry?.path();
            if let Some(name) = file.file_name().filter(|_| file.extension().is_some_and(|extension| extension == "log")) {
                std::fs::copy(&file, directory.join(name))?;
            }
        }
        Ok(())
    }

    /// Stops every process.
    pub fn stop(&self) {
        self.processes().clear();
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, name: &str, program: &str, args: &[String]) -> anyhow::Result<()> {
        let mut command = Command::new(self.parts.program(program)?);
        let process = Process::start(name, command.args(args), self.directory.path())?;
        self.processes().insert(0, process);
        Ok(())
    }

    fn start_all(&mut self, api_servers: usize) -> anyhow::Result<()> {
        let [etcd, peer] = free_ports()?;
        let ports: Vec<u16> = (0..api_servers.max(1)).map(|_| free_ports().map(|[port]| port)).collect::<Result<_, _>>()?;
        self.servers = ports.iter().map(|port| format!("https://127.0.0.1:{port}")).collect();
        self.write_credentials()?;
        let path = |name: &str| self.path(name).display().to_string();
        let etcd_args = [
            format!("--data-dir={}", path("etcd")),
            format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
            format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
            "--unsafe-no-fsync".into(),
        ];
        let api_args = |port: u16| {
            [
                format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                "--endpoint-reconciler-type=none".into(),
                format!("--cert-dir={}", path(&format!("api-{port}"))),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-signing-key-file={}", path("accounts.key")),
                format!("--service-account-key-file={}", path("accounts.pub")),
                "--service-cluster-ip-range=10.0.0.0/24".into(),
                "--authorization-mode=RBAC".into(),
                format!("--token-auth-file={}", path("tokens.csv")),
                // No controller makes tokens for pods that kwok only pretends to run.
                "--disable-admission-plugins=ServiceAccount".into(),
            ]
        };
        let admin = self.kubeconfig(CONTROLLERS).display().to_string();
        let manager_args = [
            format!("--kubeconfig={admin}"),
            "--controllers=*,-node-ipam-controller".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--horizontal-pod-autoscaler-sync-period=1s".into(),
            "--horizontal-pod-autoscaler-downscale-stabilization=1s".into(),
            // The defaults throttle a test that replaces hundreds of pods a minute.
            "--kube-api-qps=500".into(),
            "--kube-api-burst=1000".into(),
        ];
        let scheduler_args = [
            format!("--kubeconfig={admin}"),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=500".into(),
            "--kube-api-burst=1000".into(),
        ];
        let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("stages");
        let kwok_args = [
            format!("--kubeconfig={admin}"),
            "--manage-all-nodes=true".into(),
            "--node-lease-duration-seconds=40".into(),
            format!("--config={}", stages.join("node.yaml").display()),
            format!("--config={}", stages.join("pod.yaml").display()),
        ];
        self.run("etcd", "server", &etcd_args)?;
        for (n, port) in ports.into_iter().enumerate() {
            let name = if n == 0 { "kube-apiserver".to_owned() } else { format!("kube-apiserver-{}", n + 1) };
            self.run(&name, "kube-apiserver", &api_args(port))?;
        }
        self.wait_until_ready()?;
        self.run("kube-controller-manager", "kube-controller-manager", &manager_args)?;
        self.run("kube-scheduler", "kube-scheduler", &scheduler_args)?;
        self.run("kwok", "kwok", &kwok_args)?;
        self.make_nodes()
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let all = [self.admin()?, self.kubectl(CONTROLLERS)?];
        let mut processes = self.processes();
        wait_for("the API servers", START_LIMIT, || {
            if let Some(e) = processes.iter_mut().find_map(|process| process.check().err()) {
                return Some(Err(e));
            }
            all.iter().all(|server| server.run(&["get", "--raw", "/readyz"]).is_ok()).then_some(Ok(()))
        })?
    }

    fn make_nodes(&self) -> anyhow::Result<()> {
        let admin = self.admin()?;
        let nodes: String = (1..=NODES).fold(String::new(), |mut text, n| {
            let labels = format!("{{kubernetes.io/hostname: node-{n}, topology.kubernetes.io/zone: zone-{}}}", n % 2);
            let _ = writeln!(text, "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-{n}, labels: {labels}}}");
            text
        });
        admin.apply(&nodes)?;
        admin.run(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"])?;
        Ok(())
    }

    fn write_credentials(&self) -> anyhow::Result<()> {
        let key = rcgen::KeyPair::generate()?;
        std::fs::write(self.path("accounts.key"), key.serialize_pem())?;
        std::fs::write(self.path("accounts.pub"), key.public_key_pem())?;
        let tokens: String = USERS.iter().map(|(token, user, groups)| format!("{token}-token,{user},{user},\"{groups}\"\n")).collect();
        std::fs::write(self.path("tokens.csv"), tokens)?;
        let (first, last) = (self.servers.first(), self.servers.last());
        let server = |user: &str| if user == CONTROLLERS { last } else { first }.map(String::as_str).unwrap_or_default();
        for (user, ..) in USERS {
            let config = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
                 clusters: [{{name: test, cluster: {{server: '{}', insecure-skip-tls-verify: true}}}}]\n\
                 users: [{{name: test, user: {{token: {user}-token}}}}]\n\
                 contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
                server(user)
            );
            std::fs::write(self.kubeconfig(user), config)?;
        }
        Ok(())
    }
}

/// Ports that nobody listens on now.
pub fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let listeners: Vec<TcpListener> = (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect::<Result<_, _>>()?;
    ports.try_into().ok().context("as many ports as were asked for")
}
