//! What is wrong with a DeletionCostPolicy: everything that its schema cannot say, and what it says, for documents that never met an
//! API server.

use super::{DeletionCostPolicySpec, EdgeCases, PodKey, TieBreak};
use crate::api::{Problem, Problems};
use crate::cost::signal;

/// The most signals of one policy: each is one query per poll.
const MAX_SIGNALS: usize = 32;

/// The longest name of a signal, in bytes.
const MAX_NAME_BYTES: usize = 63;

/// The longest query, in bytes.
const MAX_QUERY_BYTES: usize = 4096;

/// Beyond this a weight or a cap is a slip of the keyboard: a cost ends at a millionth of it.
const MOST_POINTS: f64 = 1e12;

/// Costs above this become visible to other readers of the annotation: Karpenter adds cost / 2^27 to a base of 1.0 when it
/// ranks nodes, so a million still moves that rank by less than one percent.
const MAX_COST: i32 = 1_000_000;

/// More replicas than a cluster has pods are a slip of the keyboard.
const MOST_REPLICAS: u32 = 100_000;

/// A DNS subdomain, as the API server wants names to be. It becomes part of a path, so nothing else may.
fn is_object_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| label.starts_with(plain) && label.ends_with(plain) && label.chars().all(|c| plain(c) || c == '-');
    name.len() <= 253 && name.split('.').all(label)
}

impl DeletionCostPolicySpec {
    /// Everything that the schema cannot say, and what it says, for documents that never met an API server.
    pub fn problems(&self) -> Vec<Problem> {
        let mut p = Problems::default();
        if !self.selector.names_something() {
            p.push(
                "spec.selector",
                "a selector that names no label",
                "labels that the pods have: without one, every pod of the namespace would match",
            );
        }
        self.selector.problems("spec.selector", &mut p);
        if self.backend.is_empty() {
            p.push("spec.backend", "an empty name", "a backend named in the server configuration");
        }
        let (PodKey::Label(label) | PodKey::Ip(label)) = &self.pod_key;
        if label.is_empty() {
            p.push("spec.podKey", "an empty label name", "the label of a result row that names its pod");
        }
        self.signal_problems(&mut p);
        if self.max_cost > MAX_COST {
            let why =
                "Karpenter adds cost / 2^27 to a pod's rank of 1, which ends at 10: larger costs make it avoid, or prefer, whole nodes";
            p.push("spec.maxCost", self.max_cost, format!("2 to {MAX_COST}: {why}"));
        } else {
            p.range("spec.maxCost", self.max_cost, 2, MAX_COST);
        }
        if self.max_cost >= 2 && !(1..=self.max_cost / 2).contains(&self.resolution) {
            let most = self.max_cost / 2;
            p.push(
                "spec.resolution",
                self.resolution,
                format!("1 to {most}: idle, unknown and busy are at least three steps up to maxCost"),
            );
        }
        p.range("spec.pollSeconds", self.poll_seconds, 1, 3600);
        let (edge, default) = (&self.edge_cases, EdgeCases::default());
        for (field, cost, default) in [
            ("terminating", edge.terminating, default.terminating),
            ("notReady", edge.not_ready, default.not_ready),
            ("newPod", edge.new_pod, default.new_pod),
            ("noMetrics", edge.no_metrics, default.no_metrics),
        ] {
            // A default that nobody wrote is not their mistake: it ends at a lower maxCost like every cost.
            let highest = self.max_cost.max(default);
            p.range(format!("spec.edgeCases.{field}"), cost, 0, highest);
        }
        p.range("spec.newPodSeconds", self.new_pod_seconds, 0, 86_400);
        p.range("spec.jitter.min", self.jitter.min, 0, self.jitter.max.max(0));
        if self.jitter.max >= self.resolution.max(1) || self.jitter.max < 0 {
            p.push(
                "spec.jitter.max",
                self.jitter.max,
                format!("0 to {}: below one resolution step, or it would outweigh work", self.resolution - 1),
            );
        }
        if self.tie_break != TieBreak::None && (self.resolution < 2 || self.jitter.max != 0) {
            let wanted = "None, or a resolution of at least 2 and no jitter: a tie-break stays below one step";
            p.push("spec.tieBreak", format!("{:?}", self.tie_break), wanted);
        }
        p.range("spec.samples.maxAgeSeconds", self.samples.max_age_seconds, 1, 86_400);
        // Between two polls the last one's values are what there is, also when one of them fails.
        let least = self.samples.max_age_seconds.max(self.poll_seconds.saturating_mul(2));
        p.range("spec.samples.keepLastSeconds", self.samples.keep_last_seconds, least, 604_800);
        p.range("spec.write.refresh.everySeconds", self.write.refresh.every_seconds, 0, 86_400);
        p.range("spec.write.refresh.minChange", self.write.refresh.min_change, 1, 1_000_000);
        if let Some(seconds) = self.work_seconds {
            p.range("spec.workSeconds", seconds, 1, 604_800);
        }
        if let Some(floor) = &self.floor {
            if !is_object_name(&floor.target.name) {
                let wanted = "the name of an autoscaler: up to 253 lower-case letters, digits, `-` and `.`";
                p.push("spec.floor.target.name", format!("`{}`", floor.target.name), wanted);
            }
            p.range("spec.floor.buffer", floor.buffer, 0, MOST_REPLICAS);
            p.range("spec.floor.baseline", floor.baseline, 0, MOST_REPLICAS);
            p.range("spec.floor.holdDownSeconds", floor.hold_down_seconds, 0, 86_400);
        }
        p.0
    }

