//! Placeholder pods at CREATE, in pools whose grace period rule is in mode `Fix`: a grace period of 30 becomes 0.

use super::{Mutation, Operation, PodPatch, Request, Snapshot, Unreadable};
use crate::headroom::object::Kind;
use crate::headroom::{Object, rules};

pub fn review(request: &Request<'_>, snapshot: &Snapshot) -> Result<Mutation, Unreadable> {
    let is_pod = Kind::find(&request.kind.group, &request.kind.kind) == Some(Kind::Pod) && request.sub_resource.is_empty();
    let Some(object) = request.object.filter(|_| is_pod && request.operation == Operation::Create) else { return Ok(Mutation::default()) };
    let pod = Object::read(Kind::Pod, object.get()).map_err(|source| Unreadable { field: "request.object", source })?;
    let fixed = snapshot.policies.pools().any(|pool| pod.is_marked_by(pool) && rules::is_fixed_at_create(pool, &pod));
    Ok(Mutation::patch(fixed.then(PodPatch::zero_grace_period)))
}
