//! Reads documents of our kinds: from YAML files, with line and column, and from objects as the API server gives them.
//! Both go through the same types and the same validation.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::{API_VERSION, DeletionCostPolicy, HeadroomClaim, HeadroomPool, Problem};

/// The largest policy file that is read. A policy is a few KiB; a larger file is a mistake, such as a log.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A document of one of our kinds.
#[derive(Debug, Clone)]
pub enum Document {
    DeletionCostPolicy(Box<DeletionCostPolicy>),
    HeadroomPool(Box<HeadroomPool>),
    HeadroomClaim(Box<HeadroomClaim>),
}

impl Document {
    /// What the validation of the document's kind finds.
    pub fn problems(&self) -> Vec<Problem> {
        match self {
            Self::DeletionCostPolicy(policy) => policy.spec.problems(),
            Self::HeadroomPool(pool) => pool.spec.problems(),
            Self::HeadroomClaim(claim) => claim.spec.problems(),
        }
    }

    /// Kind, namespace and name.
    fn identity(&self) -> (&'static str, &str, &str) {
        let (kind, metadata) = match self {
            Self::DeletionCostPolicy(policy) => ("DeletionCostPolicy", &policy.metadata),
            Self::HeadroomPool(pool) => ("HeadroomPool", &pool.metadata),
            Self::HeadroomClaim(claim) => ("HeadroomClaim", &claim.metadata),
        };
        (kind, metadata.namespace.as_deref().unwrap_or("default"), metadata.name.as_deref().unwrap_or_default())
    }

    /// Reads an object of one of our kinds, such as the one in an AdmissionReview.
    pub fn from_value(kind: &str, value: Value) -> Result<Self, String> {
        match kind {
            "DeletionCostPolicy" => typed(value).map(|d| Self::DeletionCostPolicy(Box::new(d))),
            "HeadroomPool" => typed(value).map(|d| Self::HeadroomPool(Box::new(d))),
            "HeadroomClaim" => typed(value).map(|d| Self::HeadroomClaim(Box::new(d))),
            other => Err(unknown_kind(other)),
        }
    }
}

/// What is wrong with a document, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    pub file: PathBuf,
    /// Line and column, from 1; absent where the file as a whole is meant.
    pub position: Option<(u64, u64)>,
    pub message: String,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for DocumentError {}

/// Reads every `.yaml`, `.yml` and `.json` file of a directory, in the order of their names, not its subdirectories.
/// What is wrong with one document does not hide the others.
pub fn read_directory(directory: &Path) -> (Vec<Document>, Vec<DocumentError>) {
    let mut files = match std::fs::read_dir(directory) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect::<Vec<_>>(),
        Err(e) => {
            let message = format!("cannot read the directory: {e}");
            return (vec![], vec![DocumentError { file: directory.into(), position: None, message }]);
        }
    };
    files.retain(|file| file.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") && file.is_file());
    files.sort();
    let (mut documents, mut errors): (Vec<Document>, Vec<DocumentError>) = (vec![], vec![]);
    for file in files {
        match read_text(&file) {
            Ok(text) => {
                let (good, mut bad) = read_documents(&file, &text);
                errors.append(&mut bad);
                for document in good {
                    if let Err(message) = add_once(&mut documents, document) {
                        errors.push(DocumentError { file: file.clone(), position: None, message });
                    }
                }
            }
            Err(message) => errors.push(DocumentError { file, position: None, message }),
        }
    }
    (documents, errors)
}

/// Puts a document to others, unless there is one of its name; the error says so.
pub(crate) fn add_once(documents: &mut Vec<Document>, document: Document) -> Result<(), String> {
    if documents.iter().any(|other| other.identity() == document.identity()) {
        let (kind, namespace, name) = document.identity();
        return Err(format!("{kind} {namespace}/{name}: found twice, wanted one document of that name"));
    }
    documents.push(document);
    Ok(())
}

