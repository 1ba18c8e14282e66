//! What a request to AWS needs: credentials that end, and a signature.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::QueryError;
use super::endpoint::{Endpoint, secret};

/// Credentials are replaced while they are still good for this long.
const BEFORE_THEIR_END: Duration = Duration::from_secs(300);

/// How long fetching them may take, in all its steps.
const FETCH_LIMIT: Duration = Duration::from_secs(10);

/// After a failure they are not asked for again for so long.
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);

/// Where the credentials come from.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// A ServiceAccount's token for a role (IAM roles for service accounts). What is absent comes from the environment variables
    /// that EKS sets: `AWS_ROLE_ARN` and `AWS_WEB_IDENTITY_TOKEN_FILE`.
    WebIdentity {
        role_arn: Option<String>,
        token_file: Option<PathBuf>,
        /// The token service; that of the region where absent.
        url: Option<String>,
    },
    /// EKS Pod Identity. What is absent comes from the environment variables that EKS sets:
    /// `AWS_CONTAINER_CREDENTIALS_FULL_URI` and `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`.
    PodIdentity { url: Option<String>, token_file: Option<PathBuf> },
    /// The role of the instance, from its metadata service (version 2 of its protocol).
    Instance {
        /// The metadata service; that of EC2 where absent.
        url: Option<String>,
    },
    /// Long-lived keys, from files.
    Files { access_key_id_file: PathBuf, secret_access_key_file: PathBuf },
}

/// Credentials, fetched when they are needed and kept until shortly before their end.
pub struct Keys {
    source: Resolved,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    credentials: Option<Credentials>,
    /// When they could not be fetched last, and why.
    failed: Option<(Instant, String)>,
}

/// A source with nothing left open.
enum Resolved {
    WebIdentity { endpoint: Endpoint, role_arn: String, token_file: PathBuf },
    PodIdentity { endpoint: Endpoint, token_file: PathBuf },
    Instance { endpoint: Endpoint },
    Files { access_key_id_file: PathBuf, secret_access_key_file: PathBuf },
}

impl Keys {
    /// `endpoint` makes one for an address, with the time-out of the backend that asks, and with the environment's proxy or without:
    /// what is on the machine itself is never asked through one.
    pub fn new(
        source: &Source,
        region: &str,
        directory: &Path,
        endpoint: impl Fn(&str, bool) -> anyhow::Result<Endpoint>,
    ) -> anyhow::Result<Self> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                anyhow::anyhow!("credentials: found neither the field nor the environment variable {name}, wanted one of them")
            })
        };
        let source = match source.clone() {
            Source::WebIdentity { role_arn, token_file, url } => Resolved::WebIdentity {
                endpoint: endpoint(&url.unwrap_or_else(|| format!("https://sts.{region}.{}", domain(region))), true)?,
                role_arn: role_arn.map_or_else(|| variable("AWS_ROLE_ARN"), Ok)?,
                token_file: token_file.map_or_else(|| variable("AWS_WEB_IDENTITY_TOKEN_FILE").map(Into::into), Ok)?,
            },
            Source::PodIdentity { url, token_file } => Resolved::PodIdentity {
                endpoint: endpoint(&url.map_or_else(|| variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"), Ok)?, false)?,
                token_file: token_file.map_or_else(|| variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(Into::into), Ok)?,
            },
            Source::Instance { url } => {
                Resolved::Instance { endpoint: endpoint(&url.unwrap_or_else(|| "http://169.254.169.254".into()), false)? }
            }
            Source::Files { access_key_id_file, secret_access_key_file } => Resolved::Files {
                access_key_id_file: directory.join(access_key_id_file),
                secret_access_key_file: directory.join(secret_access_key_file),
            },
        };
        Ok(Self { source, kept: Mutex::default() })
    }

    /// Credentials that are good for a while. Several that ask at once wait for one answer; a failure is theirs too, for a few
    /// seconds, rather than tried again by each in turn.
    pub async fn get(&self) -> Result<Credentials, QueryError> {
        let mut kept = self.kept.lock().await;
        let ends_after = |moment: SystemTime| move |found: &&Credentials| found.expiry().is_some_and(|end| end > moment);
        if let Some(credentials) = kept.credentials.as_ref().filter(ends_after(SystemTime::now() + BEFORE_THEIR_END)) {
            return Ok(credentials.clone());
        }
        let still_good = kept.credentials.as_ref().filter(ends_after(SystemTime::now())).cloned();
        if let Some((_, why)) = kept.failed.as_ref().filter(|(at, _)| at.elapsed() < AFTER_A_FAILURE) {
            return still_good.ok_or_else(|| QueryError::malformed(why));
        }
        let fetched = timeout(FETCH_LIMIT, self.source.fetch()).await.unwrap_or(Err(QueryError::Timeout(FETCH_LIMIT)));
        match fetched {
            Ok(fetched) => {
                *kept = Kept { credentials: Some(fetched.clone()), failed: None };
                Ok(fetched)
            }
            Err(e) => {
                kept.failed = Some((Instant::now(), format!("credentials: {e}")));
                still_good.ok_or(e)
            }
        }
    }
}

