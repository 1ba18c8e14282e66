//! The objects that are in a cluster, held against the rules of its pools: for the command `scan`, and for the leader where the operator wants
//! reports. An admission webhook never sees what was there before it, nor a pod whose class was made anew with another value.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::largest;
use super::leadership::Leadership;
use super::listing::{each, usable};
use super::policies::read_class;
use super::shapes;
use super::status::FIELD_MANAGER;
use crate::api::{HeadroomPool, Policies};
use crate::headroom::object::{Body, Kind};
use crate::headroom::report::{Level, NOTE, Remark, UNCHECKED};
use crate::headroom::{self, Classes, Known, Object, Shapes};

/// The most findings of one report: the API server stores no larger object than 1.5 MB.
const RESULTS: usize = 500;

/// How long one scan may take: some 150,000 pods, 500 to a page.
const SCAN_LIMIT: Duration = Duration::from_secs(600);

/// Names our reports.
const REPORT: &str = "pecking-order";
/// By which they are found.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by=pecking-order";

/// `scan` of the server configuration.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// How often the leader scans and writes PolicyReports; 0 is off.
    pub every_seconds: u32,
}

impl Config {
    /// What is wrong with the number, if anything.
    pub fn problem(&self) -> Option<String> {
        let fits = self.every_seconds == 0 || (10..=604_800).contains(&self.every_seconds);
        (!fits).then(|| format!("scan.everySeconds: found {}, wanted 0, or 10 to 604800", self.every_seconds))
    }
}

/// One thing that is wrong with one object.
#[derive(Debug, Serialize)]
pub struct Row {
    pub level: Level,
    pub rule: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub kind: Kind,
    pub name: String,
    #[serde(skip)]
    uid: String,
    pub message: String,
}

/// What was found, and how much was looked at.
#[derive(Debug, Default, Serialize)]
pub struct Scan {
    pub findings: Vec<Row>,
    pub objects: usize,
    /// The pools, by name, with their UIDs: the owners of reports.
    #[serde(skip)]
    owners: BTreeMap<String, String>,
}

/// The pools of the cluster that can be used; the status of the others says why not.
async fn pools(client: &Client, owners: &mut BTreeMap<String, String>) -> anyhow::Result<Policies> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<HeadroomPool>(&()));
    let mut policies = Policies::default();
    let read = |object: DynamicObject| {
        owners.extend(object.uid().map(|uid| (object.name_any(), uid)));
        if let Some(pool) = usable("HeadroomPool", object) {
            policies = std::mem::take(&mut policies).with_document(&pool);
        }
    };
    each(&api, ListParams::default(), read).await.context("cannot list headroompools")?;
    Ok(policies)
}

async fn known(client: &Client, policies: &Policies) -> anyhow::Result<Known> {
    let mut classes = Vec::new();
    let api: Api<PriorityClass> = Api::all(client.clone());
    each(&api, ListParams::default(), |class| classes.push((class.name_any(), read_class(&class))))
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
    // Who may not list nodes is not told what they have.
    let largest = largest::read(client).await.unwrap_or_default();
    Ok(Known { classes: Arc::new(Classes::new(classes)), shapes: Arc::new(known_shapes), largest: Arc::new(largest) })
}

