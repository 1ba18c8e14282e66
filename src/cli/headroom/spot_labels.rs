//! `pecking-order headroom spot-labels`: the built-in table.

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use super::Output;
use crate::headroom::spot::built_in;

#[derive(clap::Args)]
pub struct Args {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    crate::cli::print(&match args.output {
        Output::Json => serde_json::to_string_pretty(&built_in())?,
        Output::Table => {
            let mut table = Table::new();
            table.load_style(ASCII_MARKDOWN).set_header(["key", "spot", "regular", "other", "set by"]);
            let all =
                |values: &[String]| values.iter().map(|value| if value.is_empty() { "\"\"" } else { value }).collect::<Vec<_>>().join(", ");
            for row in built_in() {
                // A regular node without the label is told by that.
                let regular = if row.regular.is_empty() { "(absent)".into() } else { all(&row.regular) };
                table.add_row([row.key.clone(), all(&row.spot), regular, all(&row.other), row.provider.clone()]);
            }
            table.to_string()
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
