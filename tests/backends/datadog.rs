//! Datadog, by the shapes of its documentation.

use std::path::Path;

use serde_json::{Value, json};
use wiremock::matchers::{header, method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

fn config(server: &MockServer, directory: &Path) -> Value {
    for (file, key) in [("api-key", "key one\n"), ("application-key", "key two\n")] {
        std::fs::write(directory.join(file), key).unwrap();
    }
    json!({"datadog": {"url": server.uri(), "apiKeyFile": "api-key", "applicationKeyFile": "application-key"}})
}

#[tokio::test]
async fn asks_with_both_keys_for_its_own_namespace() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as f64;
    Mock::given(method("GET"))
        .and(path("/api/v1/query"))
        .and(header("dd-api-key", "key one"))
        .and(header("dd-application-key", "key two"))
        .and(query_param("query", "sum:work{app:web,kube_namespace:shop} by {pod_name}"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({
            "status": "ok", "res_type": "time_series", "resp_version": 1, "query": "…", "from_date": now - 120_000.0, "to_date": now,
            "group_by": ["pod_name"], "message": "", "times": [], "values": [],
            "series": [{"metric": "work", "display_name": "work", "scope": "app:web,pod_name:web-1", "expression": "…", "interval": 20,
                "length": 2, "aggr": "sum", "start": now - 40_000.0, "end": now, "unit": null, "query_index": 0,
                "tag_set": ["pod_name:web-1"], "pointlist": [[now - 40_000.0, 3.0], [now - 20_000.0, 5.0]]}]
        })))
        .expect(1)
        .mount(&server)
        .await;
    let backend = super::backend(config(&server, directory.path()), directory.path()).unwrap();
    let query = backend.prepare("sum:work{app:web} by {pod_name}", "shop").unwrap();
    let rows = super::ask(&backend, &query).await.unwrap();
    assert_eq!(rows, [("web-1".to_owned(), 5.0)]);
    let asked = &server.received_requests().await.unwrap()[0];
    let parameter = |name: &str| asked.url.query_pairs().find(|(key, _)| key == name).unwrap().1.parse::<i64>().unwrap();
    assert_eq!(parameter("to") - parameter("from"), 120, "a window that holds a point");
    assert!(backend.prepare("sum:work", "shop").unwrap_err().contains("wanted a metric with a scope"));
}

#[tokio::test]
async fn a_wrong_key_and_a_limit_are_said_without_the_keys() {
    for (status, body) in [(403, json!({"errors": ["Forbidden"]})), (429, json!({"errors": ["Rate limit of 300 requests"]}))] {
        let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
        // A gateway that repeats what it was sent.
        let echo = move |request: &wiremock::Request| {
            let key = |name: &str| request.headers.get(name).map_or(String::new(), |value| value.to_str().unwrap().to_owned());
            let echoed = if status == 403 { key("dd-application-key") } else { String::new() };
            ResponseTemplate::new(status).set_body_string(format!("{body} {echoed}"))
        };
        Mock::given(method("GET")).respond_with(echo).expect(1).mount(&server).await;
        let backend = super::backend(config(&server, directory.path()), directory.path()).unwrap();
        let error = super::ask(&backend, "q").await.unwrap_err().to_string();
        assert!(error.contains(&status.to_string()) && !error.contains("key one") && !error.contains("key two"), "{error}");
        if status == 429 {
            let again = super::ask(&backend, "q").await.unwrap_err();
            assert_eq!(again.kind(), "too_often", "it is left alone for a while");
        }
    }
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    let config = config(&server, directory.path());
    std::fs::remove_file(directory.path().join("api-key")).unwrap();
    let error = super::ask(&super::backend(config, directory.path()).unwrap(), "q").await.unwrap_err();
    assert_eq!(error.kind(), "credentials");
    assert!(server.received_requests().await.unwrap().is_empty(), "nothing is sent without both keys");
}
