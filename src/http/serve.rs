//! HTTP connections: accepting, limits, timeouts and graceful shutdown.
//!
//! Called by `app`. A client that sends its request a byte at a time, or nothing at all, is disconnected;
//! so a client can hold only a bounded number of connections for a bounded time. A request that has begun
//! has its own time limit in `middleware`.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::write_timeout::WriteTimeout;
use crate::base::limit::{
    CONNECTIONS_MAX, DRAIN_TIMEOUT, HEADER_BYTES_MAX, HEADER_TIMEOUT, HTTP2_PING, HTTP2_STREAMS_MAX,
};

/// First bytes of an HTTP/2 connection with prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Interval between two checks of an incomplete preface.
const PREFACE_POLL: Duration = Duration::from_millis(20);
/// Pause after the operating system refused a connection because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`. Running requests are drained for at most `DRAIN_TIMEOUT`.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, place)) => {
                connections.spawn(connection(stream, place, router.clone(), stop.clone()));
            }
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

/// Accepts the next connection once a permit is free; other connections wait in the system's backlog.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(stream: TcpStream, place: OwnedSemaphorePermit, router: Router, stop: CancellationToken) {
    let _place = place;
    // Disables Nagle's algorithm. With it, the second of two small
    // writes would wait for the reader's delayed ACK: 40 ms for every event.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "could not set TCP_NODELAY");
    }
    let begun = tokio::select! {
        begun = timeout(HEADER_TIMEOUT, is_http2(&stream)) => begun,
        () = stop.cancelled() => return,
    };
    let Ok(Ok(is_http2)) = begun else { return };
    let service = TowerToHyperService::new(router);
    let io = TokioIo::new(WriteTimeout::new(stream));
    let ended = if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(HTTP2_PING)
            .keep_alive_timeout(HTTP2_PING)
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX as u32);
        let mut served = pin!(builder.serve_connection(io, service));
        tokio::select! {
            ended = served.as_mut() => ended,
            () = stop.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        }
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_header_size(HEADER_BYTES_MAX);
        let mut served = pin!(builder.serve_connection(io, service).with_upgrades());
        tokio::select! {
            ended = served.as_mut() => ended,
            () = stop.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        }
    };
    if let Err(error) = ended {
        // The client disconnected early; there is no one to respond to.
        tracing::debug!(%error, "connection ended early");
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
