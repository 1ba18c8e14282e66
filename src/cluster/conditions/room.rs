//! What the condition `RoomUsable` of a pool says.

use super::{Said, Status};
use crate::api::Pool;
use crate::headroom::room::{Ledger, Useless};

const TYPE: &str = "RoomUsable";

/// Whether the room of a pool can be given away, and if not, what to do.
pub fn of_pool(pool: &Pool, ledger: &Ledger, shape_is_known: bool) -> Said {
    let trouble = |reason, message| Said::trouble(TYPE, Status::False, reason, message);
    match (&ledger.useless, ledger.counted_by.first()) {
        (Some(useless), _) => {
            let reason = match useless {
                Useless::CannotPreempt { .. } => "CannotPreempt",
                Useless::TooSmall { .. } => "PlaceholdersTooSmall",
                Useless::OtherNodes { .. } => "PlaceholdersOnOtherNodes",
            };
            trouble(reason, useless.to_string())
        }
        (None, Some(_)) => {
            let others: Vec<&str> = ledger.counted_by.iter().map(String::as_str).collect();
            let message = format!(
                "some placeholders are also marked by HeadroomPool {}, which counts them; a placeholder belongs to one pool",
                others.join(", ")
            );
            trouble("SharedPlaceholders", message)
        }
        (None, None) if ledger.desired == 0 => Said::new(TYPE, Status::False, "NoPlaceholders", "no pod is a placeholder of this pool"),
        (None, None) => match pool.spec.shape.as_ref().filter(|_| !shape_is_known) {
            Some(shape) => {
                let message = format!("{shape} is not known, so each placeholder counts as one slot, whatever its size");
                Said::trouble(TYPE, Status::True, "ShapeNotFound", message)
            }
            None => Said::new(TYPE, Status::True, "Usable", "the room of bound placeholders is given away in the order of asking"),
        },
    }
}
