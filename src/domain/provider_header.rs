//! Headers that a credential adds to calls of a model provider, and the one that has its key.
//!
//! Validated where a credential is stored; sent by `model`. Pure: rules and their error messages.

use std::collections::BTreeMap;

use crate::base::limit::{PROVIDER_HEADER_NAME_BYTES_MAX, PROVIDER_HEADER_VALUE_BYTES_MAX};

/// Headers that the client sets or that the connection needs.
const RESERVED: [&str; 13] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Returns the header that has the key of a provider, unless its credential names another one.
pub(crate) fn default_key_header(provider: &str) -> &'static str {
    if provider == "anthropic" { "x-api-key" } else { "authorization" }
}

/// Returns a name in lower case.
///
/// # Errors
/// The reason why no header may have this name.
pub(crate) fn header_name(name: &str) -> Result<String, String> {
    let lower = name.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if lower.is_empty() || lower.len() > PROVIDER_HEADER_NAME_BYTES_MAX || !lower.bytes().all(is_token) {
        return Err(format!(
            "the name of a header must have 1 to {PROVIDER_HEADER_NAME_BYTES_MAX} of the characters A-Z, a-z, 0-9, - and _"
        ));
    }
    if RESERVED.contains(&lower.as_str()) || lower.starts_with("proxy-") {
        return Err(format!("the header `{lower}` is set by the service"));
    }
    Ok(lower)
}

/// Returns the headers of a credential whose key is in `key_header`, their names in lower case.
///
/// # Errors
/// The name of the header as it was given, and the reason why it is refused.
pub(crate) fn provider_headers(
    headers: BTreeMap<String, String>,
    key_header: &str,
) -> Result<BTreeMap<String, String>, (String, String)> {
    let mut all = BTreeMap::new();
    for (given, value) in headers {
        let name = header_name(&given).map_err(|reason| (given.clone(), reason))?;
        let is_value = (1..=PROVIDER_HEADER_VALUE_BYTES_MAX).contains(&value.len())
            && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
            && value.trim() == value;
        let reason = match () {
            () if !is_value => {
                format!(
                    "its value must have 1 to {PROVIDER_HEADER_VALUE_BYTES_MAX} printable ASCII characters, and no \
                     space at its ends"
                )
            }
            () if name == key_header => format!("the header `{name}` has the key"),
            () if all.contains_key(&name) => format!("the header `{name}` is given twice"),
            () => {
                all.insert(name, value);
                continue;
            }
        };
        return Err((given, reason));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&str, &str)]) -> Result<Vec<String>, (String, String)> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        provider_headers(headers, "x-api-key").map(|all| all.into_keys().collect())
    }

    #[test]
    fn a_name_is_stored_in_lower_case_and_once() {
        assert_eq!(
            of(&[("Anthropic-Beta", "a,b"), ("x-team", "blue")]),
            Ok(vec!["anthropic-beta".into(), "x-team".into()])
        );
        assert!(of(&[("X-Team", "a"), ("x-team", "b")]).is_err());
    }

    #[test]
    fn a_header_of_the_service_the_key_and_a_value_that_ends_a_line_are_refused() {
        for name in ["host", "Content-Length", "X-API-Key", "Proxy-Authorization", "", "a b", "ä"] {
            assert!(of(&[(name, "x")]).is_err(), "{name}");
        }
        for value in ["", " a", "a\r\nx: y", "ä", &"x".repeat(4_097)] {
            assert!(of(&[("x-team", value)]).is_err(), "{value}");
        }
    }
}
