//! Secrets and their placeholders: injection into requests, removal from responses.
//!
//! Called by `exchange` for hosts that a secret is bound to. A sandbox never holds a secret's value. Any
//! other credential that it sends to such a host is dropped; otherwise a sandbox could send data to a foreign
//! login at an allowed host.

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE},
};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE};

use super::{decision::Reason, scrub::Scrub};
use crate::{
    base::{ExposeSecret, SecretString},
    domain::network::{HostPattern, SecretPlacement},
};

/// A value that is hidden from the sandbox, and its placeholder.
#[derive(Clone, Debug)]
pub struct Secret {
    /// Name in the environment.
    pub name: String,
    /// Placeholder in the sandbox; unique to the session, plain ASCII.
    pub placeholder: String,
    pub value: SecretString,
    /// Hosts to which the value may be sent.
    pub hosts: Vec<HostPattern>,
    /// Places of a request in which the placeholder may stand.
    pub placement: SecretPlacement,
}

/// The secrets of one session.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Vec<Secret>);

/// Result of an injection into one request.
#[derive(Debug, Default)]
pub struct Injected {
    /// Names of the injected secrets, without duplicates.
    pub names: Vec<String>,
    /// Removes secrets from the response.
    pub scrub: Scrub,
}

/// Parts of names of headers and parameters that carry credentials.
const CREDENTIAL_NAME_PARTS: [&str; 12] = [
    "auth",
    "token",
    "api-key",
    "apikey",
    "secret",
    "cookie",
    "credential",
    "password",
    "subscription-key",
    "access-key",
    "functions-key",
    "jwt",
];
/// Names of parameters that carry credentials.
const PARAMETERS: [&str; 6] = ["key", "api_key", "pwd", "pass", "sig", "signature"];

impl Secrets {
    pub fn new(secrets: Vec<Secret>) -> Self {
        Self(secrets)
    }

    /// Whether a secret is bound to this host.
    pub fn is_bound(&self, host: &str) -> bool {
        self.bound(host).next().is_some()
    }

    /// Replaces placeholders in headers and query, and drops every other credential. For hosts that a secret
    /// is bound to.
    ///
    /// # Errors
    /// A credential in the query that is not a placeholder: dropping it would change the request. A placeholder
    /// in another place than its secret names: a field of free text would show the value to whoever reads it.
    pub fn inject(
        &self,
        host: &str,
        headers: &mut HeaderMap,
        query: Option<&str>,
    ) -> Result<(Injected, Option<String>), Reason> {
        let mut used = Used { secrets: self.bound(host).collect(), names: Vec::new(), needles: Vec::new() };
        let mut kept = HeaderMap::with_capacity(headers.len());
        // A resource that shows the secret could be read in parts that do not have it.
        let is_bound = !used.secrets.is_empty();
        let is_of_part = |name: &HeaderName| is_bound && (name == RANGE || name == IF_RANGE);
        for (name, value) in headers.iter().filter(|(name, _)| !is_of_part(name)) {
            match used.replaced(name, value)? {
                Some(value) => {
                    kept.append(name, value);
                }
                None if is_credential(name) => {}
                None => {
                    kept.append(name, value.clone());
                }
            }
        }
        let query = query.map(|query| used.replaced_in_query(query)).transpose()?;
        *headers = kept;
        let Used { secrets, names, mut needles } = used;
        for secret in secrets {
            let value = secret.value.expose_secret();
            let stands = secret.placeholder.as_bytes();
            needles.push((value.as_bytes().to_vec(), stands.to_vec()));
            let json = serde_json::to_string(value).unwrap_or_default();
            let json = json.trim_matches('"').to_owned();
            let forms = [
                BASE64_STANDARD.encode(value),
                BASE64_URL_SAFE.encode(value),
                escaped(value),
                in_lower_case(&escaped(value)),
                json.replace('/', "\\/"),
                json,
            ];
            needles.extend(forms.map(|form| (form.into_bytes(), stands.to_vec())));
        }
        Ok((Injected { names, scrub: Scrub::new(needles) }, query))
    }

    fn bound<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Secret> {
        self.0.iter().filter(move |secret| secret.hosts.iter().any(|pattern| pattern.matches(host)))
    }
}

