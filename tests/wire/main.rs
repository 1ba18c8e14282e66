//! A running server, over TLS: what it answers, and what it does with what it should not be sent.

mod answers;
mod hostile;

use std::path::Path;

use control_plane::Server;
use serde_json::{Value, json};

fn start() -> Server {
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reviews/world");
    Server::start(Path::new(env!("CARGO_BIN_EXE_pecking-order")), &world).unwrap()
}

/// A client that trusts the server's authority and no other.
fn client(server: &Server) -> reqwest::Client {
    pecking_order::server::install_crypto_provider();
    let authority = reqwest::Certificate::from_pem_bundle(&server.authority().unwrap()).unwrap();
    reqwest::Client::builder().tls_certs_only(authority).build().unwrap()
}

/// A whole AdmissionReview around a request.
fn review(request: &Value) -> Value {
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
}
