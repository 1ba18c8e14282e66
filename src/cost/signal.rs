//! Signals as a decision uses them: the preset's and the policy's own, put together.

use super::presets;
use crate::api::Problem;
use crate::api::deletion_cost_policy::{DeletionCostPolicySpec, Missing, Scale, SignalSpec};

/// One query that gives a number per pod, with nothing left open.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    pub name: String,
    pub query: String,
    /// Points per unit; per e-fold with [`Scale::Log`].
    pub weight: f64,
    /// At most this many points.
    pub cap: f64,
    pub scale: Scale,
    /// A value below this counts as zero.
    pub ignore_below: f64,
    pub missing: Missing,
}

impl Signal {
    /// Points of a value: it times the weight, or its logarithm times the weight, at most the cap.
    pub fn points(&self, value: f64) -> f64 {
        let value = if value < self.ignore_below { 0.0 } else { value.max(0.0) };
        let units = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.ln_1p(),
        };
        (units * self.weight).min(self.cap)
    }

    /// What the policy writes over a signal of its preset.
    fn overridden_by(self, entry: &SignalSpec) -> Self {
        Self {
            query: entry.query.clone().unwrap_or(self.query),
            weight: entry.weight.unwrap_or(self.weight),
            cap: entry.cap.unwrap_or(self.cap),
            scale: entry.scale.unwrap_or(self.scale),
            ignore_below: entry.ignore_below.unwrap_or(self.ignore_below),
            missing: entry.missing.unwrap_or(self.missing),
            name: self.name,
        }
    }
}

/// The signals of a policy: those of its preset, in the preset's order, with what the entries of the same name write over
/// them, then its own.
///
/// # Errors
///
/// Parameters that the preset cannot use, and own signals without a query, a weight or a cap.
pub fn resolve(spec: &DeletionCostPolicySpec) -> Result<Vec<Signal>, Vec<Problem>> {
    let mut signals = presets::signals(spec)?;
    let mut problems = Vec::new();
    for (index, entry) in spec.signals.iter().enumerate() {
        if let Some(position) = signals.iter().position(|signal| signal.name == entry.name) {
            if entry.disabled {
                signals.remove(position);
            } else {
                signals[position] = signals[position].clone().overridden_by(entry);
            }
            continue;
        }
        if entry.disabled {
            let wanted = "false: the preset has no signal of this name that could be left out";
            problems.push(Problem::new(format!("spec.signals[{index}].disabled"), "true", wanted));
            continue;
        }
        let wanted = match spec.preset {
            Some(preset) => format!("a value, since the preset `{}` has no signal `{}` to take it from", preset.name(), entry.name),
            None => "a value".into(),
        };
        let mut lacks = |field: &str| problems.push(Problem::new(format!("spec.signals[{index}].{field}"), "none", wanted.clone()));
        match (&entry.query, entry.weight, entry.cap) {
            (Some(query), Some(weight), Some(cap)) => signals.push(Signal {
                name: entry.name.clone(),
                query: query.clone(),
                weight,
                cap,
                scale: entry.scale.unwrap_or_default(),
                ignore_below: entry.ignore_below.unwrap_or_default(),
                missing: entry.missing.unwrap_or_default(),
            }),
            (query, weight, cap) => {
                let absent = [("query", query.is_none()), ("weight", weight.is_none()), ("cap", cap.is_none())];
                absent.into_iter().filter(|(_, absent)| *absent).for_each(|(field, _)| lacks(field));
            }
        }
    }
    if problems.is_empty() { Ok(signals) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(change: Value) -> DeletionCostPolicySpec {
        let mut base = json!({"selector": {"matchLabels": {"app": "web"}}});
        base.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(base).unwrap()
    }

    #[test]
    fn an_entry_writes_over_the_preset_field_by_field() {
        let plain = resolve(&spec(json!({"preset": "trino"}))).unwrap();
        let changed = resolve(&spec(json!({"preset": "trino", "signals": [
            {"name": "waitingSplits", "cap": 100},
            {"name": "outputBuffers", "query": "sum by (pod) (buffers)", "missing": "Unknown"},
            {"name": "spill", "query": "spill", "weight": 1, "cap": 10}]})))
        .unwrap();
        assert_eq!(plain.len() + 1, changed.len());
        assert_eq!((changed[1].cap, changed[1].weight, &changed[1].query), (100.0, 5.0, &plain[1].query));
        assert_eq!((changed[5].query.as_str(), changed[5].missing, changed[5].cap), ("sum by (pod) (buffers)", Missing::Unknown, 500.0));
        assert_eq!((&changed[0], changed[6].name.as_str()), (&plain[0], "spill"));
    }

    #[test]
    fn a_signal_of_the_preset_can_be_left_out() {
        let signals = resolve(&spec(json!({"preset": "trino", "signals": [{"name": "outputBuffers", "disabled": true}]}))).unwrap();
        assert_eq!(signals.len(), 5);
        let unknown = resolve(&spec(json!({"preset": "trino", "signals": [{"name": "outputBufers", "disabled": true}]}))).unwrap_err();
        assert_eq!(unknown[0].path, "spec.signals[0].disabled");
    }

    #[test]
    fn a_signal_of_ones_own_needs_everything() {
        let found = resolve(&spec(json!({"preset": "http", "signals": [{"name": "inFlght", "weight": 3}]}))).unwrap_err();
        assert_eq!(found.iter().map(|p| p.path.as_str()).collect::<Vec<_>>(), ["spec.signals[0].query", "spec.signals[0].cap"]);
        assert!(found[0].wanted.contains("`http` has no signal `inFlght`"), "{}", found[0]);
    }

    /// DC-05: elapsed work on a logarithmic scale.
    #[test]
    fn dc_05_elapsed_work_moves_no_more_than_a_step_a_minute() {
        let spec = spec(json!({"signals": [{"name": "elapsed", "query": "e", "weight": 100, "cap": 1000, "scale": "Log"}]}));
        let elapsed = &resolve(&spec).unwrap()[0];
        let points = |seconds: &[f64]| elapsed.points(seconds.iter().sum());
        let [p1, p2, p3, p4] = [points(&[30.0, 30.0]), points(&[600.0]), points(&[]), points(&[5.0])];
        assert!(p3 == 0.0 && p3 < p4 && p4 < p1 && p1 < p2 && p2 <= 1000.0, "{p1} {p2} {p3} {p4}");
        assert!(points(&[660.0]) - p2 < f64::from(spec.resolution), "a minute later");
    }

    #[test]
    fn what_an_idle_pod_measures_anyway_counts_as_nothing() {
        let cpu = resolve(&spec(json!({"preset": "trino"}))).unwrap().remove(4);
        assert_eq!([0.0, 4.0, 9.9, 10.0, 100.0, 1e6].map(|percent| cpu.points(percent)), [0.0, 0.0, 0.0, 5.0, 50.0, 50.0]);
    }
}
