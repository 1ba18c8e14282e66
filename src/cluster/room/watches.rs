//! Watches what room depends on. All pods come in one watch, in the order in which they changed: a job's pod that has got a node is never
//! seen before the placeholder that went for it. Of most pods nothing is kept.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Node as ApiNode, Pod as ApiPod, ResourceQuota};
use k8s_openapi::jiff::SignedDuration;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::store::{Kind, PoolState};
use crate::api::{HeadroomClaim, HeadroomPool, Policies};
use crate::cluster::World;
use crate::headroom::node::Node;
use crate::headroom::room::{Claim, Pod, Quota};

/// Follows everything for as long as it is polled, once there is a pool.
pub async fn run(client: Client, world: Arc<World>) {
    let mut changes = world.policy_changes();
    while world.policies().pools().next().is_none() {
        if changes.changed().await.is_err() {
            return;
        }
    }
    let room = &world.room;
    let nodes = listed(Api::<ApiNode>::all(client.clone()), "nodes", |change| match change {
        Change::All(nodes) => {
            room.replace_nodes(nodes.into_iter().map(Node::read).map(|node| (node.name.clone(), node)).collect());
            room.has_read(Kind::Nodes);
        }
        Change::One(node) => room.apply_node(Node::read(node)),
        Change::Gone(node) => room.remove_node(&node.name_any()),
    });
    let namespaces = listed(Api::<PartialObjectMeta<Namespace>>::all(client.clone()), "namespaces", |change| match change {
        Change::All(all) => {
            room.replace_namespaces(all.into_iter().map(|namespace| (namespace.name_any(), namespace.labels().clone())).collect());
            room.has_read(Kind::Namespaces);
        }
        Change::One(namespace) => room.set_namespace(namespace.name_any(), Some(namespace.labels().clone())),
        Change::Gone(namespace) => room.set_namespace(namespace.name_any(), None),
    });
    let quotas = listed(Api::<ResourceQuota>::all(client.clone()), "resourcequotas", |change| match change {
        Change::All(quotas) => {
            room.replace_quotas(quotas.into_iter().map(Quota::read).collect());
            room.has_read(Kind::Quotas);
        }
        Change::One(quota) => room.apply_quota(Quota::read(quota)),
        Change::Gone(quota) => room.remove_quota(&quota.namespace().unwrap_or_default(), &quota.name_any()),
    });
    let claims = listed(dynamic::<HeadroomClaim>(&client), "headroomclaims", |change| match change {
        Change::All(claims) => {
            room.replace_claims(claims.into_iter().filter_map(read_claim).collect());
            room.has_read(Kind::Claims);
        }
        Change::One(claim) => read_claim(claim).into_iter().for_each(|(claim, version)| room.apply_claim(claim, version)),
        Change::Gone(claim) => room.remove_claim(&claim.uid().unwrap_or_default()),
    });
    let pools = listed(dynamic::<HeadroomPool>(&client), "headroompools", |change| match change {
        Change::All(pools) => {
            room.replace_pools(pools.into_iter().map(|pool| (pool.name_any(), read_pool(&pool))).collect());
            room.has_read(Kind::Pools);
        }
        Change::One(pool) => room.apply_pool(pool.name_any(), read_pool(&pool)),
        Change::Gone(pool) => room.remove_pool(&pool.name_any()),
    });
    futures::join!(pods(client.clone(), world.clone()), nodes, namespaces, quotas, claims, pools);
}

fn dynamic<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

/// What a watch tells.
enum Change<K> {
    /// Everything that there is.
    All(Vec<K>),
    One(K),
    Gone(K),
}

/// Follows a kind of which there are few. While a list is being read, what was known before stays in use.
async fn listed<K>(api: Api<K>, what: &str, tell: impl Fn(Change<K>))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut list = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => list.clear(),
            Ok(Event::InitApply(object)) => list.push(object),
            Ok(Event::InitDone) => tell(Change::All(std::mem::take(&mut list))),
            Ok(Event::Apply(object)) => tell(Change::One(object)),
            Ok(Event::Delete(object)) => tell(Change::Gone(object)),
            Err(e) => warn!(what, error = %e, "watch failed; trying again"),
        }
    }
}

/// Follows the pods that have to do with room. When the pools mark or gate other pods than before, and when a new leader asks, they are listed
/// anew.
async fn pods(client: Client, world: Arc<World>) {
    let (mut changes, mut relists) = (world.policy_changes(), world.room.relists());
    loop {
        let policies = world.policies();
        let (looked_for, number) = (looked_for(&policies), *relists.borrow_and_update());
        if looked_for.is_empty() {
            world.room.forget_pods();
        }
        let following = follow_pods(client.clone(), &world, &policies, number);
        let mut following = pin!(following);
        let same_pods = |world: &World| self::looked_for(&world.policies()) == looked_for;
        loop {
            tokio::select! {
                () = &mut following, if !looked_for.is_empty() => return,
                changed = changes.changed() => match changed {
                    Ok(()) if same_pods(&world) => {}
                    Ok(()) => break,
                    Err(_) => return,
                },
                _ = relists.changed() => break,
            }
        }
    }
}

