//! What a scale-down came to: whether the pods that went are those that should have gone, and if not, why.

use std::collections::HashSet;
use std::sync::Arc;

use super::victims::Tier;

/// A pod as it was when a scale-down was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub uid: Arc<str>,
    pub name: String,
    /// What comes before the cost, as it was last seen while the pod was there.
    pub tier: Tier,
    /// What its work was worth, whatever stood on the pod.
    pub current: i32,
    /// Its stored cost was somebody else's, and left alone.
    pub foreign: bool,
}

/// How a scale-down was carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Not every cost that was needed could be written in time, or at all.
    pub incomplete: bool,
    /// Some of the costs rested on samples that were too old.
    pub stale: bool,
}

/// The outcome of a scale-down. Every wrong victim is explained by one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Right,
    /// A pod at work was not Ready, or had no node: Kubernetes removes those first, whatever their cost.
    OutrankedByReadiness,
    /// A cost that somebody else had written, and that the policy leaves alone, decided.
    ForeignValue,
    /// The costs that decided rested on old samples.
    Stale,
    /// Not all costs were there in time.
    Deadline,
    /// All was written and seen; the controller chose from an older view, or something changed in between.
    Raced,
    /// The pods did not go within the time that they were watched.
    Unobserved,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::OutrankedByReadiness => "outranked_by_readiness",
            Self::ForeignValue => "foreign_value",
            Self::Stale => "stale",
            Self::Deadline => "deadline",
            Self::Raced => "raced",
            Self::Unobserved => "unobserved",
        }
    }
}

/// A verdict over one scale-down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub outcome: Outcome,
    /// The pods that went although one of lower current cost stayed.
    pub wrong: Vec<String>,
}

/// Judges a scale-down by who went. Right is what [`super::plan`] means by it: no pod stays whose current cost is lower than
/// that of a pod that went.
pub fn judge(pods: &[Decided], gone: &HashSet<Arc<str>>, how: Circumstances) -> Verdict {
    let stayed: Vec<&Decided> = pods.iter().filter(|pod| !gone.contains(&pod.uid)).collect();
    let mut verdict = Verdict { outcome: Outcome::Right, wrong: vec![] };
    for victim in pods.iter().filter(|pod| gone.contains(&pod.uid)) {
        // Of several pods that should have gone instead, the one that explains least tells the truth.
        let why = stayed.iter().filter(|other| other.current < victim.current).map(|other| why(victim, other, how)).max();
        if let Some(why) = why {
            verdict.outcome = verdict.outcome.max(why);
            verdict.wrong.push(victim.name.clone());
        }
    }
    verdict
}

/// Why this pod went rather than the other, whose current cost is lower.
fn why(victim: &Decided, other: &Decided, how: Circumstances) -> Outcome {
    if victim.tier < other.tier {
        Outcome::OutrankedByReadiness
    } else if how.incomplete {
        Outcome::Deadline
    } else if victim.foreign || other.foreign {
        Outcome::ForeignValue
    } else if how.stale {
        Outcome::Stale
    } else {
        Outcome::Raced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::GovernedPod;
    use crate::cost::pod::tests::pod;

    fn decided(name: &str, current: i32) -> Decided {
        Decided { uid: name.into(), name: name.into(), tier: Tier::of(&pod(name)), current, foreign: false }
    }

    fn outcome(pods: &[Decided], gone: &[&str], how: Circumstances) -> (Outcome, Vec<String>) {
        let verdict = judge(pods, &gone.iter().map(|name| Arc::from(*name)).collect(), how);
        (verdict.outcome, verdict.wrong)
    }

    #[test]
    fn pods_of_equal_cost_may_do_either() {
        let pods = [decided("a", 0), decided("b", 0), decided("c", 50)];
        for gone in [&["a"][..], &["b"], &["a", "b"], &[], &["a", "b", "c"]] {
            assert_eq!(outcome(&pods, gone, Circumstances::default()), (Outcome::Right, vec![]), "{gone:?}");
        }
    }

    #[test]
    fn a_wrong_victim_is_explained() {
        let unready = Decided { tier: Tier::of(&GovernedPod { ready_since: None, ..pod("busy") }), ..decided("busy", 50) };
        let foreign = Decided { foreign: true, ..decided("busy", 50) };
        let none = Circumstances::default();
        for (busy, how, wanted) in [
            (decided("busy", 50), none, Outcome::Raced),
            (unready.clone(), none, Outcome::OutrankedByReadiness),
            (unready, Circumstances { incomplete: true, stale: true }, Outcome::OutrankedByReadiness),
            (foreign, none, Outcome::ForeignValue),
            (decided("busy", 50), Circumstances { stale: true, ..none }, Outcome::Stale),
            (decided("busy", 50), Circumstances { incomplete: true, stale: true }, Outcome::Deadline),
        ] {
            assert_eq!(outcome(&[busy, decided("idle", 0)], &["busy"], how), (wanted, vec!["busy".to_owned()]));
        }
    }

    #[test]
    fn one_explanation_does_not_hide_another() {
        let unready = Decided { tier: Tier::of(&GovernedPod { ready_since: None, ..pod("x") }), ..decided("x", 90) };
        let pods = [unready, decided("busy", 50), decided("idle", 0)];
        assert_eq!(outcome(&pods, &["x", "busy"], Circumstances::default()), (Outcome::Raced, vec!["x".into(), "busy".into()]));
    }
}
