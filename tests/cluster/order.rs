//! `pecking-order order` against the cluster: what it foretells is what happens.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Cluster, MEASURED, Test, block_on, names};

pub const TESTS: &[(&str, Test)] =
    &[("order::foretells_who_goes", foretells_who_goes), ("order::says_what_it_may_not_read", says_what_it_may_not_read)];

fn order(cluster: &Cluster, user: &str, args: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pecking-order"));
    Ok(command.arg("order").args(args).env("KUBECONFIG", cluster.kubeconfig(user)).output()?)
}

fn foretells_who_goes(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "order";
    cluster.deploy(namespace, json!({"newPodSeconds": 0}), 6)?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 6).await?);
        // All different, so that no tie is left to clocks.
        cluster.exporter.set(namespace, pods.iter().enumerate().map(|(i, pod)| (pod.clone(), ((i * 5) % 6) as f64 * 20.0)));
        sleep(MEASURED).await;
        let config = std::env::temp_dir().join(format!("pecking-order-order-{}.yaml", std::process::id()));
        std::fs::write(&config, format!("backends: {}", cluster.backends()))?;
        let file = config.to_str().context("a path")?;
        let foretold = order(cluster, "admin", &["deployment/web", "-n", namespace, "--replicas", "2", "-o", "json", "--config", file])?;
        ensure!(foretold.status.success(), "{}", String::from_utf8_lossy(&foretold.stderr));
        let foretold: Value = serde_json::from_slice(&foretold.stdout)?;
        let rows = foretold[0].as_array().context("one ReplicaSet")?;
        let mut go: Vec<&str> = rows.iter().filter(|row| row["goes"] == true).filter_map(|row| row["pod"].as_str()).collect();
        ensure!(go.len() == 4 && rows[0]["signals"][0]["signal"] == "work", "{foretold}");

        sleep(Duration::from_millis(200)).await;
        cluster.admin.run(&["scale", "deployment/web", "-n", namespace, "--replicas=2"])?;
        let left = names(&cluster.pods(namespace, 2).await?);
        let mut gone: Vec<&str> = pods.iter().filter(|pod| !left.contains(pod)).map(String::as_str).collect();
        go.sort_unstable();
        gone.sort_unstable();
        ensure!(go == gone, "foretold {go:?}, but {gone:?} went");

        // Without a configuration nothing is measured: the order is that of the costs that stand there.
        let table = order(cluster, "admin", &["deployment/web", "-n", namespace, "-o", "wide"])?;
        ensure!(table.status.success() && String::from_utf8_lossy(&table.stdout).contains(&left[0]), "{table:?}");
        Ok(())
    })
}

fn says_what_it_may_not_read(cluster: &'static Cluster) -> anyhow::Result<()> {
    let refused = order(cluster, "ordinary", &["deployment/web", "-n", "default"])?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && said.contains("cannot list") && said.contains("forbidden"), "{said}");
    let unknown = order(cluster, "admin", &["deployment/absent", "-n", "default"])?;
    let said = String::from_utf8_lossy(&unknown.stderr);
    ensure!(said.contains("deployment/absent in namespace default: found no pods"), "{said}");
    let wrong = order(cluster, "admin", &["statefulset/web"])?;
    ensure!(
        String::from_utf8_lossy(&wrong.stderr)
            .contains("wanted deployment/NAME, replicaset/NAME, rollout/NAME or replicationcontroller/NAME"),
        "{wrong:?}"
    );
    Ok(())
}
