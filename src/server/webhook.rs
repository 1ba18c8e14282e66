//! Reviews over HTTP: one path per hook, with limits on size, time and number.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{RawQuery, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Request as HttpRequest, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::{FutureExt, StreamExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tracing::{error, warn};

use super::health::Health;
use super::metrics::Metrics;
use crate::admission::answer::Notes;
use crate::admission::request::{self, Body as ReviewBody};
use crate::admission::{
    Answer, Mutation, Request, Unreadable, Validation, claims, gates, headroom, placeholders, pods, policies, priority_classes, scale_downs,
};
use crate::api::{DeletionCostPolicySpec, Problem};
use crate::cluster::World;
use crate::cluster::governance::Backends;
use crate::cluster::policies::query_problems;
use crate::cluster::scale_down::ScaleDowns;

/// An UPDATE carries two objects of up to etcd's 1.5 MB, custom resources up to 3 MB each; 8 MiB holds both with their envelope.
const MAX_BODY_BYTES: usize = 8 << 20;

/// What is reserved for a body before it comes: most reviews are smaller.
const ORDINARY_BODY_BYTES: usize = 64 << 10;

/// Few objects are larger: those near etcd's limit.
const LARGE_BODY_BYTES: usize = 1 << 20;

/// All bodies together, in KiB: a quarter of the memory that the shipped Deployment has.
const MAX_BODIES_KIB: usize = 64 << 10;

/// A body that is too large is still read up to here, without keeping it, so that the sender gets to read our answer.
const MAX_DRAINED_BYTES: usize = 64 << 20;

/// The API server sends a body at once; ten seconds is its own default time-out for the whole call.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Reviews under way at once, beyond which callers are told to come again in a second. A review takes well under a
/// millisecond, so this many mean that something is wrong.
const PARALLEL_REVIEWS: usize = 256;

/// Scale-downs are counted apart: each may be held for seconds, and must not keep pod reviews out.
const PARALLEL_SCALE_DOWNS: usize = 256;

/// The API server's default time-out (`timeoutSeconds` of a hook), where the caller names none, and its highest.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const HIGHEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The reviewed things, one path each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Pods,
    Placeholders,
    Gates,
    PriorityClasses,
    ScaleDowns,
    Headroom,
    Claims,
    Policies,
}

impl Hook {
    pub const ALL: [Self; 8] = [
        Self::Pods,
        Self::Placeholders,
        Self::Gates,
        Self::PriorityClasses,
        Self::ScaleDowns,
        Self::Headroom,
        Self::Claims,
        Self::Policies,
    ];

    pub fn path(self) -> &'static str {
        match self {
            Self::Pods => "/mutate/pods",
            Self::Placeholders => "/mutate/placeholders",
            Self::Gates => "/mutate/gates",
            Self::PriorityClasses => "/mutate/priority-classes",
            Self::ScaleDowns => "/validate/scale-downs",
            Self::Headroom => "/validate/headroom",
            Self::Claims => "/validate/claims",
            Self::Policies => "/validate/policies",
        }
    }

    /// The hook's name in metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Placeholders => "placeholders",
            Self::Gates => "gates",
            Self::PriorityClasses => "priority-classes",
            Self::ScaleDowns => "scale-downs",
            Self::Headroom => "headroom",
            Self::Claims => "claims",
            Self::Policies => "policies",
        }
    }
}

pub struct Webhook {
    world: Arc<World>,
    backends: Arc<Backends>,
    scale_downs: ScaleDowns,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    reviews: Semaphore,
    held: Semaphore,
    memory: Semaphore,
    large: Semaphore,
}

impl Webhook {
    pub fn new(world: Arc<World>, backends: Arc<Backends>, scale_downs: ScaleDowns, metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        let (reviews, held) = (Semaphore::new(PARALLEL_REVIEWS), Semaphore::new(PARALLEL_SCALE_DOWNS));
        Self {
            world,
            backends,
            scale_downs,
            metrics,
            health,
            reviews,
            held,
            memory: Semaphore::new(MAX_BODIES_KIB),
            large: Semaphore::new(1),
        }
    }

