//! Keeps a valid certificate served: makes it, or reads it from files, and changes it without a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum_server::tls_rustls::RustlsConfig;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use tokio::time::sleep;
use tracing::{info, warn};

use super::config::{Certificates, SelfManaged};
use super::health::Health;
use super::metrics::Metrics;
use crate::cluster::certificate_authority::{self as authority, Pair};

/// How often files, the Secret and the wall clock are looked at. Timers alone are not enough: a machine that was suspended misses them.
const LOOK_EVERY: Duration = Duration::from_secs(5);

const VERSIONS: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// Where the next pair comes from.
enum Source {
    Authority { authority: Pair, names: Vec<String>, secret: Option<Box<Secret>> },
    Directory(PathBuf),
}

/// Where an authority is kept, and made known.
struct Secret {
    client: Client,
    namespace: String,
    managed: SelfManaged,
}

pub struct Keeper {
    source: Source,
    current: Pair,
    valid_from: i64,
    valid_until: i64,
    config: RustlsConfig,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    /// What is wrong with the next pair: said once.
    trouble: Option<String>,
}

impl Keeper {
    /// Gets the first pair. `namespace` is the one we run in; without a client there is no Secret to keep an authority in.
    pub async fn start(
        certificates: &Certificates,
        client: Option<&Client>,
        namespace: &str,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let source = match (certificates, client) {
            (Certificates::Directory(directory), _) => Source::Directory(directory.clone()),
            (Certificates::Ephemeral { ca_file }, _) => {
                let authority = authority::new_authority()?;
                std::fs::write(ca_file, &authority.certificate)
                    .with_context(|| format!("certificates.ephemeral.caFile: cannot write {}", ca_file.display()))?;
                Source::Authority { authority, names: vec!["localhost".into(), "127.0.0.1".into(), "::1".into()], secret: None }
            }
            (Certificates::SelfManaged(managed), Some(client)) => self_managed(managed, client, namespace).await?,
            (Certificates::SelfManaged(_), None) => {
                anyhow::bail!("certificates.selfManaged needs an API server; found none, wanted `directory` or `ephemeral`")
            }
        };
        let current = source.next()?;
        let (config, valid_from, valid_until) = server_config(&current)?;
        let config = RustlsConfig::from_config(Arc::new(config));
        let keeper = Self { source, current, valid_from, valid_until, config, health, metrics, trouble: None };
        keeper.tell();
        keeper.publish().await;
        Ok(keeper)
    }

    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Looks after the pair for as long as it is polled.
    pub async fn run(mut self) {
        // The API server learns of a bundle a moment after it is written. So a new authority is in it for a whole round before
        // the first leaf of it is served, and no leaf of it is made before.
        let (mut unpublished, mut another) = (false, false);
        loop {
            sleep(LOOK_EVERY).await;
            if !unpublished {
                self.look(Timestamp::now().as_second(), another);
                another = false;
            }
            unpublished |= self.adopt().await;
            if self.publish().await && unpublished {
                (unpublished, another) = (false, true);
            }
        }
    }

    /// Looks for another authority in the Secret: somebody has replaced it, or deleted it so that a new one is made. One that
    /// cannot sign is left alone.
    async fn adopt(&mut self) -> bool {
        let Source::Authority { authority, secret: Some(secret), names } = &mut self.source else { return false };
        let Secret { client, namespace, managed } = &**secret;
        let found = match authority::find_or_create(client, namespace, &managed.secret).await {
            Ok(found) if found.certificate == authority.certificate => return false,
            Ok(found) => authority::check(&found, names).map(|()| found),
            Err(e) => Err(e),
        };
        match found {
            Ok(found) => {
                info!("another certificate authority is in the Secret");
                *authority = found;
                true
            }
            Err(e) => {
                warn!(error = format!("{e:#}"), "the certificate authority in the Secret cannot be used; the one at hand stays");
                false
            }
        }
    }

    /// Takes the next pair where there is one. A pair that cannot be used leaves the old one in place.
    fn look(&mut self, now: i64, another_authority: bool) {
        let due = another_authority
            || match &self.source {
                // At two thirds of its life, and also when the clock has jumped out of it.
                Source::Authority { .. } => now >= self.valid_from + (self.valid_until - self.valid_from) / 3 * 2 || now < self.valid_from,
                Source::Directory(_) => true,
            };
        if !due {
            return;
        }
        let outcome = self.source.next().and_then(|next| {
            if next.certificate == self.current.certificate && next.key == self.current.key {
                return Ok(());
            }
            let (config, valid_from, valid_until) = server_config(&next)?;
            self.config.reload_from_config(Arc::new(config));
            (self.current, self.valid_from, self.valid_until) = (next, valid_from, valid_until);
            info!(valid_until, "serving another certificate");
            self.tell();
            Ok(())
        });
        let trouble = outcome.err().map(|e| format!("{e:#}"));
        if let Some(trouble) = trouble.as_ref().filter(|trouble| self.trouble.as_ref() != Some(trouble)) {
            warn!(trouble, "the new certificate cannot be used; the old one stays");
        }
        self.trouble = trouble;
    }

    fn tell(&self) {
        self.health.serves_certificate(self.valid_from, self.valid_until);
        self.metrics.certificate_expiry(self.valid_until);
    }

