//! Reads a whole cluster for a plan of its headroom: for the command, and for the leader where the operator wants the worst wave as a metric.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, TypeMeta};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::World;
use super::leadership::Leadership;
use super::listing::each;
use crate::api::Policies;
use crate::api::policies::Labels;
use crate::headroom::spot;
use crate::headroom::wave::{Cluster, Domain, IsPlaceholder, Options, Reader};
use crate::server::metrics::Metrics;

/// How long one plan may take: some 150,000 pods, 500 to a page.
const PLAN_LIMIT: Duration = Duration::from_secs(600);

/// `waves` of the server configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// How often the leader looks whether the worst wave would find room; 0 is off.
    pub every_seconds: u32,
    /// Which spot nodes are reclaimed together: `zone-type`, `node-pool` or `label=KEY`.
    pub by: Domain,
}

impl Config {
    /// What is wrong with the number, if anything.
    pub fn problem(&self) -> Option<String> {
        let fits = self.every_seconds == 0 || (30..=604_800).contains(&self.every_seconds);
        (!fits).then(|| format!("waves.everySeconds: found {}, wanted 0, or 30 to 604800", self.every_seconds))
    }
}

/// Whether some pool marks a pod. The mark label counts whether or not its pool is known.
pub fn is_placeholder(pools: &Policies) -> impl Fn(&Labels, Option<&str>) -> bool + Sync {
    move |labels, class| {
        let is_marked = |pool: &Arc<crate::api::Pool>| pool.marks_labels(labels) || class.is_some_and(|class| pool.marks_class(class));
        labels.contains_key(crate::api::HEADROOM_LABEL) || pools.pools().any(is_marked)
    }
}

/// Reads nodes and pods, page by page.
pub async fn read(client: &Client, is_placeholder: IsPlaceholder<'_>) -> anyhow::Result<Cluster> {
    let mut reader = Reader::default();
    list::<Node>(client, &mut reader, is_placeholder).await?;
    list::<Pod>(client, &mut reader, is_placeholder).await?;
    Ok(Reader::cluster([reader]))
}

async fn list<K: Resource<DynamicType = ()>>(
    client: &Client,
    reader: &mut Reader,
    is_placeholder: IsPlaceholder<'_>,
) -> anyhow::Result<()> {
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut failed = None;
    let read = |mut object: DynamicObject| {
        // The items of a list do not say of what kind they are.
        object.types = Some(TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
        let read = serde_json::to_vec(&object).map_err(anyhow::Error::from).and_then(|json| Ok(reader.read(&json, is_placeholder)?));
        failed = failed.take().or(read.err());
    };
    each(&api, ListParams::default(), read).await.with_context(|| format!("cannot list {}", resource.plural))?;
    failed.map_or(Ok(()), Err)
}

/// Looks now and then, for as long as it is polled, while we lead and there are pools. Without an interval it never does anything.
pub async fn run(client: Client, config: Config, world: Arc<World>, leadership: Leadership, metrics: Arc<Metrics>) {
    if config.every_seconds == 0 {
        return std::future::pending().await;
    }
    loop {
        sleep(Duration::from_secs(config.every_seconds.into())).await;
        let policies = world.policies();
        if !leadership.is_mine() || policies.pools().next().is_none() {
            metrics.no_wave();
            continue;
        }
        let mut rows = spot::built_in();
        rows.extend(policies.pools().flat_map(|pool| pool.spec.spot_nodes.iter().cloned()));
        match timeout(PLAN_LIMIT, read(&client, &is_placeholder(&policies))).await {
            Ok(Ok(cluster)) => {
                let domain = config.by.clone();
                // It may take seconds, in which this thread would serve nobody.
                let planned = tokio::task::spawn_blocking(move || {
                    cluster.plan(&Options { domain, spot_rows: &rows, shape: None, prices: Default::default() })
                });
                match planned.await {
                    Ok(plan) => metrics.wave(plan.placed.len(), plan.left.len(), plan.needed.iter().map(|need| need.count).sum()),
                    Err(e) => warn!(error = %e, "the plan of the headroom failed; the next one comes"),
                }
            }
            Ok(Err(e)) => warn!(error = format!("{e:#}"), "the plan of the headroom failed; the next one comes"),
            Err(_) => warn!("the plan of the headroom was not done within {PLAN_LIMIT:?}; the next one comes"),
        }
    }
}
