//! Costs that somebody else keeps writing over ours. After a few times only scale-downs write such a pod: two that correct each
//! other for ever help nobody.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use moka::sync::Cache;

use super::annotation::COST;
use super::{GovernedPod, Stored};

/// Written over so often, a cost is contested.
const TIMES: u32 = 3;

/// For so long after the last time.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The most pods that are remembered.
const CAPACITY: u64 = 10_000;

/// How often a pod's cost was written over, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Writer {
    times: u32,
    name: String,
}

/// Pods by UID. Clones share what they know.
#[derive(Clone)]
pub struct Contested(Cache<Arc<str>, Writer>);

impl Default for Contested {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(CAPACITY).time_to_live(REMEMBERED).build())
    }
}

impl Contested {
    /// Looks at a pod's newer state: whether somebody has written over our cost.
    pub fn look(&self, before: &GovernedPod, now: &GovernedPod, pod: &Pod) {
        if let (Stored::Ours(_), Stored::Foreign(_) | Stored::Malformed | Stored::Unset) = (before.stored, now.stored) {
            let times = self.0.get(&*now.uid).map_or(0, |writer| writer.times) + 1;
            self.0.insert(now.uid.clone(), Writer { times, name: writer_of(pod).unwrap_or_else(|| "somebody".into()) });
        }
    }

    /// Who keeps writing over our cost of this pod.
    pub fn by(&self, uid: &str) -> Option<String> {
        self.0.get(uid).filter(|writer| writer.times >= TIMES).map(|writer| writer.name)
    }

    pub fn is_contested(&self, uid: &str) -> bool {
        self.by(uid).is_some()
    }
}

/// The field manager that owns the cost: the one that wrote it last.
fn writer_of(pod: &Pod) -> Option<String> {
    last_manager(pod.metadata.managed_fields.as_deref().unwrap_or_default(), &["f:metadata", "f:annotations", &format!("f:{COST}")])
}

/// Of the field managers that own a field, the one that wrote last. Steps are as `fieldsV1` has them, such as `f:spec`.
pub fn last_manager(managed: &[ManagedFieldsEntry], steps: &[&str]) -> Option<String> {
    let owns = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        steps.iter().fold(fields, |fields, step| fields.and_then(|fields| fields.get(step))).is_some()
    };
    managed.iter().filter(owns).max_by_key(|entry| entry.time.as_ref().map(|time| time.0)).and_then(|entry| entry.manager.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cost::pod::tests::pod;

    #[test]
    fn the_third_time_a_cost_is_contested_by_its_writer() {
        let written: Pod = serde_json::from_value(json!({"metadata": {"managedFields": [
            {"manager": "kubelet", "time": "2026-01-01T00:00:09Z", "fieldsV1": {"f:status": {}}},
            {"manager": "pecking-order", "time": "2026-01-01T00:00:01Z", "fieldsV1": {"f:metadata": {"f:annotations": {"f:controller.kubernetes.io/pod-deletion-cost": {}}}}},
            {"manager": "karpenter", "time": "2026-01-01T00:00:02Z", "fieldsV1": {"f:metadata": {"f:annotations": {"f:controller.kubernetes.io/pod-deletion-cost": {}}}}}]}}))
        .unwrap();
        let (ours, theirs) = (GovernedPod { stored: Stored::Ours(5), ..pod("a") }, GovernedPod { stored: Stored::Foreign(-3), ..pod("a") });
        let contested = Contested::default();
        for times in 1..=3 {
            assert_eq!(contested.by("a"), None, "{times}");
            contested.look(&ours, &theirs, &written);
            contested.look(&theirs, &theirs, &written);
            contested.look(&theirs, &ours, &written);
        }
        assert_eq!(contested.by("a").as_deref(), Some("karpenter"));
        assert!(!contested.is_contested("b"));
    }
}
