//! How much headroom a reclaim needs: the spot nodes that go together, their pods, and where these could run.
//!
//! Room is what a node that stays has free, and what placeholders of lower priority hold on it. It is not a sum: the scheduler clears one node
//! for a pod, so pods are packed into nodes, the largest first. A packing is what *can* be; that a pod *will* run is said only where the
//! scheduler's own rules find it a place in every order that is tried.

mod need;
mod pack;
mod read;
mod schedule;

#[cfg(test)]
mod tests;

pub use need::Need;
pub use read::{IsPlaceholder, Malformed, Reader};

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::effective::{Resources, amount_in_words};
use super::node::Node;
use super::object::PodSpec;
use super::quantity::Quantity;
use super::spot::{self, SpotRow};
use pack::{Bin, Packing, Unplaced};

/// The priority of a placeholder that is to be added.
const PLACEHOLDER_PRIORITY: i32 = -10;

/// Which spot nodes are reclaimed together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Domain {
    /// A provider takes back an instance type in a zone.
    #[default]
    ZoneAndType,
    NodePool,
    /// Nodes with the same value of this label.
    Label(String),
}

/// Labels that name a node's pool, by provider.
const NODE_POOL_LABELS: [&str; 6] = [
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "oci.oraclecloud.com/node-pool",
    "alibabacloud.com/nodepool-id",
];
const ZONE: &str = "topology.kubernetes.io/zone";
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

impl TryFrom<String> for Domain {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match (text.as_str(), text.strip_prefix("label=")) {
            ("zone-type", _) => Ok(Self::ZoneAndType),
            ("node-pool", _) => Ok(Self::NodePool),
            (_, Some(key)) if !key.is_empty() => Ok(Self::Label(key.into())),
            _ => Err(format!("found `{text}`, wanted zone-type, node-pool or label=KEY")),
        }
    }
}

impl Domain {
    /// The domain of a node.
    pub fn of(&self, node: &Node) -> String {
        let label = |key: &str| node.labels.get(key).cloned().unwrap_or_else(|| "?".into());
        match self {
            Self::ZoneAndType => format!("{} {}", label(ZONE), label(INSTANCE_TYPE)),
            Self::NodePool => NODE_POOL_LABELS.into_iter().find_map(|key| node.labels.get(key).cloned()).unwrap_or_else(|| "?".into()),
            Self::Label(key) => label(key),
        }
    }
}

/// What kind of pod it is, as far as a reclaim is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is made again elsewhere, or somebody will want it to be.
    Movable,
    Placeholder,
    /// Of a DaemonSet or of the node itself: it goes with its node.
    OfNode,
}

/// A pod that has a node. What many have in common is kept once.
#[derive(Debug, Clone)]
pub struct Pod {
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub node: Arc<str>,
    pub role: Role,
    pub kind: Arc<PodKind>,
}

/// What pods of one template have in common.
#[derive(Debug)]
pub struct PodKind {
    pub spec: PodSpec,
    /// In the scheduler's units, by the index of [`Cluster::resources`].
    pub request: Amounts,
    pub priority: i32,
    pub never_preempts: bool,
    /// What keeps it from nodes and is not looked at here.
    pub not_modelled: Option<&'static str>,
}

/// Amounts by resource, in the scheduler's units: thousandths of a CPU, and whole units of everything else.
pub type Amounts = Vec<i64>;

/// What is known of a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    pub resources: Vec<String>,
    pub nodes: BTreeMap<Arc<str>, Node>,
    pub pods: Vec<Pod>,
    /// Pods without a node: they may want the same room.
    pub waiting: usize,
    /// Placeholder workloads that follow the size of the cluster, and what scales them.
    pub scaled_by_size: Vec<String>,
}

pub struct Options<'a> {
    pub domain: Domain,
    pub spot_rows: &'a [SpotRow],
    /// What a further placeholder is to hold; found by itself where absent.
    pub shape: Option<Resources>,
    /// What a node costs in an hour, by its name.
    pub prices: BTreeMap<String, f64>,
}

/// One wave, and what would become of its pods.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wave {
    pub domain: String,
    pub nodes: usize,
    pub pods: usize,
    pub request: BTreeMap<String, String>,
    /// Pods that have a place in the packing.
    pub fit: usize,
    pub do_not_fit: usize,
}

