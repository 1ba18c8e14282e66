//! Makes placeholders for a workload: as large as one of its pods with all helpers, with the same constraints but for those on spot.

use serde_json::{Map, Value, json};

use super::effective::{self, amount_in_words};
use super::object::{Kind, Object};
use super::spot::SpotRow;
use crate::api::HEADROOM_LABEL;

/// A placeholder's priority: the lowest for which Cluster Autoscaler brings a node.
const PRIORITY: i32 = -10;

/// It does nothing, and ends at once when it is told to.
const PAUSE: &str = "registry.k8s.io/pause:3.10";

/// Rows that are conventions of single teams are too many to shut out where nobody asks for it.
const CONVENTION: &str = "convention";

pub struct Wanted<'a> {
    pub kind: Kind,
    /// Where the workload's own is not to be taken.
    pub namespace: Option<&'a str>,
    pub pool: &'a str,
    pub class: &'a str,
    pub replicas: u32,
    pub rows: &'a [SpotRow],
    /// Keys whose spot nodes are shut out; those of every provider where empty.
    pub spot_keys: &'a [String],
}

/// A PriorityClass and a Deployment.
pub fn placeholder(workload: &Value, wanted: &Wanted<'_>) -> Result<[Value; 2], String> {
    let object = Object::read(wanted.kind, &workload.to_string()).map_err(|e| format!("the workload cannot be read: {e}"))?;
    let path = format!("/{}", wanted.kind.pod_spec_path().replace('.', "/"));
    let spec = workload.pointer(&path).ok_or_else(|| format!("found nothing at {}, wanted a pod spec", wanted.kind.pod_spec_path()))?;
    let request = object.pod_spec().map(effective::request).unwrap_or_default();
    if request.is_empty() {
        return Err("its pods request nothing, so there is no room to hold: give them requests first".into());
    }
    let name = format!("{}-headroom", object.name.chars().take(50).collect::<String>().trim_end_matches('-'));
    let labels = json!({"app.kubernetes.io/name": name, HEADROOM_LABEL: wanted.pool});
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": wanted.class, "labels": {HEADROOM_LABEL: wanted.pool}},
        "value": PRIORITY, "preemptionPolicy": "Never",
        "description": "Placeholders: the lowest priority for which Cluster Autoscaler brings a node",
    });
    let mut pod = Map::new();
    pod.insert("priorityClassName".into(), json!(wanted.class));
    pod.insert("terminationGracePeriodSeconds".into(), json!(0));
    pod.insert("automountServiceAccountToken".into(), json!(false));
    for field in ["schedulerName", "runtimeClassName"] {
        let value = spec.get(field).filter(|value| !value.is_null() && *value != "default-scheduler");
        pod.extend(value.map(|value| (field.to_owned(), value.clone())));
    }
    let is_spot = |key: &str| wanted.rows.iter().any(|row| row.key == key);
    let selector: Map<String, Value> =
        spec["nodeSelector"].as_object().into_iter().flatten().filter(|(key, _)| !is_spot(key)).map(copied).collect();
    if !selector.is_empty() {
        pod.insert("nodeSelector".into(), Value::Object(selector));
    }
    let tolerations: Vec<Value> =
        spec["tolerations"].as_array().into_iter().flatten().filter(|t| !t["key"].as_str().is_some_and(is_spot)).cloned().collect();
    let tolerations: Vec<Value> = tolerations.into_iter().filter(|t| !is_added(t)).collect();
    if !tolerations.is_empty() {
        pod.insert("tolerations".into(), Value::Array(tolerations));
    }
    pod.insert("affinity".into(), affinity(spec, workload, wanted, &labels));
    if let Some(constraints) = spec["topologySpreadConstraints"].as_array().filter(|constraints| !constraints.is_empty()) {
        let own = own_labels(workload, wanted.kind);
        let constraints = constraints.iter().map(|constraint| of_itself(constraint, &own, &labels)).collect();
        pod.insert("topologySpreadConstraints".into(), Value::Array(constraints));
    }
    pod.insert("containers".into(), json!([container(&request, spec)]));
    let namespace =
        wanted.namespace.map(str::to_owned).or_else(|| Some(object.namespace.clone()).filter(|namespace| !namespace.is_empty()));
    let mut metadata = json!({"name": name, "labels": labels});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": wanted.replicas, "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {"metadata": {"labels": labels}, "spec": pod}},
    });
    Ok([class, deployment])
}

