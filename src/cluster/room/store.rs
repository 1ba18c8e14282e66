//! What is known for giving room away: pods that have to do with it, nodes, namespaces, claims, quotas, and the pools' own status. Watches
//! fill it; a decision reads one state of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::Pool;
use crate::api::headroom_pool::HeadroomPoolStatus;
use crate::api::policies::Labels;
use crate::headroom::Known;
use crate::headroom::node::{Node, Nodes};
use crate::headroom::room::{Claim, ClaimName, Decision, Gates, Pod, Quota, Room, View, decide, labels_of};

/// How long a pod that went without a node is remembered, for its claim.
const REMEMBERED: std::time::Duration = std::time::Duration::from_secs(300);

/// What is watched for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pods,
    Nodes,
    Namespaces,
    Claims,
    Quotas,
    Pools,
}

/// The status of a pool as the API server has it.
#[derive(Debug, Clone, Default)]
pub struct PoolState {
    pub uid: String,
    pub version: String,
    pub generation: i64,
    pub status: HeadroomPoolStatus,
}

#[derive(Default)]
pub struct State {
    pods: HashMap<String, Arc<Pod>>,
    /// Pods that have gone without ever having a node.
    unplaced: HashMap<String, Instant>,
    nodes: Nodes,
    namespaces: Arc<HashMap<String, Labels>>,
    claims: HashMap<String, Arc<Claim>>,
    /// The versions of the claims, by UID.
    versions: HashMap<String, String>,
    quotas: HashMap<(String, String), Quota>,
    pools: HashMap<String, PoolState>,
    /// Which lists have been read once, by [`Kind`].
    read: [bool; 6],
    /// What was scaled to zero for pools that are gone.
    abandoned: Vec<crate::api::headroom_pool::Drained>,
    /// How often the pods have been listed anew because somebody asked.
    listed: u64,
}

pub struct RoomStore {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    /// Asks for another list of the pods.
    relist: watch::Sender<u64>,
    gates: ArcSwap<Gates>,
}

impl Default for RoomStore {
    fn default() -> Self {
        let (changed, relist) = (watch::Sender::new(()), watch::Sender::new(0));
        Self { state: Mutex::default(), changed, relist, gates: ArcSwap::default() }
    }
}

impl RoomStore {
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn relists(&self) -> watch::Receiver<u64> {
        self.relist.subscribe()
    }

    /// Has the pods listed anew; [`Self::has_listed`] tells when that is done.
    pub fn ask_for_a_list(&self) -> u64 {
        self.relist.send_modify(|count| *count += 1);
        *self.relist.borrow()
    }

    /// Whether everything was read, and the pods since the list with this number was asked for.
    pub fn has_listed(&self, number: u64) -> bool {
        let state = self.state();
        state.read.iter().all(|read| *read) && state.listed >= number
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes up whoever decides.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.send_replace(());
    }

    pub fn has_read(&self, kind: Kind) {
        self.change(|state| state.read[kind as usize] = true);
    }

    /// Puts a whole list of pods in the place of what was known.
    pub fn replace_pods(&self, pods: HashMap<String, Arc<Pod>>, number: u64) {
        self.change(|state| {
            state.unplaced.retain(|uid, at| !pods.contains_key(uid) && at.elapsed() < REMEMBERED);
            let remembered: Vec<_> = state.pods.drain().filter(|(uid, _)| state.unplaced.contains_key(uid)).collect();
            state.pods = pods;
            state.pods.extend(remembered);
            (state.listed, state.read[Kind::Pods as usize]) = (number, true);
        });
    }

    pub fn apply_pod(&self, pod: Pod) {
        self.change(|state| {
            state.pods.insert(pod.uid.clone(), Arc::new(pod));
        });
    }

    /// What a write of ours has answered. The watch may have told of its end meanwhile: what has gone stays gone.
    pub fn update_pod(&self, pod: Pod) {
        self.change(|state| {
            state.pods.entry(pod.uid.clone()).and_modify(|known| *known = Arc::new(pod));
        });
    }

