//! `pecking-order serve`: puts the parts together and runs them until it is told to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::RustlsAcceptor;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::cluster::autoscalers::Autoscalers;
use crate::cluster::budget::Budget;
use crate::cluster::floor::Floors;
use crate::cluster::governance::{self, Governance};
use crate::cluster::leadership::{self, Elector, Leadership};
use crate::cluster::own_account::OwnAccount;
use crate::cluster::scale_down::ScaleDowns;
use crate::cluster::standalone::{self, MemoryWriter};
use crate::cluster::status::Reporter;
use crate::cluster::truth::Observer;
use crate::cluster::world::List;
use crate::cluster::writer::{ApiWriter, PodWriter};
use crate::cluster::{World, doors, jitter, largest, policies, room, scan, shapes, waves};
use crate::server::certificates::{self, Keeper};
use crate::server::config::{Certificates, Config};
use crate::server::connections::http_server;
use crate::server::health::{self, Health};
use crate::server::metrics::Metrics;
use crate::server::telemetry;
use crate::server::webhook::Webhook;

/// After the drain, how long reviews that are under way may still take: the longest time-out of a hook.
const LAST_REVIEWS: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct Args {
    /// The server configuration
    #[arg(long, value_name = "FILE", env = "PECKING_ORDER_CONFIG")]
    config: Option<PathBuf>,
    /// Read policies and pools from this directory instead of the API server
    #[arg(long, value_name = "DIR", conflicts_with = "standalone")]
    policies: Option<PathBuf>,
    /// Serve without a cluster: read `server.yaml`, `policies/` and `cluster.yaml` from this directory
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    standalone: Option<PathBuf>,
    /// The namespace that we run in
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE", default_value = "pecking-order")]
    namespace: String,
    /// The name of the pod that we run in, which tells the replicas apart
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod_name: Option<String>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let file = args.standalone.as_ref().map(|directory| directory.join("server.yaml")).or(args.config.clone());
    let config = file.as_deref().map_or_else(|| Ok(Config::standalone()), Config::read)?;
    telemetry::start(&config.log)?;
    let directory = file.as_deref().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(args, config, &directory))?;
    Ok(ExitCode::SUCCESS)
}

/// What a replica has that may lead. Without policies of the API server nobody does, and nothing is written on our own account.
struct Leading {
    leases: Api<Lease>,
    leadership: Leadership,
    reporter: Reporter,
    autoscalers: Autoscalers,
    writing: Client,
}

