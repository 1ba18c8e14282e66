//! Plans against a packer that tries everything, and cases of sizing.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn node(name: &str, cpu: i64, change: Value) -> Value {
    let mut node = json!({"kind": "Node", "metadata": {"name": name, "labels": {}},
        "status": {"allocatable": {"cpu": cpu.to_string(), "memory": "64Gi", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}});
    json_patch::merge(&mut node, &change);
    node
}

fn spot(zone: &str) -> Value {
    json!({"metadata": {"labels": {"karpenter.sh/capacity-type": "spot", ZONE: zone, INSTANCE_TYPE: "m5.large"}}})
}

fn pod(name: &str, on: &str, cpu: i64, change: Value) -> Value {
    let mut pod = json!({"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {}},
        "spec": {"nodeName": on, "priority": 0, "containers": [{"resources": {"requests": {"cpu": cpu.to_string()}}}]}});
    json_patch::merge(&mut pod, &change);
    pod
}

fn placeholder(name: &str, on: &str, cpu: i64) -> Value {
    pod(name, on, cpu, json!({"metadata": {"labels": {"headroom": "yes"}}, "spec": {"priority": -10}}))
}

fn cluster(objects: &[Value]) -> Cluster {
    let mut reader = Reader::default();
    for object in objects {
        reader.read(object.to_string().as_bytes(), &|labels, _| labels.contains_key("headroom")).unwrap();
    }
    Reader::cluster([reader])
}

fn plan_with(objects: &[Value], shape: Option<&str>) -> Plan {
    let rows = spot::built_in();
    let shape = shape.map(|cpu| [("cpu".to_owned(), Quantity::parse(cpu).unwrap())].into());
    cluster(objects).plan(&Options { domain: Domain::ZoneAndType, spot_rows: &rows, shape, prices: BTreeMap::new() })
}

fn left(plan: &Plan) -> Vec<(&str, &str)> {
    plan.left.iter().map(|left| (left.name.as_str(), left.why.as_str())).collect()
}

/// C5: eight half CPUs on eight full nodes are four, and no pod of three has room.
#[test]
fn c5_small_placeholders_are_no_room_for_a_large_pod() {
    let mut objects = vec![node("spot", 8, spot("a")), pod("big", "spot", 3, json!({}))];
    for i in 0..8 {
        let half = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}});
        let mut held = placeholder(&format!("p-{i}"), &format!("n-{i}"), 1);
        json_patch::merge(&mut held, &half);
        objects.extend([node(&format!("n-{i}"), 8, json!({})), held]);
        let rest = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "7500m"}}}]}});
        objects.push(pod(&format!("rest-{i}"), &format!("n-{i}"), 1, rest));
    }
    let plan = plan_with(&objects, None);
    assert_eq!(left(&plan), [("big", "8 nodes that stay would take it, and none has enough cpu left on one node")]);
    assert_eq!((plan.needed[0].count, plan.needed[0].shape["cpu"].as_str()), (1, "3"), "one of three CPUs");
    assert_eq!(plan.waves[0].do_not_fit, 1);
}

/// G2.
#[test]
fn g2_placeholders_on_spot_nodes_count_for_nothing() {
    let objects = [
        node("spot-a", 8, spot("a")),
        node("spot-b", 8, spot("b")),
        node("regular", 2, json!({})),
        pod("web", "spot-a", 3, json!({})),
        placeholder("room", "spot-b", 8),
    ];
    let plan = plan_with(&objects, None);
    assert_eq!(plan.left.len(), 1);
    assert_eq!(plan.warnings, ["1 placeholders are on spot nodes and count for nothing, such as shop/room"]);
}