    fn signal_problems(&self, p: &mut Problems) {
        for (i, signal) in self.signals.iter().enumerate() {
            let path = |field: &str| format!("spec.signals[{i}].{field}");
            if signal.name.is_empty() || signal.name.len() > MAX_NAME_BYTES {
                p.push(
                    path("name"),
                    format!("{} bytes", signal.name.len()),
                    format!("a name of 1 to {MAX_NAME_BYTES}, unique in the policy"),
                );
            }
            if self.signals[..i].iter().any(|earlier| earlier.name == signal.name) {
                p.push(path("name"), &signal.name, "a name that no earlier signal has");
            }
            if let Some(query) = &signal.query {
                if query.trim().is_empty() {
                    p.push(path("query"), "an empty query", "a query of the backend");
                }
                if query.len() > MAX_QUERY_BYTES {
                    p.push(path("query"), format!("{} bytes", query.len()), format!("at most {MAX_QUERY_BYTES}"));
                }
            }
            for (field, value) in [("weight", signal.weight), ("cap", signal.cap)] {
                // A signal that counts for nothing, or against a pod, is a mistake; and a NaN is not greater than zero.
                let counts = value.is_none_or(|value| value > 0.0 && value <= MOST_POINTS);
                if !counts {
                    p.push(path(field), value.unwrap_or_default(), format!("a number above 0, at most {MOST_POINTS:e}"));
                }
            }
            if let Some(value) = signal.ignore_below {
                p.range(path("ignoreBelow"), value, 0.0, MOST_POINTS);
            }
        }
        match signal::resolve(self) {
            Ok(signals) if signals.is_empty() => p.push("spec.signals", "no signals", "at least one, or a preset"),
            Ok(signals) if signals.len() > MAX_SIGNALS => {
                p.push("spec.signals", format!("{} signals with those of the preset", signals.len()), format!("at most {MAX_SIGNALS}"));
            }
            Ok(_) => {}
            Err(problems) => p.0.extend(problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Karpenter's rank of a pod, as far as the cost goes (`pkg/utils/disruption`, EvictionCost).
    fn rank(cost: i32) -> f64 {
        (1.0 + f64::from(cost) / 2_f64.powi(27)).clamp(-10.0, 10.0)
    }

    /// DC-32: our costs do not show in Karpenter's ranks; what would is refused, with the reason.
    #[test]
    fn dc_32_costs_stay_out_of_karpenters_ranks() {
        for cost in [0, 500, 1000] {
            assert!(rank(cost) - 1.0 <= 0.00001, "{cost}");
        }
        assert!(rank(MAX_COST) - 1.0 < 0.01);
        assert_eq!(rank(i32::MAX), 10.0, "a cost of somebody else's that fills the rank");
        let spec = |max_cost: i32| {
            let spec = serde_json::json!({"selector": {"matchLabels": {"app": "web"}}, "maxCost": max_cost,
                "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1}]});
            serde_json::from_value::<DeletionCostPolicySpec>(spec).unwrap().problems()
        };
        assert_eq!(spec(MAX_COST), []);
        let problem = &spec(MAX_COST + 1)[0];
        assert!(problem.path == "spec.maxCost" && problem.wanted.contains("which ends at 10"), "{problem}");
    }
}
