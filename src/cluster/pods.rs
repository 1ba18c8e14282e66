//! The governed pods and the ReplicaSets of their namespaces. Memory follows the governed pods, not the cluster.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::admission::scale_downs::{Parent, Workload};
use crate::api::policies::PolicyKey;
use crate::api::{CostPolicy, Policies};
use crate::cost::GovernedPod;

/// What is kept of a ReplicaSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSet {
    pub namespace: String,
    pub uid: String,
    /// The Deployment or the Rollout that controls it.
    pub parent: Option<Parent>,
}

#[derive(Default)]
struct Inner {
    pods: HashMap<PolicyKey, HashMap<Arc<str>, Arc<GovernedPod>>>,
    replica_sets: HashMap<Arc<str>, ReplicaSet>,
    /// Selected pods whose controller does not read the cost: UID and what controls them.
    not_honoured: HashMap<PolicyKey, HashMap<String, &'static str>>,
    /// Policies whose pods are all known.
    listed: HashSet<PolicyKey>,
    /// Namespaces whose ReplicaSets are all known.
    sets_listed: HashSet<String>,
}

/// Pods by policy and UID.
pub struct PodStore {
    inner: RwLock<Inner>,
    changed: watch::Sender<()>,
}

impl Default for PodStore {
    fn default() -> Self {
        Self { inner: RwLock::default(), changed: watch::Sender::new(()) }
    }
}

/// The pods of one ReplicaSet, and those of all ReplicaSets of its Deployment or Rollout.
#[derive(Debug, Default)]
pub struct Family {
    /// By ReplicaSet UID; only those that have pods.
    pub replica_sets: Vec<(String, Vec<Arc<GovernedPod>>)>,
    pub all: Vec<Arc<GovernedPod>>,
}

impl PodStore {
    /// Puts a pod in, or its newer state.
    pub fn apply(&self, policy: &PolicyKey, pod: GovernedPod) {
        let mut inner = self.write();
        let mut pod = pod;
        if let Some((owner, _)) = inner.replica_sets.get_key_value(&*pod.owner) {
            // One text for all pods of a ReplicaSet.
            pod.owner = owner.clone();
        }
        if let Some(others) = inner.not_honoured.get_mut(policy) {
            // A ReplicaSet may adopt a pod.
            others.remove(&*pod.uid);
        }
        inner.pods.entry(policy.clone()).or_default().insert(pod.uid.clone(), Arc::new(pod));
        drop(inner);
        self.changed.send_replace(());
    }

    /// Notes that a policy's pods have been listed once.
    pub fn set_listed(&self, policy: &PolicyKey) {
        self.write().listed.insert(policy.clone());
    }

    pub fn unset_listed(&self, policy: &PolicyKey) {
        self.write().listed.remove(policy);
    }

    pub fn is_listed(&self, policy: &PolicyKey) -> bool {
        self.read().listed.contains(policy)
    }

    /// A pod as this policy's watch has seen it.
    pub fn get(&self, policy: &PolicyKey, uid: &str) -> Option<Arc<GovernedPod>> {
        self.read().pods.get(policy)?.get(uid).cloned()
    }

    /// The versions of a policy's pods, by UID.
    pub fn versions(&self, policy: &PolicyKey) -> HashMap<Arc<str>, u64> {
        self.read().pods.get(policy).into_iter().flatten().map(|(uid, pod)| (uid.clone(), pod.version)).collect()
    }

    /// Notes a selected pod whose controller does not read the cost.
    pub fn apply_not_honoured(&self, policy: &PolicyKey, uid: &str, controller: &'static str) {
        self.write().not_honoured.entry(policy.clone()).or_default().insert(uid.into(), controller);
    }

    /// How many selected pods have a controller that does not read the cost, by what controls them.
    /// Those that a policy before this one selects are that one's.
    pub fn not_honoured(&self, policy: &CostPolicy, policies: &Policies) -> Vec<(&'static str, u32)> {
        let inner = self.read();
        let earlier: Vec<_> = policies.before(policy).filter_map(|other| inner.not_honoured.get(other.key())).collect();
        let mut counts = BTreeMap::new();
        for (uid, controller) in inner.not_honoured.get(policy.key()).into_iter().flatten() {
            if !earlier.iter().any(|others| others.contains_key(uid)) {
                *counts.entry(*controller).or_default() += 1;
            }
        }
        counts.into_iter().collect()
    }