/// G3.
#[test]
fn g3_placeholders_that_grow_with_the_cluster_are_warned_of() {
    let owned = json!({"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "name": "room-7cf4", "controller": true}]}});
    let mut held = placeholder("room-7cf4-x", "regular", 4);
    json_patch::merge(&mut held, &owned);
    let autoscaler = json!({"spec": {"containers": [{"image": "registry.k8s.io/cpa/cluster-proportional-autoscaler:v1.9.0",
        "command": ["/cluster-proportional-autoscaler", "--target=deployment/room"]}]}});
    let plan = plan_with(&[node("regular", 8, json!({})), held, pod("cpa", "regular", 1, autoscaler)], None);
    assert!(
        plan.warnings[0].starts_with("a cluster-proportional-autoscaler scales the placeholders of Deployment shop/room"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn who_does_not_fit_is_told_why() {
    let objects = [
        node("spot", 32, spot("a")),
        node("regular", 4, json!({"spec": {"taints": [{"key": "team", "value": "db", "effect": "NoSchedule"}]}})),
        node("small", 2, json!({})),
        pod("needs-spot", "spot", 1, json!({"spec": {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}})),
        pod("needs-ssd", "spot", 1, json!({"spec": {"nodeSelector": {"disk": "ssd"}}})),
        pod("large", "spot", 3, json!({})),
        pod("polite", "spot", 3, json!({"spec": {"preemptionPolicy": "Never"}})),
        pod("daemon", "spot", 1, json!({"metadata": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": true}]}})),
        pod("ended", "spot", 30, json!({"status": {"phase": "Succeeded"}})),
    ];
    let plan = plan_with(&objects, None);
    assert_eq!(plan.waves[0].pods, 4, "what goes with its node does not move");
    let mut why = left(&plan);
    why.sort();
    assert_eq!(
        why,
        [
            ("large", "1 nodes that stay would take it, and none has enough cpu left on one node"),
            ("needs-spot", "it requires spot nodes (nodeSelector[karpenter.sh/capacity-type]), which placeholders must stay off"),
            ("needs-ssd", "no node that stays meets its nodeSelector disk=ssd"),
            (
                "polite",
                "1 nodes that stay would take it, and none has enough cpu left on one node; it never preempts, so a placeholder's room is none for it"
            ),
        ]
    );
    let needed: Vec<(usize, &str)> = plan.needed.iter().map(|need| (need.count, need.placed_as.as_str())).collect();
    assert_eq!(needed, [(1, ""), (1, "disk=ssd")]);
}

#[test]
fn what_is_not_looked_at_is_never_promised() {
    let spread = json!({"spec": {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}});
    let plan = plan_with(&[node("spot", 8, spot("a")), node("regular", 8, json!({})), pod("web", "spot", 1, spread)], None);
    assert_eq!(plan.placed[0].doubt.as_deref(), Some("its topology spread constraint is not looked at"));
    assert!(!plan.placed[0].will_run);
}

/// Small before large spreads out, and leaves no node with enough for the large one.
#[test]
fn what_depends_on_the_order_is_not_promised() {
    let objects = [
        node("spot", 16, spot("a")),
        node("a", 4, json!({})),
        node("b", 4, json!({})),
        pod("large", "spot", 4, json!({})),
        pod("small-1", "spot", 2, json!({})),
        pod("small-2", "spot", 2, json!({})),
    ];
    let plan = plan_with(&objects, None);
    assert_eq!((plan.left.len(), plan.placed.len()), (0, 3), "there is a packing");
    let large = plan.placed.iter().find(|placed| placed.name == "large").unwrap();
    assert_eq!(large.doubt.as_deref(), Some("it depends on the order in which the pods come"));
}

#[test]
fn a_domain_is_what_the_operator_says() {
    let node = Node { labels: [("rack".into(), "7".into()), ("karpenter.sh/nodepool".into(), "ci".into())].into(), ..Node::default() };
    assert_eq!(Domain::Label("rack".into()).of(&node), "7");
    assert_eq!(Domain::NodePool.of(&node), "ci");
    assert_eq!(Domain::ZoneAndType.of(&node), "? ?");
}

/// The fewest bins of `shape` beside the nodes, by trying everything.
fn fewest(pods: &[i64], bins: &[i64], shape: i64) -> Option<usize> {
    fn fits(pods: &[i64], bins: &mut Vec<i64>) -> bool {
        let Some((pod, rest)) = pods.split_first() else { return true };
        (0..bins.len()).any(|i| {
            bins[i] >= *pod && {
                bins[i] -= pod;
                let fits = fits(rest, bins);
                bins[i] += pod;
                fits
            }
        })
    }
    (0..=pods.len()).find(|more| fits(pods, &mut bins.iter().copied().chain(std::iter::repeat_n(shape, *more)).collect()))
}

/// (CPUs, CPUs in use, CPUs of a placeholder) of each node that stays, and the CPUs of each pod of the wave.
fn small() -> impl Strategy<Value = (Vec<(i64, i64, i64)>, Vec<i64>)> {
    let node = (2..9_i64).prop_flat_map(|cpu| (Just(cpu), 0..=cpu)).prop_flat_map(|(cpu, used)| (Just(cpu), Just(used), 0..=(cpu - used)));
    (proptest::collection::vec(node, 0..4), proptest::collection::vec(1..6_i64, 1..8))
}

/// Who finds no room, where each takes what is free on the node with the largest share left, or else the placeholder of one node.
fn come_in_order(pods: &[i64], order: &[usize], nodes: &[(i64, i64, i64)]) -> Vec<String> {
    let mut left: Vec<(i64, i64, i64)> = nodes.iter().map(|(cpu, used, held)| (*cpu, cpu - used - held, *held)).collect();
    let mut unlucky = Vec::new();
    for pod in order {
        let cpu = pods[*pod];
        let share = |(all, free, _): &(i64, i64, i64)| (free - cpu) as f64 / *all as f64;
        let free = (0..left.len()).filter(|i| left[*i].1 >= cpu).max_by(|a, b| share(&left[*a]).total_cmp(&share(&left[*b])));
        let taken = free.or_else(|| (0..left.len()).find(|i| left[*i].1 + left[*i].2 >= cpu));
        match taken {
            Some(i) if left[i].1 >= cpu => left[i].1 -= cpu,
            Some(i) => left[i] = (left[i].0, left[i].1 + left[i].2 - cpu, 0),
            None => unlucky.push(format!("pod-{pod}")),
        }
    }
    unlucky
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn promises_no_room_that_is_not_there_and_asks_for_no_more_than_one_too_many((nodes, pods) in small(), seed in any::<u64>()) {
        let mut objects = vec![node("spot", 64, spot("a"))];
        for (i, (cpu, used, held)) in nodes.iter().enumerate() {
            let name = format!("n-{i}");
            objects.push(node(&name, *cpu, json!({})));
            objects.extend((*used > 0).then(|| pod(&format!("used-{i}"), &name, *used, json!({}))));
            objects.extend((*held > 0).then(|| placeholder(&format!("held-{i}"), &name, *held)));
        }
        objects.extend(pods.iter().enumerate().map(|(i, cpu)| pod(&format!("pod-{i}"), "spot", *cpu, json!({}))));
        let plan = plan_with(&objects, Some("6"));
        let mut room: Vec<i64> = nodes.iter().map(|(cpu, used, _)| cpu - used).collect();
        for placed in &plan.placed {
            let bin: usize = placed.node.trim_start_matches("n-").parse().unwrap();
            room[bin] -= placed.amounts[0] / 1000;
        }
        prop_assert!(room.iter().all(|left| *left >= 0), "{room:?}");
        let bins: Vec<i64> = nodes.iter().map(|(cpu, used, _)| cpu - used).collect();
        let needed = plan.needed.iter().map(|need| need.count).sum::<usize>();
        let fewest = fewest(&pods, &bins, 6).unwrap();
        prop_assert!(needed >= fewest && needed <= fewest + 1, "asks for {needed}, and {fewest} would do");
        prop_assert_eq!(plan.left.is_empty(), fewest == 0);
        prop_assert_eq!(plan.left.len() + plan.placed.len(), pods.len());
        // A promise holds in whatever order they come, where each goes to the node with the largest share left.
        let mut order: Vec<usize> = (0..pods.len()).collect();
        order.sort_by_key(|i| (*i as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));
        if pods.len() <= 6 {
            let unlucky = come_in_order(&pods, &order, &nodes);
            for cpu in 1..6_i64 {
                let promised = plan.placed.iter().filter(|placed| placed.will_run && placed.amounts[0] == cpu * 1000).count();
                let lucky = (0..pods.len()).filter(|i| pods[*i] == cpu && !unlucky.contains(&format!("pod-{i}"))).count();
                prop_assert!(promised <= lucky, "{promised} of {cpu} CPUs were promised, and {lucky} run: {unlucky:?}");
            }
        }
    }
}
