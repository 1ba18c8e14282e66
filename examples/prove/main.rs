//! The proof of the main job, on a real control plane. `make prove` runs all of it; `prove PART…` runs some: `doors`, `steady`, `large`,
//! `load`, `leader`, `servers`.
//!
//! The pods' work is different for each, so exactly one set of victims is right.

mod doors;
mod leader;
mod load;
mod round;
mod steady;

use std::path::{Path, PathBuf};

use anyhow::Context;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::Site;
use round::Tally;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    pecking_order::server::install_crypto_provider();
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let (binary, manifest) = product()?;
    if ["doors", "steady", "large", "load", "leader"].into_iter().any(wanted) {
        let mut site = Site::start(1, &binary, &manifest)?;
        let workbench = site.workbench().await?;
        // Ten minutes in which nothing happens, beside the rest.
        let steady = if wanted("steady") { Some(tokio::spawn(steady::prove(workbench.clone()))) } else { None };
        if wanted("doors") {
            verified("Four doors, small and large ReplicaSets, stored costs of three kinds", &doors::prove(&workbench).await?)?;
        }
        if wanted("large") {
            verified("A thousand pods, of which six hundred go", &load::large(&workbench).await?)?;
        }
        if wanted("load") {
            verified("While 300 other Deployments change", &load::busy_controllers(&workbench).await?)?;
        }
        if let Some(steady) = steady {
            println!("{}\n", steady.await??.report(&site.installation)?);
        }
        if wanted("leader") {
            print(
                "The leader killed in the middle of its writes, and the scale-down after it",
                &leader::prove(&mut site, &workbench).await?,
            );
        }
    }
    if wanted("servers") {
        let site = Site::start(2, &binary, &manifest)?;
        verified("Two API servers on one etcd, the controllers at the second", &load::two_servers(&site.workbench().await?).await?)?;
    }
    Ok(())
}

/// The binary beside this one, and the shipped manifests.
fn product() -> anyhow::Result<(PathBuf, PathBuf)> {
    let program = std::env::current_exe()?;
    let directory = program.parent().and_then(Path::parent).context("target/PROFILE/examples/prove")?;
    Ok((directory.join("pecking-order"), Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/install.yaml")))
}

/// Prints, and fails where there were wrong victims.
fn verified(title: &str, tallies: &[Tally]) -> anyhow::Result<()> {
    print(title, tallies);
    tallies.iter().try_for_each(Tally::verify)
}

fn print(title: &str, tallies: &[Tally]) {
    let mut table = Table::new();
    let header = [
        "door",
        "pods",
        "go",
        "stored costs",
        "scale-downs",
        "all victims right",
        "victims right",
        "writes each",
        "most needed",
        "said to be",
    ];
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for tally in tallies {
        table.add_row(tally.row());
    }
    let sum = |count: fn(&Tally) -> usize| tallies.iter().map(count).sum::<usize>();
    println!("{title}\n\n{table}\n");
    println!(
        "{} of {} scale-downs with every victim right; {} of {} victims right\n",
        sum(|t| t.all_right),
        sum(|t| t.scale_downs),
        sum(|t| t.right),
        sum(|t| t.victims)
    );
}
