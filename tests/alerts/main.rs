//! The alerts: their unit tests by promtool, and that they speak of series that the binary exports.

use std::path::Path;
use std::process::Command;

use control_plane::parts::Parts;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn alerts_are_silent_and_speak_when_they_should() {
    let promtool = Parts::ensure().and_then(|parts| parts.program("promtool")).unwrap();
    for (verb, file) in [("check", "manifests/alerts/headroom.yaml"), ("test", "tests/alerts/headroom.yaml")] {
        let output = Command::new(&promtool).args([verb, "rules"]).arg(root().join(file)).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn alerts_speak_of_series_that_there_are() {
    let rules = std::fs::read_to_string(root().join("manifests/alerts/headroom.yaml")).unwrap();
    let metrics = pecking_order::server::metrics::Metrics::default();
    // Families without a sample are not printed.
    metrics.room("general", &Default::default(), Default::default());
    metrics.claims("general", "Unserved");
    metrics.wave(0, 0, 0);
    let exported = metrics.encode(0, 0);
    let mut seen = 0;
    for rest in rules.split("pecking_order_").skip(1) {
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let family = name.strip_suffix("_total").unwrap_or(&name);
        assert!(exported.contains(&format!("# TYPE pecking_order_{family} ")), "pecking_order_{name} is not exported");
        seen += 1;
    }
    assert!(seen >= 6, "{seen}");
}
