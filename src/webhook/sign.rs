//! Standard Webhooks 1.0.0: secrets, and signatures made with them.
//!
//! Called by `letter`, and by whoever stores a destination. The scheme is `v1`:
//! base64 of HMAC-SHA256 over `id.timestamp.body`
//! (github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md).

use std::fmt;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use zeroize::Zeroizing;

use crate::base::{
    ExposeSecret, Origin, SecretString, key::WEBHOOK_SECRET_PREFIX, limit::WEBHOOK_SECRET_BYTES_MAX,
    seal::mac,
};

/// What a destination's letters are signed with.
#[derive(Clone)]
pub struct Secret(SecretString);

/// Why a secret that a tenant brought is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a secret has 1 to {WEBHOOK_SECRET_BYTES_MAX} bytes beyond its {WEBHOOK_SECRET_PREFIX} prefix")]
pub struct SecretError;

impl Secret {
    /// A new secret of 256 random bits (the standard asks for 192 to 512).
    pub fn generate(origin: &Origin) -> Self {
        let bits = Zeroizing::new(origin.bytes::<32>());
        Self(format!("{WEBHOOK_SECRET_PREFIX}{}", STANDARD.encode(*bits)).into())
    }

    /// A secret that a tenant brought, in any form that [`Secret::key`] reads.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let bare = text.strip_prefix(WEBHOOK_SECRET_PREFIX).unwrap_or(text);
        if bare.is_empty() || bare.len() > WEBHOOK_SECRET_BYTES_MAX {
            return Err(SecretError);
        }
        Ok(Self(text.into()))
    }

    /// The secret as the tenant knows it: shown once, and sealed for storage.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The bytes of the HMAC key.
    ///
    /// What follows the prefix, when it is canonical base64 (padded or not), names
    /// the bytes. Anything else is a secret of the tenant's own making and is its
    /// own UTF-8, prefix included: so the published verifiers read it.
    fn key(&self) -> Zeroizing<Vec<u8>> {
        let text = self.expose();
        let bare = text.strip_prefix(WEBHOOK_SECRET_PREFIX).unwrap_or(text);
        let decoded = STANDARD.decode(bare).or_else(|_| STANDARD_NO_PAD.decode(bare));
        Zeroizing::new(decoded.unwrap_or_else(|_| text.as_bytes().to_vec()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The value of `webhook-signature`: one signature per secret, by spaces.
///
/// There are two secrets while one is being replaced; a receiver that knows
/// either accepts the letter. `timestamp` is in seconds since 1970.
pub fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    let signatures: Vec<_> =
        secrets.iter().map(|secret| format!("v1,{}", STANDARD.encode(mac(&secret.key(), &signed)))).collect();
    signatures.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::parse(text).expect("a secret")
    }

    #[test]
    fn a_generated_secret_reads_back() {
        let made = Secret::generate(&Origin::system());
        assert_eq!(made.expose().len(), "whsec_".len() + 44);
        assert_eq!(made.key().len(), 32);
        assert_eq!(secret(made.expose()).key(), made.key());
        assert_ne!(Secret::generate(&Origin::system()).key(), made.key());
        assert_eq!(format!("{made:?}"), "Secret");
    }

    #[test]
    fn only_canonical_base64_names_bytes() {
        for (text, key) in [
            ("whsec_YWI=", b"ab".as_slice()),
            ("whsec_YWI", b"ab"),
            ("YWI=", b"ab"),
            // The last character carries bits that no byte has.
            ("whsec_YWJ=", b"whsec_YWJ="),
            ("testsecret", b"testsecret"),
            ("whsec_testsecret", b"whsec_testsecret"),
            // Padding that is too long, too short, or on its own.
            ("whsec_YWI==", b"whsec_YWI=="),
            ("whsec_YQ=", b"whsec_YQ="),
            ("whsec_=", b"whsec_="),
            // The other alphabet, and space.
            ("whsec_--__", b"whsec_--__"),
            ("whsec_YW I=", b"whsec_YW I="),
            ("clé", "clé".as_bytes()),
        ] {
            assert_eq!(secret(text).key().as_slice(), key, "{text}");
        }
    }

    #[test]
    fn a_secret_is_neither_empty_nor_endless() {
        for text in ["", "whsec_", &"a".repeat(WEBHOOK_SECRET_BYTES_MAX + 1)] {
            assert_eq!(Secret::parse(text).err(), Some(SecretError));
        }
    }
}