    pub fn router(self) -> Router {
        Hook::ALL
            .into_iter()
            .fold(Router::new(), |router, hook| {
                let serve = move |State(webhook): State<Arc<Self>>, RawQuery(query): RawQuery, request: HttpRequest<Body>| async move {
                    webhook.serve(hook, query.as_deref(), request.into_body()).await
                };
                router.route(hook.path(), post(serve))
            })
            .with_state(Arc::new(self))
    }

    async fn serve(&self, hook: Hook, query: Option<&str>, body: Body) -> Response {
        let arrived = Instant::now();
        let (outcome, mut response) = match self.read(hook, body).await {
            Ok(held) => self.review(hook, query, &held.body, arrived).await,
            Err(refusal) => refusal.response(),
        };
        if self.health.is_draining() {
            // An idle connection that we close while the API server sends on it is a failed call: it must let go of it first.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.metrics.reviews(hook.name(), outcome, arrived.elapsed());
        response
    }

    /// Reads a body and takes a place for its review, in this order: who sends slowly must not hold a place.
    async fn read(&self, hook: Hook, body: Body) -> Result<Held<'_>, Refusal> {
        let (body, memory) = match timeout(BODY_TIME, read_body(body, &self.memory)).await {
            Ok(read) => read?,
            Err(_) => return Err(Refusal::Late),
        };
        // Read, a large body becomes many times its size: one at a time. Of a scale-down next to nothing is read.
        let large = match body.len() > LARGE_BODY_BYTES && hook != Hook::ScaleDowns {
            true => Some(timeout(BODY_TIME, self.large.acquire()).await.ok().and_then(Result::ok).ok_or(Refusal::Busy)?),
            false => None,
        };
        let places = if hook == Hook::ScaleDowns { &self.held } else { &self.reviews };
        let place = places.try_acquire().map_err(|_| Refusal::Busy)?;
        Ok(Held { body, _memory: memory, _large: large, _place: place })
    }

    /// Answers a body: with the uid and status 200 as soon as the uid can be read.
    async fn review(&self, hook: Hook, query: Option<&str>, body: &[u8], arrived: Instant) -> (&'static str, Response) {
        let request = match request::read(body) {
            ReviewBody::Request(request) => request,
            ReviewBody::Refused(why) => return ("refused", plain(StatusCode::BAD_REQUEST, &why)),
            ReviewBody::Unreadable { uid, why } => {
                warn!(hook = hook.name(), uid, why, "a review cannot be read; allowed");
                return ("unreadable", json(&not_reviewed("the review cannot be read").answer(&uid)));
            }
        };
        let (outcome, answer) = answer(hook, &request.uid, self.decide(hook, query, &request, arrived)).await;
        (outcome, json(&answer))
    }

    /// Asks the backend that a policy names what it thinks of its queries. One that is not known here may be known to a replica
    /// with a newer configuration: the policy's status will tell.
    fn query_problems(&self) -> impl Fn(&DeletionCostPolicySpec, &str) -> Vec<Problem> {
        |policy, namespace| self.backends.get(&policy.backend).map(|backend| query_problems(backend, policy, namespace)).unwrap_or_default()
    }

    async fn decide(&self, hook: Hook, query: Option<&str>, request: &Request<'_>, arrived: Instant) -> Result<Answer, Unreadable> {
        let uid = &request.uid;
        Ok(match hook {
            Hook::Pods => pods::review(request, &self.world.snapshot())?.answer(uid),
            Hook::Placeholders => placeholders::review(request, &self.world.snapshot())?.answer(uid),
            Hook::Gates => gates::review(request, &self.world.snapshot())?.answer(uid),
            Hook::PriorityClasses => priority_classes::review(request, &self.world.snapshot())?.answer(uid),
            Hook::Headroom => headroom::review(request, &self.world.snapshot())?.answer(uid),
            Hook::Claims => claims::review(request, &self.world.snapshot())?.answer(uid),
            Hook::Policies => policies::review(request, &self.query_problems())?.answer(uid),
            Hook::ScaleDowns => match scale_downs::read(request)? {
                None => Validation::default().answer(uid),
                Some(scale_down) => self.scale_downs.admit(&scale_down, deadline(query, arrived)).await.answer(uid),
            },
        })
    }
}

