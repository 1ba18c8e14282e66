//! PriorityClasses whose value an UPDATE would change. The API server refuses that by itself, before a validating webhook is asked; so this
//! one is asked where objects are still changed, and says what to do instead.

use super::answer::Notes;
use super::{Mutation, Operation, Request, Snapshot, Unreadable};
use crate::api::headroom_pool::Mode;
use crate::headroom::object::Kind;
use crate::headroom::{self, Object};

pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Mutation, Unreadable> {
    let is_class = Kind::find(&request.kind.group, &request.kind.kind) == Some(Kind::PriorityClass);
    let is_update = is_class && request.operation == Operation::Update;
    let (Some(object), Some(old)) = (request.object.filter(|_| is_update), request.old_object) else { return Ok(Mutation::default()) };
    let read = |field, json: &str| Object::read(Kind::PriorityClass, json).map_err(|source| Unreadable { field, source });
    let (object, old) = (read("request.object", object.get())?, read("request.oldObject", old.get())?);
    let found = headroom::review(&object, Some(&old), &snapshot.policies, &snapshot.headroom);
    let warnings = found.broken.iter().filter(|broken| broken.rule == "immutableValue" && broken.mode != Mode::Audit);
    let warning = |broken: &headroom::review::Broken| {
        let finding = &broken.finding;
        format!("[{}] value cannot change from {} to {}; use a class of another name", broken.rule, finding.wanted, finding.found)
    };
    let warnings = warnings.take(1).map(warning).collect();
    Ok(Mutation { patch: None, notes: Notes { warnings, ..Notes::default() } })
}
