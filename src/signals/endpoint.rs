//! What every backend over HTTP needs: one address, credentials from files, no redirects, an answer of bounded size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use reqwest::{Client, RequestBuilder, StatusCode, Url, redirect};
use serde::Deserialize;

use super::{QueryError, plain};

/// So many of the first bytes of a secret are enough to know it by.
const REPEATED_BYTES: usize = 16;

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

/// The part of a backend's configuration that says how it is reached.
pub struct Settings<'a> {
    pub url: &'a str,
    pub timeout_seconds: u32,
    pub auth: &'a Auth,
    pub ca_file: Option<&'a Path>,
    pub headers: &'a BTreeMap<String, String>,
    /// Whether the proxy of the environment is asked, if there is one.
    pub through_proxy: bool,
    pub max_response_bytes: usize,
}

pub fn default_timeout_seconds() -> u32 {
    10
}

/// Of services that count or charge for queries.
pub fn default_least_poll_seconds() -> u32 {
    60
}

/// 40,000 rows of some 200 bytes: more pods than one policy governs. Four answers may be held at once.
pub fn default_max_response_bytes() -> usize {
    8 << 20
}

/// An address, and how it is asked. Where a request goes, and with which credentials, is the operator's choice alone.
pub struct Endpoint {
    client: Client,
    pub url: Url,
    timeout: Duration,
    auth: Auth,
    max_response_bytes: usize,
    directory: PathBuf,
}

impl Endpoint {
    /// Paths are relative to `directory`; `path` is appended to the address.
    pub fn new(settings: &Settings<'_>, path: &str, directory: &Path) -> anyhow::Result<Self> {
        let Settings { url: found, timeout_seconds, max_response_bytes: bytes, .. } = *settings;
        ensure!((1..=300).contains(&timeout_seconds), "timeoutSeconds: found {timeout_seconds}, wanted 1 to 300");
        ensure!((1 << 10..=1 << 30).contains(&bytes), "maxResponseBytes: found {bytes}, wanted {} to {}", 1 << 10, 1 << 30);
        let url = Url::parse(&format!("{}{path}", found.trim_end_matches('/')));
        let url = url.map_err(|e| anyhow::anyhow!("url: found `{found}`, wanted an address such as http://prometheus:9090: {e}"))?;
        ensure!(matches!(url.scheme(), "http" | "https"), "url: found scheme `{}`, wanted http or https", url.scheme());
        ensure!(url.username().is_empty() && url.password().is_none(), "url: credentials belong into `auth`, from a file");
        ensure!(url.query().is_none() && url.fragment().is_none(), "url: found a query or a fragment, wanted an address without");
        let timeout = Duration::from_secs(timeout_seconds.into());
        let ca_file = settings.ca_file.map(|file| directory.join(file));
        Ok(Self {
            client: client(timeout, ca_file.as_deref(), headers(settings.headers)?, settings.through_proxy)?,
            url,
            timeout,
            auth: settings.auth.clone(),
            max_response_bytes: bytes,
            directory: directory.into(),
        })
    }

    pub fn get(&self, parameters: &[(&str, &str)]) -> RequestBuilder {
        let mut url = self.url.clone();
        url.query_pairs_mut().extend_pairs(parameters);
        self.client.get(url)
    }

    /// A GET of a path of this address.
    pub fn get_at(&self, path: &str) -> RequestBuilder {
        self.client.get(self.at(path))
    }

    /// A PUT, without a body, to a path of this address.
    pub fn put(&self, path: &str) -> RequestBuilder {
        self.client.put(self.at(path))
    }

    fn at(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(path);
        url
    }

    pub fn post_body(&self, body: Vec<u8>) -> RequestBuilder {
        self.client.post(self.url.clone()).body(body)
    }

    pub fn post(&self, parameters: &[(&str, &str)]) -> RequestBuilder {
        self.client.post(self.url.clone()).form(parameters)
    }

    /// Sends a request with the credentials, and gives back the body of a successful answer.
    pub async fn send(&self, request: RequestBuilder) -> Result<Vec<u8>, QueryError> {
        match &self.auth {
            Auth::None => self.receive(request, &[]).await,
            Auth::Basic { username, password_file } => {
                let password = self.secret(password_file).await?;
                self.receive(request.basic_auth(username, Some(&password)), &[&password]).await
            }
            Auth::Bearer { token_file } => {
                let token = self.secret(token_file).await?;
                self.receive(request.bearer_auth(&token), &[&token]).await
            }
        }
    }

