//! Scale-downs against what the real control plane cannot be made to show at will: a controller whose cache lags by a given time, and an
//! API server that takes so many writes a second and no more. Time is the test's own, so a lag of three seconds takes none.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use pecking_order::admission::scale_downs::{Parent, ParentKind, PodWrite};
use pecking_order::api::policies::PolicyKey;
use pecking_order::api::{CostPolicy, DeletionCostPolicy};
use pecking_order::cluster::World;
use pecking_order::cluster::budget::{Budget, Limits, Rate};
use pecking_order::cluster::pods::ReplicaSet;
use pecking_order::cluster::scale_down::ScaleDowns;
use pecking_order::cluster::truth::Observer;
use pecking_order::cluster::writer::{OwnCost, PodWriter, Written};
use pecking_order::cost::score::Basis;
use pecking_order::cost::{Cost, GovernedPod, Stored, victims};
use pecking_order::server::metrics::Metrics;
use pecking_order::server::webhook::Webhook;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

const NAMESPACE: &str = "shop";

/// How long one write takes, and how soon our watch shows it.
const LATENCY: Duration = Duration::from_millis(20);
const WATCH: Duration = Duration::from_millis(10);

/// An API server that remembers when which cost was written.
struct Server {
    world: Arc<World>,
    policy: PolicyKey,
    /// The time between two writes that it takes.
    pause: Duration,
    turn: tokio::sync::Mutex<()>,
    under_way: AtomicUsize,
    begun: Mutex<Vec<Instant>>,
    written: Mutex<Vec<(Instant, Arc<str>, i32)>>,
}

impl PodWriter for Server {
    fn write<'a>(&'a self, write: &'a PodWrite) -> BoxFuture<'a, Written> {
        Box::pin(async move {
            let _under_way = Count::of(&self.under_way);
            self.begun.lock().unwrap().push(Instant::now());
            {
                // Who hangs up loses their place.
                let _turn = self.turn.lock().await;
                sleep(self.pause).await;
            }
            sleep(LATENCY).await;
            self.written.lock().unwrap().push((Instant::now(), write.uid.clone(), write.cost));
            let (world, policy, uid, cost) = (self.world.clone(), self.policy.clone(), write.uid.clone(), write.cost);
            tokio::spawn(async move {
                sleep(WATCH).await;
                if let Some(pod) = world.pods.get(&policy, &uid) {
                    world
                        .pods
                        .apply(&policy, GovernedPod { stored: Stored::Ours(cost), version: pod.version + 1, ..GovernedPod::clone(&pod) });
                }
            });
            Written::Yes { version: u64::MAX }
        })
    }

    fn erase<'a>(&'a self, _: &'a OwnCost) -> BoxFuture<'a, Written> {
        Box::pin(std::future::ready(Written::Gone))
    }
}

/// Counts what is under way, also where it is dropped half-way.
struct Count<'a>(&'a AtomicUsize);

