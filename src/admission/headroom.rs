//! PriorityClasses, placeholder pods and their templates: refused where they would defeat the headroom, with every reason
//! at once.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Cause, Denial, DenialStatus, Notes};
use super::{Operation, Request, Snapshot, Unreadable, Validation, gates};
use crate::api::headroom_pool::Mode;
use crate::headroom::object::Kind;
use crate::headroom::review::Broken;
use crate::headroom::{self, Object, Review};

pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Validation, Unreadable> {
    let kind = Kind::find(&request.kind.group, &request.kind.kind).filter(|_| request.sub_resource.is_empty());
    let looked_at = matches!(request.operation, Operation::Create | Operation::Update);
    let (Some(kind), Some(object)) = (kind, request.object.filter(|_| looked_at)) else { return Ok(Validation::default()) };
    // A pod that waits for room in vain is nobody's placeholder.
    if let Some(denial) = gates::denial(request, snapshot)? {
        return Ok(Validation { denial: Some(denial), notes: Notes::default() });
    }
    let mut object = Object::read(kind, object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    // A manifest may leave it to the request.
    object.namespace.clone_from(&request.namespace);
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    let old =
        old.map(|old| Object::read(kind, old.get())).transpose().map_err(|source| Unreadable { field: "request.oldObject", source })?;
    let found = headroom::review(&object, old.as_ref(), &snapshot.policies, &snapshot.headroom);
    Ok(validation(&object, &found))
}

fn validation(object: &Object, found: &Review) -> Validation {
    let mut audit = BTreeMap::new();
    // Two pools may mark the object; a rule is named once.
    let rules = |mode: Mode| {
        let rules: BTreeSet<&str> = found.with_mode(mode).map(|broken| broken.rule).collect();
        rules.into_iter().collect::<Vec<_>>().join(",")
    };
    for (key, mode) in [("headroom-refused", Mode::Enforce), ("headroom-warned", Mode::Warn), ("headroom-audited", Mode::Audit)] {
        let rules = rules(mode);
        if !rules.is_empty() {
            audit.insert(key, rules);
        }
    }
    let short = |broken: &Broken| {
        let finding = &broken.finding;
        format!("[{}] found {}, wanted {}: {}", broken.rule, finding.found, finding.wanted, finding.field)
    };
    let warnings = found.with_mode(Mode::Warn).map(short).chain(found.unresolved.iter().chain(&found.notes).cloned()).collect();
    Validation { denial: denial(object, found), notes: Notes { warnings, audit } }
}

fn denial(object: &Object, found: &Review) -> Option<Denial> {
    let refused: Vec<&Broken> = found.with_mode(Mode::Enforce).collect();
    refused.first()?;
    let pools: BTreeSet<&str> = refused.iter().map(|broken| broken.pool.as_str()).collect();
    let pools = pools.into_iter().collect::<Vec<_>>().join("`, `");
    let reasons: Vec<String> = refused.iter().map(|broken| format!("[{}] {}", broken.rule, broken.finding)).collect();
    let what = match object.is_of_a_capacity_buffer() {
        // What follows is shown as a condition of the buffer, where nobody knows of a pod.
        true => "the pod template of this CapacityBuffer".to_owned(),
        false => format!("{} `{}`", object.kind.name(), object.name),
    };
    // Where only the kind of object is wrong, no field can be mended.
    let status = if refused.iter().all(|broken| broken.finding.field == "kind") { DenialStatus::Forbidden } else { DenialStatus::Invalid };
    Some(Denial {
        status,
        message: format!("{what} is headroom of pool `{pools}` and would not work as such: {}", reasons.join("; ")),
        group: object.kind.group().into(),
        kind: object.kind.name().into(),
        name: object.name.clone(),
        // kubectl shows the causes of an invalid object and not the message, so each must say by itself who says so.
        causes: refused
            .iter()
            .map(|Broken { rule, pool, finding, .. }| Cause {
                reason: (*rule).into(),
                field: finding.field.clone(),
                message: format!(
                    "[{rule}] found {}, wanted {}: {} (HeadroomPool {pool}, pecking-order; docs/headroom.md#{rule})",
                    finding.found, finding.wanted, finding.why
                ),
            })
            .collect(),
    })
}
