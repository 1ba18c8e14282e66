//! The product on a real control plane: one control plane for all tests, a namespace of its own for each.
//!
//! There are three phases. Before anything is installed, a control run shows what Kubernetes does by itself. Then the
//! shipped manifests are applied and two replicas run. At the end things are taken away.

mod certificates;
mod clean_up;
mod connections;
mod costs;
mod doors;
mod equivalence;
mod floor;
mod gitlab;
mod headroom;
mod leadership;
mod order;
mod outage;
mod own_account;
mod plan;
mod policies;
mod requests;
mod room;
mod runners;
mod scale_downs;
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use control_plane::workbench;
pub use control_plane::workbench::{COST, MARK, is_ready};
use control_plane::{ControlPlane, Exporter, Installation, Kubectl, Prometheus};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use libtest_mimic::{Arguments, Conclusion, Trial};
use serde_json::{Value, json};

/// Long enough for a scrape (1 s) and a poll of either replica (1 s), on a busy machine.
pub const MEASURED: Duration = Duration::from_millis(2600);

/// Tests mostly wait; more of them than cores run at once.
const THREADS: usize = 8;

pub struct Cluster {
    plane: ControlPlane,
    pub admin: Kubectl,
    pub exporter: Exporter,
    prometheus: Mutex<Prometheus>,
    installation: Mutex<Option<Installation>>,
}

/// The themes that need nothing but the installation; the longest tests first.
const INSTALLED: [&[(&str, Test)]; 15] = [
    scale_downs::TESTS,
    runners::TESTS,
    plan::TESTS,
    gitlab::TESTS,
    room::TESTS,
    floor::TESTS,
    equivalence::TESTS,
    connections::TESTS,
    costs::TESTS,
    headroom::TESTS,
    order::TESTS,
    own_account::TESTS,
    policies::TESTS,
    requests::TESTS,
    status::TESTS,
];

/// The themes that take something away, in this order.
const TAKEN_AWAY: [&[(&str, Test)]; 6] =
    [doors::TESTS, certificates::TESTS, outage::OF_PROMETHEUS, leadership::TESTS, clean_up::TESTS, outage::OF_REPLICAS];

pub type Test = fn(&'static Cluster) -> anyhow::Result<()>;

fn main() -> ExitCode {
    pecking_order::server::install_crypto_provider();
    let mut args = Arguments::from_args();
    if args.list {
        return run(&args, None, [scale_downs::BEFORE, &INSTALLED.concat(), &TAKEN_AWAY.concat()].concat()).exit_code();
    }
    args.test_threads = Some(args.test_threads.unwrap_or(THREADS));
    // Lives as long as the process; its processes are stopped below, whatever comes of the tests.
    let cluster: &'static Cluster = match Cluster::start() {
        Ok(cluster) => Box::leak(Box::new(cluster)),
        Err(e) => {
            eprintln!("the control plane does not start: {e:#}");
            return ExitCode::FAILURE;
        }
    };
    let passed = run(&args, Some(cluster), scale_downs::BEFORE.to_vec()).num_failed == 0
        && installed(cluster)
        && run(&args, Some(cluster), INSTALLED.concat()).num_failed == 0
        && {
            // One after the other: each takes something away for good.
            args.test_threads = Some(1);
            run(&args, Some(cluster), TAKEN_AWAY.concat()).num_failed == 0
        };
    if !passed {
        let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster-logs");
        match cluster.plane.keep_logs(&logs) {
            Ok(()) => eprintln!("the logs of every process are in {}", logs.display()),
            Err(e) => eprintln!("the logs could not be kept: {e:#}"),
        }
    }
    cluster.stop();
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(args: &Arguments, cluster: Option<&'static Cluster>, tests: Vec<(&'static str, Test)>) -> Conclusion {
    let trial = |(name, test): (&'static str, Test)| {
        Trial::test(name, move || {
            let cluster = cluster.context("tests are only listed").map_err(|e| format!("{e:#}"))?;
            test(cluster).map_err(|e| format!("{e:#}").into())
        })
    };
    libtest_mimic::run(args, tests.into_iter().map(trial).collect())
}

fn installed(cluster: &Cluster) -> bool {
    match cluster.install() {
        Ok(()) => true,
        Err(e) => {
            eprintln!("the installation failed: {e:#}");
            false
        }
    }
}

impl Cluster {
    fn start() -> anyhow::Result<Self> {
        let plane = ControlPlane::start()?;
        let exporter = Exporter::start()?;
        let prometheus =
            Mutex::new(Prometheus::start(&plane.parts.program("prometheus")?, &plane.directory().join("prometheus"), &exporter, "")?);
        Ok(Self { admin: plane.admin()?, plane, exporter, prometheus, installation: Mutex::new(None) })
    }

