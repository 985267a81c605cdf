//! Encryption of secrets at rest, and key derivation.
//!
//! One master key per deployment wraps one data key per organization. The data key encrypts that
//! organization's secrets (AES-256-GCM) with the identity of the row as associated data, so that
//! ciphertexts cannot be swapped between rows.

use aes_gcm::{
    Aes256Gcm,
    aead::{Aead, KeyInit, Payload},
};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::Origin;

const NONCE_BYTES: usize = 12;
/// Associated data of the sealed pepper.
const PEPPER: &str = "pepper";

/// A ciphertext could not be decrypted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("sealed with another key, for another row, or damaged")]
pub struct OpenError;

/// A 256-bit data key that seals (encrypts) and opens (decrypts).
#[derive(Clone)]
pub struct DataKey(Zeroizing<[u8; 32]>);

/// The master key of the deployment and the keys derived from it.
#[derive(Clone)]
pub struct MasterKey {
    present: Zeroizing<[u8; 32]>,
    /// The previous key, while data keys are still wrapped by it.
    before: Option<Zeroizing<[u8; 32]>>,
    /// Key of the bearer-secret hashes, if it is not derived from `present`. Hashes cannot be
    /// recomputed, so the pepper outlives the key that it was derived from.
    pepper: Option<Zeroizing<[u8; 32]>>,
}

impl DataKey {
    /// Generates a random key.
    pub fn generate(origin: &Origin) -> Self {
        Self(Zeroizing::new(origin.bytes()))
    }

    /// Encrypts `plain`, bound to `context` (table, organization, row).
    pub fn seal(&self, plain: &[u8], context: &str, origin: &Origin) -> Vec<u8> {
        let nonce: [u8; NONCE_BYTES] = origin.bytes();
        let payload = Payload { msg: plain, aad: context.as_bytes() };
        let sealed =
            self.cipher().encrypt((&nonce).into(), payload).expect("AES-GCM seals anything below 64 GiB");
        [nonce.as_slice(), &sealed].concat()
    }

    /// Decrypts the output of [`DataKey::seal`] for the same `context`.
    pub fn open(&self, sealed: &[u8], context: &str) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let (nonce, body) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or(OpenError)?;
        let payload = Payload { msg: body, aad: context.as_bytes() };
        let plain = self.cipher().decrypt(nonce.into(), payload).map_err(|_| OpenError)?;
        Ok(Zeroizing::new(plain))
    }

    /// Derives a secret for one purpose, which reveals nothing about the key.
    pub fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(mac(&*self.0, format!("sojourn/{purpose}/1").as_bytes()))
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new((&*self.0).into())
    }
}

impl MasterKey {
    /// Generates a random key.
    pub fn generate(origin: &Origin) -> Self {
        Self::of(origin.bytes())
    }

