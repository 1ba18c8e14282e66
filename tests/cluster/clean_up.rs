//! Leaving: what we wrote is taken away although no replica of ours runs any more.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::wait_for;

use super::floor::{hpa, minimum, with_floor};
use super::{COST, Cluster, MARK, Test, block_on, names, workload};

pub const TESTS: &[(&str, Test)] = &[("clean_up::takes_everything_away_without_a_replica", without_a_replica)];

fn without_a_replica(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "leaving";
    cluster.make_namespace(namespace)?;
    // Nothing measures any more by now, so it is the baseline that is held.
    let mut policy = with_floor(namespace, "HorizontalPodAutoscaler", "web", 300);
    policy["spec"]["floor"]["baseline"] = serde_json::json!(5);
    cluster.admin.apply(&policy.to_string())?;
    cluster.admin.apply(&workload("Deployment", namespace, 6).to_string())?;
    cluster.admin.apply(&hpa(namespace, 2, 20).to_string())?;
    block_on(async {
        let pods = names(&cluster.pods(namespace, 6).await?);
        wait_for("the floor", Duration::from_secs(60), || (minimum(cluster, namespace)? == 5).then_some(()))?;
        cluster.store_costs(namespace, pods.iter().map(|pod| (pod.clone(), 70))).await?;
        cluster.admin.run(&["annotate", "pod", &pods[0], "-n", namespace, "--overwrite", &format!("{COST}=7")])?;
        cluster.installation().as_mut().context("nothing is installed")?.kill_all();

        let of_ours = || {
            let pods = cluster.admin.list(&["pods", "-A"])?;
            let is_ours = |pod: &&serde_json::Value| {
                let annotations = &pod["metadata"]["annotations"];
                annotations[COST].is_string() && annotations[COST] == annotations[MARK]
            };
            anyhow::Ok(pods.iter().filter(is_ours).count())
        };
        let clean_up = |arguments: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_pecking-order"))
                .arg("clean-up")
                .args(arguments)
                .env("KUBECONFIG", cluster.kubeconfig("admin"))
                .output()?;
            let (text, errors) =
                (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
            ensure!(output.status.success(), "{text}{errors}");
            anyhow::Ok(text)
        };
        let before = of_ours()?;
        ensure!(before >= 5, "{before} costs of ours: this proves nothing");
        let text = clean_up(&["--dry-run"])?;
        ensure!(
            text.contains(&format!("{before} costs would be taken away")) && text.contains("leaving/web: a floor of 5 would"),
            "{text}"
        );
        ensure!(of_ours()? == before && minimum(cluster, namespace) == Some(5), "a dry run changed something");

        // A pod that waits for room, for which nobody is left to let it go.
        let gates = serde_json::json!([{"name": "pecking-order.dev/room"}, {"name": "example.com/other"}]);
        let waiting = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waiting", "namespace": namespace},
            "spec": {"schedulingGates": gates, "containers": [{"name": "main", "image": "app"}]}});
        cluster.admin.apply(&waiting.to_string())?;
        let dry = clean_up(&["--dry-run"])?;
        // Other tests may have left some too.
        ensure!(dry.contains(" pods wait for room and would be let go") && !dry.lines().any(|line| line.starts_with("0 pods")), "{dry}");
        let text = clean_up(&["--per-second", "1000"])?;
        let left = cluster.admin.get(&["pod", "waiting", "-n", namespace])?["spec"]["schedulingGates"].clone();
        ensure!(left == serde_json::json!([{"name": "example.com/other"}]), "only our gate goes: {left}");
        ensure!(
            text.contains(&format!("{before} costs were taken away")) && text.contains("leaving/web: a floor of 5 was let go"),
            "{text}"
        );
        ensure!(of_ours()? == 0 && minimum(cluster, namespace) == Some(2), "something is left");
        let foreign = cluster.admin.get(&["pod", &pods[0], "-n", namespace])?;
        ensure!(foreign["metadata"]["annotations"][COST] == "7", "somebody else's value went");
        ensure!(clean_up(&[])?.contains("0 costs were taken away"), "a second time nothing is left to do");
        Ok(())
    })
}
