//! The Prometheus backend against a real Prometheus: the queries of the presets, credentials, and what goes wrong.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use control_plane::parts::Parts;
use control_plane::{Exporter, Prometheus};
use pecking_order::api::{CostPolicy, DeletionCostPolicy};
use pecking_order::signals::{BackendConfig, Query, QueryError, Shared};
use serde_json::{Value, json};

/// `open sesame`, hashed with bcrypt.
const WEB: &str = "basic_auth_users: {ali: '$2b$04$Lb1ATKvYJKhpms1lZz5qB.cpwGesSdJXvwOd/Ow7.R0kmXQaL5bh.'}";

fn program() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| Parts::ensure().and_then(|parts| parts.program("prometheus")).unwrap())
}

/// A Prometheus with an exporter of its own, gone with the test.
struct Bench {
    exporter: Exporter,
    prometheus: Prometheus,
    directory: tempfile::TempDir,
}

impl Bench {
    fn start(web: &str) -> Self {
        pecking_order::server::install_crypto_provider();
        let (exporter, directory) = (Exporter::start().unwrap(), tempfile::tempdir().unwrap());
        let prometheus = Prometheus::start(program(), directory.path(), &exporter, web).unwrap();
        Self { exporter, prometheus, directory }
    }

    /// `change` replaces fields of the backend's configuration; files are those of the test's directory.
    fn backend(&self, change: Value) -> Arc<Shared> {
        let mut config = json!({ "url": self.prometheus.url, "timeoutSeconds": 2 });
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let config: BackendConfig = serde_json::from_value(json!({ "prometheus": config })).unwrap();
        config.build(self.directory.path(), None).unwrap()
    }
}

/// The values by pod of a query that a policy of the namespace `lake` asks.
async fn ask(backend: &Arc<Shared>, query: &str) -> Result<BTreeMap<String, f64>, QueryError> {
    ask_in(backend, "lake", query).await
}

async fn ask_in(backend: &Arc<Shared>, namespace: &str, query: &str) -> Result<BTreeMap<String, f64>, QueryError> {
    let text = backend.prepare(query, namespace).unwrap();
    let rows = backend.query(&Query { text, namespace: namespace.into(), max_age: Duration::from_secs(5) }).await?;
    Ok(rows.iter().map(|row| (row.label("pod").unwrap_or_default().to_owned(), row.value)).collect())
}

