//! The API server keeps connections idle for 90 seconds, and does not repeat a call on one that was closed under it.

use std::io::copy;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::time::sleep;

use super::{Cluster, Test, block_on};

pub const TESTS: &[(&str, Test)] = &[("connections::one_that_was_idle_for_91_seconds_is_used_again", idle_connection)];

fn idle_connection(cluster: &'static Cluster) -> anyhow::Result<()> {
    let port = cluster.installation().as_ref().and_then(|installation| installation.ports().first().copied()).context("a replica")?;
    let (front, connections) = counting_forwarder(port)?;
    let secret = cluster.admin.get(&["secret", "pecking-order-ca", "-n", "pecking-order"])?;
    let authority = STANDARD.decode(secret["data"]["ca.crt"].as_str().context("ca.crt")?)?;
    block_on(async {
        let authority = reqwest::Certificate::from_pem_bundle(&authority)?;
        let client = reqwest::Client::builder().tls_certs_only(authority).pool_idle_timeout(Duration::from_secs(300)).build()?;
        let call = || async {
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}});
            let answer = client.post(format!("https://127.0.0.1:{front}/mutate/pods")).body(review.to_string()).send().await?;
            ensure!(answer.status() == 200, "{}", answer.status());
            answer.bytes().await?;
            Ok(())
        };
        call().await?;
        sleep(Duration::from_secs(91)).await;
        call().await?;
        ensure!(connections.load(Ordering::SeqCst) == 1, "the server had closed the idle connection");
        Ok(())
    })
}

/// Passes bytes on, and counts the connections that it is asked for.
fn counting_forwarder(to: u16) -> anyhow::Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let (Ok(mut client_in), Ok(mut server_in)) = (client.try_clone(), server.try_clone()) else { continue };
            let (mut client_out, mut server_out) = (client, server);
            std::thread::spawn(move || copy(&mut client_in, &mut server_out));
            std::thread::spawn(move || copy(&mut server_in, &mut client_out));
        }
    });
    Ok((port, count))
}
