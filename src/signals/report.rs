//! What one poll of a policy came to.

use k8s_openapi::jiff::Timestamp;

use crate::cost::census::Census;

/// One poll of one policy.
#[derive(Debug, Clone)]
pub struct Poll {
    pub time: Timestamp,
    /// The version of the policy that was polled for.
    pub generation: i64,
    /// One for each signal of the policy, in its order.
    pub outcomes: Vec<Outcome>,
    pub census: Census,
    /// Pods whose cost somebody else keeps writing over, and who does.
    pub contested: Vec<(String, String)>,
    /// Selected pods whose controller does not read the cost, by what controls them.
    pub not_honoured: Vec<(&'static str, u32)>,
}

/// What became of one signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its samples are in use.
    Used,
    /// No row at all, where that does not mean zero: last known values stand in; once there are none, the signal is left out and
    /// the others rank alone.
    NoRows { left_out: bool },
    /// Every sample is older than the policy allows to be current.
    AllOld,
    /// There were rows, and none of them is about a governed pod.
    NoneMatches { rows: usize, labels: Vec<String> },
    /// All zero after an outage; believed if the next poll says so too.
    Doubted,
    /// No answer.
    Failed { kind: &'static str, why: String },
}

impl Outcome {
    /// A word from a closed list, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Used => "ok",
            Self::NoRows { .. } => "no_rows",
            Self::AllOld => "all_old",
            Self::NoneMatches { .. } => "no_series_match",
            Self::Doubted => "doubted",
            Self::Failed { kind, .. } => kind,
        }
    }
}
