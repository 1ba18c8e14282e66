//! A real control plane for tests and demonstrations, without a container engine.
//!
//! * [`parts`] builds etcd, Kubernetes, kwok and Prometheus once, into a cache outside of `target/`.
//! * [`plane`] starts them on free ports and stops what it started.
//! * [`kubectl`] speaks to the API server as a given user.
//! * [`prometheus`] measures what a test says its pods are doing.
//! * [`standalone`] runs the binary under test without a cluster.
//! * [`installation`] applies the shipped manifests and runs the binary under test beside the control plane.
//! * [`workbench`] is all of that at once, with workloads and scale-downs: for proofs and measurements.

pub mod installation;
pub mod kubectl;
pub mod parts;
pub mod plane;
pub mod process;
pub mod prometheus;
pub mod standalone;
pub mod workbench;

use std::time::{Duration, Instant};

pub use installation::Installation;
pub use kubectl::Kubectl;
pub use plane::{ControlPlane, free_ports};
pub use prometheus::{Exporter, Prometheus};
pub use standalone::Server;
pub use workbench::{Door, Site, Workbench};

/// Asks again every 50 ms until there is an answer; `what` is told where none came in time.
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        anyhow::ensure!(start.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
