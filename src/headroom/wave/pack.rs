//! Packs pods into nodes as the scheduler would have to: into what is free, or in the place of placeholders of one node.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{Amounts, Cluster, Pod, PodKind, Role, add, in_units};
use crate::headroom::node::{Node, Refusal};

/// A node that stays.
#[derive(Debug, Clone)]
pub struct Bin {
    pub name: Arc<str>,
    pub node: Arc<Node>,
    pub free: Amounts,
    pub places: i64,
    /// What is free and what can be taken together, at the most.
    pub total: Amounts,
    pub total_places: i64,
    /// What the node has in all, for scoring.
    pub capacity: Amounts,
    /// Placeholders, those of the highest priority first.
    placeholders: Vec<(i32, Amounts)>,
}

impl Bin {
    pub fn of(node: &Node, resources: &[String]) -> Self {
        let amount = |resource: &String| node.allocatable.get(resource).map_or(0, |amount| in_units(resource, *amount));
        let capacity: Amounts = resources.iter().map(amount).collect();
        let places = node.allocatable.get("pods").map_or(i64::MAX / 4, |pods| in_units("pods", *pods));
        Self {
            name: node.name.as_str().into(),
            node: Arc::new(node.clone()),
            free: capacity.clone(),
            places,
            total: capacity.clone(),
            total_places: places,
            capacity,
            placeholders: vec![],
        }
    }

    /// A pod is there.
    pub fn hold(&mut self, pod: &Pod) {
        take(&mut self.free, &pod.kind.request);
        self.places -= 1;
        if pod.role == Role::Placeholder {
            self.placeholders.push((pod.kind.priority, pod.kind.request.clone()));
            self.placeholders.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        } else {
            take(&mut self.total, &pod.kind.request);
            self.total_places -= 1;
        }
    }

    pub fn fits_free(&self, request: &[i64]) -> bool {
        self.places > 0 && fits(request, &self.free)
    }

    /// Whether a pod could have room here at all, at the most that it may take.
    pub fn may_fit(&self, kind: &PodKind) -> bool {
        self.total_places > 0 && fits(&kind.request, &self.total) && (self.fits_free(&kind.request) || self.victims(kind).is_some())
    }

    /// Which placeholders would go for a pod: all of lower priority are taken away, and then put back, the highest first, while there is room
    /// (`pkg/scheduler/framework/preemption`). `None` where it would not fit even then.
    pub fn victims(&self, kind: &PodKind) -> Option<Vec<usize>> {
        // What cannot fit at all is most often asked for where much does not.
        if kind.never_preempts || self.total_places <= 0 || !fits(&kind.request, &self.total) {
            return None;
        }
        let (mut free, mut places) = (self.free.clone(), self.places);
        let lower: Vec<usize> = (0..self.placeholders.len()).filter(|i| self.placeholders[*i].0 < kind.priority).collect();
        lower.iter().for_each(|i| add(&mut free, &self.placeholders[*i].1));
        places += lower.len() as i64;
        if places <= 0 || !fits(&kind.request, &free) {
            return None;
        }
        take(&mut free, &kind.request);
        places -= 1;
        let mut victims = Vec::new();
        for i in lower {
            if places > 0 && fits(&self.placeholders[i].1, &free) {
                take(&mut free, &self.placeholders[i].1);
                places -= 1;
            } else {
                victims.push(i);
            }
        }
        Some(victims)
    }

    /// Puts a pod here; false where it does not fit.
    pub fn place(&mut self, kind: &PodKind) -> bool {
        if !self.fits_free(&kind.request) {
            let Some(victims) = self.victims(kind) else { return false };
            for victim in victims.into_iter().rev() {
                let (_, request) = self.placeholders.remove(victim);
                add(&mut self.free, &request);
                self.places += 1;
            }
        }
        take(&mut self.free, &kind.request);
        self.places -= 1;
        take(&mut self.total, &kind.request);
        self.total_places -= 1;
        true
    }
}

pub fn fits(request: &[i64], room: &[i64]) -> bool {
    request.iter().zip(room).all(|(request, room)| *request <= 0 || request <= room)
}

fn take(from: &mut [i64], amounts: &[i64]) {
    from.iter_mut().zip(amounts).for_each(|(from, amount)| *from -= amount);
}

/// Where pods are, by their index, and which are nowhere.
#[derive(Debug, Default, Clone)]
pub struct Packing {
    pub placed: Vec<(usize, usize)>,
    pub unplaced: Vec<Unplaced>,
}

#[derive(Debug, Clone)]
pub struct Unplaced {
    pub pod: usize,
    pub why: Why,
}

