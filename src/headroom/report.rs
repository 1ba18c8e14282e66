//! What a review says in one list, for those who report on objects rather than refuse them.

use serde::Serialize;

use super::review::Review;
use crate::api::headroom_pool::Mode;

/// How bad it is. What could not be checked comes last: it says nothing about the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warning,
    Note,
    Unchecked,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
            Self::Unchecked => "unchecked",
        }
    }
}

impl From<Mode> for Level {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Enforce => Self::Error,
            Mode::Warn => Self::Warning,
            Mode::Audit | Mode::Off => Self::Note,
        }
    }
}

/// In the place of a rule's id: something could not be checked.
pub const UNCHECKED: &str = "unchecked";

/// In the place of a rule's id: something is odd, and no rule is broken.
pub const NOTE: &str = "note";

/// One thing that a review says.
#[derive(Debug, PartialEq, Eq)]
pub struct Remark<'a> {
    pub level: Level,
    /// The rule's id, [`UNCHECKED`] or [`NOTE`].
    pub rule: &'static str,
    pub pool: Option<&'a str>,
    /// Where in the object; empty where that is not known.
    pub field: &'a str,
    pub message: String,
}

impl Review {
    /// Everything that it says: broken rules, then what could not be checked, then what is odd.
    pub fn remarks(&self) -> impl Iterator<Item = Remark<'_>> {
        let broken = self.broken.iter().map(|broken| Remark {
            level: broken.mode.into(),
            rule: broken.rule,
            pool: Some(&broken.pool),
            field: &broken.finding.field,
            message: broken.finding.to_string(),
        });
        let unresolved = self.unresolved.iter().map(|text| Remark {
            level: Level::Unchecked,
            rule: UNCHECKED,
            pool: None,
            // Such a text begins with its field, if it is about one.
            field: text.split(':').next().filter(|path| !path.contains(' ')).unwrap_or_default(),
            message: text.clone(),
        });
        let notes =
            self.notes.iter().map(|text| Remark { level: Level::Warning, rule: NOTE, pool: None, field: "", message: text.clone() });
        broken.chain(unresolved).chain(notes)
    }
}
