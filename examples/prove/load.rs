//! Scale-downs where it is hard: many pods, busy controllers, and controllers that stand at another API server than we do.

use std::time::Duration;

use control_plane::workbench::workload;
use control_plane::{Door, Workbench};
use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use super::round::{Before, Case, Tally, rounds};

/// Deployments that change meanwhile, and how often one of them does.
const OTHERS: usize = 300;
const CHANGE: Duration = Duration::from_millis(100);

pub async fn large(workbench: &Workbench) -> anyhow::Result<Vec<Tally>> {
    let case = |before| Case { door: Door::DeploymentScale, pods: 1000, go: 600, before };
    rounds(workbench, "large", &[case(Before::Unset), case(Before::Stale), case(Before::Reversed)], 2).await
}

/// The small and the large case of a door, with the costs the wrong way round.
async fn small_and_large(workbench: &Workbench, door: Door, counts: (usize, usize)) -> anyhow::Result<Vec<Tally>> {
    let name = door.name().replace('/', "-");
    let case = |pods: usize| Case { door, pods, go: pods * 2 / 5, before: Before::Reversed };
    let mut all = rounds(workbench, &format!("{name}-small"), &[case(20)], counts.0).await?;
    all.extend(rounds(workbench, &format!("{name}-large"), &[case(150)], counts.1).await?);
    Ok(all)
}

pub async fn two_servers(workbench: &Workbench) -> anyhow::Result<Vec<Tally>> {
    let mut all = small_and_large(workbench, Door::DeploymentScale, (10, 5)).await?;
    all.extend(small_and_large(workbench, Door::ReplicaSetScale, (10, 5)).await?);
    Ok(all)
}

pub async fn busy_controllers(workbench: &Workbench) -> anyhow::Result<Vec<Tally>> {
    const NAMESPACE: &str = "others";
    workbench.apply("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await?;
    let make = |n: usize| {
        let deployment = workload("Deployment", &format!("other-{n}"), NAMESPACE, 2, "1");
        async move { workbench.apply(NAMESPACE, deployment).await }
    };
    futures::stream::iter((0..OTHERS).map(make)).buffer_unordered(16).try_collect::<()>().await?;
    let changing = tokio::spawn({
        let api = workbench.dynamic("apps/v1", "Deployment", NAMESPACE);
        async move {
            for n in 0_usize.. {
                // Another version: a rollout of two pods.
                let patch = json!({"spec": {"template": {"metadata": {"annotations": {"version": n.to_string()}}}}});
                let name = format!("other-{}", n * 7 % OTHERS);
                if let Err(e) = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                    eprintln!("{name} did not change: {e}");
                }
                sleep(CHANGE).await;
            }
        }
    });
    let mut all = small_and_large(workbench, Door::Deployment, (10, 4)).await?;
    all.extend(small_and_large(workbench, Door::ReplicaSet, (10, 4)).await?);
    changing.abort();
    workbench.dynamic("apps/v1", "Deployment", NAMESPACE).delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
    Ok(all)
}