/// Where a pod of the worst wave could run.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub request: String,
    #[serde(skip)]
    pub amounts: Amounts,
    /// Whether the scheduler finds it a place in every order that was tried; where not, why nobody can promise it.
    pub will_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// A pod of the worst wave that fits nowhere.
#[derive(Debug, Clone, Serialize)]
pub struct Left {
    pub namespace: String,
    pub name: String,
    pub request: String,
    pub why: String,
}

/// What a reclaim of the worst wave comes to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The worst first.
    pub waves: Vec<Wave>,
    pub placed: Vec<Placed>,
    pub left: Vec<Left>,
    pub needed: Vec<Need>,
    /// What all placeholders hold that are there, and that count.
    pub placeholders: usize,
    pub idle: BTreeMap<String, String>,
    /// Per hour, where nodes have a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_cost: Option<f64>,
    pub warnings: Vec<String>,
}

impl Cluster {
    fn words(&self, amounts: &[i64]) -> String {
        super::effective::in_words(&self.in_resources(amounts))
    }

    fn in_resources(&self, amounts: &[i64]) -> Resources {
        let each = self.resources.iter().zip(amounts).filter(|(_, amount)| **amount > 0);
        each.map(|(resource, amount)| (resource.clone(), in_nanos(resource, *amount))).collect()
    }

    fn in_texts(&self, amounts: &[i64]) -> BTreeMap<String, String> {
        self.in_resources(amounts).into_iter().map(|(resource, amount)| (resource.clone(), amount_in_words(&resource, amount))).collect()
    }

