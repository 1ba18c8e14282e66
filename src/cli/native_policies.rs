//! `pecking-order native-policies`: the rules of pools as ValidatingAdmissionPolicies, which the API server checks without a pod of ours.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use crate::api::Pool;
use crate::api::documents::{Document, read_documents, read_text};
use crate::headroom::native;

#[derive(clap::Args)]
pub struct Args {
    /// A file with HeadroomPools
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Write there rather than to the standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = read_text(&args.file).map_err(anyhow::Error::msg)?;
    let (documents, errors) = read_documents(&args.file, &text);
    if !errors.is_empty() {
        bail!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
    let pools = documents.iter().filter_map(|document| match document {
        Document::HeadroomPool(pool) => Some(Pool::compile(pool)),
        Document::DeletionCostPolicy(_) => None,
    });
    let policies: Vec<_> = pools.flat_map(|pool| native::policies(&pool)).collect();
    if policies.is_empty() {
        bail!("{}: found no HeadroomPool with a rule that is on, wanted one", args.file.display());
    }
    let mut yaml = String::from("# Made by `pecking-order native-policies`; change the pool, not this.\n");
    for policy in policies {
        yaml += "---\n";
        yaml += &serde_saphyr::to_string(&policy)?;
    }
    match &args.output {
        None => super::print(yaml.trim_end())?,
        Some(file) => std::fs::write(file, yaml)?,
    }
    Ok(ExitCode::SUCCESS)
}
