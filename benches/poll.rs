//! One poll of one policy: six queries to a server of Prometheus' shape, the matching, the scores, the cache. Prints CPU per
//! poll and memory per governed pod. Server and poller are processes of their own, so that neither counts for the other.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control_plane::process::{cpu_ticks, memory_kib, peak_memory_kib};
use k8s_openapi::jiff::Timestamp;
use pecking_order::api::{CostPolicy, DeletionCostPolicy};
use pecking_order::cluster::World;
use pecking_order::cluster::pods::ReplicaSet;
use pecking_order::cost::pod::Phase;
use pecking_order::cost::{GovernedPod, Stored};
use pecking_order::server::metrics::Metrics;
use pecking_order::signals::BackendConfig;
use pecking_order::signals::poller::{Known, Poller};
use serde_json::json;

const SIGNALS: usize = 6;
/// CPU is counted in ticks of 10 ms, so this many polls are one measurement.
const POLLS: u32 = 20;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().position(|argument| argument == "--role") {
        Some(at) if arguments[at + 1] == "server" => serve(arguments[at + 2].parse().unwrap()),
        Some(at) => measure(arguments[at + 2].parse().unwrap(), &arguments[at + 3]),
        None => compare(),
    }
}

fn compare() {
    println!("{:>8}  {:>12}  {:>12}  {:>14}  {:>12}", "pods", "CPU per poll", "per sample", "wall per poll", "RSS per pod");
    for pods in [1_000, 10_000, 100_000] {
        let (mut server, url) = start(&["server", &pods.to_string()]);
        let (mut measuring, line) = start(&["poller", &pods.to_string(), &url]);
        println!("{line}");
        let _ = measuring.wait();
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// Starts this program in a role, and gives back the first line that it prints.
fn start(role: &[&str]) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("--role").args(role).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

fn name(index: usize) -> String {
    format!("web-7d9c5b8f4c-{index:05}")
}

/// Answers every query with a row for each pod.
fn serve(pods: usize) {
    let mut body = String::from(r#"{"status":"success","data":{"resultType":"vector","result":["#);
    let now = Timestamp::now().as_second();
    for index in 0..pods {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(body, r#"{comma}{{"metric":{{"namespace":"shop","pod":"{}"}},"value":[{now}.123,"{}"]}}"#, name(index), index % 97);
    }
    body.push_str("]}}");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer: Arc<[u8]> = [head.as_bytes(), body.as_bytes()].concat().into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    for stream in listener.incoming().flatten() {
        let answer = answer.clone();
        std::thread::spawn(move || {
            let _ = answer_all(stream, &answer);
        });
    }
}

/// A request comes in one or two pieces, and ends with the query's parameters.
fn answer_all(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let (mut buffer, mut text) = ([0; 8192], String::new());
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if text.contains("lookback_delta=") {
            text.clear();
            stream.write_all(answer)?;
        }
    }
}

fn pod(index: usize) -> GovernedPod {
    GovernedPod {
        namespace: "shop".into(),
        name: name(index),
        uid: format!("{index:08x}-1234-4abc-9def-0123456789ab").into(),
        version: 123_456_789,
        owner: format!("{:08x}-1234-4abc-9def-0123456789ab", index / 50).into(),
        node: Some(format!("ip-10-0-{}-{}.internal", index / 250, index % 250)),
        ips: vec![std::net::IpAddr::from([10, 1, (index / 250) as u8, (index % 250) as u8])],
        phase: Phase::Running,
        ready_since: Some(Timestamp::UNIX_EPOCH),
        restarts: (0, 0),
        created: Timestamp::UNIX_EPOCH,
        terminating: false,
        grace_seconds: 30,
        stored: Stored::Ours(500),
    }
}

fn measure(pods: usize, url: &str) {
    pecking_order::server::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let signals: Vec<_> = (0..SIGNALS)
        .map(|i| json!({"name": format!("s{i}"), "query": format!("sum by (pod) (m{i})"), "weight": 1.5, "cap": 300}))
        .collect();
    let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "signals": signals}}))
    .unwrap();
    let policy = Arc::new(CostPolicy::compile(&policy));
    let config = json!({"prometheus": {"url": url, "timeoutSeconds": 60, "maxResponseBytes": 1 << 28}});
    let backend = serde_json::from_value::<BackendConfig>(config).unwrap().build(Path::new("."), None).unwrap();
    let world = Arc::new(World::default());
    world.update_policies(|policies| policies.with_policy(policy.clone()));
    let id = std::process::id();
    let poller = Poller::new(policy.clone(), backend, world.clone(), Arc::new(Metrics::default()), Known::default());
    // Whatever the first poll allocates for good is not a pod's.
    runtime.block_on(poller.poll());
    let before = memory_kib(id).unwrap();
    for index in (0..pods).step_by(50) {
        let uid = pod(index).owner.to_string();
        world.pods.apply_replica_set(ReplicaSet { namespace: "shop".into(), uid, parent: None });
    }
    (0..pods).for_each(|index| world.pods.apply(policy.key(), pod(index)));
    for _ in 0..3 {
        runtime.block_on(poller.poll());
    }
    let (ticks, started) = (cpu_ticks(id).unwrap(), Instant::now());
    for _ in 0..POLLS {
        runtime.block_on(poller.poll());
    }
    let wall = started.elapsed() / POLLS;
    let cpu = Duration::from_millis((cpu_ticks(id).unwrap() - ticks) * 10) / POLLS;
    assert_eq!(world.costs.get(&pod(7).uid).unwrap().value, 60, "6 signals of 7 units with 1.5 points each, in steps of 10");
    std::thread::sleep(Duration::from_millis(500));
    let after = memory_kib(id).unwrap();
    let per_pod = (after.saturating_sub(before)) as f64 * 1024.0 / pods as f64;
    let per_sample = cpu.as_nanos() / (pods * SIGNALS) as u128;
    println!(
        "{pods:>8}  {:>9.1} ms  {per_sample:>9} ns  {:>11.1} ms  {per_pod:>10.0} B   (peak {} MiB)",
        cpu.as_secs_f64() * 1e3,
        wall.as_secs_f64() * 1e3,
        peak_memory_kib(id).unwrap() / 1024
    );
}
