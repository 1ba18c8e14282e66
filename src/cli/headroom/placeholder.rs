//! `pecking-order headroom placeholder`: placeholders that ask for what a workload asks for, and stand where it may.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;

use crate::api::documents;
use crate::cluster::listing::find;
use crate::cluster::shapes::resource;
use crate::headroom::object::Kind;
use crate::headroom::placeholder::{Wanted, placeholder};
use crate::headroom::spot;

#[derive(clap::Args)]
pub struct Args {
    /// The workload, such as deployment/runner-job, statefulset/db, cronjob/nightly, podtemplate/job or pod/job-0
    #[arg(long, value_name = "KIND/NAME", value_parser = workload)]
    like: (Kind, String),
    /// Its namespace
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Read it from this file of manifests, not from the cluster
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The HeadroomPool that the placeholders belong to
    #[arg(long, default_value = "general")]
    pool: String,
    /// How many
    #[arg(long, default_value_t = 1)]
    replicas: u32,
    /// Their PriorityClass; the value is in its name, since it can never change
    #[arg(long, value_name = "NAME", default_value = "headroom-minus-10")]
    class: String,
    /// Keep off the spot nodes of this node label; of every provider's where absent
    #[arg(long, value_name = "KEY")]
    spot_key: Vec<String>,
}

fn workload(text: &str) -> Result<(Kind, String), String> {
    let wanted = || format!("found `{text}`, wanted KIND/NAME, such as deployment/runner-job");
    let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wanted)?;
    let is_it = |known: &Kind| {
        *known != Kind::PriorityClass
            && (known.name().eq_ignore_ascii_case(kind) || format!("{}s", known.name()).eq_ignore_ascii_case(kind))
    };
    Ok((Kind::ALL.into_iter().find(is_it).ok_or_else(wanted)?, name.to_owned()))
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match &args.file {
        Some(file) => {
            let text = documents::read_text(file).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
            let objects: Vec<Value> = serde_saphyr::from_multiple(&text).with_context(|| file.display().to_string())?;
            let (kind, name) = &args.like;
            let is_it = |object: &&Value| object["kind"] == kind.name() && object["metadata"]["name"] == name.as_str();
            let object = objects.iter().find(is_it).with_context(|| format!("{}: found no {} {name}", file.display(), kind.name()))?;
            print(&args, object)
        }
        None => crate::cli::with_cluster(async |client| from_cluster(args, client).await),
    }
}

async fn from_cluster(args: Args, client: Client) -> anyhow::Result<ExitCode> {
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let (kind, name) = &args.like;
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource(*kind));
    let Some(object) = find(&api, name).await.map_err(anyhow::Error::msg)? else { bail!("found no {} {namespace}/{name}", kind.name()) };
    print(&args, &serde_json::to_value(object)?)
}

fn print(args: &Args, object: &Value) -> anyhow::Result<ExitCode> {
    let rows = spot::built_in();
    for key in &args.spot_key {
        if !rows.iter().any(|row| row.key == *key) {
            let nearest = documents::nearest(key, rows.iter().map(|row| row.key.as_str())).map(|key| format!("; did you mean `{key}`?"));
            bail!("--spot-key: found `{key}`, wanted a key of `pecking-order headroom spot-labels`{}", nearest.unwrap_or_default());
        }
    }
    let wanted = Wanted {
        kind: args.like.0,
        namespace: args.namespace.as_deref(),
        pool: &args.pool,
        class: &args.class,
        replicas: args.replicas,
        rows: &rows,
        spot_keys: &args.spot_key,
    };
    let documents = placeholder(object, &wanted).map_err(anyhow::Error::msg)?;
    let yaml =
        documents.iter().map(|document| Ok(format!("---\n{}", serde_saphyr::to_string(document)?))).collect::<anyhow::Result<String>>()?;
    crate::cli::print(yaml.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
