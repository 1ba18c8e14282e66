//! A values file as a list of leaves, each of which must be taken by somebody or be reported as left over.

use std::cell::Cell;

use serde_json::Value;

use crate::api::documents;

/// A value at the end of a path.
pub struct Leaf {
    /// As it is written, with indices, such as `selectors[0].name`.
    pub path: String,
    /// The same step by step: keys may have dots in them.
    pub steps: Vec<String>,
    /// Without indices, in lower case and without punctuation, so that `running_splits` and `runningSplits` are one.
    plain: String,
    pub line: u64,
    pub value: Value,
    taken: Cell<bool>,
}

impl Leaf {
    pub fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    pub fn number(&self) -> Option<f64> {
        match &self.value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    pub fn is_true(&self) -> bool {
        self.value == Value::Bool(true) || self.text().eq_ignore_ascii_case("true")
    }

    /// Whether the path ends with these keys.
    fn ends_with(&self, keys: &str) -> bool {
        self.plain == keys || self.plain.strip_suffix(keys).is_some_and(|rest| rest.ends_with('.'))
    }

    /// The steps to where it stands.
    pub fn parent(&self) -> &[String] {
        &self.steps[..self.steps.len().saturating_sub(1)]
    }

    /// Its own key, in lower case and without punctuation.
    pub fn key(&self) -> String {
        self.steps.last().map(|step| plain(step)).unwrap_or_default()
    }

    pub fn is_directly_below(&self, key: &str) -> bool {
        self.parent().last().is_some_and(|step| plain(step) == key)
    }

    pub fn is_taken(&self) -> bool {
        self.taken.get()
    }

    /// Notes that somebody has made something of it.
    pub fn take(&self) {
        self.taken.set(true);
    }

    /// Whether one of the path's keys is this one.
    pub fn is_below(&self, key: &str) -> bool {
        self.plain.split('.').any(|part| part == key)
    }
}

pub struct Values {
    pub leaves: Vec<Leaf>,
}

impl Values {
    pub fn read(text: &str) -> anyhow::Result<Self> {
        let tree: Value = documents::yaml(text).map_err(|(position, message)| match position {
            Some((line, column)) => anyhow::anyhow!("line {line}, column {column}: {message}"),
            None => anyhow::anyhow!("{message}"),
        })?;
        anyhow::ensure!(tree.is_object(), "found no values, wanted a mapping of keys to values");
        let mut leaves = Vec::new();
        collect(&tree, &mut vec![], &mut |steps, value| {
            let line = documents::line_of_steps(text, steps) + 1;
            let path = steps.join(".");
            leaves.push(Leaf { plain: plain(&path), path, steps: steps.to_vec(), line, value: value.clone(), taken: Cell::new(false) });
        });
        Ok(Self { leaves })
    }

    /// The first leaf whose path ends in one of these ways, in lower case and without punctuation inside of keys.
    pub fn take(&self, endings: &[&str]) -> Option<&Leaf> {
        let found = endings.iter().find_map(|ending| self.leaves.iter().find(|leaf| !leaf.taken.get() && leaf.ends_with(ending)))?;
        found.take();
        Some(found)
    }

    /// Every leaf that nobody took, and that fits.
    pub fn untaken<'a>(&'a self, fits: impl Fn(&Leaf) -> bool + 'a) -> impl Iterator<Item = &'a Leaf> {
        self.leaves.iter().filter(move |leaf| !leaf.taken.get() && fits(leaf))
    }

    /// The same; they are taken now.
    pub fn take_where<'a>(&'a self, fits: impl Fn(&Leaf) -> bool + 'a) -> impl Iterator<Item = &'a Leaf> {
        self.untaken(fits).inspect(|leaf| leaf.take())
    }
}

pub fn plain(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut in_index = false;
    for c in path.chars() {
        match c {
            '[' => in_index = true,
            ']' => in_index = false,
            '.' => plain.push('.'),
            c if !in_index && c.is_alphanumeric() => plain.extend(c.to_lowercase()),
            _ => {}
        }
    }
    plain
}

/// Every value that is no mapping and no list, with the steps to it, such as `selectors[0]` and `name`.
fn collect(value: &Value, steps: &mut Vec<String>, found: &mut impl FnMut(&[String], &Value)) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                steps.push(key.clone());
                collect(value, steps, found);
                steps.pop();
            }
        }
        Value::Array(items) => {
            let list = steps.last().cloned().unwrap_or_default();
            for (index, value) in items.iter().enumerate() {
                if let Some(last) = steps.last_mut() {
                    *last = format!("{list}[{index}]");
                }
                collect(value, steps, found);
            }
            if let Some(last) = steps.last_mut() {
                *last = list;
            }
        }
        value => found(steps, value),
    }
}
