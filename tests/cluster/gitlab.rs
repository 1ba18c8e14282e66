//! An unmodified GitLab Runner behind `claim-proxy gitlab`: a server that is shaped like GitLab, and many long polls at once.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use axum::routing::{any, post};
use control_plane::wait_for;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

use super::room::Bench;
use super::{Cluster, Test, block_on};

pub const TESTS: &[(&str, Test)] = &[
    ("gitlab::jobs_are_asked_for_only_while_there_is_room", only_while_there_is_room),
    ("gitlab::every_other_byte_passes_unchanged", every_other_byte),
];

/// How a job is asked for, from the server's side.
#[derive(Default)]
struct Seen {
    under_way: usize,
    most: usize,
    requests: usize,
    jobs: VecDeque<u64>,
    given: Vec<u64>,
    mood: Mood,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Mood {
    #[default]
    Ordinary,
    Broken,
    CutShort,
}

type Shared = Arc<Mutex<Seen>>;

fn seen(shared: &Shared) -> std::sync::MutexGuard<'_, Seen> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Counts requests that are open, also when they are cut off.
struct Open(Shared);

impl Open {
    fn new(shared: &Shared) -> Self {
        let mut now = seen(shared);
        (now.under_way, now.requests) = (now.under_way + 1, now.requests + 1);
        now.most = now.most.max(now.under_way + now.given.len());
        Self(shared.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        seen(&self.0).under_way -= 1;
    }
}

async fn request(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let _open = Open::new(&shared);
    let answer = |status: StatusCode, body: Body| {
        Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .header("x-gitlab-last-update", "7")
            .body(body)
            .unwrap_or_default()
    };
    if headers.get("private-token").is_none() || !body.starts_with(b"{\"token\"") {
        return answer(StatusCode::FORBIDDEN, Body::empty());
    }
    // A long poll, in short.
    sleep(Duration::from_millis(300)).await;
    let (mood, job) = {
        let mut now = seen(&shared);
        let job = if now.mood == Mood::Ordinary { now.jobs.pop_front() } else { None };
        now.given.extend(job);
        (now.mood, job)
    };
    match (mood, job) {
        (Mood::Broken, _) => answer(StatusCode::INTERNAL_SERVER_ERROR, Body::from("{\"message\":\"500\"}")),
        (Mood::CutShort, _) => {
            let half = futures::stream::iter([Ok(Bytes::from("{\"id\": 1")), Err(std::io::Error::other("cut"))]);
            answer(StatusCode::CREATED, Body::from_stream(half.then(|part| async { (sleep(Duration::from_millis(50)).await, part).1 })))
        }
        (_, Some(id)) => {
            answer(StatusCode::CREATED, Body::from(json!({"id": id, "token": "job-secret", "variables": "x".repeat(100_000)}).to_string()))
        }
        (_, None) => answer(StatusCode::NO_CONTENT, Body::empty()),
    }
}

/// Says what came, byte for byte.
async fn echo(method: Method, uri: Uri, headers: HeaderMap, request: Request<Body>) -> Response<Body> {
    if headers.contains_key("upgrade") {
        return switch(request).await;
    }
    let names: BTreeMap<String, Vec<String>> = headers
        .keys()
        .map(|name| (name.to_string(), headers.get_all(name).iter().map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).collect()))
        .collect();
    let head = json!({"method": method.as_str(), "uri": uri.to_string(), "headers": names}).to_string();
    Response::builder().status(202).header("x-head", head).header("range", "0-99").body(request.into_body()).unwrap_or_default()
}

/// Another protocol: everything comes back in capitals.
async fn switch(mut request: Request<Body>) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut stream = hyper_util::rt::TokioIo::new(upgraded);
        let mut buffer = [0; 64];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..read].to_ascii_uppercase()).await.is_err() {
                return;
            }
        }
    });
    let response = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "websocket");
    response.header("sec-websocket-accept", "as-it-was").body(Body::empty()).unwrap_or_default()
}

async fn gitlab(shared: Shared) -> anyhow::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let router = Router::new().route("/git/api/v4/jobs/request", post(request)).fallback(any(echo)).with_state(shared);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    Ok((address, tokio::spawn(async move { drop(axum::serve(listener, router).await) })))
}

