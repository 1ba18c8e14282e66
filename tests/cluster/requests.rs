//! Quantities as the API server reads them, and effective requests as the scheduler reserves them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use pecking_order::headroom::effective;
use pecking_order::headroom::quantity::Quantity;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Cluster, Test, block_on};

pub const TESTS: &[(&str, Test)] = &[
    ("requests::c3_quantities_are_read_as_the_api_server_reads_them", c3_quantities),
    ("requests::c8_effective_requests_are_those_of_the_scheduler", c8_effective_requests),
];

/// A stream of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What the API server makes of a limit of memory: its own writing of it, or nothing where it refuses it.
async fn as_stored(client: &Client, namespace: &str, text: &str) -> anyhow::Result<Option<String>> {
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {"memory": text}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}, "spec": {"containers": [container]}});
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let request = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods")).create(&params, serde_json::to_vec(&pod)?)?;
    let (parts, body) = client.send(request.map(Body::from)).await?.into_parts();
    let body: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
    match parts.status.as_u16() {
        200 | 201 => Ok(Some(body["spec"]["containers"][0]["resources"]["limits"]["memory"].as_str().context("a text")?.to_owned())),
        400 | 422 => Ok(None),
        code => anyhow::bail!("{text}: {code} {body}"),
    }
}

fn c3_quantities(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "quantities";
    cluster.make_namespace(namespace)?;
    let mut texts: Vec<String> = [
        "0",
        "1",
        "+1",
        "5.",
        ".5",
        "0.5",
        "100m",
        "750m",
        "1n",
        "0.1n",
        "1u",
        "1k",
        "1M",
        "1G",
        "1T",
        "1P",
        "1E",
        "1E3",
        "1e3",
        "1e-3",
        "1E+3",
        "1Ki",
        "1.5Gi",
        "1Ei",
        "12345678n",
        "9007199254740993",
        "007",
        "",
        "K",
        "1K",
        "1g",
        "1mi",
        "1GB",
        "1GiB",
        "4 Gi",
        " 1",
        "1 ",
        "Mi",
        "+-1",
        "1..2",
        "1.2.3",
        ".",
        "1e",
        "1e1.5",
        "1ee3",
        "NaN",
        "inf",
        "0x1",
        "1_000",
        "1,5",
        "1kk",
        "1Mib",
        "1ki",
        "1mM",
        "m",
        "Ki",
        "e3",
        "E",
        "k",
        "+",
        "-",
        "+Mi",
        ".Mi",
        "+.",
        ".e3",
        "1.e3",
        "n",
    ]
    .map(str::to_owned)
    .into();
    let mut numbers = Numbers(7);
    for _ in 0..150 {
        let sign = numbers.one_of(&["", "", "", "+"]);
        let whole = numbers.below(1_000_000);
        let fraction = if numbers.below(3) == 0 { format!(".{}", numbers.below(100_000)) } else { String::new() };
        let suffix =
            numbers.one_of(&["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e3", "E2", "e-2", "K", "mi", "B", "i", "e"]);
        texts.push(format!("{sign}{whole}{fraction}{suffix}"));
    }
    block_on(async {
        let client = cluster.client().await?;
        let (mut accepted, mut refused, mut differing) = (0, 0, Vec::new());
        for text in &texts {
            let (ours, theirs) = (Quantity::parse(text), as_stored(&client, namespace, text).await?);
            match (&ours, &theirs) {
                (Ok(ours), Some(written)) => {
                    let stored = Quantity::parse(written).map_err(anyhow::Error::msg)?;
                    // On pods everything is rounded up to thousandths (`SetDefaults_ResourceList`).
                    let thousandths = |amount: i128| (amount + 999_999).div_euclid(1_000_000);
                    ensure!(
                        thousandths(ours.nanos) == thousandths(stored.nanos),
                        "{text}: {} billionths, and the API server stores {written}",
                        ours.nanos
                    );
                    accepted += 1;
                }
                (Err(_), None) => refused += 1,
                _ => differing.push(format!("`{text}`: we say {ours:?}, the API server {theirs:?}")),
            }
        }
        ensure!(differing.is_empty(), "{}", differing.join("\n"));
        ensure!(accepted > 60 && refused > 40, "{accepted} accepted, {refused} refused: too few of one kind");
        println!("{accepted} quantities read alike, {refused} refused alike");
        Ok(())
    })
}

const CASES: u64 = 10;
/// CPUs of a node, in thousandths (`stages/node.yaml`).
const NODE: i128 = 64_000;

