//! Room that is given away, on the real scheduler: claims, gates, drain.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use control_plane::wait_for;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::headroom::class;
use super::{Cluster, Test};

pub const TESTS: &[(&str, Test)] = &[
    ("room::f1_five_jobs_and_two_of_three_placeholders_bound", f1_two_of_five),
    ("room::two_runners_race_for_the_last_slot_a_hundred_times", a_race),
    ("room::pods_wait_for_room_and_only_our_gate_is_taken_away", gates),
    ("room::deny_refuses_with_a_hint_and_what_can_never_preempt_is_refused", deny),
    ("room::f12_a_pod_waits_no_longer_than_its_pool_says", max_wait),
    ("room::f14_placeholders_go_and_come_with_their_runners", drain),
    ("room::a_command_runs_while_it_holds_a_claim", command),
    ("room::what_can_never_be_served_is_refused_or_says_why", bad_input),
    ("room::f7_a_quota_is_the_reason", quota),
    ("room::f10_only_a_node_that_will_last_is_room", nodes),
];

/// As many of these fit onto a node as kwok makes it.
const TWO_TO_A_NODE: &str = "30";

/// A pool of its own, with nodes of its own that nobody else's pods get onto, and a namespace of the same name.
pub struct Bench {
    pub cluster: &'static Cluster,
    pub name: &'static str,
}

impl Bench {
    pub fn new(cluster: &'static Cluster, name: &'static str, spec: Value) -> anyhow::Result<Self> {
        cluster.make_namespace(name)?;
        let bench = Self { cluster, name };
        cluster.admin.apply(&class(&format!("{name}-class"), -10).to_string())?;
        bench.pool(spec)?;
        Ok(bench)
    }

    /// Makes or changes the pool, and waits until it is in force.
    pub fn pool(&self, change: Value) -> anyhow::Result<()> {
        let name = self.name;
        let mut spec = json!({"placeholders": {"selector": {"matchLabels": {"app": format!("{name}-room")}}}});
        json_patch::merge(&mut spec, &change);
        let pool = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": name}, "spec": spec});
        self.cluster.admin.apply(&pool.to_string())?;
        let generation = self.cluster.admin.get(&["hp", name])?["metadata"]["generation"].clone();
        wait_for("the pool to be in force", Duration::from_secs(30), || {
            let pool = self.cluster.admin.get(&["hp", name]).ok()?;
            let conditions = pool["status"]["conditions"].as_array()?;
            conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True" && c["observedGeneration"] == generation).then_some(())
        })?;
        // The status is one replica's word; the other one's watch is as fast.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    pub fn node(&self, node: &str) -> anyhow::Result<()> {
        let name = format!("{}-{node}", self.name);
        let spec = json!({"taints": [{"key": "pool", "value": self.name, "effect": "NoSchedule"}]});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": self.name}}, "spec": spec});
        self.cluster.admin.apply(&node.to_string()).map(|_| ())
    }

    /// A pod spec that runs on this pool's nodes only.
    pub fn pod_spec(&self, change: Value) -> Value {
        let mut spec = json!({"nodeSelector": {"pool": self.name}, "terminationGracePeriodSeconds": 0,
            "tolerations": [{"key": "pool", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": {"cpu": TWO_TO_A_NODE}}}]});
        json_patch::merge(&mut spec, &change);
        spec
    }

    pub fn placeholders(&self, replicas: u32) -> anyhow::Result<()> {
        let labels = json!({"app": format!("{}-room", self.name)});
        let spec = self.pod_spec(json!({"priorityClassName": format!("{}-class", self.name)}));
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "room", "namespace": self.name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}});
        self.cluster.admin.apply(&deployment.to_string()).map(|_| ())
    }

    /// Waits until the pool's status says so.
    pub fn status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let look = || self.cluster.admin.get(&["hp", self.name]).ok().map(|pool| pool["status"].clone());
        wait_for(what, Duration::from_secs(30), || look().filter(|status| wanted(status)))
            .with_context(|| format!("the status is {}", look().unwrap_or_default()))
    }