struct Used<'a> {
    secrets: Vec<&'a Secret>,
    names: Vec<String>,
    needles: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Used<'_> {
    /// The header's value with its secrets; `None` when it contains no placeholder.
    fn replaced(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<Option<HeaderValue>, Reason> {
        let Ok(text) = value.to_str() else { return Ok(None) };
        let allows = |placement: &SecretPlacement| placement.allows_header(name.as_str());
        if let Some(new) = self.replaced_in(text, allows, str::to_owned)? {
            // Beside another value, the host could read that one.
            if name == AUTHORIZATION && (text.split_whitespace().count() > 2 || text.contains(',')) {
                return Err(Reason::ForeignCredential);
            }
            return Ok(sensitive(&new));
        }
        // Basic authentication encodes user and password: `Basic base64(user:password)`.
        let basic = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let Some((_, coded)) = basic.filter(|_| name == AUTHORIZATION) else { return Ok(None) };
        let coded = coded.trim();
        let plain = BASE64_STANDARD.decode(coded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some(new) =
            plain.map(|plain| self.replaced_in(&plain, allows, str::to_owned)).transpose()?.flatten()
        else {
            return Ok(None);
        };
        let new = BASE64_STANDARD.encode(new);
        self.needles.push((new.clone().into_bytes(), coded.as_bytes().to_vec()));
        Ok(sensitive(&format!("Basic {new}")))
    }

    fn replaced_in_query(&mut self, query: &str) -> Result<String, Reason> {
        let mut parts = Vec::new();
        for part in query.split('&') {
            let name = part.split('=').next().unwrap_or_default();
            let new = self.replaced_in(part, |placement| placement.allows_parameter(name), escaped)?;
            // Some hosts also separate parameters by `;`, and all decode their names.
            let others = part.split(';').skip(usize::from(new.is_some()));
            if others.map(decoded_name).any(|name| is_credential_parameter(&name)) {
                return Err(Reason::ForeignCredential);
            }
            parts.push(new.unwrap_or_else(|| part.to_owned()));
        }
        Ok(parts.join("&"))
    }

    /// The text with the value of each placeholder; `None` when it contains none.
    fn replaced_in(
        &mut self,
        text: &str,
        allows: impl Fn(&SecretPlacement) -> bool,
        spelled: impl Fn(&str) -> String,
    ) -> Result<Option<String>, Reason> {
        let mut new = None;
        for secret in &self.secrets {
            if !text.contains(&secret.placeholder) {
                continue;
            }
            if !allows(&secret.placement) {
                return Err(Reason::SecretPlacement);
            }
            let value = spelled(secret.value.expose_secret());
            new = Some(new.as_deref().unwrap_or(text).replace(&secret.placeholder, &value));
            if !self.names.contains(&secret.name) {
                self.names.push(secret.name.clone());
            }
        }
        Ok(new)
    }
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn is_credential(name: &HeaderName) -> bool {
    is_credential_name(name.as_str())
}

fn is_credential_parameter(name: &str) -> bool {
    is_credential_name(name) || PARAMETERS.contains(&name)
}

fn is_credential_name(name: &str) -> bool {
    let name = name.replace('_', "-");
    CREDENTIAL_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Name of a parameter as its host reads it, in lower case.
fn decoded_name(parameter: &str) -> String {
    let mut pairs = url::form_urlencoded::parse(parameter.as_bytes());
    pairs.next().map(|(name, _)| name.to_ascii_lowercase()).unwrap_or_default()
}

/// A percent-encoded form with escapes in lower case.
fn in_lower_case(escaped: &str) -> String {
    let mut parts = escaped.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    let lower = |part: &str| {
        let (escape, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        format!("%{}{rest}", escape.to_ascii_lowercase())
    };
    first + &parts.map(lower).collect::<String>()
}

/// Percent-encoded form for a query.
fn escaped(value: &str) -> String {
    url::form_urlencoded::byte_serialize(value.as_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        placed(SecretPlacement { headers: vec!["authorization".to_owned()], query_parameters: Vec::new() })
    }

    fn placed(placement: SecretPlacement) -> Secrets {
        Secrets::new(vec![Secret {
            name: "TOKEN".to_owned(),
            placeholder: "sjph_1".to_owned(),
            value: "s3cret/value".to_owned().into(),
            hosts: vec![HostPattern::parse("api.example").unwrap()],
            placement,
        }])
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_placeholder_is_replaced_and_any_other_credential_dropped() {
        let mut headers = headers(&[
            ("authorization", "Bearer sjph_1"),
            ("x-api-key", "of-an-attacker"),
            ("x-goog-api-key", "of-an-attacker"),
            ("private-token", "of-an-attacker"),
            ("cookie", "session=of-an-attacker"),
            ("accept", "*/*"),
        ]);
        let (injected, query) = secrets().inject("api.example", &mut headers, Some("a=b")).unwrap();
        assert_eq!(injected.names, ["TOKEN"]);
        assert_eq!(query.as_deref(), Some("a=b"));
        assert_eq!(headers.get("authorization").unwrap(), "Bearer s3cret/value");
        assert_eq!(headers.get("accept").unwrap(), "*/*");
        assert_eq!(headers.len(), 2, "{headers:?}");
    }

    #[test]
    fn a_password_of_git_is_replaced_and_scrubbed() {
        let basic = |password: &str| format!("Basic {}", BASE64_STANDARD.encode(format!("git:{password}")));
        let mut sent = headers(&[("authorization", &basic("sjph_1"))]);
        let (injected, _) = secrets().inject("api.example", &mut sent, None).unwrap();
        assert_eq!(sent.get("authorization").unwrap(), &basic("s3cret/value"));
        let echoed = format!("you sent {} or s3cret/value", basic("s3cret/value"));
        let scrubbed = String::from_utf8(injected.scrub.whole(echoed.as_bytes())).unwrap();
        assert_eq!(scrubbed, format!("you sent {} or sjph_1", basic("sjph_1")));
        let mut foreign = headers(&[("authorization", &basic("of-an-attacker"))]);
        secrets().inject("api.example", &mut foreign, None).unwrap();
        assert!(foreign.is_empty());
    }

    #[test]
    fn a_query_takes_the_placeholder_and_no_other_key() {
        let placement = SecretPlacement { headers: Vec::new(), query_parameters: vec!["key".to_owned()] };
        let inject = |query| {
            let mut none = HeaderMap::new();
            placed(placement.clone()).inject("api.example", &mut none, Some(query)).map(|(_, new)| new)
        };
        assert_eq!(inject("key=sjph_1&q=x").unwrap().as_deref(), Some("key=s3cret%2Fvalue&q=x"));
        for foreign in [
            "key=mine",
            "q=x&access_token=mine",
            "API_KEY=mine",
            "sig=mine",
            "%6bey=mine",
            "a=b;key=mine",
            "k%65y=mine",
            "key=sjph_1;api_key=mine",
        ] {
            assert_eq!(inject(foreign).unwrap_err(), Reason::ForeignCredential, "{foreign}");
        }
    }

    #[test]
    fn a_value_beside_the_placeholder_is_refused_and_parts_are_not_asked_for() {
        for value in ["Bearer mine sjph_1", "Digest username=\"mine\", opaque=\"sjph_1\""] {
            let refused = secrets().inject("api.example", &mut headers(&[("authorization", value)]), None);
            assert_eq!(refused.unwrap_err(), Reason::ForeignCredential, "{value}");
        }
        let mut ranged = headers(&[("range", "bytes=0-3"), ("if-range", "x")]);
        let (injected, _) = secrets().inject("api.example", &mut ranged, None).unwrap();
        assert!(ranged.is_empty(), "{ranged:?}");
        let echoed = "s3cret%2fvalue s3cret\\/value czNjcmV0L3ZhbHVl";
        assert_eq!(injected.scrub.whole(echoed.as_bytes()), b"sjph_1 sjph_1 sjph_1");
    }

    #[test]
    fn a_placeholder_in_another_place_is_refused() {
        let refused = |lines: &[(&'static str, &str)], query| {
            secrets().inject("api.example", &mut headers(lines), query).unwrap_err()
        };
        // A field of free text of the same API is read by whoever the sandbox sends it to.
        for query in ["text=sjph_1", "sjph_1", "a=b&key=sjph_1", "sjph_1=x"] {
            assert_eq!(refused(&[], Some(query)), Reason::SecretPlacement, "{query}");
        }
        for name in ["x-api-key", "x-title", "user-agent", "referer"] {
            assert_eq!(refused(&[(name, "sjph_1")], None), Reason::SecretPlacement, "{name}");
        }
        let placement =
            SecretPlacement { headers: vec!["X-Api-Key".to_owned()], query_parameters: Vec::new() };
        let mut named = headers(&[("x-api-key", "sjph_1")]);
        placed(placement.clone()).inject("api.example", &mut named, None).unwrap();
        assert_eq!(named.get("x-api-key").unwrap(), "s3cret/value");
        let basic = format!("Basic {}", BASE64_STANDARD.encode("git:sjph_1"));
        let mut elsewhere = headers(&[("authorization", &basic)]);
        let refused = placed(placement).inject("api.example", &mut elsewhere, None);
        assert_eq!(refused.unwrap_err(), Reason::SecretPlacement);
    }

    #[test]
    fn a_secret_is_bound_to_its_hosts_alone() {
        assert!(secrets().is_bound("api.example"));
        for other in ["other.example", "x.api.example", "api.example.evil"] {
            assert!(!secrets().is_bound(other), "{other}");
        }
    }
}
