//! API keys and the other bearer secrets that this service issues.
//!
//! A key is `sjk_live_`, 32 base62 characters and 6 checksum characters (CRC-32 of the rest), so
//! that a secret scanner can recognize a leaked key offline. An invoke token has the same form with
//! the prefix `sji_`. Only a peppered hash is stored.

use super::Origin;

const PREFIX: &str = "sjk_live_";
const BODY_CHARS: usize = 32;
const CHECK_CHARS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Prefix of a session's client token.
pub const CLIENT_TOKEN_PREFIX: &str = "sjc_";
/// Prefix of an agent's invoke token.
pub const INVOKE_TOKEN_PREFIX: &str = "sji_";
/// Prefix of a webhook secret (Standard Webhooks 1.0.0).
pub const WEBHOOK_SECRET_PREFIX: &str = "whsec_";

/// Generates an API key with about 190 random bits.
pub fn generate(origin: &Origin) -> String {
    checked(PREFIX, origin)
}

/// Generates an invoke token with about 190 random bits.
pub fn generate_invoke_token(origin: &Origin) -> String {
    checked(INVOKE_TOKEN_PREFIX, origin)
}

/// Generates a client token with about 238 random bits.
pub fn generate_client_token(origin: &Origin) -> String {
    format!("{CLIENT_TOKEN_PREFIX}{}", base62(origin, 40))
}

/// Verifies the checksum of a string that has the prefix of our keys or invoke tokens.
///
/// Returns `None` for a string without these prefixes, such as a bootstrap key that the operator
/// chose.
pub fn verify_check(key: &str) -> Option<bool> {
    let body = key.strip_prefix(PREFIX).or_else(|| key.strip_prefix(INVOKE_TOKEN_PREFIX))?;
    if body.len() != BODY_CHARS + CHECK_CHARS || !body.is_ascii() {
        return Some(false);
    }
    let (checked, given) = key.split_at(key.len() - CHECK_CHARS);
    Some(check(checked) == given)
}

/// Returns the last 4 characters of a key, which may be shown to identify it.
pub fn hint(key: &str) -> String {
    let tail = key.char_indices().rev().nth(3).map_or(0, |(index, _)| index);
    key[tail..].to_owned()
}

fn checked(prefix: &str, origin: &Origin) -> String {
    let mut key = format!("{prefix}{}", base62(origin, BODY_CHARS));
    key.push_str(&check(&key));
    key
}

fn base62(origin: &Origin, chars: usize) -> String {
    let mut out = String::with_capacity(chars);
    while out.len() < chars {
        // 248 is the largest multiple of 62 below 256. Rejecting higher bytes keeps every character
        // equally likely.
        let bytes: [u8; 32] = origin.bytes();
        let fair = bytes.iter().filter(|&&byte| byte < 248).take(chars - out.len());
        out.extend(fair.map(|byte| BASE62[(byte % 62) as usize] as char));
    }
    out
}

fn check(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes());
    let mut out = [b'0'; CHECK_CHARS];
    for slot in out.iter_mut().rev() {
        *slot = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_checks_itself() {
        let key = generate(&Origin::system());
        assert_eq!(key.len(), 9 + 32 + 6);
        assert_eq!(verify_check(&key), Some(true));
        let last = if key.ends_with('0') { '1' } else { '0' };
        let forged = format!("{}{last}", &key[..key.len() - 1]);
        assert_eq!(verify_check(&forged), Some(false));
        assert_eq!(verify_check("an operator's own key"), None);
        assert_eq!(hint("abcdefgh"), "efgh");
    }
}