    pub fn claim(&self, name: &str) -> anyhow::Result<()> {
        let claim = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomClaim",
            "metadata": {"name": name, "namespace": self.name}, "spec": {"pool": self.name, "ttlSeconds": 600}});
        self.cluster.admin.apply(&claim.to_string()).map(|_| ())
    }

    /// Status and reason of the conditions `Bound` and `Released` of each claim, by name.
    pub fn claims(&self) -> anyhow::Result<Vec<(String, String, String)>> {
        let text = |claim: &Value, type_: &str| {
            let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|c| c["type"] == type_);
            found
                .map(|c| format!("{} {}", c["status"].as_str().unwrap_or_default(), c["reason"].as_str().unwrap_or_default()))
                .unwrap_or_default()
        };
        let claims = self.cluster.admin.list(&["hc", "-n", self.name])?;
        let row = |claim: &Value| {
            (claim["metadata"]["name"].as_str().unwrap_or_default().to_owned(), text(claim, "Bound"), text(claim, "Released"))
        };
        Ok(claims.iter().map(row).collect())
    }

    pub fn bound(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.claims()?.into_iter().filter(|(_, bound, _)| bound == "True Bound").map(|(name, ..)| name).collect())
    }

    pub fn wait_for_bound(&self, count: usize) -> anyhow::Result<Vec<String>> {
        wait_for("claims to be bound", Duration::from_secs(20), || self.bound().ok().filter(|bound| bound.len() == count))
            .with_context(|| format!("{:?}", self.claims()))
    }

    fn pod(&self, name: &str, metadata: Value, change: Value) -> Value {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.name}, "spec": self.pod_spec(change)});
        json_patch::merge(&mut pod["metadata"], &metadata);
        pod
    }

    fn has_node(&self, pod: &str) -> bool {
        self.cluster.admin.get(&["pod", pod, "-n", self.name]).is_ok_and(|pod| pod["spec"]["nodeName"].is_string())
    }

    fn wait_for_node(&self, pod: &str) -> anyhow::Result<()> {
        wait_for("a pod to have a node", Duration::from_secs(20), || self.has_node(pod).then_some(())).with_context(|| pod.to_owned())
    }
}

/// F1, as the first report of it: three placeholders wanted, two bound, five jobs.
fn f1_two_of_five(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "room-f1", json!({}))?;
    bench.node("a")?;
    bench.placeholders(3)?;
    bench.status("two of three bound", |status| status["bound"] == 2 && status["pending"] == 1 && status["desired"] == 3)?;
    for index in 0..5 {
        bench.claim(&format!("job-{index}"))?;
    }
    let taken = bench.wait_for_bound(2)?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(bench.bound()? == taken, "exactly two: {:?}", bench.claims()?);
    let refused = bench.claims()?.iter().filter(|(_, bound, _)| bound == "False NoRoom").count();
    ensure!(refused == 3, "{:?}", bench.claims()?);
    for claim in &taken {
        let annotations = json!({"annotations": {"pecking-order.dev/claim": claim}});
        cluster.admin.apply(&bench.pod(claim, annotations, json!({})).to_string())?;
    }
    for claim in &taken {
        bench.wait_for_node(claim)?;
    }
    let placed = || bench.claims().ok().map(|claims| claims.iter().filter(|(.., released)| released == "True PodPlaced").count());
    wait_for("both claims to end with their pods", Duration::from_secs(20), || placed().filter(|count| *count == 2))?;
    bench.status("no room", |status| status["bound"] == 0 && status["free"] == 0 && status["inFlight"] == 0 && status["pending"] == 3)?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(bench.bound()?.is_empty(), "no more while the placeholders wait: {:?}", bench.claims()?);
    bench.node("b")?;
    bench.status("two are bound again, and claimed", |status| status["bound"] == 2 && status["inFlight"] == 2 && status["free"] == 0)?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(bench.bound()?.len() == 2, "one more for each placeholder that is bound: {:?}", bench.claims()?);
    let served = cluster.metric(r#"pecking_order_headroom_claims_total{pool="room-f1",outcome="PodPlaced"}"#)?;
    ensure!(served == 2.0, "{served} are counted");
    Ok(())
}