    pub fn remove(&self, policy: &PolicyKey, uid: &str) {
        let mut inner = self.write();
        if let Some(pods) = inner.pods.get_mut(policy) {
            pods.remove(uid);
        }
        if let Some(others) = inner.not_honoured.get_mut(policy) {
            others.remove(uid);
        }
        drop(inner);
        self.changed.send_replace(());
    }

    /// Keeps only these pods of a policy: what a list did not show is gone. Returns the UIDs of those that are.
    pub fn retain(&self, policy: &PolicyKey, seen: &HashSet<String>) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        let mut inner = self.write();
        if let Some(others) = inner.not_honoured.get_mut(policy) {
            others.retain(|uid, _| seen.contains(uid));
        }
        if let Some(pods) = inner.pods.get_mut(policy) {
            pods.retain(|uid, _| {
                seen.contains(&**uid) || {
                    gone.push(uid.clone());
                    false
                }
            });
        }
        drop(inner);
        self.changed.send_replace(());
        gone
    }

    pub fn forget_policy(&self, policy: &PolicyKey) {
        let mut inner = self.write();
        inner.pods.remove(policy);
        inner.not_honoured.remove(policy);
        inner.listed.remove(policy);
        drop(inner);
        self.changed.send_replace(());
    }

    pub fn apply_replica_set(&self, set: ReplicaSet) {
        self.write().replica_sets.insert(set.uid.as_str().into(), set);
    }

    pub fn remove_replica_set(&self, uid: &str) {
        self.write().replica_sets.remove(uid);
    }

    /// Keeps only these ReplicaSets of a namespace, which are all that there are.
    pub fn retain_replica_sets(&self, namespace: &str, seen: &HashSet<String>) {
        let mut inner = self.write();
        inner.sets_listed.insert(namespace.into());
        inner.replica_sets.retain(|uid, set| set.namespace != namespace || seen.contains(&**uid));
    }

    pub fn knows_replica_sets(&self, namespace: &str) -> bool {
        self.read().sets_listed.contains(namespace)
    }

    /// Forgets the ReplicaSets of a namespace that nobody watches any more.
    pub fn forget_replica_sets(&self, namespace: &str) {
        let mut inner = self.write();
        inner.sets_listed.remove(namespace);
        inner.replica_sets.retain(|_, set| set.namespace != namespace);
    }

    /// The pods that a policy governs: those that it selects and no policy before it does.
    pub fn governed_by(&self, policy: &CostPolicy, policies: &Policies) -> Vec<Arc<GovernedPod>> {
        let inner = self.read();
        let earlier: Vec<_> = policies.before(policy).filter_map(|other| inner.pods.get(other.key())).collect();
        let Some(pods) = inner.pods.get(policy.key()) else { return vec![] };
        pods.iter().filter(|(uid, _)| !earlier.iter().any(|pods| pods.contains_key(*uid))).map(|(_, pod)| pod.clone()).collect()
    }

    pub fn has(&self, policy: &CostPolicy, uid: &str) -> bool {
        self.read().pods.get(policy.key()).is_some_and(|pods| pods.contains_key(uid))
    }

    /// The latest state of a pod, whichever policy governs it.
    pub fn find(&self, namespace: &str, uid: &str) -> Option<Arc<GovernedPod>> {
        self.read().pods.iter().filter(|(policy, _)| policy.namespace == namespace).find_map(|(_, pods)| pods.get(uid)).cloned()
    }

    /// The governed pods of a workload. For a ReplicaSet, `replica_sets` holds only that one, and `all` its siblings too.
    pub fn family(&self, namespace: &str, workload: &Workload) -> Family {
        let inner = self.read();
        let parent = match workload {
            Workload::Parent(parent) => Some(parent),
            Workload::Owner { uid, .. } => inner.replica_sets.get(uid.as_str()).and_then(|set| set.parent.as_ref()),
        };
        let is_kin = |owner: &str| {
            let same_parent = inner
                .replica_sets
                .get(owner)
                .is_some_and(|set| set.namespace == namespace && parent.is_some() && set.parent.as_ref() == parent);
            same_parent || matches!(workload, Workload::Owner { uid, .. } if uid == owner)
        };
        let mut family = Family::default();
        let mut seen = HashSet::new();
        let mut sets: HashMap<&str, Vec<Arc<GovernedPod>>> = HashMap::new();
        for (_, pods) in inner.pods.iter().filter(|(policy, _)| policy.namespace == namespace) {
            for pod in pods.values().filter(|pod| is_kin(&pod.owner)) {
                if seen.insert(&*pod.uid) {
                    family.all.push(pod.clone());
                    sets.entry(&pod.owner).or_default().push(pod.clone());
                }
            }
        }
        let wanted = |owner: &str| match workload {
            Workload::Parent(_) => true,
            Workload::Owner { uid, .. } => uid == owner,
        };
        family.replica_sets = sets.into_iter().filter(|(owner, _)| wanted(owner)).map(|(owner, pods)| (owner.to_owned(), pods)).collect();
        family
    }

    /// Wakes up whenever a pod changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn len(&self) -> usize {
        self.read().pods.values().map(HashMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    // A panic while the lock is held leaves the maps whole: every change is one call.
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::scale_downs::ParentKind;
    use crate::api::DeletionCostPolicy;
    use crate::cost::pod::tests::pod;

    fn policy(namespace: &str, name: &str) -> CostPolicy {
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": name, "namespace": namespace}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1}]}}))
        .unwrap();
        CostPolicy::compile(&policy)
    }

    fn names(pods: &[Arc<GovernedPod>]) -> Vec<&str> {
        let mut names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn the_policy_whose_name_sorts_first_governs() {
        let (store, policies) =
            (PodStore::default(), Policies::default().with_policy(policy("shop", "a")).with_policy(policy("shop", "b")));
        let [a, b] = ["a", "b"].map(|name| policy("shop", name));
        store.apply(a.key(), pod("both"));
        store.apply(b.key(), pod("both"));
        store.apply(b.key(), pod("second"));
        assert_eq!(names(&store.governed_by(&a, &policies)), ["both"]);
        assert_eq!(names(&store.governed_by(&b, &policies)), ["second"]);
    }

    /// DC-34: the same name in two namespaces is two policies.
    #[test]
    fn dc_34_forgetting_a_policy_leaves_its_namesake_alone() {
        let store = PodStore::default();
        let [red, blue] = ["red", "blue"].map(|namespace| policy(namespace, "gate"));
        store.apply(red.key(), GovernedPod { namespace: "red".into(), ..pod("r") });
        store.apply(blue.key(), GovernedPod { namespace: "blue".into(), ..pod("b") });
        store.forget_policy(red.key());
        assert!(store.find("red", "r").is_none() && store.find("blue", "b").is_some());
    }

    #[test]
    fn a_family_is_all_replica_sets_of_a_deployment() {
        let (store, key) = (PodStore::default(), policy("shop", "a").key().clone());
        for (uid, deployment) in [("old", Some("web")), ("new", Some("web")), ("other", Some("api")), ("bare", None)] {
            let parent = deployment.map(|name: &str| Parent { kind: ParentKind::Deployment, name: name.into() });
            store.apply_replica_set(ReplicaSet { namespace: "shop".into(), uid: uid.into(), parent });
            store.apply(&key, GovernedPod { owner: uid.into(), ..pod(uid) });
        }
        let of = |kind, name: &str| Workload::Parent(Parent { kind, name: name.into() });
        let deployment = store.family("shop", &of(ParentKind::Deployment, "web"));
        assert_eq!((deployment.replica_sets.len(), names(&deployment.all)), (2, vec!["new", "old"]));
        let set = |uid: &str| store.family("shop", &Workload::Owner { uid: uid.into(), name: uid.into() });
        assert_eq!((set("new").replica_sets.len(), names(&set("new").all)), (1, vec!["new", "old"]));
        assert_eq!(names(&set("bare").all), ["bare"]);
        assert!(set("unknown").all.is_empty());
        assert!(store.family("elsewhere", &of(ParentKind::Deployment, "web")).all.is_empty());
        assert!(store.family("shop", &of(ParentKind::Rollout, "web")).all.is_empty(), "the same name of another kind");
    }

    #[test]
    fn what_a_list_does_not_show_is_gone() {
        let (store, key) = (PodStore::default(), policy("shop", "a").key().clone());
        store.apply(&key, pod("stays"));
        store.apply(&key, pod("goes"));
        assert_eq!(store.retain(&key, &HashSet::from(["stays".into()])), ["goes".into()]);
        assert_eq!(store.len(), 1);
    }
}
