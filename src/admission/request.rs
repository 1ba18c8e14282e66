//! Reads the envelope of an AdmissionReview, tolerantly: whatever can be done without is optional, and the objects stay
//! unparsed until a handler says which fields it wants.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::tolerant::null_is_default;

/// A request of `admission.k8s.io/v1`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    pub uid: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub kind: Kind,
    #[serde(default, deserialize_with = "null_is_default")]
    pub resource: Resource,
    #[serde(default, deserialize_with = "null_is_default")]
    pub sub_resource: String,
    /// Empty on CREATE with `generateName`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub name: String,
    /// Always taken from here: an object may lack its own.
    #[serde(default, deserialize_with = "null_is_default")]
    pub namespace: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub operation: Operation,
    #[serde(default, deserialize_with = "null_is_default")]
    pub user_info: UserInfo,
    /// Absent on DELETE.
    #[serde(borrow, default)]
    pub object: Option<&'a RawValue>,
    /// Absent on CREATE.
    #[serde(borrow, default)]
    pub old_object: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub dry_run: bool,
}

#[derive(Debug, Default, Deserialize)]
pub struct Kind {
    #[serde(default, deserialize_with = "null_is_default")]
    pub group: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub kind: String,
}

#[derive(Debug, Default, Deserialize)]
pub struct Resource {
    #[serde(default, deserialize_with = "null_is_default")]
    pub group: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub resource: String,
}

#[derive(Debug, Default, Deserialize)]
pub struct UserInfo {
    #[serde(default, deserialize_with = "null_is_default")]
    pub username: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// CONNECT, or one that is not known.
    #[default]
    #[serde(other)]
    Other,
}

/// What a body turned out to be.
#[derive(Debug)]
pub enum Body<'a> {
    Request(Box<Request<'a>>),
    /// Not a request that can be read, though its uid can: it is owed an answer.
    Unreadable {
        uid: String,
        why: String,
    },
    /// Not an AdmissionReview.
    Refused(String),
}

/// Reads a body.
pub fn read(body: &[u8]) -> Body<'_> {
    if body.is_empty() {
        return Body::Refused("the body is empty; wanted an AdmissionReview of admission.k8s.io/v1".into());
    }
    // serde_json skips what it does not keep without looking at its encoding; JSON is UTF-8 throughout (RFC 8259, 8.1).
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(e) => return Body::Refused(format!("the body is not UTF-8: {e}")),
    };
    let why = match serde_json::from_str::<Review<'_>>(text) {
        Ok(Review { kind, api_version, request: Some(request) }) if kind == "AdmissionReview" && api_version == "admission.k8s.io/v1" => {
            return Body::Request(Box::new(request));
        }
        Ok(Review { request: None, .. }) => "it has no request".into(),
        Ok(Review { kind, api_version, .. }) => format!("found kind `{kind}` of apiVersion `{api_version}`"),
        Err(e) => e.to_string(),
    };
    match serde_json::from_str::<OnlyUid>(text) {
        Ok(OnlyUid { request: OnlyUidRequest { uid } }) if !uid.is_empty() => Body::Unreadable { uid, why },
        _ => Body::Refused(format!("the body is not an AdmissionReview of admission.k8s.io/v1: {why}")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct OnlyUid {
    request: OnlyUidRequest,
}

#[derive(Deserialize)]
struct OnlyUidRequest {
    uid: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(request: &str) -> String {
        format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#)
    }

    #[test]
    fn accepts_a_request_of_which_everything_but_the_uid_is_absent_or_null() {
        for request in [
            r#"{"uid":"u"}"#,
            r#"{"uid":"u","kind":null,"resource":null,"subResource":null,"name":null,"namespace":null,"operation":null,
                "userInfo":null,"object":null,"oldObject":null,"dryRun":null}"#,
        ] {
            let text = review(request);
            let Body::Request(request) = read(text.as_bytes()) else { panic!("{text}") };
            assert_eq!((request.uid.as_str(), request.dry_run, request.object.is_none()), ("u", false, true));
        }
    }

    #[test]
    fn finds_the_uid_of_what_it_cannot_read() {
        for text in [
            review(r#"{"uid":"u","dryRun":"perhaps"}"#),
            r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}"#.into(),
            r#"{"apiVersion":"v1","kind":"Pod","request":{"uid":"u"}}"#.into(),
        ] {
            assert!(matches!(read(text.as_bytes()), Body::Unreadable { uid, .. } if uid == "u"), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_review() {
        let whole = review(r#"{"uid":"u"}"#);
        for body in
            [&b""[..], b"{", b"null", b"[]", b"<html>", &whole.as_bytes()[..whole.len() / 2], b"\xff\xfe", review("null").as_bytes()]
        {
            assert!(matches!(read(body), Body::Refused(_)), "{:?}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn reads_an_object_nested_ten_thousand_deep() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
        let text = review(&format!(r#"{{"uid":"u","object":{deep}}}"#));
        assert!(matches!(read(text.as_bytes()), Body::Request(_)));
    }
}
