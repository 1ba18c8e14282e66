//! The order in which the ReplicaSet controller would remove pods.
//!
//! The rules are those of `ActivePodsWithRanks.Less` in `pkg/controller/controller_utils.go` of Kubernetes 1.37, with
//! `LogarithmicScaleDown` on (stable since 1.31).

use std::cmp::Ordering;
use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;

use super::pod::{GovernedPod, Phase};

/// The rule that puts one pod before another, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Unassigned,
    Phase,
    NotReady,
    DeletionCost,
    MoreSiblingsOnNode,
    ReadyForShorter,
    MoreRestarts,
    Younger,
    /// Two ages of the same logarithmic bucket: Kubernetes compares the UIDs, which says nothing about the pods.
    Uid,
    /// Nothing tells the pods apart.
    Equal,
}

impl Rule {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unassigned => "has no node",
            Self::Phase => "is not running",
            Self::NotReady => "is not ready",
            Self::DeletionCost => "lower deletion cost",
            Self::MoreSiblingsOnNode => "more siblings on its node",
            Self::ReadyForShorter => "ready for a shorter time",
            Self::MoreRestarts => "more restarts",
            Self::Younger => "younger",
            Self::Uid => "arbitrary (same age bucket, by UID)",
            Self::Equal => "arbitrary",
        }
    }
}

/// What comes before the cost: pods of a lower tier go first, whatever their costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tier {
    assigned: bool,
    phase: Phase,
    ready: bool,
}

impl Tier {
    pub fn of(pod: &GovernedPod) -> Self {
        Self { assigned: pod.node.is_some(), phase: pod.phase, ready: pod.ready_since.is_some() }
    }
}

/// How many active pods of the same owner family stand on each pod's node. `family` are the active pods of all ReplicaSets
/// of the same Deployment, the candidates among them.
pub fn siblings_on_node<'a>(family: impl Iterator<Item = &'a GovernedPod>) -> HashMap<&'a str, usize> {
    let mut count = HashMap::new();
    for node in family.filter_map(|pod| pod.node.as_deref()) {
        *count.entry(node).or_default() += 1;
    }
    count
}

/// Which of two active pods is removed first (`Less`), and the rule that says so.
pub fn compare(a: &GovernedPod, b: &GovernedPod, siblings: &HashMap<&str, usize>, now: Timestamp) -> (Ordering, Rule) {
    let rank = |pod: &GovernedPod| pod.node.as_deref().and_then(|node| siblings.get(node)).copied().unwrap_or(0);
    let by_rule = |rule: Rule, order: Ordering| (order != Ordering::Equal).then_some((order, rule));
    by_rule(Rule::Unassigned, a.node.is_some().cmp(&b.node.is_some()))
        .or_else(|| by_rule(Rule::Phase, a.phase.cmp(&b.phase)))
        .or_else(|| by_rule(Rule::NotReady, a.ready_since.is_some().cmp(&b.ready_since.is_some())))
        .or_else(|| by_rule(Rule::DeletionCost, a.stored.effective().cmp(&b.stored.effective())))
        .or_else(|| by_rule(Rule::MoreSiblingsOnNode, rank(b).cmp(&rank(a))))
        .or_else(|| match (a.ready_since, b.ready_since) {
            (Some(since_a), Some(since_b)) => by_age(Rule::ReadyForShorter, (since_a, &a.uid), (since_b, &b.uid), now),
            _ => None,
        })
        .or_else(|| by_rule(Rule::MoreRestarts, b.restarts.cmp(&a.restarts)))
        .or_else(|| by_age(Rule::Younger, (a.created, &a.uid), (b.created, &b.uid), now))
        .unwrap_or((Ordering::Equal, Rule::Equal))
}

/// Sorts active pods into the order in which they would be removed.
///
/// Kubernetes' comparison is no total order: of two pods that became Ready in the same second the later rules decide, of two within
/// one age bucket the UID does, and the three together may go in a circle. The sort of the standard library may panic on that, so
/// this is a merge sort, which does not mind.
pub fn sort(pods: &mut [&GovernedPod], siblings: &HashMap<&str, usize>, now: Timestamp) {
    let middle = pods.len() / 2;
    if middle == 0 {
        return;
    }
    sort(&mut pods[..middle], siblings, now);
    sort(&mut pods[middle..], siblings, now);
    let sorted = pods.to_vec();
    let (mut left, mut right) = (sorted[..middle].iter().peekable(), sorted[middle..].iter().peekable());
    for place in pods {
        let from_right = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) => compare(a, b, siblings, now).0 == Ordering::Greater,
            (left, _) => left.is_none(),
        };
        if let Some(next) = if from_right { right.next() } else { left.next() } {
            *place = next;
        }
    }
}