impl Scan {
    /// Looks at everything, in one namespace or in all. What may not be listed does not hide the rest.
    pub async fn run(client: &Client, namespace: Option<&str>) -> anyhow::Result<Self> {
        let mut scan = Self::default();
        let policies = pools(client, &mut scan.owners).await?;
        let known = known(client, &policies).await?;
        for kind in Kind::ALL {
            let resource = shapes::resource(kind);
            let api: Api<DynamicObject> = match namespace.filter(|_| kind != Kind::PriorityClass) {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            if let Err(e) = each(&api, ListParams::default(), |object| scan.look(kind, object, &policies, &known)).await {
                let (namespace, name, uid) = (String::new(), "*".into(), String::new());
                let (level, rule, message) = (Level::Unchecked, UNCHECKED, e.to_string());
                scan.findings.push(Row { level, rule, pool: None, namespace, kind, name, uid, message });
            }
        }
        Ok(scan)
    }

    fn look(&mut self, kind: Kind, object: DynamicObject, policies: &Policies, known: &Known) {
        self.objects += 1;
        let (namespace, name, uid) = (object.namespace().unwrap_or_default(), object.name_any(), object.uid().unwrap_or_default());
        let row = |level, rule, pool: Option<&str>, message| Row {
            level,
            rule,
            pool: pool.map(str::to_owned),
            namespace: namespace.clone(),
            kind,
            name: name.clone(),
            uid: uid.clone(),
            message,
        };
        let object = match serde_json::to_string(&object).and_then(|text| Object::read(kind, &text)) {
            Ok(object) => object,
            Err(e) => return self.findings.push(row(Level::Unchecked, UNCHECKED, None, format!("cannot be read: {e}"))),
        };
        let found = headroom::review(&object, None, policies, known);
        let is_of_kubernetes = kind == Kind::PriorityClass && object.name.starts_with("system-");
        let remarks = found.remarks().filter(|remark| remark.rule != NOTE || !is_of_kubernetes);
        self.findings.extend(remarks.map(|Remark { level, rule, pool, message, .. }| row(level, rule, pool, message)));
        let is_placeholder = policies.pools().any(|pool| object.is_marked_by(pool));
        if let Some(text) = outdated(&object, known).filter(|_| is_placeholder && !object.leaving) {
            self.findings.push(row(Level::Warning, "outdatedPriority", None, text));
        }
    }

    /// One report for each namespace with findings, and one for what has none; owned by the pools that they speak of.
    pub fn reports(&self) -> Vec<Value> {
        let mut by_namespace: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &self.findings {
            by_namespace.entry(&row.namespace).or_default().push(row);
        }
        by_namespace.into_iter().map(|(namespace, rows)| self.report(namespace, &rows)).collect()
    }

    fn report(&self, namespace: &str, rows: &[&Row]) -> Value {
        let now = Timestamp::now().as_second();
        let result = |row: &&Row| {
            let outcome = match row.level {
                Level::Error => "fail",
                Level::Unchecked => "error",
                Level::Warning | Level::Note => "warn",
            };
            let api_version = shapes::resource(row.kind).api_version;
            let about = json!({"apiVersion": api_version, "kind": row.kind, "name": row.name, "namespace": row.namespace, "uid": row.uid});
            let policy = row.pool.clone().unwrap_or_else(|| REPORT.into());
            json!({"source": "pecking-order", "policy": policy, "rule": row.rule, "result": outcome, "message": row.message,
                "resources": [about], "timestamp": {"seconds": now, "nanos": 0}})
        };
        let results: Vec<Value> = rows.iter().take(RESULTS).map(result).collect();
        let count = |outcome: &str| results.iter().filter(|result| result["result"] == outcome).count();
        let pools: BTreeSet<&String> = rows.iter().filter_map(|row| row.pool.as_ref()).collect();
        let owner = |(name, uid): (&String, &String)| json!({"apiVersion": crate::api::API_VERSION, "kind": "HeadroomPool", "name": name, "uid": uid});
        let owners: Vec<Value> = self.owners.iter().filter(|(name, _)| pools.contains(name)).map(owner).collect();
        let labels = json!({"app.kubernetes.io/managed-by": "pecking-order"});
        let mut metadata = json!({"name": REPORT, "labels": labels, "ownerReferences": owners});
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        if rows.len() > RESULTS {
            metadata["annotations"] = json!({"pecking-order.dev/left-out": (rows.len() - RESULTS).to_string()});
        }
        json!({"apiVersion": "wgpolicyk8s.io/v1alpha2", "kind": report_kind(namespace).kind, "metadata": metadata, "results": results,
            "summary": {"pass": 0, "fail": count("fail"), "warn": count("warn"), "error": count("error"), "skip": 0}})
    }
}

/// PolicyReports of a namespace, or of the cluster.
fn report_kind(namespace: &str) -> ApiResource {
    let (kind, plural) =
        if namespace.is_empty() { ("ClusterPolicyReport", "clusterpolicyreports") } else { ("PolicyReport", "policyreports") };
    ApiResource {
        group: "wgpolicyk8s.io".into(),
        version: "v1alpha2".into(),
        api_version: "wgpolicyk8s.io/v1alpha2".into(),
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// Scans and writes reports for as long as it is polled, while we lead. Without an interval it never does anything.
pub async fn run(client: Client, config: Config, leadership: Leadership) {
    if config.every_seconds == 0 {
        return std::future::pending().await;
    }
    let every = Duration::from_secs(config.every_seconds.into());
    loop {
        sleep(every).await;
        if !leadership.is_mine() {
            continue;
        }
        match timeout(SCAN_LIMIT, scan_and_report(&client, &leadership)).await {
            Ok(Ok((objects, reports))) => info!(objects, reports, "scan"),
            Ok(Err(e)) => warn!(error = format!("{e:#}"), "the scan failed; the next one comes"),
            Err(_) => warn!("the scan was not done within {SCAN_LIMIT:?}; the next one comes"),
        }
    }
}

/// Returns how many objects were looked at, and how many reports were written.
async fn scan_and_report(client: &Client, leadership: &Leadership) -> anyhow::Result<(usize, usize)> {
    let scan = Scan::run(client, None).await?;
    let reports = scan.reports();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let mut current: HashSet<String> = HashSet::new();
    for report in &reports {
        let namespace = report["metadata"]["namespace"].as_str().unwrap_or_default();
        anyhow::ensure!(leadership.is_mine(), "another replica leads by now");
        api(client, namespace)
            .patch(REPORT, &params, &Patch::Apply(report))
            .await
            .with_context(|| format!("cannot write the report of namespace `{namespace}`"))?;
        current.insert(namespace.to_owned());
    }
    // A namespace without findings has no report.
    for scope in ["", "all"] {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &report_kind(scope));
        let mut old = Vec::new();
        let read = |report: DynamicObject| old.extend(Some(report.namespace().unwrap_or_default()).filter(|_| report.name_any() == REPORT));
        each(&all, ListParams::default().labels(MANAGED_BY), read).await.context("cannot list policy reports")?;
        for namespace in old.into_iter().filter(|namespace| !current.contains(namespace)) {
            anyhow::ensure!(leadership.is_mine(), "another replica leads by now");
            api(client, &namespace).delete(REPORT, &DeleteParams::default()).await.context("cannot delete a report")?;
        }
    }
    Ok((scan.objects, reports.len()))
}

fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    match namespace {
        "" => Api::all_with(client.clone(), &report_kind("")),
        namespace => Api::namespaced_with(client.clone(), namespace, &report_kind(namespace)),
    }
}

/// A pod whose priority is not that of its class any more: it keeps the number that it was made with.
fn outdated(object: &Object, known: &Known) -> Option<String> {
    let Body::Pod { spec, .. } = &object.body else { return None };
    let (class, priority) = (spec.priority_class_name.as_deref()?, spec.priority?);
    let now = known.classes.value(Some(class)).filter(|now| *now != priority)?;
    Some(format!("spec.priority: found {priority}, wanted {now}, which class `{class}` has now: the pod was made before the class was"))
}
