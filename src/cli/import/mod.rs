//! `pecking-order import`: brings the users of another tool over. Writes our documents, and says of every line of theirs what
//! became of it.

mod pod_cost_manager;
mod values;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Subcommand;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::api::documents::{self, read_documents, read_text};
use crate::server::config::Config;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Subcommand)]
enum From {
    /// The values of Pod Cost Manager's Helm chart
    PodCostManager {
        /// The values file
        file: PathBuf,
        /// Write the documents into this directory, instead of to standard output
        #[arg(short, long, value_name = "DIR")]
        output: Option<PathBuf>,
    },
}

/// What an import comes to.
#[derive(Debug, Default)]
pub(super) struct Imported {
    /// File names and contents. `server.yaml` is the server configuration, the others are policies.
    pub files: Vec<(String, String)>,
    pub notes: Vec<Note>,
}

/// What became of one line; without a number it is about a default, or about the whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub line: Option<u64>,
    pub path: String,
    pub fate: Fate,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    CarriedOver,
    ChangedOnPurpose,
    NoCounterpart,
}

impl Fate {
    fn as_str(self) -> &'static str {
        match self {
            Self::CarriedOver => "carried over",
            Self::ChangedOnPurpose => "changed on purpose",
            Self::NoCounterpart => "no counterpart",
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let From::PodCostManager { file, output } = args.from;
    let text = read_text(&file).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
    let imported = pod_cost_manager::import(&text).with_context(|| file.display().to_string())?;
    check(&imported)?;
    match &output {
        Some(directory) => write(directory, &imported.files)?,
        None => imported.files.iter().try_for_each(|(name, text)| super::print(&format!("---\n# {name}\n{}", text.trim_end())))?,
    }
    // The documents may go into a pipe; what there is to say about them goes beside it.
    eprintln!("{}", report(&file, &imported.notes));
    Ok(ExitCode::SUCCESS)
}

/// What is written must be accepted: by the same code as everywhere else.
fn check(imported: &Imported) -> anyhow::Result<()> {
    for (name, text) in imported.files.iter().filter(|(name, _)| name != "server.yaml") {
        let (_, errors) = read_documents(Path::new(name), text);
        ensure!(
            errors.is_empty(),
            "these values make no valid policy: {}",
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        );
    }
    for (_, text) in imported.files.iter().filter(|(name, _)| name == "server.yaml") {
        let server = documents::yaml::<Config>(text).map_err(|(_, message)| anyhow::anyhow!(message));
        server.context("these values make no valid server configuration")?;
    }
    Ok(())
}

/// Nothing is written over: a directory that holds one of the files already is left as it is.
fn write(directory: &Path, files: &[(String, String)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for (name, _) in files {
        let file = directory.join(name);
        ensure!(!file.exists(), "{} is there already; wanted a directory without it", file.display());
    }
    for (name, text) in files {
        let file = directory.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        super::print(&file.display().to_string())?;
    }
    Ok(())
}

fn report(file: &Path, notes: &[Note]) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["line", "value", "became", "what and why"]);
    for note in notes {
        let line = note.line.map_or("(default)".into(), |line| format!("{}:{line}", file.file_name().unwrap_or_default().display()));
        table.add_row([line, note.path.clone(), note.fate.as_str().into(), note.text.clone()]);
    }
    table.to_string()
}