    /// The text of a mounted Secret, without the end of its line.
    pub async fn secret(&self, file: &Path) -> Result<String, QueryError> {
        secret(&self.directory.join(file)).await
    }

    /// Sends a request as it is, and gives back the body of a successful answer. The body of an error is part of it, unless it
    /// repeats one of the secrets that were sent.
    pub async fn receive(&self, request: RequestBuilder, secrets: &[&str]) -> Result<Vec<u8>, QueryError> {
        let failed = |e: reqwest::Error| match e.is_timeout() {
            true => QueryError::Timeout(self.timeout),
            false => QueryError::Unreachable(innermost(&e.without_url())),
        };
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        if status.is_redirection() {
            return Err(QueryError::Redirect);
        }
        let limit = if status == StatusCode::OK { self.max_response_bytes } else { ERROR_BODY_BYTES };
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > limit {
                if status == StatusCode::OK {
                    return Err(QueryError::TooLarge(limit));
                }
                body.extend_from_slice(&chunk[..limit - body.len()]);
                break;
            }
            body.extend_from_slice(&chunk);
        }
        if status == StatusCode::OK {
            return Ok(body);
        }
        let text = plain(&String::from_utf8_lossy(&body));
        let body = if secrets.iter().any(|secret| repeats(&text, secret)) { "(it repeats a secret)".into() } else { text };
        Err(QueryError::Status { status: status.as_u16(), body })
    }
}

/// The text of a mounted Secret, without the end of its line.
pub async fn secret(file: &Path) -> Result<String, QueryError> {
    let unusable = |source| QueryError::Credentials { file: file.display().to_string(), source };
    let text = tokio::fs::read_to_string(file).await.map_err(unusable)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.chars().any(char::is_control) {
        let why = "found nothing, or more than one line, wanted one";
        return Err(unusable(std::io::Error::new(std::io::ErrorKind::InvalidData, why)));
    }
    Ok(text.to_owned())
}

/// A client that trusts the system's roots, or only those in `ca_file` where one is given, and follows no redirect.
fn client(timeout: Duration, ca_file: Option<&Path>, headers: HeaderMap, through_proxy: bool) -> anyhow::Result<Client> {
    let agent = concat!("pecking-order/", env!("CARGO_PKG_VERSION"));
    let mut builder = Client::builder().timeout(timeout).redirect(redirect::Policy::none()).user_agent(agent).default_headers(headers);
    if !through_proxy {
        builder = builder.no_proxy();
    }
    if let Some(file) = ca_file {
        let pem = std::fs::read(file).with_context(|| format!("caFile: cannot read {}", file.display()))?;
        let roots =
            reqwest::Certificate::from_pem_bundle(&pem).with_context(|| format!("caFile: no certificates in {}", file.display()))?;
        ensure!(!roots.is_empty(), "caFile: no certificates in {}", file.display());
        builder = builder.tls_certs_only(roots);
    }
    Ok(builder.build()?)
}

/// Whether a text has a good part of a secret in it, as it is or as basic authentication sends it.
fn repeats(text: &str, secret: &str) -> bool {
    let part = &secret[..secret.floor_char_boundary(secret.len().min(REPEATED_BYTES))];
    !part.is_empty() && (text.contains(part) || text.contains("Basic ") || text.contains("Bearer "))
}

/// Headers that go with every request, such as one that names a tenant.
fn headers(configured: &BTreeMap<String, String>) -> anyhow::Result<HeaderMap> {
    let header = |(name, value): (&String, &String)| {
        let wanted = || format!("headers.{name}: this is no header");
        let key = HeaderName::try_from(name).with_context(wanted)?;
        ensure!(
            ![AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE].contains(&key),
            "headers.{name}: credentials belong into `auth`, from a file"
        );
        Ok((key, HeaderValue::try_from(value).with_context(wanted)?))
    };
    configured.iter().map(header).collect()
}

/// The error's cause, which says more than "error sending request".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
