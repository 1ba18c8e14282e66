//! The two annotations of a pod: the cost that Kubernetes reads, and our mark beside it.

use serde::Deserialize;

use crate::api::deletion_cost_policy::ForeignValues;

/// The annotation that the ReplicaSet controller reads (`k8s.io/api/core/v1`, PodDeletionCost).
pub const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Our mark: the same value again. Where the two differ, somebody else has written the cost since.
pub const MARK: &str = "pecking-order.dev/deletion-cost";

/// The two annotations among all of a pod's, as texts. Reading a pod, the others are skipped rather than kept.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Annotations {
    #[serde(rename = "controller.kubernetes.io/pod-deletion-cost")]
    pub cost: Option<String>,
    #[serde(rename = "pecking-order.dev/deletion-cost")]
    pub mark: Option<String>,
}

/// What a pod's annotations say about its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// No cost: Kubernetes takes it for 0.
    Unset,
    /// The cost and our mark agree.
    Ours(i32),
    /// A valid cost without our mark, or beside another mark.
    Foreign(i32),
    /// A text that is no cost: Kubernetes takes it for 0, and nobody can have meant it.
    Malformed,
}

impl Stored {
    /// Reads the two annotations.
    pub fn read(annotations: &Annotations) -> Self {
        Self::from_texts(annotations.cost.as_deref(), annotations.mark.as_deref())
    }

    /// Reads the texts of the two annotations.
    pub fn from_texts(cost: Option<&str>, mark: Option<&str>) -> Self {
        match cost {
            None => Self::Unset,
            Some(text) => match parse(text) {
                None => Self::Malformed,
                Some(value) if mark == Some(text) => Self::Ours(value),
                Some(value) => Self::Foreign(value),
            },
        }
    }

    /// The number by which Kubernetes sorts.
    pub fn effective(self) -> i32 {
        match self {
            Self::Ours(value) | Self::Foreign(value) => value,
            Self::Unset | Self::Malformed => 0,
        }
    }

    /// Whether the policy lets us write over it.
    pub fn is_ours_to_write(self, foreign_values: ForeignValues) -> bool {
        match self {
            Self::Unset | Self::Ours(_) | Self::Malformed => true,
            Self::Foreign(_) => foreign_values == ForeignValues::Override,
        }
    }
}

/// Parses a cost as Kubernetes does (`pkg/apis/core/helper`, GetDeletionCostFromPodAnnotations): the text is `0`, or begins
/// with `-` or 1 to 9, and is a 32-bit decimal number. So `-0` and `-007` count, and `+5`, `007` and ` 5` do not.
pub fn parse(text: &str) -> Option<i32> {
    let valid_start = text == "0" || text.starts_with(|c: char| c == '-' || ('1'..='9').contains(&c));
    // Go's ParseInt accepts a second sign no more than Rust's does.
    if valid_start { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_kubernetes_parses() {
        for (text, value) in [
            ("0", 0),
            ("1", 1),
            ("1000", 1000),
            ("-10", -10),
            ("2147483647", i32::MAX),
            ("-2147483648", i32::MIN),
            ("-0", 0),
            ("-007", -7),
            ("-08", -8),
        ] {
            assert_eq!(parse(text), Some(value), "{text:?}");
        }
        for text in ["", "+5", "007", "008", "00", " 5", "5 ", "1.5", "1e3", "abc", "2147483648", "NaN", "-", "--1", "-+1", "high"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn tells_our_values_from_foreign_ones() {
        assert_eq!(Stored::from_texts(None, None), Stored::Unset);
        assert_eq!(Stored::from_texts(None, Some("5")), Stored::Unset);
        assert_eq!(Stored::from_texts(Some("5"), Some("5")), Stored::Ours(5));
        assert_eq!(Stored::from_texts(Some("5"), None), Stored::Foreign(5));
        assert_eq!(Stored::from_texts(Some("5"), Some("6")), Stored::Foreign(5));
        assert_eq!(Stored::from_texts(Some("high"), Some("high")), Stored::Malformed);
    }
}