impl<'a> Count<'a> {
    fn of(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Scene {
    world: Arc<World>,
    server: Arc<Server>,
    metrics: Arc<Metrics>,
    policy: Arc<CostPolicy>,
    router: Router,
}

impl Scene {
    /// `settle` in milliseconds at a Deployment's door; the server takes one write in each `pause`.
    fn new(settle: u32, pause: Duration) -> Self {
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1000}]}}))
        .unwrap();
        let (policy, world, metrics) = (Arc::new(CostPolicy::compile(&policy)), Arc::new(World::default()), Arc::new(Metrics::default()));
        world.update_policies(|policies| policies.with_policy(policy.clone()));
        let server = Arc::new(Server {
            world: world.clone(),
            policy: policy.key().clone(),
            pause,
            turn: tokio::sync::Mutex::default(),
            under_way: AtomicUsize::new(0),
            begun: Mutex::default(),
            written: Mutex::default(),
        });
        let settle = serde_json::from_value(json!({"deployments": settle, "replicaSets": settle})).unwrap();
        let observer = Observer::new(world.clone(), metrics.clone(), None);
        // It is the server that is slow here, not our own budget.
        let plenty = Rate { per_second: 1e6, burst: 1e6 };
        let budget = Arc::new(Budget::new(Limits { cluster: plenty, policy: plenty }));
        let scale_downs = ScaleDowns::new(world.clone(), server.clone(), budget, observer, metrics.clone(), settle);
        let router = Webhook::new(world.clone(), Arc::default(), scale_downs, metrics.clone(), Arc::default()).router();
        Self { world, server, metrics, policy, router }
    }

    /// A Deployment whose pods have these stored and current costs.
    fn deployment(&self, name: &str, pods: &[(i32, i32)]) {
        let parent = Some(Parent { kind: ParentKind::Deployment, name: name.into() });
        self.world.pods.apply_replica_set(ReplicaSet { namespace: NAMESPACE.into(), uid: format!("{name}-rs"), parent });
        for (index, (stored, current)) in pods.iter().enumerate() {
            let pod = pod(&format!("{name}-{index}"), &format!("{name}-rs"), *stored);
            let cost = Cost::unmeasured(*current, if *current > 0 { Basis::Work } else { Basis::Idle }, self.policy.clone());
            self.world.costs.insert(pod.uid.clone(), cost);
            self.world.pods.apply(self.policy.key(), pod);
        }
    }

    fn pods(&self, name: &str) -> Vec<GovernedPod> {
        let all = self.world.pods.governed_by(&self.policy, &self.world.policies());
        let mut pods: Vec<GovernedPod> =
            all.iter().filter(|pod| *pod.owner == *format!("{name}-rs")).map(|pod| GovernedPod::clone(pod)).collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods
    }

    async fn send(&self, path: &str, review: Value) -> (StatusCode, Value) {
        let request = Request::post(path).body(Body::from(review.to_string())).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn scale(&self, name: &str, from: usize, to: usize) -> (StatusCode, Value) {
        let scale =
            |replicas: usize| json!({"metadata": {"name": name, "namespace": NAMESPACE, "uid": name}, "spec": {"replicas": replicas}});
        self.send("/validate/scale-downs?timeout=10s", review("apps", "deployments", "scale", name, scale(from), scale(to))).await
    }

    /// The controller chooses now, from a cache that is older by `lag`, and what it chooses goes.
    fn controller_removes(&self, name: &str, before: &[GovernedPod], go: usize, lag: Duration) -> HashSet<String> {
        let seen: HashMap<Arc<str>, i32> = {
            let written = self.server.written.lock().unwrap();
            let now = Instant::now();
            written.iter().filter(|(at, ..)| *at + lag <= now).map(|(_, uid, cost)| (uid.clone(), *cost)).collect()
        };
        let view: Vec<GovernedPod> = before
            .iter()
            .map(|pod| GovernedPod { stored: seen.get(&pod.uid).map_or(pod.stored, |cost| Stored::Ours(*cost)), ..pod.clone() })
            .collect();
        let mut order: Vec<&GovernedPod> = view.iter().collect();
        victims::sort(&mut order, &HashMap::new(), Timestamp::now());
        let gone: HashSet<String> = order[..go].iter().map(|pod| pod.name.clone()).collect();
        for pod in self.pods(name).iter().filter(|pod| gone.contains(&pod.name)) {
            self.world.pods.remove(self.policy.key(), &pod.uid);
        }
        gone
    }

    fn observed(&self, verdict: &str) -> bool {
        let series = format!(r#"scale_downs_observed_total{{door="deployments/scale",verdict="{verdict}"}} 1"#);
        self.metrics.encode(0, 0).contains(&series)
    }
}

fn review(group: &str, resource: &str, sub_resource: &str, name: &str, old: Value, new: Value) -> Value {
    let kind = json!({"group": group, "version": "v1", "kind": "Any"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": format!("uid-{name}"), "kind": kind,
        "resource": {"group": group, "version": "v1", "resource": resource}, "subResource": sub_resource, "name": name, "namespace": NAMESPACE,
        "operation": "UPDATE", "oldObject": old, "object": new}})
}

fn pod(name: &str, owner: &str, stored: i32) -> GovernedPod {
    let text = stored.to_string();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web"},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": text, "pecking-order.dev/deletion-cost": text},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}]},
        "spec": {"nodeName": "node-1", "containers": [{"name": "web"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}]}}))
    .unwrap();
    GovernedPod::read(&pod).unwrap()
}

/// DC-13: the idle pod goes for as long as the controller's cache lags by no more than the settle time; where it lags by more, the wrong
/// victim is noticed and counted.
#[tokio::test(start_paused = true)]
async fn dc_13_the_settle_time_covers_the_lag_and_what_it_does_not_cover_is_counted() {
    for settle in [0, 100, 250, 1000] {
        for lag in [100, 500, 1000, 3000] {
            let scene = Scene::new(settle, Duration::ZERO);
            scene.deployment("web", &[(500, 0), (0, 800)]);
            let before = scene.pods("web");
            let (status, answer) = scene.scale("web", 2, 1).await;
            assert_eq!((status, &answer["response"]["allowed"]), (StatusCode::OK, &json!(true)));
            let gone = scene.controller_removes("web", &before, 1, Duration::from_millis(lag));
            // What our own watch takes to show a write is waited for too.
            let covered = lag <= u64::from(settle) + WATCH.as_millis() as u64;
            assert_eq!(gone.contains("web-0"), covered, "settle {settle}, lag {lag}");
            sleep(Duration::from_secs(61)).await;
            assert!(scene.observed(if covered { "right" } else { "raced" }), "settle {settle}, lag {lag}: {}", scene.metrics.encode(0, 0));
        }
    }
}