fn copied((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// Tolerations that the API server adds to every pod.
fn is_added(toleration: &Value) -> bool {
    let key = toleration["key"].as_str().unwrap_or_default();
    matches!(key, "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable") && toleration["tolerationSeconds"].is_number()
}

fn container(request: &effective::Resources, spec: &Value) -> Value {
    // What the RuntimeClass adds is added to the placeholder too.
    let overhead = |resource: &str| {
        let text = spec["overhead"].get(resource).map(|amount| amount.as_str().map_or_else(|| amount.to_string(), str::to_owned));
        text.and_then(|text| super::quantity::Quantity::parse(&text).ok()).map_or(0, |amount| amount.nanos)
    };
    let amounts: Map<String, Value> = request
        .iter()
        .map(|(resource, amount)| (resource.clone(), super::quantity::Quantity { nanos: amount.nanos - overhead(resource) }))
        .filter(|(_, amount)| amount.nanos > 0)
        .map(|(resource, amount)| (resource.clone(), json!(amount_in_words(&resource, amount))))
        .collect();
    // Of everything but these the API server wants a limit that is the same.
    let limits: Map<String, Value> =
        amounts.iter().filter(|(resource, _)| !matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage")).map(copied).collect();
    let mut resources = json!({ "requests": amounts });
    if !limits.is_empty() {
        resources["limits"] = Value::Object(limits);
    }
    json!({"name": "pause", "image": PAUSE, "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
            "runAsNonRoot": true, "runAsUser": 65535, "seccompProfile": {"type": "RuntimeDefault"}}})
}

/// The workload's affinity, without what it says of spot, and with what keeps a placeholder off it.
fn affinity(spec: &Value, workload: &Value, wanted: &Wanted<'_>, labels: &Value) -> Value {
    let mut affinity = Map::new();
    let is_spot = |expression: &Value| wanted.rows.iter().any(|row| expression["key"] == row.key.as_str());
    let own = own_labels(workload, wanted.kind);
    for kind in ["podAffinity", "podAntiAffinity"] {
        let value = &spec["affinity"][kind];
        if value.is_object() {
            affinity.insert(kind.into(), of_itself_everywhere(value, &own, labels));
        }
    }
    let off = off_spot(wanted);
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let mut terms: Vec<Value> = required.as_array().cloned().unwrap_or_default();
    for term in &mut terms {
        if let Some(expressions) = term["matchExpressions"].as_array_mut() {
            expressions.retain(|expression| !is_spot(expression));
        }
    }
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        let mut expressions = term["matchExpressions"].as_array().cloned().unwrap_or_default();
        expressions.extend(off.clone());
        term["matchExpressions"] = Value::Array(expressions);
    }
    let mut node = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let preferred: Vec<Value> = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|term| !term["preference"]["matchExpressions"].as_array().into_iter().flatten().any(is_spot))
        .cloned()
        .collect();
    if !preferred.is_empty() {
        node["preferredDuringSchedulingIgnoredDuringExecution"] = Value::Array(preferred);
    }
    affinity.insert("nodeAffinity".into(), node);
    Value::Object(affinity)
}

/// Shuts spot nodes out; a node without the label is regular.
fn off_spot(wanted: &Wanted<'_>) -> Vec<Value> {
    let is_wanted =
        |row: &&SpotRow| if wanted.spot_keys.is_empty() { row.provider != CONVENTION } else { wanted.spot_keys.contains(&row.key) };
    wanted.rows.iter().filter(is_wanted).map(|row| json!({"key": row.key, "operator": "NotIn", "values": row.spot})).collect()
}

/// The labels of the workload's pods.
fn own_labels(workload: &Value, kind: Kind) -> Value {
    let path = format!("/{}", kind.pod_spec_path().replace('.', "/"));
    let template = path.strip_suffix("/spec").unwrap_or_default();
    workload.pointer(&format!("{template}/metadata/labels")).cloned().unwrap_or_default()
}

/// A constraint by which a pod keeps away from its own kind, said of the placeholders.
fn of_itself(constraint: &Value, own: &Value, labels: &Value) -> Value {
    let mut constraint = constraint.clone();
    let selects_itself =
        constraint["labelSelector"]["matchLabels"].as_object().is_some_and(|all| all.iter().all(|(key, value)| own[key] == *value));
    if selects_itself {
        constraint["labelSelector"] = json!({"matchLabels": {"app.kubernetes.io/name": labels["app.kubernetes.io/name"]}});
    }
    constraint
}

