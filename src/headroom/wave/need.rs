//! How many more placeholders would do, and of which shape.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::pack::{Bin, Packing, Unplaced, Why, fits};
use super::{Amounts, Cluster, Options, PLACEHOLDER_PRIORITY, Pod, PodKind, Role, in_units};
use crate::headroom::object::PodSpec;
use crate::headroom::spot::{self, SpotRow};

/// Waves of at most so many pods are solved exactly, within so many steps; larger ones by first fit.
const EXACT_PODS: usize = 14;
const EXACT_STEPS: usize = 400_000;

/// Further placeholders.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Need {
    pub count: usize,
    /// What each of them must request.
    pub shape: BTreeMap<String, String>,
    /// Constraints that they must share with the pods that they are for; those on spot nodes are left out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub placed_as: String,
    /// What all of them request together.
    pub idle: BTreeMap<String, String>,
    /// Per hour, where nodes have a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_cost: Option<f64>,
}

#[derive(Default)]
pub struct Needs {
    pub needed: Vec<Need>,
    /// Pods that no placeholder helps, and why.
    pub hopeless: HashMap<usize, String>,
    /// A packing that leaves fewer out, where one was found.
    pub packing: Option<Packing>,
}

/// What is needed for the pods that fit nowhere.
pub fn needed(cluster: &Cluster, options: &Options<'_>, pods: &[&Pod], bins: &[Bin], packing: &Packing) -> Needs {
    let mut needs = Needs::default();
    if packing.unplaced.is_empty() {
        return needs;
    }
    let left: Vec<usize> = packing.unplaced.iter().map(|unplaced| unplaced.pod).collect();
    for unplaced in &packing.unplaced {
        let why = hopeless(&pods[unplaced.pod].kind, &unplaced.why, options.spot_rows);
        needs.hopeless.extend(why.map(|why| (unplaced.pod, why)));
    }
    let hopeful: Vec<usize> = left.iter().copied().filter(|pod| !needs.hopeless.contains_key(pod)).collect();
    let shape = shape(cluster, options, pods, &hopeful);
    for pod in &hopeful {
        if !fits(&pods[*pod].kind.request, &shape) {
            needs.hopeless.insert(*pod, format!("it is larger than a placeholder of {}", cluster.words(&shape)));
        }
    }
    let served = |pod: &usize| !needs.hopeless.contains_key(pod);
    let counts = match exactly(pods, bins, &shape, options.spot_rows, &served) {
        Some((counts, placed)) => {
            let is_placed = |pod: &usize| placed.iter().any(|(placed, _)| placed == pod);
            let why = |pod: usize| super::pack::why(&pods[pod].kind, bins, cluster);
            let unplaced = (0..pods.len()).filter(|pod| !is_placed(pod)).map(|pod| Unplaced { pod, why: why(pod) }).collect();
            needs.packing = Some(Packing { placed, unplaced });
            counts
        }
        None => by_first_fit(pods, hopeful.iter().copied().filter(served), &shape, options.spot_rows),
    };
    for (placed_as, count) in counts {
        let all: Amounts = shape.iter().map(|amount| amount * count as i64).collect();
        let price = cheapest(cluster, &shape, &options.prices);
        needs.needed.push(Need {
            count,
            shape: cluster.in_texts(&shape),
            placed_as,
            idle: cluster.in_texts(&all),
            idle_cost: price.map(|price| price * count as f64),
        });
    }
    needs
}

/// Why no placeholder, wherever it is, helps a pod.
fn hopeless(kind: &PodKind, why: &Why, rows: &[SpotRow]) -> Option<String> {
    if let Some(evidence) = spot::requires_spot(&kind.spec, rows).first() {
        return Some(format!("it requires spot nodes ({}), which placeholders must stay off", evidence.field));
    }
    let cannot = if kind.never_preempts { "never preempts" } else { "has no higher priority than placeholders" };
    let needs_free_room = kind.never_preempts || kind.priority <= PLACEHOLDER_PRIORITY;
    needs_free_room.then(|| format!("{why}; it {cannot}, so a placeholder's room is none for it"))
}

/// The shape that was asked for; or that of most placeholders, where every pod fits into it; or one into which every pod fits.
fn shape(cluster: &Cluster, options: &Options<'_>, pods: &[&Pod], left: &[usize]) -> Amounts {
    if let Some(shape) = &options.shape {
        return cluster.resources.iter().map(|resource| shape.get(resource).map_or(0, |amount| in_units(resource, *amount))).collect();
    }
    let mut shapes: HashMap<&Amounts, usize> = HashMap::new();
    for pod in cluster.pods.iter().filter(|pod| pod.role == Role::Placeholder) {
        *shapes.entry(&pod.kind.request).or_default() += 1;
    }
    let most = shapes.into_iter().max_by(|(a, x), (b, y)| x.cmp(y).then(a.cmp(b))).map(|(shape, _)| shape.clone());
    let largest = || {
        let mut largest = vec![0; cluster.resources.len()];
        left.iter().for_each(|pod| largest.iter_mut().zip(&pods[*pod].kind.request).for_each(|(most, own)| *most = (*most).max(*own)));
        largest
    };
    most.filter(|shape| left.iter().all(|pod| fits(&pods[*pod].kind.request, shape))).unwrap_or_else(largest)
}

