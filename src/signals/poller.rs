//! One poller per policy: asks its backend, scores its pods, fills the cache. Nothing on the review path waits for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout};
use tracing::debug;

use super::matching::{Matched, Targets};
use super::report::{Outcome, Poll};
use super::{Query, Shared};
use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::Missing;
use crate::cluster::status::PollReporter;
use crate::cluster::{World, fresh, jitter};
use crate::cost::census::Census;
use crate::cost::readings::{Readings, Taken};
use crate::cost::score::Score;
use crate::cost::{Cost, GovernedPod, score};
use crate::server::metrics::Metrics;

/// The first poll of a policy comes at the latest after this.
const FIRST_POLL: Duration = Duration::from_secs(1);

/// A poll out of turn comes no sooner than this after the one before it.
const BETWEEN_POLLS: Duration = Duration::from_secs(2);

/// How long a query waits for its turn at least, however often its policy is polled.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

/// The most that a backend's `timeoutSeconds` may be.
const LONGEST_QUERY: Duration = Duration::from_secs(300);

/// What is polled, and where it is told.
pub struct Poller {
    policy: Arc<CostPolicy>,
    backend: Arc<Shared>,
    world: Arc<World>,
    metrics: Arc<Metrics>,
    /// One per signal, as it is sent; or why it must not be.
    queries: Vec<Result<Query, String>>,
    known: Known,
}

/// What the polls of a policy have brought so far. It outlives a poller whose policy is changed in what does not concern it.
#[derive(Default)]
pub struct Knowledge {
    pub readings: Readings,
    /// Whether the backend has ever answered.
    answered: bool,
    /// Whether an answer has ever named a governed pod: then it is not the key that is wrong.
    key_fits: bool,
}

pub type Known = Arc<Mutex<Knowledge>>;

impl Poller {
    pub fn new(policy: Arc<CostPolicy>, backend: Arc<Shared>, world: Arc<World>, metrics: Arc<Metrics>, known: Known) -> Self {
        let max_age = Duration::from_secs(policy.spec.samples.max_age_seconds.into());
        let prepare = |query: &str| {
            let text = backend.prepare(query, &policy.namespace)?;
            Ok(Query { text, namespace: policy.namespace.clone(), max_age })
        };
        let queries = policy.signals.iter().map(|signal| prepare(&signal.query)).collect();
        Self { policy, backend, world, metrics, queries, known }
    }

