//! Egress grant for one clone: read access to one repository while git runs.
//!
//! Created by `lifecycle` around the clone of a source; checked by `proxy` and `exchange`. A granted request
//! needs no rule of the environment, but must carry the grant's proof. The credential is injected here, so
//! the sandbox never has it. The status of the responses is stored, because git's own messages are written
//! for people, not for parsing.

use std::sync::{Arc, Mutex, PoisonError};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Method, StatusCode,
    body::Frame,
    header::{ACCEPT_ENCODING, AUTHORIZATION, COOKIE, HeaderMap, HeaderValue},
    http::request,
};
use url::Url;

use super::{
    message::{Body, BoxError, Target},
    scrub::Scrub,
};
use crate::base::{ExposeSecret, SecretString};

/// Header with which git proves that a request belongs to the clone.
pub const PROOF_HEADER: &str = "x-sojourn-source";

/// Requests that a clone may make.
#[derive(Debug)]
pub struct Grant {
    /// Canonical host name.
    pub host: String,
    pub port: u16,
    /// Path of the repository, without a trailing `.git`.
    pub path: String,
    /// Secret value of `PROOF_HEADER`; only the clone has it.
    pub proof: String,
    /// Credential id for the log, and the credential: a token, or `user:password`.
    pub credential: Option<(String, SecretString)>,
    /// Maximum size of the responses in bytes.
    pub bytes_max: u64,
    pub seen: Mutex<Seen>,
}

/// Responses of the host to a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Status of the last response.
    pub status: Option<StatusCode>,
    /// Total size of the responses in bytes.
    pub bytes: u64,
    /// Whether the responses exceeded `bytes_max`.
    pub is_too_large: bool,
    /// Reason why the last response is missing or incomplete.
    pub broken: Option<String>,
}

impl Grant {
    pub(super) fn covers(&self, target: &Target, parts: &request::Parts, url: &Url) -> bool {
        let shown = parts.headers.get(PROOF_HEADER).is_some_and(|shown| *shown == self.proof);
        if !shown || !target.tls || target.host != self.host || target.port != self.port {
            return false;
        }
        let Some(rest) = url.path().strip_prefix(self.path.as_str()) else { return false };
        let service = rest.strip_prefix(".git").unwrap_or(rest);
        match (&parts.method, service) {
            (&Method::GET, "/info/refs") => url.query() == Some("service=git-upload-pack"),
            (&Method::POST, "/git-upload-pack") => url.query().is_none(),
            _ => false,
        }
    }

    /// Replaces all credentials in the headers by the grant's. Returns the credential's id, and a scrubber
    /// for the response.
    pub(super) fn inject(&self, headers: &mut HeaderMap) -> (Option<String>, Option<Scrub>) {
        for name in [PROOF_HEADER, AUTHORIZATION.as_str(), COOKIE.as_str()] {
            headers.remove(name);
        }
        let Some((name, secret)) = &self.credential else { return (None, None) };
        let secret = secret.expose_secret();
        let pair = match secret.contains(':') {
            true => secret.to_owned(),
            // Any user name works with a token; GitHub's own tools send this one.
            false => format!("x-access-token:{secret}"),
        };
        let coded = BASE64_STANDARD.encode(&pair);
        if let Ok(mut value) = HeaderValue::from_str(&format!("Basic {coded}")) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let password = pair.split_once(':').map_or("", |(_, password)| password).to_owned();
        let escaped: String = url::form_urlencoded::byte_serialize(password.as_bytes()).collect();
        let stands = self.proof.as_bytes();
        let needles = [coded, secret.to_owned(), BASE64_STANDARD.encode(&password), password, escaped];
        let needles = needles.into_iter().map(|needle| (needle.into_bytes(), stands.to_vec()));
        (Some(name.clone()), Some(Scrub::new(needles.collect())))
    }

    pub(super) fn answered(&self, status: StatusCode) {
        let mut seen = self.seen();
        seen.status = Some(status);
        seen.broken = None;
    }

    pub(super) fn broke_off(&self, reason: &dyn std::fmt::Display) {
        self.seen().broken = Some(reason.to_string());
    }

