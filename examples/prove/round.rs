//! One scale-down: costs are stored as the case wants them, the pods are told what to do, and afterwards it is counted who went.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control_plane::{Door, Workbench};
use serde_json::json;
use tokio::time::sleep;

/// Points of one unit of work: the least work that counts is two steps, so single points would make equals of the two idlest.
const POINTS: usize = 5;

/// What stands on the pods before a scale-down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Before {
    Unset,
    Stale,
    Reversed,
}

/// A kind of scale-down.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub door: Door,
    pub pods: usize,
    pub go: usize,
    pub before: Before,
}

/// What came of one kind of scale-down.
pub struct Tally {
    case: Case,
    pub scale_downs: usize,
    pub all_right: usize,
    pub victims: usize,
    pub right: usize,
    writes: u64,
    /// The most that any of them may write, by the bound.
    most: usize,
    outcomes: BTreeMap<String, usize>,
}

impl Tally {
    pub fn new(case: Case) -> Self {
        // With nothing stored either those that go or those that stay are enough; the wrong way round may need all.
        let most = if case.before == Before::Unset { case.go.max(case.pods - case.go) } else { case.pods };
        Self { case, scale_downs: 0, all_right: 0, victims: 0, right: 0, writes: 0, most, outcomes: BTreeMap::new() }
    }

    pub fn row(&self) -> [String; 10] {
        let Case { door, pods, go, before } = self.case;
        let outcomes: Vec<String> = self.outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        [
            door.name().into(),
            pods.to_string(),
            go.to_string(),
            format!("{before:?}").to_lowercase(),
            self.scale_downs.to_string(),
            self.all_right.to_string(),
            format!("{}/{}", self.right, self.victims),
            format!("{:.1}", self.writes as f64 / self.scale_downs.max(1) as f64),
            self.most.to_string(),
            outcomes.join(", "),
        ]
    }

    /// At a Deployment every victim must be right; at a ReplicaSet, where nothing comes after our answer, of a thousand 995.
    pub fn verify(&self) -> anyhow::Result<()> {
        let wanted = if self.case.door.kind() == "Deployment" { 1000 } else { 995 };
        anyhow::ensure!(self.right * 1000 >= self.victims * wanted, "{} of {} victims right: {:?}", self.right, self.victims, self.case);
        Ok(())
    }

    pub fn count(&mut self, right: usize) {
        self.scale_downs += 1;
        self.all_right += usize::from(right == self.case.go);
        self.victims += self.case.go;
        self.right += right;
    }
}

/// What each pod does, all different; another `seed` is another order.
pub fn work(pods: &[String], seed: usize) -> BTreeMap<String, usize> {
    // No number of pods here has a factor in common with 7, so this is a permutation.
    let count = pods.len();
    pods.iter().enumerate().map(|(i, pod)| (pod.clone(), ((i * 7 + seed * 3) % count + 1) * POINTS)).collect()
}

/// Tells the pods what to do, and stores costs.
pub async fn prepare(workbench: &Workbench, namespace: &str, case: Case, seed: usize) -> anyhow::Result<BTreeMap<String, usize>> {
    let pods = workbench.names(namespace, case.pods).await?;
    let now = work(&pods, seed);
    workbench.measure(namespace, &now).await;
    let stored = match case.before {
        Before::Unset => pods.iter().map(|pod| (pod.clone(), None)).collect(),
        Before::Stale => work(&pods, seed + 5).into_iter().map(|(pod, value)| (pod, Some(value))).collect(),
        Before::Reversed => now.iter().map(|(pod, value)| (pod.clone(), Some((case.pods + 1) * POINTS - value))).collect(),
    };
    workbench.store(namespace, stored).await?;
    Ok(now)
}

/// How many of those that should have gone did.
pub fn right(now: &BTreeMap<String, usize>, left: &[String], go: usize) -> usize {
    let left: BTreeSet<&String> = left.iter().collect();
    now.iter().filter(|(pod, value)| **value <= go * POINTS && !left.contains(pod)).count()
}

/// One scale-down, and back again.
pub async fn round(workbench: &Workbench, namespace: &str, seed: usize, tally: &mut Tally) -> anyhow::Result<()> {
    let case = tally.case;
    let now = prepare(workbench, namespace, case, seed).await?;
    workbench.scale(case.door, namespace, case.pods - case.go).await?;
    let left = workbench.names(namespace, case.pods - case.go).await?;
    tally.count(right(&now, &left, case.go));
    // What the product says of it is there within a second.
    sleep(Duration::from_millis(1200)).await;
    let last = workbench.last_scale_down(namespace).await?;
    if last["from"] == json!(case.pods) && last["to"] == json!(case.pods - case.go) {
        let written = last["written"].as_u64().unwrap_or(0);
        anyhow::ensure!(written <= tally.most as u64, "{written} writes for {case:?}, wanted {} at the most", tally.most);
        tally.writes += written;
        *tally.outcomes.entry(last["outcome"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    workbench.scale(case.door, namespace, case.pods).await
}

/// So many scale-downs of each of these cases, in a namespace of their own.
pub async fn rounds(workbench: &Workbench, namespace: &str, cases: &[Case], count: usize) -> anyhow::Result<Vec<Tally>> {
    let Some(Case { door, pods, .. }) = cases.first().copied() else { return Ok(vec![]) };
    workbench.set_up(door.kind(), namespace, json!({}), pods).await?;
    let mut tallies = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let mut tally = Tally::new(*case);
        for n in 0..count {
            round(workbench, namespace, index * count + n + 1, &mut tally).await?;
        }
        tallies.push(tally);
    }
    workbench.scale(door, namespace, 0).await?;
    Ok(tallies)
}