fn a_race(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "room-race", json!({}))?;
    bench.node("a")?;
    bench.placeholders(1)?;
    bench.status("one bound", |status| status["free"] == 1)?;
    super::block_on(async {
        use kube::api::{DeleteParams, ListParams, PostParams};
        use pecking_order::api::HeadroomClaim;
        let api: kube::Api<HeadroomClaim> = kube::Api::namespaced(cluster.client().await?, bench.name);
        let claim = |name: String| {
            let claim = json!({"metadata": {"name": name}, "spec": {"pool": bench.name}});
            serde_json::from_value::<HeadroomClaim>(claim)
        };
        for round in 0..100 {
            let (a, b) = (claim(format!("a-{round}"))?, claim(format!("b-{round}"))?);
            let params = PostParams::default();
            futures::try_join!(api.create(&params, &a), api.create(&params, &b))?;
            let start = Instant::now();
            loop {
                let claims = api.list(&ListParams::default()).await?.items;
                let mut conditions: Vec<String> = claims
                    .iter()
                    .flat_map(|c| c.status.iter().flat_map(|s| &s.conditions))
                    .map(|c| format!("{} {}", c.status, c.reason))
                    .collect();
                conditions.sort();
                ensure!(conditions.iter().filter(|c| *c == "True Bound").count() <= 1, "both won in round {round}");
                if conditions == ["False NoRoom", "True Bound"] {
                    break;
                }
                ensure!(start.elapsed() < Duration::from_secs(10), "round {round}: {conditions:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        }
        Ok(())
    })
}

fn gates(cluster: &'static Cluster) -> anyhow::Result<()> {
    let gate = json!({"gate": {"maxWaitSeconds": 3600, "pods": {"selector": {"matchLabels": {"wait": "room-gates"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "room-gates"}}}}});
    let bench = Bench::new(cluster, "room-gates", gate)?;
    bench.node("a")?;
    bench.placeholders(2)?;
    bench.status("two bound", |status| status["free"] == 2)?;
    let waiting = json!({"labels": {"wait": "room-gates"}});
    let blocked = json!({"schedulingGates": [{"name": "example.com/quota"}]});
    cluster.admin.apply(&bench.pod("blocked", waiting.clone(), blocked).to_string())?;
    let gates_of = |pod: &str| -> anyhow::Result<Vec<String>> {
        let pod = cluster.admin.get(&["pod", pod, "-n", bench.name])?;
        let gates = pod["spec"]["schedulingGates"].as_array().cloned().unwrap_or_default();
        Ok(gates.iter().filter_map(|gate| gate["name"].as_str().map(str::to_owned)).collect())
    };
    ensure!(gates_of("blocked")? == ["example.com/quota", "pecking-order.dev/room"], "{:?}", gates_of("blocked")?);
    for index in 0..4 {
        cluster.admin.apply(&bench.pod(&format!("job-{index}"), waiting.clone(), json!({})).to_string())?;
        // Creation times are whole seconds, and the oldest goes first.
        std::thread::sleep(Duration::from_millis(1100));
    }
    bench.wait_for_node("job-0")?;
    bench.wait_for_node("job-1")?;
    bench.status("no room", |status| status["free"] == 0 && status["bound"] == 0)?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(gates_of("job-2")? == ["pecking-order.dev/room"] && gates_of("job-3")? == ["pecking-order.dev/room"], "they wait");
    ensure!(gates_of("blocked")?.len() == 2, "it takes no room, and keeps both");
    bench.node("b")?;
    bench.wait_for_node("job-2")?;
    bench.wait_for_node("job-3")?;

    // The pool does not gate any more: nobody waits for ever.
    cluster.admin.run(&["delete", "pod", "-n", bench.name, "blocked", "--wait=true"])?;
    cluster.admin.apply(&bench.pod("left", waiting, json!({})).to_string())?;
    ensure!(gates_of("left")? == ["pecking-order.dev/room"]);
    cluster.admin.run(&["patch", "hp", bench.name, "--type=merge", "-p", r#"{"spec":{"gate":null}}"#])?;
    wait_for("the pod to be let go", Duration::from_secs(20), || gates_of("left").ok().filter(Vec::is_empty)).map(|_| ())
}

fn deny(cluster: &'static Cluster) -> anyhow::Result<()> {
    let gate = json!({"gate": {"onNoRoom": "Deny", "pods": {"selector": {"matchLabels": {"wait": "room-deny"}}}}});
    let bench = Bench::new(cluster, "room-deny", gate)?;
    bench.placeholders(1)?;
    bench.status("one pending", |status| status["pending"] == 1 && status["free"] == 0)?;
    std::thread::sleep(Duration::from_secs(1));
    let waiting = json!({"labels": {"wait": "room-deny"}});
    // kubectl would try again for as long as it is told to.
    let raw = |pod: &Value| {
        let path = format!("/api/v1/namespaces/{}/pods", bench.name);
        cluster.admin.try_run(&["create", "--raw", &path, "-f", "-"], &pod.to_string())
    };
    let refused = std::thread::scope(|scope| {
        let call = scope.spawn(|| raw(&bench.pod("job", waiting.clone(), json!({}))));
        call.join().map_err(|_| anyhow::anyhow!("panicked"))
    })??;
    ensure!(!refused.success && refused.stderr.contains("no free placeholder now"), "{}", refused.stderr);
    let never = class_that_never_preempts(cluster)?;
    let refused = cluster.admin.try_apply(&bench.pod("polite", waiting.clone(), json!({"priorityClassName": never})).to_string())?;
    ensure!(!refused.success && refused.stderr.contains("its preemptionPolicy is Never"), "f9: {}", refused.stderr);
    bench.node("a")?;
    bench.status("one free", |status| status["free"] == 1)?;
    std::thread::sleep(Duration::from_secs(1));
    cluster.admin.apply(&bench.pod("job", waiting, json!({})).to_string())?;
    bench.wait_for_node("job")
}

/// F12: without any room, pods go one a second, or fail, as the pool says, and an Event says why.
fn max_wait(cluster: &'static Cluster) -> anyhow::Result<()> {
    let gate = |on_max_wait: &str| {
        let pods = json!({"selector": {"matchLabels": {"wait": "room-wait"}}});
        json!({"gate": {"maxWaitSeconds": 3, "onMaxWait": on_max_wait, "pods": pods}})
    };
    let bench = Bench::new(cluster, "room-wait", gate("Release"))?;
    bench.node("a")?;
    let waiting = json!({"labels": {"wait": "room-wait"}});
    for index in 0..4 {
        cluster.admin.apply(
            &bench.pod(&format!("job-{index}"), waiting.clone(), json!({"containers": [{"name": "main", "image": "app"}]})).to_string(),
        )?;
    }
    let placed = || (0..4).filter(|index| bench.has_node(&format!("job-{index}"))).count();
    wait_for("all to go", Duration::from_secs(30), || (placed() == 4).then_some(()))?;
    // By the scheduler's own word, in whole seconds.
    let mut times = Vec::new();
    for pod in cluster.admin.list(&["pods", "-n", bench.name])? {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let scheduled =
            conditions.into_iter().find(|c| c["type"] == "PodScheduled" && c["status"] == "True").context("it was scheduled")?;
        times.push(scheduled["lastTransitionTime"].as_str().context("a time")?.parse::<Timestamp>()?.as_second());
    }
    times.sort_unstable();
    ensure!(times[3] - times[0] >= 2, "one a second, not all at once: {times:?}");
    let said = || cluster.admin.run(&["events", "-n", bench.name]).ok().filter(|events| events.contains("HeadroomWaitEnded")).map(drop);
    wait_for("an Event", Duration::from_secs(20), said)?;

    bench.pool(gate("Fail"))?;
    cluster.admin.apply(&bench.pod("late", waiting, json!({})).to_string())?;
    let failed = || {
        let status = cluster.admin.get(&["pod", "late", "-n", bench.name]).ok()?["status"].clone();
        (status["phase"] == "Failed" && status["reason"] == "HeadroomWaitEnded").then_some(())
    };
    wait_for("the pod to fail", Duration::from_secs(20), failed)
}

fn class_that_never_preempts(cluster: &Cluster) -> anyhow::Result<&'static str> {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "room-polite"}, "value": 100,
        "preemptionPolicy": "Never"});
    cluster.admin.apply(&class.to_string())?;
    Ok("room-polite")
}

fn drain(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(
        cluster,
        "room-drain",
        json!({"drainWith": {"namespace": "room-drain", "selector": {"matchLabels": {"app": "runner"}}}}),
    )?;
    bench.node("a")?;
    bench.placeholders(2)?;
    let runner = |replicas: u32| {
        let labels = json!({"app": "runner"});
        let spec = bench.pod_spec(json!({"terminationGracePeriodSeconds": 20, "containers": [{"name": "runner", "image": "runner"}]}));
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "runner", "namespace": bench.name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
    };
    cluster.admin.apply(&runner(2).to_string())?;
    bench.status("two bound", |status| status["bound"] == 2)?;
    let running = || {
        let pods = cluster.admin.list(&["pods", "-n", bench.name, "-l", "app=runner"]).ok()?;
        (pods.iter().filter(|pod| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()).count() == 2)
            .then_some(())
    };
    wait_for("two runners", Duration::from_secs(30), running)?;
    let replicas = || cluster.admin.get(&["deployment", "room", "-n", bench.name]).map(|room| room["spec"]["replicas"].clone());
    std::thread::sleep(Duration::from_secs(6));
    ensure!(replicas()? == 2, "nothing stops");
    let took = std::thread::scope(|scope| {
        // A runner takes its time: what it runs is not ended.
        scope.spawn(|| cluster.admin.apply(&runner(0).to_string()));
        wait_for("the first deletionTimestamp", Duration::from_secs(20), || {
            let pods = cluster.admin.list(&["pods", "-n", bench.name, "-l", "app=runner"]).ok()?;
            pods.iter().any(|pod| pod["metadata"]["deletionTimestamp"].is_string()).then_some(())
        })?;
        let start = Instant::now();
        wait_for("the placeholders to go", Duration::from_secs(20), || (replicas().ok()? == 0).then_some(()))?;
        anyhow::Ok(start.elapsed())
    })?;
    eprintln!("placeholders at zero {:.2} s after the first deletionTimestamp was seen", took.as_secs_f64());
    let stopping = cluster.admin.list(&["pods", "-n", bench.name, "-l", "app=runner"])?;
    ensure!(!stopping.is_empty(), "the runners are still at work");
    bench.status("what was drained is noted", |status| status["drained"][0]["replicas"] == 2)?;
    cluster.admin.apply(&runner(2).to_string())?;
    wait_for("the placeholders to come back", Duration::from_secs(40), || (replicas().ok()? == 2).then_some(()))?;
    bench.status("nothing is noted any more", |status| status["drained"].is_null() && status["bound"] == 2)?;
    Ok(())
}

/// Runs `pecking-order claim`.
fn claim_command(bench: &Bench, arguments: &[&str], command: &[&str]) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_pecking-order"));
    run.args(["claim", bench.name, "-n", bench.name]).args(arguments).arg("--").args(command);
    run.env("KUBECONFIG", bench.cluster.kubeconfig("admin")).env_remove("POD_NAME").stdout(Stdio::piped()).stderr(Stdio::piped());
    run
}

