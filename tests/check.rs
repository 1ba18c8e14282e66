//! `pecking-order check`: policies whose every field that is out of range, contradictory or misspelt is refused, with its place and its path;
//! and manifests that are held against the rules of their pools.

use std::process::{Command, Output};

use serde_json::{Value, json};

fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pecking-order")).arg("check").args(arguments).output().unwrap()
}

fn policy(change: &Value) -> String {
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "signals": [{"name": "w", "query": "w", "weight": 1, "cap": 1}]});
    spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let policy = json!({"apiVersion": "pecking-order.dev/v1alpha1", "kind": "DeletionCostPolicy", "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    serde_saphyr::to_string(&policy).unwrap()
}

#[test]
fn every_field_out_of_range_is_refused_with_its_path_and_the_range() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("p.yaml");
    let signal = |change: Value| {
        let mut signal = json!({"name": "w", "query": "w", "weight": 1, "cap": 1});
        signal.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({ "signals": [signal] })
    };
    for (change, wanted) in [
        (json!({"selector": {}}), "spec.selector: found a selector that names no label"),
        (json!({"backend": ""}), "spec.backend: found an empty name"),
        (json!({"podKey": {"label": ""}}), "spec.podKey: found an empty label name"),
        (json!({"signals": []}), "spec.signals: found no signals"),
        (json!({"signals": [{"name": "a", "query": "a", "cap": 1}]}), "spec.signals[0].weight: found none"),
        (signal(json!({"name": ""})), "spec.signals[0].name"),
        (signal(json!({"query": " "})), "spec.signals[0].query: found an empty query"),
        (signal(json!({"query": "x".repeat(5000)})), "spec.signals[0].query: found 5000 bytes"),
        (signal(json!({"weight": 0})), "spec.signals[0].weight: found 0"),
        (signal(json!({"weight": -1})), "spec.signals[0].weight: found -1"),
        (signal(json!({"cap": 1e13})), "spec.signals[0].cap: found 10000000000000"),
        (signal(json!({"ignoreBelow": -1})), "spec.signals[0].ignoreBelow: found -1"),
        (signal(json!({"scale": "Logarithmic"})), "unknown variant `Logarithmic`, expected `Linear` or `Log`"),
        (signal(json!({"missing": "Nothing"})), "spec.signals[0].missing: unknown variant `Nothing`"),
        (signal(json!({"wieght": 1})), "spec.signals[0].wieght: unknown field `wieght`"),
        (json!({"preset": "presto"}), "spec.preset: unknown variant `presto`"),
        (json!({"parameters": {"a": "b"}}), "spec.parameters.a: found a parameter, wanted none"),
        (json!({"maxCost": 1}), "spec.maxCost: found 1, wanted 2 to 1000000"),
        (json!({"resolution": 501}), "spec.resolution: found 501, wanted 1 to 500"),
        (json!({"pollSeconds": 0}), "spec.pollSeconds: found 0, wanted 1 to 3600"),
        (json!({"edgeCases": {"newPod": 1001}}), "spec.edgeCases.newPod: found 1001, wanted 0 to 1000"),
        (json!({"newPodSeconds": 90_000}), "spec.newPodSeconds: found 90000, wanted 0 to 86400"),
        (json!({"workSeconds": 0}), "spec.workSeconds: found 0, wanted 1 to 604800"),
        (json!({"jitter": {"min": 5, "max": 2}}), "spec.jitter.min: found 5, wanted 0 to 2"),
        (json!({"jitter": {"min": 0, "max": 10}}), "spec.jitter.max: found 10, wanted 0 to 9"),
        (json!({"tieBreak": "Zone", "resolution": 1}), "spec.tieBreak: found Zone, wanted None, or a resolution of at least 2"),
        (json!({"samples": {"maxAgeSeconds": 0}}), "spec.samples.maxAgeSeconds: found 0"),
        (json!({"samples": {"maxAgeSeconds": 700}}), "spec.samples.keepLastSeconds: found 600, wanted 700 to 604800"),
        (json!({"foreignValues": "Keep"}), "spec.foreignValues: unknown variant `Keep`"),
        (json!({"floor": {"target": {"kind": "Deployment", "name": "web"}}}), "spec.floor.target.kind: unknown variant `Deployment`"),
        (json!({"floor": {"target": {"kind": "ScaledObject", "name": "../web"}}}), "spec.floor.target.name: found `../web`"),
        (json!({"floor": {"target": {"kind": "ScaledObject", "name": "web"}, "buffer": 200_000}}), "spec.floor.buffer: found 200000"),
        (json!({"floor": {"target": {"kind": "ScaledObject", "name": "web"}, "holdDown": 5}}), "did you mean `holdDownSeconds`?"),
        (json!({"pollSecond": 5}), "did you mean `pollSeconds`?"),
    ] {
        std::fs::write(&file, policy(&change)).unwrap();
        let output = check(&[file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stdout).to_string();
        assert!(!output.status.success() && said.contains(wanted), "{change}: {said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.starts_with(&format!("{}:", file.display())), "{said}");
    }
    std::fs::write(&file, policy(&json!({}))).unwrap();
    let output = check(&[file.to_str().unwrap()]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 policies and pools"), "{output:?}");
}

#[test]
fn queries_are_checked_against_the_backends_of_a_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(directory.path().join("policies")).unwrap();
    let config = "backends: {default: {prometheus: {url: 'http://p'}}, usage: {podMetrics: {}}, \
                  dd: {datadog: {apiKeyFile: a, applicationKeyFile: b}}}";
    std::fs::write(path("server.yaml"), config).unwrap();
    for (change, wanted) in [
        (json!({"backend": "defualt"}), "did you mean `default`?"),
        (json!({"signals": [{"name": "w", "query": "sum(", "weight": 1, "cap": 1}]}), "spec.signals[0].query: found `sum(`"),
        (json!({"backend": "dd"}), "at character 1: found `w`, wanted a metric with a scope"),
        (json!({"backend": "usage", "preset": "http", "signals": []}), "spec.preset: found `sum by (pod)"),
    ] {
        std::fs::write(path("policies/p.yaml"), policy(&change)).unwrap();
        let output = check(&[&path("policies"), "--config", &path("server.yaml")]);
        let said = String::from_utf8_lossy(&output.stdout).to_string();
        assert!(!output.status.success() && said.contains("shop/web") && said.contains(wanted), "{change}: {said}");
    }
    std::fs::write(path("policies/p.yaml"), policy(&json!({"preset": "trino", "signals": []}))).unwrap();
    assert!(check(&[&path("policies"), "--config", &path("server.yaml")]).status.success());
}

const POOL: &str = "apiVersion: pecking-order.dev/v1alpha1\nkind: HeadroomPool\nmetadata: {name: general}\nspec:\n  placeholders: {priorityClassNames: [room]}\n";
const CLASS: &str = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: room}\nvalue: -10\npreemptionPolicy: Never\n";

/// A Deployment of placeholders, written as people write it.
const GOOD: &str = "\
# room for two jobs
apiVersion: apps/v1
kind: Deployment
metadata:
  name: room
  namespace: ci
spec:
  replicas: 2
  selector: {matchLabels: {app: room}}
  template:
    metadata:
      labels: {app: room}
    spec:
      priorityClassName: room   # -10
      terminationGracePeriodSeconds: 0
      containers:
        - name: pause
          image: registry.k8s.io/pause:3.10
          resources: {requests: {cpu: 2, memory: 4Gi}}
";

/// A directory of files.
fn files(all: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in all {
        let file = directory.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    directory
}

/// The exit code, and what was printed.
fn run(directory: &tempfile::TempDir, arguments: &[&str]) -> (i32, String) {
    let mut all = vec![directory.path().to_str().unwrap()];
    all.extend(arguments);
    let output = check(&all);
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn manifests_are_held_against_the_pools_beside_them() {
    let bad = GOOD.replace("terminationGracePeriodSeconds: 0", "nodeSelector:\n        karpenter.sh/capacity-type: spot");
    let directory = files(&[("pool.yaml", POOL), ("class.yaml", CLASS), ("deep/good.yaml", GOOD), ("deep/bad.yaml", &bad)]);
    let (code, said) = run(&directory, &[]);
    assert_eq!(code, 1, "{said}");
    let place = directory.path().join("deep/bad.yaml").display().to_string();
    assert!(
        said.contains(&format!(
            "{place}:13:1: error: Deployment ci/room: [zeroGracePeriod] spec.template.spec.terminationGracePeriodSeconds: found 30"
        )),
        "{said}"
    );
    assert!(said.contains(&format!("{place}:16:9: error: Deployment ci/room: [offSpot] ")), "{said}");
    assert!(
        !said.contains("good.yaml") && said.contains("1 policies and pools, 3 objects, 0 of other kinds: 2 errors, 0 warnings"),
        "{said}"
    );
}

#[test]
fn the_exit_code_tells_warnings_refusals_and_what_could_not_be_checked_apart() {
    let with = |deployment: &str| run(&files(&[("pool.yaml", POOL), ("class.yaml", CLASS), ("room.yaml", deployment)]), &[]).0;
    let old_image = GOOD.replace("registry.k8s.io", "k8s.gcr.io");
    assert_eq!((with(GOOD), with(&old_image)), (0, 0));
    let directory = files(&[("pool.yaml", POOL), ("class.yaml", CLASS), ("room.yaml", &old_image)]);
    assert_eq!(run(&directory, &["--strict"]).0, 1);
    // A class that is nowhere: the number behind it is not known.
    let directory = files(&[("pool.yaml", POOL), ("room.yaml", GOOD)]);
    let (code, said) = run(&directory, &[]);
    assert!(
        code == 2 && said.contains("unchecked: Deployment ci/room: spec.template.spec.priorityClassName: class `room` is not known"),
        "{said}"
    );
    let beside = files(&[("class.yaml", CLASS)]);
    assert_eq!(run(&directory, &["--pool", beside.path().to_str().unwrap()]).0, 0);
    // A mark that no pool has.
    let marked = GOOD
        .replace("      labels: {app: room}", "      labels: {pecking-order.dev/headroom: genral}")
        .replace("priorityClassName: room", "priorityClassName: other");
    let (code, said) = run(&files(&[("pool.yaml", POOL), ("room.yaml", &marked)]), &[]);
    assert!(code == 2 && said.contains("did you mean `general`?"), "{said}");
}

#[test]
fn output_of_other_tools_is_read_as_it_comes() {
    // Helm and kustomize: many documents in one text, comments and empty documents between them, other kinds among them.
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n";
    let values = "replicas: 3\nimage: x\n";
    let all = format!(
        "# Source: chart/a.yaml\n---\n---\n{POOL}---\n# nothing\n---\n{CLASS}---\n{service}---\n{values}---\n{}",
        GOOD.replace("Seconds: 0", "Seconds: 45")
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_pecking-order"))
        .args(["check", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), all.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = all.lines().position(|line| line.contains("Seconds: 45")).unwrap() + 1;
    assert!(said.contains(&format!("<stdin>:{line}:7: error: Deployment ci/room: [zeroGracePeriod]")), "{said}");
    assert!(said.contains("1 policies and pools, 2 objects, 2 of other kinds"), "{said}");

    // A List, in JSON, as `kubectl get -o json` prints it.
    let deployment: Value = serde_saphyr::from_str(&GOOD.replace("Seconds: 0", "Seconds: 45")).unwrap();
    let class: Value = serde_saphyr::from_str(CLASS).unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [class, deployment]}).to_string();
    let (code, said) = run(&files(&[("pool.yaml", POOL), ("all.json", &list)]), &[]);
    assert!(code == 1 && said.contains("all.json:1:") && said.contains("found 45"), "{said}");
}

#[test]
fn anchors_and_merge_keys_are_followed() {
    let shared = GOOD.replace(
        "    spec:\n      priorityClassName: room   # -10\n      terminationGracePeriodSeconds: 0\n",
        "    spec:\n      <<: &shared {priorityClassName: room, terminationGracePeriodSeconds: 45}\n",
    );
    let (code, said) = run(&files(&[("pool.yaml", POOL), ("class.yaml", CLASS), ("room.yaml", &shared)]), &[]);
    assert!(code == 1 && said.contains("found 45"), "{said}");
}

#[test]
fn each_format_says_the_same() {
    let bad = GOOD.replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 45 # <\"&'>");
    let directory = files(&[("pool.yaml", POOL), ("class.yaml", CLASS), ("room.yaml", &bad)]);
    let (code, said) = run(&directory, &["-o", "json"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    let finding = &report["findings"][0];
    assert_eq!((code, &finding["rule"], &finding["line"], &finding["pool"]), (1, &json!("zeroGracePeriod"), &json!(15), &json!("general")));
    let (code, said) = run(&directory, &["-o", "sarif"]);
    let sarif: Value = serde_json::from_str(&said).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(
        (code, &sarif["version"], &result["ruleId"], &result["level"]),
        (1, &json!("2.1.0"), &json!("zeroGracePeriod"), &json!("error"))
    );
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 15);
    assert_eq!(sarif["runs"][0]["tool"]["driver"]["rules"][0]["id"], "zeroGracePeriod");
    let (code, said) = run(&directory, &["-o", "junit"]);
    assert_eq!(code, 1);
    assert!(
        said.contains("tests=\"1\" failures=\"1\" errors=\"0\"")
            && said.contains("<failure message=\"spec.template.spec.terminationGracePeriodSeconds: found 45"),
        "{said}"
    );
    let (_, said) = run(&files(&[("pool.yaml", POOL)]), &["-o", "junit"]);
    assert!(said.contains("failures=\"0\" errors=\"0\"") && said.ends_with("</testsuites>\n"), "{said}");
}

#[test]
fn fixes_are_written_back_and_nothing_else() {
    let bad = GOOD
        .replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 30   # the default")
        .replace("registry.k8s.io", "k8s.gcr.io");
    let class = CLASS.replace("preemptionPolicy: Never\n", "# may it preempt?\n");
    let both = format!(
        "{class}---\n{bad}---\n{}",
        bad.replace("      terminationGracePeriodSeconds: 30   # the default\n", "")
            .replace("name: room\n  namespace", "name: second\n  namespace")
    );
    let spot = GOOD.replace("Seconds: 0", "Seconds: 0\n      nodeSelector: {spot: \"true\"}");
    let directory = files(&[("pool.yaml", POOL), ("all.yaml", &both), ("choice.yaml", &spot), ("good.yaml", GOOD)]);
    let (code, said) = run(&directory, &["--fix"]);
    // Where a placeholder should stand instead is somebody's choice.
    assert!(code == 1 && said.contains("5 fixed") && said.contains("1 errors, 0 warnings") && said.contains("[offSpot]"), "{said}");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let wanted = both
        .replace("kind: PriorityClass\n", "preemptionPolicy: Never\nkind: PriorityClass\n")
        .replace("Seconds: 30   # the default", "Seconds: 0 # the default")
        .replace("k8s.gcr.io", "registry.k8s.io");
    let second = wanted.rfind("    spec:\n").unwrap() + "    spec:\n".len();
    let wanted = format!("{}      terminationGracePeriodSeconds: 0\n{}", &wanted[..second], &wanted[second..]);
    assert_eq!(read("all.yaml"), wanted);
    assert_eq!((read("choice.yaml"), read("good.yaml")), (spot, GOOD.to_owned()));
}

#[test]
fn bad_input_is_named_and_the_rest_is_checked_all_the_same() {
    let directory = files(&[
        ("pool.yaml", POOL),
        ("class.yaml", CLASS),
        ("room.yaml", &GOOD.replace("Seconds: 0", "Seconds: 45")),
        ("twice.yaml", "a: 1\na: 2\n"),
        ("broken.yaml", "kind: [\n"),
        ("list.yaml", "- a\n- b\n"),
        ("wrong.yaml", &GOOD.replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: zero")),
        ("null.yaml", &GOOD.replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: null")),
    ]);
    std::fs::write(directory.path().join("latin.yaml"), [b'a', 0xe9, b'\n']).unwrap();
    let large = std::fs::File::create(directory.path().join("large.yaml")).unwrap();
    large.set_len(50 << 20).unwrap();
    std::os::unix::fs::symlink(directory.path(), directory.path().join("loop")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", directory.path().join("dangling.yaml")).unwrap();
    let (code, said) = run(&directory, &[]);
    assert_eq!(code, 2, "{said}");
    for (file, wanted) in [
        ("twice.yaml:2:1: unchecked: ", "duplicate"),
        ("broken.yaml:", "unchecked: "),
        ("list.yaml:1:1: unchecked: ", "found no object, wanted one with apiVersion and kind"),
        ("wrong.yaml:", "unchecked: Deployment `room` cannot be read: invalid type"),
        ("large.yaml:1:1: unchecked: ", "the file has 52428800 bytes, wanted at most"),
        ("latin.yaml:1:1: unchecked: ", "is no UTF-8 text"),
        ("dangling.yaml:1:1: unchecked: ", "cannot read the file"),
        ("room.yaml:15:7: error: ", "found 45"),
        ("null.yaml:15:7: error: ", "found 30"),
    ] {
        assert!(said.lines().any(|line| line.contains(file) && line.contains(wanted)), "{file} {wanted}: {said}");
    }
    assert_eq!(said.matches("room.yaml:15:7").count(), 1, "a link that leads back is not followed: {said}");
}
