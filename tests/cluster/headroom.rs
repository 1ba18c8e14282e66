//! Placeholders and their classes, as `kubectl apply` sees them refused or accepted.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use super::{Cluster, Test};

pub const TESTS: &[(&str, Test)] = &[
    ("headroom::refuses_what_defeats_headroom_and_says_why", refuses_what_defeats_headroom),
    ("headroom::accepts_what_works_and_what_is_not_marked", accepts_what_works),
    ("headroom::an_update_is_refused_only_for_what_it_introduces", an_update_is_refused_only_for_what_it_introduces),
    ("headroom::fix_makes_a_pods_30_zero_and_warns_of_a_template", fix_makes_a_pods_30_zero),
    ("headroom::a6_a_changed_value_says_what_to_do", a6_a_changed_value),
    ("headroom::c6_a_placeholder_is_held_to_its_shape", c6_shape),
    ("headroom::a_scan_finds_what_was_there_before", a_scan),
    ("headroom::e5_the_dry_run_of_a_capacity_buffer", e5_capacity_buffer),
];

/// A pool and its class; each test has its own, since both are cluster-wide. Returns once the pool is in force.
fn make_pool(cluster: &Cluster, name: &str, rules: Value) -> anyhow::Result<()> {
    cluster.make_namespace(name)?;
    make_pool_in(cluster, name, rules)
}

fn make_pool_in(cluster: &Cluster, name: &str, rules: Value) -> anyhow::Result<()> {
    let pool = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": name},
        "spec": {"placeholders": {"priorityClassNames": [format!("{name}-class")], "selector": {"matchLabels": {"pool": name}}}, "rules": rules}});
    cluster.admin.apply(&pool.to_string())?;
    cluster.admin.run(&["wait", "--for=condition=Ready", "headroompool", name, "--timeout=30s"])?;
    cluster.admin.apply(&class(&format!("{name}-class"), -10).to_string())?;
    // The status is one replica's word; the other one's watch is as fast.
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

pub fn class(name: &str, value: i32) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"})
}

/// A correct placeholder's pod spec.
fn spec(pool: &str, change: Value) -> Value {
    let mut spec = json!({"priorityClassName": format!("{pool}-class"), "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]});
    if let (Some(spec), Value::Object(change)) = (spec.as_object_mut(), change) {
        spec.extend(change);
        spec.retain(|_, value| !value.is_null());
    }
    spec
}

pub fn object(kind: &str, pool: &str, name: &str, spec: Value) -> Value {
    let metadata = json!({"name": name, "namespace": pool});
    let labels = json!({"pool": pool, "app": name});
    let selector = json!({"matchLabels": {"app": name}});
    let template = |spec: Value| json!({"metadata": {"labels": labels}, "spec": spec});
    let with = |change: &str, value: &str| {
        let mut spec = spec.clone();
        spec[change] = json!(value);
        spec
    };
    match kind {
        "Pod" => json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": pool, "labels": labels}, "spec": spec}),
        "Job" => {
            json!({"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": {"template": template(with("restartPolicy", "Never"))}})
        }
        "CronJob" => json!({"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": {"schedule": "0 0 1 1 *",
            "jobTemplate": {"spec": {"template": template(with("restartPolicy", "Never"))}}}}),
        "StatefulSet" => json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
            "spec": {"replicas": 0, "serviceName": "x", "selector": selector, "template": template(spec)}}),
        "DaemonSet" => {
            json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"selector": selector, "template": template(spec)}})
        }
        "ReplicationController" => json!({"apiVersion": "v1", "kind": kind, "metadata": metadata,
            "spec": {"replicas": 0, "selector": {"app": name}, "template": template(spec)}}),
        "PodTemplate" => json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "template": template(spec)}),
        _ => json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
            "spec": {"replicas": 0, "selector": selector, "template": template(spec)}}),
    }
}

/// Applies what must be refused, and looks for each text in what kubectl prints.
fn rejects(cluster: &Cluster, object: &Value, texts: &[&str]) -> anyhow::Result<()> {
    let output = cluster.admin.try_apply(&object.to_string())?;
    ensure!(!output.success, "accepted: {object}");
    for text in texts.iter().chain(&["pecking-order"]) {
        ensure!(output.stderr.contains(text), "no `{text}` in: {}", output.stderr);
    }
    Ok(())
}

/// Applies what must pass without a word.
fn accepts(cluster: &Cluster, object: &Value) -> anyhow::Result<()> {
    let output = cluster.admin.try_apply(&object.to_string())?;
    ensure!(output.success, "refused: {}", output.stderr);
    ensure!(output.stderr.is_empty(), "accepted with a warning: {}", output.stderr);
    Ok(())
}

const TEMPLATES: [&str; 8] =
    ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Job", "CronJob", "PodTemplate"];

