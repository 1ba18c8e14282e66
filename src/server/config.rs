//! The server configuration: what belongs to the operator of the webhook, and to nobody who only writes policies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use serde::Deserialize;

use crate::api::documents;
use crate::cluster::budget::Limits;
use crate::cluster::governance::Backends;
use crate::cluster::scale_down::Settle;
use crate::cluster::{scan, waves};
use crate::signals::BackendConfig;

/// One YAML file. Paths in it are relative to the directory that holds it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Where reviews are answered, over TLS.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are answered, without TLS.
    #[serde(default = "default_health_listen")]
    pub health_listen: SocketAddr,
    #[serde(default)]
    pub certificates: Certificates,
    /// The metrics backends that policies may name.
    #[serde(default)]
    pub backends: BTreeMap<String, BackendConfig>,
    #[serde(default)]
    pub log: Log,
    /// How many costs may be written.
    #[serde(default)]
    pub writes: Limits,
    /// How scale-downs are held.
    #[serde(default)]
    pub scale_downs: ScaleDowns,
    /// Reports on what is in the cluster already.
    #[serde(default)]
    pub scan: scan::Config,
    /// Whether the worst spot reclaim would find room, as a metric.
    #[serde(default)]
    pub waves: waves::Config,
    /// How long after SIGTERM reviews are still accepted: the API server needs a moment to stop sending them.
    #[serde(default = "default_drain_seconds")]
    pub drain_seconds: u64,
}

/// Where the serving certificate comes from: exactly one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Certificates {
    /// An authority of our own, kept in a Secret.
    SelfManaged(SelfManaged),
    /// `tls.crt` and `tls.key` of a directory, such as a mounted Secret; read anew when they change.
    Directory(PathBuf),
    /// An authority that lasts as long as the process and is written to this file: for trying things out.
    Ephemeral { ca_file: PathBuf },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SelfManaged {
    /// The Secret's name; its namespace is the one we run in.
    #[serde(default = "default_secret")]
    pub secret: String,
    /// The Service by which the API server reaches us.
    #[serde(default = "default_name")]
    pub service: String,
    /// The name of both of our webhook configurations.
    #[serde(default = "default_name")]
    pub webhook_configuration: String,
    /// Further names or addresses by which we are reached.
    #[serde(default)]
    pub names: Vec<String>,
}

impl Default for Certificates {
    fn default() -> Self {
        Self::SelfManaged(SelfManaged {
            secret: default_secret(),
            service: default_name(),
            webhook_configuration: default_name(),
            names: vec![],
        })
    }
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScaleDowns {
    pub settle_milliseconds: Settle,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `pecking_order=debug,info`; `info` where absent.
    pub level: Option<String>,
    pub format: LogFormat,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
    /// JSON with Datadog's reserved attributes.
    Datadog,
}

impl Config {
    /// Reads the file; the message of an error has file, line, column and path.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = documents::read_text(file).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
        let config: Self = documents::yaml(&text).map_err(|(position, message)| {
            let (line, column) = position.unwrap_or((1, 1));
            anyhow::anyhow!("{}:{line}:{column}: {message}", file.display())
        })?;
        let drain = config.drain_seconds;
        anyhow::ensure!(drain <= 300, "{}: drainSeconds: found {drain}, wanted 0 to 300", file.display());
        if let Some(problem) = config
            .writes
            .problem()
            .or(config.scale_downs.settle_milliseconds.problem())
            .or(config.scan.problem())
            .or(config.waves.problem())
        {
            anyhow::bail!("{}: {problem}", file.display());
        }
        Ok(config)
    }

    /// The configuration of a process that was given none.
    pub fn standalone() -> Self {
        documents::yaml("{}").expect("every field has a default")
    }

    /// The name of our webhook configurations.
    pub fn webhook_configuration(&self) -> String {
        match &self.certificates {
            Certificates::SelfManaged(managed) => managed.webhook_configuration.clone(),
            Certificates::Directory(_) | Certificates::Ephemeral { .. } => default_name(),
        }
    }

    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// Makes the backends; paths are relative to `directory`.
    pub fn build_backends(&self, directory: &Path, client: Option<&Client>) -> anyhow::Result<Arc<Backends>> {
        let build = |(name, config): (&String, &BackendConfig)| {
            let backend = config.build(directory, client).with_context(|| format!("backends.{name}"))?;
            Ok((name.clone(), backend))
        };
        self.backends.iter().map(build).collect::<anyhow::Result<_>>().map(Arc::new)
    }
}

fn default_listen() -> SocketAddr {
    ([0, 0, 0, 0], 8443).into()
}

fn default_health_listen() -> SocketAddr {
    ([0, 0, 0, 0], 8080).into()
}

fn default_secret() -> String {
    "pecking-order-ca".into()
}

fn default_name() -> String {
    "pecking-order".into()
}

fn default_drain_seconds() -> u64 {
    10
}
