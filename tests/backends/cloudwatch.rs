//! CloudWatch and the ways to its credentials, by the shapes of their documentation.

use std::path::Path;

use serde_json::{Value, json};
use wiremock::matchers::{body_partial_json, body_string_contains, header, header_exists, header_regex, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

const QUERY: &str = "SELECT MAX(inflight) FROM \"app\" WHERE Namespace = '${namespace}' GROUP BY FullPodName";

fn config(server: &MockServer, credentials: Value) -> Value {
    json!({"cloudWatch": {"region": "eu-central-1", "url": server.uri(), "credentials": credentials, "confinement": {"toQueries": [QUERY]}}})
}

/// Two pages, to requests that are signed with this key.
async fn answer(server: &MockServer, key: &str, token: Option<&'static str>, requests: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let page = |pod: &str, value: f64, token: Option<&str>| {
        let series =
            json!({"Id": "signal", "Label": pod, "Timestamps": [now - 60, now - 120], "Values": [value, 1.0], "StatusCode": "Complete"});
        ResponseTemplate::new(200).set_body_json(json!({"MetricDataResults": [series], "Messages": [], "NextToken": token}))
    };
    let signed = format!(
        "AWS4-HMAC-SHA256 Credential={key}/[0-9]{{8}}/eu-central-1/monitoring/aws4_request, SignedHeaders=content-type;host;x-amz-date.*x-amz-target, Signature=[0-9a-f]{{64}}"
    );
    let given = || {
        Mock::given(method("POST"))
            .and(path("/"))
            .and(header("x-amz-target", "GraniteServiceVersion20100801.GetMetricData"))
            .and(header("content-type", "application/x-amz-json-1.0"))
            .and(header_regex("authorization", &signed))
            .and(move |request: &wiremock::Request| {
                request.headers.get("x-amz-security-token").map(|value| value.to_str().unwrap()) == token
            })
    };
    let second = body_partial_json(json!({"NextToken": "more"}));
    given().and(second).respond_with(page("web-2", 9.0, None)).with_priority(1).expect(requests).mount(server).await;
    let text = QUERY.replace("${namespace}", "shop");
    let first = body_partial_json(json!({"MetricDataQueries": [{"Expression": text, "Period": 60}], "ScanBy": "TimestampDescending"}));
    given().and(first).respond_with(page("web-1", 7.0, Some("more"))).with_priority(2).expect(requests).mount(server).await;
}

async fn works(server: &MockServer, credentials: Value, directory: &Path, times: usize) {
    let backend = super::backend(config(server, credentials), directory).unwrap();
    let query = backend.prepare(QUERY, "shop").unwrap();
    for _ in 0..times {
        let rows = super::ask(&backend, &query).await.unwrap();
        assert_eq!(rows, [("web-1".to_owned(), 7.0), ("web-2".to_owned(), 9.0)]);
    }
}

fn keys(end: &Value) -> Value {
    json!({"Code": "Success", "AccessKeyId": "FETCHED", "SecretAccessKey": "hush", "Token": "session", "SessionToken": null, "Expiration": end})
}

#[tokio::test]
async fn signs_with_keys_from_files_and_reads_every_page() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("id"), "AKID\n").unwrap();
    std::fs::write(directory.path().join("secret"), "hush\n").unwrap();
    answer(&server, "AKID", None, 1).await;
    works(&server, json!({"files": {"accessKeyIdFile": "id", "secretAccessKeyFile": "secret"}}), directory.path(), 1).await;
}

