//! `pecking-order order`: the order in which a workload's pods would be removed, and the rule that decides between
//! neighbours. Reads the files of a standalone directory.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use k8s_openapi::jiff::Timestamp;

use crate::admission::scale_downs::{Workload, plan};
use crate::cluster::World;
use crate::cluster::standalone;
use crate::cost::{GovernedPod, Stored, victims};
use crate::server::config::{Config, Log};
use crate::server::metrics::Metrics;
use crate::server::telemetry;
use crate::signals::poller;

#[derive(clap::Args)]
pub struct Args {
    /// The workload, such as `deployment/web`
    #[arg(value_name = "deployment/NAME")]
    workload: String,
    /// The workload's namespace
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Mark the pods that would go if this many were to stay
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// The directory with `server.yaml`, `policies/` and `cluster.yaml`
    #[arg(long, value_name = "DIR")]
    standalone: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let name = match args.workload.split_once('/') {
        Some(("deployment" | "deployments" | "deploy", name)) if !name.is_empty() => name.to_owned(),
        _ => bail!("workload: found `{}`, wanted deployment/NAME", args.workload),
    };
    telemetry::start(&Log { level: Some("warn".into()), ..Log::default() })?;
    let world = Arc::new(World::default());
    standalone::read_world(&args.standalone, &world)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure(&args, &world))?;
    let family = world.pods.family(&args.namespace, &Workload::Deployment { name: name.clone() });
    let [(_, pods)] = family.replica_sets.as_slice() else {
        bail!(
            "deployment/{name} in namespace {}: found {} ReplicaSets with governed pods, wanted 1",
            args.namespace,
            family.replica_sets.len()
        );
    };
    let stay = args.replicas.unwrap_or(pods.len());
    println!("{}", table(&world, pods, &family.all, stay, Timestamp::now()));
    Ok(ExitCode::SUCCESS)
}

/// One poll of every policy.
async fn measure(args: &Args, world: &Arc<World>) -> anyhow::Result<()> {
    let config = Config::read(&args.standalone.join("server.yaml"))?;
    let backends = config.build_backends(&args.standalone)?;
    for policy in world.policies().policies() {
        let backend =
            backends.get(&policy.spec.backend).with_context(|| format!("policy {}: no backend `{}`", policy.name, policy.spec.backend))?;
        poller::poll_once(policy.clone(), backend.clone(), world.clone(), Arc::new(Metrics::default())).await;
    }
    Ok(())
}

/// The order after the writes that a scale-down to `stay` pods would make.
fn table(world: &World, pods: &[Arc<GovernedPod>], family: &[Arc<GovernedPod>], stay: usize, now: Timestamp) -> Table {
    let plan = plan(pods, family, stay, &world.snapshot(), now);
    let after: Vec<GovernedPod> = pods
        .iter()
        .filter(|pod| pod.is_active())
        .map(|pod| {
            let written = plan.writes.iter().find(|write| write.uid == pod.uid).map(|write| Stored::Ours(write.cost));
            GovernedPod { stored: written.unwrap_or(pod.stored), ..GovernedPod::clone(pod) }
        })
        .collect();
    let siblings = victims::siblings_on_node(family.iter().map(AsRef::as_ref).filter(|pod: &&GovernedPod| pod.is_active()));
    let mut order: Vec<&GovernedPod> = after.iter().collect();
    victims::sort(&mut order, &siblings, now);

    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["", "pod", "cost", "from", "stored", "goes before the next because"]);
    let go = order.len().saturating_sub(stay);
    for (index, pod) in order.iter().enumerate() {
        let cost = world.costs.get(&pod.uid);
        let why = order.get(index + 1).map_or("", |next| match victims::compare(pod, next, &siblings, now) {
            (Ordering::Greater, _) => "",
            (_, rule) => rule.as_str(),
        });
        let written = plan.writes.iter().any(|write| write.uid == pod.uid);
        table.add_row([
            if index < go { "goes" } else { "stays" }.to_owned(),
            pod.name.clone(),
            cost.as_ref().map_or("-".into(), |cost| cost.value.to_string()),
            cost.as_ref().map_or("-".into(), |cost| cost.basis.as_str().into()),
            format!("{}{}", pod.stored.effective(), if written { " (to be written)" } else { "" }),
            why.into(),
        ]);
    }
    table
}