fn command(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "room-command", json!({}))?;
    bench.node("a")?;
    bench.placeholders(1)?;
    bench.status("one free", |status| status["free"] == 1)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("annotations");
    let file = file.to_str().context("a path")?;
    let output = claim_command(&bench, &["--pod-annotation-file", file], &["sh", "-c", "echo $PECKING_ORDER_CLAIM; exit 7"]).output()?;
    let name = String::from_utf8(output.stdout)?.trim().to_owned();
    ensure!(output.status.code() == Some(7) && name.starts_with("room-command-"), "{:?} {name}", output.status);
    ensure!(serde_json::from_str::<Value>(&std::fs::read_to_string(file)?)?["pecking-order.dev/claim"] == name.as_str());
    ensure!(bench.claims()?.is_empty(), "it was let go: {:?}", bench.claims()?);

    // One holds it; another finds no room.
    let first = claim_command(&bench, &["--ttl", "6s"], &["sleep", "60"]).spawn()?;
    let held = bench.wait_for_bound(1)?;
    let second = claim_command(&bench, &["--wait", "2s"], &["true"]).output()?;
    let why = String::from_utf8(second.stderr)?;
    ensure!(second.status.code() == Some(75) && why.contains("NoRoom"), "{:?} {why}", second.status);
    // It is renewed: it would have ended by now.
    std::thread::sleep(Duration::from_secs(7));
    ensure!(bench.bound()? == held, "{:?}", bench.claims()?);
    signal(&first, rustix::process::Signal::TERM)?;
    let ended = first.wait_with_output()?;
    ensure!(ended.status.code() == Some(143), "{:?}", ended.status);
    ensure!(bench.claims()?.is_empty(), "{:?}", bench.claims()?);

    // Killed: nobody lets go, and it ends by itself.
    let third = claim_command(&bench, &["--ttl", "5s"], &["sleep", "2"]).spawn()?;
    bench.wait_for_bound(1)?;
    signal(&third, rustix::process::Signal::KILL)?;
    drop(third.wait_with_output()?);
    let expired = || bench.claims().ok()?.iter().any(|(.., released)| released == "True Expired").then_some(());
    wait_for("the claim to end by itself", Duration::from_secs(15), expired)?;
    bench.status("its slot is free", |status| status["free"] == 1)?;

    let refused = Command::new(env!("CARGO_BIN_EXE_pecking-order"))
        .args(["claim", "room-comand", "-n", bench.name, "--", "true"])
        .env("KUBECONFIG", cluster.kubeconfig("admin"))
        .output()?;
    let why = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(1) && why.contains("did you mean `room-command`"), "{:?} {why}", refused.status);
    let forbidden = claim_command(&bench, &[], &["true"]).env("KUBECONFIG", cluster.kubeconfig("ordinary")).output()?;
    let why = String::from_utf8(forbidden.stderr)?;
    ensure!(forbidden.status.code() == Some(1) && why.contains("forbidden"), "{:?} {why}", forbidden.status);
    Ok(())
}