struct Proxy {
    child: Child,
    address: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn proxy(bench: &Bench, upstream: SocketAddr) -> anyhow::Result<Proxy> {
    let [port] = control_plane::free_ports()?;
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    let log = std::fs::File::create(bench.cluster.directory().join(format!("proxy-{port}.log")))?;
    let child = Command::new(env!("CARGO_BIN_EXE_pecking-order"))
        .args([
            "claim-proxy",
            "gitlab",
            "--upstream",
            &format!("http://{upstream}/git"),
            "--pool",
            bench.name,
            "-n",
            bench.name,
            "--wait",
            "1s",
        ])
        .args(["--listen", &address.to_string()])
        .env("KUBECONFIG", bench.cluster.kubeconfig("admin"))
        .env_remove("POD_NAME")
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .spawn()?;
    let proxy = Proxy { child, address };
    let start = Instant::now();
    while TcpStream::connect(address).await.is_err() {
        ensure!(start.elapsed() < Duration::from_secs(20), "the proxy does not listen");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(proxy)
}

/// What a runner does.
async fn ask(client: &reqwest::Client, proxy: SocketAddr) -> anyhow::Result<(u16, Vec<u8>)> {
    let request = client.post(format!("http://{proxy}/api/v4/jobs/request")).header("private-token", "runner-secret");
    let response = request.body("{\"token\":\"runner-secret\"}").send().await?;
    Ok((response.status().as_u16(), response.bytes().await?.to_vec()))
}

fn only_while_there_is_room(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "gitlab", json!({}))?;
    bench.node("a")?;
    bench.node("b")?;
    bench.placeholders(3)?;
    // The fourth place is somebody else's.
    let neighbour = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "neighbour", "namespace": bench.name}, "spec": bench.pod_spec(json!({}))});
    bench.status("three bound", |status| status["bound"] == 3)?;
    cluster.admin.apply(&neighbour.to_string())?;
    let shared = Shared::default();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let (upstream, server) = gitlab(shared.clone()).await?;
        let mut proxy = proxy(&bench, upstream).await?;
        let client = reqwest::Client::new();
        let jobs: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (address, stop) = (proxy.address, Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let polls: Vec<_> = (0..40)
            .map(|_| {
                let (client, jobs, stop) = (client.clone(), jobs.clone(), stop.clone());
                tokio::spawn(async move {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        if let Ok((201, body)) = ask(&client, address).await {
                            jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(serde_json::from_slice::<Value>(&body));
                        }
                        sleep(Duration::from_millis(100)).await;
                    }
                })
            })
            .collect();
        // Nothing in the queue: long polls come and go, never more than three at a time.
        sleep(Duration::from_secs(4)).await;
        let counts = || {
            let now = seen(&shared);
            (now.most, now.requests)
        };
        let (most, requests) = counts();
        ensure!(most <= 3 && requests > 5, "{most} at a time, of {requests}");
        // Five jobs: three are taken, and nobody asks any more until these have their nodes.
        seen(&shared).jobs.extend([101, 102, 103, 104, 105]);
        let taken = |count: usize| {
            let jobs = jobs.clone();
            async move {
                let start = Instant::now();
                loop {
                    let now = jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len();
                    if now >= count || start.elapsed() > Duration::from_secs(20) {
                        return now;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            }
        };
        ensure!(taken(3).await == 3, "three jobs");
        sleep(Duration::from_secs(1)).await;
        let before = counts();
        sleep(Duration::from_secs(2)).await;
        ensure!(counts() == before && before.0 <= 3, "nobody asks while three jobs have no node: {:?}", counts());
        ensure!(taken(3).await == 3, "no fourth");
        let body = jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[0].clone();
        ensure!(body["token"] == "job-secret" && body["variables"].as_str().map(str::len) == Some(100_000), "the job is whole");
        // Their pods come, and take the placeholders' room: there is none left.
        for job in [101, 102, 103] {
            let metadata =
                json!({"name": format!("job-{job}"), "namespace": bench.name, "annotations": {"pecking-order.dev/job": job.to_string()}});
            cluster
                .admin
                .apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": bench.pod_spec(json!({}))}).to_string())?;
        }
        bench.status("no room", |status| status["pending"] == 3 && status["inFlight"] == 0)?;
        let before = counts();
        sleep(Duration::from_secs(2)).await;
        ensure!(counts() == before, "nobody asks while the placeholders wait: {:?}", counts());
        // A node comes.
        seen(&shared).given.clear();
        seen(&shared).most = 0;
        bench.node("c")?;
        ensure!(taken(5).await == 5, "the other two");
        ensure!(counts().0 <= 2, "{} at a time for two that are bound", counts().0);
        for job in [104, 105] {
            let metadata =
                json!({"name": format!("job-{job}"), "namespace": bench.name, "annotations": {"pecking-order.dev/job": job.to_string()}});
            cluster
                .admin
                .apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": bench.pod_spec(json!({}))}).to_string())?;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for poll in polls {
            poll.await?;
        }
        bench.node("d")?;
        bench.status("room again", |status| status["bound"] == 2 && status["free"] == 2)?;
        troubles(&bench, &shared, &client, &mut proxy, server, upstream).await
    })
}

