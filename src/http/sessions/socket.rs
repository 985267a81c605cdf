//! A session's log over a WebSocket.
//!
//! Events, cursor and permissions are the same as for the SSE stream; each event is one text frame.

use axum::extract::ws::{
    CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code, rejection::WebSocketUpgradeRejection,
};
use serde::Deserialize;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout},
};
use utoipa::IntoParams;

use crate::{
    base::limit::{SOCKET_MESSAGE_BYTES_MAX, STREAM_HEARTBEAT, STREAM_REVOKED_GRACE, STREAM_WRITE_TIMEOUT},
    domain::{Level, SessionId, TurnId},
    http::{
        auth::{Proof, SessionCaller},
        prelude::*,
        scope::ReadLog,
        sessions::events::{self, EventQuery},
    },
    stream::Frame,
};

/// Filters for following events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SocketQuery {
    /// Only events with a larger `seq`.
    #[param(minimum = 0)]
    pub after: Option<i64>,
    /// Highest event level to send; `internal` when absent.
    pub level: Option<Level>,
    /// Exact event type, or `prefix.*`.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub kind: Option<String>,
    /// Id of a turn.
    #[param(value_type = Option<TurnId>)]
    pub turn_id: Option<String>,
    /// Also send model responses while they are generated, as messages of type `agent.message.delta`.
    pub deltas: Option<bool>,
    /// A client token, for a browser.
    pub token: Option<String>,
}

/// Follow events over a WebSocket
///
/// Replays the log after `after`, then follows it without gaps or duplicates. Each text frame is one
/// event as JSON; the service sends a ping every 10 s. It accepts no messages.
#[utoipa::path(get, path = "/sessions/{session_id}/ws", tag = "events", operation_id = "connectEvents",
    params(("session_id" = SessionId, Path), SocketQuery),
    responses((status = 101, description = "The connection is upgraded to a WebSocket."), Errors))]
pub(super) async fn connect(
    caller: SessionCaller<ReadLog>,
    Query(query): Query<SocketQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let session = caller.begin().await?.session(caller.session).await?;
    let upgrade = upgrade.map_err(|_| {
        ApiError::invalid(
            "upgrade",
            "this path needs a WebSocket upgrade; for server-sent events use /stream",
        )
    })?;
    let SocketQuery { after, level, kind, turn_id, deltas, token } = query;
    let (cursor, limit, stream) = (None, None, None);
    let query = EventQuery { after, cursor, level, kind, turn_id, limit, stream, deltas, _token: token };
    let tail = events::tail(&caller, query, None)?;
    events::is_in_log(&session, &tail)?;
    let frames = caller.app.0.streams.follow(tail).map_err(events::full)?;
    let proof = caller.proof;
    // The size of a message is checked when it is whole, that of a frame before its content is read.
    let upgrade = upgrade.max_message_size(SOCKET_MESSAGE_BYTES_MAX).max_frame_size(SOCKET_MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(async move |mut socket| {
        let close_frame = send_frames(&mut socket, &caller.app, proof, frames).await;
        // The reader may already be disconnected.
        let _ = timeout(STREAM_WRITE_TIMEOUT, socket.send(Message::Close(close_frame))).await;
    }))
}

/// Sends frames and pings while the reader's key is valid; returns the close frame to send.
async fn send_frames(
    socket: &mut WebSocket,
    app: &App,
    proof: Proof,
    mut frames: mpsc::Receiver<Frame>,
) -> Option<CloseFrame> {
    let mut pings = interval_at(Instant::now() + STREAM_HEARTBEAT, STREAM_HEARTBEAT);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut due, mut may_read) = (Instant::now() + proof.interval(), true);
    loop {
        // Cancel-safe: an item that was not received stays in its channel.
        let message = tokio::select! {
            biased;
            () = sleep_until(due) => {
                if !may_read {
                    return Some(close(close_code::POLICY, "the key is no longer valid"));
                }
                may_read = proof.holds(app).await;
                due = Instant::now() + if may_read { proof.interval() } else { STREAM_REVOKED_GRACE };
                continue;
            }
            heard = socket.recv() => match heard {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Text(_) | Message::Binary(_))) => {
                    return Some(close(close_code::UNSUPPORTED, "this WebSocket accepts no messages"));
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            },
            _ = pings.tick() => Message::Ping(bytes::Bytes::new()),
            frame = frames.recv() => match frame {
                Some(Frame::Event(item)) if !item.json.is_empty() => Message::text(item.json.clone()),
                Some(Frame::Delta(json)) => Message::text(json),
                Some(Frame::Event(_) | Frame::Alive) => continue,
                None => return Some(close(close_code::AWAY, "reconnect after the last seq")),
            },
        };
        // A reader that does not read is disconnected; it can resume.
        match timeout(STREAM_WRITE_TIMEOUT, socket.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
    }
}

fn close(code: u16, reason: &'static str) -> CloseFrame {
    CloseFrame { code, reason: reason.into() }
}
