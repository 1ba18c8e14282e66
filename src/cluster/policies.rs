//! Watches the policies, the pools and the PriorityClasses. A document that cannot be used is reported on its status, and
//! the last good one of its name stays in force.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::warn;

use super::World;
use super::conditions::Said;
use super::governance::Backends;
use super::status::Reporter;
use super::world::List;
use crate::api::documents::{Document, nearest};
use crate::api::policies::PolicyKey;
use crate::api::{CostPolicy, DeletionCostPolicy, DeletionCostPolicySpec, HeadroomPool, Pool, Problem, one_line};
use crate::cost::{Signal, signal};
use crate::headroom::{Class, Classes};
use crate::signals::Shared;

/// Follows the DeletionCostPolicies for as long as it is polled.
pub async fn watch_policies(client: Client, world: Arc<World>, backends: Arc<Backends>, reporter: Reporter) {
    watch::<DeletionCostPolicy>(client, world, backends, reporter, List::Policies).await;
}

/// Follows the HeadroomPools for as long as it is polled.
pub async fn watch_pools(client: Client, world: Arc<World>, backends: Arc<Backends>, reporter: Reporter) {
    watch::<HeadroomPool>(client, world, backends, reporter, List::Pools).await;
}

/// Objects come untyped: one that cannot be read must not hide the others, as it would in a typed list.
async fn watch<K>(client: Client, world: Arc<World>, backends: Arc<Backends>, reporter: Reporter, list: List)
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut seen = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(object)) => {
                seen.insert(key(&object));
                apply(&reporter, &resource, &world, &backends, object);
            }
            Ok(Event::InitDone) => {
                forget_unseen(&world, list, &seen);
                reporter.retain(&resource.kind, &seen);
                world.has_read(list);
            }
            Ok(Event::Apply(object)) => apply(&reporter, &resource, &world, &backends, object),
            Ok(Event::Delete(object)) => {
                forget(&world, list, &key(&object));
                reporter.gone(&resource.kind, &key(&object));
            }
            Err(e) => warn!(kind = resource.kind, error = %e, "watch failed; trying again"),
        }
    }
}

