//! Scale-downs through every door, of small and large ReplicaSets, by a little and by almost all, with stored costs that are absent, of
//! another time, or the wrong way round.

use anyhow::Context;
use control_plane::{Door, Workbench};

use super::round::{Before, Case, Tally, rounds};

/// Pods, and how often each case is tried with so many: 4 doors, 3 states and 3 drops make 216 scale-downs.
const SIZES: [(usize, usize); 2] = [(20, 4), (150, 2)];

pub async fn prove(workbench: &Workbench) -> anyhow::Result<Vec<Tally>> {
    let through = |door: Door| {
        let workbench = workbench.clone();
        tokio::spawn(async move { through(&workbench, door).await.with_context(|| door.name()) })
    };
    let mut all = Vec::new();
    for task in Door::ALL.map(through) {
        all.extend(task.await??);
    }
    Ok(all)
}

async fn through(workbench: &Workbench, door: Door) -> anyhow::Result<Vec<Tally>> {
    let mut all = Vec::new();
    for (pods, count) in SIZES {
        let drops = [1, pods * 2 / 5, pods - 1];
        let states = [Before::Unset, Before::Stale, Before::Reversed];
        let cases: Vec<Case> = drops.iter().flat_map(|go| states.map(|before| Case { door, pods, go: *go, before })).collect();
        let namespace = format!("prove-{}-{pods}", door.name().replace('/', "-"));
        all.extend(rounds(workbench, &namespace, &cases, count).await?);
    }
    Ok(all)
}
