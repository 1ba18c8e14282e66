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
use tokio::time::{sleep, timeout};
use tracing::warn;

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

/// How long one comparison may take. A connection that is half open is just what this is for.
const LIMIT: Duration = Duration::from_secs(60);

/// Compares the pods of a policy for as long as it is polled. `turns` bounds how many do so at once.
pub async fn run(client: Client, policy: Arc<CostPolicy>, world: Arc<World>, turns: Arc<Semaphore>, metrics: Arc<Metrics>) {
    let (namespace, name) = (&policy.namespace, &policy.name);
    loop {
        sleep(RESYNC.mul_f64(0.5 + jitter())).await;
        let _turn = turns.acquire().await;
        match timeout(LIMIT, once(&client, &policy, &world)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(repaired)) => {
                metrics.resynced(repaired);
                warn!(namespace, policy = name, repaired, "the watch of pods was behind, or had lost events");
            }
            Ok(Err(e)) => {
                warn!(namespace, policy = name, error = %e, "pods cannot be compared with what the watch has brought; trying again")
            }
            Err(_) => warn!(namespace, policy = name, "pods were not compared within {LIMIT:?}; trying again"),
        }
    }
}

/// Compares once, and repairs what differs. Returns how many pods did.
async fn once(client: &Client, policy: &Arc<CostPolicy>, world: &World) -> kube::Result<usize> {
    let sets: Api<PartialObjectMeta<ApiReplicaSet>> = Api::namespaced(client.clone(), &policy.namespace);
    each(&sets, ListParams::default(), |set| world.pods.apply_replica_set(read_replica_set(&policy.namespace, set))).await?;

    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &policy.namespace);
    let before = world.pods.versions(policy.key());
    let (mut listed, mut suspects) = (HashSet::new(), Vec::new());
    let version = |uid: &str| world.pods.get(policy.key(), uid).map(|pod| pod.version);
    let read = |pod: PartialObjectMeta<Pod>| {
        let (Some(uid), Some(there)) = (pod.uid(), pod.resource_version().and_then(|version| version.parse::<u64>().ok())) else { return };
        let counts = pod.owner_references().iter().any(|owner| owner.controller == Some(true) && honours_cost(owner));
        let known = version(&uid);
        if (counts || known.is_some()) && known.is_none_or(|known| known < there) {
            suspects.push((pod.name_any(), uid.clone(), known, there));
        }
        listed.insert(uid);
    };
    each(&pods, ListParams::default().labels(&policy.selector.to_string()), read).await?;
    sleep(A_MOMENT).await;

    // What was known before the list began, is not in it, and has not changed since, is gone.
    let mut repaired = 0;
    for (uid, known) in before.iter().filter(|(uid, _)| !listed.contains(&***uid)) {
        if version(uid) == Some(*known) {
            world.pods.remove(policy.key(), uid);
            world.costs.remove(uid, policy.key());
            repaired += 1;
        }
    }
    let whole: Api<Pod> = Api::namespaced(client.clone(), &policy.namespace);
    for (name, uid, known, there) in suspects {
        if version(&uid) != known || known.is_some_and(|known| known >= there) {
            continue;
        }
        // By a list, which needs no further right. It may have gone since, and the watch may know that.
        let one = whole.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await?;
        let found = one.items.into_iter().find(|pod| pod.uid().as_deref() == Some(&uid));
        if let Some(pod) = found.filter(|_| version(&uid) == known) {
            read_pod(world, policy, pod);
            repaired += 1;
        }
    }
    Ok(repaired)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wiremock::matchers::{method, path, query_param};
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

    /// What a list of the pods of one name gives; it is asked for before the list of all.
    async fn answer_one(server: &MockServer, name: &str, body: Value) {
        let by_name = query_param("fieldSelector", format!("metadata.name={name}"));
        let answer = ResponseTemplate::new(200).set_body_json(body);
        Mock::given(method("GET"))
            .and(path("/api/v1/namespaces/shop/pods"))
            .and(by_name)
            .respond_with(answer)
            .with_priority(1)
            .mount(server)
            .await;
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
            answer_one(&server, name, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [whole]})).await;
        }
        answer_one(&server, "ghost", json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []})).await;
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
