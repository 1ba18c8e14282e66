//! Datadog: one timeseries query per signal (`GET /api/v1/query`), of which the last point of each series counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// No policy polls more often, whatever it says: the number of queries is limited for the whole organisation.
    #[serde(default = "endpoint::default_least_poll_seconds")]
    least_poll_seconds: u32,
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
    least_poll_seconds: u32,
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
            through_proxy: true,
            max_response_bytes: config.max_response_bytes,
        };
        Ok(Self {
            endpoint: Endpoint::new(&settings, "/api/v1/query", directory)?,
            api_key_file: config.api_key_file.clone(),
            application_key_file: config.application_key_file.clone(),
            confinement: config.confinement.clone(),
            least_poll_seconds: config.least_poll_seconds,
        })
    }
}

impl Backend for Datadog {
    fn prepare(&self, query: &str, namespace: &str) -> Result<String, String> {
        self.confinement.apply(query, namespace, confine)
    }

    fn least_period(&self) -> Duration {
        Duration::from_secs(self.least_poll_seconds.into())
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        Box::pin(async move {
            let to = Timestamp::now().as_second();
            let window = i64::try_from(query.max_age.as_secs()).unwrap_or(i64::MAX).max(LEAST_WINDOW_SECONDS);
            let (from, to) = (to.saturating_sub(window).to_string(), to.to_string());
            let request = self.endpoint.get(&[("from", &from), ("to", &to), ("query", &query.text)]);
            let (api, application) =
                (self.endpoint.secret(&self.api_key_file).await?, self.endpoint.secret(&self.application_key_file).await?);
            let request = request.header("DD-API-KEY", &api).header("DD-APPLICATION-KEY", &application);
            read(&self.endpoint.receive(request, &[&api, &application]).await?)
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
    let answer: Answer = serde_json::from_slice(body).map_err(QueryError::malformed)?;
    if answer.status != "ok" || answer.error.as_ref().is_some_and(|error| !error.is_empty()) {
        return Err(QueryError::malformed(format!("the backend says: {}", answer.error.unwrap_or(answer.status))));
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
        let time = Timestamp::from_millisecond(milliseconds as i64).map_err(QueryError::malformed)?;
        rows.end(value, time);
    }
    Ok(rows)
}

/// Functions that a query may use around its metrics.
const FUNCTIONS: [&str; 32] = [
    "abs",
    "log2",
    "log10",
    "cumsum",
    "integral",
    "diff",
    "derivative",
    "dt",
    "monotonic_diff",
    "per_second",
    "per_minute",
    "per_hour",
    "default_zero",
    "exclude_null",
    "count_nonzero",
    "count_not_null",
    "moving_rollup",
    "top",
    "clamp_min",
    "clamp_max",
    "cutoff_min",
    "cutoff_max",
    "ewma_3",
    "ewma_5",
    "ewma_10",
    "ewma_20",
    "median_3",
    "median_5",
    "median_7",
    "median_9",
    "autosmooth",
    "timeshift",
];

/// What may follow a scope.
const METHODS: [&str; 5] = [".rollup", ".fill", ".as_count", ".as_rate", ".weighted"];

/// Words that may stand among the arguments of a function.
const ARGUMENTS: [&str; 11] = ["avg", "max", "min", "sum", "count", "null", "zero", "linear", "last", "mean", "area"];

/// What stood before, as far as it matters for what may come next.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    /// The end of a scope, or of a group, where `by` may come.
    Closed,
    /// A metric, whose scope must come at once.
    Metric,
    By,
    Other,
}

/// The query with `tag:namespace` in each of its scopes. What is not plainly a metric with a scope, a known function or method, a
/// number, a string, or one of a few words is refused rather than guessed at: a metric that is overlooked would be read from
/// everywhere.
pub fn confine(query: &str, tag: &str, namespace: &str) -> Result<String, String> {
    let matcher = format!("{tag}:{namespace}");
    let mut confined = String::with_capacity(query.len() + 64);
    let (mut at, mut scopes, mut before) = (0, 0, Before::Other);
    let refuse = |at: usize, why: String| Err(format!("at character {}: {why}", at + 1));
    if let Some(at) = query.find(|c: char| !(c.is_ascii_graphic() || c == ' ' || c == '\n' || c == '\t')) {
        return refuse(at, "found a character that is not plain ASCII, wanted a query without".into());
    }
    while let Some(first) = query[at..].chars().next() {
        let rest = &query[at..];
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_.:".contains(c);
        let length = match first {
            '{' => {
                let Some(end) = rest.find('}') else { return refuse(at, "found a `{` that is never closed, wanted its `}`".into()) };
                match before {
                    Before::By => {
                        if let Err(why) = only_tags(&rest[1..end]) {
                            return refuse(at, why);
                        }
                        confined.push_str(&rest[..=end]);
                    }
                    Before::Metric => {
                        scopes += 1;
                        confined.push_str(&format!("{{{}}}", scope(&rest[1..end], tag, &matcher).or_else(|why| refuse(at, why))?));
                    }
                    _ => return refuse(at, "found a `{`, wanted it right after a metric or after `by`".into()),
                }
                before = Before::Closed;
                end + 1
            }
            '\'' => {
                let Some(end) = rest[1..].find('\'').map(|end| end + 2).filter(|end| !rest[..*end].contains('\\')) else {
                    return refuse(at, "found a `'` that is never closed or a `\\` behind it, wanted a plain text".into());
                };
                confined.push_str(&rest[..end]);
                before = Before::Other;
                end
            }
            c if is_word(c) => {
                let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
                let (word, next) = (&rest[..end], rest[end..].chars().next());
                before = match next {
                    Some('{') if word == "by" && before == Before::Closed => Before::By,
                    Some('{') if word != "by" => Before::Metric,
                    Some('(') if FUNCTIONS.contains(&word) || (METHODS.contains(&word) && before == Before::Closed) => Before::Other,
                    _ if word == "by" && before == Before::Closed => Before::By,
                    _ if word.parse::<f64>().is_ok() || ARGUMENTS.contains(&word) => Before::Other,
                    Some('(') => return refuse(at, format!("found `{word}(`, wanted a function such as {}", FUNCTIONS[..4].join(", "))),
                    _ => return refuse(at, format!("found `{word}`, wanted a metric with a scope in braces right behind it")),
                };
                confined.push_str(word);
                end
            }
            ' ' | '\n' | '\t' => {
                if before == Before::Metric {
                    before = Before::Other;
                }
                confined.push(' ');
                1
            }
            c if "()+-*/,".contains(c) => {
                before = if c == ')' { Before::Closed } else { Before::Other };
                confined.push(c);
                1
            }
            c => return refuse(at, format!("found `{c}`, wanted a metric, a function, a number or an operator")),
        };
        at += length;
    }
    if scopes == 0 { Err("found no metric, wanted one with a scope in braces, such as work{*}".into()) } else { Ok(confined) }
}

/// Whether these are tags to group by: names and commas, so that neither a brace nor a bracket hides among them.
fn only_tags(inside: &str) -> Result<(), String> {
    match inside.chars().find(|c| !(c.is_ascii_alphanumeric() || "_.:/-, ".contains(*c))) {
        Some(c) => Err(format!("found `{c}` among the tags behind `by`, wanted their names and commas")),
        None => Ok(()),
    }
}

/// A scope that keeps only what also has the matcher. Commas mean AND; the words (AND, OR, NOT, IN) do not mix with them.
fn scope(inside: &str, tag: &str, matcher: &str) -> Result<String, String> {
    if let Some(c) = inside.chars().find(|c| !(c.is_ascii_alphanumeric() || "_.:/*!,()- ".contains(*c))) {
        return Err(format!("found `{c}` in a scope, wanted tags, commas, brackets, and AND, OR, NOT, IN"));
    }
    let words: Vec<&str> = inside.split([' ', '(', ')', ',']).filter(|word| !word.is_empty()).collect();
    if let Some(other) = words.iter().find(|word| word.trim_start_matches(['!', '-']).starts_with(&format!("{tag}:")) && **word != matcher)
    {
        return Err(format!("found `{other}`, wanted no other than `{matcher}`, which is added"));
    }
    let has_words = words.iter().any(|word| ["AND", "OR", "NOT", "IN"].contains(&word.to_ascii_uppercase().as_str()));
    if has_words && inside.contains(',') && !words.iter().any(|word| word.eq_ignore_ascii_case("IN")) {
        return Err("found commas among AND, OR and NOT, wanted one or the other".into());
    }
    let depth = inside.chars().try_fold(0i32, |depth, c| match c {
        '(' => Some(depth + 1),
        ')' if depth == 0 => None,
        ')' => Some(depth - 1),
        _ => Some(depth),
    });
    if depth != Some(0) {
        return Err(format!("found brackets that do not match in `{inside}`, wanted as many `(` as `)`"));
    }
    Ok(match inside.trim() {
        "" | "*" => matcher.into(),
        trimmed if has_words || trimmed.contains(['(', ' ']) => format!("({trimmed}) AND {matcher}"),
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
            ("work{app IN (a, b)}", "work{(app IN (a, b)) AND kube_namespace:shop}"),
            ("max:work{NOT app:a}", "max:work{(NOT app:a) AND kube_namespace:shop}"),
            ("work{kube_namespace:shop}", "work{kube_namespace:shop,kube_namespace:shop}"),
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
    fn what_cannot_be_confined_is_refused_with_the_place_and_the_reason() {
        for (query, why) in [
            ("", "found no metric"),
            ("work", "at character 1: found `work`, wanted a metric with a scope"),
            ("sum:a{*} + b", "at character 12: found `b`"),
            ("sum:a{*", "at character 6: found a `{` that is never closed"),
            ("sum:a{x{y}}", "found `{` in a scope"),
            ("{*}", "right after a metric"),
            ("sum:a {*}", "wanted a metric with a scope"),
            ("sum:a{x) OR (y}", "do not match"),
            ("sum:a{*}; sum:b{*}", "found `;`"),
            ("by {pod}", "found `by`"),
            ("sum:a{*} + by{kube_namespace:other}", "found `by`"),
            ("sum:a{*} +by 'x' {*}", "found `by`"),
            ("sum:a{*} + sum:secret(60)", "found `sum:secret(`"),
            ("sum:a{*} + logs('*').index('*')", "found `logs(`"),
            ("sum:a{*}.index('x')", "found `.index(`"),
            ("sum:a{app:\"(\" ) OR (app:\")\"}", "found `\"` in a scope"),
            ("sum:a{x||y:z}", "found `|` in a scope"),
            ("sum:a{*} by{x){*}", "at character 12: found `)` among the tags behind `by`"),
            ("sum:a{*} by {pod, {sum:b}", "found `{` among the tags behind `by`"),
            ("sum:a{a:b,OR kube_namespace:other}", "wanted no other than `kube_namespace:shop`"),
            ("sum:a{a:b,OR c:d}", "found commas among"),
            ("sum:a{!kube_namespace:x}", "wanted no other"),
            ("sum:a{*}\u{a0}by {pod_name}", "at character 9: found a character that is not plain ASCII"),
            ("sum:ä{*}", "not plain ASCII"),
            ("top(a, 10, 'mean)", "found `a`"),
            ("1 + 'x", "never closed"),
            (r"sum:a{*} + 'x\' + sum:b{*} + 'y'", "found a `'`"),
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

    /// Pieces of which queries are made, good ones and bad ones.
    fn piece() -> impl Strategy<Value = String> {
        let words = ["sum:a", "b", "by", "top", "rollup", ".rollup", ".fill", "60", "max", "logs", "'x'", "'"];
        let marks = [
            "{*}",
            "{x:y}",
            "{x:y OR z:w}",
            "{NOT x:y}",
            "{x,y}",
            "{ns:other}",
            "{(x)}",
            "{x)",
            "(",
            ")",
            "+",
            ",",
            " ",
            " by {pod}",
            "{",
            "}",
            "é",
        ];
        prop::sample::select([&words[..], &marks[..]].concat()).prop_map(str::to_owned)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Whatever is let through: behind each metric stands a scope with the tag outside of any OR, and braces stand nowhere else
        /// but behind `by`, which stands behind a scope or a bracket.
        #[test]
        fn nothing_slips_through(pieces in prop::collection::vec(piece(), 1..8)) {
            let query = pieces.concat();
            let Ok(confined) = confine(&query, "ns", "shop") else { return Ok(()) };
            // What stands in a string is no part of the query.
            let confined = regex::Regex::new("'[^']*'").unwrap().replace_all(&confined, "").into_owned();
            let braces = regex::Regex::new(r"(^|[^A-Za-z0-9_.:])?([A-Za-z0-9_.:]*)\s*\{([^{}]*)\}").unwrap();
            let mut scopes = 0;
            for found in braces.captures_iter(&confined) {
                let (word, inside) = (&found[2], &found[3]);
                if word == "by" {
                    continue;
                }
                scopes += 1;
                prop_assert!(inside == "ns:shop" || inside.ends_with(",ns:shop") || inside.ends_with(") AND ns:shop"), "{query} became {confined}");
                prop_assert!(!inside.contains("ns:other"), "{query} became {confined}");
            }
            prop_assert!(scopes > 0 && confined.matches('{').count() == confined.matches('}').count(), "{query} became {confined}");
            // Without its scopes nothing is left that names a metric.
            let left = braces.replace_all(&confined, "");
            prop_assert!(!left.contains("sum:a") && !left.contains("logs"), "{query} became {confined}");
        }
    }
}
