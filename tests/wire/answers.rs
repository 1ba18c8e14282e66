//! Golden files: every kind of answer, as it goes over the wire. A change of an answer is reviewed as a diff.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{client, review, start};

/// Requests are sent in the order of their names: the scale-downs, which write, build on each other.
#[tokio::test]
async fn every_kind_of_answer_is_as_it_was_reviewed() {
    let server = start();
    let client = client(&server);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reviews");
    let mut files: Vec<_> = std::fs::read_dir(root.join("requests")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 25, "the golden files are missing");
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let url = server.url(&format!("{}?timeout=5s", golden["hook"].as_str().unwrap()));
        let response = client.post(url).body(review(&golden["request"]).to_string()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{name}");
        assert_eq!(response.headers()["content-type"], "application/json", "{name}");
        let answer: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        assert_eq!(answer["response"]["uid"], golden["request"]["uid"], "{name}: the uid");
        // R5, R6: a patch and its type come together, and never from a hook that validates.
        let has = |key: &str| answer["response"].get(key).is_some();
        assert_eq!(has("patch"), has("patchType"), "{name}: half a pair");
        assert!(!has("patch") || golden["hook"].as_str().unwrap().starts_with("/mutate/"), "{name}: a validating hook patches");
        let patch = answer["response"]["patch"].as_str().map(|text| {
            let operations = STANDARD.decode(text).expect("standard base64 with padding");
            serde_json::from_slice::<Value>(&operations).unwrap()
        });
        let shown = json!({ "answer": answer, "decoded patch": patch });
        insta::with_settings!({ snapshot_path => root.join("answers"), prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_json_snapshot!(name, shown);
        });
    }
}
