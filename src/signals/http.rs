//! What every backend over HTTP needs: credentials from files, no redirects, an answer of bounded size.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use reqwest::{Client, RequestBuilder, StatusCode, redirect};
use serde::Deserialize;

use super::QueryError;

/// How much of an error's body is kept for the log.
const ERROR_BODY_BYTES: usize = 300;

/// How the backend knows us. Secrets come from files only, and are read anew for each request, so a rotated Secret is used
/// at once.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Auth {
    #[default]
    None,
    Basic {
        username: String,
        password_file: PathBuf,
    },
    Bearer {
        token_file: PathBuf,
    },
}

impl Auth {
    /// Adds the credentials to a request.
    pub async fn apply(&self, request: RequestBuilder, directory: &Path) -> Result<RequestBuilder, QueryError> {
        Ok(match self {
            Self::None => request,
            Self::Basic { username, password_file } => request.basic_auth(username, Some(secret(directory, password_file).await?)),
            Self::Bearer { token_file } => request.bearer_auth(secret(directory, token_file).await?),
        })
    }
}

async fn secret(directory: &Path, file: &Path) -> Result<String, QueryError> {
    let file = directory.join(file);
    match tokio::fs::read_to_string(&file).await {
        Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
        Err(source) => Err(QueryError::Credentials { file: file.display().to_string(), source }),
    }
}

/// A client that trusts the system's roots, or only `ca_file` where one is given. It follows no redirect: where a request
/// goes, and with which credentials, is the operator's choice alone.
pub fn client(timeout: Duration, ca_file: Option<&Path>) -> anyhow::Result<Client> {
    let mut builder = Client::builder()
        .timeout(timeout)
        .redirect(redirect::Policy::none())
        .user_agent(concat!("pecking-order/", env!("CARGO_PKG_VERSION")));
    if let Some(file) = ca_file {
        let pem = std::fs::read(file).with_context(|| format!("caFile: cannot read {}", file.display()))?;
        let roots =
            reqwest::Certificate::from_pem_bundle(&pem).with_context(|| format!("caFile: no certificates in {}", file.display()))?;
        anyhow::ensure!(!roots.is_empty(), "caFile: no certificates in {}", file.display());
        builder = builder.tls_certs_only(roots);
    }
    Ok(builder.build()?)
}

/// Sends a request and gives back the body of a successful answer, read no further than `max_bytes`.
pub async fn fetch(request: RequestBuilder, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, QueryError> {
    let failed = |e: reqwest::Error| {
        if e.is_timeout() { QueryError::Timeout(timeout) } else { QueryError::Unreachable(innermost(&e.without_url())) }
    };
    let mut response = request.send().await.map_err(failed)?;
    let status = response.status();
    if status.is_redirection() {
        return Err(QueryError::Redirect);
    }
    let limit = if status == StatusCode::OK { max_bytes } else { ERROR_BODY_BYTES };
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > limit {
            if status == StatusCode::OK {
                return Err(QueryError::TooLarge(max_bytes));
            }
            body.extend_from_slice(&chunk[..limit - body.len()]);
            break;
        }
        body.extend_from_slice(&chunk);
    }
    if status == StatusCode::OK {
        return Ok(body);
    }
    let text = String::from_utf8_lossy(&body).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Err(QueryError::Status { status: status.as_u16(), body: text })
}

/// The error's cause, which says more than "error sending request".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