/// F4: whatever goes wrong, the slot is free again.
async fn troubles(
    bench: &Bench,
    shared: &Shared,
    client: &reqwest::Client,
    proxy: &mut Proxy,
    server: tokio::task::JoinHandle<()>,
    upstream: SocketAddr,
) -> anyhow::Result<()> {
    let free = || bench.status("both are free", |status| status["free"] == 2 && status["inFlight"] == 0).map(|_| ());
    seen(shared).mood = Mood::Broken;
    let (status, body) = ask(client, proxy.address).await?;
    ensure!(status == 500 && body == b"{\"message\":\"500\"}", "{status}");
    free()?;
    seen(shared).mood = Mood::CutShort;
    let (status, _) = ask(client, proxy.address).await?;
    ensure!(status == 502, "{status}");
    free()?;
    // The runner hangs up in the middle.
    seen(shared).mood = Mood::Ordinary;
    let hasty = reqwest::Client::builder().timeout(Duration::from_millis(150)).build()?;
    for _ in 0..10 {
        ensure!(ask(&hasty, proxy.address).await.is_err());
    }
    free()?;
    // The proxy dies with a request under way; the next one lets go of what it held.
    let address = proxy.address;
    let dying = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, address).await }
    });
    sleep(Duration::from_millis(250)).await;
    proxy.child.kill()?;
    proxy.child.wait()?;
    ensure!(dying.await?.is_err(), "it was cut off");
    let again = self::proxy(bench, upstream).await?;
    free()?;
    server.abort();
    // Connections that are open go with it a moment later.
    let gone =
        wait_for("the upstream to be gone", Duration::from_secs(10), || std::net::TcpStream::connect(upstream).is_err().then_some(()));
    gone?;
    let (status, body) = ask(&reqwest::Client::new(), again.address).await?;
    ensure!(status == 502 || status == 204, "{status} {}", String::from_utf8_lossy(&body));
    free()
}

fn every_other_byte(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "gitlab-bytes", json!({}))?;
    block_on(async {
        let (upstream, _server) = gitlab(Shared::default()).await?;
        let proxy = proxy(&bench, upstream).await?;
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let large: Vec<u8> = (0..5_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (method, path, body) in [
            (reqwest::Method::PATCH, "/api/v4/jobs/7/trace?debug_trace=false", b"line 1\r\n\x1b[0K".to_vec()),
            (reqwest::Method::POST, "/api/v4/jobs/7/artifacts?artifact_format=zip&expire_in=1%20day", large),
            (reqwest::Method::PUT, "/api/v4/jobs/7", b"{\"state\":\"success\"}".to_vec()),
            (reqwest::Method::GET, "/group/project.git/info/refs?service=git-upload-pack", vec![]),
        ] {
            let request = client.request(method.clone(), format!("http://{}{path}", proxy.address));
            let request =
                request.header("content-range", "0-99").header("job-token", "t0ken").header("accept-encoding", "gzip").body(body.clone());
            let response = request.send().await?;
            let head: Value = serde_json::from_str(response.headers()["x-head"].to_str()?)?;
            ensure!(response.status().as_u16() == 202 && response.headers()["range"] == "0-99", "{path}");
            ensure!(head["method"] == method.as_str() && head["uri"] == format!("/git{path}"), "{head}");
            let headers = &head["headers"];
            ensure!(
                headers["content-range"][0] == "0-99" && headers["job-token"][0] == "t0ken" && headers["accept-encoding"][0] == "gzip",
                "{head}"
            );
            ensure!(headers["host"][0] == upstream.to_string(), "{head}");
            ensure!(response.bytes().await? == body, "{path}: the body");
        }
        // A terminal of a job.
        let mut socket = TcpStream::connect(proxy.address).await?;
        socket
            .write_all(b"GET /session/7 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n")
            .await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await?);
        }
        let head = String::from_utf8(head)?.to_ascii_lowercase();
        ensure!(
            head.starts_with("http/1.1 101") && head.contains("upgrade: websocket") && head.contains("sec-websocket-accept: as-it-was"),
            "{head}"
        );
        for text in ["ls -l\n", "exit\n"] {
            socket.write_all(text.as_bytes()).await?;
            let mut answer = vec![0; text.len()];
            socket.read_exact(&mut answer).await?;
            ensure!(answer == text.to_ascii_uppercase().as_bytes(), "{answer:?}");
        }
        Ok(())
    })
    .context("through the proxy")
}
