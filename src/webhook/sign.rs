//! Standard Webhooks 1.0.0: secrets, and signatures made with them.
//!
//! Called by `delivery`, and by whoever stores a destination. The scheme is `v1`:
//! base64 of HMAC-SHA256 over `id.timestamp.body`
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

/// What a destination's deliveries are signed with.
#[derive(Clone)]
pub struct Secret(SecretString);

/// Signatures of one message that are looked at: there are two during a rotation.
const SIGNATURES_MAX: usize = 8;

/// Why a secret that an organization brought is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a secret has 1 to {WEBHOOK_SECRET_BYTES_MAX} bytes beyond its {WEBHOOK_SECRET_PREFIX} prefix")]
pub struct SecretError;

impl Secret {
    /// A new secret of 256 random bits (the standard asks for 192 to 512).
    pub fn generate(origin: &Origin) -> Self {
        let bits = Zeroizing::new(origin.bytes::<32>());
        Self(format!("{WEBHOOK_SECRET_PREFIX}{}", STANDARD.encode(*bits)).into())
    }

    /// A secret that an organization brought, in any form that [`Secret::key`] reads.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let bare = text.strip_prefix(WEBHOOK_SECRET_PREFIX).unwrap_or(text);
        if bare.is_empty() || bare.len() > WEBHOOK_SECRET_BYTES_MAX {
            return Err(SecretError);
        }
        Ok(Self(text.into()))
    }

    /// The secret as the organization knows it: shown once, and sealed for storage.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The bytes of the HMAC key.
    ///
    /// What follows the prefix, when it is canonical base64 (padded or not), names
    /// the bytes. Anything else is a secret of the organization's own making and is its
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
/// either accepts the delivery. `timestamp` is in seconds since 1970.
pub fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    let signatures: Vec<_> =
        secrets.iter().map(|secret| format!("v1,{}", STANDARD.encode(mac(&secret.key(), &signed)))).collect();
    signatures.join(" ")
}

/// Whether one of the signatures in a `webhook-signature` was made with one of the
/// secrets. Every pair is looked at, so the time it takes tells nothing.
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

/// Whether an `X-Hub-Signature-256` was made with one of the secrets: HMAC-SHA256 of the
/// body alone, under the secret as text
/// (docs.github.com, "Validating webhook deliveries").
pub fn verify_github(secrets: &[Secret], body: &[u8], signature: &str) -> bool {
    let mut found = Choice::from(0);
    for secret in secrets {
        let expected = format!("sha256={}", hex(&mac(secret.expose().as_bytes(), body)));
        found |= expected.as_bytes().ct_eq(signature.as_bytes());
    }
    found.into()
}

/// Why a delivery is not believed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    #[error("its signature is not made with this secret")]
    Signature,
    #[error(
        "its time is more than {WEBHOOK_TOLERANCE_SECONDS} s from now: an old delivery sent again, or a clock that is wrong"
    )]
    Time,
    #[error("its body is too large, was cut, or is no JSON")]
    Body,
}

/// Whether a delivery was signed with `secret`, and lately. `now` is in seconds since 1970.
///
/// # Errors
/// `Signature`, or `Time` for one that is good and too far from `now`.
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
    fn a_letter_is_believed_with_either_secret_and_only_for_a_while() {
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
