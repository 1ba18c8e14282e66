//! Deletion costs, pure: from samples to scores, the order of removal, and the writes that a scale-down needs. No I/O.

pub mod annotation;
pub mod cache;
pub mod census;
pub mod contested;
pub mod floor;
pub mod outcome;
pub mod plan;
pub mod pod;
pub mod presets;
pub mod readings;
pub mod score;
pub mod signal;
pub mod tie_break;
pub mod victims;

pub use annotation::Stored;
pub use cache::{Cost, CostCache};
pub use pod::GovernedPod;
pub use signal::Signal;
