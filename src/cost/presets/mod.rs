//! Presets: the signals of kinds of workloads that many have, one file each.
//!
//! A preset's queries are PromQL. What differs between installations (names of metrics, a container) are its parameters; what
//! one wants to count otherwise is overridden by an entry of the same name in `signals`.

mod http;
mod parameter;
mod queue;
mod trino;

use std::collections::BTreeMap;

pub use parameter::{Parameter, Values};

use super::signal::Signal;
use crate::api::Problem;
use crate::api::deletion_cost_policy::{DeletionCostPolicySpec, Missing, PodKey, Preset, Scale};
use crate::api::documents::nearest;

/// What a preset is made of.
pub struct Definition {
    pub parameters: &'static [Parameter],
    pub signals: &'static [PresetSignal],
    /// How long a unit of work may take, in seconds, where the kind of workload tells.
    pub work_seconds: Option<u32>,
}

/// A signal of a preset.
pub struct PresetSignal {
    pub name: &'static str,
    /// The query, from the values of the parameters.
    pub query: fn(&Values<'_>) -> String,
    pub weight: f64,
    pub cap: f64,
    pub scale: Scale,
    pub ignore_below: f64,
    pub missing: Missing,
}

impl Preset {
    pub const ALL: [Self; 3] = [Self::Trino, Self::Http, Self::Queue];

    /// As it is written in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trino => "trino",
            Self::Http => "http",
            Self::Queue => "queue",
        }
    }

    pub fn definition(self) -> &'static Definition {
        match self {
            Self::Trino => &trino::PRESET,
            Self::Http => &http::PRESET,
            Self::Queue => &queue::PRESET,
        }
    }
}

/// The signals of the policy's preset with its parameters; none without a preset.
pub(super) fn signals(spec: &DeletionCostPolicySpec) -> Result<Vec<Signal>, Vec<Problem>> {
    let Some(preset) = spec.preset else {
        let unused = |name: &String| Problem::new(format!("spec.parameters.{name}"), "a parameter", "none, since no preset would use it");
        let problems: Vec<Problem> = spec.parameters.keys().map(unused).collect();
        return if problems.is_empty() { Ok(vec![]) } else { Err(problems) };
    };
    let definition = preset.definition();
    let problems = problems(definition, &spec.parameters);
    if !problems.is_empty() {
        return Err(problems);
    }
    let (PodKey::Label(label) | PodKey::Ip(label)) = &spec.pod_key;
    let is_label = label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !label.starts_with(|c: char| c.is_ascii_digit());
    if !is_label || label.is_empty() {
        let wanted = "a label as the preset's PromQL can name it: letters, digits and underscores";
        return Err(vec![Problem::new("spec.podKey", format!("`{label}`"), wanted)]);
    }
    let values = Values { parameters: definition.parameters, given: &spec.parameters, label };
    let signal = |signal: &PresetSignal| Signal {
        name: signal.name.into(),
        query: (signal.query)(&values),
        weight: signal.weight,
        cap: signal.cap,
        scale: signal.scale,
        ignore_below: signal.ignore_below,
        missing: signal.missing,
    };
    Ok(definition.signals.iter().map(signal).collect())
}

