//! Bringing users of other tools over: what is written, and what is said about each line.

use std::path::Path;
use std::process::{Command, Output};

fn import(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pod-cost-manager");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pecking-order"));
    command.current_dir(root).args(["import", "pod-cost-manager"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Golden files: the documents, and the fate of each line. Read the diff when they change.
#[test]
fn each_shape_of_pod_cost_managers_values_comes_over() {
    for shape in ["basic", "blue-green-hpa", "with-auth", "custom-metrics"] {
        let output = import(&[&format!("{shape}.yaml")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        insta::with_settings!({ snapshot_path => "imports", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(shape, format!("{}\n{}", text(&output.stdout), text(&output.stderr)));
        });
    }
}

#[test]
fn what_is_written_to_a_directory_can_be_served() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("out");
    let output = import(&["blue-green-hpa.yaml", "-o", target.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written: Vec<String> = text(&output.stdout).lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(written, ["trino-blue.yaml", "trino-green.yaml", "server.yaml"]);
    pecking_order::server::config::Config::read(&target.join("server.yaml")).unwrap();
    std::fs::remove_file(target.join("server.yaml")).unwrap();
    let (documents, errors) = pecking_order::api::documents::read_directory(&target);
    assert!(errors.is_empty() && documents.len() == 2, "{errors:?}");
    // A second time nothing is written over.
    let output = import(&["blue-green-hpa.yaml", "-o", target.to_str().unwrap()]);
    assert!(!output.status.success() && text(&output.stderr).contains("trino-blue.yaml is there already"), "{}", text(&output.stderr));
    assert!(!target.join("server.yaml").exists(), "nothing is half done");
}

/// The policies that come of some values: name, namespace and labels.
fn policies(values: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let (file, target) = (directory.path().join("values.yaml"), directory.path().join("out"));
    std::fs::write(&file, values).unwrap();
    let output = import(&[file.to_str().unwrap(), "-o", target.to_str().unwrap()]);
    assert!(output.status.success(), "{values}: {}", text(&output.stderr));
    // As many lines are spoken of as have values.
    let lines = text(&output.stderr).lines().filter(|line| line.starts_with("| values.yaml:")).count();
    assert!(lines > 0, "{}", text(&output.stderr));
    std::fs::remove_file(target.join("server.yaml")).unwrap();
    let (documents, errors) = pecking_order::api::documents::read_directory(&target);
    assert!(errors.is_empty(), "{errors:?}");
    let read = |document: &pecking_order::api::documents::Document| match document {
        pecking_order::api::documents::Document::DeletionCostPolicy(policy) => {
            let metadata = &policy.metadata;
            let labels = serde_json::to_value(&policy.spec.selector).unwrap()["matchLabels"].clone();
            format!("{}/{} {labels}", metadata.namespace.as_deref().unwrap(), metadata.name.as_deref().unwrap())
        }
        other => panic!("{other:?}"),
    };
    documents.iter().map(read).collect()
}

#[test]
fn each_selector_keeps_its_own_labels_name_and_namespace() {
    for (values, wanted) in [
        // A label called release is a label, not the policy's name.
        (
            "namespace: ns\npodSelectors:\n- matchLabels: {app: trino, release: blue}\n- matchLabels: {app: trino, release: green}",
            vec![r#"ns/trino-workers-1 {"app":"trino","release":"blue"}"#, r#"ns/trino-workers-2 {"app":"trino","release":"green"}"#],
        ),
        (
            "namespace: ns\npodSelectors: {blue: 'app=t,release=blue', green: 'app=t,release=green'}",
            vec![r#"ns/blue {"app":"t","release":"blue"}"#, r#"ns/green {"app":"t","release":"green"}"#],
        ),
        ("namespace: ns\nreleases:\n- name: r\n  podSelectors: [app=a, app=b]", vec![r#"ns/r {"app":"a"}"#, r#"ns/r-2 {"app":"b"}"#]),
        ("namespace: ns\npodSelectors: [{app.kubernetes.io/name: trino}]", vec![r#"ns/trino-workers {"app.kubernetes.io/name":"trino"}"#]),
        (
            "releases:\n- name: Trino_Blue\n  namespace: lake\n  podSelector: {matchLabels: {app: t}}",
            vec![r#"lake/trino-blue {"app":"t"}"#],
        ),
        // Names that would leave the directory, or stand in each other's way.
        (
            "namespace: ns\nselectors:\n- {name: ../server, labelSelector: app=a}\n- {name: server, labelSelector: app=b}\n- {name: server, labelSelector: app=c}",
            vec![r#"ns/server-2 {"app":"a"}"#, r#"ns/server-3 {"app":"b"}"#, r#"ns/server-4 {"app":"c"}"#],
        ),
        // What is about the job itself, or about the backend, is not about the pods.
        (
            "namespace: ns\npodSelector: app=t\nmetricsBackend: {namespace: monitoring}\nservice: {port: 8080}\nlivenessProbe: {timeoutSeconds: 1}\n\
             affinity: {podAntiAffinity: {x: [{labelSelector: {matchLabels: {app: pcm}}}]}}",
            vec![r#"ns/trino-workers {"app":"t"}"#],
        ),
        ("podSelector: app=t", vec![r#"default/trino-workers {"app":"t"}"#]),
    ] {
        let mut found = policies(values);
        found.sort();
        assert_eq!(found, wanted, "{values}");
    }
}

#[test]
fn nothing_is_said_to_be_carried_over_that_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    for (values, path, fate) in [
        ("metricsBackend: {type: datadog, url: 'https://x', timeout: 5, auth: {type: bearer}}", "metricsBackend.url", "no counterpart"),
        ("metricsBackend: {url: 'http://p', auth: {type: oauth2}}", "metricsBackend.auth.type", "no counterpart"),
        ("datadog: {enabled: false}", "datadog.enabled", "no counterpart"),
        ("customMetrics: [{name: a, query: b, weight: 0, cap: 1}]", "customMetrics[0].weight", "no counterpart"),
        ("weights: {outputBuffers: 0}", "weights.outputBuffers", "carried over"),
        ("livenessProbe: {timeoutSeconds: 1}", "livenessProbe.timeoutSeconds", "no counterpart"),
        ("service: {port: 8080}", "service.port", "no counterpart"),
    ] {
        std::fs::write(&file, format!("namespace: ns\npodSelector: app=t\n{values}\n")).unwrap();
        let output = import(&[file.to_str().unwrap()]);
        let report = text(&output.stderr);
        let line = report.lines().find(|line| line.contains(&format!(" {path} "))).unwrap_or_else(|| panic!("{path} in {report}"));
        assert!(output.status.success() && line.contains(fate), "{line}");
        if path == "weights.outputBuffers" {
            assert!(text(&output.stdout).contains("disabled: true"), "{}", text(&output.stdout));
        }
        if path == "service.port" || path.starts_with("liveness") {
            assert!(!text(&output.stdout).contains("8080") && !text(&output.stdout).contains("timeoutSeconds"), "{}", text(&output.stdout));
        }
    }
}

#[test]
fn values_that_cannot_be_used_are_refused_with_what_would_be() {
    let directory = tempfile::tempdir().unwrap();
    for (values, wanted) in [
        ("weights: {runningSplits: 10}", "found no selector of pods"),
        ("- a", "wanted a mapping"),
        ("podSelectors: [app=trino\n", "values.yaml"),
        ("podSelectors: ['app in (a, b)']", "found no selector of pods"),
        (
            "podSelector: {matchLabels: {app: t}, matchExpressions: [{key: role, operator: In, values: [worker]}]}",
            "found no selector of pods",
        ),
    ] {
        let file = directory.path().join("values.yaml");
        std::fs::write(&file, values).unwrap();
        let output = import(&[file.to_str().unwrap()]);
        assert!(!output.status.success() && output.stdout.is_empty(), "{values}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(wanted), "{values}: {}", text(&output.stderr));
    }
}
