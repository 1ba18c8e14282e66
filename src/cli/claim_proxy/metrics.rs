//! What the proxy counts.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

pub struct Metrics {
    registry: Registry,
    requests: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("pecking_order_proxy");
        let requests = Family::default();
        registry.register("job_requests", "Requests for a job, by what became of them", Family::clone(&requests));
        Self { registry, requests }
    }
}

impl Metrics {
    /// `no_room` was not passed on; the others were.
    pub fn request(&self, outcome: &'static str) {
        self.requests.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String does not fail");
        text
    }
}