/// Asks until the answer has as many pods as wanted: a scrape takes a second, a rate two.
async fn answer(backend: &Arc<Shared>, query: &str, pods: usize) -> BTreeMap<String, f64> {
    let start = Instant::now();
    loop {
        let found = ask(backend, query).await;
        match found {
            Ok(found) if found.len() == pods => return found,
            other => assert!(start.elapsed() < Duration::from_secs(30), "{query}: {other:?}, wanted {pods} pods"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Asks until the values are these, but for the fifth that a rate over a few scrapes may be off.
async fn becomes(backend: &Arc<Shared>, namespace: &str, query: &str, wanted: &BTreeMap<String, f64>) {
    let start = Instant::now();
    loop {
        let found = ask_in(backend, namespace, query).await.unwrap();
        let tolerance = if query.contains("rate(") { 0.2 } else { 0.0 };
        let fits = |(pod, wanted): (&String, &f64)| found.get(pod).is_some_and(|value| (value - wanted).abs() <= wanted * tolerance);
        if found.len() == wanted.len() && wanted.iter().all(fits) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{namespace} {query}: {found:?}, wanted {wanted:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn policy(spec: Value) -> CostPolicy {
    let mut all = json!({"selector": {"matchLabels": {"app": "trino"}}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "lake"}, "spec": all})).unwrap();
    assert_eq!(policy.spec.problems(), []);
    CostPolicy::compile(&policy)
}

/// All six, under each of the ways in which Trino's metrics are named: a namespace each.
#[tokio::test]
async fn the_queries_of_the_trino_preset_find_each_workers_numbers() {
    let executors = [
        ("jmx", "trino_execution_executor_TaskExecutor_"),
        ("jmx-timesharing", "trino_execution_executor_timesharing_TimeSharingTaskExecutor_"),
        ("own", "trino_execution_executor_timesharing_name_TimeSharingTaskExecutor_"),
        ("lower-case", "trino_execution_executor_taskexecutor_"),
    ];
    let bench = Bench::start("");
    // Each namespace has pods of the same names, which must not count in another.
    for (factor, (namespace, executor)) in executors.into_iter().enumerate() {
        let mut series = Vec::new();
        for (pod, factor) in [("w-0", factor as f64 + 1.0), ("w-1", 10.0)] {
            let labels = format!("namespace=\"{namespace}\",pod=\"{pod}\"");
            let lower = executor == executor.to_lowercase();
            let mut gauge = |metric: &str, value: f64| series.push((format!("{metric}{{{labels}}}"), value * factor, 0.0));
            let mut attribute =
                |name: &str, value| gauge(&format!("{executor}{}", if lower { name.to_lowercase() } else { name.into() }), value);
            attribute("RunningSplits", 40.0);
            attribute("WaitingSplits", 6.0);
            (0..5).for_each(|level| attribute(&format!("RunningTasksLevel{level}"), f64::from(1 << level)));
            gauge("trino_worker_active_output_buffers", 3.0);
            for (container, cores) in [("trino-worker", 0.5), ("sidecar", 9.0), ("", 99.0)] {
                let key = format!("container_cpu_usage_seconds_total{{{labels},container=\"{container}\"}}");
                series.push((key, 1.0, cores * factor));
            }
        }
        bench.exporter.expose(namespace, series);
    }
    let backend = bench.backend(json!({}));
    let policy = policy(json!({"preset": "trino", "parameters": {"cpuWindow": "4s"}}));
    for (factor, (namespace, _)) in executors.into_iter().enumerate() {
        let factor = factor as f64 + 1.0;
        for (signal, (name, wanted)) in policy.signals.iter().zip([
            ("runningSplits", 40.0),
            ("waitingSplits", 6.0),
            // Levels 0 to 2 are 1 + 2 + 4, levels 3 and 4 are 8 + 16.
            ("highPriorityTasks", 7.0),
            ("lowPriorityTasks", 24.0),
            ("cpu", 50.0),
            ("outputBuffers", 3.0),
        ]) {
            assert_eq!(signal.name, name);
            let wanted = BTreeMap::from([("w-0".to_owned(), wanted * factor), ("w-1".to_owned(), wanted * 10.0)]);
            becomes(&backend, namespace, &signal.query, &wanted).await;
        }
    }
}

#[tokio::test]
async fn the_other_presets_find_each_pods_numbers() {
    let bench = Bench::start("");
    let labels = |rest: &str| format!("{{namespace=\"lake\",pod=\"w\"{rest}}}");
    bench.exporter.expose(
        "all",
        [
            (format!("http_server_active_requests{}", labels(",http_route=\"/a\"")), 3.0, 0.0),
            (format!("http_server_active_requests{}", labels(",http_route=\"/b\"")), 4.0, 0.0),
            (format!("container_cpu_usage_seconds_total{}", labels(",container=\"app\"")), 0.0, 0.2),
            (format!("container_cpu_usage_seconds_total{}", labels(",container=\"proxy\"")), 0.0, 0.1),
            (format!("container_cpu_usage_seconds_total{}", labels("")), 0.0, 99.0),
            (format!("jobs_in_progress{}", labels("")), 2.0, 0.0),
            (format!("job_elapsed_seconds{}", labels(",job_id=\"1\"")), 600.0, 0.0),
        ],
    );
    let backend = bench.backend(json!({}));
    let http = policy(json!({"preset": "http", "parameters": {"cpuWindow": "4s"}}));
    assert_eq!(answer(&backend, &http.signals[0].query, 1).await["w"], 7.0);
    becomes(&backend, "lake", &http.signals[1].query, &BTreeMap::from([("w".to_owned(), 30.0)])).await;
    let queue = policy(json!({"preset": "queue"}));
    assert_eq!(answer(&backend, &queue.signals[0].query, 1).await["w"], 2.0);
    assert_eq!(answer(&backend, &queue.signals[1].query, 1).await["w"], 600.0);
}

#[tokio::test]
async fn a_password_opens_it_and_a_wrong_one_is_said_without_it() {
    let bench = Bench::start(WEB);
    bench.exporter.set("lake", [("w-0".to_owned(), 5.0)]);
    let file = bench.directory.path().join("password");
    std::fs::write(&file, "open sesame\n").unwrap();
    let backend = bench.backend(json!({"auth": {"basic": {"username": "ali", "passwordFile": "password"}}}));
    assert_eq!(answer(&backend, "sum by (pod) (work)", 1).await["w-0"], 5.0);
    std::fs::write(&file, "open barley\n").unwrap();
    let error = ask(&backend, "work").await.unwrap_err();
    assert!(error.kind() == "status" && error.to_string().contains("401") && !error.to_string().contains("barley"), "{error}");
    assert!(
        ask(&bench.backend(json!({})), "work").await.unwrap_err().to_string().contains("401"),
        "nothing is sent without being asked to"
    );
    // The Secret is rotated back: the next request uses it.
    std::fs::write(&file, "open sesame").unwrap();
    ask(&backend, "work").await.unwrap();
}

/// What a gateway in front of Prometheus does with a request.
#[derive(Clone, Copy)]
enum Gateway {
    WantsBearer(&'static str),
    IsSlow(Duration),
    Redirects,
    NeverEnds,
}

impl Gateway {
    /// The address of a gateway before the server at `url`.
    fn before(self, url: &str) -> String {
        let (listener, server) = (TcpListener::bind("127.0.0.1:0").unwrap(), url.trim_start_matches("http://").to_owned());
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that has hung up is one of the things that are tried.
                let _ = self.serve(stream, &server);
            }
        });
        address
    }

    fn serve(self, mut client: TcpStream, server: &str) -> std::io::Result<()> {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        // Requests are small, and their bodies come with a length.
        while !is_whole(&request) {
            let read = client.read(&mut buffer)?;
            request.extend_from_slice(&buffer[..read]);
            if read == 0 {
                break;
            }
        }
        let text = String::from_utf8_lossy(&request).to_string();
        match self {
            Self::WantsBearer(token) if !text.contains(&format!("authorization: Bearer {token}\r\n")) => {
                return client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\nConnection: close\r\n\r\nno key");
            }
            Self::Redirects => {
                let answer =
                    format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{server}/api/v1/query\r\nContent-Length: 0\r\n\r\n");
                return client.write_all(answer.as_bytes());
            }
            Self::NeverEnds => {
                client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5368709120\r\n\r\n{\"status\":\"success\",\"data\":\"")?;
                loop {
                    client.write_all(&[b'x'; 1 << 16])?;
                }
            }
            Self::IsSlow(delay) => std::thread::sleep(delay),
            Self::WantsBearer(_) => {}
        }
        let mut upstream = TcpStream::connect(server)?;
        upstream.write_all(text.replacen("HTTP/1.1\r\n", "HTTP/1.1\r\nConnection: close\r\n", 1).as_bytes())?;
        std::io::copy(&mut upstream, &mut client).map(|_| ())
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

#[tokio::test]
async fn a_gateway_may_want_a_token_or_be_slow_or_lead_elsewhere() {
    let bench = Bench::start("");
    bench.exporter.set("lake", [("w-0".to_owned(), 5.0)]);
    std::fs::write(bench.directory.path().join("token"), "abc\n").unwrap();
    let behind = |gateway: Gateway| json!({"url": gateway.before(&bench.prometheus.url), "auth": {"bearer": {"tokenFile": "token"}}});

    let opens = bench.backend(behind(Gateway::WantsBearer("abc")));
    assert_eq!(answer(&opens, "sum by (pod) (work)", 1).await["w-0"], 5.0);
    let refuses = ask(&bench.backend(behind(Gateway::WantsBearer("xyz"))), "work").await.unwrap_err();
    assert!(refuses.to_string().contains("403") && !refuses.to_string().contains("abc"), "{refuses}");

    let late = bench.backend(behind(Gateway::IsSlow(Duration::from_millis(500))));
    assert_eq!(answer(&late, "sum by (pod) (work)", 1).await["w-0"], 5.0);
    let too_late = ask(&bench.backend(behind(Gateway::IsSlow(Duration::from_secs(10)))), "work").await.unwrap_err();
    assert_eq!(too_late.kind(), "timeout", "{too_late}");

    let elsewhere = ask(&bench.backend(behind(Gateway::Redirects)), "work").await.unwrap_err();
    assert_eq!(elsewhere.kind(), "redirect", "{elsewhere}");
    let endless = ask(&bench.backend(behind(Gateway::NeverEnds)), "work").await.unwrap_err();
    assert_eq!(endless.kind(), "too_large", "{endless}");
}

#[tokio::test]
async fn it_answers_again_after_a_restart() {
    let mut bench = Bench::start("");
    bench.exporter.set("lake", [("w-0".to_owned(), 5.0)]);
    let backend = bench.backend(json!({}));
    answer(&backend, "sum by (pod) (work)", 1).await;
    bench.prometheus.kill();
    assert_eq!(ask(&backend, "work").await.unwrap_err().kind(), "unreachable");
    bench.prometheus.start_again().unwrap();
    assert_eq!(answer(&backend, "sum by (pod) (work)", 1).await["w-0"], 5.0);
}

/// DC-45 on the real thing: a target that has vanished is in the look-back for five minutes, but not for us.
#[tokio::test]
async fn dc_45_a_series_that_has_ended_is_not_answered_with() {
    let bench = Bench::start("");
    bench.exporter.set("lake", [("w-0".to_owned(), 5.0), ("w-1".to_owned(), 7.0)]);
    let backend = bench.backend(json!({}));
    answer(&backend, "last_over_time(work[1h])", 2).await;
    // A scrape without the series marks it stale; one that fails altogether does the same.
    bench.exporter.set("lake", [("w-0".to_owned(), 5.0)]);
    assert_eq!(answer(&backend, "work", 1).await["w-0"], 5.0);
    assert_eq!(ask(&backend, "last_over_time(work[1h])").await.unwrap().len(), 2, "a window ignores the mark, as the documentation says");
}