/// A pod with init containers, sidecars, requests of its own and limits without requests, at random.
fn random_pod(numbers: &mut Numbers) -> Value {
    let mut container = |name: String, may_be_sidecar: bool| {
        let amount = format!("{}m", 1 + numbers.below(3000));
        let by = if numbers.below(4) == 0 { "limits" } else { "requests" };
        let mut container = json!({"name": name, "image": "i", "resources": {by: {"cpu": amount}}});
        if may_be_sidecar && numbers.below(2) == 0 {
            container["restartPolicy"] = json!("Always");
        }
        (container, numbers.below(3))
    };
    let (mut inits, mut mains) = (Vec::new(), Vec::new());
    for n in 0..3 {
        let (init, dice) = container(format!("init-{n}"), true);
        if dice > 0 {
            inits.push(init);
        }
        let (main, dice) = container(format!("main-{n}"), false);
        if dice > 0 || n == 0 {
            mains.push(main);
        }
    }
    let mut spec = json!({"initContainers": inits, "containers": mains});
    if numbers.below(4) == 0 {
        // Of the pod as a whole, and more than its containers have together.
        spec["resources"] = json!({"requests": {"cpu": format!("{}m", 30_000 + numbers.below(1000))}});
    }
    spec
}

fn on(node: &str, name: &str, mut spec: Value) -> Value {
    spec["nodeSelector"] = json!({"fit": node});
    spec["tolerations"] = json!([{"key": "fit", "operator": "Exists"}]);
    spec["terminationGracePeriodSeconds"] = json!(0);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Beside a pod that takes all but what the random one requests it fits exactly; beside one of a thousandth more it does not.
fn c8_effective_requests(cluster: &'static Cluster) -> anyhow::Result<()> {
    let namespace = "effective";
    cluster.make_namespace(namespace)?;
    let mut numbers = Numbers(42);
    let cases: Vec<(u64, Value, i128)> = (0..CASES)
        .map(|n| {
            let spec = random_pod(&mut numbers);
            let request = effective::request(&serde_json::from_value(spec.clone())?);
            let cpu: BTreeMap<String, Quantity> = request;
            anyhow::Ok((n, spec, cpu.get("cpu").context("some cpu")?.nanos / 1_000_000))
        })
        .collect::<anyhow::Result<_>>()?;
    block_on(async {
        let client = cluster.client().await?;
        let (nodes, pods): (Api<Node>, Api<Pod>) = (Api::all(client.clone()), Api::namespaced(client, namespace));
        let one = |n: u64, spec: Value, cpu: i128, too_much: i128| {
            let (nodes, pods) = (nodes.clone(), pods.clone());
            async move {
                let name = format!("fit-{n}-{too_much}");
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"fit": name}},
                    "spec": {"taints": [{"key": "fit", "effect": "NoSchedule"}]}});
                nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
                let rest = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": format!("{}m", NODE - cpu + too_much)}}}]});
                let make = async |pod: Value| {
                    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await.map_err(anyhow::Error::from)
                };
                make(on(&name, &format!("{name}-rest"), rest)).await?;
                // The node may not be ready at once.
                let start = Instant::now();
                while !scheduled(&pods, &format!("{name}-rest")).await? {
                    ensure!(start.elapsed() < Duration::from_secs(60), "{name} does not take its first pod");
                    sleep(Duration::from_millis(200)).await;
                }
                make(on(&name, &format!("{name}-pod"), spec)).await?;
                let fits = scheduled(&pods, &format!("{name}-pod")).await?;
                ensure!(fits == (too_much == 0), "pod {n} of {cpu}m beside {}m of {NODE}m: fits {fits}", NODE - cpu + too_much);
                anyhow::Ok(())
            }
        };
        let all = cases.iter().flat_map(|(n, spec, cpu)| [0, 1].map(|too_much| one(*n, spec.clone(), *cpu, too_much)));
        try_join_all(all).await?;
        println!("{CASES} random pods fit exactly where they should");
        Ok(())
    })
}

/// Whether the scheduler finds a node for a pod, as soon as it has said so.
async fn scheduled(pods: &Api<Pod>, name: &str) -> anyhow::Result<bool> {
    let start = Instant::now();
    loop {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let said = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled").map(|c| c.status.clone());
        match said.as_deref() {
            Some("True") => return Ok(true),
            Some("False") => return Ok(false),
            _ => ensure!(start.elapsed() < Duration::from_secs(60), "the scheduler says nothing of {name}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}
