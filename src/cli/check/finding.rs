//! What a check finds.

use std::path::PathBuf;

use serde::Serialize;

use crate::headroom::report::{Level, UNCHECKED};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    /// The rule's id, `invalidDocument` for a document of ours, or `unchecked`.
    pub rule: String,
    pub file: PathBuf,
    /// From 1.
    pub line: u64,
    pub column: u64,
    /// Such as `Deployment ci/room`; empty where a file as a whole is meant.
    pub object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    pub message: String,
}

impl Finding {
    /// Something that could not be checked, in a file as a whole.
    pub fn unchecked(file: PathBuf, message: String) -> Self {
        Self::of_file(Level::Unchecked, UNCHECKED, file, message)
    }

    /// A document of ours that is not as it should be, in a file as a whole.
    pub fn invalid_document(file: PathBuf, message: String) -> Self {
        Self::of_file(Level::Error, "invalidDocument", file, message)
    }

    fn of_file(level: Level, rule: &str, file: PathBuf, message: String) -> Self {
        let (object, field) = (String::new(), String::new());
        Self { level, rule: rule.into(), file, line: 1, column: 1, object, pool: None, field, message }
    }
}

/// Everything that was found, and how much was looked at.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Policies and pools.
    pub documents: usize,
    /// Objects that some rule may be about.
    pub objects: usize,
    /// Objects of other kinds, and documents that are no objects.
    pub others: usize,
    #[serde(skip_serializing_if = "is_zero")]
    pub fixed: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Report {
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}
