//! How much the largest node has of each resource, for placeholders that no node could take.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::World;
use super::listing::each;
use crate::headroom::effective::Resources;
use crate::headroom::quantity::Quantity;

/// How often the nodes are read. What an autoscaler brings meanwhile may be larger, so the rule only warns.
const LOOK: Duration = Duration::from_secs(300);
/// How soon after a change of the policies, if that was longer ago than this.
const SOON: Duration = Duration::from_secs(5);

/// Reads the nodes now and then, for as long as it is polled and there are pools.
pub async fn watch(client: Client, world: Arc<World>) {
    let mut changes = world.policy_changes();
    let mut read_at: Option<Instant> = None;
    loop {
        let _ = timeout(LOOK, changes.changed()).await;
        sleep(SOON).await;
        let is_due = read_at.is_none_or(|at| at.elapsed() >= LOOK);
        if !is_due || world.policies().pools().next().is_none() {
            continue;
        }
        match read(&client).await {
            Ok(largest) => {
                world.largest.store(Arc::new(largest));
                read_at = Some(Instant::now());
            }
            Err(e) => warn!(error = %e, "cannot list nodes; what they have is not known"),
        }
    }
}

/// The most that any node offers of each resource.
pub async fn read(client: &Client) -> kube::Result<Resources> {
    let mut largest = Resources::new();
    let look = |node: Node| {
        for (resource, amount) in node.status.and_then(|status| status.allocatable).unwrap_or_default() {
            if let Ok(amount) = Quantity::parse(&amount.0) {
                let most = largest.entry(resource).or_insert(amount);
                *most = amount.max(*most);
            }
        }
    };
    each(&Api::<Node>::all(client.clone()), ListParams::default(), look).await?;
    Ok(largest)
}
