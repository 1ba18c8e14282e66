//! Pod Cost Manager: a CronJob that scores Trino workers once a minute. Its values become a policy per selector with the
//! preset `trino`, and a server configuration.
//!
//! Releases name their values in different ways, so a value is known by the end of its path, whatever its case and punctuation.
//! What is not known is reported, line by line, and never guessed at.

mod floor;
mod scoring;
mod server;
mod targets;

use serde_json::{Map, Value, json};

use targets::Target;

use super::values::{Leaf, Values};
use super::{Fate, Imported, Note};

/// With steps of 5 every sum of the usual weights is a cost of its own.
const RESOLUTION: i32 = 5;

/// What belongs to the installation of any tool.
const OF_THE_CHART: [&str; 35] = [
    "image",
    "resources",
    "serviceaccount",
    "rbac",
    "nodeselector",
    "tolerations",
    "affinity",
    "podannotations",
    "podlabels",
    "securitycontext",
    "podsecuritycontext",
    "imagepullsecrets",
    "nameoverride",
    "fullnameoverride",
    "concurrencypolicy",
    "successfuljobshistorylimit",
    "failedjobshistorylimit",
    "startingdeadlineseconds",
    "backofflimit",
    "ttlsecondsafterfinished",
    "activedeadlineseconds",
    "env",
    "envfrom",
    "extraenv",
    "livenessprobe",
    "readinessprobe",
    "startupprobe",
    "service",
    "servicemonitor",
    "ingress",
    "volumes",
    "volumemounts",
    "topologyspreadconstraints",
    "priorityclassname",
    "commonlabels",
];

pub fn import(text: &str) -> anyhow::Result<Imported> {
    let values = Values::read(text)?;
    let mut import = Import { values: &values, spec: Map::new(), server: Map::new(), notes: vec![] };
    import.of_the_chart();
    let targets = import.targets();
    anyhow::ensure!(!targets.is_empty(), "found no selector of pods, wanted podSelectors, such as [\"app=trino,component=worker\"]");
    import.floor(targets.len());
    import.backend();
    import.metric_names();
    import.weights_and_caps();
    import.edge_cases();
    import.jitter();
    import.schedule_and_logging();
    import.custom_metrics();
    import.left_over();
    import.always_changed();
    Ok(import.finish(targets))
}

struct Import<'a> {
    values: &'a Values,
    /// What all policies have in common.
    spec: Map<String, Value>,
    server: Map<String, Value>,
    notes: Vec<Note>,
}

impl Import<'_> {
    fn note(&mut self, leaf: &Leaf, fate: Fate, text: impl Into<String>) {
        self.notes.push(Note { line: Some(leaf.line), path: leaf.path.clone(), fate, text: text.into() });
    }

    fn carried(&mut self, leaf: &Leaf, text: impl Into<String>) {
        self.note(leaf, Fate::CarriedOver, text);
    }

    fn set(&mut self, path: &[&str], value: Value) {
        set(&mut self.spec, path, value);
    }

    /// First of all: what is about the CronJob itself must not be taken for something else.
    fn of_the_chart(&mut self) {
        let of_the_chart = |leaf: &Leaf| OF_THE_CHART.iter().any(|key| leaf.is_below(key));
        for leaf in self.values.take_where(of_the_chart) {
            self.note(leaf, Fate::NoCounterpart, "of the CronJob's installation; ours is one Deployment for the whole cluster");
        }
    }

    fn left_over(&mut self) {
        for leaf in self.values.take_where(|_| true) {
            self.note(leaf, Fate::NoCounterpart, "not known; if it changes costs, see docs/deletion-costs.md for what may take its place");
        }
        self.notes.sort_by_key(|note| note.line);
    }

    /// What is otherwise although no line says so.
    fn always_changed(&mut self) {
        for (path, text) in [
            ("new and unmeasured pods", "newPodYieldsToWork: true: with 500 they outranked pods with up to 499 points of measured work"),
            (
                "a backend that is away",
                "last known values stand in for keepLastSeconds (600), where every pod became 500 and the order was lost",
            ),
            ("resolution", "5: with the usual weights every sum stays as it is, and noise below a step causes no write"),
            ("CPU below 10 percent", "counts as nothing: an idle Java process would look busy for ever"),
            (
                "task time to finish",
                "workSeconds: 240 of the preset: the status warns of pods with a shorter terminationGracePeriodSeconds",
            ),
        ] {
            self.notes.push(Note { line: None, path: path.into(), fate: Fate::ChangedOnPurpose, text: text.into() });
        }
    }

    fn finish(self, targets: Vec<Target>) -> Imported {
        let mut files = Vec::new();
        for target in targets {
            let mut spec = Map::new();
            spec.insert("selector".into(), json!({ "matchLabels": target.labels }));
            spec.insert("preset".into(), "trino".into());
            spec.insert("resolution".into(), RESOLUTION.into());
            spec.extend(self.spec.clone());
            let policy = json!({"apiVersion": crate::api::API_VERSION, "kind": "DeletionCostPolicy",
                "metadata": {"name": target.name, "namespace": target.namespace}, "spec": spec});
            files.push((format!("{}.yaml", target.name), yaml(&policy)));
        }
        files.push(("server.yaml".into(), yaml(&Value::Object(self.server))));
        Imported { files, notes: self.notes }
    }
}

fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("plain data is YAML")
}

fn set(map: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [key] => {
            map.insert((*key).into(), value);
        }
        [key, rest @ ..] => {
            let inner = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}
