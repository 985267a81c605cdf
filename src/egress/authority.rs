//! Certificate authority of one sandbox, and the certificates that it signs.
//!
//! Opened by `lifecycle` with the sandbox's egress socket; called by `proxy` when it terminates TLS. The key
//! is stored in a directory of the service beside the sandbox: a worker that takes over the sandbox must sign
//! with the same key, because running programs have read its certificate. The sandbox sees only the
//! certificate.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

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

/// File with the key and the certificate.
const FILE: &str = "authority.pem";
/// Validity starts this much earlier, because a sandbox's clock may be behind.
const BACKDATED: Duration = Duration::from_secs(3_600);

impl Authority {
    /// Opens the authority of this directory, or creates it.
    pub fn open(directory: &Path, origin: &Origin) -> io::Result<Self> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = make(origin).map_err(io::Error::other)?;
                write_atomically(&path, &made)?;
                made
            }
            Err(error) => return Err(error),
        };
        let (key, certificate) = text
            .find("-----BEGIN CERTIFICATE-----")
            .map(|at| text.split_at(at))
            .ok_or_else(|| io::Error::other("the authority's file contains no certificate"))?;
        let key = KeyPair::from_pem(key).map_err(io::Error::other)?;
        let issuer = Issuer::new(authority_params(origin.now()).map_err(io::Error::other)?, key);
        Ok(Self {
            issuer,
            certificate: certificate.to_owned(),
            leaves: Mutex::default(),
            origin: origin.clone(),
        })
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

/// Creates a key and its certificate in the format of the file.
fn make(origin: &Origin) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(origin.now())?.self_signed(&key)?;
    Ok(key.serialize_pem() + &certificate.pem())
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

/// Writes a temporary file and renames it, so that a reader sees all of it or nothing.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    fs::rename(beside, path)
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
    use super::*;

    #[test]
    fn a_second_worker_signs_with_the_same_authority() {
        let directory = tempfile::tempdir().unwrap();
        let origin = Origin::system();
        let first = Authority::open(directory.path(), &origin).unwrap();
        let second = Authority::open(directory.path(), &origin).unwrap();
        assert_eq!(first.certificate, second.certificate);
        let bundle = String::from_utf8(second.bundle(&[])).unwrap();
        assert!(bundle.ends_with(&first.certificate) && bundle.matches("BEGIN").count() > 50);
        assert!(!bundle.contains("PRIVATE KEY"));
        assert!(second.server("a.example").is_ok());
    }
}
