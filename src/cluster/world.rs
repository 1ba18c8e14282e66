//! What is known: policies, classes, pods and costs, in memory. Watches fill it; decisions read a snapshot of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::fresh::FreshPolls;
use super::pods::PodStore;
use super::progress::Progress;
use super::room::RoomStore;
use crate::admission::Snapshot;
use crate::api::Policies;
use crate::cost::CostCache;
use crate::cost::contested::Contested;
use crate::cost::tie_break::Nodes;
use crate::headroom::effective::Resources;
use crate::headroom::{Classes, Known, Shapes};

pub struct World {
    policies: ArcSwap<Policies>,
    policies_changed: watch::Sender<()>,
    pub classes: ArcSwap<Classes>,
    pub shapes: ArcSwap<Shapes>,
    /// What the largest node has; empty where that is not known.
    pub largest: ArcSwap<Resources>,
    /// Known only where a policy asks for a tie-break that needs them.
    pub nodes: ArcSwap<Nodes>,
    pub costs: CostCache,
    pub pods: PodStore,
    pub fresh: FreshPolls,
    pub progress: Progress,
    pub contested: Contested,
    pub room: RoomStore,
    policies_known: AtomicBool,
    pools_known: AtomicBool,
    classes_known: AtomicBool,
    pods_known: AtomicBool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            policies: ArcSwap::default(),
            policies_changed: watch::Sender::new(()),
            classes: ArcSwap::default(),
            shapes: ArcSwap::default(),
            largest: ArcSwap::default(),
            nodes: ArcSwap::default(),
            costs: CostCache::default(),
            pods: PodStore::default(),
            fresh: FreshPolls::default(),
            progress: Progress::default(),
            contested: Contested::default(),
            room: RoomStore::default(),
            policies_known: AtomicBool::new(false),
            pools_known: AtomicBool::new(false),
            classes_known: AtomicBool::new(false),
            pods_known: AtomicBool::new(false),
        }
    }
}

/// A list that must have been read once before we are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Policies,
    Pools,
    Classes,
    /// The pods of the policies that were there at the start, and what they were doing.
    Pods,
}

impl World {
    /// One generation of everything that a decision looks at.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            policies: self.policies.load_full(),
            headroom: Known { classes: self.classes.load_full(), shapes: self.shapes.load_full(), largest: self.largest.load_full() },
            gates: self.room.gates(),
            costs: self.costs.clone(),
            contested: self.contested.clone(),
        }
    }

    pub fn policies(&self) -> Arc<Policies> {
        self.policies.load_full()
    }

    /// Puts another generation of policies in force.
    pub fn update_policies(&self, change: impl Fn(Policies) -> Policies) {
        self.policies.rcu(|policies| change(Policies::clone(policies)));
        self.policies_changed.send_replace(());
    }

    /// Wakes up at every new generation of policies, when a list has been read, and once at the start.
    pub fn policy_changes(&self) -> watch::Receiver<()> {
        let mut changes = self.policies_changed.subscribe();
        changes.mark_changed();
        changes
    }

    pub fn has_read(&self, list: List) {
        self.flag(list).store(true, Ordering::Release);
        self.policies_changed.send_replace(());
    }

    pub fn knows(&self, list: List) -> bool {
        self.flag(list).load(Ordering::Acquire)
    }

    /// What has not been read yet: while there is something, decisions would rest on nothing.
    pub fn not_yet_read(&self) -> Vec<List> {
        [List::Policies, List::Pools, List::Classes, List::Pods].into_iter().filter(|list| !self.knows(*list)).collect()
    }

    fn flag(&self, list: List) -> &AtomicBool {
        match list {
            List::Policies => &self.policies_known,
            List::Pools => &self.pools_known,
            List::Classes => &self.classes_known,
            List::Pods => &self.pods_known,
        }
    }
}
