//! HTTP proxy of one session, behind a sandbox's egress socket.
//!
//! Created and run by `lifecycle` under the lease of the session; calls `exchange` and `tunnel`. It ends when
//! the sandbox is released: a sandbox whose session is idle has no network. Every task is tracked and
//! ends with the proxy.

use std::{
    convert::Infallible,
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use futures::{Stream, StreamExt};
use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, CONTENT_TYPE, HeaderValue},
    http::uri::Authority as UriAuthority,
    server::conn::http1,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    authority::Authority,
    decision::{Decision, Manner, Reason, Verdict},
    grant::Grant,
    ledger::{Ledger, Log},
    message::{Body, Refusal, Target, whole},
    policy::{Addresses, Policy},
    secret::Secrets,
    tunnel,
};
use crate::{
    base::{
        limit::{
            EGRESS_ACCEPT_RETRY, EGRESS_CLIENT_HELLO_TIMEOUT, EGRESS_CONNECTIONS_MAX, EGRESS_FLUSH_INTERVAL,
            EGRESS_HEAD_BYTES_MAX,
        },
        shares::Shares,
        text,
    },
    domain::{
        OrgId,
        network::{BadHost, canonical},
    },
    net::{self, Dialer, Refused, Route},
};

/// Configuration of a proxy.
pub struct Parts {
    /// Organization whose share its lookups and connections are; `None` for the deployment's own.
    pub org: Option<OrgId>,
    pub policy: Policy,
    pub secrets: Secrets,
    pub dialer: Dialer,
    /// Connections of all proxies of this process.
    pub connections: Arc<Shares<OrgId>>,
    pub log: Arc<dyn Log>,
}

/// The proxy of one session.
pub struct Proxy {
    org: Option<OrgId>,
    connections: Arc<Shares<OrgId>>,
    pub(super) policy: Policy,
    pub(super) secrets: Secrets,
    /// Grant of the clone in progress.
    pub(super) grant: RwLock<Option<Arc<Grant>>>,
    pub(super) dialer: Dialer,
    pub(super) ledger: Ledger,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Use of a connection after the response to its CONNECT.
enum Upgrade {
    Tunnel { host: String, port: u16, outside: TcpStream },
    Inspected { host: String, port: u16 },
}

type Slot = Mutex<Option<(Upgrade, OnUpgrade)>>;

impl Proxy {
    /// Creates a proxy that ends with `stop`.
    pub fn new(parts: Parts, stop: CancellationToken) -> Arc<Self> {
        let Parts { org, policy, secrets, dialer, connections, log } = parts;
        let tasks = TaskTracker::new();
        let (grant, ledger) = (RwLock::default(), Ledger::new(log));
        Arc::new(Self { org, connections, policy, secrets, grant, dialer, ledger, tasks, stop })
    }

