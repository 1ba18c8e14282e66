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

#[test]
fn values_that_cannot_be_used_are_refused_with_what_would_be() {
    let directory = tempfile::tempdir().unwrap();
    for (values, wanted) in [
        ("weights: {runningSplits: 10}", "found no selector of pods"),
        ("- a", "wanted a mapping"),
        ("podSelectors: [app=trino\n", "values.yaml"),
        ("podSelectors: ['app in (a, b)']", "found no selector of pods"),
    ] {
        let file = directory.path().join("values.yaml");
        std::fs::write(&file, values).unwrap();
        let output = import(&[file.to_str().unwrap()]);
        assert!(!output.status.success() && output.stdout.is_empty(), "{values}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(wanted), "{values}: {}", text(&output.stderr));
    }
}
