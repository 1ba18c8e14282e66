//! The answer to an AdmissionReview. Ours, because the patch must be a base64 text, every answer must carry the uid, and a
//! denial must carry a code, a reason and its causes; and because a validating answer must not be able to carry a patch.

use std::collections::BTreeMap;

use serde::Serialize;

use super::PodPatch;

/// Longer warnings are cut: clients show each on one line (Kubernetes asks for at most 120 characters).
const WARNING_CHARS: usize = 120;
/// The most warnings of one answer.
const WARNINGS: usize = 8;
/// Longer messages and audit annotations are cut. What a user wrote may be quoted in them, and may be a megabyte long.
const TEXT_CHARS: usize = 4096;
/// The most causes that a denial lists.
const CAUSES: usize = 32;

/// The answer of a mutating hook: it always allows.
#[derive(Debug, Default, PartialEq)]
pub struct Mutation {
    pub patch: Option<PodPatch>,
    pub notes: Notes,
}

/// The answer of a validating hook: it never patches.
#[derive(Debug, Default, PartialEq)]
pub struct Validation {
    pub denial: Option<Denial>,
    pub notes: Notes,
}

/// What may accompany any answer.
#[derive(Debug, Default, PartialEq)]
pub struct Notes {
    pub warnings: Vec<String>,
    /// By key; the API server puts the hook's name before it, so a key has no slash.
    pub audit: BTreeMap<&'static str, String>,
}

/// A refusal.
#[derive(Debug, PartialEq)]
pub struct Denial {
    pub status: DenialStatus,
    pub message: String,
    /// The refused object: clients say "The KIND NAME is invalid".
    pub group: String,
    pub kind: String,
    pub name: String,
    pub causes: Vec<Cause>,
}

/// The status of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenialStatus {
    /// A field is wrong.
    Invalid,
    /// The thing as such is not permitted.
    Forbidden,
    /// Not now; whoever asks may come again.
    TooManyRequests { retry_after_seconds: u32 },
}

impl DenialStatus {
    fn code(self) -> u16 {
        match self {
            Self::Invalid => 422,
            Self::Forbidden => 403,
            Self::TooManyRequests { .. } => 429,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::Forbidden => "Forbidden",
            Self::TooManyRequests { .. } => "TooManyRequests",
        }
    }

    /// The API server makes a `Retry-After` of it.
    fn retry_after_seconds(self) -> Option<u32> {
        match self {
            Self::Invalid | Self::Forbidden => None,
            Self::TooManyRequests { retry_after_seconds } => Some(retry_after_seconds),
        }
    }
}

/// One field that is wrong.
#[derive(Debug, PartialEq, Serialize)]
pub struct Cause {
    /// A stable id: that of the rule.
    pub reason: String,
    pub field: String,
    pub message: String,
}

impl Mutation {
    pub fn patch(patch: Option<PodPatch>) -> Self {
        Self { patch, notes: Notes::default() }
    }

    pub fn answer(self, uid: &str) -> Answer {
        let patch = self.patch.map(|patch| patch.encode());
        let patch_type = patch.as_ref().map(|_| "JSONPatch");
        Answer::new(Response { patch, patch_type, ..Response::allowed(uid, self.notes) })
    }
}

impl Validation {
    pub fn answer(self, uid: &str) -> Answer {
        let status = self.denial.map(Status::from);
        Answer::new(Response { allowed: status.is_none(), status, ..Response::allowed(uid, self.notes) })
    }
}

impl Notes {
    /// Allows with a warning: what we could not do must be seen.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { warnings: vec![text.into()], audit: BTreeMap::new() }
    }
}

/// A whole AdmissionReview, ready to be sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Status {
    status: &'static str,
    message: String,
    reason: &'static str,
    code: u16,
    details: Details,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    name: String,
    group: String,
    kind: String,
    causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

impl Answer {
    fn new(response: Response) -> Self {
        Self { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response }
    }

    pub fn allowed(&self) -> bool {
        self.response.allowed
    }

    pub fn has_patch(&self) -> bool {
        self.response.patch.is_some()
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an answer is plain data")
    }
}

impl Response {
    fn allowed(uid: &str, notes: Notes) -> Self {
        let mut warnings: Vec<String> = notes.warnings.iter().take(WARNINGS).map(|text| printable(text, WARNING_CHARS)).collect();
        if notes.warnings.len() > WARNINGS {
            warnings.push(format!("and {} more", notes.warnings.len() - WARNINGS));
        }
        let audit_annotations = notes.audit.into_iter().map(|(key, text)| (key, printable(&text, TEXT_CHARS))).collect();
        Self { uid: uid.into(), allowed: true, status: None, patch: None, patch_type: None, audit_annotations, warnings }
    }
}

impl From<Denial> for Status {
    fn from(denial: Denial) -> Self {
        let causes = denial
            .causes
            .into_iter()
            .take(CAUSES)
            .map(|cause| Cause { message: printable(&cause.message, TEXT_CHARS), field: printable(&cause.field, TEXT_CHARS), ..cause })
            .collect();
        Self {
            status: "Failure",
            message: printable(&denial.message, TEXT_CHARS),
            reason: denial.status.reason(),
            code: denial.status.code(),
            details: Details {
                name: printable(&denial.name, TEXT_CHARS),
                group: denial.group,
                kind: denial.kind,
                causes,
                retry_after_seconds: denial.status.retry_after_seconds(),
            },
        }
    }
}

/// One line of at most so many characters: a warning with a line break cannot become a header and would get lost.
fn printable(text: &str, most: usize) -> String {
    let one_line = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() <= most {
        return text.chars().map(one_line).collect();
    }
    text.chars().map(one_line).take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_on_one_line() {
        assert_eq!(printable("a\nb", 10), "a b");
        assert_eq!(printable("äöü", 3), "äöü");
        assert_eq!(printable("äöüx", 3), "äö…");
    }

    #[test]
    fn an_answer_is_bounded_whatever_is_quoted_in_it() {
        let long = "x".repeat(1 << 20);
        let causes = (0..1000).map(|_| Cause { reason: "r".into(), field: "f".into(), message: "m".into() }).collect();
        let notes = Notes { warnings: vec![long.clone(); 100], audit: BTreeMap::from([("k", long.clone())]) };
        let (group, kind, name) = ("apps".into(), "Deployment".into(), long.clone());
        let validation =
            Validation { denial: Some(Denial { status: DenialStatus::Invalid, message: long, group, kind, name, causes }), notes };
        assert!(validation.answer("u").to_json().len() < 32 << 10);
    }
}