fn key(object: &DynamicObject) -> PolicyKey {
    PolicyKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

fn apply(reporter: &Reporter, resource: &ApiResource, world: &World, backends: &Backends, object: DynamicObject) {
    let result = put_in_force(world, backends, &resource.kind, &object);
    let some_version = result.is_ok() || {
        let (policies, key) = (world.policies(), key(&object));
        if resource.kind == "HeadroomPool" { policies.pool(&key.name).is_some() } else { policies.policy(&key).is_some() }
    };
    let result = result.map_err(|(reason, message)| match some_version {
        true => (reason, format!("{message}. The version before it stays in force")),
        false => (reason, format!("{message}. No version is in force")),
    });
    reporter.document(resource, object, Said::ready(result), some_version);
}

fn put_in_force(world: &World, backends: &Backends, kind: &str, object: &DynamicObject) -> Result<(), (&'static str, String)> {
    let value: Value = serde_json::to_value(object).map_err(|e| ("Invalid", e.to_string()))?;
    let document = Document::from_value(kind, value).map_err(|message| ("Invalid", message))?;
    let problems = document.problems();
    if !problems.is_empty() {
        return Err(("Invalid", one_line(&problems)));
    }
    match document {
        Document::DeletionCostPolicy(policy) => {
            let policy = CostPolicy::compile(&policy);
            check_backend(backends, &policy.spec, &policy.namespace)?;
            let in_force = world.policies();
            // A change of the status or of a label comes here too, and must not restart the policy's poller.
            if !in_force
                .policies()
                .any(|running| running.key() == policy.key() && running.spec == policy.spec && running.generation == policy.generation)
            {
                let compiled = Arc::new(policy);
                world.update_policies(|policies| policies.with_policy(compiled.clone()));
            }
        }
        Document::HeadroomClaim(_) => {}
        Document::HeadroomPool(pool) => {
            let compiled = Arc::new(Pool::compile(&pool));
            // Nor must it wake up whoever waits for changes.
            if world.policies().pool(&compiled.name).is_none_or(|running| running.spec != compiled.spec) {
                world.update_policies(|policies| policies.with_pool(compiled.clone()));
            }
        }
    }
    Ok(())
}

/// Refuses a backend that the server configuration does not have, before it silently measures nothing, and a query that the
/// backend must not be sent.
pub fn check_backend(backends: &Backends, policy: &DeletionCostPolicySpec, namespace: &str) -> Result<(), (&'static str, String)> {
    let name = &policy.backend;
    let Some(backend) = backends.get(name) else {
        let names = backends.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let hint = nearest(name, backends.keys().map(String::as_str)).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        let message = format!("spec.backend: found `{name}`, wanted a backend of the server configuration ({names}){hint}");
        return Err(("UnknownBackend", message));
    };
    let problems = query_problems(backend, policy, namespace);
    if problems.is_empty() { Ok(()) } else { Err(("InvalidQuery", one_line(&problems))) }
}

/// What is wrong with the queries of a policy, in the eyes of its backend.
pub fn query_problems(backend: &Shared, policy: &DeletionCostPolicySpec, namespace: &str) -> Vec<Problem> {
    let problem = |signal: Signal| {
        let why = backend.prepare(&signal.query, namespace).err()?;
        let own = policy.signals.iter().position(|entry| entry.name == signal.name && entry.query.is_some());
        let path = own.map_or("spec.preset".into(), |index| format!("spec.signals[{index}].query"));
        Some(Problem::new(path, format!("`{}`", signal.query), format!("a query that can be kept to its namespace: {why}")))
    };
    // What cannot be resolved has been refused already, with the reason.
    signal::resolve(policy).unwrap_or_default().into_iter().filter_map(problem).collect()
}

fn forget(world: &World, list: List, key: &PolicyKey) {
    world.update_policies(|policies| if list == List::Policies { policies.without_policy(key) } else { policies.without_pool(&key.name) });
}

fn forget_unseen(world: &World, list: List, seen: &HashSet<PolicyKey>) {
    let policies = world.policies();
    let known: Vec<PolicyKey> = match list {
        List::Policies => policies.policies().map(|policy| policy.key().clone()).collect(),
        _ => policies.pools().map(|pool| PolicyKey { namespace: String::new(), name: pool.name.clone() }).collect(),
    };
    for key in known.iter().filter(|key| !seen.contains(key)) {
        forget(world, list, key);
    }
}

/// What is kept of a PriorityClass.
pub fn read_class(class: &PriorityClass) -> Class {
    Class::new(class.value, class.global_default.unwrap_or(false), class.preemption_policy.as_deref())
}

/// Follows the PriorityClasses for as long as it is polled.
pub async fn watch_classes(client: Client, world: Arc<World>) {
    let api: Api<PriorityClass> = Api::all(client);
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut classes: BTreeMap<String, Class> = BTreeMap::new();
    let publish = |classes: &BTreeMap<String, Class>| {
        world.classes.store(Arc::new(Classes::new(classes.iter().map(|(name, class)| (name.clone(), *class)))));
    };
    let mut listing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                listing = true;
                classes.clear();
            }
            Ok(Event::InitApply(class) | Event::Apply(class)) => {
                classes.insert(class.name_any(), read_class(&class));
            }
            Ok(Event::InitDone) => {
                listing = false;
                world.has_read(List::Classes);
            }
            Ok(Event::Delete(class)) => {
                classes.remove(&class.name_any());
            }
            Err(e) => warn!(error = %e, "watch of PriorityClasses failed; trying again"),
        }
        // While a list is being read, the classes known before it stay in use.
        if !listing {
            publish(&classes);
        }
    }
}
