//! Everything that talks to the API server, and what is known from it.

pub mod certificate_authority;
pub mod governance;
pub mod listing;
pub mod pods;
pub mod policies;
pub mod scale_down;
pub mod standalone;
pub mod status;
pub mod world;
pub mod writer;

pub use world::World;
