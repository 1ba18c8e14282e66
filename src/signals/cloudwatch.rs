//! Amazon CloudWatch: one `GetMetricData` per signal, for a Metrics Insights query or a search expression.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use aws_credential_types::Credentials;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::aws::{self, Keys, Unsigned};
use super::confinement::Confinement;
use super::endpoint::{self, Auth, Endpoint, Settings};
use super::{Backend, Query, QueryError, Rows};

/// A Metrics Insights query has at most 500 series, and other expressions come in pages of that order.
const MOST_PAGES: usize = 20;

/// Metrics Insights returns no more series than these, and does not say how many there would be.
const MOST_SERIES: usize = 500;

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
    /// No policy polls more often, whatever it says: CloudWatch charges for each metric that is asked for.
    #[serde(default = "endpoint::default_least_poll_seconds")]
    least_poll_seconds: u32,
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
    least_poll_seconds: u32,
    timeout: Duration,
    max_response_bytes: usize,
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
        let endpoint = |url: &str, through_proxy: bool| {
            let settings = Settings {
                url,
                timeout_seconds: config.timeout_seconds,
                auth: &Auth::None,
                ca_file: None,
                headers: &BTreeMap::new(),
                through_proxy,
                max_response_bytes: config.max_response_bytes,
            };
            Endpoint::new(&settings, "", directory)
        };
        let url = config.url.clone().unwrap_or_else(|| format!("https://monitoring.{region}.{}", aws::domain(region)));
        Ok(Self {
            endpoint: endpoint(&url, true)?,
            keys: Keys::new(&config.credentials, region, directory, endpoint)?,
            region: region.clone(),
            period_seconds: period,
            confinement: config.confinement.clone(),
            least_poll_seconds: config.least_poll_seconds,
            timeout: Duration::from_secs(config.timeout_seconds.into()),
            max_response_bytes: config.max_response_bytes,
        })
    }

    async fn page(&self, query: &Query, credentials: &Credentials, token: Option<&str>) -> Result<(Answer, usize), QueryError> {
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
        let answer = self.endpoint.receive(request, &[]).await?;
        let page: Answer = serde_json::from_slice(&answer).map_err(QueryError::malformed)?;
        Ok((page, answer.len()))
    }

    async fn pages(&self, query: &Query) -> Result<Rows, QueryError> {
        let (columns, credentials) = (grouped_by(&query.text), self.keys.get().await?);
        let (mut rows, mut seen, mut series) = (Rows::default(), HashSet::new(), HashSet::new());
        let (mut token, mut bytes) = (None::<String>, 0);
        for _ in 0..MOST_PAGES {
            let (page, length) = self.page(query, &credentials, token.as_deref()).await?;
            bytes += length;
            if bytes > self.max_response_bytes {
                return Err(QueryError::TooLarge(self.max_response_bytes));
            }
            if let Some(message) = page.messages.first() {
                return Err(QueryError::malformed(format!("the backend says {}: {}", message.code, message.value)));
            }
            for result in page.metric_data_results {
                series.insert(result.label.clone());
                // A series may go on on the next page; its latest point came first.
                if !seen.contains(&result.label) && result.read(&columns, &mut rows)? {
                    seen.insert(result.label);
                }
            }
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                let is_insights = query.text.trim_start().get(..6).is_some_and(|word| word.eq_ignore_ascii_case("select"));
                if is_insights && series.len() >= MOST_SERIES {
                    let why = format!("found {MOST_SERIES} series, which is where Metrics Insights stops: wanted a query with fewer");
                    return Err(QueryError::malformed(why));
                }
                return Ok(rows);
            }
        }
        Err(QueryError::malformed(format!("more than {MOST_PAGES} pages")))
    }
}

impl Backend for CloudWatch {
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        self.confinement.apply(query, namespace, |_, _, _| Err("a matcher cannot be added".into()))
    }

    fn least_period(&self) -> Duration {
        Duration::from_secs(self.least_poll_seconds.into())
    }

    /// All pages together have the time and the size of one answer.
    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move { timeout(self.timeout, self.pages(query)).await.unwrap_or(Err(QueryError::Timeout(self.timeout))) })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    metric_data_results: Vec<Series>,
    /// What is wrong with the answer as a whole, such as that it is not complete.
    #[serde(default)]
    messages: Vec<Message>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message {
    #[serde(default)]
    code: String,
    #[serde(default)]
    value: String,
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
    /// Adds the latest point, and says whether there is one. The label holds the values of the columns that the query groups by; the whole of it is `label`, and a
    /// column that names the pod or its namespace is also found under `pod` or `namespace`.
    fn read(&self, columns: &[String], rows: &mut Rows) -> Result<bool, QueryError> {
        if matches!(self.status_code.as_str(), "InternalError" | "Forbidden") {
            return Err(QueryError::malformed(format!("the backend says {} for `{}`", self.status_code, self.label)));
        }
        let (Some(seconds), Some(value)) = (self.timestamps.first(), self.values.first()) else { return Ok(false) };
        let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).map_err(QueryError::malformed)?;
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
        Ok(true)
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