/// Why a pod fits nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// No node that stays takes such pods at all.
    NoNode(Option<Refusal>),
    /// Those that do have too little left; the resource that is short on most of them.
    Full { nodes: usize, short: String },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode(None) => write!(f, "no node stays"),
            Self::NoNode(Some(Refusal::Selector(what))) => write!(f, "no node that stays meets its {what}"),
            Self::NoNode(Some(Refusal::Taint(key))) => write!(f, "it does not tolerate the taint {key} of the nodes that stay"),
            Self::Full { nodes, short } => write!(f, "{nodes} nodes that stay would take it, and none has enough {short} left on one node"),
        }
    }
}

/// Pods by size, the largest first: by the largest share of what the nodes have in all.
pub fn largest_first(pods: &[&Pod], bins: &[Bin]) -> Vec<usize> {
    let width = pods.first().map_or(0, |pod| pod.kind.request.len());
    let mut all = vec![0_i64; width];
    bins.iter().for_each(|bin| add(&mut all, &bin.capacity));
    let size = |pod: usize| {
        let shares = pods[pod].kind.request.iter().zip(&all).map(|(request, all)| *request as f64 / (*all).max(1) as f64);
        shares.fold(0.0, f64::max)
    };
    let mut order: Vec<(f64, usize)> = (0..pods.len()).map(|pod| (size(pod), pod)).collect();
    // Whoever cannot preempt must have what is free.
    order.sort_by(|(a, i), (b, j)| b.total_cmp(a).then(pods[*j].kind.never_preempts.cmp(&pods[*i].kind.never_preempts)).then(i.cmp(j)));
    order.into_iter().map(|(_, pod)| pod).collect()
}

/// The nodes that take pods of each kind, by the kind's address. Many pods are of one kind.
pub fn candidates(pods: &[&Pod], bins: &[Bin]) -> HashMap<*const PodKind, Vec<usize>> {
    let mut found: HashMap<*const PodKind, Vec<usize>> = HashMap::new();
    for pod in pods {
        found.entry(Arc::as_ptr(&pod.kind)).or_insert_with(|| {
            (0..bins.len()).filter(|bin| bins[*bin].node.refuses(&pod.kind.spec).is_none() && bins[*bin].may_fit(&pod.kind)).collect()
        });
    }
    found
}

/// The largest first, each into the first node that has room.
pub fn first_fit(pods: &[&Pod], bins: &[Bin], cluster: &Cluster) -> Packing {
    let mut bins = bins.to_vec();
    let mut candidates = candidates(pods, &bins);
    let mut packing = Packing::default();
    // Said once for each kind, of which many pods may be left.
    let mut whys: HashMap<*const PodKind, Why> = HashMap::new();
    for pod in largest_first(pods, &bins) {
        let kind = &pods[pod].kind;
        let open = candidates.get_mut(&Arc::as_ptr(kind));
        // What a node has for pods of one kind only becomes less.
        let placed = open.and_then(|open| {
            let full = open.iter().take_while(|bin| !bins[**bin].may_fit(kind)).count();
            open.drain(..full);
            open.first().copied().filter(|bin| bins[*bin].place(kind))
        });
        match placed {
            Some(bin) => packing.placed.push((pod, bin)),
            None => {
                let why = whys.entry(Arc::as_ptr(kind)).or_insert_with(|| why(kind, &bins, cluster)).clone();
                packing.unplaced.push(Unplaced { pod, why });
            }
        }
    }
    packing
}

pub fn why(kind: &PodKind, bins: &[Bin], cluster: &Cluster) -> Why {
    let mut refusals: HashMap<Refusal, usize> = HashMap::new();
    let mut short: HashMap<usize, usize> = HashMap::new();
    let mut nodes = 0;
    for bin in bins {
        match bin.node.refuses(&kind.spec) {
            Some(refusal) => *refusals.entry(refusal).or_default() += 1,
            None => {
                nodes += 1;
                let room = if kind.never_preempts { &bin.free } else { &bin.total };
                let resource = kind.request.iter().zip(room).position(|(request, room)| request > room);
                *short.entry(resource.unwrap_or(usize::MAX)).or_default() += 1;
            }
        }
    }
    if nodes == 0 {
        let most = refusals.into_iter().max_by(|(a, x), (b, y)| x.cmp(y).then(b.cmp(a)));
        return Why::NoNode(most.map(|(refusal, _)| refusal));
    }
    let most = short.into_iter().max_by_key(|(resource, count)| (*count, std::cmp::Reverse(*resource)));
    let short = most.and_then(|(resource, _)| cluster.resources.get(resource).cloned()).unwrap_or_else(|| "room for another pod".into());
    Why::Full { nodes, short }
}