    /// A pod has gone. One that belonged to a claim and never had a node is how that claim ends.
    pub fn remove_pod(&self, uid: &str) {
        self.change(|state| {
            let Some(pod) = state.pods.remove(uid) else { return };
            if pod.node.is_none() && (pod.claim.is_some() || pod.job.is_some()) {
                state.pods.insert(uid.to_owned(), Arc::new(Pod { is_leaving: true, ..Pod::clone(&pod) }));
                state.unplaced.insert(uid.to_owned(), Instant::now());
            }
            let old: Vec<String> = state.unplaced.iter().filter(|(_, at)| at.elapsed() >= REMEMBERED).map(|(uid, _)| uid.clone()).collect();
            for uid in old {
                state.unplaced.remove(&uid);
                state.pods.remove(&uid);
            }
        });
    }

    pub fn forget_pods(&self) {
        self.change(|state| (state.pods, state.unplaced) = (HashMap::new(), HashMap::new()));
    }

    pub fn replace_nodes(&self, nodes: Nodes) {
        self.change(|state| state.nodes = nodes);
    }

    /// A kubelet writes its node every few seconds; only what matters wakes anybody up.
    pub fn apply_node(&self, node: Node) {
        if self.state().nodes.get(&node.name) != Some(&node) {
            self.change(|state| {
                state.nodes.insert(node.name.clone(), node);
            });
        }
    }

    pub fn remove_node(&self, name: &str) {
        self.change(|state| {
            state.nodes.remove(name);
        });
    }

    pub fn replace_namespaces(&self, namespaces: HashMap<String, Labels>) {
        self.change(|state| state.namespaces = Arc::new(namespaces));
    }

    /// Labels of a namespace, or `None` where it is gone.
    pub fn set_namespace(&self, name: String, labels: Option<Labels>) {
        self.change(|state| {
            let namespaces = Arc::make_mut(&mut state.namespaces);
            match labels {
                Some(labels) => drop(namespaces.insert(name, labels)),
                None => drop(namespaces.remove(&name)),
            }
        });
    }

    pub fn replace_claims(&self, claims: Vec<(Claim, String)>) {
        self.change(|state| {
            (state.claims, state.versions) = (HashMap::new(), HashMap::new());
            for (claim, version) in claims {
                state.versions.insert(claim.uid.clone(), version);
                state.claims.insert(claim.uid.clone(), Arc::new(claim));
            }
        });
    }

    pub fn apply_claim(&self, claim: Claim, version: String) {
        self.change(|state| {
            state.versions.insert(claim.uid.clone(), version);
            state.claims.insert(claim.uid.clone(), Arc::new(claim));
        });
    }

    /// As [`Self::update_pod`].
    pub fn update_claim(&self, claim: Claim, version: String) {
        self.change(|state| {
            if let Some(known) = state.claims.get_mut(&claim.uid) {
                state.versions.insert(claim.uid.clone(), version);
                *known = Arc::new(claim);
            }
        });
    }

    pub fn remove_claim(&self, uid: &str) {
        self.change(|state| {
            state.versions.remove(uid);
            state.claims.remove(uid);
        });
    }

    pub fn replace_quotas(&self, quotas: Vec<Quota>) {
        self.change(|state| {
            state.quotas = quotas.into_iter().map(|quota| ((quota.namespace.clone(), quota.name.clone()), quota)).collect()
        });
    }

    pub fn apply_quota(&self, quota: Quota) {
        self.change(|state| {
            state.quotas.insert((quota.namespace.clone(), quota.name.clone()), quota);
        });
    }

    pub fn remove_quota(&self, namespace: &str, name: &str) {
        self.change(|state| {
            state.quotas.remove(&(namespace.to_owned(), name.to_owned()));
        });
    }

