//! `pecking-order scan`: the objects that are in a cluster already, held against the rules of its pools. An admission webhook never sees what
//! was there before it, nor a pod whose class was made anew with another value.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Config, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::documents::Document;
use crate::api::headroom_pool::Mode;
use crate::api::{HeadroomPool, Policies, Pool};
use crate::cluster::listing::each;
use crate::cluster::shapes;
use crate::headroom::object::{Body, Kind};
use crate::headroom::{self, Classes, Known, Object, Shapes};
use crate::server::install_crypto_provider;

/// The most findings of one report: the API server stores no larger object than 1.5 MB.
const RESULTS: usize = 500;

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

/// One thing that is wrong with one object.
#[derive(Debug, Serialize)]
struct Row {
    level: &'static str,
    rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    kind: &'static str,
    name: String,
    #[serde(skip)]
    uid: String,
    message: String,
}

/// What was found, and how much was looked at.
#[derive(Debug, Default, Serialize)]
struct Scan {
    findings: Vec<Row>,
    objects: usize,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    install_crypto_provider();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(scan(args))
}

async fn scan(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = Config::infer().await.context("no API server: found neither a kubeconfig nor a service account; wanted one")?;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let policies = pools(&client).await?;
    let known = known(&client, &policies).await?;
    let mut scan = Scan::default();
    for kind in Kind::ALL {
        let resource = shapes::resource(kind);
        let api: Api<DynamicObject> = match args.namespace.as_deref().filter(|_| kind != Kind::PriorityClass) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        // What may not be listed does not hide the rest.
        if let Err(e) = each(&api, ListParams::default(), |object| scan.look(kind, object, &policies, &known)).await {
            let row = Row {
                level: "unchecked",
                rule: "unchecked".into(),
                pool: None,
                namespace: String::new(),
                kind: kind.name(),
                name: "*".into(),
                uid: String::new(),
                message: e.to_string(),
            };
            scan.findings.push(row);
        }
    }
    super::print(&match args.output {
        Output::Table => scan.table(),
        Output::Json => serde_json::to_string_pretty(&scan)?,
        Output::PolicyReport => scan.policy_reports()?,
    })?;
    let has = |level: &str| scan.findings.iter().any(|row| row.level == level);
    Ok(ExitCode::from(match () {
        () if has("unchecked") => 2,
        () if has("error") || (args.strict && has("warning")) => 1,
        () => 0,
    }))
}

/// The pools of the cluster that can be used; the status of the others says why not.
async fn pools(client: &Client) -> anyhow::Result<Policies> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<HeadroomPool>(&()));
    let mut policies = Policies::default();
    let read = |object: DynamicObject| {
        let name = object.name_any();
        match serde_json::to_value(object).map_err(|e| e.to_string()).and_then(|value| Document::from_value("HeadroomPool", value)) {
            Ok(Document::HeadroomPool(pool)) if pool.spec.problems().is_empty() => {
                policies = std::mem::take(&mut policies).with_pool(Pool::compile(&pool));
            }
            _ => tracing::warn!(pool = name, "this pool cannot be used; see its status"),
        }
    };
    each(&api, ListParams::default(), read).await.context("cannot list headroompools")?;
    Ok(policies)
}

async fn known(client: &Client, policies: &Policies) -> anyhow::Result<Known> {
    let mut classes = Vec::new();
    let api: Api<PriorityClass> = Api::all(client.clone());
    each(&api, ListParams::default(), |class| classes.push((class.name_any(), class.value, class.global_default.unwrap_or(false))))
        .await
        .context("cannot list priorityclasses")?;
    let mut known_shapes = Shapes::default();
    for pool in policies.pools() {
        if let Some(shape) = &pool.spec.shape {
            let spec =
                shapes::read(client, &shape.like).await.map_err(anyhow::Error::msg).with_context(|| format!("cannot read {shape}"))?;
            known_shapes = known_shapes.with(&pool.name, spec);
        }
    }
    Ok(Known { classes: Arc::new(Classes::new(classes)), shapes: Arc::new(known_shapes) })
}