    /// Serves a sandbox's connections until the proxy is stopped; returns when no connection is left.
    /// `authority` is the one that the sandbox trusts.
    pub async fn serve<C>(
        self: Arc<Self>,
        mut connections: impl Stream<Item = io::Result<C>> + Unpin,
        authority: Authority,
    ) where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let authority = Arc::new(authority);
        let slots = Arc::new(Semaphore::new(EGRESS_CONNECTIONS_MAX));
        let mut flushes = interval(EGRESS_FLUSH_INTERVAL);
        flushes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let arrival = async {
                let slot = Arc::clone(&slots).acquire_owned().await;
                (slot, connections.next().await)
            };
            tokio::select! {
                () = self.stop.cancelled() => break,
                _ = flushes.tick() => self.ledger.flush().await,
                (slot, accepted) = arrival => match accepted {
                    Some(Ok(stream)) => {
                        let (proxy, authority) = (Arc::clone(&self), Arc::clone(&authority));
                        self.keep(async move {
                            let place = proxy.connections.take(proxy.org).await;
                            proxy.attend(stream, &authority).await;
                            drop(place);
                            drop(slot);
                        });
                    }
                    None => break,
                    Some(Err(error)) => {
                        tracing::warn!(%error, "egress connection could not be accepted");
                        sleep(EGRESS_ACCEPT_RETRY).await;
                    }
                },
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Takes the counts that are not yet written, for the caller to append.
    pub fn take(&self) -> Vec<(Decision, u64)> {
        self.ledger.take()
    }

    /// Adds counts that could not be written.
    pub fn restore(&self, taken: &[(Decision, u64)]) {
        self.ledger.restore(taken);
    }

    /// Refuses all further requests. Returns when no decision is being written.
    pub async fn close(&self) {
        self.stop();
        self.ledger.close().await;
    }

    /// Ends every connection.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Runs a task until it ends or the proxy does.
    pub(super) fn keep(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    async fn attend(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        authority: &Authority,
    ) {
        let slot = Arc::new(Slot::default());
        let service = service_fn(|request| {
            let (proxy, slot) = (Arc::clone(&self), Arc::clone(&slot));
            async move { Ok::<_, Infallible>(proxy.answer(request, &slot).await) }
        });
        if let Err(error) = server().serve_connection(TokioIo::new(stream), service).with_upgrades().await {
            tracing::debug!(%error, "egress connection broke off");
        }
        let wanted = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((wanted, upgrade)) = wanted else { return };
        let Ok(Ok(upgraded)) = timeout(EGRESS_CLIENT_HELLO_TIMEOUT, upgrade).await else { return };
        let ended = match wanted {
            Upgrade::Tunnel { host, port, outside } => {
                self.tunnel(TokioIo::new(upgraded), &host, port, outside).await
            }
            Upgrade::Inspected { host, port } => {
                let target = Target { host, port, tls: true };
                self.inspect(TokioIo::new(upgraded), target, authority).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "egress tunnel broke off");
        }
    }

    async fn answer(&self, mut request: Request<Incoming>, slot: &Slot) -> Response<Body> {
        if request.method() == Method::CONNECT {
            let upgrade = hyper::upgrade::on(&mut request);
            return match self.connect(&request).await {
                Ok(wanted) => {
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some((wanted, upgrade));
                    Response::new(whole(String::new()))
                }
                Err(refusal) => refusal_response(&refusal),
            };
        }
        let (Some("http"), Some(authority)) = (request.uri().scheme_str(), request.uri().authority()) else {
            let text = "this is a proxy: request http:// URLs, or a tunnel with CONNECT\n";
            return text_answer(StatusCode::BAD_REQUEST, text.to_owned());
        };
        let asked = host_and_port(authority, Some(80));
        let answered = match asked {
            // Plain HTTP to port 443 is refused: HTTPS belongs in a tunnel.
            Ok((host, 443)) => Err(self.denied(&host, 443, request.method(), Reason::NotTls).await),
            Ok((host, port)) => {
                let target = Target { host, port, tls: false };
                self.exchange(&target, request.map(|body| body.map_err(Into::into).boxed_unsync())).await
            }
            Err(reason) => Err(self.denied(authority.as_str(), 0, request.method(), reason).await),
        };
        answered.unwrap_or_else(|refusal| refusal_response(&refusal))
    }

    async fn connect(&self, request: &Request<Incoming>) -> Result<Upgrade, Refusal> {
        let asked =
            request.uri().authority().map_or(Err(Reason::BadHost), |asked| host_and_port(asked, None));
        let (host, port) = match asked {
            Ok(asked) => asked,
            Err(reason) => {
                let text = request.uri().to_string();
                return Err(self.denied(&text, 0, &Method::CONNECT, reason).await);
            }
        };
        let allowed = match self.is_granted(&host, port) {
            true => Ok(Manner::Inspected),
            false => self.policy.connect(&host, port, self.secrets.is_bound(&host)),
        };
        let manner = match allowed {
            Ok(manner) => manner,
            Err(reason) => return Err(self.denied(&host, port, &Method::CONNECT, reason).await),
        };
        if manner == Manner::Inspected {
            return Ok(Upgrade::Inspected { host, port });
        }
        let Ok(way) = self.vet(&host, port, Addresses::Public).await else {
            return Err(self.denied(&host, port, &Method::CONNECT, Reason::Address).await);
        };
        let verdict = Verdict::Allowed { manner, secrets: Vec::new() };
        self.ledger.note(decision(&host, port, &Method::CONNECT, verdict)).await?;
        let outside = self.dialer.connect(&way).await;
        let outside = outside.map_err(|error| Refusal::Failed(error.to_string()))?;
        Ok(Upgrade::Tunnel { host, port, outside })
    }

    /// Resolves a host to the addresses that it may be connected to.
    pub(super) async fn vet(&self, host: &str, port: u16, to: Addresses) -> Result<Route, Refused> {
        let lookup = async {
            match to {
                Addresses::Any => self.dialer.vet_trusted(host, port).await,
                Addresses::Public => self.dialer.vet(host, port).await,
            }
        };
        match self.org {
            Some(org) => net::for_org(org, lookup).await,
            None => lookup.await,
        }
    }

    async fn tunnel(
        &self,
        mut inside: impl AsyncRead + AsyncWrite + Unpin,
        host: &str,
        port: u16,
        mut outside: TcpStream,
    ) -> io::Result<()> {
        match tunnel::hello(&mut inside, host).await? {
            Ok(hello) => tunnel::carry(&mut inside, &mut outside, &hello).await,
            Err(reason) => {
                self.denied(host, port, &Method::CONNECT, reason).await;
                Ok(())
            }
        }
    }

    /// Terminates the sandbox's TLS and handles its requests one by one.
    async fn inspect(
        self: Arc<Self>,
        inside: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        target: Target,
        authority: &Authority,
    ) -> io::Result<()> {
        let Target { host, port, .. } = &target;
        let hello =
            timeout(EGRESS_CLIENT_HELLO_TIMEOUT, LazyConfigAcceptor::new(Acceptor::default(), inside))
                .await?;
        let Ok(hello) = hello else {
            self.denied(host, *port, &Method::CONNECT, Reason::NotTls).await;
            return Ok(());
        };
        if hello.client_hello().server_name().map(canonical) != Some(Ok(host.clone())) {
            self.denied(host, *port, &Method::CONNECT, Reason::Sni).await;
            return Ok(());
        }
        let config = authority.server(host).map_err(io::Error::other)?;
        let stream = timeout(EGRESS_CLIENT_HELLO_TIMEOUT, hello.into_stream(config)).await??;
        let target = Arc::new(target);
        let service = service_fn(|request: Request<Incoming>| {
            let (proxy, target) = (Arc::clone(&self), Arc::clone(&target));
            async move { Ok::<_, Infallible>(proxy.inspected(&target, request).await) }
        });
        let served = server().serve_connection(TokioIo::new(stream), service).await;
        served.map_err(io::Error::other)
    }

    async fn inspected(&self, target: &Target, request: Request<Incoming>) -> Response<Body> {
        let elsewhere =
            |own: &UriAuthority| host_and_port(own, Some(443)) != Ok((target.host.clone(), target.port));
        let answered = if request.uri().authority().is_some_and(elsewhere) {
            Err(self.denied(&target.host, target.port, request.method(), Reason::HostHeader).await)
        } else {
            self.exchange(target, request.map(|body| body.map_err(Into::into).boxed_unsync())).await
        };
        answered.unwrap_or_else(|refusal| refusal_response(&refusal))
    }

    async fn denied(&self, host: &str, port: u16, method: &Method, reason: Reason) -> Refusal {
        self.refuse(decision(host, port, method, Verdict::Denied(reason)), reason).await
    }
}

fn server() -> http1::Builder {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(EGRESS_CLIENT_HELLO_TIMEOUT)
        .max_buf_size(EGRESS_HEAD_BYTES_MAX);
    server
}

/// Maximum bytes of a host name in an event; valid names are not longer.
const SHOWN_BYTES: usize = 253;

fn decision(host: &str, port: u16, method: &Method, verdict: Verdict) -> Decision {
    let host = text::truncate(host, SHOWN_BYTES).to_owned();
    let method = text::truncate(method.as_str(), 20).to_owned();
    Decision { host, port, method, verdict }
}

/// Canonical host and port of an authority.
fn host_and_port(authority: &UriAuthority, default_port: Option<u16>) -> Result<(String, u16), Reason> {
    let port = match authority.port() {
        Some(_) => authority.port_u16(),
        None => default_port,
    };
    let (false, Some(port)) = (authority.as_str().contains('@'), port.filter(|port| *port != 0)) else {
        return Err(Reason::BadHost);
    };
    match canonical(authority.host()) {
        Ok(host) => Ok((host, port)),
        Err(BadHost::Address) => Err(Reason::AddressLiteral),
        Err(BadHost::Name | BadHost::Wildcard) => Err(Reason::BadHost),
    }
}

/// Error response for the program in the sandbox.
fn refusal_response(refusal: &Refusal) -> Response<Body> {
    let (status, word) = match refusal {
        Refusal::Denied(reason) => (StatusCode::FORBIDDEN, reason.word()),
        Refusal::Lost(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Refusal::Failed(_) => (StatusCode::BAD_GATEWAY, "unreachable"),
    };
    let mut answer = text_answer(status, format!("egress: {refusal}\n"));
    answer.headers_mut().insert("x-sojourn-egress", HeaderValue::from_static(word));
    answer
}

fn text_answer(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(whole(text));
    *answer.status_mut() = status;
    // Close the connection: a program may try many hosts, and a refused connection must not occupy a slot.
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
