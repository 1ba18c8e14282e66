//! Our own certificate authority: one key pair in a Secret, made by the first replica that finds none. Each replica signs its
//! own short-lived leaf with it, in memory, and keeps the authority in the `caBundle` of our webhook configurations.

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta};
use kube::{Api, Client, Resource};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

/// A leaf lives for a week and is renewed at two thirds of it: a replica that is asleep over a weekend still wakes up valid.
const LEAF_DAYS: i64 = 7;
/// The authority lives for ten years. Renewing it is an act of the operator: delete the Secret, and a new one is made.
const AUTHORITY_DAYS: i64 = 3650;
/// Clocks differ: a certificate that is valid from a little while ago is valid everywhere now.
const BACKDATED: Duration = Duration::hours(1);

/// The most authorities of a bundle.
const BUNDLE: usize = 3;

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Makes an authority.
pub fn new_authority() -> anyhow::Result<Pair> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("Pecking Order webhook authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = lifetime(AUTHORITY_DAYS);
    let key = KeyPair::generate()?;
    Ok(Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// Makes a leaf for these names or addresses.
pub fn new_leaf(authority: &Pair, names: &[String]) -> anyhow::Result<Pair> {
    let issuer_key = KeyPair::from_pem(&authority.key).context("the authority's key cannot be read")?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, issuer_key).context("the authority's certificate cannot be read")?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = common_name("pecking-order");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = lifetime(LEAF_DAYS);
    let key = KeyPair::generate()?;
    Ok(Pair { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
}

/// Fails where the authority's certificate and key are not a pair, so that nobody could verify a leaf of it.
pub fn check(authority: &Pair, names: &[String]) -> anyhow::Result<()> {
    let leaf = new_leaf(authority, names)?;
    let (_, authority) =
        x509_parser::pem::parse_x509_pem(authority.certificate.as_bytes()).context("the authority's certificate is not PEM")?;
    let (_, leaf) = x509_parser::pem::parse_x509_pem(leaf.certificate.as_bytes())?;
    let authority = authority.parse_x509().context("the authority's certificate cannot be read")?;
    leaf.parse_x509()?.verify_signature(Some(authority.public_key())).context("the authority's certificate and key do not fit together")
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn lifetime(days: i64) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - BACKDATED, now + Duration::days(days))
}

/// Gets the authority from its Secret, or makes both. Where several replicas start at once, one creates the Secret and the
/// others read it.
pub async fn find_or_create(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Pair> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    if let Some(secret) = secrets.get_opt(name).await? {
        return read(&secret, namespace, name);
    }
    let pair = new_authority()?;
    let data = [(CERTIFICATE, &pair.certificate), (KEY, &pair.key)];
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        type_: Some("Opaque".into()),
        data: Some(data.into_iter().map(|(key, text)| (key.into(), ByteString(text.clone().into_bytes()))).collect()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(pair),
        Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
            read(&secrets.get(name).await?, namespace, name)
        }
        Err(e) => Err(e.into()),
    }
}

fn read(secret: &Secret, namespace: &str, name: &str) -> anyhow::Result<Pair> {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let bytes = bytes.with_context(|| format!("Secret {namespace}/{name} has no `{key}`; delete it, and a new authority is made"))?;
        String::from_utf8(bytes.0.clone()).with_context(|| format!("`{key}` of Secret {namespace}/{name} is no text"))
    };
    Ok(Pair { certificate: text(CERTIFICATE)?, key: text(KEY)? })
}

/// Puts the authority into every hook of our two webhook configurations, beside those that are there and have not ended. Touches nothing else of them, and nothing at all
/// where it stands there already.
pub async fn publish(client: &Client, configuration: &str, authority: &Pair) -> anyhow::Result<()> {
    publish_in::<MutatingWebhookConfiguration>(client, configuration, authority).await?;
    publish_in::<ValidatingWebhookConfiguration>(client, configuration, authority).await
}

async fn publish_in<K: Resource<DynamicType = ()>>(client: &Client, name: &str, authority: &Pair) -> anyhow::Result<()> {
    let resource = kube::core::ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    // Somebody else may write between our read and our patch: then it is tried again on what they wrote.
    for _ in 0..5 {
        let Some(object) = api.get_opt(name).await? else { return Ok(()) };
        let Some(patch) = bundle_patch(&object, authority, OffsetDateTime::now_utc().unix_timestamp()) else { return Ok(()) };
        let patch: json_patch::Patch = serde_json::from_value(patch)?;
        match api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_invalid() => {}
            Err(e) => return Err(e).with_context(|| format!("{} {name}", resource.kind)),
        }
    }
    bail!("{} {name} kept changing while the caBundle was being written", resource.kind)
}

