//! Runs what a policy in force needs: a watch of its pods, a watch of its namespace's ReplicaSets, and its poller.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::apps::v1::ReplicaSet as ApiReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::World;
use super::floor::Floors;
use super::nodes;
use super::own_account::OwnAccount;
use super::pods::ReplicaSet;
use super::resync;
use super::status::{PollReporter, Reporter};
use super::world::List;
use crate::admission::scale_downs::{Parent, ParentKind};
use crate::api::CostPolicy;
use crate::api::policies::PolicyKey;
use crate::cost::pod::controller_of;
use crate::cost::score::{self, Basis};
use crate::cost::{Cost, GovernedPod, Stored};
use crate::server::metrics::Metrics;
use crate::signals::Shared;
use crate::signals::poller::{Known, Poller};

/// Pods per page of a list. A pod is up to 90 KB in memory while it is read, and there may be hundreds of thousands.
const PAGE: u32 = 100;

/// First lists at once: a hundred policies at the start must not read a hundred pages side by side.
const PARALLEL_LISTS: usize = 4;

/// How long readiness waits for the first polls: a backend that is away must not keep us from being ready.
const FIRST_POLLS: Duration = Duration::from_secs(20);

/// The backends of the server configuration, by name.
pub type Backends = BTreeMap<String, Arc<Shared>>;