    fn install(&self) -> anyhow::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let installation = Installation::start(
            &self.plane,
            Path::new(env!("CARGO_BIN_EXE_pecking-order")),
            &root.join("manifests/install.yaml"),
            // The leader scans as often as it may.
            &format!("{}\nscan: {{everySeconds: 10}}", self.backends()),
        )?;
        *lock(&self.installation) = Some(installation);
        Ok(())
    }

    fn stop(&self) {
        lock(&self.installation).take();
        lock(&self.prometheus).kill();
        self.plane.stop();
    }

    pub fn installation(&self) -> MutexGuard<'_, Option<Installation>> {
        lock(&self.installation)
    }

    pub fn prometheus(&self) -> MutexGuard<'_, Prometheus> {
        lock(&self.prometheus)
    }

    pub fn metric(&self, series: &str) -> anyhow::Result<f64> {
        self.installation().as_ref().context("nothing is installed")?.metric(series)
    }

    /// The backends of the server configuration, as YAML.
    pub fn backends(&self) -> String {
        // Nothing listens on the discard port.
        format!(
            "{{usage: {{podMetrics: {{}}}}, nobody: {{http: {{url: 'http://127.0.0.1:9'}}}}, default: {{prometheus: {{url: '{}', timeoutSeconds: 5}}}}}}",
            lock(&self.prometheus).url
        )
    }

    /// `ordinary` is authenticated, and has no rights of its own.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.plane.kubeconfig(user)
    }

    /// A directory that goes with the control plane.
    pub fn directory(&self) -> &Path {
        self.plane.directory()
    }

    pub fn make_namespace(&self, name: &str) -> anyhow::Result<()> {
        self.admin.run(&["create", "namespace", name]).map(|_| ())
    }

    /// A namespace with a policy and a Deployment of so many pods that it governs. `change` replaces fields of the policy's spec.
    pub fn deploy(&self, namespace: &str, change: Value, replicas: usize) -> anyhow::Result<()> {
        self.make_namespace(namespace)?;
        self.admin.apply(&policy(namespace, change).to_string())?;
        self.admin.apply(&workload("Deployment", namespace, replicas).to_string()).map(|_| ())
    }

    /// A client of the administrator, for what would take kubectl too long.
    pub async fn client(&self) -> anyhow::Result<Client> {
        self.plane.client().await
    }

    /// Waits until the workload has so many pods that are Ready and not on their way out.
    pub async fn pods(&self, namespace: &str, count: usize) -> anyhow::Result<Vec<Pod>> {
        workbench::wait_for_pods(&self.client().await?, namespace, count, Duration::from_secs(60)).await
    }

    /// Writes costs with our mark, as an earlier run of ours would have.
    pub async fn store_costs(&self, namespace: &str, costs: impl IntoIterator<Item = (String, i64)>) -> anyhow::Result<()> {
        workbench::store_costs(&self.client().await?, namespace, costs.into_iter().map(|(pod, cost)| (pod, Some(cost)))).await
    }

    /// Defines a kind as another project does, with whatever fields. Its controller, if it needs one, is played by the test.
    pub fn define_kind(
        &self,
        (group, version): (&str, &str),
        (kind, plural): (&str, &str),
        scope: &str,
        subresources: Value,
    ) -> anyhow::Result<()> {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let served = json!({"name": version, "served": true, "storage": true, "schema": schema, "subresources": subresources});
        let name = format!("{plural}.{group}");
        // Kubernetes' own groups ask who approved of the kind.
        let metadata = json!({"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}});
        let names = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
        let spec = json!({"group": group, "scope": scope, "names": names, "versions": [served]});
        let definition =
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec});
        self.admin.apply(&definition.to_string())?;
        self.admin.run(&["wait", "--for=condition=Established", &format!("crd/{name}"), "--timeout=30s"]).map(|_| ())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

/// Runs an async test.
pub fn block_on<T>(test: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(test)
}

/// A Deployment, or another kind of the same shape, of pods with the label `app: web`.
pub fn workload(kind: &str, namespace: &str, replicas: usize) -> Value {
    workbench::workload(kind, "web", namespace, replicas, "1")
}

/// A policy for these pods: one point per unit of work, polled every second. `change` replaces fields of the spec.
pub fn policy(namespace: &str, change: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "pecking-order.dev/v1alpha1", "kind": "DeletionCostPolicy", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "pollSeconds": 1, "resolution": 1,
            "signals": [{"name": "work", "query": format!("sum by (pod) (work{{namespace=\"{namespace}\"}})"), "weight": 1, "cap": 1000}]}
    });
    if let (Some(spec), Value::Object(change)) = (policy["spec"].as_object_mut(), change) {
        spec.extend(change);
    }
    policy
}
