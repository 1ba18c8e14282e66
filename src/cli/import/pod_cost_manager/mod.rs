//! Pod Cost Manager: a CronJob that scores Trino workers once a minute. Its values become a policy per selector with the
//! preset `trino`, and a server configuration.
//!
//! Releases name their values in different ways, so a value is known by the end of its path, whatever its case and punctuation.
//! What is not known is reported, line by line, and never guessed at.

mod scoring;
mod server;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::values::{Leaf, Values};
use super::{Fate, Imported, Note};

/// With steps of 5 every sum of the usual weights is a cost of its own.
const RESOLUTION: i32 = 5;

/// What belongs to the installation of any tool.
const OF_THE_CHART: [&str; 22] = [
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
];

pub fn import(text: &str) -> anyhow::Result<Imported> {
    let values = Values::read(text)?;
    let mut import = Import { values: &values, spec: Map::new(), server: Map::new(), notes: vec![] };
    let targets = import.targets();
    anyhow::ensure!(!targets.is_empty(), "found no selector of pods, wanted podSelectors, such as [\"app=trino,component=worker\"]");
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

/// A selector of pods, and the name that its policy gets.
struct Target {
    name: String,
    namespace: Option<String>,
    labels: Map<String, Value>,
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

    fn targets(&mut self) -> Vec<Target> {
        let namespace = self.values.take(&["targetnamespace", "podnamespace", "namespace"]);
        let selectors = ["podselectors", "podselector", "labelselectors", "labelselector", "selectors", "selector"];
        let mut found: BTreeMap<String, Vec<&Leaf>> = BTreeMap::new();
        let is_selector = move |leaf: &Leaf| selectors.iter().any(|key| leaf.is_below(key));
        for leaf in self.values.take_where(is_selector) {
            // Leaves of one item of a list belong together.
            let item = leaf.path.find(']').map_or(String::new(), |end| leaf.path[..=end].to_owned());
            found.entry(item).or_default().push(leaf);
        }
        let mut targets = Vec::new();
        for leaves in found.values() {
            let mut target = Target { name: String::new(), namespace: namespace.map(Leaf::text), labels: Map::new() };
            for leaf in leaves {
                let key = leaf.path.rsplit(['.', ']']).next().unwrap_or_default().to_ascii_lowercase();
                match key.as_str() {
                    "name" | "release" if !leaf.text().contains('=') && leaves.len() > 1 => {
                        target.name = leaf.text();
                        self.carried(leaf, "the policy's name");
                    }
                    "namespace" => {
                        target.namespace = Some(leaf.text());
                        self.carried(leaf, "the policy's namespace");
                    }
                    _ => self.labels(leaf, &mut target.labels),
                }
            }
            if !target.labels.is_empty() {
                targets.push(target);
            }
        }
        if let Some(leaf) = namespace {
            self.carried(leaf, "the policy's namespace");
        }
        let several = targets.len() > 1;
        for (index, target) in targets.iter_mut().enumerate() {
            if target.name.is_empty() {
                target.name = if several { format!("trino-workers-{}", index + 1) } else { "trino-workers".into() };
            }
        }
        targets
    }

    /// `app=trino,component=worker` in one text, or a label by its own key.
    fn labels(&mut self, leaf: &Leaf, labels: &mut Map<String, Value>) {
        let text = leaf.text();
        let pairs: Option<Vec<(&str, &str)>> = text.split(',').map(|pair| pair.trim().split_once('=')).collect();
        match pairs {
            Some(pairs) if pairs.iter().all(|(key, value)| !key.ends_with('!') && !value.starts_with('=') && !key.is_empty()) => {
                labels.extend(pairs.into_iter().map(|(key, value)| (key.trim().to_owned(), value.trim().into())));
                self.carried(leaf, "a policy of its own, with spec.selector.matchLabels");
            }
            None if !text.contains([' ', '(', '!', '=']) => {
                // A label by its key. One with dots in it, such as app.kubernetes.io/name, is more than the last step of the path.
                let below = ["matchLabels.", "labels.", "labelSelector.", "podSelector.", "selector."];
                let key = below.iter().find_map(|before| leaf.path.split_once(before).map(|(_, key)| key));
                labels.insert(key.unwrap_or(leaf.path.rsplit('.').next().unwrap_or_default()).into(), text.into());
                self.carried(leaf, "spec.selector.matchLabels");
            }
            _ => {
                self.note(leaf, Fate::NoCounterpart, "only `key=value` pairs are read; write this one into spec.selector.matchExpressions")
            }
        }
    }

    fn left_over(&mut self) {
        let is_hpa = |leaf: &Leaf| ["hpa", "hpamanagement", "managehpa"].iter().any(|key| leaf.is_below(key));
        for leaf in self.values.take_where(is_hpa) {
            let why = "no floor of minReplicas yet: a scale-down removes idle pods first, however many the HPA asks for";
            self.note(leaf, Fate::NoCounterpart, why);
        }
        let of_the_chart = |leaf: &Leaf| OF_THE_CHART.iter().any(|key| leaf.is_below(key));
        for leaf in self.values.take_where(of_the_chart) {
            self.note(leaf, Fate::NoCounterpart, "of the CronJob's installation; ours is one Deployment for the whole cluster");
        }
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
            let namespace = target.namespace.unwrap_or_else(|| "default".into());
            let policy = json!({"apiVersion": crate::api::API_VERSION, "kind": "DeletionCostPolicy",
                "metadata": {"name": target.name, "namespace": namespace}, "spec": spec});
            let file = format!("{}.yaml", target.name);
            let is_taken = files.iter().any(|(name, _)| *name == file);
            files.push((if is_taken { format!("{namespace}-{file}") } else { file }, yaml(&policy)));
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
