//! GitLab Runner asks `POST /api/v4/jobs/request` for a job. Here a claim comes first, and without room the answer is 204, "no job": the job
//! stays in GitLab's queue, for other runners or for later.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::get;
use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::forward::{Upstream, plain};
use super::metrics::Metrics;
use crate::cli::claim::{Owner, check_ttl, duration};
use crate::cluster::claims::{Claimant, Held, Waited};
use crate::server::connections::http_server;
use crate::server::telemetry;

/// Where jobs are asked for, below the upstream's path.
const JOB_REQUEST: &str = "/api/v4/jobs/request";

/// A job is a few hundred KB at most. Of a larger one the id is not looked for; its claim ends by its time to live.
const MOST_JOB_BYTES: usize = 16 << 20;

/// Found again after a restart by this label; its value is `--name`.
const LABEL: &str = "pecking-order.dev/claim-proxy";

/// A runner's long poll takes up to 50 s; what is under way when we are told to stop may end.
const LAST_REQUESTS: Duration = Duration::from_secs(75);

#[derive(clap::Args)]
pub struct Args {
    /// GitLab's URL
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// The HeadroomPool
    #[arg(long)]
    pool: String,
    /// The namespace of the claims, and of the jobs' pods
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Where the runner reaches this; it has no TLS, and belongs beside the runner
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8181")]
    listen: SocketAddr,
    /// Where `/livez` and `/metrics` are answered
    #[arg(long, value_name = "ADDRESS")]
    health_listen: Option<SocketAddr>,
    /// How long a request waits for room before it is answered "no job"
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    wait: Duration,
    /// How long a job's pod may take to appear and get a node; longer than a long poll
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    ttl: Duration,
    /// Tells the claims of this proxy from those of others; must stay the same over restarts
    #[arg(long, value_name = "NAME", default_value = "gitlab")]
    name: String,
    #[command(flatten)]
    owner: Owner,
}

struct Proxy {
    claimant: Claimant,
    upstream: Upstream,
    wait: Duration,
    metrics: Arc<Metrics>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    check_ttl(args.ttl)?;
    telemetry::start(&Default::default())?;
    crate::cli::with_cluster(async |client| serve(args, client).await)
}

async fn serve(args: Args, client: Client) -> anyhow::Result<ExitCode> {
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let claimant = Claimant::new(client, &namespace, &args.pool, args.ttl, args.owner.name_and_uid()).with_label(LABEL, &args.name);
    // Requests that were under way when the last one of us ended came to nothing.
    let left = claimant.release_left_over(LABEL, &args.name).await?;
    let (upstream, metrics) = (Upstream::new(&args.upstream)?, Arc::new(Metrics::default()));
    let proxy = Arc::new(Proxy { claimant, upstream, wait: args.wait, metrics: metrics.clone() });
    let router = Router::new().fallback(handle).with_state(proxy);
    let handle = Handle::new();
    // Not of HTTP/1 only: such a server of the library lets nobody change the protocol.
    let server = http_server("--listen", args.listen, NoDelayAcceptor::new())?.handle(handle.clone());
    if let Some(address) = args.health_listen {
        let router = Router::new().route("/livez", get(async || "ok\n")).route("/metrics", get(async move || metrics.encode()));
        let health = http_server("--health-listen", address, NoDelayAcceptor::new())?.http1_only();
        tokio::spawn(async move {
            if let Err(e) = health.serve(router.into_make_service()).await {
                warn!(error = %e, "the health port failed");
            }
        });
    }
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => handle.graceful_shutdown(Some(LAST_REQUESTS)),
            _ = interrupt.recv() => handle.shutdown(),
        }
    });
    info!(listen = %args.listen, pool = args.pool, namespace, released = left, "asking for jobs only while there is room");
    server.serve(router.into_make_service()).await.context("the proxy failed")?;
    Ok(ExitCode::SUCCESS)
}

async fn handle(State(proxy): State<Arc<Proxy>>, request: Request<Body>) -> Response<Body> {
    match request.method() == Method::POST && asks_for_a_job(proxy.upstream.below(request.uri().path())) {
        true => proxy.ask_for_a_job(request).await,
        false => proxy.upstream.forward(request).await,
    }
}

/// Whether GitLab would take a path for the one where jobs are asked for: as it reads it, not as it is written.
fn asks_for_a_job(path: &str) -> bool {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned();
    let segments: Vec<&str> = decoded.split('/').filter(|segment| !segment.is_empty() && *segment != ".").collect();
    let path = format!("/{}", segments.join("/"));
    path.strip_suffix(".json").unwrap_or(&path) == JOB_REQUEST
}

