//! `/livez`, `/readyz` and `/metrics`, on a port of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;

use super::metrics::Metrics;
use crate::cluster::World;

/// What readiness depends on.
#[derive(Default)]
pub struct Health {
    listening: AtomicBool,
    draining: AtomicBool,
    /// Unix seconds between which the served certificate is valid.
    valid_from: AtomicI64,
    valid_until: AtomicI64,
}

impl Health {
    pub fn is_listening(&self) {
        self.listening.store(true, Ordering::Release);
    }

    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub fn serves_certificate(&self, valid_from: i64, valid_until: i64) {
        self.valid_from.store(valid_from, Ordering::Release);
        self.valid_until.store(valid_until, Ordering::Release);
    }

    /// Why we are not ready; empty when we are.
    pub fn not_ready(&self, world: &World, now: Timestamp) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.is_draining() {
            reasons.push("shutting down".into());
        }
        if !self.listening.load(Ordering::Acquire) {
            reasons.push("not listening yet".into());
        }
        let valid = self.valid_from.load(Ordering::Acquire)..self.valid_until.load(Ordering::Acquire);
        if !valid.contains(&now.as_second()) {
            reasons.push("no certificate that is valid now".into());
        }
        let unread = world.not_yet_read();
        if !unread.is_empty() {
            reasons.push(format!("not read yet from the API server: {unread:?}"));
        }
        reasons
    }
}

#[derive(Clone)]
struct Shared {
    health: Arc<Health>,
    world: Arc<World>,
    metrics: Arc<Metrics>,
}

pub fn router(health: Arc<Health>, world: Arc<World>, metrics: Arc<Metrics>) -> Router {
    Router::new().route("/livez", get(livez)).route("/readyz", get(readyz)).route("/metrics", get(metrics_text)).with_state(Shared {
        health,
        world,
        metrics,
    })
}

/// Only what a restart would mend.
async fn livez(State(shared): State<Shared>) -> impl IntoResponse {
    match shared.world.progress.stopped() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(policy) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("the poller of policy {}/{} has stopped\n", policy.namespace, policy.name))
        }
    }
}

async fn readyz(State(shared): State<Shared>) -> impl IntoResponse {
    let reasons = shared.health.not_ready(&shared.world, Timestamp::now());
    match reasons.is_empty() {
        true => (StatusCode::OK, "ok\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
    }
}

async fn metrics_text(State(shared): State<Shared>) -> impl IntoResponse {
    let text = shared.metrics.encode(shared.world.pods.len(), shared.world.costs.len());
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::world::List;

    /// Webhook case 37: readiness follows the wall clock.
    #[test]
    fn is_ready_only_with_a_certificate_that_is_valid_now() {
        let (health, world) = (Health::default(), World::default());
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(health.not_ready(&world, at(150)).len(), 3);
        health.is_listening();
        [List::Policies, List::Pools, List::Classes, List::Pods].into_iter().for_each(|list| world.has_read(list));
        health.serves_certificate(100, 200);
        assert_eq!(health.not_ready(&world, at(150)), Vec::<String>::new());
        for second in [99, 200, 200 + 30 * 86_400] {
            assert_eq!(health.not_ready(&world, at(second)), ["no certificate that is valid now"]);
        }
        health.start_draining();
        assert_eq!(health.not_ready(&world, at(150)), ["shutting down"]);
    }
}
