//! `offSpotStrict`: a placeholder that may land on a spot node is, sooner or later, on one. Off by default: most placeholders say nothing of
//! spot, and land where the others are not.
//!
//! A placeholder is proven off spot where every alternative that can be met pins a label of regular nodes, or shuts out the spot nodes of
//! every key that is in use (`spec.spotKeysInUse`); or where spot nodes are tainted (`spec.spotNodesTainted`) and it does not tolerate it.

use super::{Context, Finding, Rule, no_twin};
use crate::headroom::spot;

pub const RULE: Rule = Rule {
    id: "offSpotStrict",
    mode: |pool, _| pool.spec.rules.off_spot_strict,
    check,
    native: no_twin,
    unseen: "all of it: alternatives and what they leave are too much for an expression",
};

fn check(context: &Context<'_>) -> Option<Finding> {
    let (spec, pool) = (context.pod_spec()?, context.pool);
    if !spot::requires_spot(spec, &pool.spot_rows).is_empty() {
        // That is `offSpot`'s to say.
        return None;
    }
    let in_use = spot::InUse { keys: &pool.spec.spot_keys_in_use, tainted: pool.spec.spot_nodes_tainted };
    let (field, found) = spot::may_land(spec, &pool.spot_rows, &in_use)?;
    Some(Finding {
        field: context.below_spec(&field),
        found: found.clone(),
        wanted: "a nodeSelector or a required affinity that leaves only regular nodes".into(),
        why: "it may land on a spot node, which a reclaim takes away together with the pods that need the room".into(),
        evidence: vec![found],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::check_pod;
    use super::*;

    fn terms(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    fn found(pool: Value, spec: Value) -> Option<String> {
        check_pod(&RULE, pool, spec).map(|finding| format!("{}: {}", finding.field, finding.found))
    }

    /// D4, D6, D7, D11: pinned to regular nodes, or shut out by the one key that there is.
    #[test]
    fn d_what_is_proven_passes() {
        for spec in [
            json!({"nodeSelector": {"karpenter.sh/capacity-type": "on-demand"}}),
            json!({"nodeSelector": {"yandex.cloud/preemptible": "false"}}),
            terms(json!([expression("karpenter.sh/capacity-type", "In", &["reserved"])])),
            terms(json!([expression("kubernetes.azure.com/scalesetpriority", "NotIn", &["spot"])])),
            terms(json!([expression("machine.openshift.io/interruptible-instance", "DoesNotExist", &[])])),
        ] {
            assert_eq!(found(json!({}), spec.clone()), None, "{spec}");
        }
    }

    /// D8, D10, D11, D13: one alternative, a preference, or nothing at all.
    #[test]
    fn d_what_leaks_is_named() {
        let on_demand = expression("karpenter.sh/capacity-type", "In", &["on-demand"]);
        let zone = expression("topology.kubernetes.io/zone", "In", &["z-2"]);
        let leaking = found(json!({}), terms(json!([on_demand, zone]))).unwrap();
        assert!(leaking.ends_with("nodeSelectorTerms[1]: term 2 of 2"), "{leaking}");
        assert_eq!(found(json!({}), json!({})).unwrap(), "spec.affinity: nothing that keeps it off spot nodes");
        assert!(found(json!({}), terms(json!([expression("karpenter.sh/capacity-type", "In", &["spot", "on-demand"])]))).is_some());
        assert!(found(json!({}), json!({"nodeSelector": {"zone": "a"}})).is_some());
        assert!(found(json!({}), terms(json!([expression("node.alibabacloud.com/spot-strategy", "Exists", &[])]))).is_some());
    }

    /// D16: on AWS node groups and Karpenter stand side by side.
    #[test]
    fn d16_one_key_proves_nothing_about_another() {
        let one = terms(json!([expression("karpenter.sh/capacity-type", "NotIn", &["spot"])]));
        assert!(found(json!({}), one.clone()).is_some());
        assert_eq!(found(json!({"spotKeysInUse": ["karpenter.sh/capacity-type"]}), one), None, "where there is no other");
        let both = json!({"matchExpressions": [{"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot"]},
            {"key": "eks.amazonaws.com/capacityType", "operator": "NotIn", "values": ["SPOT"]}]});
        assert_eq!(found(json!({}), terms(json!([both]))), None);
    }

    /// D4, D13: tainted pools.
    #[test]
    fn d13_a_taint_keeps_those_off_that_do_not_tolerate_it() {
        let tainted = json!({"spotNodesTainted": true});
        assert_eq!(found(tainted.clone(), json!({})), None);
        let key = "kubernetes.azure.com/scalesetpriority";
        for toleration in [
            json!({"key": key, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}),
            json!({"key": key, "operator": "Exists"}),
            json!({"operator": "Exists"}),
        ] {
            assert!(found(tainted.clone(), json!({"tolerations": [toleration]})).is_some(), "{toleration}");
        }
        for toleration in
            [json!({"key": key, "operator": "Equal", "value": "other"}), json!({"key": key, "operator": "Exists", "effect": "NoExecute"})]
        {
            assert_eq!(found(tainted.clone(), json!({"tolerations": [toleration]})), None, "{toleration}");
        }
    }

    #[test]
    fn what_requires_spot_is_said_once_by_the_other_rule() {
        assert_eq!(found(json!({}), json!({"nodeSelector": {"spot": "true"}})), None);
    }
}
