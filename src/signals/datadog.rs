//! Datadog: one timeseries query per signal (`GET /api/v1/query`), of which the last point of each series counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::confinement::Confinement;
use super::endpoint::{self, Auth, Endpoint, Settings};
use super::{Backend, Query, QueryError, Rows};

/// Datadog rolls points up over at least this, so a shorter window may hold none.
const LEAST_WINDOW_SECONDS: i64 = 120;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Such as `datadoghq.com` or `datadoghq.eu`.
    #[serde(default = "default_site")]
    site: String,
    /// An address in place of the site's own.
    #[serde(default)]
    url: Option<String>,
    /// The file with the API key.
    api_key_file: PathBuf,
    /// The file with the application key, which needs the scope `timeseries_query`.
    application_key_file: PathBuf,
    #[serde(default = "endpoint::default_timeout_seconds")]
    timeout_seconds: u32,
    #[serde(default)]
    ca_file: Option<PathBuf>,
    /// How a query is kept to the namespace of its policy; to the tag `kube_namespace` where absent.
    #[serde(default = "default_confinement")]
    confinement: Confinement,
    #[serde(default = "endpoint::default_max_response_bytes")]
    max_response_bytes: usize,
}

fn default_site() -> String {
    "datadoghq.com".into()
}

fn default_confinement() -> Confinement {
    Confinement::ToLabel("kube_namespace".into())
}

pub struct Datadog {
    endpoint: Endpoint,
    api_key_file: PathBuf,
    application_key_file: PathBuf,
    confinement: Confinement,
}

impl Datadog {
    pub fn new(config: &Config, directory: &Path) -> anyhow::Result<Self> {
        let url = config.url.clone().unwrap_or_else(|| format!("https://api.{}", config.site));
        let settings = Settings {
            url: &url,
            timeout_seconds: config.timeout_seconds,
            // The two keys are headers of their own.
            auth: &Auth::None,
            ca_file: config.ca_file.as_deref(),
            headers: &BTreeMap::new(),
            max_response_bytes: config.max_response_bytes,
        };
        Ok(Self {
            endpoint: Endpoint::new(&settings, "/api/v1/query", directory)?,
            api_key_file: config.api_key_file.clone(),
            application_key_file: config.application_key_file.clone(),
            confinement: config.confinement.clone(),
        })
    }
}

impl Backend for Datadog {
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        self.confinement.apply(query, namespace, confine)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move {
            let to = Timestamp::now().as_second();
            let window = i64::try_from(query.max_age.as_secs()).unwrap_or(i64::MAX).max(LEAST_WINDOW_SECONDS);
            let (from, to) = (to.saturating_sub(window).to_string(), to.to_string());
            let request = self.endpoint.get(&[("from", &from), ("to", &to), ("query", &query.text)]);
            let request = request
                .header("DD-API-KEY", self.endpoint.secret(&self.api_key_file).await?)
                .header("DD-APPLICATION-KEY", self.endpoint.secret(&self.application_key_file).await?);
            read(&self.endpoint.receive(request).await?)
        })
    }
}

/// Reads the answer: each series has tags such as `pod_name:web-1`, and points of milliseconds and a value, or null. The tags
/// that name the pod and its namespace are also found under `pod` and `namespace`, as everywhere else.
fn read(body: &[u8]) -> Result<Rows, QueryError> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        status: String,
        #[serde(default)]
        error: Option<String>,
        #[serde(default)]
        series: Vec<Series>,
    }
    #[derive(Deserialize)]
    struct Series {
        #[serde(default)]
        tag_set: Vec<String>,
        #[serde(default)]
        pointlist: Vec<(f64, Option<f64>)>,
    }
    let answer: Answer = serde_json::from_slice(body).map_err(|e| QueryError::Malformed(e.to_string()))?;
    if answer.status != "ok" || answer.error.as_ref().is_some_and(|error| !error.is_empty()) {
        return Err(QueryError::Malformed(format!("the backend says: {}", answer.error.unwrap_or(answer.status))));
    }
    let mut rows = Rows::default();
    for series in answer.series {
        let point = series.pointlist.iter().rev().find_map(|(at, value)| value.map(|value| (*at, value)));
        let Some((milliseconds, value)) = point else { continue };
        let tags: Vec<(&str, &str)> = series.tag_set.iter().filter_map(|tag| tag.split_once(':')).collect();
        tags.iter().for_each(|(name, value)| rows.label(name, value));
        for (tag, label) in [("pod_name", "pod"), ("kube_namespace", "namespace")] {
            let found = tags.iter().find(|(name, _)| *name == tag).filter(|_| tags.iter().all(|(name, _)| *name != label));
            if let Some((_, value)) = found {
                rows.label(label, value);
            }
        }
        let time = Timestamp::from_millisecond(milliseconds as i64).map_err(|e| QueryError::Malformed(e.to_string()))?;
        rows.end(value, time);
    }
    Ok(rows)
}