async fn serve(args: Args, config: Config, directory: &Path) -> anyhow::Result<()> {
    let (world, metrics, health) = (Arc::new(World::default()), Arc::new(Metrics::default()), Arc::new(Health::default()));
    // None of these ever ends by itself. Should one do so, a fresh process is better than one that follows nothing any more.
    let mut essential = JoinSet::new();
    let clients = if args.standalone.is_none() { Some(connect().await?) } else { None };
    let backends = config
        .build_backends(directory, clients.as_ref().map(|(watching, _)| watching))
        .with_context(|| format!("the server configuration in {}", directory.display()))?;
    let identity = identity(args.pod_name.as_deref());
    let mut leading = None;
    let (client, writer): (Option<Client>, Arc<dyn PodWriter>) = match (clients, &args.standalone) {
        (Some((watching, writing)), _) => {
            if args.policies.is_none() {
                let elector = Elector::new(writing.clone(), &args.namespace, identity.clone());
                let leadership = elector.leadership();
                let (reporter, telling) = Reporter::new(writing.clone(), leadership.clone());
                let leases = elector.leases();
                essential.spawn(telling);
                essential.spawn(elector.run());
                let installed = doors::watch(writing.clone(), config.webhook_configuration(), leadership.clone(), reporter.clone());
                essential.spawn(installed);
                essential.spawn(scan::run(writing.clone(), config.scan, leadership.clone()));
                let (leads, counted) = (leadership.clone(), metrics.clone());
                essential.spawn(waves::run(writing.clone(), config.waves.clone(), world.clone(), leads, counted));
                essential.spawn(policies::watch_policies(watching.clone(), world.clone(), backends.clone(), reporter.clone()));
                essential.spawn(policies::watch_pools(watching.clone(), world.clone(), backends.clone(), reporter.clone()));
                leading = Some(Leading {
                    leases,
                    leadership,
                    reporter,
                    autoscalers: Autoscalers::new(writing.clone()),
                    writing: writing.clone(),
                });
            }
            essential.spawn(policies::watch_classes(watching.clone(), world.clone()));
            essential.spawn(shapes::watch(writing.clone(), world.clone()));
            essential.spawn(largest::watch(writing.clone(), world.clone()));
            (Some(watching), Arc::new(ApiWriter::new(writing)))
        }
        (None, files) => {
            standalone::read_world(files.as_deref().context("a directory, where there is no cluster")?, &world)?;
            (None, Arc::new(MemoryWriter { world: world.clone() }))
        }
    };
    if let Some(files) = &args.policies {
        let policies = standalone::read_policies(files)?;
        world.update_policies(|_| policies.clone());
        [List::Policies, List::Pools].into_iter().for_each(|list| world.has_read(list));
    }
    check_backends(&world, &backends)?;
    let budget = Arc::new(Budget::new(config.writes));
    let own_account = leading.as_ref().map(|leading| OwnAccount {
        world: world.clone(),
        writer: writer.clone(),
        budget: budget.clone(),
        leadership: leading.leadership.clone(),
        metrics: metrics.clone(),
    });
    if let Some((client, leading)) = client.as_ref().zip(leading.as_ref()) {
        essential.spawn(room::watches::run(client.clone(), world.clone()));
        let (leadership, reporter) = (leading.leadership.clone(), leading.reporter.clone());
        essential.spawn(
            room::Keeper::new(leading.writing.clone(), world.clone(), leadership, reporter, metrics.clone(), identity.clone()).run(),
        );
    }
    let floors = leading.as_ref().map(|leading| Floors {
        world: world.clone(),
        autoscalers: leading.autoscalers.clone(),
        leadership: leading.leadership.clone(),
        reporter: leading.reporter.clone(),
        metrics: metrics.clone(),
    });
    if let Some(floors) = &floors {
        essential.spawn(floors.clone().let_go());
    }
    let reporter = leading.as_ref().map(|leading| leading.reporter.clone());
    let governance = Governance {
        world: world.clone(),
        backends: backends.clone(),
        client: client.clone(),
        reporter: reporter.clone(),
        metrics: metrics.clone(),
        own_account,
        floors,
    };
    essential.spawn(governance.run());

    let certificates = match (&config.certificates, &args.standalone) {
        // Without a cluster there is no Secret to keep an authority in.
        (Certificates::SelfManaged(_), Some(_)) => Certificates::Ephemeral { ca_file: "ca.crt".into() },
        (configured, _) => configured.clone(),
    };
    let certificates = certificates::resolve(&certificates, directory);
    let keeper = Keeper::start(&certificates, client.as_ref(), &args.namespace, health.clone(), metrics.clone()).await?;
    let observer = Observer::new(world.clone(), metrics.clone(), reporter);
    let scale_downs = ScaleDowns::new(world.clone(), writer, budget, observer, metrics.clone(), config.scale_downs.settle_milliseconds);
    let webhook = Webhook::new(world.clone(), backends, scale_downs, metrics.clone(), health.clone()).router();

    let handle = Handle::new();
    let acceptor = RustlsAcceptor::new(keeper.config()).acceptor(NoDelayAcceptor::new());
    essential.spawn(keeper.run());
    let server = http_server("listen", config.listen, acceptor)?.http1_only().handle(handle.clone());
    let health_server = http_server("healthListen", config.health_listen, NoDelayAcceptor::new())?.http1_only();
    let health_router = health::router(health.clone(), world, metrics).into_make_service();
    essential.spawn(async move {
        if let Err(e) = health_server.serve(health_router).await {
            error!(error = %e, "the health port failed");
        }
    });
    tokio::spawn(stop_when_told(config.drain(), health.clone(), handle));
    health.is_listening();
    info!(listen = %config.listen, health = %config.health_listen, "serving");
    tokio::select! {
        served = server.serve(webhook.into_make_service()) => served.context("the server failed")?,
        _ = essential.join_next() => bail!("an essential task has ended; see the log"),
    }
    essential.shutdown().await;
    if let Some(Leading { leases, leadership, .. }) = leading {
        leadership::release(leases, leadership, &identity).await;
    }
    Ok(())
}

/// One client for watches, which retries by itself, and one for writes, whose caller knows how long it may take.
async fn connect() -> anyhow::Result<(Client, Client)> {
    let config = kube::Config::infer()
        .await
        .context("no API server: found neither a service account nor a kubeconfig; wanted one, or --standalone DIR")?;
    let mut writing = config.clone();
    writing.default_retry = false;
    Ok((Client::try_from(config)?, Client::try_from(writing)?))
}

/// A name that no other replica has, nor this one before a restart: a restarted process must not take itself for the leader.
fn identity(pod_name: Option<&str>) -> String {
    let share = (jitter() * f64::from(u32::MAX)) as u32;
    format!("{}_{share:08x}", pod_name.unwrap_or("pecking-order"))
}

fn check_backends(world: &World, backends: &governance::Backends) -> anyhow::Result<()> {
    for policy in world.policies().policies() {
        if let Err((_, message)) = policies::check_backend(backends, &policy.spec, &policy.namespace) {
            bail!("policy {}/{}: {message}", policy.namespace, policy.name);
        }
    }
    Ok(())
}

/// On SIGTERM: stop being ready, go on answering until nobody sends any more, finish what is under way.
async fn stop_when_told(drain: Duration, health: Arc<Health>, handle: Handle<SocketAddr>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        warn!("signals cannot be watched; stop the process by force");
        return;
    };
    let drain = tokio::select! {
        _ = terminate.recv() => drain,
        _ = interrupt.recv() => Duration::ZERO,
    };
    info!(?drain, "told to stop");
    health.start_draining();
    sleep(drain).await;
    handle.graceful_shutdown(Some(LAST_REVIEWS));
}
