//! Which of several pods of equal cost goes first, where the policy wants more than Kubernetes' own rules: an addition below one
//! resolution step, so that work always wins.
//!
//! Kubernetes by itself empties the node with the most siblings, and knows nothing of zones (kubernetes/kubernetes#124149).

use std::collections::{BTreeMap, HashMap};

use super::GovernedPod;
use super::score::{Basis, Score};
use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::TieBreak;

/// What is known of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    pub is_spot: bool,
}

/// Nodes by name.
pub type Nodes = HashMap<String, Node>;

/// Adds to the costs of pods of one ReplicaSet whose costs are equal, so that those go first that the policy would rather lose.
pub fn apply(policy: &CostPolicy, pods: &[impl AsRef<GovernedPod>], scores: &mut [Score], nodes: &Nodes) {
    let spec = &policy.spec;
    let needs_nodes = matches!(spec.tie_break, TieBreak::Zone | TieBreak::SpotFirst);
    if spec.tie_break == TieBreak::None || (needs_nodes && nodes.is_empty()) {
        return;
    }
    let mut by_owner: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, pod) in pods.iter().map(AsRef::as_ref).enumerate().filter(|(_, pod)| pod.is_active()) {
        by_owner.entry(&pod.owner).or_default().push(index);
    }
    for siblings in by_owner.into_values() {
        let place = |index: &usize| place(pods[*index].as_ref(), spec.tie_break, nodes);
        // How many are left in each place when those of lower cost have gone.
        let mut left: BTreeMap<String, usize> = BTreeMap::new();
        siblings.iter().for_each(|index| *left.entry(place(index)).or_default() += 1);
        let mut by_cost: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        siblings.iter().for_each(|index| by_cost.entry(scores[*index].cost).or_default().push(*index));
        for mut equals in by_cost.into_values() {
            // Of one place the younger goes first, as Kubernetes has it; the same in every run, whatever the order of the input.
            equals.sort_by(|a, b| {
                let (a, b) = (pods[*a].as_ref(), pods[*b].as_ref());
                b.ready_since.cmp(&a.ready_since).then_with(|| a.uid.cmp(&b.uid))
            });
            let ranks = ranks(spec.tie_break, &equals.iter().map(place).collect::<Vec<_>>(), &left);
            let (rounds, resolution) = (ranks.iter().max().map_or(1, |most| most + 1), spec.resolution.unsigned_abs() as usize);
            for (index, rank) in equals.iter().zip(ranks) {
                let score = &mut scores[*index];
                if score.basis != Basis::Terminating {
                    // Below one step, however many rounds there are.
                    let addition = rank * resolution / rounds.max(resolution);
                    score.cost = (score.cost + i32::try_from(addition).unwrap_or(0)).min(spec.max_cost);
                }
            }
            for index in &equals {
                left.entry(place(index)).and_modify(|count| *count -= 1);
            }
        }
    }
}

/// What tells pods apart.
fn place(pod: &GovernedPod, tie_break: TieBreak, nodes: &Nodes) -> String {
    let name = pod.node.clone().unwrap_or_default();
    match tie_break {
        TieBreak::Zone => nodes.get(&name).and_then(|node| node.zone.clone()).unwrap_or_default(),
        TieBreak::SpotFirst => if nodes.get(&name).is_some_and(|node| node.is_spot) { "spot" } else { "regular" }.into(),
        TieBreak::None | TieBreak::NodePack | TieBreak::NodeSpread => name,
    }
}

