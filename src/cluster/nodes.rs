//! Watches the nodes' labels, for as long as some policy breaks ties by zone or by spot.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tracing::warn;

use super::World;
use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::TieBreak;
use crate::cost::tie_break::{Node, Nodes};
use crate::headroom::spot;

/// The label of a node's zone (`k8s.io/api/core/v1`, LabelTopologyZone).
const ZONE: &str = "topology.kubernetes.io/zone";

/// Whether a policy needs to know of nodes more than their names.
pub fn are_needed_by(policy: &CostPolicy) -> bool {
    matches!(policy.spec.tie_break, TieBreak::Zone | TieBreak::SpotFirst)
}

/// Follows the nodes for as long as it is polled.
pub async fn watch(client: Client, world: Arc<World>) {
    let api: Api<PartialObjectMeta<ApiNode>> = Api::all(client);
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let rows = spot::built_in();
    let mut nodes = Nodes::new();
    let mut listing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                listing = true;
                nodes.clear();
            }
            Ok(Event::InitApply(node) | Event::Apply(node)) => {
                let known = Node { zone: node.labels().get(ZONE).cloned(), is_spot: spot::is_spot(node.labels(), &rows) };
                // A kubelet writes its node every few seconds; of that nothing is kept.
                if nodes.get(&node.name_any()) == Some(&known) {
                    continue;
                }
                nodes.insert(node.name_any(), known);
            }
            Ok(Event::InitDone) => listing = false,
            Ok(Event::Delete(node)) => {
                nodes.remove(&node.name_any());
            }
            Err(e) => {
                warn!(error = %e, "watch of nodes failed; trying again");
                continue;
            }
        }
        // While a list is being read, the nodes known before it stay in use.
        if !listing {
            world.nodes.store(Arc::new(nodes.clone()));
        }
    }
}