/// The younger goes first, but only if its age lies in a lower power of two of nanoseconds; else the lower UID does.
fn by_age(rule: Rule, a: (Timestamp, &str), b: (Timestamp, &str), now: Timestamp) -> Option<(Ordering, Rule)> {
    if a.0 == b.0 {
        return None;
    }
    let bucket = |since: Timestamp| match now.duration_since(since).as_nanos() {
        age if age > 0 => age.ilog2() as i32,
        _ => -1,
    };
    Some(match bucket(a.0).cmp(&bucket(b.0)) {
        Ordering::Equal => (a.1.cmp(b.1), Rule::Uid),
        order => (order, rule),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Stored;
    use crate::cost::pod::tests::pod;

    fn first<'a>(a: &'a GovernedPod, b: &'a GovernedPod) -> (&'a str, Rule) {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let siblings = siblings_on_node([a, b].into_iter());
        let (order, rule) = compare(a, b, &siblings, now);
        let (reverse, same) = compare(b, a, &siblings, now);
        assert_eq!((reverse, same), (order.reverse(), rule), "the order has two directions");
        (if order == Ordering::Less { &a.name } else { &b.name }, rule)
    }

    #[test]
    fn each_rule_outranks_the_ones_after_it() {
        let best = || GovernedPod { stored: Stored::Ours(1000), ready_since: Some(Timestamp::from_second(1).unwrap()), ..pod("best") };
        let worst = || GovernedPod {
            stored: Stored::Ours(0),
            restarts: (9, 0),
            ready_since: Some(Timestamp::from_second(999_999).unwrap()),
            created: Timestamp::from_second(999_998).unwrap(),
            ..pod("worst")
        };
        let unassigned = GovernedPod { node: None, ..best() };
        assert_eq!(first(&unassigned, &GovernedPod { phase: Phase::Pending, ..worst() }), ("best", Rule::Unassigned));
        let pending = GovernedPod { phase: Phase::Pending, ..best() };
        assert_eq!(first(&pending, &GovernedPod { ready_since: None, ..worst() }), ("best", Rule::Phase));
        assert_eq!(first(&GovernedPod { phase: Phase::Unknown, ..best() }, &worst()), ("best", Rule::Phase));
        let unready = GovernedPod { ready_since: None, ..best() };
        assert_eq!(first(&unready, &worst()), ("best", Rule::NotReady));
        assert_eq!(first(&best(), &worst()), ("worst", Rule::DeletionCost));
        let same_cost = || GovernedPod { stored: Stored::Ours(1000), ..worst() };
        assert_eq!(first(&best(), &same_cost()), ("worst", Rule::ReadyForShorter));
        let same_ready = || GovernedPod { ready_since: best().ready_since, ..same_cost() };
        assert_eq!(first(&best(), &same_ready()), ("worst", Rule::MoreRestarts));
        assert_eq!(first(&best(), &GovernedPod { restarts: (0, 0), ..same_ready() }), ("worst", Rule::Younger));
    }

    #[test]
    fn a_crowded_node_goes_before_a_lonely_one() {
        let (a, b, c) = (pod("a"), pod("b"), GovernedPod { node: Some("other".into()), ..pod("c") });
        let siblings = siblings_on_node([&a, &b, &c].into_iter());
        assert_eq!(compare(&a, &c, &siblings, Timestamp::UNIX_EPOCH), (Ordering::Less, Rule::MoreSiblingsOnNode));
    }

    #[test]
    fn ages_of_one_bucket_are_decided_by_uid() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let (a, b) = (GovernedPod { ready_since: at(1000), ..pod("a") }, GovernedPod { ready_since: at(1001), ..pod("b") });
        assert_eq!(first(&a, &b), ("a", Rule::Uid));
    }

    /// A hundred and fifty pods of one ReplicaSet that became Ready within a few seconds, none with a cost.
    #[test]
    fn a_comparison_that_goes_in_circles_is_sorted_all_the_same() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for seed in 0..200_u64 {
            let at = |n: u64, spread: u64| {
                Timestamp::from_second(999_900 + (n.wrapping_mul(2_654_435_761) >> 7) as i64 % spread as i64).unwrap()
            };
            let make = |n: u64| GovernedPod {
                ready_since: Some(at(n + seed, 4)),
                created: at(n * 31 + seed, 6),
                restarts: ((n % 3) as i32, 0),
                stored: if n.is_multiple_of(5) { Stored::Ours(7) } else { Stored::Unset },
                ..pod(&format!("{:04}", (n * 7919 + seed) % 9973))
            };
            let pods: Vec<GovernedPod> = (0..150).map(make).collect();
            let siblings = siblings_on_node(pods.iter());
            let mut sorted: Vec<&GovernedPod> = pods.iter().collect();
            sort(&mut sorted, &siblings, now);
            assert!(sorted.windows(2).all(|pair| pair[0].stored.effective() <= pair[1].stored.effective()), "costs come before ages");
            let mut names: Vec<&str> = sorted.iter().map(|pod| pod.name.as_str()).collect();
            let mut all: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
            names.sort_unstable();
            all.sort_unstable();
            assert_eq!(names, all, "every pod once");
        }
    }

    #[test]
    fn a_missing_cost_is_zero() {
        let unset = GovernedPod { stored: Stored::Unset, ..pod("unset") };
        assert_eq!(first(&unset, &GovernedPod { stored: Stored::Ours(1), ..pod("one") }), ("unset", Rule::DeletionCost));
        assert_eq!(first(&unset, &GovernedPod { stored: Stored::Foreign(-1), ..pod("minus") }), ("minus", Rule::DeletionCost));
    }
}