fn of_itself_everywhere(value: &Value, own: &Value, labels: &Value) -> Value {
    match value {
        Value::Object(fields) if fields.contains_key("labelSelector") => of_itself(value, own, labels),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), of_itself_everywhere(value, own, labels))).collect(),
        Value::Array(items) => items.iter().map(|value| of_itself_everywhere(value, own, labels)).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{HeadroomPool, Policies, Pool};
    use crate::headroom::spot::built_in;
    use crate::headroom::{Class, Classes, Known, Shapes, review};

    fn made(spec: Value, keys: &[String]) -> [Value; 2] {
        let labels = json!({"app": "job"});
        let workload = json!({"kind": "Deployment", "metadata": {"name": "runner-job", "namespace": "ci"},
            "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}}});
        let rows = built_in();
        let wanted = Wanted {
            kind: Kind::Deployment,
            namespace: None,
            pool: "general",
            class: "headroom-minus-10",
            replicas: 3,
            rows: &rows,
            spot_keys: keys,
        };
        placeholder(&workload, &wanted).unwrap()
    }

    fn job() -> Value {
        let requests = |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        let selector = json!({"matchLabels": {"app": "job"}});
        json!({
            "containers": [requests("2", "4Gi"), requests("500m", "512Mi")],
            "nodeSelector": {"karpenter.sh/capacity-type": "spot", "disk": "ssd"},
            "tolerations": [{"key": "team", "value": "ci"}, {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists"}],
            "schedulerName": "bin-packer", "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 600,
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}],
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "host", "labelSelector": selector}]},
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a"]}, {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]}]}}
            }
        })
    }

    /// It keeps every rule of a pool that checks everything, also the strict ones.
    #[test]
    fn what_is_made_keeps_every_rule() {
        let spec = json!({"shape": {"like": {"kind": "Deployment", "namespace": "ci", "name": "runner-job"}},
            "rules": {"offSpotStrict": "Enforce", "matchesShape": "Enforce", "spreads": "Enforce", "neverPreempts": "Enforce", "supportedImage": "Enforce"}});
        let pool: HeadroomPool = serde_json::from_value(json!({"metadata": {"name": "general"}, "spec": spec})).unwrap();
        let policies = Policies::default().with_pool(Pool::compile(&pool));
        let (class, shape) = (Class { value: -10, never_preempts: true, ..Class::default() }, serde_json::from_value(job()).unwrap());
        let known = Known {
            classes: Classes::new([("headroom-minus-10".to_owned(), class)]).into(),
            shapes: Shapes::default().with("general", Some(shape)).into(),
            ..Known::default()
        };
        for (kind, made) in [Kind::PriorityClass, Kind::Deployment].into_iter().zip(made(job(), &[])) {
            let object = Object::read(kind, &made.to_string()).unwrap();
            let found = review(&object, None, &policies, &known);
            assert!(object.mark() == Some("general") && found.broken.is_empty() && found.notes.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn it_asks_for_what_the_job_asks_for_and_stands_where_it_may() {
        let [class, deployment] = made(job(), &["karpenter.sh/capacity-type".to_owned()]);
        assert_eq!((&class["value"], &class["preemptionPolicy"]), (&json!(-10), &json!("Never")));
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["resources"], json!({"requests": {"cpu": "2500m", "memory": "4608Mi"}}));
        assert_eq!((&pod["nodeSelector"], &pod["terminationGracePeriodSeconds"]), (&json!({"disk": "ssd"}), &json!(0)));
        assert_eq!(pod["tolerations"], json!([{"key": "team", "value": "ci"}]));
        assert_eq!((&pod["schedulerName"], &pod["runtimeClassName"]), (&json!("bin-packer"), &json!("gvisor")));
        let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let off = json!({"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot"]});
        assert_eq!(terms[0]["matchExpressions"], json!([{"key": "zone", "operator": "In", "values": ["a"]}, off]));
        let name = json!({"matchLabels": {"app.kubernetes.io/name": "runner-job-headroom"}});
        assert_eq!(pod["topologySpreadConstraints"][0]["labelSelector"], name);
        assert_eq!(pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"], name);
    }

    #[test]
    fn devices_have_limits_and_nothing_is_no_room() {
        let gpu = json!({"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}}]});
        let [_, deployment] = made(gpu, &[]);
        let resources = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert_eq!(*resources, json!({"requests": {"memory": "1Gi", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}));
        let rows = built_in();
        let wanted = Wanted { kind: Kind::Pod, namespace: None, pool: "p", class: "c", replicas: 1, rows: &rows, spot_keys: &[] };
        let why = placeholder(&json!({"metadata": {"name": "x"}, "spec": {"containers": [{}]}}), &wanted).unwrap_err();
        assert!(why.contains("request nothing"), "{why}");
    }
}
