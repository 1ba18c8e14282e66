//! The log: one line per event, as text for people or JSON for machines.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use super::config::{Log, LogFormat};

/// Starts the log of the process, on standard error.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let level = log.level.as_deref().unwrap_or("info");
    let filter =
        EnvFilter::try_new(level).with_context(|| format!("log.level: found `{level}`, wanted error, warn, info, debug or trace"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let started = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|e| anyhow::anyhow!("cannot start the log: {e}"))
}