    pub fn replace_pools(&self, pools: HashMap<String, PoolState>) {
        self.change(|state| state.pools = pools);
    }

    pub fn apply_pool(&self, name: String, pool: PoolState) {
        self.change(|state| {
            state.pools.insert(name, pool);
        });
    }

    /// As [`Self::update_pod`].
    pub fn update_pool(&self, name: &str, pool: PoolState) {
        self.change(|state| {
            state.pools.entry(name.to_owned()).and_modify(|known| *known = pool);
        });
    }

    /// A pool is gone, but not what was scaled to zero for it.
    pub fn remove_pool(&self, name: &str) {
        self.change(|state| {
            let gone = state.pools.remove(name);
            state.abandoned.extend(gone.into_iter().flat_map(|pool| pool.status.drained));
        });
    }

    /// Workloads that were scaled to zero for pools that are gone.
    pub fn take_abandoned(&self) -> Vec<crate::api::headroom_pool::Drained> {
        std::mem::take(&mut self.state().abandoned)
    }

    pub fn pool(&self, name: &str) -> Option<PoolState> {
        self.state().pools.get(name).cloned()
    }

    pub fn claims(&self) -> Vec<Arc<Claim>> {
        self.state().claims.values().cloned().collect()
    }

    pub fn claim_version(&self, uid: &str) -> Option<String> {
        self.state().versions.get(uid).cloned()
    }

    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.state().pods.values().cloned().collect()
    }

    /// Decides about a pool on one state of everything, and hands the decision over while it holds.
    pub fn decide<T>(&self, pool: &Pool, known: &Known, now: Timestamp, then: impl FnOnce(&Decision<'_>) -> T) -> T {
        let state = self.state();
        let pods: Vec<&Pod> = state.pods.values().map(|pod| &**pod).filter(|pod| concerns(pool, pod)).collect();
        let claims: Vec<&Claim> = state.claims.values().map(|claim| &**claim).filter(|claim| claim.pool == pool.name).collect();
        let quotas: Vec<Quota> =
            state.quotas.values().filter(|quota| claims.iter().any(|c| c.namespace == quota.namespace)).cloned().collect();
        let holders = state.pools.get(&pool.name).map(|pool| pool.status.holders.clone()).unwrap_or_default();
        let is_gated_namespace = |name: &str| pool.gates_namespace(&labels_of(&state.namespaces, name));
        let view = View {
            pool,
            pods: &pods,
            nodes: &state.nodes,
            claims: &claims,
            shape: known.shapes.of(&pool.name),
            classes: &known.classes,
            quotas: &quotas,
            holders: &holders,
            is_gated_namespace: &is_gated_namespace,
            now,
        };
        then(&decide(&view))
    }

    /// Lets reviews see how the pools stand.
    pub fn publish(&self, rooms: BTreeMap<String, Room>) {
        let state = self.state();
        let bound = state.claims.values().filter(|claim| claim.is_live() && claim.is_bound());
        let bound = Arc::new(bound.map(|claim| ClaimName::new(&claim.namespace, &claim.name)).collect());
        self.gates.store(Arc::new(Gates { are_kept: true, rooms: Arc::new(rooms), namespaces: state.namespaces.clone(), bound }));
    }

    /// What reviews look at.
    pub fn gates(&self) -> Arc<Gates> {
        self.gates.load_full()
    }

    /// The lowest priority of the placeholders that count for a pool.
    pub fn placeholder_priority(&self, pool: &str) -> Option<i32> {
        let state = self.state();
        let own = state.pods.values().filter(|pod| pod.is_alive() && pod.placeholder_of.first().is_some_and(|first| first == pool));
        own.map(|pod| pod.priority).min()
    }
}

/// Whether a decision about a pool looks at a pod.
fn concerns(pool: &Pool, pod: &Pod) -> bool {
    pod.placeholder_of.contains(&pool.name) || pod.claim.is_some() || pod.job.is_some() || pool.gates(&pod.labels)
}
