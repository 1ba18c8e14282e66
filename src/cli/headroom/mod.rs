//! `pecking-order headroom`: what there is to know about placeholders; one file per question.

mod placeholder;
mod plan;
mod spot_labels;
mod status;

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show the pools and who holds their room
    Status(status::Args),
    /// Say how much headroom a reclaim of spot nodes needs, and where it is short
    Plan(plan::Args),
    /// Print placeholders that ask for what a workload asks for
    Placeholder(placeholder::Args),
    /// Print the node labels by which spot nodes are told
    SpotLabels(spot_labels::Args),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Status(args) => status::run(args),
        What::Plan(args) => plan::run(args),
        What::Placeholder(args) => placeholder::run(args),
        What::SpotLabels(args) => spot_labels::run(args),
    }
}
