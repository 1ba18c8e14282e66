//! `pecking-order crds`: the CustomResourceDefinitions of our kinds, as the binary knows them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::api::custom_resource_definitions;

#[derive(clap::Args)]
pub struct Args {
    /// Write one file per kind into this directory, instead of all to standard output
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    for (name, yaml) in custom_resource_definitions() {
        match &args.output {
            Some(directory) => {
                let file = directory.join(name);
                std::fs::write(&file, yaml).with_context(|| format!("cannot write {}", file.display()))?;
            }
            None => super::print(&format!("---\n{}", yaml.trim_end()))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