/// Words that may stand in a query without a scope behind them: aggregations as arguments, and the ways to fill and to roll up.
const BARE_WORDS: [&str; 14] =
    ["by", "avg", "max", "min", "sum", "count", "null", "zero", "linear", "last", "as_count", "as_rate", "desc", "asc"];

/// The query with `tag:namespace` in each of its scopes. What is not plainly a metric with a scope, a function, a number or one
/// of a few words is refused rather than guessed at: a metric without a scope would be read from everywhere.
pub fn confine(query: &str, tag: &str, namespace: &str) -> Result<String, String> {
    let matcher = format!("{tag}:{namespace}");
    let mut confined = String::with_capacity(query.len() + 64);
    let (mut rest, mut scopes, mut before) = (query, 0, "");
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_.:".contains(c);
        let length = match first {
            '{' => {
                let end = rest.find('}').ok_or("a `{` is never closed")?;
                let inside = &rest[1..end];
                if inside.contains('{') {
                    return Err("a `{` stands inside of another".into());
                }
                match before {
                    "by" => confined.push_str(&rest[..=end]),
                    "" => return Err("a `{` has no metric before it".into()),
                    _ => {
                        scopes += 1;
                        confined.push_str(&format!("{{{}}}", scope(inside, &matcher)?));
                    }
                }
                before = "";
                end + 1
            }
            '\'' => {
                let end = rest[1..].find('\'').ok_or("a `'` is never closed")? + 2;
                confined.push_str(&rest[..end]);
                end
            }
            c if is_word(c) => {
                let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
                let word = &rest[..end];
                let next = rest[end..].trim_start().chars().next();
                let bare = word.trim_start_matches('.');
                let harmless = bare.parse::<f64>().is_ok() || BARE_WORDS.contains(&bare);
                if next != Some('{') && next != Some('(') && !harmless {
                    return Err(format!("`{word}` has no scope in braces"));
                }
                before = word;
                confined.push_str(word);
                end
            }
            c if c.is_whitespace() || "()+-*/,".contains(c) => {
                before = if c.is_whitespace() { before } else { "" };
                confined.push(c);
                1
            }
            c => return Err(format!("`{c}` is not understood")),
        };
        rest = &rest[length..];
    }
    if scopes == 0 { Err("found no metric with a scope in braces".into()) } else { Ok(confined) }
}

