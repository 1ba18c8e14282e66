//! Signals: the metrics backends, one file each behind [`Backend`], and the pollers that keep costs current.
//!
//! To add a backend: write its file, add its variant to [`BackendConfig`] and its line to [`BackendConfig::build`].

mod aws;
mod cloudwatch;
mod confinement;
mod datadog;
mod endpoint;
mod file;
mod http;
pub mod matching;
mod pod_metrics;
pub mod poller;
mod prometheus;
mod promql;
pub mod report;
mod rows;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use kube::Client;
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

pub use rows::{Row, Rows};

/// A place that answers queries.
pub trait Backend: Send + Sync {
    /// The query as it is sent on behalf of a policy of this namespace; or why it must not be sent. The answer must tell nothing
    /// of other namespaces.
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String>;

    /// How often one policy may poll, whatever it says: the shortest period.
    fn least_period(&self) -> Duration {
        Duration::ZERO
    }

    /// The rows of one query that was prepared, at this moment. Bounded in time and in size by the backend's own configuration.
    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>>;
}

#[derive(Debug, Clone)]
pub struct Query {
    pub text: String,
    /// The namespace of the policy that asks.
    pub namespace: String,
    /// Samples that were older than this when the query was asked are not wanted.
    pub max_age: Duration,
}

/// How much of a text of a backend's is repeated.
const FOREIGN_CHARS: usize = 300;

/// After an answer that there were too many queries, nobody asks the backend for so long.
const QUIET: Duration = Duration::from_secs(60);

/// Queries under way at once to one backend: each may hold an answer of the greatest size. A backend that is slow keeps only
/// its own policies waiting.
const PARALLEL_QUERIES: usize = 4;

/// A backend of the server configuration, and whose turn it is to ask it.
pub struct Shared {
    backend: Box<dyn Backend>,
    turns: Semaphore,
    /// Until when the backend wants to be left alone.
    quiet_until: Mutex<Option<Instant>>,
}

impl Shared {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self { backend, turns: Semaphore::new(PARALLEL_QUERIES), quiet_until: Mutex::default() }
    }

    /// Held while a query is under way and its rows are kept.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Nobody closes the semaphore.
        self.turns.acquire().await.ok()
    }

    /// See [`Backend::prepare`]. A text of a policy's must not end the process, whatever it makes a parser do.
    pub fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        let prepared = std::panic::catch_unwind(AssertUnwindSafe(|| self.backend.prepare(query, namespace)));
        prepared.unwrap_or_else(|_| Err("reading it failed; please report this query".into()))
    }

    /// Asks, unless the backend has said a short while ago that it was asked too often.
    pub async fn ask(&self, query: &Query) -> Result<Rows, QueryError> {
        let quiet_until = *self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
        if quiet_until.is_some_and(|until| Instant::now() < until) {
            return Err(QueryError::TooOften);
        }
        let answer = self.backend.query(query).await;
        if matches!(answer, Err(QueryError::Status { status: 429, .. })) {
            *self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + QUIET);
        }
        answer
    }
}

impl std::ops::Deref for Shared {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.backend
    }
}

/// Why there is no answer. Never holds a credential.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("cannot read the credentials in {file}: {source}")]
    Credentials { file: String, source: std::io::Error },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("cannot reach the backend: {0}")]
    Unreachable(String),
    #[error("the backend answered with status {status}: {body}")]
    Status { status: u16, body: String },
    #[error("the backend was asked too often, and is left alone for a minute")]
    TooOften,
    #[error("the backend wants to redirect to another address, which is refused")]
    Redirect,
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the answer cannot be understood: {0}")]
    Malformed(String),
}

impl QueryError {
    /// An answer that cannot be used. What it says is cut, and kept on one line: it comes from elsewhere.
    pub fn malformed(why: impl std::fmt::Display) -> Self {
        Self::Malformed(plain(&why.to_string()))
    }

    /// A word from a closed list, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Credentials { .. } => "credentials",
            Self::Timeout(_) => "timeout",
            Self::Unreachable(_) => "unreachable",
            Self::Status { .. } => "status",
            Self::TooOften => "too_often",
            Self::Redirect => "redirect",
            Self::TooLarge(_) => "too_large",
            Self::Malformed(_) => "malformed",
        }
    }
}

/// A text of somebody else's for a log line or a status.
pub(crate) fn plain(text: &str) -> String {
    text.chars().take(FOREIGN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// One backend of the server configuration: exactly one of the kinds.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum BackendConfig {
    Prometheus(prometheus::Config),
    Datadog(datadog::Config),
    CloudWatch(cloudwatch::Config),
    Http(http::Config),
    PodMetrics(pod_metrics::Config),
    File(file::Config),
}

impl BackendConfig {
    /// Makes the backend; relative paths are relative to `directory`, the one that holds the server configuration. Without a
    /// cluster there is no client.
    pub fn build(&self, directory: &Path, client: Option<&Client>) -> anyhow::Result<Arc<Shared>> {
        let backend: Box<dyn Backend> = match self {
            Self::Prometheus(config) => Box::new(prometheus::Prometheus::new(config, directory)?),
            Self::Datadog(config) => Box::new(datadog::Datadog::new(config, directory)?),
            Self::CloudWatch(config) => Box::new(cloudwatch::CloudWatch::new(config, directory)?),
            Self::Http(config) => Box::new(http::Http::new(config, directory)?),
            Self::PodMetrics(pod_metrics::Config {}) => {
                let client = client.context("podMetrics: found no API server, which is what it asks")?;
                Box::new(pod_metrics::PodMetrics::new(client.clone()))
            }
            Self::File(config) => Box::new(file::File::new(config, directory)),
        };
        Ok(Arc::new(Shared::new(backend)))
    }
}
