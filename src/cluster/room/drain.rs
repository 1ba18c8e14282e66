//! Placeholders go when their runners go: not after the last job, since nobody asks for a job any more, and they come back with new runners.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::api::Pool;
use crate::api::headroom_pool::Drained;
use crate::cluster::listing::{CALL_LIMIT, each, find, is_absent};
use crate::cluster::shapes::resource;
use crate::cluster::status::FIELD_MANAGER;
use crate::headroom::Object;
use crate::headroom::object::{Body, Kind};
use crate::headroom::room::{Owner, Pod};

/// What can be scaled to zero.
const SCALABLE: [Kind; 3] = [Kind::Deployment, Kind::StatefulSet, Kind::ReplicaSet];

/// How often it is looked whether the runners' controllers are at zero, where no runner is left to tell, and whether what was scaled to zero still
/// is.
const LOOK: Duration = Duration::from_secs(5);

/// What is to be done about one pool's placeholders.
#[derive(Debug, Default)]
pub struct Drain {
    /// What the pool's status must say.
    pub drained: Vec<Drained>,
    pub scale_down: Vec<Drained>,
    pub restore: Vec<Drained>,
}

/// A workload as it was listed.
struct Workload {
    kind: Kind,
    namespace: String,
    name: String,
    uid: String,
    owners: BTreeSet<String>,
    replicas: u32,
}

pub struct Drains {
    client: Client,
    /// The owner of a ReplicaSet, by its UID.
    owners: HashMap<String, Option<String>>,
    /// When the workloads of a pool were looked at last, and how its runners stood then.
    looked: HashMap<String, (Instant, Vec<Standing>)>,
}

/// A runner: its UID, whether it stops, and whether it runs.
type Standing = (String, bool, bool);

/// How the runners of a pool stand, or those of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runners {
    Working,
    Stopping,
    /// Nothing that would say so: none is there, or they are only starting.
    Unknown,
}

impl Runners {
    fn of<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> Self {
        let (mut stopping, mut working) = (false, false);
        for pod in pods {
            stopping |= pod.is_leaving;
            working |= pod.is_alive() && pod.is_running;
        }
        match (working, stopping) {
            (true, _) => Self::Working,
            (false, true) => Self::Stopping,
            (false, false) => Self::Unknown,
        }
    }
}

impl Drains {
    pub fn new(client: Client) -> Self {
        Self { client, owners: HashMap::new(), looked: HashMap::new() }
    }

