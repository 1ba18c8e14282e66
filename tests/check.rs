//! `pecking-order check`: every field that is out of range, contradictory or misspelt is refused, with its place and its path.

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
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 documents are valid"), "{output:?}");
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
