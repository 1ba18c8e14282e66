//! `pecking-order clean-up`: takes away what we have written in a cluster, whether a replica of ours runs or not. Before the policies
//! go it does no good: the replicas that follow them would write it again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::HeadroomPool;
use crate::cluster::autoscalers::{self, Autoscalers};
use crate::cluster::listing::{each, is_absent};
use crate::cluster::room::drain::{self, Restored};
use crate::cluster::room::{ungate, watches};
use crate::cluster::writer::{ApiWriter, OwnCost, PodWriter, Written};
use crate::headroom::room::GATE;

/// Writes under way at once.
const PARALLEL: usize = 8;

/// How long one write may take, with its repetitions.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct Args {
    /// Only say what would be taken away
    #[arg(long)]
    dry_run: bool,
    /// At most so many writes a second
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    per_second: u32,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    super::with_cluster(async |client| clean_up(args, &client).await)
}

async fn clean_up(args: Args, client: &Client) -> anyhow::Result<ExitCode> {
    // First what keeps a workload larger than its owner wants it.
    let floors = let_go(&Autoscalers::new(client.clone()), args.dry_run).await?;
    // Then what keeps pods from running.
    let room = give_back_room(client, args.dry_run).await?;
    let costs = take_away_costs(client, &args).await?;
    Ok(if floors && room && costs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Puts back the minimum of every autoscaler on which a floor is held. Whether all of it could be done.
async fn let_go(autoscalers: &Autoscalers, dry_run: bool) -> anyhow::Result<bool> {
    let (held, failed) = autoscalers.held().await;
    let mut all = failed.is_empty();
    failed.iter().try_for_each(|why| super::print(why))?;
    for (handle, note) in &held {
        let (namespace, name) = (handle.namespace(), handle.target().name);
        let Some(note) = note else {
            all = false;
            super::print(&format!(
                "{namespace}/{name}: is labelled as held, but what its owner had written is not to be read; see to it by hand"
            ))?;
            continue;
        };
        if dry_run {
            super::print(&format!("{namespace}/{name}: a floor of {} would be let go", note.written))?;
            continue;
        }
        match autoscalers.release(handle, note, &|| true).await {
            autoscalers::Written::Yes => super::print(&format!("{namespace}/{name}: a floor of {} was let go", note.written))?,
            other => {
                all = false;
                super::print(&format!("{namespace}/{name}: the floor of {} cannot be let go ({other:?}); try again", note.written))?;
            }
        }
    }
    super::print(&format!("{} floors", held.len()))?;
    Ok(all)
}

/// Takes our gate from every pod that waits, and gives placeholder workloads that were scaled to zero their number back. Whether all of it
/// could be done.
async fn give_back_room(client: &Client, dry_run: bool) -> anyhow::Result<bool> {
    let mut waiting = Vec::new();
    let pods: Api<Pod> = Api::all(client.clone());
    let has_gate = |pod: &Pod| pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten()).any(|gate| gate.name == GATE);
    // A pod with gates has no node.
    let read = |pod: Pod| waiting.extend(Some(pod).filter(has_gate));
    each(&pods, ListParams::default().fields("spec.nodeName="), read).await.context("cannot list pods")?;
    let mut drained = Vec::new();
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<HeadroomPool>(&()));
    match each(&pools, ListParams::default(), |pool| drained.extend(watches::read_pool(&pool).status.drained)).await {
        Ok(()) => {}
        // Our kinds have gone already.
        Err(e) if is_absent(&e) => {}
        Err(e) => return Err(e).context("cannot list headroompools"),
    }
    if dry_run {
        super::print(&format!(
            "{} pods wait for room and would be let go; {} workloads would be scaled up again",
            waiting.len(),
            drained.len()
        ))?;
        return Ok(true);
    }
    let mut all = true;
    for pod in &waiting {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        if let Err(why) = ungate(client, &namespace, &name, pod.uid().as_deref()).await {
            all = false;
            super::print(&format!("{namespace}/{name}: our scheduling gate cannot be taken away ({why}); try again"))?;
        }
    }
    for workload in &drained {
        if drain::restore(client, workload).await == Restored::Failed {
            all = false;
            super::print(&format!("{}/{}: cannot be scaled up again; try again", workload.namespace, workload.name))?;
        }
    }
    super::print(&format!("{} pods that waited for room were let go; {} workloads were looked after", waiting.len(), drained.len()))?;
    Ok(all)
}

/// Takes away every cost that is still what we wrote. Whether all of it could be done.
async fn take_away_costs(client: &Client, args: &Args) -> anyhow::Result<bool> {
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client.clone());
    let mut costs = Vec::new();
    each(&pods, ListParams::default(), |pod| costs.extend(OwnCost::read(&pod.metadata))).await.context("cannot list pods")?;
    if args.dry_run {
        super::print(&format!("{} costs would be taken away", costs.len()))?;
        return Ok(true);
    }
    let (writer, start) = (ApiWriter::new(client.clone()), Instant::now());
    let erase = |(index, own): (u32, &OwnCost)| {
        let (writer, own, turn) = (&writer, own.clone(), start + Duration::from_secs(1) / args.per_second * index);
        async move {
            sleep_until(turn).await;
            timeout(WRITE_LIMIT, writer.erase(&own)).await
        }
    };
    let outcomes: Vec<_> = futures::stream::iter((0..).zip(&costs)).map(erase).buffer_unordered(PARALLEL).collect().await;
    let count = |wanted: fn(&Written) -> bool| outcomes.iter().flatten().filter(|written| wanted(written)).count();
    let (taken, gone) = (count(|written| matches!(written, Written::Yes { .. })), count(|written| *written == Written::Gone));
    let failed = costs.len() - taken - gone;
    super::print(&format!("{taken} costs were taken away; {gone} pods have gone meanwhile; {failed} could not be written"))?;
    Ok(failed == 0)
}
