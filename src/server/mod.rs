//! The server: TLS, HTTP and its limits, health, telemetry, certificates, shutdown.

pub mod certificates;
pub mod config;
pub mod connections;
mod datadog_log;
pub mod health;
pub mod metrics;
pub mod telemetry;
pub mod webhook;

/// Chooses the crypto provider of the process. Must come before anything that speaks TLS; doing it twice does no harm.
pub fn install_crypto_provider() {
    // Err means that one is installed already: by us, since nothing else in the tree installs one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
