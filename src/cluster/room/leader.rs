//! What the leader does about room: it writes who holds a slot into the pool's status, and only then tells them.
//!
//! That status is taken only from who knows its last version, and a new leader writes it before it decides anything else: one that was
//! deposed while it slept cannot give a slot away any more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{ObjectReference, Pod as ApiPod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::claim_status::{condition, released, replaced, told};
use super::drain::{Drains, Restored};
use super::store::PoolState;
use super::watches::{read_claim, read_pool};
use crate::api::headroom_pool::{Drained, HeadroomPoolStatus, Mode};
use crate::api::{HeadroomClaim, HeadroomPool, Pool};
use crate::cluster::World;
use crate::cluster::conditions;
use crate::cluster::leadership::Leadership;
use crate::cluster::listing::CALL_LIMIT;
use crate::cluster::status::{FIELD_MANAGER, Reporter};
use crate::headroom;
use crate::headroom::room::{Claim, GATE, Ledger, Pod, Room};
use crate::server::metrics::Metrics;

/// Changes come in bursts; they are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Without a change, time itself is one: claims expire, pods have waited long enough.
const TICK: Duration = Duration::from_secs(1);
/// How often the placeholders are held against the rules.
const VIOLATIONS: Duration = Duration::from_secs(10);
/// Writes under way at once, for one pool.
const PARALLEL: usize = 16;
/// How long a claim that has ended can still be looked at.
const KEEP_ENDED: SignedDuration = SignedDuration::from_secs(600);
/// Claims that have ended are deleted so many at a time.
const DELETED_AT_ONCE: usize = 50;

/// Keeps the room of every pool.
pub struct Keeper {
    client: Client,
    world: Arc<World>,
    leadership: Leadership,
    reporter: Reporter,
    metrics: Arc<Metrics>,
    identity: String,
    /// Which list of the pods must have been read before this leader decides.
    takeover: Option<u64>,
    violations: HashMap<String, (Instant, u32)>,
    /// When a pod was last let go without room, by pool.
    gave_up: HashMap<String, Instant>,
    /// Placeholders that wait for a node, for how long it takes until room is full again.
    waiting: HashSet<String>,
    drains: Drains,
}

/// What one round over a pool comes to.
struct Round {
    ledger: Ledger,
    status: HeadroomPoolStatus,
    told: Vec<(Arc<Claim>, Vec<Condition>)>,
    let_go: Vec<(Pod, bool)>,
    failed: Vec<Pod>,
}

impl Keeper {
    /// The client must not retry by itself.
    pub fn new(
        client: Client,
        world: Arc<World>,
        leadership: Leadership,
        reporter: Reporter,
        metrics: Arc<Metrics>,
        identity: String,
    ) -> Self {
        let drains = Drains::new(client.clone());
        let (violations, gave_up, waiting) = (HashMap::new(), HashMap::new(), HashSet::new());
        Self { client, world, leadership, reporter, metrics, identity, takeover: None, violations, gave_up, waiting, drains }
    }

    /// Follows the room, and gives it away while this replica leads, for as long as it is polled.
    pub async fn run(mut self) {
        let mut changes = self.world.room.changes();
        loop {
            let _ = timeout(TICK, changes.changed()).await;
            sleep(TOGETHER).await;
            changes.mark_unchanged();
            self.publish();
            if !self.leadership.is_mine() {
                self.takeover = None;
                continue;
            }
            let list = *self.takeover.get_or_insert_with(|| self.world.room.ask_for_a_list());
            if !self.world.room.has_listed(list) {
                continue;
            }
            let policies = self.world.policies();
            for pool in policies.pools() {
                self.serve(pool).await;
            }
            self.answer_the_lost().await;
            for drained in self.world.room.take_abandoned() {
                self.drains.restore(&drained).await;
            }
        }
    }

    /// What reviews and metrics see, on every replica.
    fn publish(&mut self) {
        let (world, known) = (self.world.clone(), self.world.snapshot().headroom);
        let mut rooms = BTreeMap::new();
        for pool in world.policies().pools() {
            let ledger = world.room.decide(pool, &known, Timestamp::now(), |decision| decision.ledger.clone());
            self.metrics.room(&pool.name, &ledger, Timestamp::now());
            let priority = world.room.placeholder_priority(&pool.name);
            // What has not been read yet is not zero.
            if world.room.has_listed(0) {
                rooms.insert(pool.name.clone(), Room { free: ledger.free, priority });
            }
        }
        let policies = world.policies();
        self.metrics.retain_rooms(|pool| policies.pool(pool).is_some());
        world.room.publish(rooms);
    }