/// The round in which each pod goes, from 0. Pods of one round may go in any order, so that Kubernetes' own rules decide between
/// them.
fn ranks(tie_break: TieBreak, places: &[String], left: &BTreeMap<String, usize>) -> Vec<usize> {
    // In one place there is nothing to choose: Kubernetes' own rules stay alive.
    if places.windows(2).all(|pair| pair[0] == pair[1]) {
        return vec![0; places.len()];
    }
    let count = |place: &String| left.get(place).copied().unwrap_or(0);
    match tie_break {
        // The fullest place gives one away, then whichever is the fullest after that.
        TieBreak::Zone | TieBreak::NodeSpread => {
            let most = places.iter().map(count).max().unwrap_or(0);
            let mut given: HashMap<&String, usize> = HashMap::new();
            let round = |place| {
                let given = given.entry(place).or_default();
                *given += 1;
                most - (count(place) + 1 - *given)
            };
            places.iter().map(round).collect()
        }
        // The emptiest node is emptied, then the next.
        TieBreak::NodePack => {
            let mut nodes: Vec<&String> = places.iter().collect();
            nodes.sort_by_key(|node| (count(node), (*node).clone()));
            nodes.dedup();
            places.iter().map(|place| nodes.iter().position(|node| *node == place).unwrap_or(0)).collect()
        }
        TieBreak::SpotFirst => places.iter().map(|place| usize::from(place != "spot")).collect(),
        TieBreak::None => vec![0; places.len()],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::api::DeletionCostPolicy;
    use crate::cost::pod::tests::pod;

    fn policy(tie_break: &str, resolution: i32) -> CostPolicy {
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"tieBreak": tie_break,
            "resolution": resolution, "selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1000}]}}))
        .unwrap();
        assert_eq!(policy.spec.problems(), []);
        CostPolicy::compile(&policy)
    }

    /// Costs after the tie-break of pods that are given as (node, cost).
    fn costs(policy: &CostPolicy, given: &[(&str, i32)]) -> Vec<i32> {
        let pods: Vec<GovernedPod> =
            given.iter().enumerate().map(|(i, (node, _))| GovernedPod { node: Some((*node).into()), ..pod(&format!("{i:03}")) }).collect();
        let score = |(_, cost): &(&str, i32)| Score { cost: *cost, basis: Basis::Idle, stale: false, yields: false, sampled: None };
        let mut scores: Vec<Score> = given.iter().map(score).collect();
        // The zone is the first letter of the node's name, and the nodes of zone s are spot.
        let node = |name: &str| (name.to_owned(), Node { zone: name.get(..1).map(Into::into), is_spot: name.starts_with('s') });
        let nodes: Nodes = given.iter().map(|(name, _)| node(name)).collect();
        apply(policy, &pods, &mut scores, &nodes);
        scores.iter().map(|score| score.cost).collect()
    }

    /// The places of the pods that stay when this many go, lowest cost first.
    fn stay<'a>(given: &[(&'a str, i32)], costs: &[i32], go: usize) -> Vec<&'a str> {
        let mut order: Vec<usize> = (0..given.len()).collect();
        order.sort_by_key(|i| costs[*i]);
        let mut left: Vec<&str> = order[go..].iter().map(|i| given[*i].0).collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn dc_07_one_pod_goes_in_each_zone() {
        let given = [("a1", 0), ("a2", 0), ("b1", 0), ("b2", 0), ("c1", 0), ("c2", 0)];
        let found = costs(&policy("Zone", 10), &given);
        assert_eq!(found, [0, 1, 0, 1, 0, 1]);
        let zones: Vec<&str> = stay(&given, &found, 3).iter().map(|node| &node[..1]).collect();
        assert_eq!(zones, ["a", "b", "c"]);
        assert_eq!(costs(&policy("None", 10), &given), [0; 6], "equal pods have equal costs");
    }

    #[test]
    fn dc_08_those_that_stay_are_on_different_nodes() {
        let given = [("n1", 0), ("n1", 0), ("n1", 0), ("n2", 0), ("n2", 0)];
        let found = costs(&policy("NodeSpread", 10), &given);
        assert_eq!(stay(&given, &found, 3), ["n1", "n2"]);
    }

    #[test]
    fn a_node_is_emptied_before_the_next() {
        let given = [("n1", 0), ("n1", 0), ("n1", 0), ("n2", 0), ("n2", 0), ("n3", 0)];
        let found = costs(&policy("NodePack", 10), &given);
        assert_eq!(stay(&given, &found, 3), ["n1", "n1", "n1"]);
    }

    #[test]
    fn spot_nodes_are_given_up_first() {
        let given = [("r1", 0), ("s1", 0), ("r2", 50), ("s2", 50)];
        let found = costs(&policy("SpotFirst", 10), &given);
        assert_eq!(found, [1, 0, 51, 50], "only among equals: work wins");
    }

    /// Busy pods that stay count for the balance.
    #[test]
    fn a_zone_whose_pods_are_busy_gives_its_idle_ones_first() {
        let given = [("a1", 500), ("a2", 500), ("a3", 0), ("b1", 0), ("c1", 0)];
        assert_eq!(stay(&given, &costs(&policy("Zone", 10), &given), 1), ["a1", "a2", "b1", "c1"]);
    }

    #[test]
    fn in_one_place_equals_stay_equal() {
        for tie_break in ["Zone", "NodeSpread", "NodePack", "SpotFirst"] {
            assert_eq!(costs(&policy(tie_break, 10), &[("r1", 0), ("r1", 0), ("r1", 50)]), [0, 0, 50], "{tie_break}");
        }
    }

    proptest! {
        /// However many pods and places: an addition never reaches the next step, and the same pods get the same costs.
        #[test]
        fn work_always_wins(given in prop::collection::vec((0..6usize, 0..4i32), 1..60), resolution in 2..20i32, which in 0..4usize) {
            let names = ["a1", "a2", "b1", "s1", "s2", "c1"];
            let policy = policy(["Zone", "NodePack", "NodeSpread", "SpotFirst"][which], resolution);
            let given: Vec<(&str, i32)> = given.into_iter().map(|(node, steps)| (names[node], steps * resolution)).collect();
            let found = costs(&policy, &given);
            for ((_, before), after) in given.iter().zip(&found) {
                prop_assert!((0..resolution).contains(&(after - before)), "{before} became {after}");
            }
            prop_assert_eq!(&found, &costs(&policy, &given));
        }
    }
}
