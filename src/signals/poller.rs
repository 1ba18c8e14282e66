//! One poller per policy: asks its backend, scores its pods, fills the cache. Nothing on the review path waits for it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep};
use tracing::{info, warn};

use super::matching::match_rows;
use super::{Query, Shared};
use crate::api::CostPolicy;
use crate::cluster::World;
use crate::cost::readings::{Readings, Sample};
use crate::cost::{Cost, GovernedPod, score};
use crate::server::metrics::Metrics;

/// The first poll of a policy comes at the latest after this.
const FIRST_POLL: Duration = Duration::from_secs(1);

/// Polls for as long as it is not dropped.
pub async fn run(policy: Arc<CostPolicy>, backend: Arc<Shared>, world: Arc<World>, metrics: Arc<Metrics>, polled: watch::Sender<bool>) {
    let period = Duration::from_secs(policy.spec.poll_seconds.into());
    let mut poller = Poller { policy, backend, world, metrics, readings: Readings::default(), answered: false, trouble: None };
    // The first poll comes within a second, since nothing is known before it. The others are spread over the period: a thousand
    // policies that were read together must not poll together for ever.
    let share = f64::from(RandomState::new().hash_one(&poller.policy.name) as u32) / f64::from(u32::MAX);
    sleep(period.min(FIRST_POLL).mul_f64(share)).await;
    poller.poll(Timestamp::now()).await;
    polled.send_replace(true);
    let mut ticks = tokio::time::interval_at(Instant::now() + period.mul_f64(share), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        poller.poll(Timestamp::now()).await;
    }
}

/// Polls once, and gives back what was read.
pub async fn poll_once(policy: Arc<CostPolicy>, backend: Arc<Shared>, world: Arc<World>, metrics: Arc<Metrics>) -> Readings {
    let mut poller = Poller { policy, backend, world, metrics, readings: Readings::default(), answered: false, trouble: None };
    poller.poll(Timestamp::now()).await;
    poller.readings
}

struct Poller {
    policy: Arc<CostPolicy>,
    backend: Arc<Shared>,
    world: Arc<World>,
    metrics: Arc<Metrics>,
    readings: Readings,
    /// Whether the backend has ever answered.
    answered: bool,
    /// What went wrong in the last poll: said once, not every fifteen seconds.
    trouble: Option<String>,
}

impl Poller {
    async fn poll(&mut self, now: Timestamp) {
        let started = Instant::now();
        let spec = &self.policy.spec;
        let pods = self.world.pods.governed_by(&self.policy, &self.world.policies());
        let max_age = Duration::from_secs(spec.samples.max_age_seconds.into());
        let answers = join_all(spec.signals.iter().map(|signal| self.ask(&signal.query, max_age, &pods))).await;

        let mut trouble = Vec::new();
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(samples) => {
                    self.answered = true;
                    self.readings.take_in(spec, index, samples, pods.iter().map(|pod| pod.uid.as_str()), now);
                }
                Err(why) => trouble.push(format!("signal `{}`: {why}", spec.signals[index].name)),
            }
        }
        self.readings.prune(spec, now, |uid| self.world.pods.has(&self.policy, uid));
        // Until something is known, what was written on the pods before is the better guess.
        if self.answered {
            self.publish(&pods, now);
        }
        self.report(trouble);
        self.metrics.poll_duration(started.elapsed());
    }

    /// The samples of one signal, by pod UID. Its rows are let go before the next query gets its turn.
    async fn ask(&self, query: &str, max_age: Duration, pods: &[Arc<GovernedPod>]) -> Result<HashMap<String, Sample>, String> {
        let policy = &self.policy;
        let text = self.backend.prepare(query, &policy.namespace)?;
        let query = Query { text, namespace: policy.namespace.clone(), max_age };
        let _turn = self.backend.turn().await;
        let rows = self.backend.query(&query).await.map_err(|e| {
            self.metrics.polls(&policy.spec.backend, e.kind());
            e.to_string()
        })?;
        let matched = match_rows(&rows, &policy.spec.pod_key, &policy.namespace, pods);
        if !rows.is_empty() && !pods.is_empty() && matched.others == rows.len() {
            // Rows that are all about others mean a wrong podKey, not that every pod is idle: no cost is changed.
            self.metrics.polls(&policy.spec.backend, "no_series_match");
            let labels = matched.labels.into_iter().collect::<Vec<_>>().join(", ");
            return Err(format!("none of {} rows names a governed pod; their labels are: {labels}", rows.len()));
        }
        self.metrics.polls(&policy.spec.backend, "ok");
        Ok(matched.samples)
    }

    fn publish(&self, pods: &[Arc<GovernedPod>], now: Timestamp) {
        let scores = score::score(&self.policy.spec, pods, &self.readings, now);
        let least_work = score::least_work(pods, &scores).into_iter().map(|(owner, cost)| (owner.to_owned(), cost)).collect();
        self.world.costs.set_least_work(&self.policy.key(), least_work);
        for (pod, score) in pods.iter().zip(scores) {
            let cost =
                Cost { value: score.cost, basis: score.basis, stale: score.stale, yields: score.yields, policy: self.policy.clone() };
            self.world.costs.insert(&pod.uid, cost);
        }
    }

    fn report(&mut self, trouble: Vec<String>) {
        let trouble = (!trouble.is_empty()).then(|| trouble.join("; "));
        let CostPolicy { namespace, name, .. } = &*self.policy;
        match (&self.trouble, &trouble) {
            (before, Some(now)) if before.as_ref() != Some(now) => {
                warn!(namespace, policy = name, trouble = now, "poll failed in part; last known values stay in use");
            }
            (Some(_), None) => info!(namespace, policy = name, "polls succeed again"),
            _ => {}
        }
        self.trouble = trouble;
    }
}
