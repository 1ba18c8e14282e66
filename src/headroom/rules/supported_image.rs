//! `supportedImage`: the pause image from a registry that has been retired may not be pulled any more, or be changed by nobody.

use super::{Context, Finding, Rule};
use crate::api::Pool;
use crate::headroom::native::{About, Twin, quoted};

/// Retired in favour of registry.k8s.io; frozen in April 2023.
const RETIRED: [&str; 2] = ["k8s.gcr.io/", "gcr.io/google_containers/"];

pub const RULE: Rule = Rule { id: "supportedImage", mode: |pool, _| pool.spec.rules.supported_image, check, native, unseen: "" };

fn check(context: &Context<'_>) -> Option<Finding> {
    let containers = &context.pod_spec()?.containers;
    let retired = |image: &str| RETIRED.iter().any(|registry| image.starts_with(registry));
    let (index, image) = containers.iter().map(|c| c.image.as_deref().unwrap_or_default()).enumerate().find(|(_, image)| retired(image))?;
    let name = image.rsplit('/').next().unwrap_or(image);
    Some(Finding {
        field: context.below_spec(&format!("containers[{index}].image")),
        found: format!("`{image}`"),
        wanted: format!("registry.k8s.io/{name}"),
        why: "that registry is retired, so a new node may not be able to pull the image".into(),
        evidence: vec![image.into()],
    })
}

fn native(pool: &Pool) -> Vec<Twin> {
    let retired = RETIRED.map(|registry| format!("container.image.startsWith({})", quoted(registry))).join(" || ");
    let image = format!("has(container.image) && ({retired})");
    vec![Twin {
        part: "",
        about: About::PodsAndTemplates,
        mode: pool.spec.rules.supported_image,
        holds: format!("!variables.spec.containers.exists(container, {image})"),
        was_so: format!("variables.old.containers.exists(container, {image})"),
        message: "'wanted registry.k8s.io: that registry is retired'".into(),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::check_pod;
    use super::*;

    /// C10.
    #[test]
    fn c10_a_retired_registry_is_said_with_its_successor() {
        let found = |image: &str| check_pod(&RULE, json!({}), json!({"containers": [{"image": "a"}, {"image": image}]}));
        let finding = found("k8s.gcr.io/pause:3.6").unwrap();
        assert_eq!((finding.field.as_str(), finding.wanted.as_str()), ("spec.containers[1].image", "registry.k8s.io/pause:3.6"));
        assert!(found("gcr.io/google_containers/pause").is_some());
        assert_eq!(found("registry.k8s.io/pause:3.10"), None);
        assert_eq!(found("example.com/k8s.gcr.io/pause"), None);
    }
}