/// The operations that put the authority in, if any are needed. They apply only to the version that was read.
fn bundle_patch(object: &DynamicObject, authority: &Pair, now: i64) -> Option<Value> {
    let hooks = object.data.get("webhooks")?.as_array()?;
    let mut operations = vec![json!({ "op": "test", "path": "/metadata/resourceVersion", "value": object.metadata.resource_version })];
    for (index, hook) in hooks.iter().enumerate() {
        let found = hook.pointer("/clientConfig/caBundle").and_then(Value::as_str).unwrap_or_default();
        let found = STANDARD.decode(found).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let wanted = with_authority(&found, &authority.certificate, now);
        if found != wanted {
            let bundle = STANDARD.encode(wanted);
            operations.push(json!({ "op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle }));
        }
    }
    (operations.len() > 1).then_some(Value::Array(operations))
}

/// A bundle that has the authority in it. Authorities that are there already stay until they end: a replica that has not heard
/// of the new one yet still serves a leaf of the old one. And where two replicas differ, neither takes the other's away.
fn with_authority(bundle: &str, authority: &str, now: i64) -> String {
    let mut certificates = pem_blocks(bundle);
    certificates.retain(|pem| *pem == authority.trim() || is_valid_at(pem, now));
    if !certificates.contains(&authority.trim()) {
        // The oldest go first, so that the bundle cannot grow for ever.
        let surplus = (certificates.len() + 1).saturating_sub(BUNDLE);
        certificates.drain(..surplus);
        certificates.push(authority.trim());
    }
    certificates.join("\n") + "\n"
}

fn pem_blocks(text: &str) -> Vec<&str> {
    const END: &str = "-----END CERTIFICATE-----";
    text.split_inclusive(END).map(str::trim).filter(|block| block.ends_with(END)).collect()
}

fn is_valid_at(pem: &str, now: i64) -> bool {
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else { return false };
    block.parse_x509().is_ok_and(|certificate| certificate.validity().not_after.timestamp() > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_signed_by_the_authority_and_names_the_service() {
        crate::server::install_crypto_provider();
        let authority = new_authority().unwrap();
        let leaf = new_leaf(&authority, &["pecking-order.pecking-order.svc".into(), "127.0.0.1".into()]).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(leaf.certificate.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let (_, ca_pem) = x509_parser::pem::parse_x509_pem(authority.certificate.as_bytes()).unwrap();
        assert_eq!(certificate.issuer(), ca_pem.parse_x509().unwrap().subject());
        let names = certificate.subject_alternative_name().unwrap().unwrap().value.general_names.len();
        assert_eq!(names, 2);
        assert!(certificate.validity().is_valid());
    }

    #[test]
    fn an_authority_that_cannot_sign_is_found_out() {
        crate::server::install_crypto_provider();
        let [one, other] = [new_authority().unwrap(), new_authority().unwrap()];
        let names = ["localhost".to_owned()];
        assert!(check(&one, &names).is_ok());
        assert!(check(&Pair { key: other.key, ..one.clone() }, &names).is_err());
        assert!(check(&Pair { certificate: "none".into(), ..one }, &names).is_err());
    }

    #[test]
    fn the_bundle_is_written_once_and_nothing_else_is() {
        crate::server::install_crypto_provider();
        let [first, second] = [new_authority().unwrap(), new_authority().unwrap()];
        let object = |bundles: [Value; 2]| -> DynamicObject {
            serde_json::from_value(json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "c", "resourceVersion": "7"},
                "webhooks": bundles.map(|bundle| json!({"clientConfig": {"caBundle": bundle}}))}))
            .unwrap()
        };
        let bundle = |pairs: &[&Pair]| {
            json!(STANDARD.encode(pairs.iter().map(|pair| pair.certificate.trim().to_owned() + "\n").collect::<String>()))
        };
        let patch = |bundles, authority| bundle_patch(&object(bundles), authority, 0);
        assert_eq!(patch([bundle(&[&first]), bundle(&[&second, &first])], &first), None);
        assert_eq!(
            patch([bundle(&[&first]), Value::Null], &second),
            Some(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle(&[&first, &second])},
                {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": bundle(&[&second])},
            ]))
        );
    }

    #[test]
    fn a_bundle_stays_short_and_loses_what_has_ended() {
        crate::server::install_crypto_provider();
        let all: Vec<String> = (0..5).map(|_| new_authority().unwrap().certificate).collect();
        let bundle = all.iter().fold(String::new(), |bundle, authority| with_authority(&bundle, authority, 0));
        assert_eq!(pem_blocks(&bundle), all[2..].iter().map(|pem| pem.trim()).collect::<Vec<_>>());
        let in_eleven_years = OffsetDateTime::now_utc().unix_timestamp() + 11 * 366 * 86_400;
        assert_eq!(pem_blocks(&with_authority(&bundle, &all[0], in_eleven_years)), [all[0].trim()]);
        assert_eq!(pem_blocks(&with_authority("no certificate", &all[0], 0)), [all[0].trim()]);
    }
}