/// Reads a file that is not too large to be what it should be.
pub fn read_text(file: &Path) -> Result<String, String> {
    let size = std::fs::metadata(file).map_err(|e| format!("cannot read the file: {e}"))?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("the file has {size} bytes, wanted at most {MAX_FILE_BYTES}"));
    }
    std::fs::read_to_string(file).map_err(|e| format!("cannot read the file: {e}"))
}

/// Reads every document of a YAML text. Documents of other kinds are refused: a misspelt kind must not be skipped in silence.
pub fn read_documents(file: &Path, text: &str) -> (Vec<Document>, Vec<DocumentError>) {
    let (mut documents, mut errors) = (vec![], vec![]);
    for (first_line, text) in split(text) {
        match read_one(text) {
            Ok(None) => {}
            Ok(Some(document)) => {
                let problems = document.problems();
                if problems.is_empty() {
                    documents.push(document);
                }
                for problem in problems {
                    let position = Some((first_line + line_of(text, &problem.path), 1));
                    errors.push(DocumentError { file: file.into(), position, message: problem.to_string() });
                }
            }
            Err((position, message)) => {
                let position = position.map(|(line, column)| (line + first_line - 1, column));
                errors.push(DocumentError { file: file.into(), position, message });
            }
        }
    }
    (documents, errors)
}

/// What every document has at its root; a misspelt key there must not be skipped either.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Header {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: HeaderMetadata,
    #[serde(default, rename = "spec")]
    _spec: IgnoredAny,
    #[serde(default, rename = "status")]
    _status: IgnoredAny,
}

/// The fields of `metav1.ObjectMeta`. Most are named only so that others are refused.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code)]
struct HeaderMetadata {
    name: Option<String>,
    namespace: Option<IgnoredAny>,
    labels: Option<IgnoredAny>,
    annotations: Option<IgnoredAny>,
    uid: Option<IgnoredAny>,
    resource_version: Option<IgnoredAny>,
    generation: Option<IgnoredAny>,
    creation_timestamp: Option<IgnoredAny>,
    deletion_timestamp: Option<IgnoredAny>,
    deletion_grace_period_seconds: Option<IgnoredAny>,
    generate_name: Option<IgnoredAny>,
    self_link: Option<IgnoredAny>,
    owner_references: Option<IgnoredAny>,
    finalizers: Option<IgnoredAny>,
    managed_fields: Option<IgnoredAny>,
}

type Misread = (Option<(u64, u64)>, String);

fn read_one(text: &str) -> Result<Option<Document>, Misread> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(None);
    }
    let header: Header = yaml(text)?;
    if header.api_version != API_VERSION {
        let message = format!("apiVersion: found `{}`, wanted {API_VERSION}", header.api_version);
        return Err((Some((1, 1)), message));
    }
    // A tree keeps the types that YAML gives its scalars; the reader of YAML alone would take "10" for a number.
    let tree: Value = yaml(text)?;
    let document = match header.kind.as_str() {
        "DeletionCostPolicy" => both(text, tree).map(|d| Document::DeletionCostPolicy(Box::new(d)))?,
        "HeadroomPool" => both(text, tree).map(|d| Document::HeadroomPool(Box::new(d)))?,
        "HeadroomClaim" => both(text, tree).map(|d| Document::HeadroomClaim(Box::new(d)))?,
        other => return Err((Some((1, 1)), unknown_kind(other))),
    };
    match header.metadata.name {
        Some(name) if !name.is_empty() => Ok(Some(document)),
        _ => Err((Some((1, 1)), "metadata.name: found none, wanted a name".into())),
    }
}

/// Reads a document as YAML, for the position of an error, and from its tree, for its types.
fn both<T: DeserializeOwned>(text: &str, tree: Value) -> Result<T, Misread> {
    yaml::<T>(text)?;
    typed(tree).map_err(|message| {
        let path = message.split(':').next().unwrap_or_default().to_owned();
        (Some((line_of(text, &path) + 1, 1)), message)
    })
}

