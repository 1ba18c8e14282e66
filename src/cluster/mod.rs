//! Everything that talks to the API server, and what is known from it.

pub mod autoscalers;
pub mod budget;
pub mod certificate_authority;
pub mod claims;
pub mod conditions;
pub mod doors;
pub mod floor;
pub mod fresh;
pub mod governance;
pub mod largest;
pub mod leadership;
pub mod listing;
pub mod nodes;
pub mod own_account;
pub mod pods;
pub mod policies;
pub mod progress;
pub mod resync;
pub mod room;
pub mod scale_down;
pub mod scan;
pub mod shapes;
pub mod standalone;
pub mod status;
pub mod truth;
pub mod waves;
pub mod world;
pub mod writer;

pub use world::World;

use std::hash::{BuildHasher, RandomState};

/// A random share of 1, for what should not happen everywhere at once. Nothing secret depends on it.
pub(crate) fn jitter() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}
