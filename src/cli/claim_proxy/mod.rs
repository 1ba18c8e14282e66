//! `pecking-order claim-proxy`: stands between a job runner and where its jobs come from, and lets it ask only while there is room.

mod forward;
mod gitlab;
mod metrics;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    runner: Runner,
}

#[derive(Subcommand)]
enum Runner {
    /// For an unmodified GitLab Runner, which has this as its `url`
    Gitlab(gitlab::Args),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Runner::Gitlab(args) = args.runner;
    gitlab::run(args)
}
