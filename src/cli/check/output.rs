//! How a report is printed: for people, for programs, for code hosts (SARIF) and for CI servers (JUnit).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::finding::{Finding, Report};
use crate::headroom::report::{Level, NOTE, UNCHECKED};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    Text,
    Json,
    Sarif,
    Junit,
}

impl Output {
    pub fn print(self, report: &Report) -> String {
        match self {
            Self::Text => text(report),
            Self::Json => pretty(&json!(report)),
            Self::Sarif => pretty(&sarif(report)),
            Self::Junit => junit(report),
        }
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for Finding { level, rule, file, line, column, object, message, .. } in &report.findings {
        let place = format!("{}:{line}:{column}", file.display());
        let object = if object.is_empty() { String::new() } else { format!("{object}: ") };
        let rule = if matches!(rule.as_str(), "invalidDocument" | UNCHECKED | NOTE) { String::new() } else { format!("[{rule}] ") };
        let _ = writeln!(text, "{place}: {}: {object}{rule}{message}", level.as_str());
    }
    let Report { documents, objects, others, fixed, .. } = report;
    let fixed = if *fixed == 0 { String::new() } else { format!("; {fixed} fixed") };
    let counts = [Level::Error, Level::Warning, Level::Unchecked].map(|level| report.count(level));
    let _ = write!(
        text,
        "{documents} policies and pools, {objects} objects, {others} of other kinds: {} errors, {} warnings, {} could not be checked{fixed}",
        counts[0], counts[1], counts[2]
    );
    text
}

/// SARIF 2.1.0, as code hosts read it.
fn sarif(report: &Report) -> Value {
    let level = |level: Level| match level {
        Level::Error | Level::Unchecked => "error",
        Level::Warning => "warning",
        Level::Note => "note",
    };
    let result = |finding: &Finding| {
        json!({"ruleId": finding.rule, "level": level(finding.level),
            "message": {"text": format!("{} {}", finding.object, finding.message).trim()},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": finding.file.display().to_string()},
                "region": {"startLine": finding.line, "startColumn": finding.column}}}]})
    };
    let rules: BTreeMap<&str, Value> = report
        .findings
        .iter()
        .map(|finding| (finding.rule.as_str(), json!({"id": finding.rule, "helpUri": help(&finding.rule)})))
        .collect();
    json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [{
        "tool": {"driver": {"name": "pecking-order", "version": env!("CARGO_PKG_VERSION"), "rules": rules.into_values().collect::<Vec<_>>()}},
        "results": report.findings.iter().map(result).collect::<Vec<_>>()}]})
}

/// Where a rule is explained.
fn help(rule: &str) -> String {
    format!("docs/headroom.md#{rule}")
}

fn junit(report: &Report) -> String {
    let mut by_file: BTreeMap<String, Vec<&Finding>> = BTreeMap::new();
    for finding in &report.findings {
        by_file.entry(finding.file.display().to_string()).or_default().push(finding);
    }
    let (errors, failures) = (report.count(Level::Unchecked), report.count(Level::Error));
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let tests = report.findings.len().max(1);
    let _ = writeln!(text, "<testsuites name=\"pecking-order check\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\">");
    if by_file.is_empty() {
        let _ = writeln!(text, "  <testsuite name=\"all\" tests=\"1\" failures=\"0\" errors=\"0\"><testcase name=\"all\"/></testsuite>");
    }
    for (file, findings) in by_file {
        let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
        let (failures, errors) = (count(Level::Error), count(Level::Unchecked));
        let (file, tests) = (escape(&file), findings.len());
        let _ = writeln!(text, "  <testsuite name=\"{file}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\">");
        for finding in findings {
            let name = escape(&format!("{} {}:{}", finding.rule, finding.object, finding.line));
            let message = escape(&finding.message);
            let outcome = match finding.level {
                Level::Error => format!("<failure message=\"{message}\"/>"),
                Level::Unchecked => format!("<error message=\"{message}\"/>"),
                Level::Warning | Level::Note => format!("<system-out>{message}</system-out>"),
            };
            let _ = writeln!(text, "    <testcase classname=\"{file}\" name=\"{name}\">{outcome}</testcase>");
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>");
    text
}

/// XML has no way to write most control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(' '),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
