//! One rule, one verdict, wherever it is asked: the pure rules, `check` on a file, the webhook and the native policy on the real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use kube::Client;
use kube::api::PostParams;
use kube::client::Body;
use pecking_order::api::documents::{Document, read_documents};
use pecking_order::api::headroom_pool::Mode;
use pecking_order::api::{Policies, Pool};
use pecking_order::headroom::object::Kind;
use pecking_order::headroom::rules::ALL;
use pecking_order::headroom::{self, Classes, Known, Object};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::headroom::{class, object};
use super::{Cluster, Test, block_on};

pub const TESTS: &[(&str, Test)] = &[("equivalence::four_places_one_verdict", four_places)];

/// The pool that the webhook knows, and its twin that only the native policies know.
const HOOK: &str = "equal-hook";
const NATIVE: &str = "equal-native";

/// What a place says: the rules that refuse, and those that warn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Verdict {
    refused: BTreeSet<&'static str>,
    warned: BTreeSet<&'static str>,
}

/// Of the places a native policy names one refusal at the most: the API server stops at the first.
fn agree(hook: &Verdict, native: &Verdict, unseen: &BTreeSet<&'static str>) -> bool {
    let seen = |rules: &BTreeSet<&'static str>| rules.difference(unseen).copied().collect::<BTreeSet<_>>();
    let (refused, warned) = (seen(&hook.refused), seen(&hook.warned));
    match refused.is_empty() {
        true => native.refused.is_empty() && native.warned == warned,
        false => !native.refused.is_empty() && native.refused.is_subset(&refused),
    }
}

/// An object in both pools' words.
struct Row {
    name: String,
    kind: Kind,
    hook: Value,
    native: Value,
    /// Rules whose twin cannot see this, by the documented table.
    unseen: &'static [&'static str],
}

fn pool(name: &str) -> Value {
    let placeholders = json!({"priorityClassNames": [format!("{name}-class")], "selector": {"matchLabels": {"pool": name}}});
    json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": name}, "spec": {"placeholders": placeholders}})
}