#[tokio::test]
async fn a_service_accounts_token_becomes_credentials_that_are_kept() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("token"), "jwt").unwrap();
    let credentials =
        json!({"AccessKeyId": "FETCHED", "SecretAccessKey": "hush", "SessionToken": "session", "Expiration": 4_102_444_800.0});
    Mock::given(method("POST"))
        .and(path("/sts"))
        .and(header("accept", "application/json"))
        .and(body_string_contains("Action=AssumeRoleWithWebIdentity"))
        .and(body_string_contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fmetrics"))
        .and(body_string_contains("WebIdentityToken=jwt"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"AssumeRoleWithWebIdentityResponse":
            {"AssumeRoleWithWebIdentityResult": {"Credentials": credentials}, "ResponseMetadata": {"RequestId": "x"}}})))
        .expect(1)
        .mount(&server)
        .await;
    answer(&server, "FETCHED", Some("session"), 3).await;
    let source =
        json!({"webIdentity": {"roleArn": "arn:aws:iam::1:role/metrics", "tokenFile": "token", "url": format!("{}/sts", server.uri())}});
    works(&server, source, directory.path(), 3).await;
}

#[tokio::test]
async fn the_instances_role_is_asked_for_again_before_its_credentials_end() {
    let server = MockServer::start().await;
    let token = Mock::given(method("PUT")).and(path("/latest/api/token")).and(header_exists("x-aws-ec2-metadata-token-ttl-seconds"));
    token.respond_with(ResponseTemplate::new(200).set_body_string("imds")).expect(2).mount(&server).await;
    let roles = "/latest/meta-data/iam/security-credentials/";
    let role = Mock::given(method("GET")).and(path(roles)).and(header("x-aws-ec2-metadata-token", "imds"));
    role.respond_with(ResponseTemplate::new(200).set_body_string("node-role\n")).expect(2).mount(&server).await;
    // These end in a minute, which is too soon to keep them.
    let soon = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_secs(60);
    let credentials = keys(&json!(soon.to_string()));
    let found = Mock::given(method("GET")).and(path(format!("{roles}node-role"))).and(header("x-aws-ec2-metadata-token", "imds"));
    found.respond_with(ResponseTemplate::new(200).set_body_json(credentials)).expect(2).mount(&server).await;
    answer(&server, "FETCHED", Some("session"), 2).await;
    works(&server, json!({"instance": {"url": server.uri()}}), Path::new("."), 2).await;
}

#[tokio::test]
async fn a_pods_identity_is_asked_with_its_token() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("token"), "jwt\n").unwrap();
    let found = Mock::given(method("GET")).and(path("/v1/credentials")).and(header("authorization", "jwt"));
    found.respond_with(ResponseTemplate::new(200).set_body_json(keys(&json!("2100-01-01T00:00:00Z")))).expect(1).mount(&server).await;
    answer(&server, "FETCHED", Some("session"), 2).await;
    let source = json!({"podIdentity": {"url": format!("{}/v1/credentials", server.uri()), "tokenFile": "token"}});
    works(&server, source, directory.path(), 2).await;
}

/// A metadata service that has gone does not take credentials away that are still good, and is not asked by everybody in turn.
#[tokio::test]
async fn credentials_that_are_still_good_are_used_when_new_ones_cannot_be_had() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("token"), "jwt").unwrap();
    let soon = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_secs(60);
    let once = Mock::given(path("/credentials")).respond_with(ResponseTemplate::new(200).set_body_json(keys(&json!(soon.to_string()))));
    once.up_to_n_times(1).with_priority(1).expect(1).mount(&server).await;
    Mock::given(path("/credentials")).respond_with(ResponseTemplate::new(500)).with_priority(2).expect(1).mount(&server).await;
    answer(&server, "FETCHED", Some("session"), 4).await;
    let source = json!({"podIdentity": {"url": format!("{}/credentials", server.uri()), "tokenFile": "token"}});
    works(&server, source, directory.path(), 4).await;
}

