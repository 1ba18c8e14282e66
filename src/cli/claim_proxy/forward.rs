//! Passes requests on as they are, to one fixed place: bodies are streamed, nothing is followed, unpacked or added.

use anyhow::{Context, ensure};
use axum::body::Body;
use axum::http::header::{CONNECTION, HOST, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::copy_bidirectional;
use tracing::debug;

/// Headers about one connection, which are not the message's (RFC 9110, section 7.6.1).
const OF_ONE_CONNECTION: [HeaderName; 4] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING];
const MORE_OF_ONE_CONNECTION: [&str; 3] = ["keep-alive", "proxy-connection", "proxy-authorization"];

/// Where everything goes.
#[derive(Clone)]
pub struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at its end.
    prefix: String,
}

impl Upstream {
    /// `http` or `https`, a host, and perhaps a path below which everything lies.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let uri: Uri =
            url.parse().with_context(|| format!("--upstream: found `{url}`, wanted a URL such as https://gitlab.example.com"))?;
        let parts = uri.into_parts();
        let (scheme, authority) =
            parts.scheme.zip(parts.authority).with_context(|| format!("--upstream: found `{url}`, wanted one with a scheme"))?;
        ensure!(scheme == Scheme::HTTP || scheme == Scheme::HTTPS, "--upstream: found `{url}`, wanted http or https");
        ensure!(!authority.as_str().contains('@'), "--upstream: found credentials, wanted a URL without: the runner has its own token");
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
        let connector = HttpsConnectorBuilder::new()
            .with_native_roots()
            .context("no root certificates; SSL_CERT_FILE may name a file of them")?
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            scheme,
            authority,
            prefix: path.trim_end_matches('/').to_owned(),
        })
    }

    /// The path of a request below the upstream's own.
    pub fn below<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(self.prefix.as_str()).unwrap_or(path)
    }

    /// Passes a request on. What goes wrong on the way is answered with 502.
    pub async fn forward(&self, mut request: Request<Body>) -> Response<Body> {
        let upgrade = request.headers().get(UPGRADE).cloned();
        // Before the request goes: it is what the client's side of the connection comes from.
        let client_side = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let sent = match self.rewrite(request, upgrade.as_ref()) {
            Ok(request) => self.client.request(request).await.map_err(anyhow::Error::from),
            Err(e) => Err(e),
        };
        let mut response = match sent {
            Ok(response) => response,
            Err(e) => {
                // The error names the place and the cause, and nothing of the request.
                debug!(error = format!("{e:#}"), "the upstream did not answer");
                return plain(StatusCode::BAD_GATEWAY, "pecking-order: the upstream did not answer");
            }
        };
        let upgraded = (response.status() == StatusCode::SWITCHING_PROTOCOLS).then(|| hyper::upgrade::on(&mut response));
        let protocol = response.headers().get(UPGRADE).cloned();
        let (mut parts, body) = response.into_parts();
        strip(&mut parts.headers);
        if let (Some(server_side), Some(client_side)) = (upgraded, client_side) {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
            tokio::spawn(async move {
                if let (Ok(server), Ok(client)) = (server_side.await, client_side.await) {
                    // Either side may end it as it likes.
                    let _ = copy_bidirectional(&mut TokioIo::new(server), &mut TokioIo::new(client)).await;
                }
            });
        }
        Response::from_parts(parts, Body::new(body))
    }

    fn rewrite(&self, request: Request<Body>, upgrade: Option<&HeaderValue>) -> anyhow::Result<Request<Body>> {
        let (mut parts, body) = request.into_parts();
        let asked = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        parts.uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{}", self.prefix, self.below(asked)))
            .build()?;
        strip(&mut parts.headers);
        parts.headers.insert(HOST, HeaderValue::from_str(self.authority.as_str())?);
        if let Some(protocol) = upgrade {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol.clone());
        }
        Ok(Request::from_parts(parts, body))
    }
}

/// Takes away what is about one connection, and what `Connection` names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    named.iter().for_each(|name| drop(headers.remove(name.as_str())));
    OF_ONE_CONNECTION.iter().for_each(|name| drop(headers.remove(name)));
    MORE_OF_ONE_CONNECTION.iter().for_each(|name| drop(headers.remove(*name)));
    headers.remove(UPGRADE);
}

pub fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}