/// Changes of a correct placeholder's pod spec. `CLASS` stands for the pool's own name.
fn changes() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let required = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    let one = |key: &str, operator: &str, values: Value| {
        let mut expression = json!({"key": key, "operator": operator});
        if !values.is_null() {
            expression["values"] = values;
        }
        json!({"matchExpressions": [expression]})
    };
    let capacity = "karpenter.sh/capacity-type";
    let zone = || one("topology.kubernetes.io/zone", "In", json!(["z-2"]));
    let resources =
        |resources: Value| json!({"containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": resources}]});
    let spread = |selector: Value| json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]});
    let apart = |selector: Value| json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": selector}]}}});
    vec![
        ("good", json!({}), &[]),
        ("grace-30", json!({"terminationGracePeriodSeconds": 30}), &[]),
        ("grace-absent", json!({"terminationGracePeriodSeconds": null}), &[]),
        ("grace-45", json!({"terminationGracePeriodSeconds": 45}), &[]),
        ("no-class", json!({"priorityClassName": null}), &[]),
        ("deep", json!({"priorityClassName": "equal-deep"}), &[]),
        ("zero", json!({"priorityClassName": "equal-zero"}), &[]),
        ("another-class", json!({"priorityClassName": "equal-other"}), &[]),
        ("spot", json!({"nodeSelector": {capacity: "spot"}}), &[]),
        ("spot-eks", json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "SPOT"}}), &[]),
        ("spot-misspelt", json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "spot"}}), &[]),
        ("spot-empty", json!({"nodeSelector": {"machine.openshift.io/interruptible-instance": ""}}), &[]),
        ("spot-unknown", json!({"nodeSelector": {"eks.amazonaws.com/capacityType": "ONDEMAND"}}), &[]),
        ("on-demand", json!({"nodeSelector": {capacity: "on-demand"}}), &[]),
        ("not-preemptible", json!({"nodeSelector": {"yandex.cloud/preemptible": "false"}}), &[]),
        ("affinity-spot", required(json!([one(capacity, "In", json!(["spot"]))])), &[]),
        ("affinity-both", required(json!([one(capacity, "In", json!(["spot", "on-demand"]))])), &[]),
        ("affinity-exists", required(json!([one("cloud.google.com/gke-spot", "Exists", Value::Null)])), &[]),
        ("affinity-not-on-demand", required(json!([one(capacity, "NotIn", json!(["on-demand"]))])), &[]),
        ("affinity-not-spot", required(json!([one(capacity, "NotIn", json!(["spot"]))])), &[]),
        ("affinity-or-zone", required(json!([one(capacity, "In", json!(["spot"])), zone()])), &[]),
        ("affinity-or-spot", required(json!([one(capacity, "In", json!(["spot"])), one("spot", "In", json!(["true"]))])), &[]),
        (
            "contradiction",
            json!({"nodeSelector": {"spot": "false"}, "affinity": required(json!([one("spot", "Exists", Value::Null), one("spot", "In", json!(["true"]))]))["affinity"]}),
            &["offSpot"],
        ),
        ("no-requests", resources(json!({})), &[]),
        ("requests-zero", resources(json!({"requests": {"cpu": "0"}})), &[]),
        ("limits-only", resources(json!({"limits": {"cpu": "2", "memory": "3Gi"}})), &[]),
        ("milli-bytes", resources(json!({"requests": {"cpu": "1", "memory": "750m"}})), &[]),
        ("eight-bytes", resources(json!({"requests": {"cpu": "1", "memory": "8"}})), &[]),
        (
            "old-image",
            json!({"containers": [{"name": "pause", "image": "k8s.gcr.io/pause:3.6", "resources": {"requests": {"cpu": "1"}}}]}),
            &[],
        ),
        ("spread-itself", spread(json!({"matchLabels": {"room": "yes"}})), &[]),
        ("spread-others", spread(json!({"matchLabels": {"room": "no"}})), &[]),
        ("apart-itself", apart(json!({"matchExpressions": [{"key": "room", "operator": "In", "values": ["yes"]}]})), &[]),
        ("apart-others", apart(json!({"matchExpressions": [{"key": "room", "operator": "NotIn", "values": ["yes"]}]})), &[]),
        (
            "everything",
            json!({"priorityClassName": null, "terminationGracePeriodSeconds": 30, "nodeSelector": {"spot": "true"}, "containers": [{"name": "p", "image": "p"}]}),
            &[],
        ),
    ]
}

