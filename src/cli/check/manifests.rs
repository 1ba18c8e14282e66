//! Kubernetes objects in YAML or JSON, held against the rules of the pools that are among them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::finding::{Finding, Report};
use super::sources::Source;
use crate::api::documents::{self, Document};
use crate::api::{GROUP, Policies};
use crate::headroom::object::{Body, Kind};
use crate::headroom::report::Remark;
use crate::headroom::{self, Class, Classes, Known, Object, Shapes};

/// Lists in lists in lists are no output of any tool.
const MAX_NESTING: usize = 4;

/// An object of a reviewed kind, and where it stands.
pub struct Manifest {
    pub file: PathBuf,
    /// The text of its document, and the line on which that begins.
    pub text: String,
    pub first_line: u64,
    /// Where the object is in its document: nothing, or such as `items[3].`.
    pub prefix: String,
    pub object: Object,
}

/// Everything that was read.
#[derive(Default)]
pub struct Manifests {
    pub documents: Vec<Document>,
    pub objects: Vec<Manifest>,
}

impl Manifests {
    /// Reads a text. What is wrong with one document does not hide the others.
    pub fn read(&mut self, source: &Source, report: &mut Report) {
        for (first_line, text) in documents::split(&source.text) {
            if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
                continue;
            }
            let place = Place { file: &source.file, text, first_line };
            match documents::yaml::<Value>(text) {
                Ok(tree) => self.read_tree(&place, &tree, String::new(), 0, report),
                Err((position, message)) => {
                    let (line, column) = position.unwrap_or((1, 1));
                    report.findings.push(place.unchecked(line + first_line - 1, column, "", message));
                }
            }
        }
    }

    fn read_tree(&mut self, place: &Place<'_>, tree: &Value, prefix: String, depth: usize, report: &mut Report) {
        let text = |key: &str| tree.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let (group, _) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(Value::Array(items)) = tree.get("items").filter(|_| kind.ends_with("List")) {
            if depth >= MAX_NESTING {
                return report.findings.push(place.unchecked(place.first_line, 1, &prefix, "lists are nested too deeply".into()));
            }
            for (index, item) in items.iter().enumerate() {
                self.read_tree(place, item, format!("{prefix}items[{index}]."), depth + 1, report);
            }
            return;
        }
        if group == GROUP || matches!(kind, "DeletionCostPolicy" | "HeadroomPool" | "HeadroomClaim") {
            return self.read_document(place, tree, &prefix, report);
        }
        if tree.as_object().is_none() {
            let message = "found no object, wanted one with apiVersion and kind".into();
            return report.findings.push(place.unchecked(place.first_line, 1, &prefix, message));
        }
        let Some(kind) = Kind::find(group, kind) else {
            report.others += 1;
            return;
        };
        report.objects += 1;
        match Object::read(kind, &tree.to_string()) {
            Ok(object) => self.objects.push(Manifest {
                file: place.file.into(),
                text: place.text.into(),
                first_line: place.first_line,
                prefix,
                object,
            }),
            Err(e) => {
                let name = tree.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let message = format!("{} `{name}` cannot be read: {e}", kind.name());
                report.findings.push(place.unchecked(place.line(&prefix, ""), 1, &prefix, message));
            }
        }
    }

    fn read_document(&mut self, place: &Place<'_>, tree: &Value, prefix: &str, report: &mut Report) {
        // One in a list has no text of its own.
        let alone = if prefix.is_empty() { place.text.to_owned() } else { serde_saphyr::to_string(tree).unwrap_or_default() };
        let (good, bad) = documents::read_documents(place.file, &alone);
        report.documents += good.len() + usize::from(!bad.is_empty());
        for document in good {
            if let Err(message) = documents::add_once(&mut self.documents, document) {
                report.findings.push(place.invalid(place.first_line, 1, message));
            }
        }
        for error in bad {
            let (line, column) = error.position.filter(|_| prefix.is_empty()).unwrap_or((1, 1));
            report.findings.push(place.invalid(place.first_line + line - 1, column, error.message));
        }
    }

    /// The pools and policies in force, were all of this applied.
    pub fn policies(&self) -> Policies {
        self.documents.iter().fold(Policies::default(), Policies::with_document)
    }

    /// The classes among the objects, and the workloads that pools name as their shapes.
    pub fn known(&self, policies: &Policies) -> Known {
        let class = |manifest: &Manifest| match manifest.object.body {
            Body::Class { value, global_default, ref preemption_policy } => {
                Some((manifest.object.name.clone(), Class::new(value, global_default, preemption_policy.as_deref())))
            }
            Body::Pod { .. } => None,
        };
        let shapes = policies.pools().fold(Shapes::default(), |shapes, pool| {
            let Some(like) = pool.spec.shape.as_ref().map(|shape| &shape.like) else { return shapes };
            // A manifest may leave its namespace to whoever applies it.
            let is_there = |object: &Object| object.namespace.is_empty() || object.namespace == like.namespace;
            let is_it = |manifest: &&Manifest| like.is_called_as(&manifest.object) && is_there(&manifest.object);
            shapes.with(&pool.name, self.objects.iter().find(is_it).and_then(|manifest| manifest.object.pod_spec().cloned()))
        });
        Known { classes: Arc::new(Classes::new(self.objects.iter().filter_map(class))), shapes: Arc::new(shapes), ..Known::default() }
    }

    /// Holds every object against the rules.
    pub fn review(&self, policies: &Policies, known: &Known, report: &mut Report) {
        for manifest in &self.objects {
            let found = headroom::review(&manifest.object, None, policies, known);
            report.findings.extend(found.remarks().map(|remark| manifest.finding(remark)));
        }
    }
}

impl Manifest {
    /// Such as `Deployment ci/room`.
    pub fn described(&self) -> String {
        let Object { kind, namespace, name, .. } = &self.object;
        let named = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
        format!("{} {named}", kind.name())
    }

    fn finding(&self, remark: Remark<'_>) -> Finding {
        let Remark { level, rule, pool, field, message } = remark;
        let place = Place { file: &self.file, text: &self.text, first_line: self.first_line };
        let line = place.line(&self.prefix, field);
        let key = documents::steps_of(field).pop().unwrap_or_default();
        let (key, _) = documents::key_and_index(&key);
        let written = self.text.lines().nth((line - self.first_line) as usize).unwrap_or_default();
        let column = written.find(key).filter(|_| !key.is_empty()).map_or(1, |at| written[..at].chars().count() as u64 + 1);
        Finding {
            level,
            rule: rule.into(),
            file: self.file.clone(),
            line,
            column,
            object: self.described(),
            pool: pool.map(str::to_owned),
            field: field.into(),
            message,
        }
    }
}

/// A document in a file.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
    first_line: u64,
}

impl Place<'_> {
    fn line(&self, prefix: &str, field: &str) -> u64 {
        self.first_line + documents::line_of_steps(self.text, &documents::steps_of(&format!("{prefix}{field}")))
    }

    fn unchecked(&self, line: u64, column: u64, field: &str, message: String) -> Finding {
        Finding { field: field.trim_end_matches('.').into(), line, column, ..Finding::unchecked(self.file.into(), message) }
    }

    fn invalid(&self, line: u64, column: u64, message: String) -> Finding {
        Finding { line, column, ..Finding::invalid_document(self.file.into(), message) }
    }
}