/// A task that ends when it is dropped.
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Task {
    /// Ends the task, and waits until it has ended: what it knows may be forgotten then, and is not put back.
    async fn stop(mut self) {
        self.0.abort();
        // It was aborted, so it ends in an error.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Governed {
    policy: Arc<CostPolicy>,
    /// True once its pods have been listed and a first poll has been tried.
    polled: watch::Receiver<bool>,
    known: Known,
    tasks: Vec<Task>,
}

impl Governed {
    async fn stop(self) {
        for task in self.tasks {
            task.stop().await;
        }
    }

    /// What the polls have brought, where it means the same under the changed policy.
    fn knowledge_for(&self, changed: &CostPolicy) -> Option<Known> {
        let (old, new) = (&self.policy.spec, &changed.spec);
        let same = self.policy.signals == changed.signals && old.backend == new.backend && old.pod_key == new.pod_key;
        same.then(|| self.known.clone())
    }
}

/// What the tasks of every policy share. Without a client the pods are those of files.
pub struct Governance {
    pub world: Arc<World>,
    pub backends: Arc<Backends>,
    pub client: Option<Client>,
    pub reporter: Option<Reporter>,
    pub metrics: Arc<Metrics>,
    /// For what is written on our own account; none where nobody may.
    pub own_account: Option<OwnAccount>,
    pub floors: Option<Floors>,
}

impl Governance {
    /// Follows the policies in force for as long as it is polled.
    pub async fn run(self) {
        let mut changes = self.world.policy_changes();
        let mut governed: HashMap<PolicyKey, Governed> = HashMap::new();
        let mut namespaces: HashMap<String, Task> = HashMap::new();
        let (mut announcing, mut node_watch) = (None, None);
        let (lists, resyncs) = (Arc::new(Semaphore::new(PARALLEL_LISTS)), Arc::new(Semaphore::new(PARALLEL_LISTS)));
        while changes.changed().await.is_ok() {
            // In this order: once the policies are known, all of them are in what is read next.
            let knows_policies = self.world.knows(List::Policies);
            let policies = self.world.policies();
            let wanted: HashMap<PolicyKey, &Arc<CostPolicy>> = policies.policies().map(|policy| (policy.key().clone(), policy)).collect();
            let gone: Vec<PolicyKey> = governed.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
            for key in gone {
                // First its tasks, then what they know, then what they wrote.
                let Some(running) = governed.remove(&key) else { continue };
                let pods = self.world.pods.governed_by(&running.policy, &policies);
                let running_policy = running.policy.clone();
                running.stop().await;
                self.forget(&key);
                if let Some(own_account) = &self.own_account {
                    tokio::spawn(own_account.clone().clean_up(running_policy, pods));
                }
            }
            for (key, policy) in wanted {
                if governed.get(&key).is_some_and(|running| Arc::ptr_eq(&running.policy, policy)) {
                    continue;
                }
                info!(namespace = key.namespace, policy = key.name, generation = policy.generation, "policy in force");
                let known = match governed.remove(&key) {
                    Some(before) => {
                        let known = before.knowledge_for(policy);
                        before.stop().await;
                        // The next one owes nothing before it has begun.
                        self.world.progress.forget_policy(&key);
                        known.unwrap_or_default()
                    }
                    None => Known::default(),
                };
                governed.insert(key, self.start(policy.clone(), &lists, &resyncs, known));
            }
            if announcing.is_none() && knows_policies {
                let polled = governed.values().map(|governed| governed.polled.clone()).collect();
                announcing = Some(Task::spawn(announce(self.world.clone(), polled)));
            }
            let needs_nodes = governed.values().any(|governed| nodes::are_needed_by(&governed.policy));
            match (&self.client, needs_nodes) {
                (Some(client), true) if node_watch.is_none() => {
                    node_watch = Some(Task::spawn(nodes::watch(client.clone(), self.world.clone())));
                }
                (_, false) => node_watch = None,
                _ => {}
            }
            self.follow_replica_sets(&mut namespaces, governed.keys().map(|key| key.namespace.as_str()).collect()).await;
        }
    }

    fn start(&self, policy: Arc<CostPolicy>, lists: &Arc<Semaphore>, resyncs: &Arc<Semaphore>, known: Known) -> Governed {
        let (world, metrics) = (&self.world, &self.metrics);
        world.pods.unset_listed(policy.key());
        // A poll before the pods are known would find nobody, and the next one is a period away.
        let (listed, mut is_listed) = watch::channel(self.client.is_none());
        let (polled, is_polled) = watch::channel(false);
        let mut tasks = Vec::new();
        if let Some(client) = &self.client {
            tasks.push(Task::spawn(watch_pods(client.clone(), policy.clone(), world.clone(), listed, lists.clone())));
            tasks.push(Task::spawn(resync::run(client.clone(), policy.clone(), world.clone(), resyncs.clone(), metrics.clone())));
        }
        match self.backends.get(&policy.spec.backend) {
            Some(backend) => {
                let poller = Poller::new(policy.clone(), backend.clone(), world.clone(), metrics.clone(), known.clone());
                let poller = poller.run(polled, PollReporter::new(self.reporter.clone()));
                let (world, key) = (world.clone(), policy.key().clone());
                tasks.push(Task::spawn(async move {
                    if is_listed.wait_for(|listed| *listed).await.is_ok() && AssertUnwindSafe(poller).catch_unwind().await.is_err() {
                        // A text of a policy's costs that policy its poller, and nobody else the process.
                        error!(namespace = key.namespace, policy = key.name, "the poller of a policy panicked; its costs stay as they are");
                        world.progress.forget_policy(&key);
                    }
                }));
            }
            None => warn!(policy = policy.name, backend = policy.spec.backend, "the server configuration has no such backend"),
        }
        if let Some(own_account) = &self.own_account {
            tasks.push(Task::spawn(own_account.clone().refresh(policy.clone())));
        }
        if let Some(floors) = &self.floors {
            tasks.push(Task::spawn(floors.clone().hold(policy.clone())));
        }
        Governed { policy, polled: is_polled, known, tasks }
    }

    fn forget(&self, key: &PolicyKey) {
        self.world.pods.forget_policy(key);
        self.world.costs.forget_policy(key);
        self.world.fresh.forget_policy(key);
        self.world.progress.forget_policy(key);
        self.metrics.forget_policy(key);
        info!(namespace = key.namespace, policy = key.name, "policy is gone");
    }

    /// One watch of ReplicaSets for each namespace that has a policy.
    async fn follow_replica_sets(&self, watched: &mut HashMap<String, Task>, in_use: HashSet<&str>) {
        let Some(client) = &self.client else { return };
        let gone: Vec<String> = watched.keys().filter(|namespace| !in_use.contains(namespace.as_str())).cloned().collect();
        for namespace in gone {
            if let Some(task) = watched.remove(&namespace) {
                task.stop().await;
            }
            self.world.pods.forget_replica_sets(&namespace);
        }
        for namespace in in_use {
            watched
                .entry(namespace.into())
                .or_insert_with(|| Task::spawn(watch_replica_sets(client.clone(), namespace.into(), self.world.clone())));
        }
    }
}

/// Says that the pods are known once each policy that was there at the start has polled, or has had its time to.
async fn announce(world: Arc<World>, polled: Vec<watch::Receiver<bool>>) {
    let all = join_all(polled.into_iter().map(|mut polled| async move { polled.wait_for(|polled| *polled).await.is_ok() }));
    if timeout(FIRST_POLLS, all).await.is_err() {
        warn!("not every policy has polled in time; serving with what is known");
    }
    world.has_read(List::Pods);
}

async fn watch_pods(client: Client, policy: Arc<CostPolicy>, world: Arc<World>, listed: watch::Sender<bool>, lists: Arc<Semaphore>) {
    let api: Api<Pod> = Api::namespaced(client, &policy.namespace);
    let config = watcher::Config::default().labels(&policy.selector.to_string()).page_size(PAGE);
    // Held until the first list is done.
    let mut turn = Some(lists.acquire_owned().await);
    let mut events = pin!(watcher(api, config).default_backoff());
    let key = policy.key().clone();
    let mut seen = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(pod)) => {
                seen.extend(pod.uid());
                read_pod(&world, &policy, pod);
            }
            Ok(Event::InitDone) => {
                for uid in world.pods.retain(&key, &seen) {
                    world.costs.remove(&uid, &key);
                }
                listed.send_replace(true);
                world.pods.set_listed(&key);
                drop(turn.take());
            }
            Ok(Event::Apply(pod)) => read_pod(&world, &policy, pod),
            Ok(Event::Delete(pod)) => forget(&world, &key, pod),
            Err(e) => {
                // Others must not wait for a list that may never succeed.
                drop(turn.take());
                warn!(namespace = key.namespace, policy = key.name, error = %e, "watch of pods failed; trying again");
            }
        }
    }
}

