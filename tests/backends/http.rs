//! Anything that answers over HTTP.

use std::path::Path;

use serde_json::json;
use wiremock::matchers::{method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

/// The plug-in point: another source, asked over HTTP.
#[tokio::test]
async fn a_source_of_ones_own_is_asked_for_a_namespace() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .and(path("/work"))
        .and(query_param("namespace", "shop"))
        .and(query_param("query", "sum by (pod) (work{a=\"b&c\"})"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"samples": [{"pod": "a", "value": 3}]})))
        .expect(1)
        .mount(&server)
        .await;
    let backend = super::backend(json!({ "http": { "url": format!("{}/work", server.uri()) } }), Path::new(".")).unwrap();
    let rows = super::ask(&backend, "sum by (pod) (work{a=\"b&c\"})").await.unwrap();
    assert_eq!(rows, [("a".to_owned(), 3.0)]);
}
