//! Our own kinds: refused with every problem at once, before they are stored.

use super::answer::{Cause, Denial, DenialStatus, Notes};
use super::{Operation, Request, Unreadable, Validation};
use crate::api::documents::Document;
use crate::api::one_line;

pub fn review(request: &Request<'_>) -> Result<Validation, Unreadable> {
    let looked_at = request.sub_resource.is_empty() && matches!(request.operation, Operation::Create | Operation::Update);
    let Some(object) = request.object.filter(|_| looked_at) else { return Ok(Validation::default()) };
    let value = serde_json::from_str(object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    let (message, causes) = match Document::from_value(&request.kind.kind, value) {
        Err(message) => (message, vec![]),
        Ok(document) => {
            let problems = document.problems();
            if problems.is_empty() {
                return Ok(Validation::default());
            }
            let causes = problems
                .iter()
                .map(|p| Cause {
                    reason: "FieldValueInvalid".into(),
                    field: p.path.clone(),
                    message: format!("found {}, wanted {} (pecking-order)", p.found, p.wanted),
                })
                .collect();
            (one_line(&problems), causes)
        }
    };
    let (group, kind, name) = (request.kind.group.clone(), request.kind.kind.clone(), request.name.clone());
    let message = format!("{kind} `{name}` cannot be used: {message}");
    Ok(Validation { denial: Some(Denial { status: DenialStatus::Invalid, message, group, kind, name, causes }), notes: Notes::default() })
}
