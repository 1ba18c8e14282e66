//! The command line: one file per subcommand, all of one shape: an `Args` and a `run`.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use kube::{Client, Config};

use crate::headroom::report::Level;
use crate::server::install_crypto_provider;

pub mod check;
pub mod claim;
pub mod claim_proxy;
pub mod clean_up;
pub mod crds;
pub mod headroom;
pub mod import;
pub mod native_policies;
pub mod order;
pub mod scan;
pub mod serve;

/// Decides which pod goes first: deletion costs from real work, and headroom that works.
#[derive(Parser)]
#[command(name = "pecking-order", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer AdmissionReviews, and keep deletion costs current
    Serve(serve::Args),
    /// Show the order in which a workload's pods would be removed
    Order(order::Args),
    /// Say what is wrong with policies and pools in files
    Check(check::Args),
    /// Bring the configuration of another tool over
    Import(import::Args),
    /// What there is to know about placeholders
    Headroom(headroom::Args),
    /// Run a command while it holds the room of a placeholder
    Claim(claim::Args),
    /// Let a job runner ask for jobs only while there is room
    ClaimProxy(claim_proxy::Args),
    /// Hold what is in a cluster already against the rules of its pools
    Scan(scan::Args),
    /// Write the rules of pools as ValidatingAdmissionPolicies, which need no pod of ours
    NativePolicies(native_policies::Args),
    /// Take away what we have written in a cluster: costs on pods, and floors on autoscalers
    CleanUp(clean_up::Args),
    /// Write the CustomResourceDefinitions
    Crds(crds::Args),
}

impl Cli {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Order(args) => order::run(args),
            Command::Check(args) => check::run(args),
            Command::Import(args) => import::run(args),
            Command::Headroom(args) => headroom::run(args),
            Command::Claim(args) => claim::run(args),
            Command::ClaimProxy(args) => claim_proxy::run(args),
            Command::Scan(args) => scan::run(args),
            Command::NativePolicies(args) => native_policies::run(args),
            Command::CleanUp(args) => clean_up::run(args),
            Command::Crds(args) => crds::run(args),
        }
    }
}

/// Runs a command with a client for the cluster at hand, whose calls are not repeated by itself.
fn with_cluster(command: impl AsyncFnOnce(Client) -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    install_crypto_provider();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut config = Config::infer().await.context("no API server: found neither a kubeconfig nor a service account; wanted one")?;
        config.default_retry = false;
        command(Client::try_from(config)?).await
    })
}

/// 0: nothing, or warnings only; 1: something would be refused; 2: something could not be checked.
fn exit_code(levels: impl IntoIterator<Item = Level>, strict: bool) -> ExitCode {
    let found: BTreeSet<Level> = levels.into_iter().collect();
    let is_refused = found.contains(&Level::Error) || (strict && found.contains(&Level::Warning));
    ExitCode::from(if found.contains(&Level::Unchecked) { 2 } else { u8::from(is_refused) })
}

/// Prints a line. A reader that has seen enough, such as `head`, is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(stdout(), "{text}") {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