    /// Makes a plan.
    pub fn plan(&self, options: &Options<'_>) -> Plan {
        let is_spot: BTreeMap<&Arc<str>, bool> =
            self.nodes.iter().map(|(name, node)| (name, spot::is_spot(&node.labels, options.spot_rows))).collect();
        let of_node = |pod: &Pod| is_spot.get(&pod.node).copied();
        // What stays: nodes that are not spot, and that will last.
        let mut bins: Vec<Bin> = Vec::new();
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, node) in self.nodes.iter().filter(|(name, node)| !is_spot[name] && node.unfit().is_none()) {
            index.insert(name, bins.len());
            bins.push(Bin::of(node, &self.resources));
        }
        let (mut on_spot, mut placeholders, mut idle) = (Vec::new(), 0, vec![0; self.resources.len()]);
        for pod in &self.pods {
            if let Some(bin) = index.get(&*pod.node) {
                bins[*bin].hold(pod);
            }
            if pod.role == Role::Placeholder {
                match of_node(pod) {
                    Some(true) => on_spot.push(format!("{}/{}", pod.namespace, pod.name)),
                    _ if index.contains_key(&*pod.node) => {
                        placeholders += 1;
                        add(&mut idle, &pod.kind.request);
                    }
                    _ => {}
                }
            }
        }
        let mut by_domain: BTreeMap<String, (usize, Vec<&Pod>)> = BTreeMap::new();
        let domain_of: BTreeMap<&Arc<str>, String> =
            self.nodes.iter().filter(|(name, _)| is_spot[name]).map(|(name, node)| (name, options.domain.of(node))).collect();
        domain_of.values().for_each(|domain| by_domain.entry(domain.clone()).or_default().0 += 1);
        for pod in self.pods.iter().filter(|pod| pod.role == Role::Movable) {
            if let Some(domain) = domain_of.get(&pod.node) {
                by_domain.entry(domain.clone()).or_default().1.push(pod);
            }
        }
        let mut worst: Option<(Vec<&Pod>, Packing)> = None;
        let mut waves = Vec::new();
        for (domain, (nodes, pods)) in by_domain {
            let packing = pack::first_fit(&pods, &bins, self);
            let mut request = vec![0; self.resources.len()];
            pods.iter().for_each(|pod| add(&mut request, &pod.kind.request));
            let wave = Wave {
                domain,
                nodes,
                pods: pods.len(),
                request: self.in_texts(&request),
                fit: packing.placed.len(),
                do_not_fit: packing.unplaced.len(),
            };
            let size = |packing: &Packing, pods: usize| (packing.unplaced.len(), pods);
            if worst.as_ref().is_none_or(|(known, known_packing)| size(&packing, pods.len()) > size(known_packing, known.len())) {
                worst = Some((pods, packing));
            }
            waves.push(wave);
        }
        waves.sort_by_key(|wave| std::cmp::Reverse((wave.do_not_fit, wave.pods)));
        let mut plan = Plan { waves, placeholders, idle: self.in_texts(&idle), warnings: self.warnings(&on_spot), ..Plan::default() };
        plan.idle_cost = (!options.prices.is_empty()).then(|| self.cost_of_placeholders(&options.prices, &index));
        if let Some((pods, packing)) = worst {
            self.describe(options, &pods, &bins, packing, &mut plan);
        }
        plan
    }

    fn describe(&self, options: &Options<'_>, pods: &[&Pod], bins: &[Bin], packing: Packing, plan: &mut Plan) {
        let mut needs = need::needed(self, options, pods, bins, &packing);
        let packing = needs.packing.take().unwrap_or(packing);
        let mut promised = schedule::placed_in_every_order(pods, bins);
        for (pod, bin) in &packing.placed {
            let doubt = match pods[*pod].kind.not_modelled {
                Some(what) => Some(format!("{what} is not looked at")),
                None => {
                    let left = promised.entry(Arc::as_ptr(&pods[*pod].kind)).or_default();
                    let doubt = (*left == 0).then(|| "it depends on the order in which the pods come".to_owned());
                    *left = left.saturating_sub(1);
                    doubt
                }
            };
            let amounts = pods[*pod].kind.request.clone();
            plan.placed.push(Placed {
                namespace: pods[*pod].namespace.to_string(),
                name: pods[*pod].name.to_string(),
                node: bins[*bin].name.to_string(),
                request: self.words(&amounts),
                amounts,
                will_run: doubt.is_none(),
                doubt,
            });
        }
        if let Some(wave) = plan.waves.first_mut() {
            (wave.fit, wave.do_not_fit) = (packing.placed.len(), packing.unplaced.len());
        }
        for Unplaced { pod, why } in &packing.unplaced {
            let why = needs.hopeless.get(pod).cloned().unwrap_or_else(|| why.to_string());
            let (namespace, name) = (pods[*pod].namespace.to_string(), pods[*pod].name.to_string());
            plan.left.push(Left { namespace, name, request: self.words(&pods[*pod].kind.request), why });
        }
        plan.needed = needs.needed;
    }

    fn warnings(&self, on_spot: &[String]) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(first) = on_spot.first() {
            warnings.push(format!("{} placeholders are on spot nodes and count for nothing, such as {first}", on_spot.len()));
        }
        for what in &self.scaled_by_size {
            warnings.push(format!("{what}: a placeholder that needs a node makes the cluster larger, which makes more placeholders"));
        }
        if self.waiting > 0 {
            warnings.push(format!("{} pods have no node now, and may take room that is counted here", self.waiting));
        }
        warnings
    }

    /// What the room of placeholders costs in an hour: of each node the larger of its share of CPU and of memory.
    fn cost_of_placeholders(&self, prices: &BTreeMap<String, f64>, index: &BTreeMap<&str, usize>) -> f64 {
        let placeholders = self.pods.iter().filter(|pod| pod.role == Role::Placeholder && index.contains_key(&*pod.node));
        let cost = |pod: &Pod| Some(prices.get(&*pod.node)? * self.share(&pod.kind.request, self.nodes.get(&pod.node)?));
        placeholders.filter_map(cost).sum()
    }

    /// The larger of the shares of a node's CPU and memory.
    fn share(&self, amounts: &[i64], node: &Node) -> f64 {
        let share = |(resource, amount): (&String, &i64)| {
            let all = node.allocatable.get(resource).filter(|_| matches!(resource.as_str(), "cpu" | "memory"))?;
            (all.nanos > 0).then(|| in_nanos(resource, *amount).as_f64() / all.as_f64())
        };
        self.resources.iter().zip(amounts).filter_map(share).fold(0.0, f64::max)
    }
}

fn add(sum: &mut [i64], amounts: &[i64]) {
    sum.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
}

fn in_nanos(resource: &str, amount: i64) -> Quantity {
    Quantity { nanos: i128::from(amount) * if resource == "cpu" { 1_000_000 } else { 1_000_000_000 } }
}

/// An amount in the scheduler's units, rounded up as it does.
fn in_units(resource: &str, amount: Quantity) -> i64 {
    let unit: i128 = if resource == "cpu" { 1_000_000 } else { 1_000_000_000 };
    i64::try_from((amount.nanos + unit - 1).div_euclid(unit)).unwrap_or(i64::MAX / 4)
}
