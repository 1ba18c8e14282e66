//! Headroom, pure: what marks a placeholder, the rules it must keep, and how an object is held against them. No I/O.

pub mod classes;
pub mod effective;
pub mod native;
pub mod node;
pub mod object;
pub mod placeholder;
pub mod quantity;
pub mod report;
pub mod review;
pub mod room;
pub mod rules;
pub mod shapes;
pub mod spot;
pub mod wave;

pub use classes::{Class, Classes};
pub use object::Object;
pub use review::{Known, Review, review};
pub use shapes::Shapes;
