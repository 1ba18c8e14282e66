//! Reads the workloads that pools name as the shape of their placeholders.

use std::sync::Arc;
use std::time::Duration;

use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::time::timeout;
use tracing::warn;

use super::{World, listing};
use crate::api::headroom_pool::Like;
use crate::headroom::object::{Body, Kind, Object, PodSpec};

/// How often: a workload that changes in what it requests is rare, and the rule only warns.
const LOOK: Duration = Duration::from_secs(30);

/// Keeps the shapes of all pools current for as long as it is polled.
pub async fn watch(client: Client, world: Arc<World>) {
    let mut changes = world.policy_changes();
    loop {
        let _ = timeout(LOOK, changes.changed()).await;
        for pool in world.policies().pools() {
            let Some(shape) = &pool.spec.shape else {
                if world.shapes.load().of(&pool.name).is_some() {
                    store(&world, &pool.name, None);
                }
                continue;
            };
            match read(&client, &shape.like).await {
                Ok(spec) => store(&world, &pool.name, spec),
                // What was read before stays in use.
                Err(why) => warn!(pool = pool.name, shape = %shape, why, "cannot read the workload that a pool's shape names"),
            }
        }
    }
}

fn store(world: &World, pool: &str, spec: Option<PodSpec>) {
    let shapes = world.shapes.load_full();
    world.shapes.store(Arc::new((*shapes).clone().with(pool, spec)));
}

/// `None` where there is no such workload.
pub async fn read(client: &Client, like: &Like) -> Result<Option<PodSpec>, String> {
    let kind = like.kind.kind();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &like.namespace, &resource(kind));
    let Some(object) = listing::find(&api, &like.name).await? else { return Ok(None) };
    let text = serde_json::to_string(&object).map_err(|e| e.to_string())?;
    match Object::read(kind, &text).map_err(|e| e.to_string())?.body {
        Body::Pod { spec, .. } => Ok(Some(*spec)),
        Body::Class { .. } => Ok(None),
    }
}

/// How the API server names a reviewed kind.
pub fn resource(kind: Kind) -> ApiResource {
    let group = kind.group();
    let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    let plural = match kind {
        Kind::PriorityClass => "priorityclasses".to_owned(),
        kind => format!("{}s", kind.name().to_lowercase()),
    };
    ApiResource { group: group.into(), version: "v1".into(), api_version, kind: kind.name().into(), plural }
}