/// The constraints that a placeholder must share with a pod for its room to be of use, in words; the same words mean the same.
fn placed_as(spec: &PodSpec, rows: &[SpotRow]) -> String {
    let is_spot = |key: &str| rows.iter().any(|row| row.key == key);
    let selector = spec.node_selector.iter().filter(|(key, _)| !is_spot(key)).map(|(key, value)| format!("{key}={value}"));
    let terms = spec.required_node_terms().unwrap_or_default().iter().map(|term| {
        let each = term.match_expressions.iter().flatten().filter(|e| !is_spot(&e.key));
        let words = each.map(|e| format!("{} {} {:?}", e.key, e.operator, e.values.clone().unwrap_or_default()));
        words.collect::<Vec<_>>().join(" and ")
    });
    let terms: Vec<String> = terms.filter(|term| !term.is_empty()).collect();
    selector.chain((!terms.is_empty()).then(|| terms.join(" or "))).collect::<Vec<_>>().join(", ")
}

/// Bins of the shape, opened as they are needed: each for pods of one placement.
struct Fresh {
    placed_as: String,
    left: Amounts,
}

fn by_first_fit(pods: &[&Pod], left: impl Iterator<Item = usize>, shape: &Amounts, rows: &[SpotRow]) -> Vec<(String, usize)> {
    let mut open: Vec<Fresh> = Vec::new();
    let mut placements: HashMap<*const PodKind, String> = HashMap::new();
    // The first bin of each placement that may still have room; those before it are full for all that come after.
    for pod in left {
        let kind = &pods[pod].kind;
        let placed_as = placements.entry(Arc::as_ptr(kind)).or_insert_with(|| placed_as(&kind.spec, rows)).clone();
        let found = open.iter_mut().find(|bin| bin.placed_as == placed_as && fits(&kind.request, &bin.left));
        match found {
            Some(bin) => bin.left.iter_mut().zip(&kind.request).for_each(|(left, request)| *left -= request),
            None => open.push(Fresh { placed_as, left: shape.iter().zip(&kind.request).map(|(all, request)| all - request).collect() }),
        }
    }
    count(open.iter())
}

fn count<'a>(open: impl Iterator<Item = &'a Fresh>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    open.for_each(|bin| *counts.entry(bin.placed_as.clone()).or_default() += 1);
    counts.into_iter().collect()
}

/// The fewest that do, for small waves; `None` where that takes too long to find.
fn exactly(pods: &[&Pod], bins: &[Bin], shape: &Amounts, rows: &[SpotRow], served: &dyn Fn(&usize) -> bool) -> Option<Exact> {
    let order: Vec<usize> = super::pack::largest_first(pods, bins).into_iter().filter(served).collect();
    if order.len() > EXACT_PODS || order.is_empty() {
        return None;
    }
    let mut search = Search { pods, shape, rows, steps: 0, open: vec![], placed: vec![] };
    for most in 0..=order.len() {
        (search.open, search.placed) = (vec![], vec![]);
        if search.place(&order, &mut bins.to_vec(), most)? {
            return Some((count(search.open.iter()), search.placed));
        }
    }
    None
}

/// How many bins for each placement, and where pods are in those that there are.
type Exact = (Vec<(String, usize)>, Vec<(usize, usize)>);

struct Search<'a> {
    pods: &'a [&'a Pod],
    shape: &'a Amounts,
    rows: &'a [SpotRow],
    steps: usize,
    open: Vec<Fresh>,
    placed: Vec<(usize, usize)>,
}

impl Search<'_> {
    /// Whether the pods have places with at most so many new bins; `None` when it has taken too long.
    fn place(&mut self, pods: &[usize], bins: &mut Vec<Bin>, most: usize) -> Option<bool> {
        self.steps += 1;
        if self.steps > EXACT_STEPS {
            return None;
        }
        let Some((pod, rest)) = pods.split_first() else { return Some(true) };
        let kind = &self.pods[*pod].kind;
        for index in 0..bins.len() {
            if bins[index].node.refuses(&kind.spec).is_some() {
                continue;
            }
            let before = bins[index].clone();
            self.placed.push((*pod, index));
            if bins[index].place(kind) && self.place(rest, bins, most)? {
                return Some(true);
            }
            self.placed.pop();
            bins[index] = before;
        }
        let placed_as = placed_as(&kind.spec, self.rows);
        for index in 0..self.open.len() {
            if self.open[index].placed_as == placed_as && fits(&kind.request, &self.open[index].left) {
                self.open[index].left.iter_mut().zip(&kind.request).for_each(|(left, request)| *left -= request);
                if self.place(rest, bins, most)? {
                    return Some(true);
                }
                self.open[index].left.iter_mut().zip(&kind.request).for_each(|(left, request)| *left += request);
            }
        }
        if self.open.len() < most && fits(&kind.request, self.shape) {
            let left = self.shape.iter().zip(&kind.request).map(|(all, request)| all - request).collect();
            self.open.push(Fresh { placed_as, left });
            if self.place(rest, bins, most)? {
                return Some(true);
            }
            self.open.pop();
        }
        Some(false)
    }
}

/// What the room of one placeholder costs in an hour, on the cheapest node that has a price and could hold it.
fn cheapest(cluster: &Cluster, shape: &Amounts, prices: &BTreeMap<String, f64>) -> Option<f64> {
    let cost = |(name, price): (&String, &f64)| {
        let node = cluster.nodes.get(name.as_str())?;
        let capacity: Amounts =
            cluster.resources.iter().map(|r| node.allocatable.get(r).map_or(0, |amount| in_units(r, *amount))).collect();
        fits(shape, &capacity).then(|| price * cluster.share(shape, node))
    };
    prices.iter().filter_map(cost).min_by(f64::total_cmp)
}