impl Scan {
    fn look(&mut self, kind: Kind, object: DynamicObject, policies: &Policies, known: &Known) {
        self.objects += 1;
        let (namespace, name, uid) = (object.namespace().unwrap_or_default(), object.name_any(), object.uid().unwrap_or_default());
        let row = |level, rule: &str, pool: Option<&str>, message: String| Row {
            level,
            rule: rule.into(),
            pool: pool.map(str::to_owned),
            namespace: namespace.clone(),
            kind: kind.name(),
            name: name.clone(),
            uid: uid.clone(),
            message,
        };
        let object = match serde_json::to_string(&object).and_then(|text| Object::read(kind, &text)) {
            Ok(object) => object,
            Err(e) => return self.findings.push(row("unchecked", "unchecked", None, format!("cannot be read: {e}"))),
        };
        let found = headroom::review(&object, None, policies, known);
        for broken in &found.broken {
            let level = match broken.mode {
                Mode::Enforce => "error",
                Mode::Warn => "warning",
                Mode::Audit | Mode::Off => "note",
            };
            self.findings.push(row(level, broken.rule, Some(&broken.pool), broken.finding.to_string()));
        }
        self.findings.extend(found.unresolved.iter().map(|text| row("unchecked", "unchecked", None, text.clone())));
        let of_classes = found.notes.iter().filter(|_| kind != Kind::PriorityClass || !object.name.starts_with("system-"));
        self.findings.extend(of_classes.map(|text| row("warning", "note", None, text.clone())));
        let is_placeholder = policies.pools().any(|pool| object.is_marked_by(pool));
        if let Some(text) = outdated(&object, known).filter(|_| is_placeholder && !object.leaving) {
            self.findings.push(row("warning", "outdatedPriority", None, text));
        }
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["level", "rule", "namespace", "object", "what"]);
        for row in &self.findings {
            table.add_row([row.level, &row.rule, &row.namespace, &format!("{} {}", row.kind, row.name), &row.message]);
        }
        let count = |level: &str| self.findings.iter().filter(|row| row.level == level).count();
        let counts = format!(
            "{} objects: {} errors, {} warnings, {} could not be checked",
            self.objects,
            count("error"),
            count("warning"),
            count("unchecked")
        );
        if self.findings.is_empty() { counts } else { format!("{table}\n\n{counts}") }
    }

    /// One report for each namespace, and one for what has none. The next scan's take their place.
    fn policy_reports(&self) -> anyhow::Result<String> {
        let mut by_namespace: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &self.findings {
            by_namespace.entry(&row.namespace).or_default().push(row);
        }
        let now = Timestamp::now().as_second();
        let mut yaml = String::new();
        for (namespace, rows) in by_namespace {
            let result = |row: &&Row| {
                let outcome = match row.level {
                    "error" => "fail",
                    "unchecked" => "error",
                    _ => "warn",
                };
                let resource = shapes::resource(Kind::ALL.into_iter().find(|kind| kind.name() == row.kind).unwrap_or(Kind::Pod));
                let about = json!({"apiVersion": resource.api_version, "kind": row.kind, "name": row.name, "namespace": row.namespace, "uid": row.uid});
                json!({"source": "pecking-order", "policy": row.pool, "rule": row.rule, "result": outcome, "message": row.message,
                    "resources": [about], "timestamp": {"seconds": now, "nanos": 0}})
            };
            let results: Vec<Value> = rows.iter().take(RESULTS).map(result).collect();
            let count = |outcome: &str| results.iter().filter(|result| result["result"] == outcome).count();
            let labels = json!({"app.kubernetes.io/managed-by": "pecking-order"});
            let mut metadata = json!({"name": "pecking-order", "labels": labels});
            let kind = match namespace {
                "" => "ClusterPolicyReport",
                namespace => {
                    metadata["namespace"] = json!(namespace);
                    "PolicyReport"
                }
            };
            if rows.len() > RESULTS {
                metadata["annotations"] = json!({"pecking-order.dev/left-out": (rows.len() - RESULTS).to_string()});
            }
            let report = json!({"apiVersion": "wgpolicyk8s.io/v1alpha2", "kind": kind, "metadata": metadata, "results": results,
                "summary": {"pass": 0, "fail": count("fail"), "warn": count("warn"), "error": count("error"), "skip": 0}});
            yaml += "---\n";
            yaml += &serde_saphyr::to_string(&report)?;
        }
        Ok(yaml.trim_end().to_owned())
    }
}

/// A pod whose priority is not that of its class any more: it keeps the number that it was made with.
fn outdated(object: &Object, known: &Known) -> Option<String> {
    let Body::Pod { spec, .. } = &object.body else { return None };
    let (class, priority) = (spec.priority_class_name.as_deref()?, spec.priority?);
    let now = known.classes.value(Some(class)).filter(|now| *now != priority)?;
    Some(format!("spec.priority: found {priority}, wanted {now}, which class `{class}` has now: the pod was made before the class was"))
}
