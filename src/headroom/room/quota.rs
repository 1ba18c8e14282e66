//! ResourceQuotas: a bound placeholder is no help where the job's pod would be refused when it is created (F7).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceQuota as ApiQuota, ScopedResourceSelectorRequirement};

use crate::headroom::effective::{self, Resources, amount_in_words};
use crate::headroom::object::PodSpec;
use crate::headroom::quantity::Quantity;

/// One ResourceQuota.
#[derive(Debug, Clone, Default)]
pub struct Quota {
    pub namespace: String,
    pub name: String,
    hard: BTreeMap<String, Quantity>,
    used: BTreeMap<String, Quantity>,
    scopes: Vec<ScopedResourceSelectorRequirement>,
}

impl Quota {
    pub fn read(quota: ApiQuota) -> Self {
        let (spec, status) = (quota.spec.unwrap_or_default(), quota.status.unwrap_or_default());
        let amounts = |amounts: Option<BTreeMap<String, _>>| -> BTreeMap<String, Quantity> {
            let parsed = amounts.unwrap_or_default().into_iter();
            parsed
                .filter_map(|(resource, amount): (String, k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
                    Some((resource, Quantity::parse(&amount.0).ok()?))
                })
                .collect()
        };
        let scope = |scope_name: String| ScopedResourceSelectorRequirement { scope_name, operator: "Exists".into(), values: None };
        let selected = spec.scope_selector.and_then(|selector| selector.match_expressions).unwrap_or_default();
        Self {
            namespace: quota.metadata.namespace.unwrap_or_default(),
            name: quota.metadata.name.unwrap_or_default(),
            hard: amounts(spec.hard),
            used: amounts(status.used),
            scopes: spec.scopes.unwrap_or_default().into_iter().map(scope).chain(selected).collect(),
        }
    }

    /// Why it would refuse one more pod of this shape, beside `others` that were promised room and are not there yet.
    pub fn refuses(&self, shape: Option<&PodSpec>, others: u32) -> Option<String> {
        if !self.scopes.iter().all(|scope| covers(scope, shape)) {
            return None;
        }
        let request = shape.map(effective::request).unwrap_or_default();
        self.hard.iter().find_map(|(resource, hard)| {
            let one = one_pod(resource, &request)?;
            let used = self.used.get(resource).map_or(0, |used| used.nanos);
            let wanted = used.saturating_add(one.saturating_mul(i128::from(others) + 1));
            let words = |nanos| amount_in_words(resource.trim_start_matches("requests."), Quantity { nanos });
            (wanted > hard.nanos).then(|| {
                format!(
                    "ResourceQuota {}: {resource} has {} of {} used, and the pod needs {}",
                    self.name,
                    words(used),
                    words(hard.nanos),
                    words(one)
                )
            })
        })
    }
}

/// What one pod uses of a quota's resource; `None` where it cannot be told (`pkg/quota/v1/evaluator/core/pods.go`).
fn one_pod(resource: &str, request: &Resources) -> Option<i128> {
    if matches!(resource, "pods" | "count/pods") {
        return Some(1_000_000_000);
    }
    // Of limits nothing is known: they are not what the scheduler goes by.
    let name = resource.strip_prefix("requests.").unwrap_or(resource);
    let is_request = resource.starts_with("requests.") || matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    request.get(name).filter(|_| is_request).map(|amount| amount.nanos)
}

/// Whether a pod of this shape counts in a scope. A pod that nobody knows counts in none but those of all pods.
fn covers(scope: &ScopedResourceSelectorRequirement, shape: Option<&PodSpec>) -> bool {
    let Some(shape) = shape else { return false };
    let values = scope.values.as_deref().unwrap_or_default();
    match scope.scope_name.as_str() {
        "PriorityClass" => {
            let class = shape.priority_class_name.as_deref().filter(|name| !name.is_empty());
            let is_listed = class.is_some_and(|class| values.iter().any(|value| value == class));
            match scope.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => class.is_some(),
                _ => class.is_none(),
            }
        }
        "NotBestEffort" => !effective::request(shape).is_empty(),
        "BestEffort" => effective::request(shape).is_empty(),
        "NotTerminating" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn quota(spec: Value, used: Value) -> Quota {
        Quota::read(
            serde_json::from_value(json!({"metadata": {"name": "team", "namespace": "ci"}, "spec": spec, "status": {"used": used}}))
                .unwrap(),
        )
    }

    fn shape(class: &str) -> PodSpec {
        let requests = json!({"cpu": "2", "memory": "1Gi"});
        serde_json::from_value(json!({"priorityClassName": class, "containers": [{"resources": {"requests": requests}}]})).unwrap()
    }

    /// F7: what the placeholder uses counts, and no pod of the job exists yet that would free it.
    #[test]
    fn f7_a_quota_that_would_refuse_the_pod_is_named() {
        let full = quota(json!({"hard": {"requests.cpu": "4"}}), json!({"requests.cpu": "4"}));
        assert_eq!(full.refuses(Some(&shape("")), 0).unwrap(), "ResourceQuota team: requests.cpu has 4 of 4 used, and the pod needs 2");
        let half = quota(json!({"hard": {"cpu": "4"}}), json!({"cpu": "2"}));
        assert_eq!(half.refuses(Some(&shape("")), 0), None);
        assert!(half.refuses(Some(&shape("")), 1).is_some(), "one that was promised and is not there yet");
        assert!(quota(json!({"hard": {"pods": "3"}}), json!({"pods": "3"})).refuses(None, 0).is_some());
        assert_eq!(quota(json!({"hard": {"limits.cpu": "1"}}), json!({"limits.cpu": "1"})).refuses(Some(&shape("")), 0), None);
    }

    #[test]
    fn f7_a_quota_that_is_scoped_by_class_leaves_jobs_alone() {
        let scoped = |operator: &str| {
            let scope = json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": ["spot-headroom"]}]});
            quota(json!({"hard": {"cpu": "1"}, "scopeSelector": scope}), json!({"cpu": "1"}))
        };
        assert_eq!(scoped("In").refuses(Some(&shape("ci")), 0), None);
        assert!(scoped("NotIn").refuses(Some(&shape("ci")), 0).is_some());
        assert_eq!(
            quota(json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}), json!({"cpu": "1"})).refuses(Some(&shape("ci")), 0),
            None
        );
    }
}