/// An answer, whatever becomes of the decision.
async fn answer(hook: Hook, uid: &str, decision: impl Future<Output = Result<Answer, Unreadable>>) -> (&'static str, Answer) {
    match AssertUnwindSafe(decision).catch_unwind().await {
        Ok(Ok(answer)) => (outcome(&answer), answer),
        Ok(Err(e)) => {
            warn!(hook = hook.name(), uid, error = %e, "a reviewed object cannot be read; allowed");
            ("unreadable", not_reviewed("the object cannot be read").answer(uid))
        }
        // The panic's own message is in the log already; an answer is owed all the same.
        Err(_) => {
            error!(hook = hook.name(), uid, "a review panicked; allowed");
            ("panicked", not_reviewed("internal error").answer(uid))
        }
    }
}

/// An answer without a decision. It has the shape that any hook may give: a mutating one without a patch.
fn not_reviewed(why: &str) -> Mutation {
    Mutation { patch: None, notes: Notes::warning(format!("pecking-order did not review this: {why}")) }
}

fn outcome(answer: &Answer) -> &'static str {
    match (answer.allowed(), answer.has_patch()) {
        (false, _) => "denied",
        (true, true) => "patched",
        (true, false) => "allowed",
    }
}

/// When a scale-down is answered at the latest: at 80 % of the caller's `?timeout=`, so that the answer still gets there.
fn deadline(query: Option<&str>, arrived: Instant) -> Instant {
    let named = query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|pair| pair.strip_prefix("timeout="))
        .and_then(|text| text.strip_suffix('s')?.parse().ok())
        .filter(|seconds| *seconds > 0)
        .map(Duration::from_secs);
    arrived + named.unwrap_or(DEFAULT_TIMEOUT).min(HIGHEST_TIMEOUT).mul_f64(0.8)
}

/// A body that was read, with what it occupies.
struct Held<'a> {
    body: Vec<u8>,
    _memory: Option<SemaphorePermit<'a>>,
    _large: Option<SemaphorePermit<'a>>,
    _place: SemaphorePermit<'a>,
}

/// Why a request is not reviewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Incomplete,
    TooLarge,
    Late,
    Busy,
}

impl Refusal {
    /// The outcome in metrics, and the answer.
    fn response(self) -> (&'static str, Response) {
        match self {
            Self::Incomplete => ("refused", plain(StatusCode::BAD_REQUEST, "the body ends before it is complete")),
            Self::TooLarge => ("refused", plain(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is larger than {MAX_BODY_BYTES} bytes"))),
            Self::Late => ("refused", plain(StatusCode::REQUEST_TIMEOUT, &format!("the body did not come within {BODY_TIME:?}"))),
            Self::Busy => {
                let answer = plain(StatusCode::TOO_MANY_REQUESTS, "too much to review at once; come again in a second");
                // The API server comes again on a 429 only if it is told when.
                ("shed", ([(RETRY_AFTER, HeaderValue::from_static("1"))], answer).into_response())
            }
        }
    }
}

/// Reads a body. What it occupies is taken from `memory`, in KiB, as it comes: who only announces much gets nothing.
async fn read_body(body: Body, memory: &Semaphore) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Refusal> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut stream = body.into_data_stream();
    let mut whole = Vec::with_capacity(announced.min(ORDINARY_BODY_BYTES));
    let mut taken: Option<SemaphorePermit<'_>> = None;
    let (mut length, mut refused) = (0, None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| Refusal::Incomplete)?;
        length += chunk.len();
        if length > MAX_DRAINED_BYTES {
            break;
        }
        // By the whole length, so that small chunks take no more than they are.
        let more = (length.div_ceil(1024) - taken.as_ref().map_or(0, SemaphorePermit::num_permits)) as u32;
        let too_large = announced.max(length) > MAX_BODY_BYTES;
        match (refused, memory.try_acquire_many(more)) {
            (None, Ok(more)) if !too_large => {
                match &mut taken {
                    Some(taken) => taken.merge(more),
                    None => taken = Some(more),
                }
                whole.extend_from_slice(&chunk);
            }
            // Read on, so that the sender gets to read the answer, but keep nothing.
            _ => {
                refused = refused.or(Some(if too_large { Refusal::TooLarge } else { Refusal::Busy }));
                (whole, taken) = (Vec::new(), None);
            }
        }
    }
    match refused {
        Some(refusal) => Err(refusal),
        None => Ok((whole, taken)),
    }
}

