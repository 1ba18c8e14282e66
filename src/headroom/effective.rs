//! The effective request of a pod: what the scheduler reserves for it (`component-helpers/resource`, KEP-753 and KEP-2837).
//!
//! Containers add up. Init containers run one after the other, so the largest counts; a sidecar, which is an init container that is
//! always restarted, stays, so it counts from where it stands in their order. A request of the pod as a whole replaces the sum for that
//! resource. The overhead of the runtime class is added once.

use std::collections::{BTreeMap, BTreeSet};

use super::object::{Amount, Container, PodSpec};
use super::quantity::Quantity;

/// Amounts by resource; what is absent is none.
pub type Resources = BTreeMap<String, Quantity>;

/// The resources that a pod may request as a whole.
fn is_of_pods(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

/// What a container requests of a resource. On a template a limit stands for the request that is missing: the API server copies it when
/// the pod is made. What cannot be read is left to the API server, which refuses it.
fn of_container(container: &Container, resource: &str) -> i128 {
    container.resources.reserved(resource).and_then(|text| nanos(&text)).unwrap_or(0)
}

fn nanos(text: &str) -> Option<i128> {
    Quantity::parse(text).ok().map(|amount| amount.nanos)
}

/// The effective request.
pub fn request(spec: &PodSpec) -> Resources {
    let containers = spec.containers.iter().chain(&spec.init_containers).map(|container| &container.resources);
    let named = containers.chain([&spec.resources]).flat_map(|resources| resources.requests.keys().chain(resources.limits.keys()));
    let all: BTreeSet<&String> = named.chain(spec.overhead.keys()).collect();
    all.into_iter()
        .map(|resource| (resource.clone(), Quantity { nanos: of_pod(spec, resource) }))
        .filter(|(_, amount)| amount.nanos > 0)
        .collect()
}

fn of_pod(spec: &PodSpec, resource: &str) -> i128 {
    let (mut sidecars, mut peak) = (0, 0);
    for container in &spec.init_containers {
        let own = of_container(container, resource);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += own;
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(own + sidecars);
        }
    }
    let run = spec.containers.iter().map(|container| of_container(container, resource)).sum::<i128>() + sidecars;
    let of_containers = run.max(peak);
    let amount = |amounts: &BTreeMap<String, Amount>| amounts.get(resource).and_then(|amount| nanos(&amount.text()));
    let whole = amount(&spec.resources.requests).filter(|_| is_of_pods(resource));
    whole.unwrap_or(of_containers) + amount(&spec.overhead).unwrap_or(0)
}

/// Resources of which `held` is less than `wanted`, with both amounts.
pub fn short_of(held: &Resources, wanted: &Resources) -> Vec<(String, Quantity, Quantity)> {
    let none = Quantity { nanos: 0 };
    let amount = |of: &Resources, resource: &str| of.get(resource).copied().unwrap_or(none);
    let both = wanted.iter().map(|(resource, wanted)| (resource.clone(), amount(held, resource), *wanted));
    both.filter(|(_, held, wanted)| held < wanted).collect()
}

/// Such as `cpu 2500m, memory 4608Mi`.
pub fn in_words(resources: &Resources) -> String {
    let each = resources.iter().map(|(resource, amount)| format!("{resource} {}", amount_in_words(resource, *amount)));
    let text = each.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "nothing".into() } else { text }
}

/// An amount in the unit in which people write it.
pub fn amount_in_words(resource: &str, amount: Quantity) -> String {
    const UNIT: i128 = 1_000_000_000;
    let nanos = amount.nanos;
    if resource == "cpu" {
        return if nanos % UNIT == 0 { (nanos / UNIT).to_string() } else { format!("{}m", (nanos + 999_999) / 1_000_000) };
    }
    let bytes = (nanos + UNIT - 1) / UNIT;
    for (power, suffix) in [(30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if bytes >= 1 << power && bytes % (1 << power) == 0 {
            return format!("{}{suffix}", bytes >> power);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> String {
        in_words(&request(&serde_json::from_value(spec).unwrap()))
    }

    fn cpu(amount: &str) -> Value {
        json!({"resources": {"requests": {"cpu": amount}}})
    }

    fn sidecar(amount: &str) -> Value {
        json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": amount}}})
    }

    /// C8, and where a sidecar stands.
    #[test]
    fn c8_init_containers_count_by_the_largest() {
        assert_eq!(of(json!({"initContainers": [cpu("1"), cpu("2")], "containers": [cpu("500m")]})), "cpu 2");
        assert_eq!(of(json!({"initContainers": [sidecar("500m"), cpu("2")], "containers": [cpu("1")]})), "cpu 2500m");
        assert_eq!(of(json!({"initContainers": [cpu("2"), sidecar("500m")], "containers": [cpu("1")]})), "cpu 2");
        assert_eq!(of(json!({"initContainers": [sidecar("1"), sidecar("2")], "containers": [cpu("1")]})), "cpu 4");
    }

    /// C6: what the runner adds counts.
    #[test]
    fn c6_helpers_count() {
        let container = |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        assert_eq!(of(json!({"containers": [container("2", "4Gi"), container("500m", "512Mi")]})), "cpu 2500m, memory 4608Mi");
    }

    /// C9: a request of the pod replaces the sum, and is not a maximum of both.
    #[test]
    fn c9_a_request_of_the_pod_replaces_the_sum() {
        let containers = json!([{"resources": {"requests": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}}}]);
        let spec = json!({"resources": {"requests": {"cpu": "4"}}, "containers": containers});
        assert_eq!(of(spec), "cpu 4, memory 1Gi, nvidia.com/gpu 1");
        let spec =
            json!({"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": 5}}, "containers": [cpu("2")], "overhead": {"cpu": "250m"}});
        assert_eq!(of(spec), "cpu 1250m");
    }

    /// C4: a limit stands for the request that is missing.
    #[test]
    fn c4_limits_stand_for_requests() {
        assert_eq!(of(json!({"containers": [{"resources": {"limits": {"cpu": "2", "memory": "3Gi"}}}]})), "cpu 2, memory 3Gi");
        assert_eq!(of(json!({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]})), "cpu 1");
    }

    #[test]
    fn what_is_short_is_named() {
        let resources = |cpu: &str| {
            request(&serde_json::from_value(json!({"containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]})).unwrap())
        };
        assert_eq!(short_of(&resources("2"), &resources("2")), []);
        let short = short_of(&resources("2"), &resources("2500m"));
        assert_eq!(short.len(), 1);
        assert_eq!(
            (short[0].0.as_str(), amount_in_words("cpu", short[0].1), amount_in_words("cpu", short[0].2)),
            ("cpu", "2".into(), "2500m".into())
        );
    }
}