    /// Polls for as long as it is not dropped.
    pub async fn run(self, polled: watch::Sender<bool>, mut reporter: PollReporter) {
        let mut requests = self.world.fresh.register(self.policy.key());
        let period = self.period();
        // The first poll comes within a second, since nothing is known before it. The others are spread over the period: a
        // thousand policies that were read together must not poll together for ever.
        let share = jitter();
        self.world.progress.show(self.policy.key(), period);
        sleep(period.min(FIRST_POLL).mul_f64(share)).await;
        let poll = self.poll().await;
        reporter.report(&self.policy, poll);
        polled.send_replace(true);
        let mut ticks = tokio::time::interval_at(Instant::now() + period.mul_f64(share), period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut began, least) = (Instant::now(), self.backend.least_period().max(BETWEEN_POLLS));
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
            // Asked again right after a poll, the backend would say the same; and it may charge for it.
            let out_of_turn = !waiting.is_empty();
            if out_of_turn && (began.elapsed() < least || waiting.iter().all(fresh::Request::is_closed)) {
                fresh::answer(waiting);
                continue;
            }
            began = Instant::now();
            let poll = self.poll().await;
            reporter.report(&self.policy, poll);
            fresh::answer(waiting);
        }
    }

    /// Asks for every signal once, and puts the costs of all pods into the cache.
    pub async fn poll(&self) -> Poll {
        let started = Instant::now();
        let (policy, world) = (&self.policy, &self.world);
        let period = self.period();
        world.progress.show_busy(policy.key(), period, self.patience() + LONGEST_QUERY);
        let pods = world.pods.governed_by(policy, &world.policies());
        let targets = Targets::new(&policy.spec.pod_key, &policy.namespace, &pods);
        let answers = join_all(self.queries.iter().map(|query| self.ask(query, &targets))).await;
        // Answers may have been long under way.
        let now = Timestamp::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = self.take_in(&mut known, answers, &pods, now);
        known.readings.prune(&policy.spec, now, |uid| world.pods.has(policy, uid));
        let scores = score::score(policy, &pods, &known.readings, &world.nodes.load(), now);
        // Until something is known, what was written on the pods before is the better guess.
        if known.answered {
            self.publish(&pods, &scores);
        }
        let census = Census::count(policy, &pods, &scores, &known.readings, now);
        drop(known);
        world.progress.show(policy.key(), period);
        self.metrics.poll(policy.key(), started.elapsed(), &census);
        let not_honoured = world.pods.not_honoured(policy, &world.policies());
        let contested = pods.iter().filter_map(|pod| Some((pod.name.clone(), world.contested.by(&pod.uid)?))).collect();
        Poll { time: now, generation: policy.generation, outcomes, census, contested, not_honoured }
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.policy.spec.poll_seconds.into()).max(self.backend.least_period())
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.policy.spec.poll_seconds.into()).max(LEAST_PATIENCE)
    }

    /// The samples of one signal. Its rows are let go before the next query gets its turn.
    async fn ask(&self, query: &Result<Query, String>, targets: &Targets<'_>) -> Result<Matched, Outcome> {
        let query = query.as_ref().map_err(|why| Outcome::Failed { kind: "refused", why: why.clone() })?;
        // Behind a backend that hangs the queue would be longer and longer.
        let patience = self.patience();
        let Ok(_turn) = timeout(patience, self.backend.turn()).await else {
            let why = format!("no turn within {patience:?}: the backend is slow, and other queries wait for it too");
            return Err(Outcome::Failed { kind: "timeout", why });
        };
        let rows = self.backend.ask(query).await.map_err(|e| Outcome::Failed { kind: e.kind(), why: e.to_string() })?;
        let oldest = Timestamp::now() - SignedDuration::try_from(query.max_age).unwrap_or(SignedDuration::MAX);
        let matched = targets.match_rows(&rows, oldest);
        self.metrics.samples(&self.policy.spec.backend, &matched);
        Ok(matched)
    }

    fn take_in(
        &self,
        known: &mut Knowledge,
        mut answers: Vec<Result<Matched, Outcome>>,
        pods: &[Arc<GovernedPod>],
        now: Timestamp,
    ) -> Vec<Outcome> {
        known.key_fits |= answers.iter().flatten().any(|matched| matched.used() > 0);
        for (answer, signal) in answers.iter_mut().zip(&self.policy.signals) {
            // Rows that are all about others mean a wrong podKey, not that every pod is idle. Where the key is known to fit, and no
            // series means zero, they are another workload's.
            let means_zero = known.key_fits && signal.missing == Missing::Zero;
            if let Ok(matched) = answer
                && matched.others > 0
                && matched.names_nobody()
                && !pods.is_empty()
                && !means_zero
            {
                let (rows, labels) = (matched.others, std::mem::take(&mut matched.labels).into_iter().collect());
                *answer = Err(Outcome::NoneMatches { rows, labels });
            }
        }
        let samples: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().map(|matched| &matched.samples[..])).collect();
        let taken = known.readings.take_in(&self.policy, &samples, pods, now);
        known.answered |= taken.iter().any(|taken| matches!(taken, Some(Taken::Believed | Taken::Empty)));
        let counts = score::signals_that_count(&self.policy, pods, &known.readings, now);
        let outcome = |((answer, taken), counts): ((Result<Matched, Outcome>, Option<Taken>), bool)| match (answer, taken) {
            (Err(outcome), _) => outcome,
            (Ok(_), Some(Taken::Doubted)) => Outcome::Doubted,
            (Ok(_), Some(Taken::Empty)) if !pods.is_empty() => Outcome::NoRows { left_out: !counts },
            (Ok(matched), _) if matched.too_old > 0 && matched.too_old >= matched.used() => Outcome::AllOld,
            (Ok(_), _) => Outcome::Used,
        };
        let outcomes: Vec<Outcome> = answers.into_iter().zip(taken).zip(counts).map(outcome).collect();
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