    /// Looks at the runners. Nothing is asked for while they work and nothing is drained.
    pub async fn plan(&mut self, pool: &Pool, pods: &[Arc<Pod>], drained: &[Drained]) -> Drain {
        let unchanged = Drain { drained: drained.to_vec(), ..Drain::default() };
        let Some(drain_with) = &pool.spec.drain_with else {
            // Nobody wants it any more.
            return Drain { restore: drained.to_vec(), ..Drain::default() };
        };
        let runners: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pool.drains_with(&pod.namespace, &pod.labels)).collect();
        let all = Runners::of(runners.iter().copied());
        let any_stops = runners.iter().any(|pod| pod.is_leaving);
        // While they work and nothing is drained there is nothing to look for.
        if drained.is_empty() && !any_stops && all == Runners::Working {
            return unchanged;
        }
        let mut standing: Vec<Standing> = runners.iter().map(|pod| (pod.uid.clone(), pod.is_leaving, pod.is_running)).collect();
        standing.sort();
        // At once when a runner has changed, and now and then: somebody may have scaled what was drained, or a controller that has no runner left.
        let is_as_it_was = |(at, then): &(Instant, Vec<Standing>)| *then == standing && at.elapsed() < LOOK;
        if self.looked.get(&pool.name).is_some_and(is_as_it_was) {
            return unchanged;
        }
        let mut owner_of: HashMap<String, HashSet<String>> = HashMap::new();
        for pod in &runners {
            owner_of.insert(pod.uid.clone(), self.owners_of(pod).await);
        }
        let with_controllers = all == Runners::Unknown;
        let (workloads, controllers) = match self.look(pool, pods, drained, &drain_with.namespace, with_controllers).await {
            Ok(found) => found,
            Err(why) => {
                warn!(pool = pool.name, why, "cannot look at placeholder workloads; trying again");
                return unchanged;
            }
        };
        self.looked.insert(pool.name.clone(), (Instant::now(), standing));
        let mut drain = Drain::default();
        for workload in &workloads {
            let of_owner = |pod: &&&Arc<Pod>| {
                owner_of.get(&pod.uid).is_some_and(|owners| !owners.is_disjoint(&workload.owners.iter().cloned().collect()))
            };
            // It follows the runners of its own owner; where it has none, all of them.
            let has_own = runners.iter().any(|pod| of_owner(&pod)) || controllers.iter().any(|(uid, _)| workload.owners.contains(uid));
            let state = match has_own {
                true => Runners::of(runners.iter().filter(of_owner).copied()),
                false => all,
            };
            let mut its_controllers = controllers.iter().filter(|(uid, _)| !has_own || workload.owners.contains(uid)).peekable();
            let at_zero = its_controllers.peek().is_some() && its_controllers.all(|(_, replicas)| *replicas == 0);
            let known = drained.iter().find(|known| known.uid == workload.uid);
            match (state, known) {
                (Runners::Working, Some(known)) => drain.restore.extend((workload.replicas == 0).then(|| known.clone())),
                (_, Some(known)) => {
                    drain.drained.push(known.clone());
                    drain.scale_down.extend((workload.replicas > 0 && state == Runners::Stopping).then(|| known.clone()));
                }
                (state, None) if workload.replicas > 0 && (state == Runners::Stopping || (state == Runners::Unknown && at_zero)) => {
                    let Workload { kind, namespace, name, uid, replicas, .. } = workload;
                    let (kind, namespace, name, uid) = (kind.name().to_owned(), namespace.clone(), name.clone(), uid.clone());
                    let drained = Drained { kind, namespace, name, uid, replicas: *replicas };
                    drain.drained.push(drained.clone());
                    drain.scale_down.push(drained);
                }
                _ => {}
            }
        }
        drain
    }

    /// Placeholder workloads of the pool, and the runners' controllers with their replicas, where these are asked for.
    async fn look(
        &self,
        pool: &Pool,
        pods: &[Arc<Pod>],
        drained: &[Drained],
        runners: &str,
        with_controllers: bool,
    ) -> Result<(Vec<Workload>, Vec<(String, u32)>), String> {
        let own = pods.iter().filter(|pod| pod.placeholder_of.contains(&pool.name)).map(|pod| pod.namespace.clone());
        // What is drained has no pods any more.
        let drained = drained.iter().map(|drained| drained.namespace.clone());
        let namespaces: BTreeSet<String> = own.chain(drained).chain([runners.to_owned()]).collect();
        let (mut workloads, mut controllers) = (Vec::new(), Vec::new());
        for namespace in namespaces {
            for kind in SCALABLE {
                let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &resource(kind));
                let read = |object: DynamicObject| {
                    let (uid, name) = (object.uid().unwrap_or_default(), object.name_any());
                    let replicas = object.data.pointer("/spec/replicas").and_then(serde_json::Value::as_u64).unwrap_or(1) as u32;
                    let owners = object.owner_references().iter().map(|owner| owner.uid.clone()).collect();
                    let Some(reviewed) = serde_json::to_string(&object).ok().and_then(|text| Object::read(kind, &text).ok()) else {
                        return;
                    };
                    if reviewed.made_by_a_reviewed_template {
                        return;
                    }
                    let Body::Pod { labels, .. } = &reviewed.body else { return };
                    if with_controllers && pool.drains_with(&namespace, labels) {
                        controllers.push((uid.clone(), replicas));
                    }
                    if reviewed.is_marked_by(pool) {
                        workloads.push(Workload { kind, namespace: namespace.clone(), name, uid, owners, replicas });
                    }
                };
                match timeout(CALL_LIMIT, each(&api, ListParams::default(), read)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => return Err(e.to_string()),
                    Err(_) => return Err(format!("no answer within {CALL_LIMIT:?}")),
                }
            }
        }
        Ok((workloads, controllers))
    }

    /// The UIDs of who controls a pod: its controller, and that one's.
    async fn owners_of(&mut self, pod: &Pod) -> HashSet<String> {
        let Some(Owner { kind, name, uid }) = &pod.owner else { return HashSet::new() };
        if kind == "ReplicaSet" && !self.owners.contains_key(uid) {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &pod.namespace, &resource(Kind::ReplicaSet));
            match find(&api, name).await {
                Ok(set) => {
                    let owner =
                        set.and_then(|set| set.owner_references().iter().find(|o| o.controller == Some(true)).map(|o| o.uid.clone()));
                    self.owners.insert(uid.clone(), owner);
                }
                Err(why) => warn!(namespace = pod.namespace, replicaset = name, why, "cannot tell who owns a runner"),
            }
        }
        let above = self.owners.get(uid).cloned().flatten();
        above.into_iter().chain([uid.clone()]).collect()
    }

    pub async fn scale_down(&self, drained: &Drained) -> bool {
        scale(&self.client, drained, 0).await
    }

    /// As the function of this name.
    pub async fn restore(&self, drained: &Drained) -> Restored {
        restore(&self.client, drained).await
    }
}

/// What became of giving a workload its old number back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    Yes,
    /// Somebody has given it another number, or it is gone.
    NotOurs,
    /// To be tried again.
    Failed,
}

/// Gives a workload its old number back, where it is still at zero.
pub async fn restore(client: &Client, drained: &Drained) -> Restored {
    let Some(api) = api(client, drained) else { return Restored::NotOurs };
    let is_ours = |object: &DynamicObject| object.uid().as_ref() == Some(&drained.uid) && object.data["spec"]["replicas"] == 0;
    match find(&api, &drained.name).await {
        Ok(Some(object)) if is_ours(&object) => match scale(client, drained, drained.replicas).await {
            true => Restored::Yes,
            false => Restored::Failed,
        },
        Ok(_) => Restored::NotOurs,
        Err(why) => {
            warn!(namespace = drained.namespace, workload = drained.name, why, "cannot read a workload that was scaled to zero");
            Restored::Failed
        }
    }
}

fn api(client: &Client, drained: &Drained) -> Option<Api<DynamicObject>> {
    let kind = SCALABLE.into_iter().find(|kind| kind.name() == drained.kind)?;
    Some(Api::namespaced_with(client.clone(), &drained.namespace, &resource(kind)))
}

async fn scale(client: &Client, drained: &Drained, replicas: u32) -> bool {
    let Some(api) = api(client, drained) else { return false };
    let patch = json!({"metadata": {"uid": drained.uid}, "spec": {"replicas": replicas}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    match timeout(CALL_LIMIT, api.patch_scale(&drained.name, &params, &Patch::Merge(&patch))).await {
        Ok(Ok(_)) => true,
        Ok(Err(e)) if is_absent(&e) => false,
        Ok(Err(e)) => {
            warn!(namespace = drained.namespace, workload = drained.name, error = %e, "cannot scale placeholders");
            false
        }
        Err(_) => false,
    }
}
