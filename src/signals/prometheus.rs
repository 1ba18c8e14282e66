//! Prometheus, and whatever speaks its HTTP API: one instant query per signal.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::confinement::Confinement;
use super::endpoint::{self, Auth, Endpoint, Settings};
use super::{Backend, Query, QueryError, Rows, promql};

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
            through_proxy: true,
            max_response_bytes: config.max_response_bytes,
        };
        Ok(Self { endpoint: Endpoint::new(&settings, "/api/v1/query", directory)?, confinement: config.confinement.clone() })
    }
}

impl Backend for Prometheus {
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        self.confinement.apply(query, namespace, promql::confine)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move {
            // An instant query stamps its rows with the time of the query, however old the samples beneath are, and looks
            // back five minutes for them. A shorter look-back is the only way to be told of no sample older than wanted.
            let look_back = format!("{}s", query.max_age.as_secs().max(1));
            // Half an answer looks like pods without work: Thanos and VictoriaMetrics are asked for whole ones. Others ignore that.
            let request = self.endpoint.post(&[
                ("query", &query.text),
                ("lookback_delta", &look_back),
                ("partial_response", "false"),
                ("deny_partial_response", "1"),
            ]);
            let body = self.endpoint.send(request).await?;
            read(&body)
        })
    }
}

/// Reads the answer of `/api/v1/query`: a vector, in which values are texts (`"NaN"` and `"+Inf"` among them).
fn read(body: &[u8]) -> Result<Rows, QueryError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<'a> {
        status: String,
        /// VictoriaMetrics' word that some of its parts did not answer.
        #[serde(default)]
        is_partial: bool,
        #[serde(default)]
        error: String,
        #[serde(borrow)]
        data: Option<Data<'a>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Data<'a> {
        result_type: String,
        /// How it is read depends on its type, which may come behind it.
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }
    let malformed = |e: serde_json::Error| QueryError::malformed(e);
    let answer: Answer<'_> = serde_json::from_slice(body).map_err(malformed)?;
    let Some(data) = answer.data.filter(|_| answer.status == "success") else {
        let said = if answer.error.is_empty() { "nothing of its error, and gives no data" } else { &answer.error };
        return Err(QueryError::malformed(format!("the backend says: {said}")));
    };
    if answer.is_partial {
        return Err(QueryError::malformed("the backend says that the answer is not complete"));
    }
    if data.result_type != "vector" {
        return Err(QueryError::malformed(format!("found a {}, wanted a vector with one row per pod", data.result_type)));
    }
    let mut rows = Rows::default();
    if let Some(result) = data.result {
        let found = Vector(&mut rows).deserialize(&mut serde_json::Deserializer::from_str(result.get())).map_err(malformed)?;
        if found > 0 && rows.is_empty() {
            return Err(QueryError::malformed("every row is a histogram, wanted numbers: see histogram_sum and histogram_count"));
        }
    }
    Ok(rows)
}

/// Reads rows straight into their place, and counts them: there may be a hundred thousand.
struct Vector<'a>(&'a mut Rows);

impl<'de> DeserializeSeed<'de> for Vector<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Vector<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<usize, A::Error> {
        let mut found = 0;
        while rows.next_element_seed(Instant(self.0))?.is_some() {
            found += 1;
        }
        Ok(found)
    }
}

/// One row: `{"metric": {…}, "value": [seconds, "number"]}`. One that is a histogram has no value, and no one number.
struct Instant<'a>(&'a mut Rows);

impl<'de> DeserializeSeed<'de> for Instant<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Instant<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut row: A) -> Result<(), A::Error> {
        let mut point = None;
        while let Some(Text(key)) = row.next_key()? {
            match &*key {
                "metric" => row.next_value_seed(Metric(self.0))?,
                "value" => point = Some(row.next_value::<(f64, Text<'_>)>()?),
                _ => {
                    row.next_value::<IgnoredAny>()?;
                }
            }
        }
        let Some((seconds, Text(text))) = point else {
            self.0.discard();
            return Ok(());
        };
        let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).map_err(A::Error::custom)?;
        let value = match &*text {
            "+Inf" | "Inf" => f64::INFINITY,
            "-Inf" => f64::NEG_INFINITY,
            text => text.parse().map_err(|_| A::Error::custom(format!("value `{text}` is no number")))?,
        };
        self.0.end(value, time);
        Ok(())
    }
}

/// The labels of a row.
struct Metric<'a>(&'a mut Rows);

impl<'de> DeserializeSeed<'de> for Metric<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metric<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut labels: A) -> Result<(), A::Error> {
        // A text with an escape in it cannot be borrowed; label values may have some.
        while let Some((Text(name), Text(value))) = labels.next_entry()? {
            self.0.label(&name, &value);
        }
        Ok(())
    }
}

/// A text, borrowed where that is possible.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_vector() {
        let body = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a"},"value":[1700000000.5,"7"]}, {"metric":{"pod":"b"},"value":[1700000000,"NaN"]},
            {"metric":{"pod":"c"},"value":[1700000000,"+Inf"]}]}}"#;
        let rows = read(body).unwrap();
        let rows: Vec<_> = rows.iter().collect();
        assert_eq!((rows[0].label("pod"), rows[0].value, rows[0].time.as_millisecond()), (Some("a"), 7.0, 1_700_000_000_500));
        assert!(rows[1].value.is_nan());
        assert_eq!(rows[2].value, f64::INFINITY);
    }

    /// Whatever the order of the fields, and with escapes in labels.
    #[test]
    fn reads_a_vector_whose_type_comes_last() {
        let body = br#"{"data":{"result":[{"value":[1,"2"],"extra":[{}],"metric":{"pod":"a\"b","x":"\u00e4"}},{"metric":{"pod":"h"},"histogram":[1,{}]}],
            "resultType":"vector"},"status":"success","warnings":["w"]}"#;
        let rows = read(body).unwrap();
        let row = rows.iter().next().unwrap();
        assert_eq!((rows.len(), row.label("pod"), row.label("x"), row.value), (1, Some("a\"b"), Some("ä"), 2.0));
        assert!(read(br#"{"status":"success","data":{"resultType":"vector","result":[]}}"#).unwrap().is_empty());
        let escaped = br#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"val\u0075e":[1,"\u002bInf"]}]}}"#;
        assert_eq!(read(escaped).unwrap().iter().next().unwrap().value, f64::INFINITY);
    }

    #[test]
    fn says_why_an_answer_cannot_be_used() {
        let why = |body: &str| read(body.as_bytes()).unwrap_err().to_string();
        assert!(why(r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#).ends_with("the backend says: parse error"));
        assert!(why(r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#).contains("found a matrix, wanted a vector"));
        let whole = r#"{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]}}"#;
        assert!(why(whole).contains("not complete"));
        let histograms = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{}]}]}}"#;
        assert!(why(histograms).contains("every row is a histogram"));
        assert!(why(&format!(r#"{{"status":"error","error":"{}"}}"#, "x".repeat(100_000))).len() < 500);
        assert!(why(r#"{"status":"success"}"#).contains("gives no data"));
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
