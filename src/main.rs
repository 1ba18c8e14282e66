//! Arguments and dispatch; everything else is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use pecking_order::cli::Cli;

fn main() -> ExitCode {
    pecking_order::server::install_crypto_provider();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("pecking-order: {e:#}");
            ExitCode::FAILURE
        }
    }
}
