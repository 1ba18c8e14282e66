//! The PriorityClasses of the cluster, as far as a template's class must be looked up.

use std::collections::BTreeMap;

/// A PriorityClass, as far as anybody asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Class {
    pub value: i32,
    pub global_default: bool,
    /// Its pods wait for room, and take none (`preemptionPolicy: Never`).
    pub never_preempts: bool,
}

impl Class {
    pub fn new(value: i32, global_default: bool, preemption_policy: Option<&str>) -> Self {
        Self { value, global_default, never_preempts: never_preempts(preemption_policy) }
    }
}

/// Whether a `preemptionPolicy`, of a class or of a pod, says so.
pub fn never_preempts(preemption_policy: Option<&str>) -> bool {
    preemption_policy == Some("Never")
}

/// The PriorityClasses by name. On a pod the number is already resolved when a webhook sees it; a template only names its class.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    by_name: BTreeMap<String, Class>,
    /// The class with `globalDefault`; the lowest value wins where a race has made two.
    default: Option<(String, i32)>,
}

impl Classes {
    pub fn new(classes: impl IntoIterator<Item = (String, Class)>) -> Self {
        let mut found = Self::default();
        for (name, class) in classes {
            if class.global_default && found.default.as_ref().is_none_or(|(_, lowest)| class.value < *lowest) {
                found.default = Some((name.clone(), class.value));
            }
            found.by_name.insert(name, class);
        }
        found
    }

    /// Whether the pods of a class never take another's room.
    pub fn never_preempts(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|class| class.never_preempts)
    }

    /// The value of a class, of the cluster's default class where none is named, or 0 where there is no default either.
    /// `None` for a class that is not known: it may have been made a moment ago, or will be.
    pub fn value(&self, name: Option<&str>) -> Option<i32> {
        match name {
            Some("system-cluster-critical") => Some(2_000_000_000),
            Some("system-node-critical") => Some(2_000_001_000),
            Some(name) => self.by_name.get(name).map(|class| class.value),
            None => Some(self.default.as_ref().map_or(0, |(_, value)| *value)),
        }
    }
}
