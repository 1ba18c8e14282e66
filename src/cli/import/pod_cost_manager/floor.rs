//! The minimum of an HPA that the job keeps at the active pods: `spec.floor`.

use serde_json::{Value, json};

use super::super::Fate;
use super::super::values::Leaf;
use super::Import;

/// The keys below which it stands.
const HPA: [&str; 3] = ["hpa", "hpamanagement", "managehpa"];

const NAME: [&str; 2] = ["name", "hpaname"];
const BUFFER: [&str; 2] = ["buffer", "minreplicasbuffer"];
const BASELINE: [&str; 2] = ["baseline", "minreplicasbaseline"];

/// What the job goes by where nothing is written: one above the active pods, and two at least.
const DEFAULTS: (u32, u32) = (1, 2);

impl Import<'_> {
    /// `targets` is how many policies there will be.
    pub(super) fn floor(&mut self, targets: usize) {
        let values = self.values;
        let leaves: Vec<&Leaf> = values.take_where(|leaf| HPA.iter().any(|key| leaf.is_below(key))).collect();
        let by_key = |keys: &[&str]| leaves.iter().copied().find(|leaf| keys.contains(&leaf.key().as_str()));
        let number = |keys: &[&str], default| by_key(keys).and_then(Leaf::number).map_or(json!(default), |number| json!(number as u32));
        let switch = leaves.iter().copied().find(|leaf| leaf.key() == "enabled" || HPA.contains(&leaf.key().as_str()));
        let is_on = !leaves.is_empty() && switch.is_none_or(Leaf::is_true);
        // An HPA scales one workload, so one name among several selectors does not say whose it is.
        let name = by_key(&NAME).map(Leaf::text).filter(|_| targets == 1);
        let floor = |name: &str| {
            let target = json!({"kind": "HorizontalPodAutoscaler", "name": name});
            json!({"target": target, "buffer": number(&BUFFER, DEFAULTS.0), "baseline": number(&BASELINE, DEFAULTS.1)})
        };
        if let Some(name) = name.as_deref().filter(|_| is_on) {
            self.set(&["floor"], floor(name));
        }
        for leaf in leaves.iter().copied() {
            let is_known = [&NAME, &BUFFER, &BASELINE].iter().any(|keys| keys.contains(&leaf.key().as_str()))
                || switch.is_some_and(|s| s.path == leaf.path);
            match (is_known, is_on, &name) {
                (true, true, Some(_)) => {
                    self.carried(leaf, "spec.floor; raised at once, lowered after holdDownSeconds, and let go with the policy")
                }
                (true, true, None) => {
                    let text = format!(
                        "the values do not say which HPA; add this to the policy, with its name: floor: {}",
                        in_flow(&floor("NAME"))
                    );
                    self.note(leaf, Fate::NoCounterpart, text);
                }
                (true, false, _) => self.carried(leaf, "no spec.floor, since it is off"),
                (false, ..) => {
                    self.note(leaf, Fate::NoCounterpart, "not known; see spec.floor in docs/floors.md for what may take its place")
                }
            }
        }
    }
}

/// As YAML on one line.
fn in_flow(floor: &Value) -> String {
    floor.to_string().replace('"', "").replace(':', ": ").replace(',', ", ")
}
