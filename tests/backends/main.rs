//! What the backends over HTTP send, and what they make of the answers.

mod cloudwatch;
mod datadog;
mod http;
mod prometheus;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pecking_order::signals::{BackendConfig, Query, QueryError, Shared};
use serde_json::Value;

/// A backend as the server configuration describes it.
fn backend(config: Value, directory: &Path) -> anyhow::Result<Arc<Shared>> {
    pecking_order::server::install_crypto_provider();
    let config: BackendConfig = serde_json::from_value(config)?;
    config.build(directory, None)
}

/// Asks as a policy of the namespace `shop` does; gives back the pod and the value of each row.
async fn ask(backend: &Arc<Shared>, query: &str) -> Result<Vec<(String, f64)>, QueryError> {
    let rows = backend.ask(&Query { text: query.into(), namespace: "shop".into(), max_age: Duration::from_secs(60) }).await?;
    Ok(rows.iter().map(|row| (row.label("pod").unwrap_or_default().to_owned(), row.value)).collect())
}
