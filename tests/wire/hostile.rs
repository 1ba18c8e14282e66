//! What a server does with what it should not be sent: a clear answer, and it lives on.

use std::time::{Duration, Instant};

use control_plane::Server;
use control_plane::installation::http_get;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{client, review, start};

async fn post(server: &Server, path: &str, body: impl Into<reqwest::Body>) -> (StatusCode, String) {
    let response = client(server).post(server.url(path)).body(body).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

/// An ordinary review is still answered.
async fn assert_lives(server: &Server) {
    let body = review(&json!({"uid": "alive", "namespace": "shop", "operation": "UPDATE", "object": {"metadata": {"uid": "uid-web-b"}}}));
    let (status, text) = post(server, "/mutate/pods", body.to_string()).await;
    assert_eq!(status, 200);
    assert!(text.contains("\"uid\":\"alive\"") && text.contains("patchType"), "{text}");
}

#[tokio::test]
async fn what_is_no_review_gets_a_clear_4xx() {
    let server = start();
    let whole = review(&json!({"uid": "u"})).to_string();
    for (body, wanted) in [
        (b"".to_vec(), "the body is empty"),
        (whole.as_bytes()[..whole.len() / 2].to_vec(), "not an AdmissionReview"),
        (b"{\"a\": }".to_vec(), "not an AdmissionReview"),
        (b"\xff\xfe\x00".to_vec(), "not UTF-8"),
        (b"[1,2,3]".to_vec(), "not an AdmissionReview"),
        ("[".repeat(10_000).into_bytes(), "not an AdmissionReview"),
    ] {
        for path in ["/mutate/pods", "/mutate/placeholders", "/validate/scale-downs", "/validate/headroom", "/validate/policies"] {
            let (status, text) = post(&server, path, body.clone()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
            assert!(text.contains(wanted), "{text}");
        }
    }
    let client = client(&server);
    assert_eq!(client.get(server.url("/mutate/pods")).send().await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(client.post(server.url("/elsewhere")).send().await.unwrap().status(), StatusCode::NOT_FOUND);
    assert_lives(&server).await;
}

#[tokio::test]
async fn whatever_has_a_uid_is_answered_with_it() {
    let server = start();
    let deep: Value = {
        // Built as text: the tree itself would be too deep to print.
        let text = format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
        json!({ "raw": text })
    };
    let deep = deep["raw"].as_str().unwrap();
    let envelope = |request: String| format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#);
    for body in [
        envelope(format!(r#"{{"uid":"u","operation":"UPDATE","object":{deep}}}"#)),
        envelope(format!(r#"{{"uid":"u","operation":"UPDATE","kind":{{"kind":"Pod"}},"object":{{"metadata":{deep},"spec":{deep}}}}}"#)),
        envelope(r#"{"uid":"u","operation":"DELETE","object":null,"oldObject":null}"#.into()),
        envelope(r#"{"uid":"u","operation":"FROM THE FUTURE","kind":{"kind":"Unheard"},"object":[]}"#.into()),
        envelope(
            r#"{"uid":"u","operation":"UPDATE","resource":{"group":"apps","resource":"deployments"},"object":"text","oldObject":7}"#.into(),
        ),
        envelope(r#"{"uid":"u","operation":"UPDATE","kind":{"kind":"Pod"},"object":{"metadata":{"labels":7}},"oldObject":{}}"#.into()),
        envelope(r#"{"uid":"u","dryRun":"maybe"}"#.into()),
        r#"{"apiVersion":"v1","kind":"Pod","request":{"uid":"u"}}"#.into(),
    ] {
        for path in ["/mutate/pods", "/mutate/placeholders", "/validate/scale-downs", "/validate/headroom"] {
            let (status, text) = post(&server, path, body.clone()).await;
            assert_eq!(status, 200, "{path}: {text}");
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"]), (&json!("u"), &json!(true)), "{path}: {text}");
            assert!(answer["response"].get("patch").is_none(), "{path}: {text}");
        }
    }
    assert_lives(&server).await;
}

/// Webhook case 27.
#[tokio::test]
async fn a_large_review_is_answered_and_a_larger_body_refused() {
    let server = start();
    let big = "x".repeat(3 << 20);
    let object = json!({"metadata": {"uid": "uid-web-b", "annotations": {"big": big}}});
    let body = review(&json!({"uid": "u", "operation": "UPDATE", "object": object, "oldObject": object})).to_string();
    let (status, text) = post(&server, "/mutate/pods", body).await;
    assert_eq!(status, 200);
    assert!(text.contains("patchType"), "{}", &text[..200]);

    let before = server.memory_kib().unwrap();
    for _ in 0..20 {
        let (status, text) = post(&server, "/mutate/pods", vec![b'x'; 16 << 20]).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(text.contains("larger than 8388608 bytes"), "{text}");
    }
    // Twenty bodies of 16 MiB would be 320 MiB.
    assert!(server.memory_kib().unwrap() < before + (64 << 10), "memory grew from {before} to {} KiB", server.memory_kib().unwrap());
    assert_lives(&server).await;
}

/// Webhook case 27: many at once cost no more than a bounded part of the memory that the Deployment has.
#[tokio::test]
async fn many_large_bodies_at_once_share_a_bounded_memory() {
    let server = start();
    let client = client(&server);
    let before = server.memory_kib().unwrap();
    // A million owners: read in full, each byte of it would become thirty.
    let owners = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"UPDATE",
        "object":{{"metadata":{{"ownerReferences":[{}{{}}]}}}}}}}}"#,
        "{},".repeat(1 << 20)
    );
    let post = async |body: Vec<u8>| client.post(server.url("/mutate/pods")).body(body).send().await.map(|answer| answer.status());
    let mut calls = Vec::new();
    for n in 0..60 {
        let body = if n % 2 == 0 { vec![b'x'; 16 << 20] } else { owners.clone().into_bytes() };
        calls.push(post(body));
    }
    let answers = futures::future::join_all(calls).await;
    let peak = server.peak_memory_kib().unwrap();
    assert!(peak < before + (160 << 10), "memory grew from {before} to {peak} KiB");
    let allowed = [StatusCode::OK, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT];
    for answer in answers {
        let status = answer.expect("an answer, and not a broken connection");
        assert!(allowed.contains(&status), "{status}");
    }
    assert_lives(&server).await;
}

#[tokio::test]
async fn idle_and_half_sent_connections_do_not_keep_others_out() {
    let server = start();
    let idle: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    assert_lives(&server).await;
    drop(idle);
    assert_lives(&server).await;
}

/// On SIGTERM readiness goes first, calls are still answered and told to let go, then the process ends by itself.
#[tokio::test]
async fn drains_before_it_stops() {
    let mut server = start();
    let client = client(&server);
    let call = || client.post(server.url("/mutate/pods")).body(review(&json!({"uid": "u"})).to_string()).send();
    assert!(call().await.unwrap().headers().get("connection").is_none());
    server.terminate().unwrap();
    let start = Instant::now();
    while http_get(server.health_port, "/readyz").is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5), "still ready after SIGTERM");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = call().await.unwrap();
    assert_eq!((answer.status(), &answer.headers()["connection"]), (StatusCode::OK, &"close".parse().unwrap()));
    drop(answer);
    assert!(server.wait().unwrap().success());
}

#[tokio::test]
async fn trusts_only_its_own_authority_and_speaks_http_1_1() {
    let server = start();
    pecking_order::server::install_crypto_provider();
    let stranger = reqwest::Client::new();
    assert!(stranger.post(server.url("/mutate/pods")).send().await.is_err());
    let response = client(&server).post(server.url("/mutate/pods")).body("").send().await.unwrap();
    assert_eq!(response.version(), reqwest::Version::HTTP_11);
}
