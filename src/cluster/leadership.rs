//! Who of the replicas writes on its own account: the holder of a Lease.
//!
//! Kubernetes' rules, with its own pitfalls in mind: how long another has been silent is measured on our clock from when we saw
//! its last sign, never read from the times in the Lease; a leader that cannot renew stops before anybody else may begin.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::jitter;

/// The Lease, in the namespace that we run in.
pub const LEASE: &str = "pecking-order";

/// A holder that has shown no sign for this long is gone.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that has not renewed for this long stops leading. Shorter than the lease by more than a call may take.
const RENEW_DEADLINE: Duration = Duration::from_secs(9);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(3);
/// The pause between two looks at the Lease.
const RETRY: Duration = Duration::from_secs(2);

/// Whether this replica is the leader, right now.
#[derive(Clone, Default)]
pub struct Leadership(Arc<Mutex<Option<Instant>>>);

impl Leadership {
    /// False as soon as the last renewal is too old, even if the elector is stuck.
    pub fn is_mine(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    fn until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// A sign of life of a holder, and when we saw it.
struct Seen {
    holder: String,
    renewed: Option<MicroTime>,
    at: Instant,
}

/// Tries to hold the Lease for as long as it is polled.
pub struct Elector {
    api: Api<Lease>,
    identity: String,
    leadership: Leadership,
    seen: Option<Seen>,
}

impl Elector {
    /// The client must not retry by itself. `identity` is one that no other replica has.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self { api: Api::namespaced(client, namespace), identity, leadership: Leadership::default(), seen: None }
    }

    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    pub async fn run(mut self) {
        loop {
            // The lease runs from before the call: its answer may have been long under way.
            let asked = Instant::now();
            let was_mine = self.leadership.is_mine();
            match timeout(CALL_LIMIT, self.try_once()).await {
                Ok(Ok(true)) => self.leadership.set(Some(asked + RENEW_DEADLINE)),
                Ok(Ok(false)) => self.leadership.set(None),
                // In doubt it stays as it was, until its deadline.
                Ok(Err(e)) => debug!(error = %e, "cannot read or write the Lease"),
                Err(_) => debug!("no answer about the Lease within {CALL_LIMIT:?}"),
            }
            match (was_mine, self.leadership.is_mine()) {
                (false, true) => info!(identity = self.identity, "leading: status, Events"),
                (true, false) => warn!(identity = self.identity, "not leading any more"),
                _ => {}
            }
            sleep(RETRY.mul_f64(1.0 + jitter() * 0.2)).await;
        }
    }

    pub fn leases(&self) -> Api<Lease> {
        self.api.clone()
    }

    /// Whether the Lease is ours after this.
    async fn try_once(&mut self) -> kube::Result<bool> {
        let Some(mut lease) = self.api.get_opt(LEASE).await? else {
            // Somebody has deleted it. Whoever held it may still believe that it does.
            if !self.leadership.is_mine() && self.seen.as_ref().is_some_and(|seen| seen.at.elapsed() < LEASE_DURATION) {
                return Ok(false);
            }
            let lease =
                Lease { metadata: ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() }, spec: Some(self.renewed(None)) };
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take().unwrap_or_default();
        if !self.may_take(&spec) {
            return Ok(false);
        }
        lease.spec = Some(self.renewed(Some(spec)));
        // With the resourceVersion that was read: of several that try, one succeeds.
        won(self.api.replace(LEASE, &PostParams::default(), &lease).await)
    }

    /// Ours, nobody's, or that of a holder that we have watched being silent for the whole duration.
    fn may_take(&mut self, spec: &LeaseSpec) -> bool {
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        match &self.seen {
            Some(seen) if seen.holder == holder && seen.renewed == spec.renew_time => seen.at.elapsed() >= LEASE_DURATION,
            _ => {
                self.seen = Some(Seen { holder, renewed: spec.renew_time.clone(), at: Instant::now() });
                false
            }
        }
    }

    fn renewed(&self, before: Option<LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let before = before.unwrap_or_default();
        let stays = before.holder_identity.as_deref() == Some(&self.identity);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if stays { before.acquire_time.clone() } else { Some(now.clone()) },
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!stays)),
            renew_time: Some(now),
            ..before
        }
    }
}

/// A conflict means that another was faster, or that the Lease has come into being or gone meanwhile.
fn won(written: kube::Result<Lease>) -> kube::Result<bool> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() || status.is_not_found() => Ok(false),
        Err(e) => Err(e),
    }
}

/// Lets another replica lead at once, where this one did.
pub async fn release(leases: Api<Lease>, leadership: Leadership, identity: &str) {
    // First this one stops, then another may begin.
    leadership.set(None);
    let release = async {
        let mut lease = leases.get(LEASE).await?;
        if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(identity)) {
            spec.holder_identity = None;
            leases.replace(LEASE, &PostParams::default(), &lease).await?;
        }
        Ok::<(), kube::Error>(())
    };
    if !matches!(timeout(CALL_LIMIT, release).await, Ok(Ok(()))) {
        debug!("the Lease was not released; it ends by itself");
    }
}
