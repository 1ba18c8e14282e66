//! The log: one line per event, as text for people or JSON for machines.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::config::{Log, LogFormat};
use super::datadog_log::Datadog;

/// Starts the log of the process, on standard error.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let level = log.level.as_deref().unwrap_or("info");
    let wanted =
        || format!("log.level: found `{level}`, wanted error, warn, info, debug or trace, or a filter such as pecking_order=debug,info");
    // A lone word that is no level would be taken for the name of a module, and nothing would be logged.
    let filter = match level.contains(['=', ',']) {
        true => EnvFilter::try_new(level).with_context(wanted)?,
        false => EnvFilter::default().add_directive(level.parse::<LevelFilter>().with_context(wanted)?.into()),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let started = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Datadog => builder.event_format(Datadog).try_init(),
    };
    started.map_err(|e| anyhow::anyhow!("cannot start the log: {e}"))
}
