//! What the user writes: the kinds of `pecking-order.dev/v1alpha1`, one file each, and how documents are read.

pub mod deletion_cost_policy;
pub mod documents;
pub mod headroom_claim;
pub mod headroom_pool;
pub mod policies;
pub mod selector;
pub mod tolerant;

pub use deletion_cost_policy::{DeletionCostPolicy, DeletionCostPolicySpec};
pub use headroom_claim::{HeadroomClaim, HeadroomClaimSpec};
pub use headroom_pool::{HeadroomPool, HeadroomPoolSpec};
pub use policies::{CostPolicy, Policies, Pool};
pub use selector::LabelSelector;

use std::fmt;

use kube::CustomResourceExt;

/// The API group of every kind and the prefix of every label and annotation of ours.
pub const GROUP: &str = "pecking-order.dev";

/// The `apiVersion` of every kind.
pub const API_VERSION: &str = "pecking-order.dev/v1alpha1";

/// The label that marks an object as headroom, whatever the pool's own selectors say. Its value is the pool's name.
/// Fail-closed hooks match this label and nothing else.
pub const HEADROOM_LABEL: &str = "pecking-order.dev/headroom";

/// One thing wrong with a document that could be read: where, what was found, what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Field path from the root of the document, such as `spec.signals[0].weight`.
    pub path: String,
    /// The value as it was found.
    pub found: String,
    /// The values that would be accepted, and why where that is not obvious.
    pub wanted: String,
}

impl Problem {
    pub fn new(path: impl Into<String>, found: impl fmt::Display, wanted: impl Into<String>) -> Self {
        Self { path: path.into(), found: found.to_string(), wanted: wanted.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, wanted {}", self.path, self.found, self.wanted)
    }
}

/// The problems of one document, as one line each.
pub fn one_line(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Collects problems; each check names its field once.
#[derive(Default)]
pub(crate) struct Problems(pub Vec<Problem>);

impl Problems {
    /// Records a problem unless `value` lies in `range`.
    pub fn range<T: PartialOrd + fmt::Display>(&mut self, path: impl Into<String>, value: T, min: T, max: T) {
        // Written so that a NaN, which compares with nothing, is a problem too.
        if !(value >= min && value <= max) {
            self.0.push(Problem::new(path, value, format!("{min} to {max}")));
        }
    }

    pub fn push(&mut self, path: impl Into<String>, found: impl fmt::Display, wanted: impl Into<String>) {
        self.0.push(Problem::new(path, found, wanted));
    }
}

/// The CustomResourceDefinitions of all kinds, by file name, as YAML. `manifests/crds/` is written from these.
pub fn custom_resource_definitions() -> Vec<(String, String)> {
    [DeletionCostPolicy::crd(), HeadroomPool::crd(), HeadroomClaim::crd()]
        .into_iter()
        .map(|crd| {
            let value = serde_json::to_value(&crd).expect("a CRD is plain data");
            let yaml = serde_saphyr::to_string(&value).expect("a CRD is plain data");
            (format!("{}.yaml", crd.spec.names.plural), yaml)
        })
        .collect()
}