    /// The response body; fails once it exceeds the grant's limit.
    pub(super) fn counted(self: Arc<Self>, body: Body) -> Body {
        let pieces = stream::unfold((Some(body), self), |(body, grant)| async move {
            let mut body = body?;
            let piece = match body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) if grant.count(data.len() as u64) => Ok(Frame::data(data)),
                    Ok(_) => Err(BoxError::from("the repository exceeds the size limit of a clone")),
                    // Trailers: git needs none.
                    Err(_) => return None,
                },
                Err(error) => {
                    grant.broke_off(&error);
                    Err(error)
                }
            };
            let rest = piece.is_ok().then_some(body);
            Some((piece, (rest, grant)))
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    /// Counts received bytes; false when the limit is exceeded.
    fn count(&self, bytes: u64) -> bool {
        let mut seen = self.seen();
        seen.bytes += bytes;
        seen.is_too_large |= seen.bytes > self.bytes_max;
        !seen.is_too_large
    }

    pub(super) fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn grant() -> Grant {
        Grant {
            host: "git.example".to_owned(),
            port: 443,
            path: "/acme/app".to_owned(),
            proof: "proof".to_owned(),
            credential: Some(("cred_1".to_owned(), "a-token".to_owned().into())),
            bytes_max: 10,
            seen: Mutex::default(),
        }
    }

    fn covers(host: &str, port: u16, tls: bool, asked: (&str, &str), proof: Option<&str>) -> bool {
        let (method, path) = asked;
        let url: Url = format!("https://{host}:{port}{path}").parse().unwrap();
        let mut request = Request::builder().method(method).uri(path);
        if let Some(proof) = proof {
            request = request.header(PROOF_HEADER, proof);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        grant().covers(&Target { host: host.to_owned(), port, tls }, &parts, &url)
    }

    #[test]
    fn a_grant_is_for_reading_one_repository() {
        let (refs, pack) = ("/info/refs?service=git-upload-pack", "/git-upload-pack");
        let at = |method: &'static str, path: &str| {
            covers("git.example", 443, true, (method, path), Some("proof"))
        };
        for repository in ["/acme/app", "/acme/app.git"] {
            assert!(at("GET", &format!("{repository}{refs}")));
            assert!(at("POST", &format!("{repository}{pack}")));
            assert!(!at("POST", &format!("{repository}/git-receive-pack")));
            assert!(!at("GET", &format!("{repository}/info/refs?service=git-receive-pack")));
            assert!(!at("GET", &format!("{repository}{refs}&x=y")));
            assert!(!at("GET", &format!("{repository}/info/refs")));
            assert!(!at("GET", repository));
        }
        for other in ["/acme/app2", "/acme/app.git.git", "/acme", "/acme/app/../other", "/evil/acme/app"] {
            assert!(!at("GET", &format!("{other}{refs}")), "{other}");
        }
        let path = format!("/acme/app{refs}");
        assert!(!covers("other.example", 443, true, ("GET", &path), Some("proof")));
        assert!(!covers("git.example", 444, true, ("GET", &path), Some("proof")));
        assert!(!covers("git.example", 443, false, ("GET", &path), Some("proof")));
        for proof in [None, Some(""), Some("guess")] {
            assert!(!covers("git.example", 443, true, ("GET", &path), proof));
        }
    }

    #[test]
    fn the_credential_takes_the_place_of_the_proof() {
        let mut headers = HeaderMap::new();
        headers.insert(PROOF_HEADER, "proof".parse().unwrap());
        headers.insert(AUTHORIZATION, "Bearer of-somebody".parse().unwrap());
        let (name, scrub) = grant().inject(&mut headers);
        let coded = BASE64_STANDARD.encode("x-access-token:a-token");
        assert_eq!(name.as_deref(), Some("cred_1"));
        assert_eq!(headers[AUTHORIZATION], format!("Basic {coded}"));
        assert_eq!(headers[AUTHORIZATION], format!("Basic {coded}"));
        assert!(!headers.contains_key(PROOF_HEADER));
        let echoed = format!("you sent {coded}, a-token");
        assert_eq!(scrub.unwrap().whole(echoed.as_bytes()), b"you sent proof, proof");
        let without = Grant { credential: None, ..grant() };
        headers.insert(PROOF_HEADER, "proof".parse().unwrap());
        assert_eq!(without.inject(&mut headers).0, None);
        assert!(!headers.contains_key(AUTHORIZATION) && !headers.contains_key(PROOF_HEADER));
    }

    #[test]
    fn responses_beyond_the_limit_are_refused() {
        let grant = grant();
        assert!(grant.count(10));
        assert!(!grant.count(1));
        assert!(grant.seen().is_too_large);
    }
}
