//! `pecking-order native-policies`: the rules of pools as ValidatingAdmissionPolicies, which the API server checks without a pod of ours.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

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
    let yaml = render(&args.file)?;
    match &args.output {
        None => super::print(yaml.trim_end())?,
        Some(file) => std::fs::write(file, yaml).with_context(|| format!("cannot write {}", file.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The policies of all pools of a file, as YAML.
pub fn render(file: &Path) -> anyhow::Result<String> {
    let text = read_text(file).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
    let (documents, errors) = read_documents(file, &text);
    if !errors.is_empty() {
        bail!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
    let pools = documents.iter().filter_map(|document| match document {
        Document::HeadroomPool(pool) => Some(Pool::compile(pool)),
        Document::DeletionCostPolicy(_) | Document::HeadroomClaim(_) => None,
    });
    let policies: Vec<_> = pools.flat_map(|pool| native::policies(&pool)).collect();
    if policies.is_empty() {
        bail!("{}: found no HeadroomPool with a rule that is on, wanted one", file.display());
    }
    let mut yaml = String::from("# Made by `pecking-order native-policies`; change the pool, not this.\n");
    for policy in policies {
        yaml += "---\n";
        yaml += &serde_saphyr::to_string(&policy)?;
    }
    Ok(yaml)
}
