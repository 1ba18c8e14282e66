//! How the queries of a policy are kept to its namespace.

use serde::Deserialize;

/// What the operator lets policies ask of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Confinement {
    /// Every part of a query that selects series gets a matcher on this label, or tag.
    ToLabel(String),
    /// Only these texts are sent; `${namespace}` in them becomes the policy's namespace.
    ToQueries(Vec<String>),
    /// A query is sent as it is: whoever may write a policy may read whatever the backend has.
    None,
}

/// What stands for the policy's namespace in a query of the operator's.
const NAMESPACE: &str = "${namespace}";

impl Confinement {
    /// The query as it may be sent for a policy of this namespace; or why it may not. `add_matcher` knows the backend's language:
    /// from the query, the label and the namespace.
    pub fn apply(
        &self,
        query: &str,
        namespace: &str,
        add_matcher: impl Fn(&str, &str, &str) -> Result<String, String>,
    ) -> Result<String, String> {
        match self {
            Self::ToLabel(label) => add_matcher(query, label, namespace),
            Self::ToQueries(allowed) if allowed.iter().any(|text| text == query) => Ok(query.replace(NAMESPACE, namespace)),
            Self::ToQueries(allowed) => {
                let texts: Vec<String> = allowed.iter().map(|text| format!("`{text}`")).collect();
                Err(format!("this backend is only asked {}", texts.join(" or ")))
            }
            Self::None => Ok(query.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_operators_own_texts_are_sent_where_they_are_listed() {
        let confinement = Confinement::ToQueries(vec!["SELECT a WHERE n = '${namespace}'".into(), "b".into()]);
        let apply = |query| confinement.apply(query, "shop", |_, _, _| unreachable!("there is no matcher to add"));
        assert_eq!(apply("SELECT a WHERE n = '${namespace}'").as_deref(), Ok("SELECT a WHERE n = 'shop'"));
        assert_eq!(apply("b").as_deref(), Ok("b"));
        assert!(apply("SELECT a WHERE n = 'other'").unwrap_err().contains("or `b`"));
    }
}
