//! Amazon CloudWatch: one `GetMetricData` per signal, for a Metrics Insights query or a search expression.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use anyhow::ensure;
use aws_credential_types::Credentials;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::aws::{self, Keys, Unsigned};
use super::confinement::Confinement;
use super::endpoint::{self, Auth, Endpoint, Settings};
use super::{Backend, Query, QueryError, Rows};

/// A Metrics Insights query has at most 500 series, and other expressions come in pages of that order.
const MOST_PAGES: usize = 20;

/// How the JSON protocol names the operation.
const TARGET: &str = "GraniteServiceVersion20100801.GetMetricData";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    region: String,
    /// An address in place of the region's own.
    #[serde(default)]
    url: Option<String>,
    credentials: aws::Source,
    /// The resolution of the points, in seconds.
    #[serde(default = "default_period_seconds")]
    period_seconds: u32,
    #[serde(default = "endpoint::default_timeout_seconds")]
    timeout_seconds: u32,
    /// `toQueries` or `none`: expressions of CloudWatch cannot be kept to a namespace by a matcher.
    confinement: Confinement,
    #[serde(default = "endpoint::default_max_response_bytes")]
    max_response_bytes: usize,
}

fn default_period_seconds() -> u32 {
    60
}

pub struct CloudWatch {
    endpoint: Endpoint,
    keys: Keys,
    region: String,
    period_seconds: u32,
    confinement: Confinement,
}

impl CloudWatch {
    pub fn new(config: &Config, directory: &Path) -> anyhow::Result<Self> {
        let region = &config.region;
        let is_region = !region.is_empty() && region.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        ensure!(is_region, "region: found `{region}`, wanted one such as eu-central-1");
        let period = config.period_seconds;
        ensure!((1..=86_400).contains(&period), "periodSeconds: found {period}, wanted 1 to 86400");
        ensure!(
            !matches!(config.confinement, Confinement::ToLabel(_)),
            "confinement: found toLabel, wanted toQueries or none: expressions of CloudWatch cannot be given a matcher"
        );
        let endpoint = |url: &str| {
            let settings = Settings {
                url,
                timeout_seconds: config.timeout_seconds,
                auth: &Auth::None,
                ca_file: None,
                headers: &BTreeMap::new(),
                max_response_bytes: config.max_response_bytes,
            };
            Endpoint::new(&settings, "", directory)
        };
        let url = config.url.clone().unwrap_or_else(|| format!("https://monitoring.{region}.amazonaws.com"));
        Ok(Self {
            endpoint: endpoint(&url)?,
            keys: Keys::new(&config.credentials, region, endpoint)?,
            region: region.clone(),
            period_seconds: period,
            confinement: config.confinement.clone(),
        })
    }

    async fn page(&self, query: &Query, credentials: &Credentials, token: Option<&str>) -> Result<Answer, QueryError> {
        let (now, period) = (Timestamp::now().as_second(), i64::from(self.period_seconds));
        // The period that has only begun has no point yet, so three of them hold at least one.
        let window = i64::try_from(query.max_age.as_secs()).unwrap_or(i64::MAX).max(3 * period);
        let mut body = json!({
            "MetricDataQueries": [{"Id": "signal", "Expression": query.text, "Period": self.period_seconds, "ReturnData": true}],
            "StartTime": now.saturating_sub(window), "EndTime": now, "ScanBy": "TimestampDescending",
        });
        if let Some(token) = token {
            body["NextToken"] = json!(token);
        }
        let body = body.to_string().into_bytes();
        let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", TARGET)];
        let unsigned = Unsigned { method: "POST", url: self.endpoint.url.as_str(), headers: &headers, body: &body };
        let signed = aws::signature(&unsigned, credentials, &self.region, "monitoring", SystemTime::now())?;
        let signed = signed.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let request =
            headers.into_iter().chain(signed).fold(self.endpoint.post_body(body), |request, (name, value)| request.header(name, value));
        let answer = self.endpoint.receive(request).await?;
        serde_json::from_slice(&answer).map_err(|e| QueryError::Malformed(e.to_string()))
    }
}

