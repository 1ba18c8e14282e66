//! What the backends over HTTP send, and what they make of the answers.

mod cloudwatch;
mod datadog;
mod http;
mod prometheus;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pecking_order::signals::{BackendConfig, Query, QueryError, Row, Shared};
use serde_json::Value;

/// A backend as the server configuration describes it.
fn backend(config: Value, directory: &Path) -> anyhow::Result<Arc<Shared>> {
    pecking_order::server::install_crypto_provider();
    let config: BackendConfig = serde_json::from_value(config)?;
    config.build(directory, None)
}

/// Asks as a policy of the namespace `shop` does.
async fn ask(backend: &Arc<Shared>, query: &str) -> Result<Vec<Row>, QueryError> {
    backend.query(&Query { text: query.into(), namespace: "shop".into(), max_age: Duration::from_secs(60) }).await
}
