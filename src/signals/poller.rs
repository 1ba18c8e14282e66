//! One poller per policy: asks its backend, scores its pods, fills the cache. Nothing on the review path waits for it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep};
use tracing::debug;

use super::matching::{Matched, Targets};
use super::report::{Outcome, Poll};
use super::{Query, Shared};
use crate::api::CostPolicy;
use crate::cluster::status::PollReporter;
use crate::cluster::{World, fresh, jitter};
use crate::cost::census::Census;
use crate::cost::readings::{Readings, Taken};
use crate::cost::score::Score;
use crate::cost::{Cost, GovernedPod, score};
use crate::server::metrics::Metrics;

/// The first poll of a policy comes at the latest after this.
const FIRST_POLL: Duration = Duration::from_secs(1);

/// What is polled, and where it is told.
pub struct Poller {
    policy: Arc<CostPolicy>,
    backend: Arc<Shared>,
    world: Arc<World>,
    metrics: Arc<Metrics>,
    /// One per signal, as it is sent; or why it must not be.
    queries: Vec<Result<Query, String>>,
    readings: Readings,
    /// Whether the backend has ever answered.
    answered: bool,
}

impl Poller {
    pub fn new(policy: Arc<CostPolicy>, backend: Arc<Shared>, world: Arc<World>, metrics: Arc<Metrics>) -> Self {
        let max_age = Duration::from_secs(policy.spec.samples.max_age_seconds.into());
        let prepare = |query: &str| {
            let text = backend.prepare(query, &policy.namespace)?;
            Ok(Query { text, namespace: policy.namespace.clone(), max_age })
        };
        let queries = policy.signals.iter().map(|signal| prepare(&signal.query)).collect();
        Self { policy, backend, world, metrics, queries, readings: Readings::default(), answered: false }
    }

    /// Polls for as long as it is not dropped.
    pub async fn run(mut self, polled: watch::Sender<bool>, mut reporter: PollReporter) {
        let mut requests = self.world.fresh.register(self.policy.key());
        let period = Duration::from_secs(self.policy.spec.poll_seconds.into());
        // The first poll comes within a second, since nothing is known before it. The others are spread over the period: a
        // thousand policies that were read together must not poll together for ever.
        let share = jitter();
        sleep(period.min(FIRST_POLL).mul_f64(share)).await;
        let poll = self.poll(Timestamp::now()).await;
        reporter.report(&self.policy, poll);
        polled.send_replace(true);
        let mut ticks = tokio::time::interval_at(Instant::now() + period.mul_f64(share), period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // In turn, or out of turn for who cannot wait.
            let mut waiting = Vec::new();
            tokio::select! {
                _ = ticks.tick() => {}
                Some(request) = requests.recv() => waiting.push(request),
            }
            while let Ok(request) = requests.try_recv() {
                waiting.push(request);
            }
            let poll = self.poll(Timestamp::now()).await;
            reporter.report(&self.policy, poll);
            fresh::answer(waiting);
        }
    }

    pub fn into_readings(self) -> Readings {
        self.readings
    }

    /// Asks for every signal once, and puts the costs of all pods into the cache.
    pub async fn poll(&mut self, now: Timestamp) -> Poll {
        let started = Instant::now();
        let (policy, world) = (self.policy.clone(), self.world.clone());
        let pods = world.pods.governed_by(&policy, &world.policies());
        let targets = Targets::new(&policy.spec.pod_key, &policy.namespace, &pods);
        let answers = join_all(self.queries.iter().map(|query| self.ask(query, &targets, now))).await;
        let outcomes = self.take_in(answers, &pods, now);
        self.readings.prune(&policy.spec, now, |uid| world.pods.has(&policy, uid));
        let scores = score::score(&policy, &pods, &self.readings, now);
        // Until something is known, what was written on the pods before is the better guess.
        if self.answered {
            self.publish(&pods, &scores);
        }
        let census = Census::count(&policy, &pods, &scores, &self.readings, now);
        self.metrics.poll(policy.key(), started.elapsed(), &census);
        Poll { time: now, outcomes, census, not_honoured: world.pods.not_honoured(policy.key()) }
    }

    /// The samples of one signal. Its rows are let go before the next query gets its turn.
    async fn ask(&self, query: &Result<Query, String>, targets: &Targets<'_>, now: Timestamp) -> Result<Matched, Outcome> {
        let query = query.as_ref().map_err(|why| Outcome::Failed { kind: "refused", why: why.clone() })?;
        let _turn = self.backend.turn().await;
        let rows = self.backend.query(query).await.map_err(|e| Outcome::Failed { kind: e.kind(), why: e.to_string() })?;
        let oldest = now - SignedDuration::try_from(query.max_age).unwrap_or(SignedDuration::MAX);
        let matched = targets.match_rows(&rows, oldest);
        self.metrics.samples(&self.policy.spec.backend, &matched);
        if !rows.is_empty() && !targets.is_empty() && matched.others == rows.len() {
            // Rows that are all about others mean a wrong podKey, not that every pod is idle: no cost is changed.
            return Err(Outcome::NoneMatches { rows: rows.len(), labels: matched.labels.into_iter().collect() });
        }
        Ok(matched)
    }

    fn take_in(&mut self, answers: Vec<Result<Matched, Outcome>>, pods: &[Arc<GovernedPod>], now: Timestamp) -> Vec<Outcome> {
        let samples: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().map(|matched| &matched.samples[..])).collect();
        let taken = self.readings.take_in(&self.policy, &samples, pods, now);
        let outcome = |(answer, taken): (Result<Matched, Outcome>, Option<Taken>)| match (answer, taken) {
            (Err(outcome), _) => outcome,
            (Ok(_), Some(Taken::Doubted)) => Outcome::Doubted,
            (Ok(_), Some(Taken::Empty)) if !pods.is_empty() => Outcome::NoRows,
            (Ok(_), _) => Outcome::Used,
        };
        self.answered |= taken.iter().any(|taken| matches!(taken, Some(Taken::Believed | Taken::Empty)));
        let outcomes: Vec<Outcome> = answers.into_iter().zip(taken).map(outcome).collect();
        outcomes.iter().for_each(|outcome| self.metrics.polls(&self.policy.spec.backend, outcome.kind()));
        outcomes
    }

    fn publish(&self, pods: &[Arc<GovernedPod>], scores: &[Score]) {
        let least_work = score::least_work(pods, scores).into_iter().map(|(owner, cost)| (owner.to_owned(), cost)).collect();
        self.world.costs.set_least_work(self.policy.key(), least_work);
        for (pod, score) in pods.iter().zip(scores) {
            self.metrics.cost(score.cost);
            let Score { cost: value, basis, stale, yields, sampled } = *score;
            let cost = Cost { value, basis, stale, yields, sampled, policy: self.policy.clone() };
            let before = self.world.costs.replace(&pod.uid, cost);
            if before.is_none_or(|before| before.value != score.cost) {
                debug!(namespace = pod.namespace, pod = pod.name, cost = score.cost, from = score.basis.as_str(), "cost changed");
            }
        }
    }
}
