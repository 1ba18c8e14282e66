//! The native twins of the rules: ValidatingAdmissionPolicies in CEL, which the API server checks by itself, without a pod of ours. Each rule
//! says in its own file what its twin looks at; this makes whole policies of it.

use serde_json::{Value, json};

use super::rules::{ALL, Rule};
use crate::api::headroom_pool::Mode;
use crate::api::{HEADROOM_LABEL, LabelSelector, Pool};

/// Never looked at, like in every hook of ours.
const EXCLUDED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// What a twin looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    Classes,
    Pods,
    Templates,
    PodsAndTemplates,
    /// Templates, each together with every PriorityClass, which is `params`.
    TemplatesByClass,
}

/// One CEL expression, and what becomes of what it does not hold for.
///
/// It may use `object` and, of pods and templates, `variables.spec`, `variables.labels` and, at an UPDATE, `variables.old`, the pod spec as
/// it was.
#[derive(Debug, Clone)]
pub struct Twin {
    /// Tells several twins of one rule apart.
    pub part: &'static str,
    pub about: About,
    pub mode: Mode,
    /// True where the rule is kept.
    pub holds: String,
    /// True where the object was already so before an UPDATE.
    pub was_so: String,
    /// A CEL expression that gives the message.
    pub message: String,
}

/// A text in CEL.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A list of texts in CEL.
pub fn list<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    format!("[{}]", texts.into_iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", "))
}

/// The twins of a rule about priorities: for classes, for pods, and for templates by the class that they name. `bound` is what every priority
/// keeps, such as `>= -10`. `unset_holds`: a pod of which no priority is known keeps it. `message` takes what was found, in CEL.
pub fn by_priority(mode: Mode, bound: &str, unset_holds: bool, message: impl Fn(&str) -> String) -> Vec<Twin> {
    let twin = |part, about, holds: String, was_so: &str, found: &str| Twin {
        part,
        about,
        mode,
        holds,
        was_so: was_so.into(),
        message: message(found),
    };
    let (priority, class) = ("variables.spec.priority", "variables.spec.priorityClassName");
    let (of_pod, found) = match unset_holds {
        true => (format!("!has({priority}) || {priority} {bound}"), format!("string({priority})")),
        false => (format!("has({priority}) && {priority} {bound}"), format!("(has({priority}) ? string({priority}) : 'no priority')")),
    };
    let of_template = format!("!has({class}) || {class} != params.metadata.name || params.value {bound}");
    let same_class = format!("has(variables.old.priorityClassName) && variables.old.priorityClassName == {class}");
    let named = "params.metadata.name + ' with priority ' + string(params.value)";
    vec![
        twin("class", About::Classes, format!("object.value {bound}"), "oldObject.value == object.value", "string(object.value)"),
        // Of a pod that is there the priority cannot change.
        twin("pod", About::Pods, of_pod, "true", &found),
        twin("template", About::TemplatesByClass, of_template, &same_class, named),
    ]
}

/// The policies of a pool, each with its binding.
pub fn policies(pool: &Pool) -> Vec<Value> {
    ALL.iter()
        .flat_map(|rule| (rule.native)(pool).into_iter().map(move |twin| (rule, twin)))
        .flat_map(|(rule, twin)| whole(pool, rule, &twin))
        .collect()
}

fn whole(pool: &Pool, rule: &Rule, twin: &Twin) -> Vec<Value> {
    let action = match twin.mode {
        Mode::Enforce => "Deny",
        Mode::Warn => "Warn",
        Mode::Audit => "Audit",
        Mode::Off => return vec![],
    };
    let part = if twin.part.is_empty() { String::new() } else { format!("-{}", twin.part) };
    let name = format!("pecking-order-{}-{}{part}", pool.name, rule.id.to_lowercase());
    let labels = json!({"app.kubernetes.io/name": "pecking-order", "pecking-order.dev/pool": pool.name});
    let metadata = json!({"name": name, "labels": labels});
    let mut spec = json!({
        // Like every hook of ours: what cannot be decided passes.
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": resources(twin.about)},
        "matchConditions": conditions(twin.about),
        "variables": variables(twin.about, pool),
        "validations": [{
            "expression": format!("!variables.marked || ({}) || (request.operation == 'UPDATE' && variables.wasMarked && ({}))", twin.holds, twin.was_so),
            "messageExpression": format!("{} + {} + {}", quoted(&format!("[{}] ", rule.id)), twin.message, quoted(&format!(" (HeadroomPool {}, pecking-order)", pool.name))),
            "reason": "Invalid",
        }],
    });
    let excluded: Vec<&str> = EXCLUDED.into_iter().chain(pool.spec.exempt_namespaces.iter().map(String::as_str)).collect();
    let mut binding = json!({"policyName": name, "validationActions": [action]});
    if twin.about != About::Classes {
        let by_name = json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded});
        binding["matchResources"] = json!({"namespaceSelector": {"matchExpressions": [by_name]}});
    }
    if twin.about == About::TemplatesByClass {
        spec["paramKind"] = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"});
        binding["paramRef"] = json!({"selector": {}, "parameterNotFoundAction": "Allow"});
    }
    let of = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
    vec![of("ValidatingAdmissionPolicy", spec), of("ValidatingAdmissionPolicyBinding", binding)]
}