impl Resolved {
    async fn fetch(&self) -> Result<Credentials, QueryError> {
        match self {
            Self::WebIdentity { endpoint, role_arn, token_file } => {
                let token = endpoint.secret(token_file).await?;
                let request = endpoint.post(&[
                    ("Action", "AssumeRoleWithWebIdentity"),
                    ("Version", "2011-06-15"),
                    ("RoleArn", role_arn),
                    ("RoleSessionName", "pecking-order"),
                    ("WebIdentityToken", &token),
                ]);
                let body = endpoint.receive(request.header("accept", "application/json"), &[&token]).await?;
                let answer: Assumed = parse(&body)?;
                Ok(answer.response.result.credentials.into())
            }
            Self::PodIdentity { endpoint, token_file } => {
                let token = endpoint.secret(token_file).await?;
                let body = endpoint.receive(endpoint.get(&[]).header("authorization", &token), &[&token]).await?;
                parse::<Found>(&body).map(Into::into)
            }
            Self::Instance { endpoint } => {
                let token = endpoint.put("/latest/api/token").header("x-aws-ec2-metadata-token-ttl-seconds", "300");
                let token = text(&endpoint.receive(token, &[]).await?);
                let ask = |path: &str| endpoint.get_at(path).header("x-aws-ec2-metadata-token", &token);
                let roles = "/latest/meta-data/iam/security-credentials/";
                let role = text(&endpoint.receive(ask(roles), &[&token]).await?);
                let body = endpoint.receive(ask(&format!("{roles}{}", role.lines().next().unwrap_or_default())), &[&token]).await?;
                parse::<Found>(&body).map(Into::into)
            }
            Self::Files { access_key_id_file, secret_access_key_file } => {
                let (id, secret) = (secret(access_key_id_file).await?, secret(secret_access_key_file).await?);
                // Without an end they are read anew each time, so that a rotated Secret is used at once.
                Ok(Credentials::new(id, secret, None, None, "files"))
            }
        }
    }
}

/// The domain of a region's services.
pub fn domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim().to_owned()
}

/// The message of an error must not quote the text: it holds a secret.
fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, QueryError> {
    serde_json::from_slice(body).map_err(|e| {
        QueryError::malformed(format!("credentials: no JSON of the expected shape, at line {} column {}", e.line(), e.column()))
    })
}

#[derive(Deserialize)]
struct Assumed {
    #[serde(rename = "AssumeRoleWithWebIdentityResponse")]
    response: AssumedResponse,
}

#[derive(Deserialize)]
struct AssumedResponse {
    #[serde(rename = "AssumeRoleWithWebIdentityResult")]
    result: AssumedResult,
}

#[derive(Deserialize)]
struct AssumedResult {
    #[serde(rename = "Credentials")]
    credentials: Found,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Found {
    access_key_id: String,
    secret_access_key: String,
    /// The metadata services call it so, the token service the other way.
    token: Option<String>,
    session_token: Option<String>,
    expiration: End,
}

/// The token service gives seconds, the metadata service a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum End {
    Seconds(f64),
    Text(Timestamp),
}

impl From<Found> for Credentials {
    fn from(found: Found) -> Self {
        let end = match found.expiration {
            // What lies beyond the clock counts as ended.
            End::Seconds(seconds) => {
                SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.max(0.0) as u64)).unwrap_or(SystemTime::UNIX_EPOCH)
            }
            End::Text(time) => time.into(),
        };
        Self::new(found.access_key_id, found.secret_access_key, found.token.or(found.session_token), Some(end), "fetched")
    }
}

/// A request to be signed.
pub struct Unsigned<'a> {
    pub method: &'a str,
    pub url: &'a str,
    /// These are signed, and `host`.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

/// The headers that sign a request (AWS Signature Version 4).
pub fn signature(
    request: &Unsigned<'_>,
    credentials: &Credentials,
    region: &str,
    service: &str,
    time: SystemTime,
) -> Result<Vec<(String, String)>, QueryError> {
    let refused = |e: String| QueryError::malformed(format!("the request cannot be signed: {e}"));
    let identity = credentials.clone().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service)
        .time(time)
        .settings(SigningSettings::default())
        .build()
        .map_err(|e| refused(e.to_string()))?
        .into();
    let signable = SignableRequest::new(request.method, request.url, request.headers.iter().copied(), SignableBody::Bytes(request.body))
        .map_err(|e| refused(e.to_string()))?;
    let (instructions, _) = sign(signable, &params).map_err(|e| refused(e.to_string()))?.into_parts();
    Ok(instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of AWS' Signature Version 4 test suite (`get-vanilla`, `post-vanilla`, `post-x-www-form-urlencoded`).
    #[test]
    fn signs_the_published_vectors() {
        let credentials = Credentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None, None, "test");
        let time: SystemTime = "2015-08-30T12:36:00Z".parse::<Timestamp>().unwrap().into();
        let form = [("content-type", "application/x-www-form-urlencoded")];
        for (method, headers, body, signed, wanted) in [
            ("GET", &[][..], "", "host;x-amz-date", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST", &[][..], "", "host;x-amz-date", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
            (
                "POST",
                &form[..],
                "Param1=value1",
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            let request = Unsigned { method, url: "https://example.amazonaws.com/", headers, body: body.as_bytes() };
            let headers = signature(&request, &credentials, "us-east-1", "service", time).unwrap();
            let authorization = &headers.iter().find(|(name, _)| name == "authorization").unwrap().1;
            let credential = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request";
            assert_eq!(*authorization, format!("{credential}, SignedHeaders={signed}, Signature={wanted}"), "{method} {body}");
        }
    }

    #[test]
    fn what_is_wrong_with_credentials_is_said_without_them() {
        let error = parse::<Found>(br#"{"AccessKeyId": "id", "SecretAccessKey": "hush", "Token": 7}"#).err().unwrap().to_string();
        assert!(error.contains("credentials") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn an_end_beyond_the_clock_is_an_end() {
        let found: Found = parse(br#"{"AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": 1e30}"#).unwrap();
        assert_eq!(Credentials::from(found).expiry(), Some(SystemTime::UNIX_EPOCH));
    }
}