/// DC-14: three pods, of which two go at once: the writes begin together, and the one that is worth most stays.
#[tokio::test(start_paused = true)]
async fn dc_14_writes_go_side_by_side() {
    let scene = Scene::new(100, Duration::ZERO);
    scene.deployment("web", &[(1, 1000), (1000, 900), (1000, 800)]);
    let before = scene.pods("web");
    let start = Instant::now();
    scene.scale("web", 3, 1).await;
    assert_eq!(start.elapsed(), LATENCY + WATCH + Duration::from_millis(100), "one write's time, however many there are");
    let begun = scene.server.begun.lock().unwrap().clone();
    assert!(begun.len() > 1 && begun.iter().all(|at| *at == begun[0]), "{begun:?}");
    let gone = scene.controller_removes("web", &before, 2, Duration::from_millis(100));
    assert!(!gone.contains("web-0"), "{gone:?}");
}

/// Two hundred scale-downs within two seconds, each with its costs the wrong way round, on an API server that takes twenty writes a
/// second: all are answered by their deadlines, whoever asks about pods meanwhile waits for nothing, and afterwards nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_slow_api_server_delays_nobody_beyond_the_deadline() {
    const SCALE_DOWNS: u32 = 200;
    let scene = Scene::new(100, Duration::from_millis(50));
    let wrong: Vec<(i32, i32)> = (1..=20).map(|cost| (cost * 10, 210 - cost * 10)).collect();
    for n in 0..SCALE_DOWNS {
        scene.deployment(&format!("w{n}"), &wrong);
    }
    scene.world.costs.insert("p", Cost::unmeasured(70, Basis::Work, scene.policy.clone()));
    let (start, scene) = (Instant::now(), &scene);
    let scale_downs = join_all((0..SCALE_DOWNS).map(|n| async move {
        sleep(Duration::from_secs(2) / SCALE_DOWNS * n).await;
        let asked = Instant::now();
        let (status, answer) = scene.scale(&format!("w{n}"), 20, 12).await;
        assert!(asked.elapsed() <= Duration::from_secs(8), "answered after {:?}", asked.elapsed());
        assert_eq!((status, &answer["response"]["allowed"]), (StatusCode::OK, &json!(true)));
        let warning = answer["response"]["warnings"][0].as_str().unwrap_or_default().to_owned();
        usize::from(warning.contains("deletion costs were written in time"))
    }));
    let others = async {
        for _ in 0..100 {
            sleep(Duration::from_millis(80)).await;
            let asked = Instant::now();
            // Governed, and with a cost that differs from the one that stands on it.
            let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true}]);
            let metadata = json!({"name": "p", "namespace": NAMESPACE, "uid": "p", "labels": {"app": "web"}, "ownerReferences": owner});
            let pod = json!({"metadata": metadata, "spec": {"containers": []}});
            for path in ["/mutate/pods", "/validate/headroom"] {
                let (status, answer) = scene.send(path, review("", "pods", "", "p", pod.clone(), pod.clone())).await;
                assert_eq!((status, &answer["response"]["allowed"]), (StatusCode::OK, &json!(true)), "{path}");
                assert_eq!(answer["response"]["patch"].is_string(), path == "/mutate/pods", "{path}: {answer}");
            }
            assert_eq!(asked.elapsed(), Duration::ZERO, "a review of a pod waited");
        }
    };
    let (warned, ()) = tokio::join!(scale_downs, others);
    assert!(start.elapsed() <= Duration::from_secs(10), "{:?}", start.elapsed());
    let late: usize = warned.iter().sum();
    assert!(late > 100, "only {late} were late: the server was not slow enough to prove anything");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(scene.server.under_way.load(Ordering::SeqCst), 0, "writes are left over");
    let last = scene.server.begun.lock().unwrap().iter().max().copied().unwrap();
    assert!(last <= start + Duration::from_secs(10), "a write began after the last deadline");
    // What there is now is for those who come now.
    scene.deployment("later", &wrong);
    let (_, answer) = scene.scale("later", 20, 19).await;
    assert_eq!(answer["response"]["warnings"], Value::Null, "{answer}");
}
