//! Which pods: each selector of the values becomes a policy of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::values::{Leaf, plain};
use super::super::{Fate, Note};
use super::Import;

/// The keys below which selectors stand.
const SELECTORS: [&str; 6] = ["podselectors", "podselector", "labelselectors", "labelselector", "selectors", "selector"];

/// The keys whose values are labels, one by one.
const LABELS: [&str; 3] = ["matchlabels", "labels", "podlabels"];

/// Longer names are no names of objects.
const MOST_NAME_BYTES: usize = 63;

/// A selector of pods, and the name that its policy gets.
pub struct Target {
    pub name: String,
    pub namespace: String,
    pub labels: Map<String, Value>,
}

impl<'a> Import<'a> {
    pub(super) fn targets(&mut self) -> Vec<Target> {
        let values = self.values;
        // Only the release's own namespace: that of a backend is another.
        let namespace = values
            .take(&["targetnamespace", "podnamespace"])
            .or_else(|| values.take_where(|leaf| leaf.steps.len() == 1 && plain(&leaf.path) == "namespace").next());
        if let Some(leaf) = namespace {
            self.carried(leaf, "the policies' namespace");
        }
        // Label by label, or all in one text: what stands in one place is one selector.
        let mut found: BTreeMap<Vec<String>, Vec<&Leaf>> = BTreeMap::new();
        let is_selector = |leaf: &Leaf| SELECTORS.iter().any(|key| leaf.is_below(key)) && !leaf.value.is_null();
        // Without a part of it a selector would match more pods than were meant: then none is written.
        let mut in_part: Vec<Vec<String>> = Vec::new();
        for leaf in values.take_where(|leaf| is_selector(leaf) && leaf.is_below("matchexpressions")) {
            let end = leaf.steps.iter().position(|step| plain(step) == "matchexpressions").unwrap_or(0);
            in_part.push(leaf.steps[..end].to_vec());
            self.note(leaf, Fate::NoCounterpart, "no policy is written for this selector; write one, with spec.selector.matchExpressions");
        }
        let candidates: Vec<&Leaf> = values.untaken(is_selector).collect();
        for leaf in candidates.iter().copied() {
            let parent = leaf.parent();
            let of_item = candidates.iter().any(|other| is_text(other) && other.parent() == parent)
                || candidates.iter().any(|other| other.parent().len() > parent.len() && other.parent().starts_with(parent));
            if is_text(leaf) {
                found.entry(leaf.steps.clone()).or_default().push(leaf);
            } else if LABELS.iter().any(|key| leaf.is_directly_below(key)) || !of_item {
                found.entry(parent.to_vec()).or_default().push(leaf);
            }
            // What is left stands beside a selector: its name, or nothing that is known.
        }
        let several = found.len() > 1;
        let mut targets: Vec<Target> = Vec::new();
        for (steps, leaves) in found {
            let mut labels = Map::new();
            leaves.iter().for_each(|leaf| self.labels(leaf, &mut labels));
            if labels.is_empty() || in_part.iter().any(|place| steps.starts_with(place)) {
                continue;
            }
            let own_namespace = self.beside(&steps, &["namespace"]);
            // Several selectors of one release share its name and its namespace; each is spoken of once.
            if let Some(leaf) = own_namespace.filter(|leaf| !leaf.is_taken()) {
                leaf.take();
                self.carried(leaf, "the policy's namespace");
            }
            let named = self.beside(&steps, &["name", "release", "releasename"]);
            let key = steps.last().filter(|step| !step.ends_with(']') && leaves.len() == 1 && is_text(leaves[0]));
            let by_key = key.filter(|key| !SELECTORS.contains(&plain(key).as_str())).cloned();
            let wanted = match (named, by_key) {
                (Some(leaf), _) => leaf.text(),
                (None, Some(key)) => key,
                (None, None) if several => format!("trino-workers-{}", targets.len() + 1),
                (None, None) => "trino-workers".into(),
            };
            let name = unique(object_name(&wanted), &targets);
            if let Some(leaf) = named.filter(|leaf| !leaf.is_taken()) {
                leaf.take();
                let changed = if name == wanted { String::new() } else { format!(", as `{name}`, since an object's name can be no other") };
                self.carried(leaf, format!("the policy's name{changed}"));
            }
            let namespace = own_namespace.or(namespace).map_or("default".into(), Leaf::text);
            targets.push(Target { name, namespace, labels });
        }
        if targets.iter().any(|target| target.namespace == "default") {
            let text = "metadata.namespace: default, since no value says where the pods are; put theirs there";
            self.notes.push(Note { line: None, path: "namespace".into(), fate: Fate::NoCounterpart, text: text.into() });
        }
        targets
    }

    /// A value beside the selector, or beside the `podSelector` that it stands in.
    fn beside(&self, steps: &[String], keys: &[&str]) -> Option<&'a Leaf> {
        (1..=2).find_map(|up| {
            let place = steps.get(..steps.len().checked_sub(up)?)?;
            self.values.leaves.iter().find(|leaf| leaf.parent() == place && keys.contains(&leaf.key().as_str()))
        })
    }

    /// `app=trino,component=worker` in one text, or a label by its own key.
    fn labels(&mut self, leaf: &Leaf, labels: &mut Map<String, Value>) {
        leaf.take();
        let text = leaf.text();
        if !text.contains(['=', ' ', '(', '!']) {
            labels.insert(leaf.steps.last().cloned().unwrap_or_default(), text.into());
            return self.carried(leaf, "spec.selector.matchLabels");
        }
        let pairs: Option<Vec<(&str, &str)>> = text.split(',').map(|pair| pair.trim().split_once('=')).collect();
        let is_plain = |(key, value): &(&str, &str)| {
            !key.trim().is_empty() && !key.ends_with(['!', ' ']) && !value.starts_with('=') && !value.contains([' ', '(', '!'])
        };
        match pairs.filter(|pairs| pairs.iter().all(is_plain)) {
            Some(pairs) => {
                labels.extend(pairs.into_iter().map(|(key, value)| (key.trim().to_owned(), value.trim().into())));
                self.carried(leaf, "a policy of its own, with spec.selector.matchLabels");
            }
            None => self.note(leaf, Fate::NoCounterpart, "found more than `key=value` pairs; write it into spec.selector.matchExpressions"),
        }
    }
}

/// Whether a leaf has a whole selector in its text.
fn is_text(leaf: &Leaf) -> bool {
    leaf.text().contains(['=', ' ', '(', '!'])
}

/// What an object of this name may be called (a DNS label).
fn object_name(wanted: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = wanted.chars().map(allowed).take(MOST_NAME_BYTES).collect();
    match name.trim_matches('-') {
        "" => "trino-workers".into(),
        name => name.into(),
    }
}

/// Also unlike the server configuration, whose file stands beside it.
fn unique(name: String, others: &[Target]) -> String {
    let is_taken = |name: &str| name == "server" || others.iter().any(|other| other.name == name);
    match is_taken(&name) {
        false => name,
        true => (2..).map(|n| format!("{name}-{n}")).find(|name| !is_taken(name)).unwrap_or(name),
    }
}
