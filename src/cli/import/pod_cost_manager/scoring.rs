//! What becomes of the numbers: parameters of the preset, and what differs from its signals.

use serde_json::{Map, Value, json};

use super::super::Fate;
use super::super::values::Leaf;
use super::Import;
use crate::api::deletion_cost_policy::Preset;

/// The signals, and the endings of the keys that mean them.
const SIGNALS: [(&str, &[&str]); 6] = [
    ("runningSplits", &["runningsplits", "runningsplit"]),
    ("waitingSplits", &["waitingsplits", "waitingsplit", "queuedsplits"]),
    ("highPriorityTasks", &["highprioritytasks", "highpriority", "highprioritytask", "taskshigh"]),
    ("lowPriorityTasks", &["lowprioritytasks", "lowpriority", "lowprioritytask", "taskslow"]),
    ("cpu", &["cpu", "cpuusage", "cpupercent"]),
    ("outputBuffers", &["outputbuffers", "activeoutputbuffers", "outputbuffer", "buffers"]),
];

impl Import<'_> {
    pub(super) fn metric_names(&mut self) {
        let parameters = [
            (
                "runningSplits",
                vec!["metricnames.runningsplits", "metrics.runningsplits", "metrics.names.runningsplits", "names.runningsplits"],
            ),
            (
                "waitingSplits",
                vec!["metricnames.waitingsplits", "metrics.waitingsplits", "metrics.names.waitingsplits", "names.waitingsplits"],
            ),
            (
                "outputBuffers",
                vec![
                    "metricnames.outputbuffers",
                    "metrics.outputbuffers",
                    "metrics.names.outputbuffers",
                    "names.outputbuffers",
                    "metricnames.activeoutputbuffers",
                    "metrics.activeoutputbuffers",
                ],
            ),
            (
                "cpu",
                vec!["metricnames.cpu", "metrics.cpu", "metrics.names.cpu", "names.cpu", "metricnames.cpuusage", "cpu.metric", "cpumetric"],
            ),
            (
                "cpuContainer",
                vec!["cpu.container", "cpu.containername", "cpucontainer", "cpucontainername", "metrics.containername", "containername"],
            ),
        ];
        for (parameter, endings) in parameters {
            if let Some(leaf) = self.values.take(&endings) {
                self.parameter(leaf, parameter, leaf.text());
            }
        }
        // The pattern for the levels is known by what it holds.
        let pattern = |leaf: &Leaf| leaf.text().contains("{level}") || leaf.text().contains("%(level)") || leaf.text().contains("{}");
        for leaf in self.values.take_where(pattern) {
            self.parameter(leaf, "runningTasks", leaf.text().replace("%(level)s", "{level}").replace("{}", "{level}"));
        }
        for (parameter, parts) in [("highPriorityLevels", ["high", "highpriority"]), ("lowPriorityLevels", ["low", "lowpriority"])] {
            let is_level = move |leaf: &Leaf| {
                let named = leaf.is_below(&format!("{}levels", parts[1])) || leaf.is_below(&format!("{}levels", parts[0]));
                named || (["tasklevels", "levels"].iter().any(|key| leaf.is_below(key)) && parts.iter().any(|part| leaf.is_below(part)))
            };
            let leaves: Vec<&Leaf> = self.values.take_where(is_level).collect();
            if let Some(first) = leaves.first() {
                let levels: Vec<String> = leaves.iter().map(|leaf| leaf.text().trim_start_matches(['L', 'l']).to_owned()).collect();
                self.parameter(first, parameter, levels.join(","));
            }
        }
        if let Some(leaf) = self.values.take(&["cpu.ratewindow", "cpuratewindow", "ratewindow", "cpu.window", "cpuwindow"]) {
            if leaf.text() == "15m" {
                self.note(leaf, Fate::ChangedOnPurpose, "2m, the preset's: over 15 minutes a pod that has finished still looks busy");
            } else {
                self.parameter(leaf, "cpuWindow", leaf.text());
            }
        }
    }

    fn parameter(&mut self, leaf: &Leaf, name: &str, value: String) {
        let known = Preset::Trino.definition().parameters.iter().find(|parameter| parameter.name == name);
        if let Some(wanted) = known.and_then(|parameter| parameter.problem(&value)) {
            self.note(leaf, Fate::NoCounterpart, format!("found `{value}`, wanted {wanted}; the preset's default stands"));
            return;
        }
        self.carried(leaf, format!("spec.parameters.{name}"));
        self.set(&["parameters", name], value.into());
    }

    /// Only what differs from the preset is written: the preset has the same numbers.
    pub(super) fn weights_and_caps(&mut self) {
        for (signal, keys) in SIGNALS {
            let preset = Preset::Trino.definition().signals.iter().find(|preset| preset.name == signal);
            for (field, groups) in [("weight", ["weights", "weight", "scoring.weights"]), ("cap", ["caps", "maxpoints", "max"])] {
                let before = keys.iter().flat_map(|key| groups.iter().map(move |group| format!("{group}.{key}")));
                let behind = keys.iter().flat_map(|key| groups.iter().map(move |group| format!("{key}.{group}")));
                let cap = keys.iter().map(|key| if field == "cap" { format!("{key}cap") } else { format!("{key}weight") });
                let endings: Vec<String> = before.chain(behind).chain(cap).chain(keys.iter().map(|key| format!("{key}.{field}"))).collect();
                let endings: Vec<&str> = endings.iter().map(String::as_str).collect();
                let Some(leaf) = self.values.take(&endings) else { continue };
                let default = preset.map(|preset| if field == "weight" { preset.weight } else { preset.cap });
                match leaf.number() {
                    Some(0.0) => {
                        self.carried(leaf, format!("spec.signals, `{signal}`: disabled"));
                        override_signal(&mut self.spec, signal, "disabled", json!(true));
                    }
                    Some(value) if Some(value) == default => self.carried(leaf, format!("the preset's {field} of `{signal}`")),
                    Some(value) if value > 0.0 => {
                        self.carried(leaf, format!("spec.signals, `{signal}`: {field}"));
                        override_signal(&mut self.spec, signal, field, json!(value));
                    }
                    _ => self.note(leaf, Fate::NoCounterpart, "wanted a number above 0; the preset's stands"),
                }
            }
        }
        if let Some(leaf) = self.values.take(&["caps.total", "maxpoints.total", "max.total", "maxcost", "totalcap", "max.cost", "caps.max"])
        {
            match leaf.number().filter(|value| (10.0..=1e6).contains(value)) {
                Some(value) => {
                    self.carried(leaf, "spec.maxCost");
                    if value != 1000.0 {
                        self.set(&["maxCost"], json!(value as i64));
                    }
                }
                None => self.note(leaf, Fate::NoCounterpart, "wanted 10 to 1000000; the default of 1000 stands"),
            }
        }
    }

    pub(super) fn edge_cases(&mut self) {
        for (field, endings, default) in [
            ("terminating", ["edgecases.terminating", "edgecasecosts.terminating", "costs.terminating", "terminatingcost"], 0.0),
            ("notReady", ["edgecases.notready", "edgecasecosts.notready", "costs.notready", "notreadycost"], 50.0),
            ("newPod", ["edgecases.newpod", "edgecasecosts.newpod", "costs.newpod", "newpodcost"], 500.0),
            ("noMetrics", ["edgecases.nometrics", "edgecasecosts.nometrics", "costs.nometrics", "nometricscost"], 500.0),
        ] {
            let Some(leaf) = self.values.take(&endings) else { continue };
            match leaf.number() {
                Some(value) if value >= 0.0 => {
                    self.carried(leaf, format!("spec.edgeCases.{field}"));
                    if value != default {
                        self.set(&["edgeCases", field], json!(value as i64));
                    }
                }
                _ => self.note(leaf, Fate::NoCounterpart, "wanted a number of 0 or more; the default stands"),
            }
        }
        let hours =
            ["newpodagehours", "podagehours", "minpodagehours", "newpodthresholdhours", "newpodage", "podage", "minpodage", "agethreshold"];
        if let Some(leaf) = self.values.take(&hours) {
            match leaf.number().filter(|hours| (0.0..=24.0).contains(hours)) {
                Some(hours) => {
                    self.carried(leaf, "spec.newPodSeconds, from hours");
                    let seconds = (hours * 3600.0).round() as i64;
                    if seconds != 180 {
                        self.set(&["newPodSeconds"], json!(seconds));
                    }
                }
                None => self.note(leaf, Fate::NoCounterpart, "wanted 0 to 24 hours; the default of 180 s stands"),
            }
        }
    }

    pub(super) fn jitter(&mut self) {
        let is_jitter = |leaf: &Leaf| ["jitter", "jittermin", "jittermax"].iter().any(|key| leaf.is_below(key));
        for leaf in self.values.take_where(is_jitter) {
            let why = "off: it makes an idle pod outrank one with little work, writes every pod at every run, and hides Kubernetes' own spreading";
            self.note(leaf, Fate::ChangedOnPurpose, why);
        }
    }

    /// Queries of one's own, with a weight and a cap, become signals.
    pub(super) fn custom_metrics(&mut self) {
        let is_query = |leaf: &Leaf| leaf.path.to_lowercase().ends_with(".query");
        for leaf in self.values.take_where(is_query) {
            let item = leaf.path[..leaf.path.len() - ".query".len()].to_owned();
            let sibling = |names: &[&str]| {
                let names: Vec<String> = names.iter().map(|name| format!("{item}.{name}").to_lowercase()).collect();
                self.values.take_where(move |other| names.contains(&other.path.to_lowercase())).next()
            };
            let (name, weight, cap) = (sibling(&["name"]), sibling(&["weight"]), sibling(&["cap", "max", "maxPoints", "max_points"]));
            let label =
                name.map_or_else(|| item.rsplit(['.', '[']).next().unwrap_or("custom").trim_end_matches(']').to_owned(), Leaf::text);
            let leaves: Vec<&Leaf> = [Some(leaf), name, weight, cap].into_iter().flatten().collect();
            match (weight.and_then(Leaf::number), cap.and_then(Leaf::number)) {
                (Some(weight), Some(cap)) if weight > 0.0 && cap > 0.0 => {
                    leaves.iter().for_each(|leaf| self.carried(leaf, format!("spec.signals, `{label}`")));
                    for (field, value) in [("query", json!(leaf.text())), ("weight", json!(weight)), ("cap", json!(cap))] {
                        override_signal(&mut self.spec, &label, field, value);
                    }
                }
                _ => {
                    let why = "found no weight and cap above 0 beside the query; wanted both";
                    leaves.iter().for_each(|leaf| self.note(leaf, Fate::NoCounterpart, why));
                }
            }
        }
    }
}

fn override_signal(spec: &mut Map<String, Value>, name: &str, field: &str, value: Value) {
    let signals = spec.entry("signals").or_insert_with(|| json!([]));
    let Value::Array(signals) = signals else { return };
    match signals.iter_mut().find(|signal| signal["name"] == name) {
        Some(signal) => signal[field] = value,
        None => signals.push(json!({ "name": name, field: value })),
    }
}
