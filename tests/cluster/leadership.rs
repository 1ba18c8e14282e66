//! Which of the replicas writes on its own account.

use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::wait_for;
use serde_json::json;

use super::room::Bench;
use super::{Cluster, Test, policy};

pub const TESTS: &[(&str, Test)] = &[("leadership::another_replica_takes_over", another_replica_takes_over)];

fn holder(cluster: &Cluster) -> Option<String> {
    let lease = cluster.admin.get(&["lease", "pecking-order", "-n", "pecking-order"]).ok()?;
    let identity = lease["spec"]["holderIdentity"].as_str().filter(|identity| !identity.is_empty())?;
    identity.split_once('_').map(|(name, _)| name.to_owned())
}

fn another_replica_takes_over(cluster: &'static Cluster) -> anyhow::Result<()> {
    let first = holder(cluster).context("nobody leads")?;
    let room = Bench::new(cluster, "room-leaders", json!({}))?;
    room.node("a")?;
    room.placeholders(2)?;
    room.status("two free", |status| status["free"] == 2)?;
    room.claim("early")?;
    room.wait_for_bound(1)?;
    cluster.installation().as_mut().context("nothing is installed")?.kill(&first)?;
    let second = wait_for("another leader", Duration::from_secs(40), || holder(cluster).filter(|name| *name != first))?;
    ensure!(second != first, "{second}");
    // The new one does the leader's work.
    cluster.make_namespace("new-leader")?;
    cluster.admin.apply(&policy("new-leader", json!({})).to_string())?;
    wait_for("a status by the new leader", Duration::from_secs(20), || {
        let policy = cluster.admin.get(&["dcp", "web", "-n", "new-leader"]).ok()?;
        policy["status"]["lastPoll"].as_str().map(|_| ())
    })?;
    // What was promised before is kept, and counts: of two more one has the other slot.
    room.claim("late-1")?;
    room.claim("late-2")?;
    let bound = room.wait_for_bound(2)?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(room.bound()? == bound && bound.contains(&"early".to_owned()), "{:?}", room.claims()?);
    let writer = room.status("who wrote it", |status| status["holders"].as_array().map(Vec::len) == Some(2))?["writtenBy"].clone();
    ensure!(writer.as_str().is_some_and(|writer| writer.starts_with(&second)), "{writer}");
    Ok(())
}