/// Reads YAML into a type. The reader of YAML knows the line and the column, the reader of the tree knows the field path;
/// a message has both.
pub(crate) fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, Misread> {
    serde_saphyr::from_str::<T>(text).map_err(|e| {
        let position = e.location().map(|l| (l.line(), l.column()));
        let message = match serde_saphyr::from_str::<Value>(text) {
            Ok(value) => typed::<T>(value).err(),
            Err(_) => None,
        };
        (position, message.unwrap_or_else(|| e.without_snippet().to_string()))
    })
}

/// Reads a tree into a type; the message names the path, and for an unknown field the nearest known one.
fn typed<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|e| {
        let path = match e.path().to_string() {
            root if root == "." => "the document".into(),
            path => path,
        };
        let message = e.into_inner().to_string();
        format!("{path}: {}", with_nearest_name(&message))
    })
}

fn unknown_kind(found: &str) -> String {
    let known = ["DeletionCostPolicy", "HeadroomPool", "HeadroomClaim"];
    let hint = nearest(found, known.into_iter()).map(|name| format!("; did you mean {name}?")).unwrap_or_default();
    format!("kind: found `{found}`, wanted {}{hint}", known.join(" or "))
}

/// Serde lists all fields or variants that it knows; with twenty of them the one that was meant is hard to see.
fn with_nearest_name(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = message.starts_with("unknown field") || message.starts_with("unknown variant");
    match (unknown, quoted.next()) {
        (true, Some(found)) => match nearest(found, quoted) {
            Some(name) => format!("{message}; did you mean `{name}`?"),
            None => message.into(),
        },
        _ => message.into(),
    }
}

/// The known name that looks most like `found`, if any looks enough like it.
pub fn nearest<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::jaro_winkler(&found.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// The documents of a YAML stream, each with the line on which it begins. A `---` in the first column always separates.
pub(crate) fn split(text: &str) -> Vec<(u64, &str)> {
    let (mut documents, mut start, mut first_line) = (vec![], 0, 1);
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---");
        if rest.is_some_and(|rest| rest.trim_start().is_empty() || rest.starts_with(char::is_whitespace)) {
            documents.push((first_line, &text[start..offset]));
            // A document may begin on the line of its separator.
            start = offset + 3;
            first_line = index as u64 + 1;
        }
        offset += line.len();
    }
    documents.push((first_line, &text[start..]));
    documents
}

/// Lines before the one that holds the last key of a field path; the document's first line where it cannot be told. Each
/// key is looked for after the one before it, and an index skips that many list items.
fn line_of(text: &str, path: &str) -> u64 {
    line_of_steps(text, &steps_of(path))
}

/// The steps of a field path: `a.b[c.d].e[0]` has `a`, `b`, `c.d` and `e[0]`.
pub(crate) fn steps_of(path: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    let (mut step, mut in_bracket) = (String::new(), false);
    for c in path.chars() {
        match c {
            '.' if !in_bracket => steps.push(std::mem::take(&mut step)),
            '[' => (in_bracket, _) = (true, steps.push(std::mem::take(&mut step))),
            ']' => {
                in_bracket = false;
                let inner = std::mem::take(&mut step);
                match (inner.parse::<usize>(), steps.last_mut()) {
                    (Ok(index), Some(list)) => *list = format!("{list}[{index}]"),
                    _ => steps.push(inner),
                }
            }
            c => step.push(c),
        }
    }
    steps.push(step);
    steps.retain(|step| !step.is_empty());
    steps
}

/// `containers[2]` is the third of the containers.
pub(crate) fn key_and_index(step: &str) -> (&str, Option<usize>) {
    match step.split_once('[') {
        Some((key, rest)) => (key, rest.trim_end_matches(']').parse().ok()),
        None => (step, None),
    }
}

