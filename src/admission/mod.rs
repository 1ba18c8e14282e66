//! AdmissionReviews: the wire, and one file per reviewed thing.
//!
//! A decision is a pure function of the request and a [`Snapshot`]. The one thing that must also act, a scale-down, gives
//! back what is to be written, and [`crate::cluster::scale_down`] does it.

pub mod answer;
pub mod claims;
pub mod gates;
pub mod headroom;
pub mod patch;
pub mod placeholders;
pub mod pods;
pub mod policies;
pub mod priority_classes;
pub mod request;
pub mod scale_downs;

use std::sync::Arc;

pub use answer::{Answer, Denial, Mutation, Validation};
pub use patch::PodPatch;
pub use request::{Operation, Request};

use crate::api::Policies;
use crate::cost::CostCache;
use crate::cost::contested::Contested;
use crate::headroom::Known;
use crate::headroom::room::Gates;

/// What a decision may look at: one generation of everything, without any I/O.
#[derive(Clone)]
pub struct Snapshot {
    pub policies: Arc<Policies>,
    pub headroom: Known,
    pub gates: Arc<Gates>,
    pub costs: CostCache,
    /// Whose cost somebody else keeps writing over.
    pub contested: Contested,
}

/// An object in a review that is not what its kind says. The review is allowed and counted: an object that the API server
/// accepts is not refused because we cannot read it.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {source}")]
pub struct Unreadable {
    pub field: &'static str,
    pub source: serde_json::Error,
}
