//! The PriorityClasses of the cluster, as far as a template's class must be looked up.

use std::collections::BTreeMap;

/// The name and value of each PriorityClass. On a pod the number is already resolved when a webhook sees it; a template
/// only names its class.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    values: BTreeMap<String, i32>,
    /// The class with `globalDefault`; the lowest value wins where a race has made two.
    default: Option<(String, i32)>,
}

impl Classes {
    pub fn new(classes: impl IntoIterator<Item = (String, i32, bool)>) -> Self {
        let mut found = Self::default();
        for (name, value, global_default) in classes {
            if global_default && found.default.as_ref().is_none_or(|(_, lowest)| value < *lowest) {
                found.default = Some((name.clone(), value));
            }
            found.values.insert(name, value);
        }
        found
    }

    /// The value of a class, of the cluster's default class where none is named, or 0 where there is no default either.
    /// `None` for a class that is not known: it may have been made a moment ago, or will be.
    pub fn value(&self, name: Option<&str>) -> Option<i32> {
        match name {
            Some("system-cluster-critical") => Some(2_000_000_000),
            Some("system-node-critical") => Some(2_000_001_000),
            Some(name) => self.values.get(name).copied(),
            None => Some(self.default.as_ref().map_or(0, |(_, value)| *value)),
        }
    }
}