/// As [`line_of`], for a path in steps, whose keys may have dots in them.
pub(crate) fn line_of_steps(text: &str, steps: &[String]) -> u64 {
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    for step in steps {
        let (key, index) = key_and_index(step);
        let names = |line: &str| {
            let line = line.trim_start().trim_start_matches("- ").trim_start();
            line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':'))
                || line.contains(&format!("{{{key}:"))
                || line.contains(&format!(" {key}:"))
        };
        let Some(found) = (at..lines.len()).find(|&i| names(lines[i])) else { return at as u64 };
        at = found;
        // The items of a list in brackets are on its line, or close by.
        if let Some(index) = index.filter(|_| !lines[found].contains('[')) {
            let mut items = (found + 1..lines.len()).filter(|&i| lines[i].trim_start().starts_with("- "));
            let Some(item) = items.nth(index) else { return at as u64 };
            at = item;
        }
    }
    at as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        read_documents(Path::new("p.yaml"), text).1.iter().map(ToString::to_string).collect()
    }

    const GOOD: &str = "\
apiVersion: pecking-order.dev/v1alpha1
kind: DeletionCostPolicy
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  signals:
    - name: inflight
      query: sum by (pod) (http_inflight_requests)
      weight: 10
      cap: 400
";

    #[test]
    fn accepts_several_documents_of_a_file() {
        let text =
            format!("# two\n---\n{GOOD}---\napiVersion: {API_VERSION}\nkind: HeadroomPool\nmetadata: {{name: general}}\nspec: {{}}\n");
        let (documents, errors) = read_documents(Path::new("p.yaml"), &text);
        assert_eq!(errors, []);
        assert_eq!(documents.len(), 2);
    }

    #[test]
    fn refuses_an_unknown_field_with_its_position_path_and_nearest_name() {
        let found = errors(&GOOD.replace("weight: 10", "wieght: 10"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("p.yaml:9:7: spec.signals[0].wieght: unknown field `wieght`"), "{}", found[0]);
        assert!(found[0].ends_with("did you mean `weight`?"), "{}", found[0]);
    }

    #[test]
    fn refuses_a_misspelt_selector_rather_than_selecting_everything() {
        let found = errors(&GOOD.replace("matchLabels", "matchLables"));
        assert!(found[0].contains("did you mean `matchLabels`?"), "{found:?}");
    }

    #[test]
    fn counts_lines_from_the_start_of_the_file() {
        let found = errors(&format!("{GOOD}---\n{}", GOOD.replace("cap: 400", "cap: -1")));
        assert_eq!(found, ["p.yaml:21:1: spec.signals[0].cap: found -1, wanted a number above 0, at most 1e12"]);
    }

    #[test]
    fn refuses_what_is_not_of_our_kinds() {
        assert_eq!(errors("apiVersion: v1\nkind: Pod\n"), ["p.yaml:1:1: apiVersion: found `v1`, wanted pecking-order.dev/v1alpha1"]);
        let found = errors(&GOOD.replace("DeletionCostPolicy", "DeletionCostPolcy"));
        assert!(found[0].ends_with("did you mean DeletionCostPolicy?"), "{found:?}");
    }

    #[test]
    fn is_as_strict_as_the_api_server() {
        for (from, to, wanted) in [
            ("weight: 10", "weight: \"10\"", "p.yaml:9:1: spec.signals[0].weight: invalid type: string"),
            ("name: web,", "name: web, namespce: shop,", "metadata.namespce: unknown field"),
            ("name: web, ", "", "metadata.name: found none, wanted a name"),
            ("spec:", "sepc:", "did you mean `spec`?"),
            ("app: web", "app: 5", "invalid type: integer"),
        ] {
            let found = errors(&GOOD.replace(from, to));
            assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
        }
    }

    #[test]
    fn a_name_that_stands_twice_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for file in ["a.yaml", "b.yaml"] {
            std::fs::write(directory.path().join(file), GOOD).unwrap();
        }
        let (documents, errors) = read_directory(directory.path());
        assert_eq!((documents.len(), errors.len()), (1, 1));
        assert!(errors[0].to_string().ends_with("b.yaml: DeletionCostPolicy shop/web: found twice, wanted one document of that name"));
    }

    #[test]
    fn one_bad_document_does_not_hide_the_others() {
        let text = format!("{}---\n{GOOD}---\n: : :\n", GOOD.replace("resolution", "x").replace("cap: 400", "cap: many"));
        let (documents, errors) = read_documents(Path::new("p.yaml"), &text);
        assert_eq!((documents.len(), errors.len()), (1, 2), "{errors:?}");
    }
}
