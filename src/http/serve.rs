//! Connections: accepted, bounded in number and patience, and ended in order.
//!
//! Called by `app`. Whoever sends its request a byte at a time, or nothing at all, is
//! disconnected; so what anybody can hold of this process is a bounded number of
//! connections for a bounded time. A request that has begun has its own time limit in
//! `finish`.

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

/// What a connection begins with that speaks HTTP/2 without asking (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Between two looks at a preface that is not whole yet.
const PREFACE_POLL: Duration = Duration::from_millis(20);
/// Pause after the system refused a connection: it has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`; requests under way are waited for, but not for long.
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
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let drained = timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(left = connections.len(), "connections were cut at the end of the drain");
    }
    connections.shutdown().await;
}

/// The next connection, once there is a place for it; others wait in the system's queue.
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
    // A frame of a stream leaves at once. Left to the kernel, the second of two small
    // writes waits for the reader's delayed acknowledgement: 40 ms on every event.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its small writes together");
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
        // Whoever hangs up in the middle ends here; there is nobody to tell.
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Whether the first bytes are those of HTTP/2; waits until they can be told.
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
