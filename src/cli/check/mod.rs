//! `pecking-order check`: manifests held against the rules of their pools, and what is wrong with policies and pools themselves, by the code
//! that the server goes by. Needs no cluster.

mod finding;
mod fix;
mod manifests;
mod output;
mod sources;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use kube::Client;

use crate::api::CostPolicy;
use crate::api::documents::{self, Document};
use crate::cluster::policies::check_backend;
use crate::server::config::Config;
use crate::server::install_crypto_provider;
use finding::{Finding, Report};
use manifests::{Manifest, Manifests};
use output::Output;
use sources::Source;

#[derive(clap::Args)]
pub struct Args {
    /// Files, directories of which every .yaml, .yml and .json file is read, or - for the standard input
    #[arg(required = true, value_name = "FILE|DIR|-")]
    paths: Vec<PathBuf>,
    /// Further files or directories with pools and PriorityClasses, which are not themselves checked
    #[arg(long, value_name = "FILE|DIR")]
    pool: Vec<PathBuf>,
    /// A server configuration: check too that its backends exist and would be asked these queries
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Let warnings count as errors
    #[arg(long)]
    strict: bool,
    /// Write back what can be mended without a choice; comments and order are kept
    #[arg(long)]
    fix: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (sources, manifests, mut report) = check(&args)?;
    if args.fix {
        let fixed = sources.iter().map(|source| write_fixes(source, &manifests, &report)).sum::<anyhow::Result<usize>>()?;
        // What is wrong after it is what counts.
        report = Report { fixed, ..check(&args)?.2 };
    }
    super::print(&args.output.print(&report))?;
    Ok(super::exit_code(report.findings.iter().map(|finding| finding.level), args.strict))
}

fn check(args: &Args) -> anyhow::Result<(Vec<Source>, Manifests, Report)> {
    let (sources, mut report) = read(&args.paths);
    let (mut manifests, mut around) = (Manifests::default(), Manifests::default());
    sources.iter().for_each(|source| manifests.read(source, &mut report));
    let (others, mut unread) = read(&args.pool);
    others.iter().for_each(|source| around.read(source, &mut unread));
    report.findings.append(&mut unread.findings);
    let checked = manifests.objects.len();
    // What was given beside counts, and is not checked.
    manifests.documents.append(&mut around.documents);
    manifests.objects.append(&mut around.objects);
    let policies = manifests.policies();
    let known = manifests.known(&policies);
    manifests.objects.truncate(checked);
    manifests.review(&policies, &known, &mut report);
    if let Some(file) = &args.config {
        report.findings.extend(backend_errors(file, &manifests.documents)?);
    }
    Ok((sources, manifests, report))
}

fn read(paths: &[PathBuf]) -> (Vec<Source>, Report) {
    let (sources, unreadable) = sources::read(paths);
    let finding = |sources::Unreadable { file, why }| Finding::unchecked(file, why);
    (sources, Report { findings: unreadable.into_iter().map(finding).collect(), ..Report::default() })
}

/// Writes what can be mended back to its file, whole or not at all. Returns how many fixes that are.
fn write_fixes(source: &Source, manifests: &Manifests, report: &Report) -> anyhow::Result<usize> {
    let (mut text, mut copied, mut fixed) = (String::new(), 0, 0);
    for (first_line, document) in documents::split(&source.text) {
        let mut better = document.to_owned();
        let here = |manifest: &&Manifest| manifest.file == source.file && manifest.first_line == first_line;
        for manifest in manifests.objects.iter().filter(here) {
            let of_it = |finding: &&Finding| finding.file == source.file && finding.object == manifest.described();
            let findings: Vec<&Finding> = report.findings.iter().filter(of_it).collect();
            let (text, count) = fix::fix(manifest, &better, &findings);
            (better, fixed) = (text, fixed + count);
        }
        // Between two documents stands what separates them.
        let start = document.as_ptr() as usize - source.text.as_ptr() as usize;
        text.push_str(&source.text[copied..start]);
        text.push_str(&better);
        copied = start + document.len();
    }
    if fixed > 0 && source.file.is_file() {
        let unfinished = source.file.with_extension("unfinished");
        let written = std::fs::write(&unfinished, &text).and_then(|()| std::fs::rename(&unfinished, &source.file));
        written.with_context(|| format!("cannot write {}", source.file.display()))?;
        return Ok(fixed);
    }
    Ok(0)
}

fn backend_errors(file: &Path, documents: &[Document]) -> anyhow::Result<Vec<Finding>> {
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
        Document::HeadroomPool(_) | Document::HeadroomClaim(_) => None,
    });
    let error = |policy: CostPolicy| {
        let (_, message) = check_backend(&backends, &policy.spec, &policy.namespace).err()?;
        let object = format!("DeletionCostPolicy {}/{}", policy.namespace, policy.name);
        Some(Finding { object, ..Finding::invalid_document(file.into(), message) })
    };
    Ok(policies.filter_map(error).collect())
}
