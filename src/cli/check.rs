//! `pecking-order check`: what is wrong with policies and pools in files, by the code that the server itself goes by.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use kube::Client;

use crate::api::CostPolicy;
use crate::api::documents::{self, Document, DocumentError};
use crate::cluster::policies::check_backend;
use crate::server::config::Config;
use crate::server::install_crypto_provider;

#[derive(clap::Args)]
pub struct Args {
    /// Files, or directories of which every .yaml, .yml and .json file is read
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// A server configuration: check too that its backends exist and would be asked these queries
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (mut documents, mut errors) = (Vec::new(), Vec::new());
    for path in &args.paths {
        let (good, bad) = read(path);
        documents.extend(good);
        errors.extend(bad.iter().map(ToString::to_string));
    }
    if let Some(file) = &args.config {
        errors.extend(backend_errors(file, &documents)?);
    }
    errors.iter().try_for_each(|error| super::print(error))?;
    match errors.len() {
        0 => {
            super::print(&format!("{} documents are valid", documents.len()))?;
            Ok(ExitCode::SUCCESS)
        }
        count => {
            eprintln!("{count} errors; {} documents are valid", documents.len());
            Ok(ExitCode::FAILURE)
        }
    }
}

fn read(path: &Path) -> (Vec<Document>, Vec<DocumentError>) {
    if path.is_dir() {
        return documents::read_directory(path);
    }
    match documents::read_text(path) {
        Ok(text) => documents::read_documents(path, &text),
        Err(message) => (vec![], vec![DocumentError { file: path.into(), position: None, message }]),
    }
}

fn backend_errors(file: &Path, documents: &[Document]) -> anyhow::Result<Vec<String>> {
    install_crypto_provider();
    let config = Config::read(file)?;
    let directory = file.parent().unwrap_or(Path::new("."));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Nothing is asked, so any client will do.
    let _guard = runtime.enter();
    let nobody = Client::try_from(kube::Config::new("https://localhost".parse()?))?;
    let backends = config.build_backends(directory, Some(&nobody)).with_context(|| file.display().to_string())?;
    let policies = documents.iter().filter_map(|document| match document {
        Document::DeletionCostPolicy(policy) => Some(CostPolicy::compile(policy)),
        Document::HeadroomPool(_) => None,
    });
    let error = |policy: CostPolicy| {
        let (_, message) = check_backend(&backends, &policy.spec, &policy.namespace).err()?;
        Some(format!("DeletionCostPolicy {}/{}: {message}", policy.namespace, policy.name))
    };
    Ok(policies.filter_map(error).collect())
}