    async fn serve(&mut self, pool: &Pool) {
        let Some(state) = self.world.room.pool(&pool.name) else { return };
        let mut drain = self.drains.plan(pool, &self.world.room.pods(), &state.status.drained).await;
        for drained in std::mem::take(&mut drain.restore) {
            let restored = if self.leadership.is_mine() { self.drains.restore(&drained).await } else { Restored::Failed };
            match restored {
                Restored::Yes => info!(
                    pool = pool.name,
                    kind = drained.kind,
                    workload = drained.name,
                    replicas = drained.replicas,
                    "placeholders are back with their runners"
                ),
                Restored::NotOurs => {}
                // What it had must not be forgotten.
                Restored::Failed => drain.drained.push(drained),
            }
        }
        let round = self.decide(pool, &state, drain.drained);
        let generation = state.generation;
        let shape_is_known = self.world.shapes.load().of(&pool.name).is_some();
        self.reporter.room(&pool.name, generation, conditions::room::of_pool(pool, &round.ledger, shape_is_known));
        // Before anybody is told.
        if round.status != state.status && !self.write_status(pool, &state, &round.status).await {
            return;
        }
        for drained in &drain.scale_down {
            if self.leadership.is_mine() && self.drains.scale_down(drained).await {
                info!(
                    pool = pool.name,
                    kind = drained.kind,
                    workload = drained.name,
                    "placeholders were scaled to zero with their runners"
                );
            }
        }
        self.carry_out(pool, round).await;
    }

    fn decide(&mut self, pool: &Pool, state: &PoolState, drained: Vec<Drained>) -> Round {
        let (now, known) = (Timestamp::now(), self.world.snapshot().headroom);
        let violations = self.violations(pool);
        let may_give_up = self.gave_up.get(&pool.name).is_none_or(|at| at.elapsed() >= TICK);
        let (room, written_by) = (&self.world.room, self.identity.clone());
        let claims: HashMap<String, Arc<Claim>> = room.claims().into_iter().map(|claim| (claim.uid.clone(), claim)).collect();
        let round = room.decide(pool, &known, now, |decision| {
            let ledger = decision.ledger.clone();
            let holders = decision.holders.clone();
            let in_flight = ledger.in_flight + (holders.len() - ledger.holders.len()) as u32;
            let status = HeadroomPoolStatus {
                conditions: state.status.conditions.clone(),
                desired: Some(ledger.desired),
                bound: Some(ledger.bound),
                pending: Some(ledger.pending),
                oldest_pending: ledger.oldest_pending.map(Time),
                in_flight: Some(in_flight),
                free: Some(ledger.bound.saturating_sub(in_flight)),
                violations: Some(violations),
                holders,
                drained,
                written_by: Some(written_by),
            };
            let told = told(decision, pool, now)
                .into_iter()
                .filter_map(|(uid, conditions)| Some((claims.get(uid)?.clone(), conditions)))
                .collect();
            let let_go = decision.let_go.iter().map(|pod| (Pod::clone(pod), true));
            let gave_up = decision.gave_up.filter(|_| may_give_up).map(|pod| (pod.clone(), false));
            // What fails comes no faster than what is let go.
            let failed = decision.failed.iter().take(usize::from(may_give_up)).map(|pod| Pod::clone(pod)).collect();
            Round { ledger, status, told, let_go: let_go.chain(gave_up).collect(), failed }
        });
        if !round.failed.is_empty() || round.let_go.iter().any(|(_, has_room)| !has_room) {
            self.gave_up.insert(pool.name.clone(), Instant::now());
        }
        self.observe_refills(pool);
        round
    }

    /// How many placeholders break a rule.
    fn violations(&mut self, pool: &Pool) -> u32 {
        if let Some((_, count)) = self.violations.get(&pool.name).filter(|(at, _)| at.elapsed() < VIOLATIONS) {
            return *count;
        }
        let (policies, known) = (self.world.policies(), self.world.snapshot().headroom);
        let breaks_a_rule = |pod: &&Arc<Pod>| {
            let object = pod.object.as_ref().filter(|_| pod.is_alive() && pod.placeholder_of.contains(&pool.name));
            object.is_some_and(|object| {
                let review = headroom::review(object, None, &policies, &known);
                review.broken.iter().any(|broken| broken.pool == pool.name && matches!(broken.mode, Mode::Enforce | Mode::Warn))
            })
        };
        let count = self.world.room.pods().iter().filter(breaks_a_rule).count() as u32;
        self.violations.insert(pool.name.clone(), (Instant::now(), count));
        self.metrics.violations(&pool.name, count);
        count
    }

    /// A placeholder that was preempted is made anew and waits: how long, once it has a node.
    fn observe_refills(&mut self, pool: &Pool) {
        let own = |pod: &&Arc<Pod>| pod.is_alive() && pod.placeholder_of.first() == Some(&pool.name);
        for pod in self.world.room.pods().iter().filter(own) {
            if pod.node.is_none() {
                self.waiting.insert(pod.uid.clone());
            } else if self.waiting.remove(&pod.uid) {
                let took = Timestamp::now().duration_since(pod.created);
                self.metrics.refill(&pool.name, Duration::try_from(took).unwrap_or_default());
            }
        }
        if self.waiting.len() > 10_000 {
            self.waiting.clear();
        }
    }