/// What says which pods have to do with room.
fn looked_for(policies: &Policies) -> Vec<String> {
    let of_pool = |pool: &Arc<crate::api::Pool>| {
        let (spec, gate) = (&pool.spec, pool.spec.gate.as_ref().map(|gate| &gate.pods));
        serde_json::to_string(&(&pool.name, &spec.placeholders, gate, &spec.drain_with)).unwrap_or_default()
    };
    policies.pools().map(of_pool).collect()
}

async fn follow_pods(client: Client, world: &World, policies: &Policies, number: u64) {
    let read = |pod: &ApiPod| keep(pod, policies);
    let mut events = pin!(watcher(Api::<ApiPod>::all(client), watcher::Config::default().page_size(500)).default_backoff());
    let mut list: Option<HashMap<String, Arc<Pod>>> = None;
    let mut kept: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => list = Some(HashMap::new()),
            Ok(Event::InitApply(pod)) => {
                list.iter_mut().for_each(|list| list.extend(read(&pod).map(|pod| (pod.uid.clone(), Arc::new(pod)))));
            }
            Ok(Event::InitDone) => {
                let list = list.take().unwrap_or_default();
                kept = list.keys().cloned().collect();
                world.room.replace_pods(list, number);
            }
            Ok(Event::Apply(pod)) => match read(&pod) {
                Some(pod) => {
                    kept.insert(pod.uid.clone());
                    world.room.apply_pod(pod);
                }
                // It has lost the label or the annotation by which it was one.
                None => pod.uid().into_iter().filter(|uid| kept.remove(uid)).for_each(|uid| world.room.remove_pod(&uid)),
            },
            Ok(Event::Delete(pod)) => pod.uid().into_iter().filter(|uid| kept.remove(uid)).for_each(|uid| world.room.remove_pod(&uid)),
            Err(e) => warn!(error = %e, "watch of pods for room failed; trying again"),
        }
    }
}

/// What is kept of a pod, if anything.
pub fn keep(pod: &ApiPod, policies: &Policies) -> Option<Pod> {
    let annotated = pod
        .annotations()
        .keys()
        .any(|key| key == crate::api::headroom_claim::CLAIM_ANNOTATION || key == crate::api::headroom_claim::JOB_ANNOTATION);
    let namespace = pod.namespace().unwrap_or_default();
    let is_waited_for = policies.pools().any(|pool| pool.gates(pod.labels()) || pool.drains_with(&namespace, pod.labels()));
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    let has_our_gate = gates.into_iter().any(|gate| gate.name == crate::headroom::room::GATE);
    let may_be_placeholder = policies.pools().any(|pool| {
        let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
        pool.marks_labels(pod.labels()) || class.is_some_and(|class| pool.marks_class(class))
    });
    if !(annotated || is_waited_for || has_our_gate || may_be_placeholder) {
        return None;
    }
    Pod::read(pod, |object| policies.pools().filter(|pool| object.is_marked_by(pool)).map(|pool| pool.name.clone()).collect())
}

/// A claim with its version.
pub fn read_claim(object: DynamicObject) -> Option<(Claim, String)> {
    let version = object.resource_version().unwrap_or_default();
    let name = object.name_any();
    let claim: HeadroomClaim = match serde_json::to_value(object).and_then(serde_json::from_value) {
        Ok(claim) => claim,
        Err(e) => {
            warn!(name, error = %e, "this claim cannot be read");
            return None;
        }
    };
    let metadata = claim.metadata;
    Some((
        Claim {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            pool: claim.spec.pool,
            ttl: SignedDuration::from_secs(claim.spec.ttl_seconds.into()),
            created: metadata.creation_timestamp.map(|time| time.0).unwrap_or_default(),
            renewed: claim.spec.renew_time.map(|time| time.0),
            job: claim.spec.job,
            is_leaving: metadata.deletion_timestamp.is_some(),
            conditions: claim.status.map(|status| status.conditions).unwrap_or_default(),
        },
        version,
    ))
}

pub fn read_pool(object: &DynamicObject) -> PoolState {
    let status = object.data.get("status").cloned().unwrap_or_default();
    PoolState {
        uid: object.uid().unwrap_or_default(),
        version: object.resource_version().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        status: serde_json::from_value(status).unwrap_or_default(),
    }
}