fn resources(about: About) -> Value {
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE", "UPDATE"]});
    let templates = [
        rule("", &["replicationcontrollers", "podtemplates"]),
        rule("apps", &["deployments", "replicasets", "statefulsets", "daemonsets"]),
        rule("batch", &["jobs", "cronjobs"]),
    ];
    match about {
        About::Classes => json!([rule("scheduling.k8s.io", &["priorityclasses"])]),
        About::Pods => json!([rule("", &["pods"])]),
        About::Templates | About::TemplatesByClass => json!(templates),
        About::PodsAndTemplates => json!([[rule("", &["pods"])].as_slice(), &templates].concat()),
    }
}

fn conditions(about: About) -> Value {
    let not_leaving = json!({"name": "not-leaving", "expression": "!has(object.metadata.deletionTimestamp)"});
    if about == About::Classes {
        return json!([not_leaving]);
    }
    let not_ended = "request.kind.kind != 'Pod' || !has(object.status) || !has(object.status.phase) || !(object.status.phase in ['Succeeded', 'Failed'])";
    // What a Deployment or a CronJob makes was looked at there.
    let not_made = "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller && \
                    ((request.kind.kind == 'ReplicaSet' && owner.kind == 'Deployment') || (request.kind.kind == 'Job' && owner.kind == 'CronJob')))";
    json!([not_leaving, {"name": "not-ended", "expression": not_ended}, {"name": "not-made-by-a-template", "expression": not_made}])
}

fn variables(about: About, pool: &Pool) -> Value {
    let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
    let labels_of = |object: &str| format!("(has({object}.metadata) && has({object}.metadata.labels) ? {object}.metadata.labels : {{}})");
    let names = list(&pool.spec.placeholders.priority_class_names);
    if about == About::Classes {
        let marked = |object: &str| format!("{} || {object}.metadata.name in {names}", marks(pool, &labels_of(object)));
        let was = format!("request.operation == 'UPDATE' && ({})", marked("oldObject"));
        return json!([variable("marked", marked("object")), variable("wasMarked", was)]);
    }
    let template = |object: &str| {
        format!(
            "request.kind.kind == 'Pod' ? {object} : request.kind.kind == 'CronJob' ? {object}.spec.jobTemplate.spec.template : \
             request.kind.kind == 'PodTemplate' ? {object}.template : {object}.spec.template"
        )
    };
    // The labels of a CronJob's Jobs mark their pods too.
    let of_jobs = |object: &str| {
        let labels = labels_of(&format!("{object}.spec.jobTemplate"));
        format!("(request.kind.kind == 'CronJob' && ({}))", marks(pool, &labels))
    };
    let marked = |object: &str, template: &str| {
        let by_class = format!("(has({template}.spec.priorityClassName) && {template}.spec.priorityClassName in {names})");
        [marks(pool, &labels_of(object)), marks(pool, &labels_of(template)), of_jobs(object), by_class].join(" || ")
    };
    json!([
        variable("template", template("object")),
        variable("oldTemplate", format!("request.operation == 'UPDATE' ? ({}) : variables.template", template("oldObject"))),
        variable("spec", "variables.template.spec".into()),
        variable("old", "variables.oldTemplate.spec".into()),
        variable("labels", labels_of("variables.template")),
        variable("marked", marked("object", "variables.template")),
        variable("wasMarked", format!("request.operation == 'UPDATE' && ({})", marked("oldObject", "variables.oldTemplate"))),
    ])
}

/// Whether labels mark an object as the pool's.
fn marks(pool: &Pool, labels: &str) -> String {
    let key = quoted(HEADROOM_LABEL);
    let mark = format!("({key} in {labels} && {labels}[{key}] == {})", quoted(&pool.name));
    match &pool.spec.placeholders.selector {
        None => mark,
        Some(selector) => format!("{mark} || {}", selects(selector, labels)),
    }
}

fn selects(selector: &LabelSelector, labels: &str) -> String {
    use crate::api::selector::Operator;
    let equal =
        selector.match_labels.iter().map(|(key, value)| format!("({0} in {labels} && {labels}[{0}] == {1})", quoted(key), quoted(value)));
    let expressions = selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (quoted(&requirement.key), list(&requirement.values));
        match requirement.operator {
            Operator::In => format!("({key} in {labels} && {labels}[{key}] in {values})"),
            Operator::NotIn => format!("!({key} in {labels} && {labels}[{key}] in {values})"),
            Operator::Exists => format!("{key} in {labels}"),
            Operator::DoesNotExist => format!("!({key} in {labels})"),
        }
    });
    format!("({})", equal.chain(expressions).collect::<Vec<_>>().join(" && "))
}