/// A claim that is let go when nothing came of it, also when the runner hangs up.
struct Guard(Option<Held>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            tokio::spawn(async move {
                if let Err(e) = held.release().await {
                    warn!(error = format!("{e:#}"), "a claim was not released");
                }
            });
        }
    }
}

impl Proxy {
    async fn ask_for_a_job(&self, mut request: Request<Body>) -> Response<Body> {
        // In a task of its own: should the runner hang up while the claim is being made, it is let go all the same.
        let claimant = self.claimant.clone();
        let asking = tokio::spawn(async move { claimant.ask().await.map(|held| Guard(Some(held))) });
        let mut guard = match asking.await.map_err(anyhow::Error::from).flatten() {
            Ok(guard) => guard,
            Err(e) => {
                warn!(error = format!("{e:#}"), "no claim can be made; no job is asked for");
                return self.no_room();
            }
        };
        let Some(held) = guard.0.clone() else { return self.no_room() };
        if held.wait(self.wait).await != Waited::Bound {
            return self.no_room();
        }
        // The answer is looked into.
        request.headers_mut().remove(ACCEPT_ENCODING);
        let answer = tokio::select! {
            answer = self.upstream.forward(request) => answer,
            why = held.keep_alive() => {
                warn!(why, "a claim has ended while a job was asked for");
                return plain(StatusCode::BAD_GATEWAY, "pecking-order: the claim has ended");
            }
        };
        match answer.status() {
            StatusCode::CREATED => self.tie(answer, &mut guard).await,
            StatusCode::NO_CONTENT => self.nothing("no_job", answer),
            _ => self.nothing("error", answer),
        }
    }

    fn no_room(&self) -> Response<Body> {
        self.metrics.request("no_room");
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    }

    fn nothing(&self, outcome: &'static str, answer: Response<Body>) -> Response<Body> {
        self.metrics.request(outcome);
        answer
    }

    /// A job has come: its claim ends with its pod.
    async fn tie(&self, answer: Response<Body>, guard: &mut Guard) -> Response<Body> {
        let (parts, body) = answer.into_parts();
        let mut chunks = body.into_data_stream();
        let mut whole: Vec<u8> = Vec::new();
        while whole.len() <= MOST_JOB_BYTES {
            match chunks.try_next().await {
                Ok(Some(chunk)) => whole.extend_from_slice(&chunk),
                Ok(None) => break,
                // The runner gets no job, so there will be no pod.
                Err(_) => {
                    return self.nothing("error", plain(StatusCode::BAD_GATEWAY, "pecking-order: the upstream's answer was cut short"));
                }
            }
        }
        // From here on the runner has the job, and the claim must stay until the pod has a node.
        let Some(held) = guard.0.take() else { return self.no_room() };
        match serde_json::from_slice::<Job>(&whole).map(|job| job.id()) {
            Ok(Some(id)) => match held.tie(&id).await {
                Ok(()) => info!(job = id, claim = held.name, "a job has come"),
                Err(e) => warn!(job = id, claim = held.name, error = format!("{e:#}"), "the claim ends by its time to live"),
            },
            _ => warn!(claim = held.name, "a job without an id has come; its claim ends by its time to live"),
        }
        self.metrics.request("job");
        let whole = stream::once(async move { Ok::<_, axum::Error>(Bytes::from(whole)) });
        Response::from_parts(parts, Body::from_stream(whole.chain(chunks)))
    }
}

/// The one field of a job that is looked at.
#[derive(Deserialize)]
struct Job {
    id: serde_json::Value,
}

impl Job {
    /// A number, as GitLab writes it, or a text.
    fn id(&self) -> Option<String> {
        match &self.id {
            serde_json::Value::Number(number) => Some(number.to_string()),
            serde_json::Value::String(text) => Some(text.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_job_is_known_however_it_is_written() {
        for path in [
            "/api/v4/jobs/request",
            "//api/v4//jobs/request/",
            "/api/v4/jobs/%72equest",
            "/api/v4/jobs/request.json",
            "/api/./v4/jobs/request",
        ] {
            assert!(asks_for_a_job(path), "{path}");
        }
        for path in ["/api/v4/jobs/1/trace", "/api/v4/jobs/request/artifacts", "/api/v4/jobs", "/"] {
            assert!(!asks_for_a_job(path), "{path}");
        }
    }
}
