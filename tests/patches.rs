//! Property: whatever the pod and its cost, there is no patch, or one that applies, changes only the two cost annotations,
//! and asks for nothing more on a second run.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pecking_order::admission::request::{self, Body};
use pecking_order::admission::{Mutation, Request, Snapshot, Unreadable, gates, placeholders, pods};
use pecking_order::api::{CostPolicy, DeletionCostPolicy, HeadroomPool, Policies, Pool};
use pecking_order::cost::annotation::{COST, MARK};
use pecking_order::cost::score::Basis;
use pecking_order::cost::{Cost, CostCache};
use pecking_order::headroom::room::{GATE, Gates};
use proptest::prelude::*;
use serde_json::{Value, json};

fn snapshot(cost: i32, foreign_values: &str) -> Snapshot {
    let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}}, "foreignValues": foreign_values,
        "signals": [{"name": "work", "query": "work", "weight": 1, "cap": 1000}]}}))
    .unwrap();
    let policy = Arc::new(CostPolicy::compile(&policy));
    let costs = CostCache::with_capacity(10);
    costs.insert("uid", Cost::unmeasured(cost, Basis::Work, policy.clone()));
    Snapshot {
        policies: Arc::new(Policies::default().with_policy(policy)),
        headroom: Default::default(),
        gates: Default::default(),
        costs,
        contested: Default::default(),
    }
}

type Review = fn(&Request<'_>, &Snapshot) -> Result<Mutation, Unreadable>;

/// The patch that the pod's review is answered with.
fn answer(review: Review, operation: &str, pod: &Value, snapshot: &Snapshot) -> Option<Value> {
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "shop", "operation": operation, "object": pod}})
    .to_string();
    let Body::Request(request) = request::read(body.as_bytes()) else { panic!("{body}") };
    let answer: Value = serde_json::from_slice(&review(&request, snapshot).unwrap().answer("u").to_json()).unwrap();
    let text = answer["response"].get("patch")?.as_str().expect("a text");
    Some(serde_json::from_slice(&STANDARD.decode(text).unwrap()).unwrap())
}

