//! Standard Webhooks 1.0.0: secrets and signatures.
//!
//! Called by `signed_request`, by handlers that store secrets, by inbound triggers and by `cli`.
//! The scheme is `v1`: base64 of HMAC-SHA256 over `id.timestamp.body`
//! (github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md).

use std::fmt;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

use crate::base::{
    ExposeSecret, Origin, SecretString,
    key::WEBHOOK_SECRET_PREFIX,
    limit::{WEBHOOK_SECRET_BYTES_MAX, WEBHOOK_TOLERANCE_SECONDS},
    seal::mac,
    text::hex,
};

/// Signing secret of a destination or a trigger.
#[derive(Clone)]
pub struct Secret(SecretString);

/// Maximum number of signatures checked per message; a rotation uses two.
const SIGNATURES_MAX: usize = 8;

/// A secret provided by an organization has an invalid length.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a secret must have 1 to {WEBHOOK_SECRET_BYTES_MAX} bytes after its {WEBHOOK_SECRET_PREFIX} prefix")]
pub struct SecretError;

impl Secret {
    /// Generates a secret of 256 random bits (the standard requires 192 to 512).
    pub fn generate(origin: &Origin) -> Self {
        let bits = Zeroizing::new(origin.bytes::<32>());
        Self(format!("{WEBHOOK_SECRET_PREFIX}{}", STANDARD.encode(*bits)).into())
    }

    /// Accepts a secret provided by an organization, in any form that [`Secret::key`] reads.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let bare = text.strip_prefix(WEBHOOK_SECRET_PREFIX).unwrap_or(text);
        if bare.is_empty() || bare.len() > WEBHOOK_SECRET_BYTES_MAX {
            return Err(SecretError);
        }
        Ok(Self(text.into()))
    }

    /// Returns the secret as text, to be shown once or sealed for storage.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Returns the bytes of the HMAC key.
    ///
    /// If the text after the prefix is canonical base64, padded or not, the key is its decoded bytes.
    /// Otherwise the key is the UTF-8 of the whole text, including the prefix. The published verifiers
    /// use the same rule.
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

/// Builds the value of `webhook-signature`: one signature per secret, separated by spaces.
///
/// There are two secrets during a rotation; a receiver that knows either one accepts the delivery.
/// `timestamp` is in seconds since 1970.
pub fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    let signatures: Vec<_> =
        secrets.iter().map(|secret| format!("v1,{}", STANDARD.encode(mac(&secret.key(), &signed)))).collect();
    signatures.join(" ")
}

/// Whether a signature in `webhook-signature` was made with one of the secrets. Every pair is compared,
/// so that the duration reveals nothing.
pub fn is_signed(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8], signatures: &str) -> bool {
    let mut found = Choice::from(0);
    for secret in secrets {
        let expected = sign(std::slice::from_ref(secret), id, timestamp, body);
        for given in signatures.split(' ').take(SIGNATURES_MAX) {
            found |= expected.as_bytes().ct_eq(given.as_bytes());
        }
    }
    found.into()
}

/// Whether an `X-Hub-Signature-256` was made with one of the secrets: HMAC-SHA256 of the body alone, with
/// the secret's text as key (docs.github.com, "Validating webhook deliveries").
pub fn verify_github(secrets: &[Secret], body: &[u8], signature: &str) -> bool {
    let mut found = Choice::from(0);
    for secret in secrets {
        let expected = format!("sha256={}", hex(&mac(secret.expose().as_bytes(), body)));
        found |= expected.as_bytes().ct_eq(signature.as_bytes());
    }
    found.into()
}

/// Reason for rejecting a received delivery.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    #[error("the signature was not made with this secret")]
    Signature,
    #[error(
        "the timestamp is more than {WEBHOOK_TOLERANCE_SECONDS} s off: a replayed delivery or a wrong clock"
    )]
    Time,
    #[error("the body is too large, truncated, or not JSON")]
    Body,
}

/// Verifies that a delivery was signed with `secret`, and recently. `now` is in seconds since 1970.
///
/// # Errors
/// `Signature` if the signature is invalid; `Time` if it is valid but its timestamp is too far from
/// `now`.
pub fn verify(
    secret: &Secret,
    id: &str,
    timestamp: &str,
    signature: &str,
    body: &[u8],
    now: i64,
) -> Result<(), Refused> {
    let signed_at: i64 = timestamp.parse().map_err(|_| Refused::Signature)?;
    if !is_signed(std::slice::from_ref(secret), id, signed_at, body, signature) {
        return Err(Refused::Signature);
    }
    if signed_at.abs_diff(now) > WEBHOOK_TOLERANCE_SECONDS.unsigned_abs() {
        Err(Refused::Time)
    } else {
        Ok(())
    }
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
            // The last character has bits that belong to no byte.
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

    #[test]
    fn a_message_is_known_by_any_of_its_signatures_and_any_secret() {
        let (old, new, other) = (secret("whsec_b2xk"), secret("whsec_bmV3"), secret("whsec_eHl6"));
        let both = sign(&[new.clone(), old.clone()], "msg_1", 7, b"body");
        for secrets in [vec![old.clone()], vec![new.clone()], vec![other.clone(), old.clone()]] {
            assert!(is_signed(&secrets, "msg_1", 7, b"body", &both));
        }
        assert!(
            !is_signed(&[other], "msg_1", 7, b"body", &both) && !is_signed(&[], "msg_1", 7, b"body", &both)
        );
        for (id, at, body) in [("msg_2", 7, b"body"), ("msg_1", 8, b"body"), ("msg_1", 7, b"Body")] {
            assert!(!is_signed(std::slice::from_ref(&new), id, at, body, &both));
        }
        for bad in ["", "v1,", "v1", &both[3..20]] {
            assert!(!is_signed(std::slice::from_ref(&new), "msg_1", 7, b"body", bad), "{bad}");
        }
    }

    #[test]
    fn github_signs_the_body_alone() {
        // The example of GitHub's documentation.
        let known = secret("It's a Secret to Everybody");
        let given = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert!(verify_github(&[secret("another"), known.clone()], b"Hello, World!", given));
        assert!(!verify_github(std::slice::from_ref(&known), b"Hello, World?", given));
        assert!(!verify_github(std::slice::from_ref(&known), b"Hello, World!", &given.to_uppercase()));
        assert!(!verify_github(&[known], b"Hello, World!", ""));
    }

    #[test]
    fn a_delivery_verifies_with_either_secret_and_only_for_a_while() {
        let (old, new) = (secret("whsec_b2xk"), secret("whsec_bmV3"));
        let signature = sign(&[new.clone(), old.clone()], "msg_1", 1_000, b"{}");
        for known in [&old, &new] {
            assert_eq!(verify(known, "msg_1", "1000", &signature, b"{}", 1_300), Ok(()));
            assert_eq!(verify(known, "msg_1", "1000", &signature, b"{}", 1_301), Err(Refused::Time));
        }
        for (known, id, timestamp, body) in [
            (&secret("whsec_eA=="), "msg_1", "1000", "{}"),
            (&old, "msg_2", "1000", "{}"),
            (&old, "msg_1", "1001", "{}"),
            (&old, "msg_1", "", "{}"),
            (&old, "msg_1", "1000", "{} "),
        ] {
            let verified = verify(known, id, timestamp, &signature, body.as_bytes(), 1_000);
            assert_eq!(verified, Err(Refused::Signature), "{id} {timestamp} {body}");
        }
    }
}
