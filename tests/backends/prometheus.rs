//! Prometheus: what is sent, and what is made of odd answers. These faults a real one does not have on order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pecking_order::signals::{QueryError, Shared};
use serde_json::{Value, json};
use wiremock::matchers::{body_string_contains, header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

fn backend(server: &MockServer, change: Value, directory: &Path) -> Arc<Shared> {
    let mut config = json!({ "url": format!("{}/prefix/", server.uri()), "timeoutSeconds": 1 });
    config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    super::backend(json!({ "prometheus": config }), directory).unwrap()
}

async fn ask(backend: &Arc<Shared>) -> Result<Vec<(String, f64)>, QueryError> {
    super::ask(backend, "sum by (pod) (work{a=\"b&c\"})").await
}

fn vector() -> Value {
    json!({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"pod": "a"}, "value": [1_700_000_000, "7"]}, {"metric": {"pod": "b"}, "histogram": [1_700_000_000, {}]}]}})
}

async fn answering(response: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).and(path("/prefix/api/v1/query")).respond_with(response).mount(&server).await;
    server
}

/// DC-45: only a shorter look-back keeps Prometheus from answering with samples that are up to five minutes old.
#[tokio::test]
async fn asks_once_with_the_query_and_the_greatest_age() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/prefix/api/v1/query"))
        .and(body_string_contains("query=sum+by+%28pod%29+%28work%7Ba%3D%22b%26c%22%7D%29"))
        .and(body_string_contains("lookback_delta=60s"))
        .respond_with(ResponseTemplate::new(200).set_body_json(vector()))
        .expect(1)
        .mount(&server)
        .await;
    let rows = ask(&backend(&server, json!({}), Path::new("."))).await.unwrap();
    assert_eq!(rows, [("a".to_owned(), 7.0)], "a row without a number says nothing, and does not spoil the others");
}

#[tokio::test]
async fn credentials_come_from_files_and_are_read_anew() {
    let server = MockServer::start().await;
    for credentials in ["Basic dXNlcjpmaXJzdA==", "Basic dXNlcjpzZWNvbmQ=", "Bearer token"] {
        let answer = ResponseTemplate::new(200).set_body_json(vector());
        Mock::given(header("authorization", credentials)).respond_with(answer).expect(1).mount(&server).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let basic = backend(&server, json!({"auth": {"basic": {"username": "user", "passwordFile": "password"}}}), directory.path());
    for password in ["first\n", "second"] {
        std::fs::write(directory.path().join("password"), password).unwrap();
        ask(&basic).await.unwrap();
    }
    std::fs::write(directory.path().join("token"), "token\n").unwrap();
    ask(&backend(&server, json!({"auth": {"bearer": {"tokenFile": "token"}}}), directory.path())).await.unwrap();

    std::fs::remove_file(directory.path().join("password")).unwrap();
    let error = ask(&basic).await.unwrap_err();
    assert_eq!(error.kind(), "credentials");
    assert!(error.to_string().contains("password") && !error.to_string().contains("second"), "{error}");
}

/// Webhook case 34.
#[tokio::test]
async fn a_redirect_is_refused_and_not_followed() {
    let elsewhere = answering(ResponseTemplate::new(200).set_body_json(vector())).await;
    let server = answering(ResponseTemplate::new(307).insert_header("location", format!("{}/prefix/api/v1/query", elsewhere.uri()))).await;
    assert_eq!(ask(&backend(&server, json!({}), Path::new("."))).await.unwrap_err().kind(), "redirect");
    assert!(elsewhere.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn each_fault_has_its_own_word() {
    for (response, kind, text) in [
        (ResponseTemplate::new(200).set_body_string("x".repeat(5000)), "too_large", "larger than 4096 bytes"),
        (ResponseTemplate::new(200).set_body_string("<html>"), "malformed", "cannot be understood"),
        (ResponseTemplate::new(401).set_body_string("no\nentry"), "status", "status 401: no entry"),
        (ResponseTemplate::new(400).set_body_json(json!({"status": "error", "error": "parse error"})), "status", "parse error"),
        (ResponseTemplate::new(500).set_body_string("y".repeat(5000)), "status", "status 500"),
        (ResponseTemplate::new(200).set_body_json(vector()).set_delay(Duration::from_secs(3)), "timeout", "no answer within 1s"),
    ] {
        let server = answering(response).await;
        let error = ask(&backend(&server, json!({"maxResponseBytes": 4096}), Path::new("."))).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text) && error.to_string().len() < 500, "{error}");
    }
    let server = answering(ResponseTemplate::new(200)).await;
    let [nobody] = control_plane::plane::free_ports().unwrap();
    let gone = backend(&server, json!({ "url": format!("http://127.0.0.1:{nobody}") }), Path::new("."));
    assert_eq!(ask(&gone).await.unwrap_err().kind(), "unreachable");
}

#[tokio::test]
async fn a_backend_that_cannot_work_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("empty.crt"), "no certificate").unwrap();
    for (config, text) in [
        (json!({"url": "http://p", "timeoutSeconds": 0}), "timeoutSeconds: found 0, wanted 1 to 300"),
        (json!({"url": "http://p", "maxResponseBytes": 0}), "maxResponseBytes: found 0"),
        (json!({"url": "http://p/?x=1"}), "found a query or a fragment"),
        (json!({"url": "https://p", "caFile": "empty.crt"}), "caFile: no certificates in"),
        (json!({"url": "https://p", "caFile": "absent.crt"}), "caFile: cannot read"),
        (json!({"url": "http://p", "headers": {"Authorization": "x"}}), "headers.Authorization: credentials belong into `auth`"),
        (json!({"url": "http://p", "headers": {"a b": "x"}}), "headers.a b: this is no header"),
        (json!({"url": "http://p", "tenant": "a\nb"}), "headers.X-Scope-OrgID: this is no header"),
    ] {
        let error = format!("{:#}", super::backend(json!({ "prometheus": config }), directory.path()).err().unwrap());
        assert!(error.contains(text), "{error}");
    }
}

/// Mimir, Thanos and VictoriaMetrics: a tenant, a path prefix, and whatever a gateway wants to see.
#[tokio::test]
async fn sends_the_tenant_and_the_headers_of_the_configuration() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/prefix/api/v1/query"))
        .and(header("x-scope-orgid", "shops"))
        .and(header("x-gateway", "yes"))
        .respond_with(ResponseTemplate::new(200).set_body_json(vector()))
        .expect(1)
        .mount(&server)
        .await;
    ask(&backend(&server, json!({"tenant": "shops", "headers": {"X-Gateway": "yes"}}), Path::new("."))).await.unwrap();
}

/// An answer of 5 GB: it is cut off at the limit, not read to its end.
#[tokio::test]
async fn an_answer_without_an_end_is_cut_off() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5368709120\r\n\r\n").await;
        let (piece, mut written) = (vec![b'x'; 1 << 16], 0_usize);
        while written < 5 << 30 && stream.write_all(&piece).await.is_ok() {
            written += piece.len();
        }
        written
    });
    let config = json!({"prometheus": {"url": url, "timeoutSeconds": 60, "maxResponseBytes": 1 << 20}});
    let error = ask(&super::backend(config, Path::new(".")).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), "too_large", "{error}");
    let written = server.await.unwrap();
    assert!(written < 64 << 20, "{written} bytes were taken from the server");
}
