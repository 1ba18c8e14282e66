//! The fewest writes after which a scale-down removes the right pods.
//!
//! *Right*: no pod stays whose current cost is lower than that of a pod that goes; pods of equal cost may do either. The
//! controller sorts by *stored* costs, and how it breaks ties between equal ones depends on clocks, so a plan must hold
//! however ties fall. What is written is the pod's current cost, nothing else.
//!
//! Let `go` pods of one tier go, T be the `go`-th lowest current cost, *low* the pods below T (they must go), *high* those
//! above it (they must stay), and *even* those at T, of which `go - |low|` go. After the writes there must be two values
//! `a < b` such that every low pod is stored at `a` or less, every high pod at `b` or more, at most `go` pods at `a` or less,
//! and at least `go` pods below `b`. The writes that `a` asks for and those that `b` asks for never overlap, so each side is
//! counted by itself and the cheapest pair is found in one sweep over the values that occur.

use super::victims::Tier;

/// A pod as the plan sees it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub tier: Tier,
    /// The cost by which Kubernetes sorts now.
    pub stored: i32,
    /// The cost that the pod should have. Where it must not be written, this equals `stored`: such a pod ranks by what
    /// somebody else gave it.
    pub current: i32,
}

/// The indices of the pods whose current cost must be written, in ascending order, so that removing `go` of them removes
/// the right ones. Empty where none or all go, since the controller does not sort then.
pub fn fewest_writes(pods: &[Candidate], go: usize) -> Vec<usize> {
    if go == 0 || go >= pods.len() {
        return vec![];
    }
    let mut tiers: Vec<Tier> = pods.iter().map(|pod| pod.tier).collect();
    tiers.sort();
    // Tiers before this one go as a whole, tiers after it stay as a whole: only here does a cost decide anything.
    let decisive = tiers[go - 1];
    let before = tiers.partition_point(|tier| *tier < decisive);
    let members: Vec<usize> = (0..pods.len()).filter(|&i| pods[i].tier == decisive).collect();
    if members.len() == go - before {
        return vec![];
    }
    Split::new(pods, members, go - before).cheapest()
}

/// The pods of the decisive tier, split by where they belong.
struct Split<'a> {
    pods: &'a [Candidate],
    low: Vec<usize>,
    even: Vec<usize>,
    high: Vec<usize>,
    /// T.
    dividing: i32,
    /// How many of `even` go.
    even_go: usize,
}

impl<'a> Split<'a> {
    fn new(pods: &'a [Candidate], members: Vec<usize>, go: usize) -> Self {
        let mut currents: Vec<i32> = members.iter().map(|&i| pods[i].current).collect();
        currents.sort_unstable();
        let dividing = currents[go - 1];
        let part =
            |keep: fn(&i32, &i32) -> bool| members.iter().copied().filter(|&i| keep(&pods[i].current, &dividing)).collect::<Vec<_>>();
        let low = part(|current, dividing| current < dividing);
        Self {
            pods,
            even: part(|current, dividing| current == dividing),
            high: part(|current, dividing| current > dividing),
            even_go: go - low.len(),
            low,
            dividing,
        }
    }