    /// Whether the API server has taken it.
    async fn write_status(&self, pool: &Pool, state: &PoolState, status: &HeadroomPoolStatus) -> bool {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::erase::<HeadroomPool>(&()));
        let Ok(mut fields) = serde_json::to_value(status) else { return false };
        // What is absent now must be taken away, and conditions are not ours to write here.
        for field in ["oldestPending", "holders", "drained"] {
            if fields.get(field).is_none() {
                fields[field] = Value::Null;
            }
        }
        fields.as_object_mut().into_iter().for_each(|fields| drop(fields.remove("conditions")));
        let patch = json!({"metadata": {"resourceVersion": state.version, "uid": state.uid}, "status": fields});
        if !self.leadership.is_mine() {
            return false;
        }
        match timeout(CALL_LIMIT, api.patch_status(&pool.name, &by_us(), &Patch::Merge(&patch))).await {
            Ok(Ok(object)) => {
                self.world.room.update_pool(&pool.name, read_pool(&object));
                true
            }
            // Somebody else has written it; the watch brings it, and wakes us up.
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => false,
            Ok(Err(e)) => {
                warn!(pool = pool.name, error = %e, "cannot write who holds room; nothing is given away");
                false
            }
            Err(_) => false,
        }
    }

    async fn carry_out(&self, pool: &Pool, round: Round) {
        let mut writes: Vec<BoxFuture<'_, ()>> = Vec::new();
        for (claim, conditions) in round.told {
            writes.push(self.tell(claim, conditions).boxed());
        }
        for (pod, has_room) in round.let_go {
            writes.push(self.let_go(pool, pod, has_room).boxed());
        }
        for pod in round.failed {
            writes.push(self.fail(pool, pod).boxed());
        }
        futures::stream::iter(writes).buffer_unordered(PARALLEL).for_each(|()| std::future::ready(())).await;
    }

    /// Writes conditions of a claim, unless somebody has written the claim since it was read: then it is looked at again.
    async fn tell(&self, claim: Arc<Claim>, conditions: Vec<Condition>) {
        let version = self.world.room.claim_version(&claim.uid);
        let patch = json!({"metadata": {"resourceVersion": version, "uid": claim.uid}, "status": {"conditions": conditions}});
        if !self.leadership.is_mine() {
            return;
        }
        let api = claims(&self.client, &claim.namespace);
        match timeout(CALL_LIMIT, api.patch_status(&claim.name, &by_us(), &Patch::Merge(&patch))).await {
            Ok(Ok(object)) => {
                if let Some((now, version)) = read_claim(object) {
                    self.count(&claim, &now);
                    self.world.room.update_claim(now, version);
                }
            }
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => {}
            Ok(Err(e)) => {
                warn!(namespace = claim.namespace, claim = claim.name, error = %e, "cannot write the claim's status; trying again")
            }
            Err(_) => {}
        }
    }

    fn count(&self, before: &Claim, now: &Claim) {
        if now.is_bound() && !before.is_bound() {
            self.metrics.claims(&now.pool, "Bound");
        }
        if now.is_released() && !before.is_released() {
            let reason = now.condition("Released").map(|condition| condition.reason.clone()).unwrap_or_default();
            let known = ["PodPlaced", "Deleted", "Expired", "PlacementFailed"].into_iter().find(|known| *known == reason);
            // A runner that asked in vain does not take the job.
            self.metrics.claims(&now.pool, if before.is_bound() { known.unwrap_or("Other") } else { "Unserved" });
        }
    }

    async fn let_go(&self, pool: &Pool, pod: Pod, has_room: bool) {
        if !self.leadership.is_mine() {
            return;
        }
        match ungate(&self.client, &pod.namespace, &pod.name, Some(&pod.uid)).await {
            Ok(Some(_)) => {
                // The watch says so too, a moment later.
                self.world.room.update_pod(Pod { has_our_gate: false, ..pod.clone() });
                self.metrics.gate(&pool.name, if has_room { "let_go" } else { "gave_up" });
                if !has_room {
                    let note = format!("no room in HeadroomPool {} within maxWaitSeconds; the scheduler decides now", pool.name);
                    self.reporter.event(reference(&pod), event(EventType::Warning, "HeadroomWaitEnded", note));
                }
            }
            Ok(None) => {}
            Err(why) => warn!(namespace = pod.namespace, pod = pod.name, why, "cannot take our gate away; trying again"),
        }
    }

    /// The pod ends as one that could not be run; its controller does what it does about those.
    async fn fail(&self, pool: &Pool, pod: Pod) {
        let message = format!("no room in HeadroomPool {} within spec.gate.maxWaitSeconds", pool.name);
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "reason": "HeadroomWaitEnded", "message": message}});
        if !self.leadership.is_mine() {
            return;
        }
        let api: Api<ApiPod> = Api::namespaced(self.client.clone(), &pod.namespace);
        match timeout(CALL_LIMIT, api.patch_status(&pod.name, &by_us(), &Patch::Merge(&patch))).await {
            Ok(Ok(_)) => {
                self.metrics.gate(&pool.name, "failed");
                self.reporter.event(reference(&pod), event(EventType::Warning, "HeadroomWaitEnded", message));
            }
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => {}
            Ok(Err(e)) => {
                warn!(namespace = pod.namespace, pod = pod.name, error = %e, "cannot let a pod fail that has waited too long; trying again")
            }
            Err(_) => {}
        }
    }

    /// Claims for pools that there are not, claims that ended long ago, and pods that wait for a pool that does not gate them any more.
    async fn answer_the_lost(&self) {
        let (policies, now) = (self.world.policies(), Timestamp::now());
        let claims = self.world.room.claims();
        for claim in claims.iter().filter(|claim| claim.is_live() && policies.pool(&claim.pool).is_none()) {
            let conditions = match claim.ending(&[], now) {
                Some(ending) => released(claim, ending.as_str(), now),
                None => replaced(
                    claim,
                    [condition(claim, "Bound", "False", "UnknownPool", &format!("there is no HeadroomPool {}", claim.pool), now)],
                ),
            };
            if conditions != claim.conditions {
                self.tell(claim.clone(), conditions).await;
            }
        }
        let ended_long_ago = |claim: &&Arc<Claim>| {
            let released = claim.condition("Released").filter(|condition| condition.status == "True");
            released.is_some_and(|condition| condition.last_transition_time.0.saturating_add(KEEP_ENDED).is_ok_and(|end| end <= now))
        };
        for claim in claims.iter().filter(ended_long_ago).take(DELETED_AT_ONCE) {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: Some(claim.uid.clone()), resource_version: None }),
                ..DeleteParams::default()
            };
            if self.leadership.is_mine()
                && let Ok(Err(e)) = timeout(CALL_LIMIT, self::claims(&self.client, &claim.namespace).delete(&claim.name, &params)).await
                && !crate::cluster::listing::is_absent(&e)
            {
                warn!(namespace = claim.namespace, claim = claim.name, error = %e, "cannot delete a claim that ended long ago");
            }
        }
        let gates = self.world.room.gates();
        let is_forgotten = |pod: &&Arc<Pod>| {
            let gated = policies.pools().any(|pool| gates.gate(pool, &pod.namespace, &pod.labels));
            let claimed = claims.iter().any(|claim| claim.is_live() && claim.is_of(pod) && policies.pool(&claim.pool).is_some());
            pod.has_our_gate && pod.awaits_a_node() && !gated && !claimed
        };
        // One in each round: there may be many, and nobody counts room for them.
        if let Some(pod) = self.world.room.pods().iter().find(is_forgotten)
            && self.leadership.is_mine()
            && let Ok(Some(_)) = ungate(&self.client, &pod.namespace, &pod.name, Some(&pod.uid)).await
        {
            info!(namespace = pod.namespace, pod = pod.name, "no pool gates this pod any more; it was let go");
            self.world.room.update_pod(Pod { has_our_gate: false, ..Pod::clone(pod) });
        }
    }
}

/// Takes our gate from a pod, and no other. `None` where the pod is gone, or has changed its identity.
pub async fn ungate(client: &Client, namespace: &str, name: &str, uid: Option<&str>) -> Result<Option<ApiPod>, String> {
    let api: Api<ApiPod> = Api::namespaced(client.clone(), namespace);
    let patch = json!({"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}});
    match timeout(CALL_LIMIT, api.patch(name, &by_us(), &Patch::Strategic(&patch))).await {
        Ok(Ok(pod)) => Ok(Some(pod)),
        Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => Ok(None),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("no answer within {CALL_LIMIT:?}")),
    }
}

fn claims(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<HeadroomClaim>(&()))
}

fn by_us() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

fn reference(pod: &Pod) -> ObjectReference {
    let text = |text: &str| Some(text.to_owned());
    let (api_version, kind) = (text("v1"), text("Pod"));
    ObjectReference {
        api_version,
        kind,
        namespace: text(&pod.namespace),
        name: text(&pod.name),
        uid: text(&pod.uid),
        ..ObjectReference::default()
    }
}

fn event(type_: EventType, reason: &str, note: String) -> Event {
    Event { type_, reason: reason.into(), note: Some(note), action: "Gate".into(), secondary: None }
}
