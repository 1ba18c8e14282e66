//! Prometheus, and whatever speaks its HTTP API: one instant query per signal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::confinement::Confinement;
use super::endpoint::{self, Auth, Endpoint, Settings};
use super::{Backend, Query, QueryError, Row, promql};

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The server's address, such as `http://prometheus.monitoring:9090`, with a path prefix where it has one.
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
    /// The tenant of Mimir, Cortex or a Thanos behind the same gateway: the header `X-Scope-OrgID`.
    #[serde(default)]
    tenant: Option<String>,
    /// How a query is kept to the namespace of its policy; to the label `namespace` where absent.
    #[serde(default = "default_confinement")]
    confinement: Confinement,
    /// The largest answer that is read, in bytes.
    #[serde(default = "endpoint::default_max_response_bytes")]
    max_response_bytes: usize,
}

fn default_confinement() -> Confinement {
    Confinement::ToLabel("namespace".into())
}

pub struct Prometheus {
    endpoint: Endpoint,
    confinement: Confinement,
}

impl Prometheus {
    pub fn new(config: &Config, directory: &Path) -> anyhow::Result<Self> {
        let mut headers = config.headers.clone();
        headers.extend(config.tenant.clone().map(|tenant| ("X-Scope-OrgID".to_owned(), tenant)));
        let settings = Settings {
            url: &config.url,
            timeout_seconds: config.timeout_seconds,
            auth: &config.auth,
            ca_file: config.ca_file.as_deref(),
            headers: &headers,
            max_response_bytes: config.max_response_bytes,
        };
        Ok(Self { endpoint: Endpoint::new(&settings, "/api/v1/query", directory)?, confinement: config.confinement.clone() })
    }
}

impl Backend for Prometheus {
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        self.confinement.apply(query, namespace, promql::confine)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<Row>, QueryError>> {
        Box::pin(async move {
            // An instant query stamps its rows with the time of the query, however old the samples beneath are, and looks
            // back five minutes for them. A shorter look-back is the only way to be told of no sample older than wanted.
            let look_back = format!("{}s", query.max_age.as_secs().max(1));
            let request = self.endpoint.post(&[("query", &query.text), ("lookback_delta", &look_back)]);
            let body = self.endpoint.send(request).await?;
            read(&body)
        })
    }
}

/// Reads the answer of `/api/v1/query`: a vector, in which values are texts (`"NaN"` and `"+Inf"` among them).
fn read(body: &[u8]) -> Result<Vec<Row>, QueryError> {
    #[derive(Deserialize)]
    struct Answer {
        status: String,
        #[serde(default)]
        error: String,
        data: Option<Data>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Data {
        result_type: String,
    }
    #[derive(Deserialize)]
    struct Whole {
        data: Vector,
    }
    #[derive(Deserialize)]
    struct Vector {
        result: Vec<Instant>,
    }
    #[derive(Deserialize)]
    struct Instant {
        metric: BTreeMap<String, String>,
        /// Absent in a row that is a histogram: it has no one number.
        value: Option<(f64, String)>,
    }
    let malformed = |e: serde_json::Error| QueryError::Malformed(e.to_string());
    // Twice over the text is cheaper than a tree of it: the kind of result decides how its rows are read.
    let answer: Answer = serde_json::from_slice(body).map_err(malformed)?;
    match answer.data {
        Some(data) if answer.status == "success" && data.result_type == "vector" => {}
        Some(data) if answer.status == "success" => {
            return Err(QueryError::Malformed(format!("found a {}, wanted a vector with one row per pod", data.result_type)));
        }
        _ => return Err(QueryError::Malformed(format!("the backend says: {}", answer.error))),
    }
    let rows = serde_json::from_slice::<Whole>(body).map_err(malformed)?.data.result;
    rows.into_iter()
        .filter_map(|row| row.value.map(|value| (row.metric, value)))
        .map(|(metric, (seconds, value))| {
            let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).map_err(|e| QueryError::Malformed(e.to_string()))?;
            let value = match value.as_str() {
                "+Inf" | "Inf" => f64::INFINITY,
                "-Inf" => f64::NEG_INFINITY,
                text => text.parse().map_err(|_| QueryError::Malformed(format!("value `{text}` is no number")))?,
            };
            Ok(Row { labels: metric, value, time })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_vector() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a"},"value":[1700000000.5,"7"]}, {"metric":{"pod":"b"},"value":[1700000000,"NaN"]},
            {"metric":{"pod":"c"},"value":[1700000000,"+Inf"]}]}}"#;
        let rows = read(body).unwrap();
        assert_eq!((rows[0].labels["pod"].as_str(), rows[0].value, rows[0].time.as_millisecond()), ("a", 7.0, 1_700_000_000_500));
        assert!(rows[1].value.is_nan());
        assert_eq!(rows[2].value, f64::INFINITY);
    }

    #[test]
    fn says_why_an_answer_cannot_be_used() {
        let why = |body: &str| read(body.as_bytes()).unwrap_err().to_string();
        assert!(why(r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#).ends_with("the backend says: parse error"));
        assert!(why(r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#).contains("found a matrix, wanted a vector"));
        assert!(why("<html>").starts_with("the answer cannot be understood"));
        assert!(
            why(r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}"#)
                .contains("`x` is no number")
        );
    }

    #[test]
    fn refuses_an_address_that_carries_credentials_or_another_scheme() {
        let new = |url: &str| {
            let config: Config = serde_json::from_value(serde_json::json!({ "url": url })).unwrap();
            Prometheus::new(&config, Path::new(".")).map(|_| ()).map_err(|e| e.to_string())
        };
        crate::server::install_crypto_provider();
        assert_eq!(new("http://prometheus:9090/prefix/"), Ok(()));
        assert!(new("http://user:secret@prometheus").unwrap_err().contains("`auth`"));
        assert!(!new("http://user:secret@prometheus").unwrap_err().contains("secret"));
        assert!(new("file:///etc/passwd").unwrap_err().contains("wanted http or https"));
        assert!(new("prometheus:9090").is_err());
    }
}