fn signal(child: &Child, signal: rustix::process::Signal) -> anyhow::Result<()> {
    Ok(rustix::process::kill_process(rustix::process::Pid::from_raw(child.id() as i32).context("a process")?, signal)?)
}

fn bad_input(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "room-bad", json!({"claims": {"namespaces": ["room-bad", "elsewhere"]}}))?;
    cluster.make_namespace("room-outside")?;
    let claim = |namespace: &str, spec: Value| {
        json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomClaim", "metadata": {"name": "c", "namespace": namespace}, "spec": spec}).to_string()
    };
    for (claim, why) in [
        (claim("room-bad", json!({"pool": "room-bat"})), "did you mean `room-bad`"),
        (claim("room-outside", json!({"pool": "room-bad"})), "spec.claims.namespaces of HeadroomPool room-bad"),
        (claim("room-bad", json!({"pool": "room-bad", "ttlSeconds": 1})), "spec.ttlSeconds"),
        (claim("room-bad", json!({"pool": "room-bad", "ttlSeconds": 1_000_000})), "spec.ttlSeconds"),
        (claim("room-bad", json!({"pool": "room-bad", "tllSeconds": 60})), "tllSeconds"),
    ] {
        let output = cluster.admin.try_apply(&claim)?;
        ensure!(!output.success && output.stderr.contains(why), "{claim}: {}", output.stderr);
    }
    // Nothing that is there says so.
    bench.claim("early")?;
    let early = || bench.claims().ok()?.iter().any(|(_, bound, _)| bound == "False NoPlaceholders").then_some(());
    wait_for("the reason", Duration::from_secs(20), early)?;
    let changed =
        cluster.admin.try_run(&["patch", "hc", "early", "-n", "room-bad", "--type=merge", "-p", r#"{"spec":{"pool":"other"}}"#], "")?;
    ensure!(!changed.success && changed.stderr.contains("the pool of a claim cannot change"), "{}", changed.stderr);

    // Two pools mark the same placeholders: the first by name counts them, the other says why not.
    let other = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": "room-bad-too"},
        "spec": {"placeholders": {"selector": {"matchLabels": {"app": "room-bad-room"}}}}});
    cluster.admin.apply(&other.to_string())?;
    bench.node("a")?;
    bench.placeholders(1)?;
    bench.status("one bound", |status| status["bound"] == 1)?;
    let shared = || {
        let pool = cluster.admin.get(&["hp", "room-bad-too"]).ok()?;
        let conditions = pool["status"]["conditions"].as_array()?;
        (pool["status"]["bound"] == 0 && conditions.iter().any(|c| c["reason"] == "SharedPlaceholders")).then_some(())
    };
    wait_for("the second pool to say so", Duration::from_secs(30), shared)?;
    // A pool that goes away leaves its claims with a reason.
    cluster.admin.run(&["delete", "hp", "room-bad", "room-bad-too"])?;
    let lost = || bench.claims().ok()?.iter().any(|(_, bound, _)| bound == "False UnknownPool").then_some(());
    wait_for("the claims to say that the pool is gone", Duration::from_secs(20), lost)
}

