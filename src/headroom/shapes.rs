//! What one placeholder must make room for: the pod spec of the workload that a pool's `shape.like` names.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::object::PodSpec;

/// Pod specs by pool. A pool whose workload is not known (yet) has none, and is not held to its shape.
#[derive(Debug, Clone, Default)]
pub struct Shapes(BTreeMap<String, Arc<PodSpec>>);

impl Shapes {
    pub fn of(&self, pool: &str) -> Option<&PodSpec> {
        self.0.get(pool).map(|spec| &**spec)
    }

    pub fn with(mut self, pool: &str, spec: Option<PodSpec>) -> Self {
        match spec {
            Some(spec) => self.0.insert(pool.into(), Arc::new(spec)),
            None => self.0.remove(pool),
        };
        self
    }
}