    fn cheapest(&self) -> Vec<usize> {
        // The values that occur, with an end beyond them on either side: between two neighbours nothing changes.
        let mut values: Vec<i64> = self.members().flat_map(|i| [self.pods[i].stored, self.pods[i].current]).map(i64::from).collect();
        values.extend([i64::MIN, i64::MAX]);
        values.sort_unstable();
        values.dedup();

        let lows = Sorted::new(self.pods, &self.low, Bound::Upper);
        let highs = Sorted::new(self.pods, &self.high, Bound::Lower);
        let evens: Vec<i64> = sorted(self.even.iter().map(|&i| i64::from(self.pods[i].stored)));
        let mut best_a: Option<(usize, i64)> = None;
        let mut best: Option<(usize, i64, i64)> = None;
        for pair in values.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if let Some(writes) = self.writes_for_a(a, &lows, &evens)
                && best_a.is_none_or(|(fewest, _)| writes < fewest)
            {
                best_a = Some((writes, a));
            }
            if let (Some((for_a, a)), Some(for_b)) = (best_a, self.writes_for_b(b, &highs, &evens))
                && best.is_none_or(|(fewest, ..)| for_a + for_b < fewest)
            {
                best = Some((for_a + for_b, a, b));
            }
        }
        // Writing every pod of the tier is always a solution, so there is a cheapest one.
        let (_, a, b) = best.expect("writing all current costs puts the pods in order");
        self.writes(a, b)
    }

    /// How many writes keep every low pod at `a` or less, and no more than `go` pods there; `None` where none do.
    fn writes_for_a(&self, a: i64, lows: &Sorted, evens: &[i64]) -> Option<usize> {
        let writes = lows.outside(a)?;
        let too_many = evens.partition_point(|&stored| stored <= a).saturating_sub(self.even_go);
        (too_many == 0 || i64::from(self.dividing) > a).then_some(writes + too_many)
    }

    /// How many writes keep every high pod at `b` or more, and at least `go` pods below it; `None` where none do.
    fn writes_for_b(&self, b: i64, highs: &Sorted, evens: &[i64]) -> Option<usize> {
        let writes = highs.outside(b)?;
        let too_few = self.even_go.saturating_sub(evens.partition_point(|&stored| stored < b));
        (too_few == 0 || i64::from(self.dividing) < b).then_some(writes + too_few)
    }

    fn writes(&self, a: i64, b: i64) -> Vec<usize> {
        let stored = |i: usize| i64::from(self.pods[i].stored);
        let mut writes: Vec<usize> = self.low.iter().copied().filter(|&i| stored(i) > a).collect();
        writes.extend(self.high.iter().copied().filter(|&i| stored(i) < b));
        let (at_a, from_b): (Vec<usize>, Vec<usize>) = (
            self.even.iter().copied().filter(|&i| stored(i) <= a).collect(),
            self.even.iter().copied().filter(|&i| stored(i) >= b).collect(),
        );
        let below_b = self.even.len() - from_b.len();
        writes.extend(at_a.iter().take(at_a.len().saturating_sub(self.even_go)));
        writes.extend(from_b.iter().take(self.even_go.saturating_sub(below_b)));
        writes.sort_unstable();
        writes
    }

    fn members(&self) -> impl Iterator<Item = usize> {
        self.low.iter().chain(&self.even).chain(&self.high).copied()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Bound {
    /// Stored costs must not exceed the value.
    Upper,
    /// Stored costs must not fall short of it.
    Lower,
}

/// Pods that must lie on one side of a value, arranged so that those on the wrong side are counted by bisection.
struct Sorted {
    bound: Bound,
    /// Stored costs, those that are first to lie on the wrong side first.
    stored: Vec<i64>,
    /// For each prefix of `stored`, the current cost that lies furthest on the wrong side: writing those must help.
    worst: Vec<i64>,
}

impl Sorted {
    fn new(pods: &[Candidate], part: &[usize], bound: Bound) -> Self {
        // A lower bound is an upper bound on the negated numbers.
        let sign = if bound == Bound::Upper { 1 } else { -1 };
        let mut pairs: Vec<(i64, i64)> =
            part.iter().map(|&i| (sign * i64::from(pods[i].stored), sign * i64::from(pods[i].current))).collect();
        pairs.sort_unstable_by(|x, y| y.cmp(x));
        let worst = pairs
            .iter()
            .scan(i64::MIN, |worst, (_, current)| {
                *worst = (*worst).max(*current);
                Some(*worst)
            })
            .collect();
        Self { bound, stored: pairs.into_iter().map(|(stored, _)| stored).collect(), worst }
    }

    /// How many are stored on the wrong side of `value`; `None` where writing them would not bring them to the right one.
    fn outside(&self, value: i64) -> Option<usize> {
        // MIN has no negative; MAX stands for the same end.
        let value = if self.bound == Bound::Upper { value } else { value.checked_neg().unwrap_or(i64::MAX) };
        let outside = self.stored.partition_point(|&stored| stored > value);
        (outside == 0 || self.worst[outside - 1] <= value).then_some(outside)
    }
}

fn sorted(values: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut values: Vec<i64> = values.collect();
    values.sort_unstable();
    values
}

#[cfg(test)]
mod tests;
