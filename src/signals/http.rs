//! Anything that answers over HTTP: the place to plug in other sources, in whatever language.
//!
//! `GET URL?namespace=NAMESPACE&query=QUERY` answers `{"samples": [{"pod": "web-1", "value": 3, "time": "2026-01-01T00:00:00Z"}]}`.
//! `time` is now where it is absent; every other text field of a sample is a label, for `podKey` to name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::endpoint::{self, Auth, Endpoint, Settings};
use super::{Backend, Query, QueryError, Rows};

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The address that is asked.
    url: String,
    #[serde(default = "endpoint::default_timeout_seconds")]
    timeout_seconds: u32,
    #[serde(default)]
    auth: Auth,
    /// PEM file with the only authorities to trust; the system's where absent.
    #[serde(default)]
    ca_file: Option<PathBuf>,
    /// Sent with every request.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The largest answer that is read, in bytes.
    #[serde(default = "endpoint::default_max_response_bytes")]
    max_response_bytes: usize,
}

pub struct Http {
    endpoint: Endpoint,
}

impl Http {
    pub fn new(config: &Config, directory: &Path) -> anyhow::Result<Self> {
        let settings = Settings {
            url: &config.url,
            timeout_seconds: config.timeout_seconds,
            auth: &config.auth,
            ca_file: config.ca_file.as_deref(),
            headers: &config.headers,
            through_proxy: true,
            max_response_bytes: config.max_response_bytes,
        };
        Ok(Self { endpoint: Endpoint::new(&settings, "", directory)? })
    }
}

impl Backend for Http {
    /// The source is told the namespace with each query; what it answers for it is its own responsibility.
    fn prepare(&self, query: &str, _: &str) -> Result<String, String> {
        Ok(query.into())
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move {
            let request = self.endpoint.get(&[("namespace", &query.namespace), ("query", &query.text)]);
            let body = self.endpoint.send(request).await?;
            read(&body)
        })
    }
}

fn read(body: &[u8]) -> Result<Rows, QueryError> {
    #[derive(Deserialize)]
    struct Answer {
        samples: Vec<Sample>,
    }
    #[derive(Deserialize)]
    struct Sample {
        value: f64,
        time: Option<Timestamp>,
        #[serde(flatten)]
        labels: BTreeMap<String, Value>,
    }
    let answer: Answer = serde_json::from_slice(body).map_err(QueryError::malformed)?;
    let now = Timestamp::now();
    let mut rows = Rows::default();
    for sample in answer.samples {
        for (name, value) in &sample.labels {
            if let Value::String(text) = value {
                rows.label(name, text);
            }
        }
        rows.end(sample.value, sample.time.unwrap_or(now));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_samples_with_their_labels_and_times() {
        let body = br#"{"samples": [{"pod": "a", "value": 3}, {"node_uri": "http://10.0.0.1", "value": 1.5, "weight": 7},
            {"pod": "old", "value": 9, "time": "2020-01-01T00:00:00Z"}]}"#;
        let rows = read(body).unwrap();
        let rows: Vec<_> = rows.iter().collect();
        assert_eq!((rows[0].label("pod"), rows[0].value), (Some("a"), 3.0));
        assert_eq!((rows[1].label("node_uri"), rows[1].label_names().count()), (Some("http://10.0.0.1"), 1));
        assert_eq!(rows[2].time.as_second(), 1_577_836_800, "how old a sample may be is the policy's to say");
        assert!(read(b"{}").unwrap_err().to_string().contains("samples"));
    }
}
