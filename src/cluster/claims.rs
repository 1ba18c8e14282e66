//! Holds a HeadroomClaim, for commands that run beside a job runner: asks, waits, shows that it is alive, lets go.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at, sleep, timeout, timeout_at};

use super::listing::{CALL_LIMIT, is_absent};
use crate::api::headroom_claim::{HeadroomClaim, HeadroomClaimSpec};

/// How often letting go is tried. After that the claim ends by its time to live.
const RELEASES: u32 = 5;
const BETWEEN_RELEASES: Duration = Duration::from_millis(500);

/// Names of claims are drawn by the API server, behind this many characters of the pool's name.
const NAME_CHARS: usize = 50;

/// Makes claims in one namespace.
#[derive(Clone)]
pub struct Claimant {
    api: Api<HeadroomClaim>,
    pub pool: String,
    pub ttl: Duration,
    labels: BTreeMap<String, String>,
    owner: Option<OwnerReference>,
}

/// A claim that exists. It must be let go; if nobody does, it ends when it has not been renewed for its time to live.
#[derive(Clone)]
pub struct Held {
    api: Api<HeadroomClaim>,
    pub name: String,
    uid: Option<String>,
    ttl: Duration,
}

/// What came of waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    Bound,
    /// Not within the time; why, as the claim says.
    NoRoom(String),
    /// It has ended, or was deleted, by somebody else.
    Ended(String),
}

impl Claimant {
    /// `owner` is the pod whose end ends the claim.
    pub fn new(client: Client, namespace: &str, pool: &str, ttl: Duration, owner: Option<(String, String)>) -> Self {
        let owner = owner.map(|(name, uid)| OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name,
            uid,
            ..OwnerReference::default()
        });
        Self { api: Api::namespaced(client, namespace), pool: pool.into(), ttl, labels: BTreeMap::new(), owner }
    }

    /// Puts a label on every claim, by which its maker finds it again.
    pub fn with_label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Makes a claim. An error is a refusal: no such pool, no right, or no API server.
    pub async fn ask(&self) -> anyhow::Result<Held> {
        let ttl_seconds = u32::try_from(self.ttl.as_secs()).unwrap_or(u32::MAX);
        let spec = HeadroomClaimSpec { pool: self.pool.clone(), ttl_seconds, renew_time: None, job: None };
        let prefix: String = self.pool.chars().take(NAME_CHARS).collect();
        let metadata = ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            labels: Some(self.labels.clone()).filter(|labels| !labels.is_empty()),
            owner_references: self.owner.clone().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        let claim = HeadroomClaim { metadata, spec, status: None };
        match timeout(CALL_LIMIT, self.api.create(&PostParams::default(), &claim)).await {
            Ok(Ok(claim)) => Ok(Held { api: self.api.clone(), name: claim.name_any(), uid: claim.uid(), ttl: self.ttl }),
            Ok(Err(kube::Error::Api(status))) => bail!("the claim was refused: {}", status.message),
            Ok(Err(e)) => Err(e).context("cannot make a claim"),
            Err(_) => bail!("cannot make a claim: no answer within {CALL_LIMIT:?}"),
        }
    }

    /// Lets go of claims with a label that an earlier run has left, but for those that a job came of.
    pub async fn release_left_over(&self, key: &str, value: &str) -> anyhow::Result<usize> {
        let left = self.api.list(&ListParams::default().labels(&format!("{key}={value}"))).await.context("cannot list claims")?;
        let mut released = 0;
        for claim in left.items.into_iter().filter(|claim| claim.spec.job.is_none()) {
            Held { api: self.api.clone(), name: claim.name_any(), uid: claim.uid(), ttl: self.ttl }.release().await?;
            released += 1;
        }
        Ok(released)
    }
}

impl Held {
    /// Waits for a slot, and shows meanwhile that somebody does.
    pub async fn wait(&self, limit: Duration) -> Waited {
        let deadline = Instant::now() + limit;
        let mut last = "the leader of pecking-order has not looked at it".to_owned();
        let mut states = pin!(watch_object(self.api.clone(), &self.name).default_backoff());
        let alive = pin!(self.keep_alive());
        let watching = async {
            while let Ok(Some(state)) = timeout_at(deadline, states.next()).await {
                match state {
                    Ok(Some(claim)) => match state_of(&claim) {
                        (Some((bound, _)), _) if bound == "True" => return Waited::Bound,
                        (_, Some((released, reason))) if released == "True" => return Waited::Ended(reason),
                        (Some((_, reason)), _) => last = reason,
                        _ => {}
                    },
                    Ok(None) => return Waited::Ended("it was deleted".into()),
                    Err(e) => last = e.to_string(),
                }
            }
            Waited::NoRoom(std::mem::take(&mut last))
        };
        tokio::select! {
            waited = watching => waited,
            ended = alive => Waited::Ended(ended),
        }
    }

    /// Renews the claim for as long as it is polled; returns why that can no longer be done.
    pub async fn keep_alive(&self) -> String {
        let every = self.ttl / 3;
        let mut ticks = interval_at(Instant::now() + every, every);
        loop {
            ticks.tick().await;
            match self.patch(json!({})).await {
                Ok(claim) => {
                    if let (_, Some((released, reason))) = state_of(&claim)
                        && released == "True"
                    {
                        return reason;
                    }
                }
                Err(e) if is_absent(&e) => return "it was deleted".into(),
                // The next one comes well before the end.
                Err(_) => {}
            }
        }
    }

    /// Ties a job to the claim, which then ends when the job's pod has a node.
    pub async fn tie(&self, job: &str) -> anyhow::Result<()> {
        self.patch(json!({ "job": job })).await.map(|_| ()).context("cannot tie the job to its claim")
    }

    /// Changes the spec, which is a sign of life too.
    async fn patch(&self, mut spec: Value) -> kube::Result<HeadroomClaim> {
        spec["renewTime"] = json!(MicroTime(Timestamp::now()));
        let patch = json!({"metadata": {"uid": self.uid}, "spec": spec});
        self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch)).await
    }

    /// Lets go.
    pub async fn release(&self) -> anyhow::Result<()> {
        let preconditions = Some(Preconditions { uid: self.uid.clone(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let mut why = String::new();
        for _ in 0..RELEASES {
            match timeout(CALL_LIMIT, self.api.delete(&self.name, &params)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(kube::Error::Api(status))) if status.is_not_found() || status.is_conflict() => return Ok(()),
                Ok(Err(e)) => why = e.to_string(),
                Err(_) => why = format!("no answer within {CALL_LIMIT:?}"),
            }
            sleep(BETWEEN_RELEASES).await;
        }
        bail!("claim {} was not released, and ends within {:?} by itself: {why}", self.name, self.ttl)
    }
}

/// Status and words of a condition.
type Words = (String, String);

/// The conditions `Bound` and `Released`.
fn state_of(claim: &HeadroomClaim) -> (Option<Words>, Option<Words>) {
    let find = |type_: &str| {
        let mut conditions = claim.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|condition| condition.type_ == type_).map(|c| (c.status.clone(), format!("{}: {}", c.reason, c.message)))
    };
    (find("Bound"), find("Released"))
}
