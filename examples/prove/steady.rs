//! Ten minutes in which nothing happens but noise: without refresh nothing is written; with it, no more than the budget.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use control_plane::{Installation, Workbench};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Pods of each of the two namespaces.
const PODS: usize = 300;
/// How long, and how often the work changes.
const TIME: Duration = Duration::from_secs(600);
const NOISE: Duration = Duration::from_secs(15);
/// By how much at most, of a hundred.
const PERCENT: usize = 3;

const OFF: &str = "steady";
const ON: &str = "steady-refresh";

/// The budget of a policy, by default (`writes.policy` of the server configuration), of which refreshes leave half of the burst.
const PER_SECOND: u64 = 50;
const BURST: u64 = 500;

pub struct Steady {
    polls: usize,
    /// Pods that are not as they were.
    changed: usize,
    took: Duration,
}

pub async fn prove(workbench: Workbench) -> anyhow::Result<Steady> {
    let policy =
        |refresh: u32| json!({"resolution": 10, "maxCost": 1000, "write": {"refresh": {"everySeconds": refresh, "minChange": 10}}});
    workbench.set_up("Deployment", OFF, policy(0), PODS).await?;
    workbench.set_up("Deployment", ON, policy(5), PODS).await?;
    let mut all = BTreeMap::new();
    for namespace in [OFF, ON] {
        all.insert(namespace, workbench.names(namespace, PODS).await?);
    }
    // Some at work and some idle, and noise on those that work.
    let noisy = |n: usize, round: usize| {
        let (work, swing) = (n % 10 * 100, (n * 31 + round * 17) % (2 * PERCENT + 1));
        work + work * swing / 100 - work * PERCENT / 100
    };
    let make_noise = |round: usize| {
        for (namespace, pods) in &all {
            let work = pods.iter().enumerate().map(|(n, pod)| (pod.clone(), noisy(n, round) as f64));
            workbench.exporter.set(namespace, work);
        }
    };
    make_noise(0);
    sleep(Duration::from_secs(5)).await;
    let versions = async || -> anyhow::Result<BTreeMap<String, Option<String>>> {
        Ok(workbench.pods(OFF, PODS).await?.iter().map(|pod| (pod.name_any(), pod.resource_version())).collect())
    };
    let (before, start, mut round) = (versions().await?, Instant::now(), 0);
    while start.elapsed() < TIME {
        round += 1;
        make_noise(round);
        sleep(NOISE).await;
    }
    let after = versions().await?;
    let changed = before.iter().filter(|(pod, version)| after.get(*pod) != Some(version)).count();
    Ok(Steady { polls: round, changed, took: start.elapsed() })
}

impl Steady {
    pub fn report(&self, installation: &Installation) -> anyhow::Result<String> {
        let refreshed = installation.metric(r#"pecking_order_own_account_writes_total{result="written"}"#)? as u64;
        let budget = PER_SECOND * self.took.as_secs() + BURST;
        ensure!(self.changed == 0, "{} of {PODS} pods were written in a steady state", self.changed);
        ensure!(refreshed <= budget, "{refreshed} refreshes, wanted {budget} at the most");
        Ok(format!(
            "Steady state: {PODS} pods, {} rounds of noise of {PERCENT} % in {} s: {} pods written without refresh; with it {refreshed} writes, of {budget} that the budget allows",
            self.polls,
            self.took.as_secs(),
            self.changed
        ))
    }
}
