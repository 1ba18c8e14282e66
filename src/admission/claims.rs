//! HeadroomClaims at CREATE: one that can never be served is refused, rather than left waiting.

use serde_json::Value;

use super::answer::{Cause, Denial, DenialStatus, Notes};
use super::{Operation, Request, Snapshot, Unreadable, Validation};
use crate::api::documents::{Document, nearest};
use crate::api::{HeadroomClaim, Problem};

pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Validation, Unreadable> {
    let is_new = request.operation == Operation::Create && request.sub_resource.is_empty();
    let Some(object) = request.object.filter(|_| is_new) else { return Ok(Validation::default()) };
    let object: Value = serde_json::from_str(object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    let (status, problems) = match Document::from_value("HeadroomClaim", object) {
        Ok(Document::HeadroomClaim(claim)) => problems(request, &claim, snapshot),
        Ok(_) => return Ok(Validation::default()),
        Err(message) => {
            let (path, what) = message.split_once(": ").unwrap_or(("", &message));
            (DenialStatus::Invalid, vec![Problem::new(path, what, "a HeadroomClaim")])
        }
    };
    if problems.is_empty() {
        return Ok(Validation::default());
    }
    let (group, kind, name) = (request.kind.group.clone(), request.kind.kind.clone(), request.name.clone());
    let message = format!("{kind} `{name}` cannot be served: {}", crate::api::one_line(&problems));
    let cause = |p: &Problem| Cause {
        reason: "FieldValueInvalid".into(),
        message: format!("found {}, wanted {} (pecking-order)", p.found, p.wanted),
        field: p.path.clone(),
    };
    let causes = problems.iter().map(cause).collect();
    Ok(Validation { denial: Some(Denial { status, message, group, kind, name, causes }), notes: Notes::default() })
}

fn problems(request: &Request<'_>, claim: &HeadroomClaim, snapshot: &Snapshot) -> (DenialStatus, Vec<Problem>) {
    let mut problems = claim.spec.problems();
    let name = &claim.spec.pool;
    let Some(pool) = snapshot.policies.pool(name) else {
        let hint = nearest(name, snapshot.policies.pools().map(|pool| pool.name.as_str()));
        let hint = hint.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        problems.push(Problem::new("spec.pool", format!("`{name}`"), format!("the name of a HeadroomPool that there is{hint}")));
        return (DenialStatus::Invalid, problems);
    };
    let allowed = &pool.spec.claims.namespaces;
    if problems.is_empty() && !allowed.is_empty() && !allowed.contains(&request.namespace) {
        let wanted = format!("one of {} (spec.claims.namespaces of HeadroomPool {name})", allowed.join(", "));
        return (DenialStatus::Forbidden, vec![Problem::new("metadata.namespace", format!("`{}`", request.namespace), wanted)]);
    }
    (DenialStatus::Invalid, problems)
}