fn json(answer: &Answer) -> Response {
    ([(CONTENT_TYPE, "application/json")], answer.to_json()).into_response()
}

fn plain(status: StatusCode, text: &str) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{text}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::budget::{Budget, Limits};
    use crate::cluster::truth::Observer;

    fn webhook() -> Webhook {
        let world = Arc::new(World::default());
        let writer = Arc::new(crate::cluster::standalone::MemoryWriter { world: world.clone() });
        let metrics = Arc::new(Metrics::default());
        let budget = Arc::new(Budget::new(Limits::default()));
        let observer = Observer::new(world.clone(), metrics.clone(), None);
        let scale_downs = ScaleDowns::new(world.clone(), writer, budget, observer, metrics.clone(), Default::default());
        Webhook::new(world, Arc::default(), scale_downs, metrics, Arc::default())
    }

    /// Webhook case 2 (c).
    #[tokio::test]
    async fn a_panic_is_answered_with_the_uid() {
        let panics = async { panic!("this panic belongs to the test") };
        let (outcome, answer) = answer(Hook::Pods, "u-1", panics).await;
        let answer: serde_json::Value = serde_json::from_slice(&answer.to_json()).unwrap();
        assert_eq!((outcome, &answer["response"]["uid"], &answer["response"]["allowed"]), ("panicked", &"u-1".into(), &true.into()));
    }

    /// Webhook case 30: the API server comes again only if it is told when.
    #[tokio::test]
    async fn too_many_reviews_are_told_when_to_come_again() {
        let webhook = webhook();
        let busy = webhook.reviews.try_acquire_many(PARALLEL_REVIEWS as u32).unwrap();
        let shed = webhook.serve(Hook::Pods, None, Body::from("{}")).await;
        assert_eq!((shed.status(), &shed.headers()[RETRY_AFTER]), (StatusCode::TOO_MANY_REQUESTS, &HeaderValue::from_static("1")));
        // Neither kind of review keeps the other one out.
        assert_eq!(webhook.serve(Hook::ScaleDowns, None, Body::from("{}")).await.status(), StatusCode::BAD_REQUEST);
        drop(busy);
        assert_eq!(webhook.serve(Hook::Pods, None, Body::from("{}")).await.status(), StatusCode::BAD_REQUEST);
    }

    /// Many bodies at once end at a quarter of the process's memory, not at the sum of what they are.
    #[tokio::test]
    async fn bodies_share_a_bounded_memory() {
        let webhook = webhook();
        let busy = webhook.memory.try_acquire_many(MAX_BODIES_KIB as u32 - 1).unwrap();
        let large = webhook.serve(Hook::Pods, None, Body::from(vec![b' '; 4096])).await;
        assert_eq!(large.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(webhook.serve(Hook::Pods, None, Body::from("{}")).await.status(), StatusCode::BAD_REQUEST);
        drop(busy);
        assert_eq!(webhook.memory.available_permits(), MAX_BODIES_KIB, "everything was given back");
    }

    /// Webhook case 31: a bad value is ignored in favour of our own limit.
    #[test]
    fn the_deadline_leaves_a_fifth_of_the_callers_time() {
        let now = Instant::now();
        for (query, seconds) in [
            (Some("timeout=5s"), 4.0),
            (Some("a=b&timeout=1s"), 0.8),
            (Some("timeout=30s"), 24.0),
            (Some("timeout=900s"), 24.0),
            (Some("timeout=abc"), 8.0),
            (Some("timeout=0s"), 8.0),
            (Some("timeout=-5s"), 8.0),
            (Some(""), 8.0),
            (None, 8.0),
        ] {
            assert_eq!(deadline(query, now) - now, Duration::from_secs_f64(seconds), "{query:?}");
        }
    }
}
