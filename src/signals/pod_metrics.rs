//! The cluster's own pod metrics (`metrics.k8s.io`, from metrics-server): CPU and memory, and nothing else to install.
//!
//! A query is `cpu` (in cores) or `memory` (in bytes), summed over the pod's containers; `cpu CONTAINER` counts one container.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use tokio::time::{Duration, timeout};

use super::{Backend, Query, QueryError, Rows};
use crate::headroom::quantity::Quantity;

/// metrics-server answers from memory.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

pub struct PodMetrics {
    client: Client,
}

impl PodMetrics {
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

/// What a query asks for.
fn parse(query: &str) -> Result<(&str, Option<&str>), String> {
    let mut words = query.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(resource @ ("cpu" | "memory")), container, None) => Ok((resource, container)),
        _ => Err("wanted cpu or memory, or one of them with the name of a container".into()),
    }
}

impl Backend for PodMetrics {
    /// What is asked is the policy's own namespace, always.
    fn prepare(&self, query: &str, _: &str) -> Result<String, String> {
        parse(query).map(|_| query.into())
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move {
            let (resource, container) = parse(&query.text).map_err(QueryError::malformed)?;
            let kind = ApiResource {
                group: "metrics.k8s.io".into(),
                version: "v1beta1".into(),
                api_version: "metrics.k8s.io/v1beta1".into(),
                kind: "PodMetrics".into(),
                plural: "pods".into(),
            };
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &query.namespace, &kind);
            let list = match timeout(LIMIT, api.list(&ListParams::default())).await {
                Err(_) => return Err(QueryError::Timeout(LIMIT)),
                Ok(Err(kube::Error::Api(status))) => return Err(QueryError::Status { status: status.code, body: status.message.clone() }),
                Ok(Err(e)) => return Err(QueryError::Unreachable(e.to_string())),
                Ok(Ok(list)) => list,
            };
            let mut rows = Rows::default();
            for pod in list.items {
                let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
                let usage = usage(pod, resource, container).map_err(|why| QueryError::malformed(format!("pod {name}: {why}")))?;
                if let Some((value, time)) = usage {
                    rows.label("pod", &name);
                    rows.label("namespace", &namespace);
                    rows.end(value, time);
                }
            }
            Ok(rows)
        })
    }
}

/// The usage of one pod, and when it was measured; `None` where it has not been, or has no such container.
fn usage(pod: DynamicObject, resource: &str, container: Option<&str>) -> Result<Option<(f64, Timestamp)>, String> {
    #[derive(Deserialize)]
    struct Usage {
        timestamp: Timestamp,
        #[serde(default)]
        containers: Vec<Container>,
    }
    #[derive(Deserialize)]
    struct Container {
        name: String,
        #[serde(default)]
        usage: BTreeMap<String, String>,
    }
    let usage: Usage = serde_json::from_value(pod.data).map_err(|e| e.to_string())?;
    let counted = usage.containers.iter().filter(|found| container.is_none_or(|name| found.name == name));
    let amounts: Vec<Quantity> =
        counted.filter_map(|found| found.usage.get(resource)).map(|amount| Quantity::parse(amount)).collect::<Result<_, _>>()?;
    if amounts.is_empty() {
        return Ok(None);
    }
    Ok(Some((amounts.into_iter().map(Quantity::as_f64).sum(), usage.timestamp)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn measured(containers: serde_json::Value) -> DynamicObject {
        serde_json::from_value(
            json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": {"name": "a", "namespace": "shop"},
            "timestamp": "2026-01-01T00:00:00Z", "window": "15s", "containers": containers}),
        )
        .unwrap()
    }

    #[test]
    fn sums_the_containers_or_takes_one() {
        let two = || {
            measured(
                json!([{"name": "web", "usage": {"cpu": "250000000n", "memory": "64Mi"}}, {"name": "proxy", "usage": {"cpu": "50m", "memory": "1Ki"}}]),
            )
        };
        let value = |resource, container| usage(two(), resource, container).unwrap().map(|(value, _)| value);
        assert_eq!(value("cpu", None), Some(0.3));
        assert_eq!(value("cpu", Some("proxy")), Some(0.05));
        assert_eq!(value("memory", None), Some(67_109_888.0));
        assert_eq!(value("cpu", Some("absent")), None);
        assert_eq!(usage(measured(json!([])), "cpu", None).unwrap(), None);
        assert!(usage(measured(json!([{"name": "web", "usage": {"cpu": "lots"}}])), "cpu", None).unwrap_err().contains("found `lots`"));
    }

    #[test]
    fn knows_two_resources() {
        assert_eq!(parse("cpu"), Ok(("cpu", None)));
        assert_eq!(parse(" memory  trino "), Ok(("memory", Some("trino"))));
        for query in ["", "disk", "cpu a b", "sum(cpu)"] {
            assert!(parse(query).is_err(), "{query}");
        }
    }
}
