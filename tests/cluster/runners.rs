//! The worked examples of `examples/runners`, each run against stand-ins for the runner's programs, on the real control plane.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::wait_for;
use serde_json::json;

use super::room::Bench;
use super::{Cluster, Test};

pub const TESTS: &[(&str, Test)] = &[("runners::every_example_takes_a_job_only_with_room_and_gives_it_back", examples)];

/// What every stand-in does with a job: it makes the pod that the runner would make, with the annotation that it was given.
const MAKE_POD: &str = r#"
make_pod() {
    kubectl get headroomclaim "$PECKING_ORDER_CLAIM" -o 'jsonpath={.status.conditions[?(@.type=="Bound")].status}' > "$SEEN/$1"
    kubectl create -f - <<POD
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1", "annotations": $2}, "spec": POD_SPEC}
POD
}
"#;

/// By example: its stand-ins, and the pod that comes of it.
const EXAMPLES: [(&str, &[(&str, &str)]); 4] = [
    (
        "gitlab-run-single",
        &[(
            "gitlab-runner",
            r#"[ "$1" = run-single ] || exit 9
while [ $# -gt 0 ]; do [ "$1" = --kubernetes-pod-annotations ] && annotations=$2; shift; done
make_pod gitlab-run-single "$annotations""#,
        )],
    ),
    (
        "buildkite",
        &[("buildkite-agent", r#"[ "$1 $2" = "start --disconnect-after-job" ] || exit 9; make_pod buildkite "$(cat "$ANNOTATIONS")""#)],
    ),
    (
        "github-ephemeral",
        &[
            ("config.sh", r#"echo "$@" | grep -q -- "--ephemeral .*--name $PECKING_ORDER_CLAIM" || exit 9"#),
            (
                "run.sh",
                r#"make_pod github-ephemeral "$(sed 's/.*"annotations":\({[^}]*}\).*/\1/' "$ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE")""#,
            ),
        ],
    ),
    (
        "queue-consumer",
        &[("take-message", "echo message-7"), ("acknowledge-message", r#"[ "$1" = message-7 ] && echo True > "$SEEN/queue-consumer""#)],
    ),
];

fn examples(cluster: &'static Cluster) -> anyhow::Result<()> {
    let bench = Bench::new(cluster, "runners", json!({}))?;
    for node in ["a", "b"] {
        bench.node(node)?;
    }
    bench.placeholders(4)?;
    bench.status("four free", |status| status["free"] == 4)?;
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::copy(cluster.kubeconfig("admin"), &kubeconfig)?;
    let file = kubeconfig.to_str().context("a path")?;
    cluster.admin.run(&["config", "set-context", "--current", "--namespace", bench.name, "--kubeconfig", file])?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for entry in std::fs::read_dir(root.join("examples/runners"))? {
        let name = entry?.path().file_stem().context("a name")?.to_string_lossy().into_owned();
        ensure!(EXAMPLES.iter().any(|(known, _)| *known == name), "{name} is not tried");
        found += 1;
    }
    ensure!(found == EXAMPLES.len());
    for (name, stand_ins) in EXAMPLES {
        let home = directory.path().join(name);
        std::fs::create_dir(&home)?;
        let functions = MAKE_POD.replace("POD_SPEC", &bench.pod_spec(json!({})).to_string());
        for (program, body) in stand_ins {
            let path = home.join(program);
            std::fs::write(&path, format!("#!/bin/sh\nset -eu\n{functions}\n{body}\n"))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        }
        let pecking_order = Path::new(env!("CARGO_BIN_EXE_pecking-order")).parent().context("a directory")?;
        let kubectl = cluster.admin.program.parent().context("a directory")?;
        let path = format!("{}:{}:{}:{}", home.display(), pecking_order.display(), kubectl.display(), std::env::var("PATH")?);
        let output = Command::new("sh")
            .arg(root.join(format!("examples/runners/{name}.sh")))
            .current_dir(&home)
            .env("PATH", path)
            .env("KUBECONFIG", &kubeconfig)
            .env_remove("POD_NAME")
            .envs([("POOL", bench.name), ("ONCE", "1"), ("CI_SERVER_URL", "https://gitlab.example.com"), ("RUNNER_TOKEN", "t")])
            .env("REPOSITORY_URL", "https://github.example.com/a/b")
            .env("ANNOTATIONS", home.join("annotations.json"))
            .env("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", home.join("template.json"))
            .env("SEEN", &home)
            .output()?;
        let said = format!("{name}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{said}");
        let seen = std::fs::read_to_string(home.join(name)).with_context(|| said.clone())?;
        ensure!(seen.trim() == "True", "{said}: the claim was bound when the job came: {seen}");
        let placed = || {
            let pods = cluster.admin.list(&["pods", "-n", bench.name]).ok()?;
            let is_it = |pod: &&serde_json::Value| {
                let prefix = if name == "queue-consumer" { "work-" } else { name };
                pod["metadata"]["name"].as_str().is_some_and(|pod| pod.starts_with(prefix))
            };
            let pod = pods.iter().find(is_it)?;
            (pod["spec"]["nodeName"].is_string() && pod["metadata"]["annotations"]["pecking-order.dev/claim"].is_string()).then_some(())
        };
        wait_for("the job's pod to have a node", Duration::from_secs(20), placed).with_context(|| said.clone())?;
    }
    ensure!(bench.claims()?.is_empty(), "every claim was let go: {:?}", bench.claims()?);
    Ok(())
}
