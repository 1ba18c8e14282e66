//! Compares what the watches have brought with what there is, now and then. A watch whose events are lost on the way looks like one of a
//! cluster where nothing happens. Only names and versions are listed; what differs, and still does a moment later, is read.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet as ApiReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::governance::{read_pod, read_replica_set};
use super::listing::each;
use super::{World, jitter};
use crate::api::CostPolicy;
use crate::cost::pod::honours_cost;
use crate::server::metrics::Metrics;

/// How often, on average.
const RESYNC: Duration = Duration::from_secs(600);

/// A watch that merely lags behind has caught up by then.
const A_MOMENT: Duration = Duration::from_secs(2);

/// Compares the pods of a policy for as long as it is polled.
pub async fn run(client: Client, policy: Arc<CostPolicy>, world: Arc<World>, lists: Arc<Semaphore>, metrics: Arc<Metrics>) {
    loop {
        sleep(RESYNC.mul_f64(0.5 + jitter())).await;
        let _turn = lists.acquire().await;
        match once(&client, &policy, &world).await {
            Ok(0) => {}
            Ok(repaired) => {
                metrics.resynced(repaired);
                warn!(namespace = policy.namespace, policy = policy.name, repaired, "the watch of pods had lost events");
            }
            Err(e) => debug!(namespace = policy.namespace, policy = policy.name, error = %e, "resync failed; the next one comes"),
        }
    }
}

/// Compares once, and repairs what differs. Returns how many pods did.
async fn once(client: &Client, policy: &Arc<CostPolicy>, world: &World) -> kube::Result<usize> {
    let sets: Api<PartialObjectMeta<ApiReplicaSet>> = Api::namespaced(client.clone(), &policy.namespace);
    each(&sets, ListParams::default(), |set| world.pods.apply_replica_set(read_replica_set(&policy.namespace, set))).await?;

    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &policy.namespace);
    let before: HashSet<Arc<str>> = world.pods.versions(policy.key()).into_keys().collect();
    let (mut listed, mut suspects) = (HashSet::new(), Vec::new());
    let version = |uid: &str| world.pods.get(policy.key(), uid).map(|pod| pod.version);
    let read = |pod: PartialObjectMeta<Pod>| {
        let (Some(uid), Some(there)) = (pod.uid(), pod.resource_version().and_then(|version| version.parse::<u64>().ok())) else { return };
        let counts = pod.owner_references().iter().any(|owner| owner.controller == Some(true) && honours_cost(owner));
        if counts && version(&uid).is_none_or(|known| known < there) {
            suspects.push((pod.name_any(), uid.clone(), there));
        }
        listed.insert(uid);
    };
    each(&pods, ListParams::default().labels(&policy.selector.to_string()), read).await?;
    // What was known before the list began and is not in it is gone.
    let gone: Vec<Arc<str>> = before.into_iter().filter(|uid| !listed.contains(&**uid)).collect();
    sleep(A_MOMENT).await;

    let mut repaired = 0;
    let whole: Api<Pod> = Api::namespaced(client.clone(), &policy.namespace);
    for (name, uid, there) in suspects {
        if version(&uid).is_some_and(|known| known >= there) {
            continue;
        }
        // It may have gone since, and the watch may know that.
        if let Some(pod) = whole.get_opt(&name).await?.filter(|pod| pod.uid().as_deref() == Some(&uid)) {
            read_pod(world, policy, pod);
            repaired += 1;
        }
    }
    for uid in gone {
        if world.pods.get(policy.key(), &uid).is_some() {
            world.pods.remove(policy.key(), &uid);
            world.costs.remove(&uid, policy.key());
            repaired += 1;
        }
    }
    Ok(repaired)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::api::DeletionCostPolicy;
    use crate::cost::GovernedPod;
    use crate::cost::pod::tests::pod;

    fn metadata(name: &str, version: u64) -> Value {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]);
        json!({"name": name, "namespace": "shop", "uid": name, "resourceVersion": version.to_string(), "labels": {"app": "web"}, "ownerReferences": owner})
    }

    async fn answer(server: &MockServer, at: &str, body: Value) {
        let code = body["code"].as_u64().unwrap_or(200) as u16;
        Mock::given(method("GET")).and(path(at)).respond_with(ResponseTemplate::new(code).set_body_json(body)).mount(server).await;
    }

    /// DC-35: pods were replaced, and the watch has shown nothing of it.
    #[tokio::test]
    async fn dc_35_lost_events_are_made_up_for() {
        crate::server::install_crypto_provider();
        let server = MockServer::start().await;
        let list = |kind: &str, items: Vec<Value>| json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": {"resourceVersion": "90"}, "items": items});
        let partial = |metadata: Value| json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata});
        answer(&server, "/apis/apps/v1/namespaces/shop/replicasets", list("PartialObjectMetadataList", vec![])).await;
        let there = vec![
            partial(metadata("stays", 5)),
            partial(metadata("changed", 60)),
            partial(metadata("new", 70)),
            partial(metadata("ghost", 80)),
        ];
        answer(&server, "/api/v1/namespaces/shop/pods", list("PartialObjectMetadataList", there)).await;
        for (name, version) in [("changed", 60), ("new", 70)] {
            let whole = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name, version), "status": {"phase": "Running"}});
            answer(&server, &format!("/api/v1/namespaces/shop/pods/{name}"), whole).await;
        }
        let none = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "message": "gone", "code": 404});
        answer(&server, "/api/v1/namespaces/shop/pods/ghost", none).await;
        let client = Client::try_from(kube::Config::new(server.uri().parse().unwrap())).unwrap();
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1}]}}))
        .unwrap();
        let (policy, world) = (Arc::new(CostPolicy::compile(&policy)), World::default());
        for (name, version) in [("stays", 5), ("changed", 6), ("gone", 7)] {
            world.pods.apply(policy.key(), GovernedPod { version, ..pod(name) });
        }
        assert_eq!(once(&client, &policy, &world).await.unwrap(), 3);
        let mut versions: Vec<(String, u64)> =
            world.pods.versions(policy.key()).into_iter().map(|(uid, version)| (uid.to_string(), version)).collect();
        versions.sort();
        // What has gone since the list was made is not brought back.
        assert_eq!(versions, [("changed".to_owned(), 60), ("new".to_owned(), 70), ("stays".to_owned(), 5)]);
        assert_eq!(once(&client, &policy, &world).await.unwrap(), 0);
    }
}