const KINDS: [Kind; 9] = [
    Kind::Pod,
    Kind::Deployment,
    Kind::ReplicaSet,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::ReplicationController,
    Kind::Job,
    Kind::CronJob,
    Kind::PodTemplate,
];

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in KINDS {
        for (change_name, change, unseen) in changes() {
            let of = |pool: &str| {
                let mut spec = json!({"priorityClassName": format!("{pool}-class"), "terminationGracePeriodSeconds": 0, "containers": [
                    {"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]});
                if let (Some(spec), Value::Object(change)) = (spec.as_object_mut(), change.clone()) {
                    spec.extend(change);
                    spec.retain(|_, value| !value.is_null());
                }
                let mut object = object(kind.name(), pool, &format!("{}-{change_name}", kind.name().to_lowercase()), spec);
                object["metadata"]["namespace"] = json!(HOOK);
                label(&mut object);
                object
            };
            rows.push(Row { name: format!("{} {change_name}", kind.name()), kind, hook: of(HOOK), native: of(NATIVE), unseen });
        }
    }
    for (name, change) in [
        ("cutoff", json!({"value": -10})),
        ("below-cutoff", json!({"value": -11})),
        ("minus-one", json!({"value": -1})),
        ("zero-value", json!({"value": 0})),
        ("high", json!({"value": 1000})),
        ("default-class", json!({"value": -10, "globalDefault": true})),
        ("preempting", json!({"value": -10, "preemptionPolicy": "PreemptLowerPriority"})),
        ("unsaid", json!({"value": -10, "preemptionPolicy": null})),
        ("all-wrong", json!({"value": -500, "globalDefault": true, "preemptionPolicy": null})),
    ] {
        let of = |pool: &str| {
            let mut class = class(&format!("equal-{name}"), -10);
            class["metadata"]["labels"] = json!({"pool": pool});
            if let (Some(class), Value::Object(change)) = (class.as_object_mut(), change.clone()) {
                class.extend(change);
            }
            class
        };
        rows.push(Row {
            name: format!("PriorityClass {name}"),
            kind: Kind::PriorityClass,
            hook: of(HOOK),
            native: of(NATIVE),
            unseen: &[],
        });
    }
    rows
}

/// A label that spread constraints may speak of.
fn label(object: &mut Value) {
    for path in [
        "/metadata/labels",
        "/spec/template/metadata/labels",
        "/spec/jobTemplate/spec/template/metadata/labels",
        "/template/metadata/labels",
    ] {
        if let Some(labels) = object.pointer_mut(path).filter(|labels| labels.is_object()) {
            labels["room"] = json!("yes");
        }
    }
}

fn path(kind: Kind) -> String {
    let plural = if kind == Kind::PriorityClass { "priorityclasses".to_owned() } else { format!("{}s", kind.name().to_lowercase()) };
    match kind.group() {
        "" => format!("/api/v1/namespaces/{HOOK}/{plural}"),
        group if kind == Kind::PriorityClass => format!("/apis/{group}/v1/{plural}"),
        group => format!("/apis/{group}/v1/namespaces/{HOOK}/{plural}"),
    }
}

fn rules_in(text: &str) -> BTreeSet<&'static str> {
    ALL.iter().map(|rule| rule.id).filter(|id| text.contains(&format!("[{id}]"))).collect()
}

/// What the API server says to an object, without storing it.
async fn ask(client: &Client, kind: Kind, object: &Value) -> anyhow::Result<Verdict> {
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let request = kube::core::Request::new(path(kind)).create(&params, serde_json::to_vec(object)?)?;
    let response = client.send(request.map(Body::from)).await?;
    let (parts, body) = response.into_parts();
    // Of a class below another pool's headroom something else is said; that is no rule of this pool.
    let warnings = parts.headers.get_all("warning").iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let warned = warnings.filter(|text| !text.contains("is below the headroom")).flat_map(|text| rules_in(&text)).collect();
    let body = String::from_utf8(body.collect_bytes().await?.to_vec())?;
    match parts.status.as_u16() {
        200 | 201 => Ok(Verdict { refused: BTreeSet::new(), warned }),
        code => {
            let refused = rules_in(&body);
            ensure!(!refused.is_empty(), "{code} for another reason: {body}");
            Ok(Verdict { refused, warned })
        }
    }
}

/// What the rules themselves say.
fn pure(row: &Row, policies: &Policies, known: &Known) -> anyhow::Result<Verdict> {
    let object = Object::read(row.kind, &row.hook.to_string())?;
    let found = headroom::review(&object, None, policies, known);
    let with = |mode: Mode| found.with_mode(mode).map(|broken| broken.rule).collect();
    Ok(Verdict { refused: with(Mode::Enforce), warned: with(Mode::Warn) })
}

/// What `check` says of all of them, by object.
fn check(rows: &[Row], classes: &[Value]) -> anyhow::Result<BTreeMap<String, Verdict>> {
    let directory = tempfile::tempdir()?;
    let write = |name: &str, objects: &[&Value]| {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(directory.path().join(name), list.to_string())
    };
    // A class among them may be the cluster's default, which is another matter for the pods.
    let (of_classes, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.kind == Kind::PriorityClass);
    write("classes.json", &of_classes.iter().map(|row| &row.hook).collect::<Vec<_>>())?;
    write("rows.json", &others.iter().map(|row| &row.hook).collect::<Vec<_>>())?;
    let pool = pool(HOOK);
    write("around.json", &classes.iter().chain([&pool]).collect::<Vec<_>>())?;
    let file = |name: &str| directory.path().join(name).display().to_string();
    let mut findings = Vec::new();
    for name in ["classes.json", "rows.json"] {
        let arguments = ["check", &file(name), "--pool", &file("around.json"), "-o", "json"];
        let output = Command::new(env!("CARGO_BIN_EXE_pecking-order")).args(arguments).output()?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        findings.extend(report["findings"].as_array().context("findings")?.iter().cloned());
    }
    let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
    for finding in &findings {
        let verdict = verdicts.entry(finding["object"].as_str().unwrap_or_default().to_owned()).or_default();
        let Some(rule) = ALL.iter().map(|rule| rule.id).find(|id| finding["rule"] == *id) else { continue };
        match finding["level"].as_str() {
            Some("error") => verdict.refused.insert(rule),
            _ => verdict.warned.insert(rule),
        };
    }
    Ok(verdicts)
}

fn four_places(cluster: &'static Cluster) -> anyhow::Result<()> {
    cluster.make_namespace(HOOK)?;
    let mut classes: Vec<Value> =
        [("equal-deep", -50), ("equal-zero", 0), ("equal-other", -5)].map(|(name, value)| class(name, value)).into();
    classes.extend([HOOK, NATIVE].map(|pool| class(&format!("{pool}-class"), -10)));
    for class in &classes {
        cluster.admin.apply(&class.to_string())?;
    }
    cluster.admin.apply(&pool(HOOK).to_string())?;
    cluster.admin.run(&["wait", "--for=condition=Ready", "headroompool", HOOK, "--timeout=30s"])?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pool.yaml");
    std::fs::write(&file, pool(NATIVE).to_string())?;
    let made = Command::new(env!("CARGO_BIN_EXE_pecking-order")).args(["native-policies", "-f"]).arg(&file).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    cluster.admin.apply(&String::from_utf8(made.stdout)?)?;

    let (documents, _) = read_documents(Path::new("pool.json"), &pool(HOOK).to_string());
    let Some(Document::HeadroomPool(compiled)) = documents.first() else { anyhow::bail!("no pool") };
    let policies = Policies::default().with_pool(Pool::compile(compiled));
    let value = |class: &Value| {
        (
            class["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            headroom::Class { value: class["value"].as_i64().unwrap_or(0) as i32, ..Default::default() },
        )
    };
    let known = Known { classes: Classes::new(classes.iter().map(value)).into(), ..Known::default() };
    let rows = rows();
    ensure!(rows.len() >= 150, "{} rows", rows.len());
    let checked = check(&rows, &classes)?;
    block_on(async {
        let client = cluster.client().await?;
        // The API server compiles policies a moment after they come; the last of them knows all.
        let (start, all_wrong) = (Instant::now(), rows.iter().rfind(|row| row.kind == Kind::PodTemplate).context("a row")?);
        loop {
            let found = ask(&client, all_wrong.kind, &all_wrong.native).await;
            if found.is_ok_and(|verdict| !verdict.refused.is_empty()) {
                break;
            }
            ensure!(start.elapsed() < Duration::from_secs(60), "the native policies do not come into force");
            sleep(Duration::from_millis(200)).await;
        }
        sleep(Duration::from_secs(2)).await;
        let mut wrong = Vec::new();
        for row in &rows {
            let hook = ask(&client, row.kind, &row.hook).await.with_context(|| row.name.clone())?;
            let native = ask(&client, row.kind, &row.native).await.with_context(|| row.name.clone())?;
            let pure = pure(row, &policies, &known)?;
            let metadata = &row.hook["metadata"];
            let named = match metadata["namespace"].as_str() {
                Some(namespace) => format!("{} {namespace}/{}", row.kind.name(), metadata["name"].as_str().unwrap_or_default()),
                None => format!("{} {}", row.kind.name(), metadata["name"].as_str().unwrap_or_default()),
            };
            let checked = checked.get(&named).cloned().unwrap_or_default();
            let unseen = row
                .unseen
                .iter()
                .copied()
                .chain(ALL.iter().filter(|rule| (rule.native)(&Pool::compile(compiled)).is_empty()).map(|rule| rule.id))
                .collect();
            // A rule is blind only where the table says so; a row that says so for nothing is wrong too.
            if pure != hook || pure != checked || !agree(&hook, &native, &unseen) {
                wrong.push(format!("{}: rules {pure:?}, webhook {hook:?}, check {checked:?}, native {native:?}", row.name));
            }
        }
        ensure!(wrong.is_empty(), "{} of {} rows differ:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
        println!("{} rows, four verdicts each, all equal", rows.len());
        Ok(())
    })
}
