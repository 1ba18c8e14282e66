//! Gives the room of placeholders away: every replica follows who has it, and the leader writes.

mod claim_status;
pub mod drain;
mod leader;
pub mod store;
pub mod watches;

pub use leader::{Keeper, ungate};
pub use store::RoomStore;