/// A scope that keeps only what also has the matcher. Commas mean AND; words (AND, OR, NOT, IN) do not mix with them.
fn scope(inside: &str, matcher: &str) -> Result<String, String> {
    let has_words = inside
        .split(|c: char| c.is_whitespace() || c == '(' || c == ')')
        .any(|word| matches!(word.to_ascii_uppercase().as_str(), "AND" | "OR" | "NOT" | "IN"));
    let depth = inside.chars().try_fold(0i32, |depth, c| match c {
        '(' => Some(depth + 1),
        ')' if depth == 0 => None,
        ')' => Some(depth - 1),
        _ => Some(depth),
    });
    if depth != Some(0) {
        return Err(format!("the brackets of the scope `{inside}` do not match"));
    }
    Ok(match inside.trim() {
        "" | "*" => matcher.into(),
        trimmed if has_words => format!("({trimmed}) AND {matcher}"),
        trimmed => format!("{trimmed},{matcher}"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_scope_gets_the_tag() {
        for (query, wanted) in [
            ("sum:work{*} by {pod_name}", "sum:work{kube_namespace:shop} by {pod_name}"),
            ("avg:a.b{app:web,env:x}by{pod_name}", "avg:a.b{app:web,env:x,kube_namespace:shop}by{pod_name}"),
            ("work{app:a OR app:b}", "work{(app:a OR app:b) AND kube_namespace:shop}"),
            ("max:work{NOT app:a}", "max:work{(NOT app:a) AND kube_namespace:shop}"),
            (
                "100 * sum:a{*} by {pod_name}.rollup(max, 60) / sum:b{} by {pod_name}",
                "100 * sum:a{kube_namespace:shop} by {pod_name}.rollup(max, 60) / sum:b{kube_namespace:shop} by {pod_name}",
            ),
            ("top(sum:a{*} by {pod_name}, 10, 'mean', 'desc')", "top(sum:a{kube_namespace:shop} by {pod_name}, 10, 'mean', 'desc')"),
            ("sum:a{*}.as_count()", "sum:a{kube_namespace:shop}.as_count()"),
            ("default_zero(sum:a{pod_name:x*})", "default_zero(sum:a{pod_name:x*,kube_namespace:shop})"),
        ] {
            assert_eq!(confine(query, "kube_namespace", "shop").as_deref(), Ok(wanted), "{query}");
        }
    }

    #[test]
    fn what_cannot_be_confined_is_refused_with_the_reason() {
        for (query, why) in [
            ("", "no metric"),
            ("work", "`work` has no scope"),
            ("sum:a{*} + b", "`b` has no scope"),
            ("sum:a{*", "never closed"),
            ("sum:a{x{y}}", "inside of another"),
            ("{*}", "no metric before it"),
            ("sum:a{x) OR (y}", "do not match"),
            ("sum:a{*}; sum:b{*}", "`;` is not understood"),
            ("by {pod}", "no metric"),
            ("top(a, 10, 'mean)", "`a` has no scope"),
            ("1 + 'x", "never closed"),
        ] {
            let found = confine(query, "kube_namespace", "shop").unwrap_err();
            assert!(found.contains(why), "{query}: {found}");
        }
    }

    #[test]
    fn the_last_point_that_is_one_counts() {
        let body = br#"{"status": "ok", "series": [
            {"tag_set": ["pod_name:web-1", "kube_namespace:shop"], "pointlist": [[1700000000000.0, 1.0], [1700000060000.0, 7.5], [1700000120000.0, null]]},
            {"tag_set": ["pod_name:web-2"], "pointlist": [[1700000000000.0, null]]}, {"tag_set": [], "pointlist": []}]}"#;
        let rows = read(body).unwrap();
        assert_eq!(rows.len(), 1, "a series without a point says nothing");
        let row = rows.iter().next().unwrap();
        assert_eq!((row.value, row.time.as_second()), (7.5, 1_700_000_060));
        assert_eq!((row.label("pod"), row.label("namespace")), (Some("web-1"), Some("shop")));
        let error = read(br#"{"status": "error", "error": "Rule 'avg' is invalid"}"#).unwrap_err();
        assert!(error.to_string().ends_with("the backend says: Rule 'avg' is invalid"), "{error}");
    }

    proptest! {
        /// Whatever the text: if it is let through, each metric's scope has the tag outside of any OR.
        #[test]
        fn nothing_slips_through(query in "[a-c:{}()*, ORAND']{0,40}") {
            if let Ok(confined) = confine(&query, "ns", "shop") {
                for piece in confined.split('{').skip(1).filter(|_| confined.contains('{')) {
                    let (inside, _) = piece.split_once('}').unwrap();
                    let before = &confined[..confined.find(piece).unwrap() - 1];
                    let is_by = before.trim_end().ends_with("by");
                    prop_assert!(is_by || inside.ends_with(",ns:shop") || inside.ends_with(") AND ns:shop") || inside == "ns:shop", "{query} became {confined}");
                }
            }
        }
    }
}