fn problems(definition: &Definition, given: &BTreeMap<String, String>) -> Vec<Problem> {
    let check = |(name, value): (&String, &String)| {
        let path = format!("spec.parameters.{name}");
        let known = || definition.parameters.iter().map(|parameter| parameter.name);
        match definition.parameters.iter().find(|parameter| parameter.name == name) {
            Some(parameter) => parameter.problem(value).map(|wanted| Problem::new(path, format!("`{value}`"), wanted)),
            None => {
                let hint = nearest(name, known()).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
                let wanted = format!("one of {}{hint}", known().collect::<Vec<_>>().join(", "));
                Some(Problem::new(path, "an unknown parameter", wanted))
            }
        }
    };
    given.iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn resolved(spec: Value) -> Result<Vec<Signal>, Vec<Problem>> {
        let mut base = json!({"selector": {"matchLabels": {"app": "web"}}});
        base.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        super::signals(&serde_json::from_value(base).unwrap())
    }

    /// The numbers of Pod Cost Manager: what users come from.
    #[test]
    fn the_trino_preset_has_the_weights_and_caps_that_its_users_know() {
        let found: Vec<_> = resolved(json!({"preset": "trino"})).unwrap().into_iter().map(|s| (s.name, s.weight, s.cap)).collect();
        let wanted = [
            ("runningSplits", 10.0, 400.0),
            ("waitingSplits", 5.0, 300.0),
            ("highPriorityTasks", 15.0, 150.0),
            ("lowPriorityTasks", 10.0, 100.0),
            ("cpu", 0.5, 50.0),
            ("outputBuffers", 50.0, 500.0),
        ];
        assert_eq!(found, wanted.map(|(name, weight, cap)| (name.to_owned(), weight, cap)));
    }

    #[test]
    fn parameters_and_the_pod_label_end_up_in_the_queries() {
        let signals = resolved(json!({"preset": "trino", "podKey": {"label": "exported_pod"}, "parameters": {
            "runningTasks": "my_tasks_l{level}", "highPriorityLevels": "0, 1", "cpuContainer": "worker", "cpuWindow": "5m"}}))
        .unwrap();
        assert_eq!(signals[2].query, "sum by (exported_pod) (max by (exported_pod, __name__) ({__name__=~\"my_tasks_l(0|1)\"}))");
        assert_eq!(signals[4].query, "100 * sum by (exported_pod) (rate(container_cpu_usage_seconds_total{container=\"worker\"}[5m]))");
        let http = resolved(json!({"preset": "http"})).unwrap();
        assert!(http[1].query.contains("container!=\"\""), "{}", http[1].query);
    }

    #[test]
    fn a_parameter_that_cannot_be_used_is_refused_with_what_would_be() {
        for (preset, parameters, path, wanted) in [
            ("trino", json!({"runingSplits": "x"}), "spec.parameters.runingSplits", "did you mean `runningSplits`?"),
            ("trino", json!({"runningSplits": "a\"} or b{c=\""}), "spec.parameters.runningSplits", "a name of a metric"),
            ("trino", json!({"runningSplits": "("}), "spec.parameters.runningSplits", "a name of a metric"),
            ("trino", json!({"runningSplits": ""}), "spec.parameters.runningSplits", "a name of a metric"),
            ("trino", json!({"runningTasks": "tasks"}), "spec.parameters.runningTasks", "{level}"),
            ("trino", json!({"highPriorityLevels": "0-2"}), "spec.parameters.highPriorityLevels", "0,1,2"),
            ("trino", json!({"highPriorityLevels": ""}), "spec.parameters.highPriorityLevels", "0,1,2"),
            ("trino", json!({"cpuContainer": "a\\"}), "spec.parameters.cpuContainer", "container"),
            ("http", json!({"cpuWindow": "-5m"}), "spec.parameters.cpuWindow", "such as 2m"),
            ("http", json!({"cpuWindow": "5"}), "spec.parameters.cpuWindow", "such as 2m"),
            ("http", json!({"cpuWindow": "0m"}), "spec.parameters.cpuWindow", "such as 2m"),
            ("http", json!({"cpuWindow": "999999h"}), "spec.parameters.cpuWindow", "at most a day"),
            ("queue", json!({"cpuWindow": "5m"}), "spec.parameters.cpuWindow", "inProgress"),
        ] {
            let found = resolved(json!({"preset": preset, "parameters": parameters})).unwrap_err();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].path == path && found[0].wanted.contains(wanted), "{}", found[0]);
        }
        assert_eq!(resolved(json!({"parameters": {"a": "b"}})).unwrap_err()[0].path, "spec.parameters.a");
        let injected = resolved(json!({"preset": "http", "podKey": {"label": "pod) (secret) or max by (pod"}})).unwrap_err();
        assert_eq!(injected[0].path, "spec.podKey");
    }

    #[test]
    fn no_preset_has_a_signal_that_counts_for_nothing() {
        for preset in Preset::ALL {
            assert_eq!(serde_json::to_value(preset).unwrap(), preset.name());
            let signals = resolved(json!({"preset": preset.name()})).unwrap();
            assert!(signals.iter().all(|signal| signal.weight > 0.0 && signal.cap > 0.0 && signal.ignore_below >= 0.0));
        }
    }
}