/// Half an answer would make the pods of the other half look idle.
#[tokio::test]
async fn an_answer_that_is_not_whole_is_none() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("key"), "hush").unwrap();
    let files = json!({"files": {"accessKeyIdFile": "key", "secretAccessKeyFile": "key"}});
    let series =
        |count: usize| (0..count).map(|i| json!({"Label": format!("web-{i}"), "Timestamps": [1], "Values": [1]})).collect::<Vec<_>>();
    for (body, why) in [
        (json!({"MetricDataResults": series(2), "Messages": [{"Code": "PartialResult", "Value": "too much"}]}), "PartialResult: too much"),
        (json!({"MetricDataResults": series(500)}), "found 500 series"),
        (json!({"MetricDataResults": series(2), "NextToken": "always"}), "more than 20 pages"),
    ] {
        let server = MockServer::start().await;
        Mock::given(method("POST")).respond_with(ResponseTemplate::new(200).set_body_json(body)).mount(&server).await;
        let backend = super::backend(config(&server, files.clone()), directory.path()).unwrap();
        let error = super::ask(&backend, &backend.prepare(QUERY, "shop").unwrap()).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// A series whose points are all on a later page is not lost.
#[tokio::test]
async fn a_series_may_begin_on_a_later_page() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("key"), "hush").unwrap();
    let page = |timestamps: Value, values: Value, token: Value| {
        let series = json!({"Label": "web-1", "Timestamps": timestamps, "Values": values, "StatusCode": "PartialData"});
        ResponseTemplate::new(200).set_body_json(json!({"MetricDataResults": [series], "NextToken": token}))
    };
    let second = Mock::given(body_partial_json(json!({"NextToken": "more"})));
    second.respond_with(page(json!([7]), json!([9]), Value::Null)).with_priority(1).expect(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(page(json!([]), json!([]), json!("more"))).with_priority(2).expect(1).mount(&server).await;
    let files = json!({"files": {"accessKeyIdFile": "key", "secretAccessKeyFile": "key"}});
    let backend = super::backend(config(&server, files), directory.path()).unwrap();
    let rows = super::ask(&backend, &backend.prepare(QUERY, "shop").unwrap()).await.unwrap();
    assert_eq!(rows, [("web-1".to_owned(), 9.0)]);
}

#[tokio::test]
async fn what_is_not_on_the_operators_list_is_not_sent() {
    let server = MockServer::start().await;
    let backend = super::backend(config(&server, json!({"instance": {}})), Path::new(".")).unwrap();
    let refused = backend.prepare("SELECT MAX(inflight) FROM \"app\" GROUP BY FullPodName", "shop").unwrap_err();
    assert!(refused.contains("only asked") && refused.contains("${namespace}"), "{refused}");
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_at_the_start() {
    for (change, text) in [
        (json!({"region": "Europe"}), "region: found `Europe`"),
        (json!({"periodSeconds": 0}), "periodSeconds: found 0"),
        (json!({"confinement": {"toLabel": "Namespace"}}), "wanted toQueries or none"),
        (
            json!({"credentials": {"webIdentity": {"roleArn": "a"}}}),
            "neither the field nor the environment variable AWS_WEB_IDENTITY_TOKEN_FILE",
        ),
    ] {
        let mut config = json!({"region": "eu-central-1", "credentials": {"instance": {}}, "confinement": "none"});
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let error = format!("{:#}", super::backend(json!({ "cloudWatch": config }), Path::new(".")).err().unwrap());
        assert!(error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_said_with_its_word() {
    let (server, directory) = (MockServer::start().await, tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("key"), "hush").unwrap();
    let body = json!({"__type": "com.amazon.coral.service#AccessDeniedException", "Message": "not authorized to perform: cloudwatch:GetMetricData"});
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(400).set_body_json(body)).mount(&server).await;
    let files = json!({"files": {"accessKeyIdFile": "key", "secretAccessKeyFile": "key"}});
    let error = super::ask(&super::backend(config(&server, files), directory.path()).unwrap(), "q").await.unwrap_err().to_string();
    assert!(error.contains("status 400") && error.contains("GetMetricData") && !error.contains("hush"), "{error}");
}
