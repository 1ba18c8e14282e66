//! `pecking-order order`: the order in which a workload's pods would be removed, and the rule that decides between
//! neighbours. Reads a cluster, or the files of a standalone directory.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use tracing::warn;

use crate::admission::scale_downs::{Parent, ParentKind, Workload, plan};
use crate::api::CostPolicy;
use crate::api::policies::PolicyKey;
use crate::cluster::pods::Family;
use crate::cluster::policies::check_backend;
use crate::cluster::status::PollReporter;
use crate::cluster::{World, listing, standalone};
use crate::cost::readings::{Reading, Readings};
use crate::cost::victims::{self, Rule};
use crate::cost::{GovernedPod, Signal, Stored};
use crate::server::config::{Config, Log};
use crate::server::metrics::Metrics;
use crate::server::telemetry;
use crate::signals::poller::{Known, Poller};

#[derive(clap::Args)]
pub struct Args {
    /// The workload: deployment, replicaset, rollout (of Argo) or replicationcontroller, and its name
    #[arg(value_name = "KIND/NAME")]
    workload: String,
    /// The workload's namespace; that of the kubeconfig by default
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Mark the pods that would go if this many were to stay
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// A server configuration: measure with its backends, and show the writes that a scale-down would make. Without it the
    /// order is the one of the costs that stand on the pods now
    #[arg(long, value_name = "FILE", conflicts_with = "standalone")]
    config: Option<PathBuf>,
    /// Read `server.yaml`, `policies/` and `cluster.yaml` of this directory instead of a cluster
    #[arg(long, value_name = "DIR")]
    standalone: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Kind {
    Parent(ParentKind),
    ReplicaSet,
    ReplicationController,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Output {
    Table,
    /// With each signal's value and points
    Wide,
    Json,
}

/// A pod and its place.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    pod: String,
    node: Option<String>,
    goes: bool,
    /// The current cost; absent where it was not measured.
    cost: Option<i32>,
    from: Option<&'static str>,
    signals: Vec<Part>,
    /// What stands on the pod, or will once it is written.
    stored: i32,
    /// Who wrote what stands there now.
    stored_by: &'static str,
    to_be_written: bool,
    /// Why it goes before the next pod.
    rule: Option<&'static str>,
    /// Kubernetes decides between this pod and the next by their UIDs, which says nothing about them.
    arbitrary: bool,
}

/// What one signal contributes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    signal: String,
    value: Option<f64>,
    points: Option<f64>,
    age_seconds: Option<i64>,
    stale: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    telemetry::start(&Log { level: Some("warn".into()), ..Log::default() })?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(show(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn show(args: Args) -> anyhow::Result<()> {
    let (kind, name) = match args.workload.split_once('/').filter(|(_, name)| !name.is_empty()) {
        Some(("deployment" | "deployments" | "deploy", name)) => (Kind::Parent(ParentKind::Deployment), name),
        Some(("rollout" | "rollouts" | "ro", name)) => (Kind::Parent(ParentKind::Rollout), name),
        Some(("replicaset" | "replicasets" | "rs", name)) => (Kind::ReplicaSet, name),
        Some(("replicationcontroller" | "replicationcontrollers" | "rc", name)) => (Kind::ReplicationController, name),
        _ => bail!(
            "workload: found `{}`, wanted deployment/NAME, replicaset/NAME, rollout/NAME or replicationcontroller/NAME",
            args.workload
        ),
    };
    let world = Arc::new(World::default());
    let (client, namespace, workload) = match &args.standalone {
        Some(directory) => {
            standalone::read_world(directory, &world)?;
            let Kind::Parent(kind) = kind else {
                bail!("workload: found `{}`, wanted deployment/NAME or rollout/NAME: files do not name ReplicaSets by name", args.workload);
            };
            let workload = Workload::Parent(Parent { kind, name: name.into() });
            (None, args.namespace.clone().unwrap_or_else(|| "default".into()), workload)
        }
        None => read_cluster(&args, kind, name, &world).await?,
    };
    let configuration = args.standalone.as_ref().map(|directory| directory.join("server.yaml")).or(args.config.clone());
    let readings = match configuration {
        Some(file) => measure(&file, client.as_ref(), &namespace, &world).await?,
        None => HashMap::new(),
    };
    let family = world.pods.family(&namespace, &workload);
    if family.replica_sets.is_empty() {
        bail!("{} in namespace {namespace}: found no pods of it that a ReplicaSet or a ReplicationController controls", args.workload);
    }
    let active = family.replica_sets.iter().filter(|(_, pods)| pods.iter().any(|pod| pod.is_active())).count();
    if active > 1 && args.replicas.is_some() {
        bail!(
            "{}: found {active} ReplicaSets with pods, since a rollout is under way; wanted replicaset/NAME with --replicas",
            args.workload
        );
    }
    let now = Timestamp::now();
    let mut sets: Vec<Vec<Row>> = family
        .replica_sets
        .iter()
        .map(|(_, pods)| rows(&world, pods, &family, args.replicas.unwrap_or(pods.len()), &readings, now))
        .collect();
    // In a rollout there are several; the largest is what a person asks about.
    sets.sort_by_key(|rows| std::cmp::Reverse(rows.len()));
    show_rows(&sets, args.output)
}

async fn read_cluster(args: &Args, kind: Kind, name: &str, world: &World) -> anyhow::Result<(Option<Client>, String, Workload)> {
    let config = kube::Config::infer().await.context("no cluster: found no kubeconfig; wanted one, or --standalone DIR")?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config)?;
    listing::read_namespace(&client, &namespace, world).await?;
    let workload = match kind {
        Kind::Parent(kind) => Workload::Parent(Parent { kind, name: name.into() }),
        Kind::ReplicaSet => owner::<ReplicaSet>(&client, &namespace, name).await?,
        Kind::ReplicationController => owner::<ReplicationController>(&client, &namespace, name).await?,
    };
    Ok((Some(client), namespace, workload))
}

/// A workload that has pods itself is known by its UID.
async fn owner<K>(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Workload>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = api.get_metadata(name).await.with_context(|| format!("{}/{name} in namespace {namespace}", K::kind(&())))?;
    Ok(Workload::Owner { uid: found.uid().unwrap_or_default(), name: name.into() })
}

/// One poll of every policy of the namespace.
async fn measure(file: &Path, client: Option<&Client>, namespace: &str, world: &Arc<World>) -> anyhow::Result<HashMap<PolicyKey, Known>> {
    let config = Config::read(file)?;
    let backends = config.build_backends(file.parent().unwrap_or(Path::new(".")), client)?;
    let mut readings = HashMap::new();
    for policy in world.policies().in_namespace(namespace) {
        if let Err((_, message)) = check_backend(&backends, &policy.spec, namespace) {
            warn!(policy = policy.name, message, "this policy is not in force");
            world.update_policies(|policies| policies.without_policy(policy.key()));
            continue;
        }
        let Some(backend) = backends.get(&policy.spec.backend) else { continue };
        let known = Known::default();
        let poll = Poller::new(policy.clone(), backend.clone(), world.clone(), Arc::new(Metrics::default()), known.clone()).poll().await;
        PollReporter::new(None).report(policy, poll);
        readings.insert(policy.key().clone(), known);
    }
    Ok(readings)
}

/// The order after the writes that a scale-down to `stay` pods would make.
fn rows(
    world: &World,
    pods: &[Arc<GovernedPod>],
    family: &Family,
    stay: usize,
    readings: &HashMap<PolicyKey, Known>,
    now: Timestamp,
) -> Vec<Row> {
    let plan = plan(pods, &family.all, stay, &world.snapshot(), now);
    let written = |pod: &GovernedPod| plan.writes.iter().find(|write| write.uid == pod.uid).map(|write| Stored::Ours(write.cost));
    let after: Vec<GovernedPod> = pods
        .iter()
        .filter(|pod| pod.is_active())
        .map(|pod| GovernedPod { stored: written(pod).unwrap_or(pod.stored), ..GovernedPod::clone(pod) })
        .collect();
    let siblings = victims::siblings_on_node(family.all.iter().map(AsRef::as_ref).filter(|pod: &&GovernedPod| pod.is_active()));
    let mut order: Vec<&GovernedPod> = after.iter().collect();
    victims::sort(&mut order, &siblings, now);
    let go = order.len().saturating_sub(stay);
    let row = |(index, pod): (usize, &&GovernedPod)| {
        let before = pods.iter().find(|before| before.uid == pod.uid).map_or(pod.stored, |before| before.stored);
        let cost = world.costs.get(&pod.uid);
        let rule =
            order.get(index + 1).map(|next| victims::compare(pod, next, &siblings, now)).filter(|(order, _)| *order != Ordering::Greater);
        let signals = cost
            .as_ref()
            .and_then(|cost| Some(parts(&readings.get(cost.policy.key())?.lock().ok()?.readings, &cost.policy, &pod.uid, now)));
        Row {
            pod: pod.name.clone(),
            node: pod.node.clone(),
            goes: index < go,
            cost: cost.as_ref().map(|cost| cost.value),
            from: cost.as_ref().map(|cost| cost.basis.as_str()),
            signals: signals.unwrap_or_default(),
            stored: pod.stored.effective(),
            stored_by: match before {
                Stored::Unset => "nobody",
                Stored::Ours(_) => "us",
                Stored::Foreign(_) => "somebody else",
                Stored::Malformed => "somebody else, and no cost",
            },
            to_be_written: written(pod).is_some(),
            rule: rule.map(|(_, rule)| rule.as_str()),
            arbitrary: rule.is_some_and(|(_, rule)| matches!(rule, Rule::Uid | Rule::Equal)),
        }
    };
    order.iter().enumerate().map(row).collect()
}

fn parts(readings: &Readings, policy: &CostPolicy, uid: &str, now: Timestamp) -> Vec<Part> {
    let part = |(signal, reading): (&Signal, Reading)| {
        let (sample, stale) = match reading {
            Reading::Current(sample) => (Some(sample), false),
            Reading::LastKnown(sample) => (Some(sample), true),
            Reading::Nothing => (None, false),
        };
        Part {
            signal: signal.name.clone(),
            value: sample.map(|sample| sample.value),
            points: sample.map(|sample| signal.points(sample.value)),
            age_seconds: sample.map(|sample| now.duration_since(sample.time).as_secs()),
            stale,
        }
    };
    policy.signals.iter().zip(readings.of_pod(policy, uid, now)).map(part).collect()
}

fn show_rows(sets: &[Vec<Row>], output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return super::print(&serde_json::to_string_pretty(sets)?);
    }
    for rows in sets {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        let mut header = vec!["", "pod", "cost", "from", "stored", "goes before the next because"];
        if output == Output::Wide {
            header.extend(["node", "stored by", "signals"]);
        }
        table.set_header(header);
        for row in rows {
            let written = if row.to_be_written { " (to be written)" } else { "" };
            let mut cells = vec![
                if row.goes { "goes" } else { "stays" }.to_owned(),
                row.pod.clone(),
                row.cost.map_or("-".into(), |cost| cost.to_string()),
                row.from.unwrap_or("-").into(),
                format!("{}{written}", row.stored),
                row.rule.unwrap_or_default().into(),
            ];
            if output == Output::Wide {
                cells.extend([row.node.clone().unwrap_or("-".into()), row.stored_by.into(), signals_in_words(&row.signals)]);
            }
            table.add_row(cells);
        }
        super::print(&table.to_string())?;
    }
    Ok(())
}

fn signals_in_words(parts: &[Part]) -> String {
    let words = |part: &Part| match (part.value, part.points, part.age_seconds) {
        (Some(value), Some(points), Some(age)) => {
            format!("{} {value} = {points} ({age} s{})", part.signal, if part.stale { ", stale" } else { "" })
        }
        _ => format!("{} unknown", part.signal),
    };
    parts.iter().map(words).collect::<Vec<_>>().join(", ")
}
