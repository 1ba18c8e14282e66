//! `pecking-order claim`: runs a command while it holds the room of one placeholder.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::jiff::SignedDuration;
use kube::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::api::headroom_claim::{CLAIM_ANNOTATION, TTL};
use crate::cluster::claims::{Claimant, Held, Waited};

/// `EX_TEMPFAIL` of sysexits.h: try again later.
const NO_ROOM: u8 = 75;

/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// Signals that are passed on.
const PASSED_ON: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

#[derive(clap::Args)]
pub struct Args {
    /// The HeadroomPool
    pool: String,
    /// The namespace of the claim, and of the job's pod
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// How long to wait for room
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    wait: Duration,
    /// The claim ends so long after the last sign of this command
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    ttl: Duration,
    /// Write the annotation that the job's pod must carry into this file, as JSON
    #[arg(long, value_name = "FILE")]
    pod_annotation_file: Option<PathBuf>,
    #[command(flatten)]
    owner: Owner,
    /// What to run once there is room; the claim's name is in PECKING_ORDER_CLAIM
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The pod whose end ends a claim.
#[derive(Debug, Clone, clap::Args)]
pub struct Owner {
    /// The name of the pod that this runs in: the claim ends with it
    #[arg(long, value_name = "NAME", env = "POD_NAME", requires = "owner_uid")]
    owner_pod: Option<String>,
    /// Its UID
    #[arg(long, value_name = "UID", env = "POD_UID", requires = "owner_pod")]
    owner_uid: Option<String>,
}

impl Owner {
    pub fn name_and_uid(&self) -> Option<(String, String)> {
        self.owner_pod.clone().zip(self.owner_uid.clone())
    }
}

/// Such as `90s`, `10m` or `1h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Option<SignedDuration> = text.parse().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("found `{text}`, wanted a time such as 90s, 10m or 1h"))
}

/// What the API server would say of a time to live, said before anything is done.
pub fn check_ttl(ttl: Duration) -> anyhow::Result<()> {
    let fits = ttl.subsec_nanos() == 0 && u32::try_from(ttl.as_secs()).is_ok_and(|seconds| TTL.contains(&seconds));
    ensure!(fits, "--ttl: found {ttl:?}, wanted whole seconds from {} s to {} s", TTL.start(), TTL.end());
    Ok(())
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    check_ttl(args.ttl)?;
    super::with_cluster(async |client| claim(args, client).await)
}

async fn claim(args: Args, client: Client) -> anyhow::Result<ExitCode> {
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    // From here on a signal must not end us before the claim is let go.
    let mut signals = signals()?;
    let claimant = Claimant::new(client, &namespace, &args.pool, args.ttl, args.owner.name_and_uid());
    let held = claimant.ask().await?;
    let ended = while_held(&args, &held, &mut signals).await;
    let released = held.release().await;
    if let Err(e) = released {
        // It ends by itself, and what the command came to is what counts.
        eprintln!("pecking-order: {e:#}");
    }
    ended
}

async fn while_held(args: &Args, held: &Held, signals: &mut BoxStream<'static, Signal>) -> anyhow::Result<ExitCode> {
    let waited = tokio::select! {
        waited = held.wait(args.wait) => waited,
        Some(signal) = signals.next() => return Ok(exit_code(BY_SIGNAL + signal.as_raw())),
    };
    match waited {
        Waited::Bound => {}
        Waited::NoRoom(why) | Waited::Ended(why) => {
            eprintln!("pecking-order: no room in pool {} within {:?}: {why}", args.pool, args.wait);
            return Ok(ExitCode::from(NO_ROOM));
        }
    }
    if let Some(file) = &args.pod_annotation_file {
        let text = json!({ CLAIM_ANNOTATION: held.name }).to_string();
        std::fs::write(file, text).with_context(|| format!("--pod-annotation-file: cannot write {}", file.display()))?;
    }
    let (program, arguments) = args.command.split_first().context("a command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("PECKING_ORDER_CLAIM", &held.name)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut alive = std::pin::pin!(held.keep_alive());
    let mut is_current = true;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code_of(status.context("cannot wait for the command")?)),
            Some(signal) = signals.next() => pass_on(&child, signal),
            why = &mut alive, if is_current => {
                is_current = false;
                // Once the job's pod has its node, that is as it should be.
                if !why.starts_with("PodPlaced") {
                    eprintln!("pecking-order: claim {} has ended: {why}", held.name);
                }
            }
        }
    }
}

fn signals() -> anyhow::Result<BoxStream<'static, Signal>> {
    let each = PASSED_ON.into_iter().map(|which| {
        let listener =
            signal(SignalKind::from_raw(which.as_raw())).with_context(|| format!("cannot listen for signal {}", which.as_raw()))?;
        let next = move |mut listener: tokio::signal::unix::Signal| async move { listener.recv().await.map(|()| (which, listener)) };
        anyhow::Ok(stream::unfold(listener, next).boxed())
    });
    Ok(stream::select_all(each.collect::<anyhow::Result<Vec<_>>>()?).boxed())
}

fn pass_on(child: &Child, signal: Signal) {
    // A terminal tells the command by itself.
    let is_told = matches!(signal, Signal::INT | Signal::QUIT) && std::io::stdin().is_terminal();
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id as i32)).filter(|_| !is_told) {
        // It may have ended this moment.
        let _ = kill_process(pid, signal);
    }
}

fn exit_code_of(status: ExitStatus) -> ExitCode {
    exit_code(status.code().unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or_default()))
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