/// F7: the placeholder counts in the quota, so a bound one does not mean that the job's pod would be admitted.
fn quota(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "room-quota", json!({}))?;
    let labels = json!({"app": "job"});
    let job = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "job", "namespace": bench.name},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": bench.pod_spec(json!({}))}}});
    cluster.admin.apply(&job.to_string())?;
    // A shape is looked up when the pool changes.
    bench.pool(json!({"shape": {"like": {"kind": "Deployment", "namespace": "room-quota", "name": "job"}}}))?;
    let quota = |cpu: &str| json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": bench.name}, "spec": {"hard": {"requests.cpu": cpu}}});
    cluster.admin.apply(&quota("30").to_string())?;
    bench.node("a")?;
    bench.placeholders(1)?;
    bench.status("one bound", |status| status["free"] == 1)?;
    let used = || (cluster.admin.get(&["quota", "team", "-n", bench.name]).ok()?["status"]["used"]["requests.cpu"] == "30").then_some(());
    wait_for("the quota to be used up", Duration::from_secs(20), used)?;
    bench.claim("job")?;
    let says =
        |text: &'static str| move |claims: Vec<(String, String, String)>| claims.iter().any(|(_, bound, _)| bound == text).then_some(());
    wait_for("the quota as the reason", Duration::from_secs(40), || bench.claims().ok().and_then(says("False Quota")))?;
    cluster.admin.apply(&quota("60").to_string())?;
    wait_for("the claim to be bound", Duration::from_secs(20), || bench.claims().ok().and_then(says("True Bound")))
}

/// F10: placeholders stay where they are, but are no room.
fn nodes(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "room-nodes", json!({}))?;
    for node in ["a", "b", "c"] {
        bench.node(node)?;
    }
    bench.placeholders(6)?;
    bench.status("six bound", |status| status["bound"] == 6)?;
    cluster.admin.run(&["cordon", "room-nodes-a"])?;
    bench.status("four", |status| status["bound"] == 4 && status["desired"] == 6)?;
    cluster.admin.run(&["taint", "node", "room-nodes-b", "karpenter.sh/disrupted=:NoSchedule"])?;
    bench.status("two", |status| status["bound"] == 2 && status["pending"] == 0)?;
    cluster.admin.run(&["uncordon", "room-nodes-a"])?;
    bench.status("four again", |status| status["bound"] == 4)?;
    Ok(())
}