impl Backend for CloudWatch {
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        self.confinement.apply(query, namespace, |_, _, _| Err("a matcher cannot be added".into()))
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move {
            let (columns, credentials) = (grouped_by(&query.text), self.keys.get().await?);
            let (mut rows, mut seen, mut token) = (Rows::default(), HashSet::new(), None::<String>);
            for _ in 0..MOST_PAGES {
                let answer = self.page(query, &credentials, token.as_deref()).await?;
                for result in answer.metric_data_results {
                    // A series may go on on the next page; its latest point came first.
                    if seen.insert(result.label.clone()) {
                        result.read(&columns, &mut rows)?;
                    }
                }
                token = answer.next_token.filter(|token| !token.is_empty());
                if token.is_none() {
                    return Ok(rows);
                }
            }
            Err(QueryError::Malformed(format!("more than {MOST_PAGES} pages")))
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    metric_data_results: Vec<Series>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Series {
    #[serde(default)]
    label: String,
    #[serde(default)]
    status_code: String,
    /// Seconds, latest first.
    #[serde(default)]
    timestamps: Vec<f64>,
    #[serde(default)]
    values: Vec<f64>,
}

impl Series {
    /// The latest point. The label holds the values of the columns that the query groups by; the whole of it is `label`, and a
    /// column that names the pod or its namespace is also found under `pod` or `namespace`.
    fn read(self, columns: &[String], rows: &mut Rows) -> Result<(), QueryError> {
        if matches!(self.status_code.as_str(), "InternalError" | "Forbidden") {
            return Err(QueryError::Malformed(format!("the backend says {} for `{}`", self.status_code, self.label)));
        }
        let (Some(seconds), Some(value)) = (self.timestamps.first(), self.values.first()) else { return Ok(()) };
        let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).map_err(|e| QueryError::Malformed(e.to_string()))?;
        let values: Vec<&str> = self.label.split_whitespace().collect();
        if values.len() == columns.len() {
            let labels = || columns.iter().map(String::as_str).zip(values.iter().copied());
            labels().for_each(|(name, value)| rows.label(name, value));
            let find = |column: &str| labels().find(|(name, _)| *name == column);
            for (found, label) in [(find("FullPodName").or_else(|| find("PodName")), "pod"), (find("Namespace"), "namespace")] {
                if let Some((_, value)) = found {
                    rows.label(label, value);
                }
            }
        }
        rows.label("label", &self.label);
        rows.end(*value, time);
        Ok(())
    }
}

/// The columns behind `GROUP BY`, without their quotes.
fn grouped_by(query: &str) -> Vec<String> {
    let words: Vec<&str> = query.split_whitespace().collect();
    let is_group_by = |pair: &[&str]| pair[0].eq_ignore_ascii_case("group") && pair[1].eq_ignore_ascii_case("by");
    let Some(start) = words.windows(2).position(is_group_by) else { return vec![] };
    let ends = |word: &&&str| !["order", "limit", "having"].contains(&word.to_ascii_lowercase().as_str());
    let columns = words[start + 2..].iter().take_while(ends).copied().collect::<Vec<_>>().join("");
    columns.split(',').map(|column| column.trim_matches('"').to_owned()).filter(|column| !column.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_columns_of_a_query() {
        assert_eq!(grouped_by("SELECT MAX(inflight) FROM \"app\" WHERE Namespace = 'a' GROUP BY FullPodName"), ["FullPodName"]);
        assert_eq!(grouped_by("select x group by \"Namespace\", PodName ORDER BY MAX() DESC LIMIT 5"), ["Namespace", "PodName"]);
        assert!(grouped_by("SEARCH('{app,PodName} inflight', 'Maximum')").is_empty());
    }

    #[test]
    fn reads_the_latest_point_with_the_columns_as_labels() {
        let series = |text: &str| serde_json::from_str::<Series>(text).unwrap();
        let columns = ["Namespace".to_owned(), "FullPodName".to_owned()];
        let mut rows = Rows::default();
        let text = r#"{"Id": "signal", "Label": "shop web-1", "Timestamps": [1700000060, 1700000000], "Values": [7, 3], "StatusCode": "Complete"}"#;
        series(text).read(&columns, &mut rows).unwrap();
        series(r#"{"Label": "a", "Timestamps": [], "Values": []}"#).read(&columns, &mut rows).unwrap();
        assert_eq!(rows.len(), 1, "a series without a point says nothing");
        let row = rows.iter().next().unwrap();
        assert_eq!((row.value, row.time.as_second()), (7.0, 1_700_000_060));
        assert_eq!((row.label("pod"), row.label("namespace"), row.label("label")), (Some("web-1"), Some("shop"), Some("shop web-1")));
        assert!(series(r#"{"Label": "a", "StatusCode": "Forbidden"}"#).read(&columns, &mut rows).is_err());
    }
}