fn refuses_what_defeats_headroom(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "refuses";
    make_pool(cluster, pool, json!({}))?;
    let marked = |name: &str, value: i32| {
        let mut class = class(name, value);
        class["metadata"]["labels"] = json!({"pecking-order.dev/headroom": pool});
        class
    };
    rejects(
        cluster,
        &marked("refuses-deep", -11),
        &["value: ", "[priorityAboveCutoff] found -11, wanted -10 or higher", "never adds a node"],
    )?;
    rejects(cluster, &marked("refuses-zero", 0), &["value: ", "[priorityBelowWorkloads] found 0, wanted less than 0"])?;
    let mut default = marked("refuses-default", -10);
    default["globalDefault"] = json!(true);
    rejects(cluster, &default, &["globalDefault: ", "[notGlobalDefault]"])?;
    let mut preempting = marked("warns-of-preempting", -10);
    preempting["preemptionPolicy"] = Value::Null;
    let output = cluster.admin.try_apply(&preempting.to_string())?;
    ensure!(output.success && output.stderr.contains("Warning: [neverPreempts]"), "{}", output.stderr);

    let bad = [
        (json!({"terminationGracePeriodSeconds": null}), "[zeroGracePeriod]", "terminationGracePeriodSeconds: "),
        (json!({"terminationGracePeriodSeconds": 45}), "[zeroGracePeriod]", "would wait up to 45 s"),
        (json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}), "[offSpot]", "nodeSelector[karpenter.sh/capacity-type]: "),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "cloud.google.com/gke-spot", "operator": "Exists"}]}]}}}}),
            "[offSpot]",
            "nodeSelectorTerms[0].matchExpressions[0]",
        ),
        (json!({"priorityClassName": null}), "[priorityBelowWorkloads]", "no class, so priority 0"),
        (json!({"priorityClassName": null}), "[placeholderClass]", "found none, wanted `refuses-class`"),
        (json!({"containers": [{"name": "pause", "image": "pause"}]}), "[requestsSet]", "reserves nothing"),
    ];
    for (index, (change, rule, text)) in bad.into_iter().enumerate() {
        let pod = object("Pod", pool, &format!("pod-{index}"), spec(pool, change.clone()));
        rejects(cluster, &pod, &[rule, text, "spec."])?;
        for kind in TEMPLATES {
            let path = match kind {
                "CronJob" => "spec.jobTemplate.spec.template.spec.",
                "PodTemplate" => "template.spec.",
                _ => "spec.template.spec.",
            };
            let template = object(kind, pool, &format!("{}-{index}", kind.to_lowercase()), spec(pool, change.clone()));
            rejects(cluster, &template, &[rule, text, path])?;
        }
    }
    let all = spec(pool, json!({"terminationGracePeriodSeconds": 30, "nodeSelector": {"spot": "true"}, "priorityClassName": null}));
    let every_node = object("DaemonSet", pool, "every-node", spec(pool, json!({})));
    rejects(cluster, &every_node, &["(Forbidden)", "kind: found a DaemonSet", "[canRefill]"])?;
    let old =
        spec(pool, json!({"containers": [{"name": "pause", "image": "k8s.gcr.io/pause:3.6", "resources": {"requests": {"cpu": "1"}}}]}));
    let output = cluster.admin.try_apply(&object("Deployment", pool, "old-image", old).to_string())?;
    ensure!(
        output.success && output.stderr.contains("[supportedImage]") && output.stderr.contains("registry.k8s.io/pause:3.6"),
        "{}",
        output.stderr
    );
    rejects(cluster, &object("Pod", pool, "all", all), &["[priorityBelowWorkloads]", "[zeroGracePeriod]", "[offSpot]"])
}

fn accepts_what_works(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "accepts";
    // A bare pod, a Job and a DaemonSet are no good headroom, but good enough to show that the other rules are kept.
    make_pool(cluster, pool, json!({"canRefill": "Off"}))?;
    let mut marked = class("accepts-minus-one", -1);
    marked["metadata"]["labels"] = json!({"pool": pool});
    accepts(cluster, &marked)?;
    accepts(cluster, &object("Pod", pool, "pod", spec(pool, json!({}))))?;
    for kind in TEMPLATES {
        accepts(cluster, &object(kind, pool, &kind.to_lowercase(), spec(pool, json!({}))))?;
    }
    // A11: what no pool marks passes untouched, however bad it would be as headroom. Of a class below the headroom it is said that its
    // pods would be the first to go.
    let output = cluster.admin.try_apply(&class("accepts-nobodys", -500).to_string())?;
    ensure!(output.success && output.stderr.contains("is below the headroom of pool accepts (-10)"), "{}", output.stderr);
    let worst = json!({"priorityClassName": "accepts-nobodys", "terminationGracePeriodSeconds": 30, "nodeSelector": {"spot": "true"}});
    let mut unmarked = object("Deployment", pool, "unmarked", spec(pool, worst));
    unmarked["spec"]["template"]["metadata"]["labels"] = json!({"app": "unmarked"});
    accepts(cluster, &unmarked)
}

