//! Pecking Order decides which pod goes first.
//!
//! The modules, in reading order:
//!
//! * [`api`]: what the user writes: the kinds, their validation, and how documents are read.
//! * [`cost`]: pure: scores, the order of removal, and which writes a scale-down needs.
//! * [`headroom`]: pure: the rules that placeholders and their classes must keep.
//! * [`signals`]: metrics backends and the pollers that keep costs current.
//! * [`admission`]: AdmissionReviews: the wire, and one file per reviewed thing.
//! * [`cluster`]: everything that talks to the API server: watches, writers, status, the CA.
//! * [`server`]: TLS, HTTP limits, health, telemetry, shutdown.
//! * [`cli`]: one file per subcommand.
#![forbid(unsafe_code)]

pub mod admission;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod cost;
pub mod headroom;
pub mod server;
pub mod signals;