pub(super) fn read_pod(world: &World, policy: &Arc<CostPolicy>, pod: Pod) {
    match GovernedPod::read(&pod) {
        Some(now) => {
            // Where several policies select a pod, one governs it.
            let governs = !world.policies().before(policy).any(|earlier| world.pods.has(earlier, &now.uid));
            if let Some(before) = world.pods.get(policy.key(), &now.uid).filter(|_| governs) {
                world.contested.look(&before, &now, &pod);
            }
            apply(world, policy, now, governs);
        }
        // Another kind's, or its controller has let it go: it does not count towards a ReplicaSet (any more).
        None => {
            let (controller, uid) = (controller_of(&pod), pod.uid().unwrap_or_default());
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
            let has_ended = pod.metadata.deletion_timestamp.is_some() || matches!(phase, "Succeeded" | "Failed");
            forget(world, policy.key(), pod);
            if !has_ended {
                world.pods.apply_not_honoured(policy.key(), &uid, controller);
            }
        }
    }
}

/// A pod that no poll has measured yet: one that is new has the cost of a new one, another keeps what we wrote on it before,
/// and of the rest nothing is known until the first poll.
fn apply(world: &World, policy: &Arc<CostPolicy>, pod: GovernedPod, governs: bool) {
    let (uid, owner, stored, created) = (pod.uid.clone(), pod.owner.clone(), pod.stored, pod.created);
    world.pods.apply(policy.key(), pod);
    if !governs || world.costs.get(&uid).is_some() {
        return;
    }
    let is_new = Timestamp::now().duration_since(created).as_secs() < policy.spec.new_pod_seconds.into();
    let (value, basis) = match stored {
        _ if is_new => (score::new_pod_cost(&policy.spec, world.costs.least_work(policy.key(), &owner)), Basis::New),
        Stored::Ours(value) => (value, Basis::Written),
        _ => return,
    };
    world.costs.insert(uid, Cost::unmeasured(value, basis, policy.clone()));
}

fn forget(world: &World, key: &PolicyKey, pod: Pod) {
    let uid = pod.metadata.uid.unwrap_or_default();
    world.pods.remove(key, &uid);
    world.costs.remove(&uid, key);
}

async fn watch_replica_sets(client: Client, namespace: String, world: Arc<World>) {
    let api: Api<PartialObjectMeta<ApiReplicaSet>> = Api::namespaced(client, &namespace);
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut seen = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(set)) => {
                let set = read_replica_set(&namespace, set);
                seen.insert(set.uid.clone());
                world.pods.apply_replica_set(set);
            }
            Ok(Event::InitDone) => world.pods.retain_replica_sets(&namespace, &seen),
            Ok(Event::Apply(set)) => world.pods.apply_replica_set(read_replica_set(&namespace, set)),
            Ok(Event::Delete(set)) => world.pods.remove_replica_set(&set.metadata.uid.unwrap_or_default()),
            Err(e) => warn!(namespace, error = %e, "watch of ReplicaSets failed; trying again"),
        }
    }
}

/// The Deployment or the Rollout among the owners of a ReplicaSet.
pub(super) fn parent_of(owners: Vec<OwnerReference>) -> Option<Parent> {
    owners.into_iter().filter(|owner| owner.controller == Some(true)).find_map(|owner| {
        let kind = match (owner.kind.as_str(), owner.api_version.split('/').next()) {
            ("Deployment", Some("apps")) => ParentKind::Deployment,
            ("Rollout", Some("argoproj.io")) => ParentKind::Rollout,
            _ => return None,
        };
        Some(Parent { kind, name: owner.name })
    })
}

pub(super) fn read_replica_set(namespace: &str, set: PartialObjectMeta<ApiReplicaSet>) -> ReplicaSet {
    let owners = set.metadata.owner_references.unwrap_or_default();
    ReplicaSet { namespace: namespace.into(), uid: set.metadata.uid.unwrap_or_default(), parent: parent_of(owners) }
}
