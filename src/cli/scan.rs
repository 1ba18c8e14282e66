//! `pecking-order scan`: the objects that are in a cluster already, held against the rules of its pools.

use std::process::ExitCode;

use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use kube::Client;

use crate::cluster::scan::Scan;
use crate::headroom::report::Level;

#[derive(clap::Args)]
pub struct Args {
    /// Only this namespace; the PriorityClasses are looked at all the same
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Let warnings count as errors
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
    /// PolicyReports of wgpolicyk8s.io, one for each namespace, to be applied
    PolicyReport,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    super::with_cluster(async |client| scan(args, &client).await)
}

async fn scan(args: Args, client: &Client) -> anyhow::Result<ExitCode> {
    let scan = Scan::run(client, args.namespace.as_deref()).await?;
    super::print(&match args.output {
        Output::Table => table(&scan),
        Output::Json => serde_json::to_string_pretty(&scan)?,
        Output::PolicyReport => {
            let yaml = scan
                .reports()
                .iter()
                .map(|report| Ok(format!("---\n{}", serde_saphyr::to_string(report)?)))
                .collect::<anyhow::Result<String>>()?;
            yaml.trim_end().to_owned()
        }
    })?;
    Ok(super::exit_code(scan.findings.iter().map(|row| row.level), args.strict))
}

fn table(scan: &Scan) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["level", "rule", "namespace", "object", "what"]);
    for row in &scan.findings {
        table.add_row([row.level.as_str(), row.rule, &row.namespace, &format!("{} {}", row.kind.name(), row.name), &row.message]);
    }
    let count = |level: Level| scan.findings.iter().filter(|row| row.level == level).count();
    let counts = format!(
        "{} objects: {} errors, {} warnings, {} could not be checked",
        scan.objects,
        count(Level::Error),
        count(Level::Warning),
        count(Level::Unchecked)
    );
    if scan.findings.is_empty() { counts } else { format!("{table}\n\n{counts}") }
}
