//! API keys and the other bearer secrets that this service hands out.
//!
//! A key is `sjk_live_`, 32 base62 characters and six more that check the rest
//! (CRC-32), so that a scanner can tell a leaked key from noise without asking
//! us. Only a peppered hash is stored.

use super::Origin;

const PREFIX: &str = "sjk_live_";
const BODY_CHARS: usize = 32;
const CHECK_CHARS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Prefix of a session's client token.
pub const CLIENT_TOKEN_PREFIX: &str = "sjc_";
/// Prefix of a webhook secret (Standard Webhooks 1.0.0).
pub const WEBHOOK_SECRET_PREFIX: &str = "whsec_";

/// A new API key of about 190 random bits.
pub fn generate(origin: &Origin) -> String {
    let body = base62(origin, BODY_CHARS);
    let mut key = format!("{PREFIX}{body}");
    key.push_str(&check(&key));
    key
}

/// A new client token of about 238 random bits.
pub fn generate_client_token(origin: &Origin) -> String {
    format!("{CLIENT_TOKEN_PREFIX}{}", base62(origin, 40))
}

/// Whether a string that claims to be one of our keys has the right check.
///
/// `None` for a string of any other form, such as an operator's own bootstrap key.
pub fn verify_check(key: &str) -> Option<bool> {
    let body = key.strip_prefix(PREFIX)?;
    if body.len() != BODY_CHARS + CHECK_CHARS || !body.is_ascii() {
        return Some(false);
    }
    let (checked, given) = key.split_at(key.len() - CHECK_CHARS);
    Some(check(checked) == given)
}

/// The part of a key that may be shown again, to tell keys apart.
pub fn hint(key: &str) -> String {
    let tail = key.char_indices().rev().nth(3).map_or(0, |(index, _)| index);
    key[tail..].to_owned()
}

fn base62(origin: &Origin, chars: usize) -> String {
    let mut out = String::with_capacity(chars);
    while out.len() < chars {
        // 248 is the largest multiple of 62 in a byte: rejecting the rest
        // keeps every character equally likely.
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
