//! Certificate authority of one sandbox, and the certificates that it signs.
//!
//! Made by `lifecycle` with the sandbox's egress socket; called by `proxy` when it terminates TLS. The key is
//! derived from a secret and stored nowhere: a worker that takes over the sandbox signs with the same key,
//! because running programs have read its certificate. The sandbox and its node see only the certificate.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use p256::{SecretKey, pkcs8::EncodePrivateKey};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use sha2::{Digest, Sha256};

use crate::base::{
    Origin, Timestamp,
    limit::{EGRESS_CERTIFICATE_AGE, EGRESS_CERTIFICATES_MAX},
};

/// Certificate authority for hosts whose TLS is terminated by the proxy.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    leaves: Mutex<BTreeMap<String, Arc<ServerConfig>>>,
    origin: Origin,
}

/// Validity starts this much earlier, because a sandbox's clock may be behind.
const BACKDATED: Duration = Duration::from_secs(3_600);

impl Authority {
    /// The authority whose key is derived from `secret`.
    pub fn of(secret: &[u8; 32], origin: &Origin) -> Result<Self, rcgen::Error> {
        let key = key(secret)?;
        let params = authority_params(origin.now())?;
        let certificate = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, certificate, leaves: Mutex::default(), origin: origin.clone() })
    }

    /// CA bundle of the sandbox's programs: public roots, the operator's roots, this authority.
    pub fn bundle(&self, extra_roots: &[CertificateDer<'_>]) -> Vec<u8> {
        let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().chain(extra_roots);
        let mut bundle: String = roots.map(|root| pem(root)).collect();
        bundle.push_str(&self.certificate);
        bundle.into_bytes()
    }

    /// TLS server configuration for a host; signed on first use, then cached.
    pub fn server(&self, host: &str) -> Result<Arc<ServerConfig>, rcgen::Error> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = leaves.get(host) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(self.sign(host)?);
        if leaves.len() >= EGRESS_CERTIFICATES_MAX {
            leaves.pop_first();
        }
        leaves.insert(host.to_owned(), Arc::clone(&leaf));
        Ok(leaf)
    }

    fn sign(&self, host: &str) -> Result<ServerConfig, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = with_validity(CertificateParams::new(vec![host.to_owned()])?, self.origin.now());
        params.distinguished_name.push(DnType::CommonName, "sandbox egress");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a new key matches its certificate");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

/// The P-256 key of a secret: the first hash that is a private key, as all but one of 2^32 are.
fn key(secret: &[u8; 32]) -> Result<KeyPair, rcgen::Error> {
    let mut scalar = Sha256::digest(secret);
    let key = loop {
        match SecretKey::from_bytes(&scalar) {
            Ok(key) => break key,
            Err(_) => scalar = Sha256::digest(scalar),
        }
    };
    let der = key.to_pkcs8_der().map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
    KeyPair::try_from(der.as_bytes())
}

fn authority_params(now: Timestamp) -> Result<CertificateParams, rcgen::Error> {
    let mut params = with_validity(CertificateParams::new(Vec::new())?, now);
    params.distinguished_name.push(DnType::CommonName, "egress authority of one sandbox");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn with_validity(mut params: CertificateParams, now: Timestamp) -> CertificateParams {
    params.not_before = now - BACKDATED;
    params.not_after = now + EGRESS_CERTIFICATE_AGE;
    params
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let coded = BASE64_STANDARD.encode(certificate);
    let mut text = String::with_capacity(coded.len() + coded.len() / 64 + 60);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    for at in (0..coded.len()).step_by(64) {
        text.push_str(&coded[at..coded.len().min(at + 64)]);
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use std::mem;

    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConnection, pki_types::pem::PemObject,
    };

    use super::*;

    /// Whether a client that trusts `roots` accepts the certificate of `host` by `authority`.
    fn accepts(roots: &Authority, authority: &Authority, host: &'static str) -> bool {
        let mut trusted = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(roots.certificate.as_bytes()) {
            trusted.add(root.unwrap()).unwrap();
        }
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), host.try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(authority.server(host).unwrap()).unwrap();
        let mut bytes = Vec::new();
        while client.is_handshaking() {
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut mem::take(&mut bytes).as_slice()).unwrap();
            server.process_new_packets().unwrap();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut mem::take(&mut bytes).as_slice()).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[test]
    fn a_second_worker_signs_with_the_same_authority() {
        let origin = Origin::system();
        let authority = |secret: u8| Authority::of(&[secret; 32], &origin).unwrap();
        let (first, second, other) = (authority(1), authority(1), authority(2));
        assert!(accepts(&first, &second, "a.example"));
        assert!(!accepts(&first, &other, "a.example"));
        let bundle = String::from_utf8(second.bundle(&[])).unwrap();
        assert!(bundle.ends_with(&second.certificate) && bundle.matches("BEGIN").count() > 50);
        assert!(!bundle.contains("PRIVATE KEY"));
    }
}
