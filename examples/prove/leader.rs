//! The leader, which also admits the scale-downs, killed in the middle of its writes: the scale-down goes through at once, no pod is left
//! with half of a cost, and the scale-down after it is right again.

use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::workbench::{COST, MARK};
use control_plane::{Door, Site, Workbench};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::round::{Before, Case, Tally, prepare, right, round};

const NAMESPACE: &str = "leader";
const CASE: Case = Case { door: Door::DeploymentScale, pods: 150, go: 60, before: Before::Reversed };

/// The replica that the validating hooks call, and the other one.
const ADMITS: &str = "pecking-order-1";
const OTHER: &str = "pecking-order-0";

/// When it dies, after the scale-down was asked for: 120 writes take some 300 ms.
const MOMENTS: [u64; 4] = [30, 100, 200, 300];

pub async fn prove(site: &mut Site, workbench: &Workbench) -> anyhow::Result<Vec<Tally>> {
    workbench.set_up("Deployment", NAMESPACE, json!({}), CASE.pods).await?;
    let (mut killed, mut after) = (Tally::new(CASE), Tally::new(CASE));
    for (seed, moment) in (1..).zip(MOMENTS) {
        let now = prepare(workbench, NAMESPACE, CASE, seed).await?;
        make_leader(site, workbench).await?;
        let asked = Instant::now();
        let scale = workbench.scale(CASE.door, NAMESPACE, CASE.pods - CASE.go);
        let kill = async {
            sleep(Duration::from_millis(moment)).await;
            site.installation.kill(ADMITS)
        };
        let (scaled, died) = tokio::join!(scale, kill);
        scaled?;
        died?;
        ensure!(asked.elapsed() < Duration::from_secs(3), "the scale-down took {:?}", asked.elapsed());
        let left = workbench.pods(NAMESPACE, CASE.pods - CASE.go).await?;
        let half = left.iter().find(|pod| {
            let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(key));
            annotation(COST) != annotation(MARK)
        });
        ensure!(half.is_none(), "half of a cost is left on a pod: {:?}", half.map(|pod| &pod.metadata.annotations));
        let names: Vec<String> = left.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
        killed.count(right(&now, &names, CASE.go));
        site.installation.start_again(ADMITS)?;
        workbench.scale(CASE.door, NAMESPACE, CASE.pods).await?;
        round(workbench, NAMESPACE, seed + 10, &mut after).await?;
    }
    after.verify()?;
    Ok(vec![killed, after])
}

/// Sees to it that the replica that admits leads.
async fn make_leader(site: &mut Site, workbench: &Workbench) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(workbench.client.clone(), "pecking-order");
    let start = Instant::now();
    let mut other_runs = true;
    loop {
        let lease = leases.get("pecking-order").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        if holder.starts_with(ADMITS) {
            break;
        }
        if other_runs {
            site.installation.kill(OTHER)?;
            other_runs = false;
        }
        ensure!(start.elapsed() < Duration::from_secs(60), "{holder} leads");
        sleep(Duration::from_millis(500)).await;
    }
    if !other_runs {
        site.installation.start_again(OTHER).context("the other replica")?;
        // Its first polls.
        sleep(Duration::from_secs(3)).await;
    }
    Ok(())
}
