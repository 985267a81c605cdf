//! One request of a sandbox and its response: authorized, rewritten where needed, forwarded.
//!
//! Called by `proxy` for every request that is not a tunnel, and by `fetch`; calls the policy, the secrets,
//! the ledger and `net`. The forwarded request is exactly the authorized one: the path in its normal form,
//! the host of the connection, the vetted addresses.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    client::conn::http1,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderValue},
    http::request,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;
use url::Url;

use super::{
    decision::{Decision, Reason, Verdict},
    grant::Grant,
    headers,
    message::{Body, BoxError, Refusal, Target},
    policy::Addresses,
    proxy::Proxy,
    scrub::Scrub,
    secret::Injected,
};
use crate::{
    base::limit::{EGRESS_RESPONSE_TIMEOUT, NET_CONNECT_TIMEOUT},
    net::Route,
};

/// An authorized request.
struct AuthorizedRequest {
    request: Request<Body>,
    way: Route,
    /// Removes secrets from the response; `None` for a host without a secret.
    scrub: Option<Scrub>,
    secrets: Vec<String>,
    /// Clone grant that allows the request, if any.
    grant: Option<Arc<Grant>>,
}

impl Proxy {
    /// Authorizes a request, sends it, and returns the response with secrets removed.
    pub(super) async fn exchange(
        &self,
        target: &Target,
        request: Request<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let method = request.method().to_string();
        let decided = |verdict| Decision {
            host: target.host.clone(),
            port: target.port,
            method: method.clone(),
            verdict,
        };
        let authorized = match self.authorize(target, request).await {
            Ok(authorized) => authorized,
            Err(reason) => return Err(self.refuse(decided(Verdict::Denied(reason)), reason).await),
        };
        let AuthorizedRequest { request, way, scrub, secrets, grant } = authorized;
        self.ledger.note(decided(Verdict::Allowed { manner: target.manner(), secrets })).await?;
        let answer = self.send(target, &way, request).await;
        if let Some(grant) = &grant {
            match &answer {
                Ok(answer) => grant.answered(answer.status()),
                Err(refusal) => grant.broke_off(refusal),
            }
        }
        match without_secrets(answer?, scrub) {
            Ok(answer) => Ok(match grant {
                Some(grant) => answer.map(|body| grant.counted(body)),
                None => answer,
            }),
            Err(reason) => Err(self.refuse(decided(Verdict::Denied(reason)), reason).await),
        }
    }

    /// Records a denial and returns it. If the log cannot be written, the request is refused too.
    pub(super) async fn refuse(&self, decision: Decision, reason: Reason) -> Refusal {
        self.ledger.note(decision).await.map_or_else(Refusal::Lost, |()| Refusal::Denied(reason))
    }

