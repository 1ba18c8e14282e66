//! `pecking-order headroom plan`: whether the pods of a spot reclaim would find room, and what is missing.

mod picture;
mod sources;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;

use crate::api::headroom_pool::Placeholders;
use crate::api::{HeadroomPoolSpec, Policies, Pool, documents};
use crate::cluster::waves::{self, is_placeholder};
use crate::headroom::effective::Resources;
use crate::headroom::quantity::Quantity;
use crate::headroom::spot;
use crate::headroom::wave::{Cluster, Domain, Options};

#[derive(clap::Args)]
pub struct Args {
    /// What `kubectl get nodes,pods -A -o json` has printed, `-` for standard input; the cluster at hand where absent
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Read pools from this directory; without it, and with files, the mark label alone tells placeholders
    #[arg(long, value_name = "DIR")]
    policies: Option<PathBuf>,
    /// Labels of the placeholders, such as app=spot-headroom, where no pool says so
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    placeholders: Vec<(String, String)>,
    /// Which spot nodes are reclaimed together: zone-type, node-pool, or label=KEY
    #[arg(long, value_name = "WHICH", default_value = "zone-type", value_parser = domain)]
    by: Domain,
    /// What a further placeholder is to request, such as cpu=2,memory=4Gi
    #[arg(long, value_name = "AMOUNTS", value_parser = shape)]
    shape: Option<Resources>,
    /// What nodes with a label cost in an hour, such as node.kubernetes.io/instance-type=m5.large:0.096
    #[arg(long, value_name = "KEY=VALUE:PRICE", value_parser = price)]
    price: Vec<Price>,
    /// The node label whose value is what the node costs in an hour
    #[arg(long, value_name = "KEY")]
    price_label: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
    /// A picture of the nodes, the placeholders and the wave
    Svg,
}

#[derive(Debug, Clone)]
struct Price {
    key: String,
    value: String,
    per_hour: f64,
}

fn pair(text: &str) -> Result<(String, String), String> {
    text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| format!("found `{text}`, wanted KEY=VALUE"))
}

fn domain(text: &str) -> Result<Domain, String> {
    text.to_owned().try_into()
}

fn shape(text: &str) -> Result<Resources, String> {
    let each = text.split(',').map(|part| {
        let (resource, amount) = pair(part)?;
        Ok((resource, Quantity::parse(&amount)?))
    });
    each.collect()
}

fn price(text: &str) -> Result<Price, String> {
    let wanted = || format!("found `{text}`, wanted KEY=VALUE:PRICE, such as node.kubernetes.io/instance-type=m5.large:0.096");
    let (label, per_hour) = text.rsplit_once(':').ok_or_else(wanted)?;
    let (key, value) = pair(label).map_err(|_| wanted())?;
    let per_hour = per_hour.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0).ok_or_else(wanted)?;
    Ok(Price { key, value, per_hour })
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pools = pools(&args)?;
    if !args.files.is_empty() {
        let is_placeholder = is_placeholder(&pools);
        let cluster = sources::from_files(&args.files, &is_placeholder)?;
        return report(&args, &cluster, &pools);
    }
    crate::cli::with_cluster(async |client| {
        let pools = if pools.pools().next().is_none() { sources::pools(&client).await? } else { pools };
        let is_placeholder = is_placeholder(&pools);
        let cluster = waves::read(&client, &is_placeholder).await?;
        report(&args, &cluster, &pools)
    })
}

/// The pools that files and options speak of.
fn pools(args: &Args) -> anyhow::Result<Policies> {
    let mut policies = Policies::default();
    if let Some(directory) = &args.policies {
        let (documents, errors) = documents::read_directory(directory);
        if let Some(error) = errors.first() {
            bail!("--policies: {error}");
        }
        for document in &documents {
            policies = policies.with_document(document);
        }
    }
    if !args.placeholders.is_empty() {
        let selector = crate::api::LabelSelector { match_labels: args.placeholders.iter().cloned().collect(), ..Default::default() };
        let placeholders = Placeholders { selector: Some(selector), ..Placeholders::default() };
        let spec = HeadroomPoolSpec { placeholders, ..serde_json::from_str("{}")? };
        policies = policies.with_pool(Pool::compile(&crate::api::HeadroomPool::new("--placeholders", spec)));
    }
    Ok(policies)
}

fn report(args: &Args, cluster: &Cluster, pools: &Policies) -> anyhow::Result<ExitCode> {
    ensure!(!cluster.nodes.is_empty(), "found no node, wanted what `kubectl get nodes,pods -A -o json` prints");
    let mut rows = spot::built_in();
    rows.extend(pools.pools().flat_map(|pool| pool.spec.spot_nodes.iter().cloned()));
    let options = Options { domain: args.by.clone(), spot_rows: &rows, shape: args.shape.clone(), prices: prices(args, cluster)? };
    let plan = cluster.plan(&options);
    crate::cli::print(&match args.output {
        Output::Table => table::render(&plan),
        Output::Json => serde_json::to_string_pretty(&plan)?,
        Output::Svg => picture::render(cluster, &plan, &rows, &args.by),
    })?;
    // As `check`: something is found that must not be.
    Ok(if plan.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What each node costs, where that is known.
fn prices(args: &Args, cluster: &Cluster) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut prices = BTreeMap::new();
    for (name, node) in &cluster.nodes {
        let named = args.price.iter().find(|price| node.labels.get(&price.key) == Some(&price.value)).map(|price| price.per_hour);
        let labelled = match args.price_label.as_ref().and_then(|key| node.labels.get(key)) {
            Some(text) => {
                Some(text.parse::<f64>().with_context(|| format!("--price-label: node {name}: found `{text}`, wanted a number"))?)
            }
            None => None,
        };
        prices.extend(named.or(labelled).map(|price| (name.to_string(), price)));
    }
    Ok(prices)
}
