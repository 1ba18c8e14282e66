//! Whether scale-downs still come to us: the installed webhook configuration is read now and then, and what it has lost is said on the
//! policies. A rule that somebody took away, or a selector that hides the event, is otherwise noticed when busy pods have gone.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook, ValidatingWebhookConfiguration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::leadership::Leadership;
use super::listing::{CALL_LIMIT, is_absent};
use super::status::Reporter;

/// How often the configuration is read.
const LOOK: Duration = Duration::from_secs(20);
/// While we do not lead, how often it is looked whether we do.
const IDLE: Duration = Duration::from_secs(2);

/// The path by which our hook is known, whatever its name.
const PATH: &str = "/validate/scale-downs";

/// The doors, as group and resource.
const DOORS: [(&str, &str); 6] = [
    ("apps", "deployments"),
    ("apps", "deployments/scale"),
    ("apps", "replicasets"),
    ("apps", "replicasets/scale"),
    ("", "replicationcontrollers"),
    ("", "replicationcontrollers/scale"),
];

/// Those of Argo Rollouts, where it is installed.
const ROLLOUTS: [(&str, &str); 2] = [("argoproj.io", "rollouts"), ("argoproj.io", "rollouts/scale")];

/// What became of the installed configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Doors {
    /// Why scale-downs pass us by, in words; none where they do not.
    pub problems: Vec<String>,
    /// Namespaces that the hook excludes by name.
    pub excluded: Vec<String>,
    /// It selects in other ways too, which are not looked at.
    pub selects_otherwise: bool,
    /// Why nothing is known.
    pub unreadable: Option<String>,
}

/// Looks at the configuration for as long as it is polled, while we lead.
pub async fn watch(client: Client, name: String, leadership: Leadership, reporter: Reporter) {
    loop {
        if !leadership.is_mine() {
            sleep(IDLE).await;
            continue;
        }
        if let Some(doors) = look(&client, &name).await {
            reporter.doors(doors);
        }
        sleep(LOOK).await;
    }
}

/// `None` where nothing is known.
async fn look(client: &Client, name: &str) -> Option<Doors> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = match timeout(CALL_LIMIT, api.get(name)).await.ok()? {
        Ok(configuration) => configuration,
        Err(e) if is_absent(&e) => {
            let problem = format!("found no ValidatingWebhookConfiguration {name}");
            return Some(Doors { problems: vec![problem], ..Doors::default() });
        }
        // An outage is short, and what was found before stands; a right that is missing stays missing.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let why = format!("ValidatingWebhookConfiguration {name} cannot be read: {}", status.message);
            return Some(Doors { unreadable: Some(why), ..Doors::default() });
        }
        Err(_) => return None,
    };
    let has_rollouts = match timeout(CALL_LIMIT, client.list_api_group_resources("argoproj.io/v1alpha1")).await.ok()? {
        Ok(kinds) => kinds.resources.iter().any(|kind| kind.name == "rollouts"),
        Err(e) if is_absent(&e) => false,
        Err(_) => return None,
    };
    Some(read(&configuration, has_rollouts))
}

/// What a configuration lets through to us.
pub fn read(configuration: &ValidatingWebhookConfiguration, has_rollouts: bool) -> Doors {
    // One hook, or several that share the doors.
    let ours = |hook: &&ValidatingWebhook| path(hook).is_some_and(|path| path.ends_with(PATH));
    let hooks: Vec<&ValidatingWebhook> = configuration.webhooks.iter().flatten().filter(ours).collect();
    let Some(first) = hooks.first() else {
        return Doors { problems: vec![format!("found no hook with the path {PATH}")], ..Doors::default() };
    };
    let name = &first.name;
    let rules: Vec<&RuleWithOperations> = hooks.iter().flat_map(|hook| hook.rules.iter().flatten()).collect();
    let mut problems = Vec::new();
    let wanted = DOORS.iter().chain(ROLLOUTS.iter().filter(|_| has_rollouts));
    let missing: Vec<String> =
        wanted.filter(|door| !rules.iter().any(|rule| opens(rule, door))).map(|(group, resource)| in_words(group, resource)).collect();
    if !missing.is_empty() {
        let misplaced = rules.iter().flat_map(|rule| rule.api_groups.iter().flatten()).any(|group| group == "autoscaling");
        let hint = if misplaced { "; the group of a scale is that of its workload, not `autoscaling`" } else { "" };
        problems.push(format!("hook {name} has no rule for UPDATE of {}{hint}", missing.join(", ")));
    }
    for hook in &hooks {
        let (name, selects) = (&hook.name, hook.object_selector.as_ref());
        let is_set =
            |s: &LabelSelector| s.match_labels.iter().flatten().next().is_some() || s.match_expressions.iter().flatten().next().is_some();
        if selects.is_some_and(is_set) {
            problems.push(format!(
                "hook {name} has an objectSelector, which a Scale never matches: it has no labels. Use a namespaceSelector or matchConditions"
            ));
        }
        if hook.client_config.ca_bundle.as_ref().is_none_or(|bundle| bundle.0.is_empty()) {
            problems.push(format!("hook {name} has no caBundle, so that calls fail unless the API server trusts our authority anyway"));
        }
    }
    let excluded = hooks.iter().flat_map(|hook| excluded(hook)).collect();
    Doors { problems, excluded, selects_otherwise: hooks.iter().any(|hook| selects_otherwise(hook)), unreadable: None }
}