fn annotations() -> impl Strategy<Value = Value> {
    let key = prop_oneof!["[a-z~/]{1,12}", Just(COST.to_owned()), Just(MARK.to_owned())];
    let value = prop_oneof!["\\PC{0,20}", "-?[0-9]{1,10}", Just("high".to_owned())];
    prop_oneof![Just(Value::Null), prop::collection::btree_map(key, value, 0..6).prop_map(|map| json!(map)),]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_patch_changes_only_the_two_annotations_and_a_second_run_changes_nothing(
        annotations in annotations(), leave_out in any::<bool>(), cost in any::<i32>(), create in any::<bool>(), over in any::<bool>(),
        extra in "[a-zA-Z]{1,10}", odd in "\\PC{0,30}",
    ) {
        let mut pod = json!({"metadata": {"uid": "uid", "labels": {"app": "web"}, "annotations": annotations, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true}], "managedFields": [{"manager": odd}]},
            "spec": {"containers": [{"name": "c", "fieldFromTheFuture": odd}], "schedulingGates": [{"name": "g"}]}});
        pod["spec"][format!("x{extra}")] = json!({"y": [1, null, odd]});
        if leave_out {
            pod["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        let operation = if create { "CREATE" } else { "UPDATE" };
        let snapshot = snapshot(cost, if over { "Override" } else { "Skip" });
        let Some(operations) = answer(pods::review, operation, &pod, &snapshot) else { return Ok(()) };

        let mut patched = pod.clone();
        let parsed: json_patch::Patch = serde_json::from_value(operations.clone()).unwrap();
        json_patch::patch(&mut patched, &parsed).map_err(|e| TestCaseError::fail(format!("{operations} does not apply: {e}")))?;
        let written = &patched["metadata"]["annotations"];
        prop_assert_eq!(&written[COST], &written[MARK]);
        prop_assert!(pecking_order::cost::annotation::parse(written[COST].as_str().unwrap()).is_some(), "no cost: {}", written[COST]);

        // Without the two annotations nothing is different, but that a map may be there which was not.
        let without = |pod: &Value| {
            let mut pod = pod.clone();
            let map = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
            pod["metadata"]["annotations"] = map.into_iter().filter(|(key, _)| key != COST && key != MARK).collect();
            pod
        };
        prop_assert_eq!(without(&patched), without(&pod));
        prop_assert_eq!(answer(pods::review, operation, &patched, &snapshot), None, "a second run patches again");
    }

    #[test]
    fn a_placeholders_patch_applies_and_changes_only_the_grace_period(
        grace in prop_oneof![Just(Value::Null), Just(json!(30)), (-5..100i64).prop_map(|n| json!(n))], leave_out in any::<bool>(), extra in "\\PC{0,20}",
    ) {
        let pool: HeadroomPool = serde_json::from_value(json!({"metadata": {"name": "general"}, "spec": {"rules": {"zeroGracePeriod": "Fix"}}})).unwrap();
        let policies = Arc::new(Policies::default().with_pool(Pool::compile(&pool)));
        let snapshot = Snapshot { policies, headroom: Default::default(), gates: Default::default(), costs: CostCache::with_capacity(1), contested: Default::default() };
        let mut pod = json!({"metadata": {"labels": {"pecking-order.dev/headroom": "general"}}, "spec": {"terminationGracePeriodSeconds": grace, "x": extra}});
        if leave_out {
            pod["spec"].as_object_mut().unwrap().remove("terminationGracePeriodSeconds");
        }
        let found = answer(placeholders::review, "CREATE", &pod, &snapshot);
        prop_assert_eq!(found.is_some(), !leave_out && grace == json!(30));
        let Some(operations) = found else { return Ok(()) };
        let mut patched = pod.clone();
        let parsed: json_patch::Patch = serde_json::from_value(operations).unwrap();
        json_patch::patch(&mut patched, &parsed).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(answer(placeholders::review, "CREATE", &patched, &snapshot), None, "a second run patches again");
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        prop_assert_eq!(patched, pod);
    }

    #[test]
    fn a_waiting_pods_patch_adds_our_gate_and_nothing_else(
        names in prop::collection::vec("[a-z]{1,8}\\.[a-z]{2,4}/[a-z]{1,8}", 0..3), absent in any::<bool>(), extra in "\\PC{0,20}", placed in any::<bool>(),
    ) {
        let spec = json!({"gate": {"pods": {"selector": {"matchLabels": {"wait": "yes"}}}}});
        let pool: HeadroomPool = serde_json::from_value(json!({"metadata": {"name": "general"}, "spec": spec})).unwrap();
        let (policies, gate) = (Arc::new(Policies::default().with_pool(Pool::compile(&pool))), json!({"name": GATE}));
        let kept = Arc::new(Gates { are_kept: true, ..Gates::default() });
        let snapshot = Snapshot { policies, headroom: Default::default(), gates: kept, costs: CostCache::with_capacity(1), contested: Default::default() };
        let mut pod = json!({"metadata": {"labels": {"wait": "yes"}}, "spec": {"priority": 0, "x": extra}});
        if !(absent && names.is_empty()) {
            pod["spec"]["schedulingGates"] = names.iter().map(|name| json!({"name": name})).collect();
        }
        if placed {
            pod["spec"]["nodeName"] = json!("node-1");
        }
        let found = answer(gates::review, "CREATE", &pod, &snapshot);
        prop_assert_eq!(found.is_some(), !placed, "the API server refuses a pod with both");
        prop_assert_eq!(answer(gates::review, "UPDATE", &pod, &snapshot), None, "a gate cannot be added later");
        let Some(operations) = found else { return Ok(()) };
        let mut patched = pod.clone();
        let parsed: json_patch::Patch = serde_json::from_value(operations).unwrap();
        json_patch::patch(&mut patched, &parsed).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(answer(gates::review, "CREATE", &patched, &snapshot), None, "a second run patches again");
        let all = names.iter().map(|name| json!({"name": name})).chain([gate]).collect();
        pod["spec"]["schedulingGates"] = Value::Array(all);
        prop_assert_eq!(patched, pod);
    }
}
