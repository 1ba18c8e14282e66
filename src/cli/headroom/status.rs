//! `pecking-order headroom status`: the pools of a cluster and the claims on them.

use std::process::ExitCode;

use anyhow::Context;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::Output;
use crate::api::{HeadroomClaim, HeadroomPool};
use crate::cluster::listing::each;

#[derive(clap::Args)]
pub struct Args {
    /// Only the claims of this namespace
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    crate::cli::with_cluster(async |client| status(args, client).await)
}

async fn status(args: Args, client: Client) -> anyhow::Result<ExitCode> {
    let (mut pools, mut claims) = (Vec::new(), Vec::new());
    each(&Api::<HeadroomPool>::all(client.clone()), ListParams::default(), |pool| pools.push(pool))
        .await
        .context("cannot list headroompools")?;
    let api: Api<HeadroomClaim> = match &args.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    each(&api, ListParams::default(), |claim| claims.push(claim)).await.context("cannot list headroomclaims")?;
    claims.sort_by_key(|claim: &HeadroomClaim| (claim.spec.pool.clone(), claim.metadata.creation_timestamp.clone(), claim.name_any()));
    crate::cli::print(&match args.output {
        Output::Json => serde_json::to_string_pretty(&json!({ "pools": pools, "claims": claims }))?,
        Output::Table => format!("{}\n\n{}", pool_table(&pools), claim_table(&claims)),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn pool_table(pools: &[HeadroomPool]) -> Table {
    let mut table = Table::new();
    let header = ["pool", "desired", "bound", "in flight", "free", "pending", "oldest pending", "violations", "what is the matter"];
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for pool in pools {
        let status = pool.status.clone().unwrap_or_default();
        let number = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
        let oldest = status.oldest_pending.as_ref().map_or(String::new(), |time| age(time.0));
        let is_trouble =
            |c: &&Condition| matches!(c.type_.as_str(), "Ready" | "RoomUsable") && (c.status != "True" || c.reason == "ShapeNotFound");
        let matter = status.conditions.iter().find(is_trouble).map_or(String::new(), |c| format!("{}: {}", c.reason, c.message));
        table.add_row([
            pool.name_any(),
            number(status.desired),
            number(status.bound),
            number(status.in_flight),
            number(status.free),
            number(status.pending),
            oldest,
            number(status.violations),
            matter,
        ]);
    }
    table
}

fn claim_table(claims: &[HeadroomClaim]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["pool", "claim", "bound", "why", "age", "last sign"]);
    for claim in claims {
        let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let bound = conditions.iter().find(|condition| condition.type_ == "Bound");
        let (status, why) = bound.map_or(("?".into(), String::new()), |c| (c.status.clone(), format!("{}: {}", c.reason, c.message)));
        let created = claim.metadata.creation_timestamp.as_ref().map_or(String::new(), |time| age(time.0));
        let sign = claim.spec.renew_time.as_ref().map_or(created.clone(), |time| age(time.0));
        let name = format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
        table.add_row([claim.spec.pool.clone(), name, status, why, created, sign]);
    }
    table
}

/// How long ago, in whole seconds.
fn age(since: Timestamp) -> String {
    format!("{} s", Timestamp::now().duration_since(since).as_secs().max(0))
}
