//! Parameters of presets: what they may be, and how they stand in a query. A value never leaves the place that is meant for it.

use std::collections::BTreeMap;

/// What a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A metric's name, or a regular expression for the names that it may have.
    Metric,
    /// The same, with `{level}` in the place of a number.
    MetricPerLevel,
    /// Numbers for `{level}`, separated by commas.
    Levels,
    /// A container's name; empty means all containers.
    Container,
    /// The window of a rate.
    Window,
}

/// A parameter of a preset.
pub struct Parameter {
    pub name: &'static str,
    pub default: &'static str,
    pub kind: Kind,
}

/// Regular expressions longer than this are a mistake.
const MOST_BYTES: usize = 512;

impl Parameter {
    pub const fn new(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self { name, default, kind }
    }

    /// What would be accepted instead of this value; `None` where the value is fine.
    pub fn problem(&self, value: &str) -> Option<&'static str> {
        let (fits, wanted) = match self.kind {
            Kind::Metric => (is_metric(value), "a name of a metric, or a regular expression for such names"),
            Kind::MetricPerLevel => (
                value.contains("{level}") && is_metric(&value.replace("{level}", "0")),
                "a name of a metric with {level} in it, or a regular expression for such names",
            ),
            Kind::Levels => (levels(value).is_some(), "whole numbers with commas in between, such as 0,1,2"),
            Kind::Container => (is_container(value), "the name of a container, or nothing for all of them"),
            Kind::Window => (is_window(value), "a duration such as 2m, of at least four scrapes and at most a day"),
        };
        (!fits).then_some(wanted)
    }
}

/// No character in it could end the text that it stands in.
fn is_metric(value: &str) -> bool {
    let harmless = value.chars().all(|c| c.is_ascii_alphanumeric() || "_:.|()[]?*+-^$".contains(c));
    harmless && !value.is_empty() && value.len() <= MOST_BYTES && regex::Regex::new(value).is_ok()
}

fn is_container(value: &str) -> bool {
    value.len() <= 63 && value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn levels(value: &str) -> Option<Vec<u8>> {
    value.split(',').map(|level| level.trim().parse().ok()).collect()
}

fn is_window(value: &str) -> bool {
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u32 = value[..value.len() - unit.len()].parse().unwrap_or(0);
    let seconds = match unit {
        "s" => number,
        "m" => number.saturating_mul(60),
        "h" => number.saturating_mul(3600),
        _ => 0,
    };
    (1..=86_400).contains(&seconds)
}

/// The values of a preset's parameters in one policy.
pub struct Values<'a> {
    pub(super) parameters: &'static [Parameter],
    pub(super) given: &'a BTreeMap<String, String>,
    /// The result label that names the pod.
    pub label: &'a str,
}

impl Values<'_> {
    fn get(&self, name: &str) -> &str {
        let default = || self.parameters.iter().find(|parameter| parameter.name == name).map_or("", |parameter| parameter.default);
        self.given.get(name).map_or_else(default, String::as_str)
    }

    /// One number per pod from the gauge that this parameter names. The highest counts, where several scrape the same pod.
    pub fn gauge(&self, metric: &str) -> String {
        format!("max by ({}) ({})", self.label, by_name(self.get(metric)))
    }

    /// One number per pod from a gauge of which a pod has several series.
    pub fn total(&self, metric: &str) -> String {
        format!("sum by ({}) ({})", self.label, by_name(self.get(metric)))
    }

    /// The sum over some levels of the gauge that this parameter names.
    pub fn gauge_over(&self, metric: &str, level_parameter: &str) -> String {
        let levels: Vec<String> = levels(self.get(level_parameter)).unwrap_or_default().iter().map(u8::to_string).collect();
        let name = self.get(metric).replace("{level}", &format!("({})", levels.join("|")));
        format!("sum by ({label}) (max by ({label}, __name__) ({}))", by_name(&name), label = self.label)
    }

    /// Percent of one core, from the parameters `cpu`, `cpuContainer` and `cpuWindow`.
    pub fn cpu_percent(&self) -> String {
        let container = match self.get("cpuContainer") {
            // The cgroup of the whole pod has no container, and counts everything once more.
            "" => "container!=\"\"".into(),
            name => format!("container=\"{name}\""),
        };
        let series = selector(self.get("cpu"), &container);
        format!("100 * sum by ({}) (rate({series}[{}]))", self.label, self.get("cpuWindow"))
    }
}

fn by_name(metric: &str) -> String {
    selector(metric, "")
}

/// A selector of the series with this name, or with a name that fits this regular expression, and with this matcher if any.
fn selector(metric: &str, matcher: &str) -> String {
    let is_plain = metric.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    match (is_plain && !metric.starts_with(|c: char| c.is_ascii_digit()), matcher) {
        (true, "") => metric.into(),
        (true, matcher) => format!("{metric}{{{matcher}}}"),
        (false, "") => format!("{{__name__=~\"{metric}\"}}"),
        (false, matcher) => format!("{{__name__=~\"{metric}\",{matcher}}}"),
    }
}
