//! HTTP connections: accepting, limits, timeouts and graceful shutdown.
//!
//! Called by `app`. A client that sends its request a byte at a time, or nothing at all, is disconnected;
//! so a client can hold only a bounded number of connections for a bounded time, and one peer address only a part of
//! them. A request that has begun has its own time limit in `middleware`.

use std::{convert::Infallible, io, net::IpAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, response::Response};
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ipnet::IpNet;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{unauthenticated::Peer, write_timeout::WriteTimeout};
use crate::base::{
    limit::{
        CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX, DRAIN_TIMEOUT, HEADER_BYTES_MAX, HEADER_TIMEOUT,
        HTTP2_IDLE, HTTP2_PING, HTTP2_STREAMS_MAX,
    },
    shares::{Place, Shares},
};

type Io = TokioIo<WriteTimeout>;

/// First bytes of an HTTP/2 connection with prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Interval between two checks of an incomplete preface.
const PREFACE_POLL: Duration = Duration::from_millis(20);
/// Pause after the operating system refused a connection because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections of one listener.
struct Connections {
    router: Router,
    /// Networks of the proxies whose `X-Forwarded-For` is believed.
    proxies: Vec<IpNet>,
    places: Shares<Peer>,
    stop: CancellationToken,
}

/// Permits of a connection: one of all, and one of its peer's.
type Places = (Place, Option<OwnedSemaphorePermit>);

/// Serves until `stop`. Running requests are drained for at most `DRAIN_TIMEOUT`. `proxies` are the networks of
/// trusted proxies: the client of a request from there is the one that its `X-Forwarded-For` names.
pub async fn serve(listener: TcpListener, router: Router, proxies: Vec<IpNet>, stop: CancellationToken) {
    let places = Shares::new(CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX);
    let shared = Arc::new(Connections { router, proxies, places, stop });
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = shared.accept(&listener) => accepted,
            () = shared.stop.cancelled() => break,
        };
        match accepted {
            Ok(Some((stream, from, places))) => {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    shared.serve(stream, from).await;
                    drop(places);
                });
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let drained = timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(left = connections.len(), "connections closed at the end of the drain timeout");
    }
    connections.shutdown().await;
}

impl Connections {
    /// Accepts the next connection once a permit is free; other connections wait in the system's backlog. `None` is
    /// one that was closed, because its peer has too many.
    async fn accept(&self, listener: &TcpListener) -> io::Result<Option<(TcpStream, IpAddr, Places)>> {
        let place = self.places.take(None).await;
        let (stream, from) = listener.accept().await?;
        let from = from.ip().to_canonical();
        // A program of this machine may be a proxy that nobody named.
        if self.is_proxy(from) || from.is_loopback() {
            return Ok(Some((stream, from, (place, None))));
        }
        let own = self.places.try_share(Peer::new(from));
        if own.is_none() {
            metrics::counter!("sojourn_connections_refused_total").increment(1);
        }
        Ok(own.map(|own| (stream, from, (place, Some(own)))))
    }

    fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(&address))
    }

    /// The client of a request: the last address in `X-Forwarded-For` that is no trusted proxy, if the connection is
    /// from one.
    fn peer(&self, from: IpAddr, headers: &HeaderMap) -> Peer {
        let mut client = from;
        if self.is_proxy(from) {
            let lines = headers.get_all("x-forwarded-for").iter().filter_map(|line| line.to_str().ok());
            let named: Vec<_> = lines.flat_map(|line| line.split(',')).collect();
            let named = named.into_iter().rev().map_while(|text| text.trim().parse::<IpAddr>().ok());
            for address in named.map(|address| address.to_canonical()) {
                client = address;
                if !self.is_proxy(address) {
                    break;
                }
            }
        }
        Peer::new(client)
    }

    async fn serve(self: &Arc<Self>, stream: TcpStream, from: IpAddr) {
        // Disables Nagle's algorithm. With it, the second of two small
        // writes would wait for the reader's delayed ACK: 40 ms for every event.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "could not set TCP_NODELAY");
        }
        let begun = tokio::select! {
            begun = timeout(HEADER_TIMEOUT, is_http2(&stream)) => begun,
            () = self.stop.cancelled() => return,
        };
        let Ok(Ok(is_http2)) = begun else { return };
        let io = TokioIo::new(WriteTimeout::new(stream));
        let ended = if is_http2 { self.http2(io, from).await } else { self.http1(io, from).await };
        if let Err(error) = ended {
            // The client disconnected early; there is no one to respond to.
            tracing::debug!(%error, "connection ended early");
        }
    }

    /// The router's answer to a request, which knows its peer.
    fn answer(
        &self,
        mut request: Request<Incoming>,
        from: IpAddr,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<> {
        let peer = self.peer(from, request.headers());
        request.extensions_mut().insert(peer);
        self.router.clone().oneshot(request)
    }

    async fn http1(self: &Arc<Self>, io: Io, from: IpAddr) -> hyper::Result<()> {
        let service = service_fn(|request| self.answer(request, from));
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_header_size(HEADER_BYTES_MAX);
        let served = builder.serve_connection(io, service).with_upgrades();
        let mut served = pin!(served);
        tokio::select! {
            ended = served.as_mut() => ended,
            () = self.stop.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        }
    }

    async fn http2(self: &Arc<Self>, io: Io, from: IpAddr) -> hyper::Result<()> {
        let running = watch::Sender::new(0_usize);
        let service = service_fn(|request| {
            // Dropped with the body of the response: a stream runs until its end.
            let guard = Running::new(&running);
            let answer = self.answer(request, from);
            async move {
                let counted = answer.await?.map(|body| {
                    body.map_frame(move |frame| {
                        let _ = &guard;
                        frame
                    })
                });
                Ok::<_, Infallible>(counted)
            }
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(HTTP2_PING)
            .keep_alive_timeout(HTTP2_PING)
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX as u32);
        let mut served = pin!(builder.serve_connection(io, service));
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = self.stop.cancelled() => {
                served.as_mut().graceful_shutdown();
                return served.await;
            }
            () = idle(running.subscribe()) => served.as_mut().graceful_shutdown(),
        }
        // A client may not answer the shutdown.
        timeout(HTTP2_PING, served).await.unwrap_or(Ok(()))
    }
}

/// A request that runs; counted until it is dropped.
struct Running(watch::Sender<usize>);

impl Running {
    fn new(running: &watch::Sender<usize>) -> Self {
        running.send_modify(|running| *running += 1);
        Self(running.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

/// Returns when no request ran for `HTTP2_IDLE`.
async fn idle(mut running: watch::Receiver<usize>) {
    loop {
        // Its senders live as long as the connection.
        let _ = running.wait_for(|running| *running == 0).await;
        if timeout(HTTP2_IDLE, running.wait_for(|running| *running > 0)).await.is_err() {
            return;
        }
    }
}

/// Whether the first bytes are the HTTP/2 preface; waits until they can be distinguished.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count if seen[..count] != PREFACE[..count] => return Ok(false),
            count if count == PREFACE.len() => return Ok(true),
            _ => sleep(PREFACE_POLL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_address_is_believed_of_a_trusted_proxy_only() {
        let proxies = ["10.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network")).to_vec();
        let (places, stop) = (Shares::new(1, 1), CancellationToken::new());
        let connections = Connections { router: Router::new(), proxies, places, stop };
        let peer = |from: &str, lines: &[&str]| {
            let line =
                |text: &&str| ("x-forwarded-for".parse().expect("a name"), text.parse().expect("a value"));
            let headers = lines.iter().map(line).collect();
            connections.peer(from.parse().expect("an address"), &headers)
        };
        let of = |address: &str| Peer::new(address.parse().expect("an address"));
        assert_eq!(peer("192.0.2.1", &["198.51.100.7"]), of("192.0.2.1"), "no proxy");
        assert_eq!(
            peer("10.0.0.1", &["203.0.113.9, 198.51.100.7"]),
            of("198.51.100.7"),
            "the last is the proxy's"
        );
        assert_eq!(peer("10.0.0.1", &["203.0.113.9", "198.51.100.7, 10.0.0.2"]), of("198.51.100.7"));
        assert_eq!(peer("::1", &["198.51.100.7, unknown"]), of("::1"), "what is no address names nobody");
        assert_eq!(peer("10.0.0.1", &[]), of("10.0.0.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_while_no_request_runs() {
        let running = watch::Sender::new(0);
        let began = tokio::time::Instant::now();
        let request = Running::new(&running);
        let watched = idle(running.subscribe());
        let ends = async {
            sleep(5 * HTTP2_IDLE).await;
            drop(request);
        };
        tokio::join!(watched, ends);
        assert_eq!(began.elapsed(), 6 * HTTP2_IDLE);
    }
}