/// Whether a hook selects namespaces by more than excluding names.
fn selects_otherwise(hook: &ValidatingWebhook) -> bool {
    hook.namespace_selector.as_ref().is_some_and(|selector| {
        let other = |e: &LabelSelectorRequirement| e.key != "kubernetes.io/metadata.name" || e.operator != "NotIn";
        selector.match_labels.iter().flatten().next().is_some() || selector.match_expressions.iter().flatten().any(other)
    })
}

fn path(hook: &ValidatingWebhook) -> Option<&str> {
    let config = &hook.client_config;
    config.service.as_ref().and_then(|service| service.path.as_deref()).or(config.url.as_deref())
}

/// By the API server's own matching (`apiserver/pkg/admission/plugin/webhook/predicates/rules`).
fn opens(rule: &RuleWithOperations, (group, resource): &(&str, &str)) -> bool {
    let has = |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|item| item == "*" || item == wanted);
    let is = |pattern: &str, wanted: &str| pattern == "*" || pattern == wanted;
    let (kind, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let matches = |pattern: &String| {
        let (k, s) = pattern.split_once('/').unwrap_or((pattern, ""));
        is(k, kind) && is(s, subresource)
    };
    has(&rule.api_groups, group) && has(&rule.operations, "UPDATE") && rule.resources.iter().flatten().any(matches)
}

fn in_words(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource} of {group}") }
}

fn excluded(hook: &ValidatingWebhook) -> Vec<String> {
    let expressions = hook.namespace_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    let by_name = expressions.filter(|e| e.key == "kubernetes.io/metadata.name" && e.operator == "NotIn");
    by_name.flat_map(|e| e.values.iter().flatten().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The shipped configuration, with its caBundle filled in, and changed.
    fn shipped(change: impl Fn(&mut Value)) -> Doors {
        let text = include_str!("../../manifests/base/40-webhooks.yaml");
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        let mut configuration = documents.into_iter().find(|d| d["kind"] == "ValidatingWebhookConfiguration").unwrap();
        let hooks = configuration["webhooks"].as_array_mut().unwrap();
        let hook = hooks.iter_mut().find(|hook| hook["name"] == "scale-downs.pecking-order.dev").unwrap();
        hook["clientConfig"]["caBundle"] = json!("YQ==");
        change(hook);
        read(&serde_json::from_value(configuration).unwrap(), true)
    }

    #[test]
    fn what_is_shipped_sees_every_scale_down() {
        let doors = shipped(|_| {});
        assert_eq!(doors.problems, Vec::<String>::new());
        assert_eq!(doors.excluded, ["kube-system", "kube-public", "kube-node-lease", "pecking-order"]);
    }

    /// DC-19: a webhook on the parent is passed by through its scale.
    #[test]
    fn dc_19_a_missing_rule_is_named() {
        let doors = shipped(|hook| hook["rules"][0]["resources"] = json!(["deployments", "replicasets", "replicasets/scale"]));
        assert_eq!(doors.problems, ["hook scale-downs.pecking-order.dev has no rule for UPDATE of deployments/scale of apps"]);
        let doors = shipped(|hook| hook["rules"][0]["operations"] = json!(["CREATE"]));
        assert!(doors.problems[0].contains("deployments of apps, deployments/scale of apps, replicasets of apps"), "{doors:?}");
        let doors =
            shipped(|hook| hook["rules"] = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]));
        assert!(doors.problems.is_empty(), "everything is enough: {doors:?}");
        let doors =
            shipped(|hook| hook["rules"] = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]));
        assert!(doors.problems[0].contains("deployments/scale of apps") && !doors.problems[0].contains("deployments of apps"), "{doors:?}");
    }

    /// DC-20: a Scale has no labels, and its group is that of its workload.
    #[test]
    fn dc_20_what_hides_the_event_is_named() {
        let doors = shipped(|hook| hook["objectSelector"] = json!({"matchLabels": {"app": "web"}}));
        assert!(doors.problems[0].contains("has an objectSelector") && doors.problems[0].contains("matchConditions"), "{doors:?}");
        let doors = shipped(|hook| hook["rules"][0]["apiGroups"] = json!(["autoscaling"]));
        assert!(doors.problems[0].ends_with("not `autoscaling`"), "{doors:?}");
    }

    #[test]
    fn a_hook_that_cannot_be_called_is_named() {
        assert!(shipped(|hook| hook["clientConfig"]["caBundle"] = Value::Null).problems[0].contains("no caBundle"));
        let narrow = shipped(|hook| hook["namespaceSelector"]["matchLabels"] = json!({"team": "a"}));
        assert!(narrow.problems.is_empty() && narrow.selects_otherwise, "{narrow:?}");
        assert!(shipped(|hook| hook["clientConfig"]["service"]["path"] = json!("/other")).problems[0].contains("found no hook"));
    }
}