    /// Parses 64 hexadecimal characters, or derives the key from a passphrase with SHA-256.
    ///
    /// Returns `None` for fewer than 32 characters: too weak.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let decoded = super::text::unhex(text).filter(|key| key.len() == 32);
        let key = match decoded {
            Some(bytes) => bytes.try_into().ok()?,
            None if text.len() >= 32 => Sha256::digest(text).into(),
            None => return None,
        };
        Some(Self::of(key))
    }

    /// Returns this key combined with the previous one, so that both can be opened.
    pub fn replacing(self, before: &Self) -> Self {
        Self { before: Some(before.present.clone()), ..self }
    }

    /// Returns the previous key, if any.
    pub fn before(&self) -> Option<Self> {
        self.before.as_ref().map(|key| Self { present: key.clone(), before: None, pepper: None })
    }

    /// Returns this key with the pepper that existing hashes were made with.
    pub fn with_pepper_of(self, pepper: &Self) -> Self {
        Self { pepper: Some(pepper.derive("pepper")), ..self }
    }

    /// Encrypts the pepper under this key, for the deployment's row.
    pub fn seal_pepper(&self, origin: &Origin) -> Vec<u8> {
        let pepper = self.pepper.clone().unwrap_or_else(|| self.derive("pepper"));
        DataKey(self.derive("wrap")).seal(&*pepper, PEPPER, origin)
    }

    /// Returns this key with the pepper from [`MasterKey::seal_pepper`].
    ///
    /// The pepper may be sealed under this key or under the previous one.
    pub fn open_pepper(self, sealed: &[u8]) -> Result<Self, OpenError> {
        let open = |key: &Self| DataKey(key.derive("wrap")).open(sealed, PEPPER);
        let plain = match (open(&self), self.before()) {
            (Err(_), Some(before)) => open(&before)?,
            (opened, _) => opened?,
        };
        let pepper: [u8; 32] = plain.as_slice().try_into().map_err(|_| OpenError)?;
        Ok(Self { pepper: Some(Zeroizing::new(pepper)), ..self })
    }

    /// Returns the 64 hexadecimal characters that [`MasterKey::parse`] reads.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(super::text::hex(&*self.present))
    }

    /// Returns a value by which two processes can compare their keys.
    pub fn check_value(&self) -> [u8; 32] {
        *self.derive("check")
    }

    /// Encrypts an organization's data key; `org` becomes associated data.
    pub fn wrap(&self, key: &DataKey, org: &str, origin: &Origin) -> Vec<u8> {
        DataKey(self.derive("wrap")).seal(&*key.0, org, origin)
    }

    /// Decrypts the output of [`MasterKey::wrap`], with this key or the previous one.
    pub fn unwrap(&self, wrapped: &[u8], org: &str) -> Result<DataKey, OpenError> {
        let open = |key: &Self| DataKey(key.derive("wrap")).open(wrapped, org);
        let plain = match (open(self), self.before()) {
            (Err(_), Some(before)) => open(&before)?,
            (opened, _) => opened?,
        };
        let bytes: [u8; 32] = plain.as_slice().try_into().map_err(|_| OpenError)?;
        Ok(DataKey(Zeroizing::new(bytes)))
    }

    /// Returns whether the present key alone opens `wrapped`.
    pub fn is_wrapped_by_present(&self, wrapped: &[u8], org: &str) -> bool {
        DataKey(self.derive("wrap")).open(wrapped, org).is_ok()
    }

    /// Returns the peppered hash under which a bearer secret is stored.
    pub fn fingerprint(&self, bearer: &str) -> [u8; 32] {
        match &self.pepper {
            Some(pepper) => mac(&**pepper, bearer.as_bytes()),
            None => mac(&*self.derive("pepper"), bearer.as_bytes()),
        }
    }

    /// Returns the secret from which the key of grants for node agents is made.
    pub fn grant_secret(&self) -> Zeroizing<[u8; 32]> {
        self.derive("node grants")
    }

    /// Returns a tag that binds a cursor to its organization and query.
    pub fn cursor_tag(&self, bound: &[u8]) -> [u8; 32] {
        mac(&*self.derive("cursor"), bound)
    }

    fn of(key: [u8; 32]) -> Self {
        Self { present: Zeroizing::new(key), before: None, pepper: None }
    }

    fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(mac(&*self.present, format!("sojourn/{purpose}/1").as_bytes()))
    }
}

/// HMAC-SHA256 (RFC 2104).
pub fn mac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac =
        <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// SHA-256 (FIPS 180-4).
pub fn sha256(message: &[u8]) -> [u8; 32] {
    Sha256::digest(message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_opens_only_in_its_own_row() {
        let origin = Origin::system();
        let master = MasterKey::generate(&origin);
        let wrapped = master.wrap(&DataKey::generate(&origin), "org_1", &origin);
        let key = master.unwrap(&wrapped, "org_1").expect("the same organization");
        let sealed = key.seal(b"sk-1", "credential/1", &origin);
        assert_eq!(key.open(&sealed, "credential/1").expect("the same row").as_slice(), b"sk-1");
        assert_eq!(key.open(&sealed, "credential/2"), Err(OpenError));
        assert!(master.unwrap(&wrapped, "org_2").is_err());
        assert!(MasterKey::generate(&origin).unwrap(&wrapped, "org_1").is_err());
    }

    #[test]
    fn a_master_key_is_replaced_without_a_secret_lost() {
        let origin = Origin::system();
        let (old, new) = (MasterKey::generate(&origin), MasterKey::generate(&origin));
        let data_key = DataKey::generate(&origin);
        let wrapped = old.wrap(&data_key, "org_1", &origin);
        let hash = old.fingerprint("sjk_1");
        let both = new.clone().replacing(&old).with_pepper_of(&old);
        assert!(both.unwrap(&wrapped, "org_1").is_ok() && !both.is_wrapped_by_present(&wrapped, "org_1"));
        assert_eq!(both.fingerprint("sjk_1"), hash, "hashes stay as they were");
        let again = both.wrap(&both.unwrap(&wrapped, "org_1").expect("either opens it"), "org_1", &origin);
        let pepper = both.seal_pepper(&origin);
        let alone = new.open_pepper(&pepper).expect("sealed under it");
        assert!(alone.is_wrapped_by_present(&again, "org_1") && alone.unwrap(&wrapped, "org_1").is_err());
        assert_eq!(alone.fingerprint("sjk_1"), hash);
        assert!(old.open_pepper(&pepper).is_err());
    }

    #[test]
    fn a_master_key_reads_back_from_its_spelling() {
        let master = MasterKey::generate(&Origin::system());
        let again = MasterKey::parse(&master.to_hex()).expect("64 hexadecimal characters");
        assert_eq!(again.check_value(), master.check_value());
        assert!(MasterKey::parse("too short").is_none());
    }
}
