//! Our own kinds: refused with every problem at once, before they are stored.

use serde_json::Value;

use super::answer::{Cause, Denial, DenialStatus, Notes};
use super::{Operation, Request, Unreadable, Validation};
use crate::api::documents::Document;
use crate::api::{DeletionCostPolicySpec, Problem};

/// A larger document is not read: it becomes a tree, many times its size, and none of ours comes near.
const MOST_BYTES: usize = 256 << 10;

/// `query_problems` is what the backend of a policy of this namespace says of its queries.
pub fn review(
    request: &Request<'_>,
    query_problems: &impl Fn(&DeletionCostPolicySpec, &str) -> Vec<Problem>,
) -> Result<Validation, Unreadable> {
    let said = |object| said(&request.kind.kind, object, &|policy| query_problems(policy, &request.namespace));
    let looked_at = request.sub_resource.is_empty() && matches!(request.operation, Operation::Create | Operation::Update);
    let Some(object) = request.object.filter(|_| looked_at) else { return Ok(Validation::default()) };
    if object.get().len() > MOST_BYTES {
        let (group, kind, name) = (request.kind.group.clone(), request.kind.kind.clone(), request.name.clone());
        let message = format!("{kind} `{name}` cannot be used: found {} bytes, wanted at most {MOST_BYTES}", object.get().len());
        return Ok(Validation {
            denial: Some(Denial { status: DenialStatus::Invalid, message, group, kind, name, causes: vec![] }),
            notes: Notes::default(),
        });
    }
    let object: Value = serde_json::from_str(object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    if object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return Ok(Validation::default());
    }
    // What was wrong before is not this request's fault: the object must stay repairable and removable.
    let old = request.old_object.filter(|old| old.get().len() <= MOST_BYTES).and_then(|old| serde_json::from_str(old.get()).ok());
    let before = old.map(said).unwrap_or_default();
    let introduced: Vec<Said> = said(object).into_iter().filter(|problem| !before.contains(problem)).collect();
    if introduced.is_empty() {
        return Ok(Validation::default());
    }
    let (group, kind, name) = (request.kind.group.clone(), request.kind.kind.clone(), request.name.clone());
    let all: Vec<String> = introduced.iter().map(|(path, what)| format!("{path}: {what}")).collect();
    let message = format!("{kind} `{name}` cannot be used: {}", all.join("; "));
    let causes = introduced
        .into_iter()
        .map(|(field, what)| Cause { reason: "FieldValueInvalid".into(), message: format!("{what} (pecking-order)"), field })
        .collect();
    Ok(Validation { denial: Some(Denial { status: DenialStatus::Invalid, message, group, kind, name, causes }), notes: Notes::default() })
}

/// What is wrong with a field: its path, and a text.
type Said = (String, String);

fn said(kind: &str, object: Value, query_problems: &impl Fn(&DeletionCostPolicySpec) -> Vec<Problem>) -> Vec<Said> {
    match Document::from_value(kind, object) {
        Ok(document) => {
            let mut problems = document.problems();
            if let Document::DeletionCostPolicy(policy) = &document {
                problems.extend(query_problems(&policy.spec));
            }
            problems.into_iter().map(|p| (p.path, format!("found {}, wanted {}", p.found, p.wanted))).collect()
        }
        Err(message) => {
            let (path, what) = message.split_once(": ").unwrap_or(("", &message));
            vec![(path.into(), what.into())]
        }
    }
}