fn an_update_is_refused_only_for_what_it_introduces(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "ratchet";
    cluster.make_namespace(pool)?;
    cluster.admin.apply(&class("ratchet-class", -10).to_string())?;
    // Made before there is a pool that could object.
    let mut bad = object("Deployment", pool, "old", spec(pool, json!({"terminationGracePeriodSeconds": 30})));
    cluster.admin.apply(&bad.to_string())?;
    let pool_document = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "HeadroomPool", "metadata": {"name": pool},
        "spec": {"placeholders": {"priorityClassNames": ["ratchet-class"]}}});
    cluster.admin.apply(&pool_document.to_string())?;
    cluster.admin.run(&["wait", "--for=condition=Ready", "headroompool", pool, "--timeout=30s"])?;
    std::thread::sleep(Duration::from_millis(500));
    bad["spec"]["template"]["metadata"]["labels"]["note"] = json!("changed");
    accepts(cluster, &bad)?;
    bad["spec"]["template"]["spec"]["nodeSelector"] = json!({"spot": "true"});
    rejects(cluster, &bad, &["[offSpot]"])?;
    cluster.admin.run(&["delete", "deployment", "old", "-n", pool])?;
    Ok(())
}

fn fix_makes_a_pods_30_zero(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "fixes";
    make_pool(cluster, pool, json!({"zeroGracePeriod": "Fix", "canRefill": "Off"}))?;
    let default = || spec(pool, json!({"terminationGracePeriodSeconds": null}));
    accepts(cluster, &object("Pod", pool, "pod", default()))?;
    let pod = cluster.admin.get(&["pod", "pod", "-n", pool])?;
    ensure!(pod["spec"]["terminationGracePeriodSeconds"] == json!(0), "{}", pod["spec"]["terminationGracePeriodSeconds"]);
    let output = cluster.admin.try_apply(&object("Deployment", pool, "template", default()).to_string())?;
    ensure!(output.success && output.stderr.contains("Warning: [zeroGracePeriod]"), "{}", output.stderr);
    let template = cluster.admin.get(&["deployment", "template", "-n", pool])?;
    ensure!(template["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == json!(30), "a template is not changed");
    rejects(cluster, &object("Pod", pool, "other", spec(pool, json!({"terminationGracePeriodSeconds": 45}))), &["[zeroGracePeriod]"])
}

/// A6: the API server refuses it in any case; what to do instead is ours to say.
fn a6_a_changed_value(cluster: &'static Cluster) -> anyhow::Result<()> {
    make_pool(cluster, "values", json!({}))?;
    let output = cluster.admin.try_apply(&class("values-class", -11).to_string())?;
    ensure!(!output.success, "the API server accepts another value");
    ensure!(output.stderr.contains("Warning: [immutableValue] value cannot change from -10 to -11"), "{}", output.stderr);
    // Of what nobody marks we say nothing.
    cluster.admin.apply(&class("nobodys-values", 5).to_string())?;
    let output = cluster.admin.try_apply(&class("nobodys-values", 6).to_string())?;
    ensure!(!output.success && !output.stderr.contains("immutableValue"), "{}", output.stderr);
    Ok(())
}

fn c6_shape(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "shaped";
    make_pool(cluster, pool, json!({}))?;
    let mut job = object(
        "Deployment",
        pool,
        "runner-job",
        json!({"containers": [
        {"name": "build", "image": "b", "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}},
        {"name": "helper", "image": "h", "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}}]}),
    );
    job["spec"]["template"]["metadata"]["labels"] = json!({"app": "runner-job"});
    cluster.admin.apply(&job.to_string())?;
    let patch = json!({"spec": {"shape": {"like": {"kind": "Deployment", "namespace": pool, "name": "runner-job"}}}}).to_string();
    cluster.admin.run(&["patch", "headroompool", pool, "--type=merge", "-p", &patch])?;
    let of = |name: &str, cpu: &str, memory: &str| {
        let container =
            json!({"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": {"cpu": cpu, "memory": memory}}});
        object("Deployment", pool, name, spec(pool, json!({"containers": [container]})))
    };
    let said = |deployment: Value| {
        let output = cluster.admin.try_run(&["apply", "--dry-run=server", "-f", "-"], &deployment.to_string()).ok()?;
        (output.success && !output.stderr.contains("is not known")).then_some(output.stderr)
    };
    let warning = control_plane::wait_for("the shape", Duration::from_secs(40), || said(of("small", "2", "4Gi")))?;
    ensure!(warning.contains("[matchesShape] found cpu 2, memory 4Gi"), "{warning}");
    ensure!(said(of("enough", "2500m", "4608Mi")).is_some_and(|warning| warning.is_empty()), "a placeholder of that shape is warned of");
    Ok(())
}

/// E5: Cluster Autoscaler tries the pod of a CapacityBuffer out, and shows what it hears as a condition.
fn e5_capacity_buffer(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "buffers";
    make_pool(cluster, pool, json!({}))?;
    cluster.admin.apply(&class("buffers-deep", -50).to_string())?;
    let pod = |class: &str| {
        let mut pod = object("Pod", pool, "x", spec(pool, json!({"priorityClassName": class})));
        pod["metadata"]["name"] = Value::Null;
        pod["metadata"]["generateName"] = json!("fake-pod-");
        pod
    };
    let create = |class: &str| cluster.admin.try_run(&["create", "--dry-run=server", "-f", "-"], &pod(class).to_string());
    let output = create("buffers-class")?;
    ensure!(output.success && output.stderr.is_empty(), "{}", output.stderr);
    let output = create("buffers-deep")?;
    ensure!(!output.success && output.stderr.contains("[priorityAboveCutoff]"), "{}", output.stderr);
    Ok(())
}

/// What an admission webhook never sees: objects that were there before, and pods that are older than their class.
fn a_scan(cluster: &'static Cluster) -> anyhow::Result<()> {
    let pool = "scanned";
    cluster.make_namespace(pool)?;
    cluster.admin.apply(&class("scanned-class", -20).to_string())?;
    let bad = object("Deployment", pool, "old", spec(pool, json!({"terminationGracePeriodSeconds": 30})));
    cluster.admin.apply(&bad.to_string())?;
    cluster.admin.apply(&object("Pod", pool, "older", spec(pool, json!({}))).to_string())?;
    // The class is made anew; the pod keeps the number.
    cluster.admin.run(&["delete", "priorityclass", "scanned-class"])?;
    make_pool_in(cluster, pool, json!({}))?;
    let scan = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pecking-order"));
        let output = command.args(["scan", "-n", pool]).args(arguments).env("KUBECONFIG", cluster.kubeconfig("admin")).output()?;
        anyhow::Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (code, text) = scan(&["-o", "json"])?;
    let report: Value = serde_json::from_str(&text)?;
    let found: Vec<(&str, &str, &str)> = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|row| row["namespace"] == pool)
        .filter_map(|row| Some((row["level"].as_str()?, row["rule"].as_str()?, row["name"].as_str()?)))
        .collect();
    let wanted = [
        ("error", "priorityAboveCutoff", "older"),
        ("warning", "canRefill", "older"),
        ("warning", "outdatedPriority", "older"),
        ("error", "zeroGracePeriod", "old"),
    ];
    ensure!(code == Some(1) && found == wanted, "{code:?} {found:?}");
    let (_, table) = scan(&[])?;
    ensure!(table.contains("| Deployment old ") && table.contains("objects: "), "{table}");
    let (_, reports) = scan(&["-o", "policy-report"])?;
    ensure!(
        reports.contains("kind: PolicyReport") && reports.contains("fail: 2") && reports.contains("rule: zeroGracePeriod"),
        "{reports}"
    );
    // Who may not list is told so, and nothing is said to be well.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pecking-order"));
    let output = command.args(["scan", "-n", pool]).env("KUBECONFIG", cluster.kubeconfig("ordinary")).output()?;
    ensure!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("cannot list headroompools"), "{output:?}");

    // The leader's own scans come every ten seconds, once it may.
    let api = ("wgpolicyk8s.io", "v1alpha2");
    cluster.define_kind(api, ("PolicyReport", "policyreports"), "Namespaced", json!({}))?;
    cluster.define_kind(api, ("ClusterPolicyReport", "clusterpolicyreports"), "Cluster", json!({}))?;
    cluster.admin.run(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/scan-rbac.yaml")])?;
    let report = || cluster.admin.get(&["policyreport", "pecking-order", "-n", pool]).ok();
    let limit = Duration::from_secs(60);
    let found = control_plane::wait_for("a report", limit, || report().filter(|report| report["summary"]["fail"] == 2))?;
    let owner = &found["metadata"]["ownerReferences"][0];
    ensure!(owner["kind"] == "HeadroomPool" && owner["name"] == pool && found["summary"]["warn"] == 2, "{found}");
    cluster.admin.run(&["delete", "deployment/old", "pod/older", "-n", pool])?;
    control_plane::wait_for("the report to go", limit, || report().is_none().then_some(()))
}
