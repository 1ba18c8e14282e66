//! What the conditions of a claim say.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::api::Pool;
use crate::headroom::room::{Claim, Decision};

/// The claims of which a condition has to change, by UID.
pub fn told<'a>(decision: &Decision<'a>, pool: &Pool, now: Timestamp) -> Vec<(&'a str, Vec<Condition>)> {
    let ended = decision.ended.iter().map(|(claim, ending)| (*claim, released(claim, ending.as_str(), now)));
    let bound = decision.bound.iter().map(|claim| {
        let message = format!(
            "holds a slot of HeadroomPool {} until the job's pod has a node, or {} s pass without a sign",
            pool.name,
            claim.ttl.as_secs()
        );
        (*claim, replaced(claim, [condition(claim, "Bound", "True", "Bound", &message, now)]))
    });
    let refused = decision.refused.iter().map(|(claim, refusal)| {
        (*claim, replaced(claim, [condition(claim, "Bound", "False", refusal.reason(), &refusal.to_string(), now)]))
    });
    let all = ended.chain(bound).chain(refused);
    all.filter(|(claim, conditions)| *conditions != claim.conditions).map(|(claim, conditions)| (claim.uid.as_str(), conditions)).collect()
}

/// How a claim has ended.
pub fn released(claim: &Claim, reason: &str, now: Timestamp) -> Vec<Condition> {
    let message = match reason {
        "PodPlaced" => "the job's pod has a node",
        "Deleted" => "the claim is being deleted",
        "Expired" => "no sign of its holder within spec.ttlSeconds",
        _ => "the job's pod ended, or went, before it had a node",
    };
    replaced(claim, [condition(claim, "Bound", "False", reason, message, now), condition(claim, "Released", "True", reason, message, now)])
}

/// A condition, with the time of its last change.
pub fn condition(claim: &Claim, type_: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    let before = claim.condition(type_).filter(|before| before.status == status);
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

/// The conditions of a claim with some in the place of others.
pub fn replaced<const N: usize>(claim: &Claim, new: [Condition; N]) -> Vec<Condition> {
    let mut conditions = claim.conditions.clone();
    for condition in new {
        match conditions.iter_mut().find(|before| before.type_ == condition.type_) {
            Some(before) => *before = condition,
            None => conditions.push(condition),
        }
    }
    conditions
}