    /// Whether the authority is in the bundles, or needs not be.
    async fn publish(&self) -> bool {
        let Source::Authority { authority, secret: Some(secret), .. } = &self.source else { return true };
        let published = authority::publish(&secret.client, &secret.managed.webhook_configuration, authority).await;
        if let Err(e) = &published {
            warn!(error = format!("{e:#}"), "cannot write the caBundle; trying again");
        }
        published.is_ok()
    }
}

impl Source {
    fn next(&self) -> anyhow::Result<Pair> {
        match self {
            Self::Authority { authority, names, .. } => authority::new_leaf(authority, names),
            Self::Directory(directory) => {
                let read = |file: &str| {
                    let file = directory.join(file);
                    std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
                };
                Ok(Pair { certificate: read("tls.crt")?, key: read("tls.key")? })
            }
        }
    }
}

async fn self_managed(managed: &SelfManaged, client: &Client, namespace: &str) -> anyhow::Result<Source> {
    let authority = authority::find_or_create(client, namespace, &managed.secret)
        .await
        .with_context(|| format!("certificates.selfManaged: Secret {namespace}/{}", managed.secret))?;
    let service = &managed.service;
    let mut names = vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    names.extend(managed.names.iter().cloned());
    let secret = Secret { client: client.clone(), namespace: namespace.into(), managed: managed.clone() };
    Ok(Source::Authority { authority, names, secret: Some(Box::new(secret)) })
}

/// Checks a pair by building what would be served, and reads how long its leaf is valid.
fn server_config(pair: &Pair) -> anyhow::Result<(ServerConfig, i64, i64)> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().context("the certificate is not PEM")?;
    let leaf = chain.first().context("there is no certificate in the file")?;
    let validity = x509_parser::parse_x509_certificate(leaf).context("the certificate cannot be read")?.1.validity().clone();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("the key is not PEM")?;
    let mut config = ServerConfig::builder_with_protocol_versions(VERSIONS)
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("certificate and key do not fit together")?;
    // The API server's webhook client speaks HTTP/1.1 only.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// Relative paths of the configuration are relative to the directory that holds it.
pub fn resolve(certificates: &Certificates, directory: &Path) -> Certificates {
    match certificates {
        Certificates::Directory(path) => Certificates::Directory(directory.join(path)),
        Certificates::Ephemeral { ca_file } => Certificates::Ephemeral { ca_file: directory.join(ca_file) },
        Certificates::SelfManaged(managed) => Certificates::SelfManaged(managed.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn keeper(directory: &Path) -> anyhow::Result<Keeper> {
        crate::server::install_crypto_provider();
        Keeper::start(&Certificates::Directory(directory.into()), None, "x", Arc::default(), Arc::default()).await
    }

    fn write(directory: &Path, pair: &Pair) {
        std::fs::write(directory.join("tls.crt"), &pair.certificate).unwrap();
        std::fs::write(directory.join("tls.key"), &pair.key).unwrap();
    }

    fn leaf() -> Pair {
        crate::server::install_crypto_provider();
        authority::new_leaf(&authority::new_authority().unwrap(), &["localhost".into()]).unwrap()
    }

    #[tokio::test]
    async fn takes_a_new_pair_and_keeps_the_old_one_where_the_new_one_is_broken() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (leaf(), leaf());
        write(directory.path(), &first);
        let mut keeper = keeper(directory.path()).await.unwrap();
        for broken in [
            Pair { certificate: second.certificate.clone(), key: first.key.clone() },
            Pair { certificate: second.certificate[..200].into(), key: second.key.clone() },
            Pair { certificate: String::new(), key: second.key.clone() },
            Pair { certificate: second.certificate.clone(), key: String::new() },
        ] {
            write(directory.path(), &broken);
            keeper.look(0, false);
            assert!(keeper.trouble.is_some());
            assert_eq!(keeper.current.certificate, first.certificate);
        }
        std::fs::remove_file(directory.path().join("tls.key")).unwrap();
        keeper.look(0, false);
        assert!(keeper.trouble.as_ref().unwrap().contains("tls.key"));
        write(directory.path(), &second);
        keeper.look(0, false);
        assert_eq!((keeper.trouble, keeper.current.certificate), (None, second.certificate));
    }

    /// Webhook case 37: renewal is decided by the wall clock, also after a jump.
    #[tokio::test]
    async fn renews_its_own_leaf_at_two_thirds_of_its_life() {
        crate::server::install_crypto_provider();
        let directory = tempfile::tempdir().unwrap();
        let ephemeral = Certificates::Ephemeral { ca_file: directory.path().join("ca.crt") };
        let mut keeper = Keeper::start(&ephemeral, None, "x", Arc::default(), Arc::default()).await.unwrap();
        let first = keeper.current.certificate.clone();
        let now = Timestamp::now().as_second();
        keeper.look(now + 4 * 86_400, false);
        assert_eq!(keeper.current.certificate, first);
        keeper.look(now + 5 * 86_400, false);
        assert_ne!(keeper.current.certificate, first);
        let second = keeper.current.certificate.clone();
        keeper.look(now + 30 * 86_400, false);
        assert_ne!(keeper.current.certificate, second);
    }

    #[tokio::test]
    async fn does_not_start_without_a_pair_that_can_be_served() {
        let directory = tempfile::tempdir().unwrap();
        let error = keeper(directory.path()).await.err().unwrap();
        assert!(format!("{error:#}").contains("tls.crt"), "{error:#}");
    }
}