    async fn authorize(&self, target: &Target, request: Request<Body>) -> Result<AuthorizedRequest, Reason> {
        let (mut parts, body) = request.into_parts();
        let Target { host, port, tls } = target;
        headers::check(&parts.headers, host, *port)?;
        let url = normalized_url(target, &parts)?;
        let grant = self.granted(target, &parts, &url);
        let addresses = match &grant {
            Some(_) => Addresses::Public,
            None => self.policy.request(host, *port, parts.method.as_str(), url.path())?,
        };
        let vetted = self.vet(host, *port, addresses).await;
        if let (Err(error), Some(grant)) = (&vetted, &grant) {
            grant.broke_off(error);
        }
        let way = vetted.map_err(|_| Reason::Address)?;
        headers::strip(&mut parts.headers);
        let mut query = url.query().map(str::to_owned);
        let mut scrub = None;
        let mut secrets = Vec::new();
        if let Some(grant) = &grant {
            let named: Option<String>;
            (named, scrub) = grant.inject(&mut parts.headers);
            secrets = named.into_iter().collect();
        } else if self.secrets.is_bound(host) {
            // Without TLS, the secret could be intercepted.
            if !tls {
                return Err(Reason::NotTls);
            }
            let injected: Injected;
            (injected, query) = self.secrets.inject(host, &mut parts.headers, query.as_deref())?;
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            scrub = Some(injected.scrub);
            secrets = injected.names;
        }
        let asked = match query {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        parts.uri = asked.parse().map_err(|_| Reason::Path)?;
        parts.headers.insert(HOST, target.authority().parse().map_err(|_| Reason::HostHeader)?);
        Ok(AuthorizedRequest { request: Request::from_parts(parts, body), way, scrub, secrets, grant })
    }

    async fn send(
        &self,
        target: &Target,
        way: &Route,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Refusal> {
        let failed = |error: &dyn std::error::Error| Refusal::Failed(error.to_string());
        let stream = timeout(NET_CONNECT_TIMEOUT, self.reach(target, way));
        let stream = stream.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|error| failed(&error))?;
        self.keep(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "egress connection broke off");
            }
        });
        let answer = timeout(EGRESS_RESPONSE_TIMEOUT, sender.send_request(request));
        answer.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }

    async fn reach(
        &self,
        target: &Target,
        way: &Route,
    ) -> std::io::Result<Either<TcpStream, TlsStream<TcpStream>>> {
        let stream = self.dialer.connect(way).await?;
        if !target.tls {
            return Ok(Either::Left(stream));
        }
        let name = ServerName::try_from(target.host.clone()).map_err(std::io::Error::other)?;
        let connector = TlsConnector::from(self.dialer.tls());
        Ok(Either::Right(connector.connect(name, stream).await?))
    }
}

/// URL of the request in the normal form of the URL standard, with dot segments resolved.
fn normalized_url(target: &Target, parts: &request::Parts) -> Result<Url, Reason> {
    let asked = parts.uri.path_and_query().map(|asked| asked.as_str()).ok_or(Reason::Path)?;
    if !asked.starts_with('/') {
        return Err(Reason::Path);
    }
    let scheme = if target.tls { "https" } else { "http" };
    let url = format!("{scheme}://{}:{}{asked}", target.host, target.port);
    url.parse().map_err(|_| Reason::Path)
}

/// The response without hop-by-hop headers and without secrets.
fn without_secrets(answer: Response<Incoming>, scrub: Option<Scrub>) -> Result<Response<Body>, Reason> {
    let (mut parts, body) = answer.into_parts();
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Reason::Upgrade);
    }
    headers::strip(&mut parts.headers);
    let Some(scrub) = scrub else {
        return Ok(Response::from_parts(parts, body.map_err(BoxError::from).boxed_unsync()));
    };
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !parts.headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Err(Reason::EncodedAnswer);
    }
    // Scrubbing may change the length.
    parts.headers.remove(CONTENT_LENGTH);
    for value in parts.headers.values_mut() {
        let clean = scrub.whole(value.as_bytes());
        *value = HeaderValue::from_bytes(&clean).unwrap_or(HeaderValue::from_static(""));
    }
    Ok(Response::from_parts(parts, scrubbed(body, scrub)))
}

fn scrubbed(body: Incoming, scrub: Scrub) -> Body {
    let pieces = stream::unfold((Some(body), scrub), |(body, mut scrub)| async move {
        let mut body = body?;
        loop {
            let piece = match body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => scrub.push(&data),
                    // Trailers are dropped: they may contain secrets, and no API with secrets needs them.
                    Err(_) => continue,
                },
                Some(Err(error)) => return Some((Err(BoxError::from(error)), (None, scrub))),
                None => {
                    let last = scrub.finish();
                    return (!last.is_empty()).then(|| (Ok(Frame::data(Bytes::from(last))), (None, scrub)));
                }
            };
            if !piece.is_empty() {
                return Some((Ok(Frame::data(Bytes::from(piece))), (Some(body), scrub)));
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}
