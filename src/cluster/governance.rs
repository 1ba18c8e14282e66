//! Runs what a policy in force needs: a watch of its pods, a watch of its namespace's ReplicaSets, and its poller.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::ReplicaSet as ApiReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::World;
use super::pods::ReplicaSet;
use crate::api::CostPolicy;
use crate::api::policies::PolicyKey;
use crate::cost::score::{self, Basis};
use crate::cost::{Cost, GovernedPod};
use crate::server::metrics::Metrics;
use crate::signals::{Backend, poller};

/// The backends of the server configuration, by name.
pub type Backends = BTreeMap<String, Arc<dyn Backend>>;

/// A task that ends when it is dropped.
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Governed {
    policy: Arc<CostPolicy>,
    _tasks: Vec<Task>,
}

/// Follows the policies in force for as long as it is polled. Without a client the pods are those of files.
pub async fn run(world: Arc<World>, backends: Arc<Backends>, client: Option<Client>, metrics: Arc<Metrics>) {
    let mut changes = world.policy_changes();
    let mut governed: HashMap<PolicyKey, Governed> = HashMap::new();
    let mut namespaces: HashMap<String, Task> = HashMap::new();
    while changes.changed().await.is_ok() {
        let policies = world.policies();
        let wanted: HashMap<PolicyKey, &Arc<CostPolicy>> = policies.policies().map(|policy| (policy.key(), policy)).collect();
        governed.retain(|key, _| {
            let stays = wanted.contains_key(key);
            if !stays {
                world.pods.forget_policy(key);
                world.costs.forget_policy(key);
                info!(namespace = key.namespace, policy = key.name, "policy is gone");
            }
            stays
        });
        for (key, policy) in wanted {
            if governed.get(&key).is_some_and(|running| Arc::ptr_eq(&running.policy, policy)) {
                continue;
            }
            info!(namespace = key.namespace, policy = key.name, generation = policy.generation, "policy in force");
            governed.insert(key, start(policy.clone(), &world, &backends, client.as_ref(), &metrics));
        }
        if let Some(client) = &client {
            let in_use: HashSet<&str> = governed.keys().map(|key| key.namespace.as_str()).collect();
            namespaces.retain(|namespace, _| {
                let stays = in_use.contains(namespace.as_str());
                if !stays {
                    world.pods.retain_replica_sets(namespace, &HashSet::new());
                }
                stays
            });
            for namespace in in_use {
                namespaces
                    .entry(namespace.into())
                    .or_insert_with(|| Task::spawn(watch_replica_sets(client.clone(), namespace.into(), world.clone())));
            }
        }
    }
}

fn start(policy: Arc<CostPolicy>, world: &Arc<World>, backends: &Backends, client: Option<&Client>, metrics: &Arc<Metrics>) -> Governed {
    // A poll before the pods are known would find nobody, and the next one is a period away.
    let (listed, is_listed) = watch::channel(client.is_none());
    let mut tasks = Vec::new();
    if let Some(client) = client {
        tasks.push(Task::spawn(watch_pods(client.clone(), policy.clone(), world.clone(), listed)));
    }
    match backends.get(&policy.spec.backend) {
        Some(backend) => {
            let poller = poller::run(policy.clone(), backend.clone(), world.clone(), metrics.clone());
            tasks.push(Task::spawn(async move {
                let mut is_listed = is_listed;
                if is_listed.wait_for(|listed| *listed).await.is_ok() {
                    poller.await;
                }
            }));
        }
        None => warn!(policy = policy.name, backend = policy.spec.backend, "the server configuration has no such backend"),
    }
    Governed { policy, _tasks: tasks }
}

async fn watch_pods(client: Client, policy: Arc<CostPolicy>, world: Arc<World>, listed: watch::Sender<bool>) {
    let api: Api<Pod> = Api::namespaced(client, &policy.namespace);
    let config = watcher::Config::default().labels(&policy.selector.to_string());
    let mut events = pin!(watcher(api, config).default_backoff());
    let key = policy.key();
    let mut seen = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(pod)) => {
                if let Some(pod) = GovernedPod::read(&pod) {
                    seen.insert(pod.uid.clone());
                    apply(&world, &policy, pod);
                }
            }
            Ok(Event::InitDone) => {
                for uid in world.pods.retain(&key, &seen) {
                    world.costs.remove(&uid);
                }
                listed.send_replace(true);
            }
            Ok(Event::Apply(pod)) => {
                if let Some(pod) = GovernedPod::read(&pod) {
                    apply(&world, &policy, pod);
                }
            }
            Ok(Event::Delete(pod)) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                world.pods.remove(&key, &uid);
                world.costs.remove(&uid);
            }
            Err(e) => warn!(namespace = key.namespace, policy = key.name, error = %e, "watch of pods failed; trying again"),
        }
    }
}

/// A pod that no poll has measured yet has the cost of a new one: between two polls it must not look idle.
fn apply(world: &World, policy: &Arc<CostPolicy>, pod: GovernedPod) {
    let (uid, owner) = (pod.uid.clone(), pod.owner.clone());
    let is_new = world.pods.apply(&policy.key(), pod) && world.costs.get(&uid).is_none();
    if is_new {
        let value = score::new_pod_cost(&policy.spec, world.costs.least_work(&policy.key(), &owner));
        world.costs.insert(&uid, Cost { value, basis: Basis::New, stale: false, policy: policy.clone() });
    }
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

fn read_replica_set(namespace: &str, set: PartialObjectMeta<ApiReplicaSet>) -> ReplicaSet {
    let owner =
        set.metadata.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true) && owner.kind == "Deployment");
    ReplicaSet { namespace: namespace.into(), uid: set.metadata.uid.unwrap_or_default(), deployment: owner.map(|owner| owner.name) }
}
