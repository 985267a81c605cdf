//! A session's log: pages, streams, single events, bodies of truncated events.

use axum::{
    body::{Body as HttpBody, Bytes},
    http::{HeaderMap, HeaderValue, header},
    response::IntoResponse,
};
use futures::StreamExt;
use serde::Deserialize;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use utoipa::IntoParams;

use crate::{
    base::limit::STREAM_REVOKED_GRACE,
    domain::{Entry, EventId, Level, OrgId, Session, SessionId, TurnId},
    http::{
        auth::{Proof, SessionCaller},
        page::rows,
        path,
        prelude::*,
        scope::ReadLog,
    },
    store::log::Range,
    stream::{Frame, Full, Tail},
    wire::event::EventView,
};

/// Filters for reading or following events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only events with a larger `seq`.
    #[param(minimum = 0)]
    pub after: Option<i64>,
    /// `next_cursor` of the previous page. With `after`, the later position applies.
    pub cursor: Option<String>,
    /// Highest event level to return; `internal` when absent.
    pub level: Option<Level>,
    /// Exact event type, or `prefix.*`.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub kind: Option<String>,
    /// Id of a turn.
    #[param(value_type = Option<TurnId>)]
    pub turn_id: Option<String>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `sse` follows the log as server-sent events.
    pub stream: Option<StreamMode>,
    /// Streams only: also send model responses while they are generated, as frames of type
    /// `agent.message.delta` without an id. Best effort: they are not stored, and some may be missing.
    pub deltas: Option<bool>,
    /// A client token, for EventSource in a browser.
    #[serde(rename = "token")]
    #[param(rename = "token")]
    pub _token: Option<String>, // read by the caller's extractor
}

/// Format in which a log can be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StreamMode {
    Sse,
}

/// List events, or follow them with `stream=sse`
///
/// Oldest first, in order of `seq`. A stream first replays the log after `after` or `Last-Event-ID`,
/// whichever is larger, then follows it without gaps or duplicates.
#[utoipa::path(get, path = "/sessions/{session_id}/events", tag = "events", operation_id = "listEvents",
    params(("session_id" = SessionId, Path), EventQuery, ("Last-Event-ID" = Option<i64>, Header,
        description = "Largest `seq` already received; a stream resumes after it.")),
    responses((status = 200, content(
        (Page<EventView> = "application/json"), (String = "text/event-stream"))), Errors))]
pub(crate) async fn list(
    caller: SessionCaller<ReadLog>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Response> {
    match query.stream {
        Some(StreamMode::Sse) => follow(caller, &headers, query).await,
        None => {
            // A page only uses `after`, but an invalid header is still rejected.
            last_seen(&headers)?;
            page(&caller, query).await
        }
    }
}

/// Follow events as server-sent events
#[utoipa::path(get, path = "/sessions/{session_id}/stream", tag = "events", operation_id = "streamEvents",
    params(("session_id" = SessionId, Path), EventQuery, ("Last-Event-ID" = Option<i64>, Header,
        description = "Largest `seq` already received; the stream resumes after it.")),
    responses((status = 200, content((String = "text/event-stream"))), Errors))]
pub(crate) async fn stream(
    caller: SessionCaller<ReadLog>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Response> {
    follow(caller, &headers, query).await
}

/// List the messages of a session
///
/// User-level messages, oldest first: input of callers and messages of the agent.
#[utoipa::path(get, path = "/sessions/{session_id}/messages", tag = "events", operation_id = "listMessages",
    params(("session_id" = SessionId, Path), MessageQuery),
    responses((status = 200, body = Page<EventView>), Errors))]
pub(crate) async fn messages(
    caller: SessionCaller<ReadLog>,
    Query(query): Query<MessageQuery>,
) -> Result<Response> {
    let MessageQuery { after, cursor, limit, .. } = query;
    let after = start(after, cursor.as_deref())?;
    let wanted = EventFilter { level: Level::User, kind: Some("*.message".to_owned()), turn: None };
    read_page(&caller, after, limit, wanted).await
}

/// Filters for listing messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageQuery {
    /// Only messages with a larger `seq`.
    #[param(minimum = 0)]
    pub after: Option<i64>,
    /// `next_cursor` of the previous page. With `after`, the later position applies.
    pub cursor: Option<String>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// A client token.
    #[serde(rename = "token")]
    #[param(rename = "token")]
    pub _token: Option<String>, // read by the caller's extractor
}

/// Get an event
#[utoipa::path(get, path = "/sessions/{session_id}/events/{event_id}", tag = "events", operation_id = "getEvent",
    params(("session_id" = SessionId, Path), ("event_id" = EventId, Path)),
    responses((status = 200, body = EventView), Errors))]
pub(crate) async fn get(
    caller: SessionCaller<ReadLog>,
    Path((_, event)): Path<(SessionId, EventId)>,
) -> Result<Response> {
    let entry = visible(&caller, event).await?;
    Ok(respond(&view(&entry)?))
}

/// Get the complete body of an event
///
/// Returns the body as it was before truncation.
#[utoipa::path(get, path = "/sessions/{session_id}/events/{event_id}/content", tag = "events",
    operation_id = "getEventContent", params(("session_id" = SessionId, Path), ("event_id" = EventId, Path)),
    responses((status = 200, content((Object = "application/json"))), Errors))]
pub(crate) async fn content(
    caller: SessionCaller<ReadLog>,
    Path((_, event)): Path<(SessionId, EventId)>,
) -> Result<Response> {
    let entry = visible(&caller, event).await?;
    let mut response = HttpBody::from(whole(&caller.app, caller.org, entry).await?).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // A browser must never execute content that an agent wrote.
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    Ok(response)
}

/// Returns the whole body of an event as JSON.
pub(super) async fn whole(app: &App, org: OrgId, entry: Entry) -> Result<Bytes> {
    match &entry.content_ref {
        Some(key) => {
            let content = app.0.journal.content(org, entry.session, entry.id, key).await?;
            content.ok_or_else(ApiError::content_missing)
        }
        None => Ok(Bytes::from(entry.body)),
    }
}

struct EventFilter {
    level: Level,
    kind: Option<String>,
    turn: Option<TurnId>,
}

async fn page(caller: &SessionCaller<ReadLog>, query: EventQuery) -> Result<Response> {
    if query.deltas.is_some() {
        return Err(ApiError::invalid("deltas", "`deltas` is for streams: add `stream=sse`"));
    }
    let wanted = EventFilter {
        level: query.level.unwrap_or(Level::Internal),
        turn: query.turn_id.as_deref().map(path::id).transpose()?,
        kind: query.kind,
    };
    let after = start(query.after, query.cursor.as_deref())?;
    read_page(caller, after, query.limit, wanted).await
}

async fn read_page(
    caller: &SessionCaller<ReadLog>,
    after: i64,
    limit: Option<u32>,
    wanted: EventFilter,
) -> Result<Response> {
    let rows = rows(limit)?;
    let mut tx = caller.begin().await?;
    tx.session(caller.session).await?;
    let range = Range {
        after,
        level: wanted.level.min(caller.level),
        kind: wanted.kind,
        turn: wanted.turn,
        limit: rows as i64 + 1,
    };
    let page = tx.events(caller.session, &range).await?;
    drop(tx);
    let mut entries = page.entries(&caller.app.0.store).await?;
    let has_more = entries.len() > rows;
    entries.truncate(rows);
    // The cursor of a log page is a `seq`, so that `after` accepts it as well.
    let next_cursor = entries.last().filter(|_| has_more).map(|entry| entry.seq.to_string());
    let data = entries.iter().map(view).collect::<Result<_, _>>()?;
    Ok(respond(&Page { data, next_cursor }))
}

/// Returns the later position of `after` and `cursor`; 0 when both are absent.
fn start(after: Option<i64>, cursor: Option<&str>) -> Result<i64> {
    let after = after.unwrap_or_default();
    if after < 0 {
        return Err(ApiError::invalid("after", "`after` must be the `seq` of an event, 0 or larger"));
    }
    let place = cursor.map_or(Some(0), |cursor| cursor.parse().ok().filter(|place| *place >= 0));
    let place =
        place.ok_or_else(|| ApiError::invalid("cursor", "`cursor` is not a `next_cursor` of this list"))?;
    Ok(after.max(place))
}

async fn follow(caller: SessionCaller<ReadLog>, headers: &HeaderMap, query: EventQuery) -> Result<Response> {
    let session = caller.begin().await?.session(caller.session).await?;
    // A reconnecting browser repeats its first URL: the larger of both positions applies.
    let tail = tail(&caller, query, last_seen(headers)?)?;
    is_in_log(&session, &tail)?;
    let frames = caller.app.0.streams.follow(tail).map_err(full)?;
    Ok(sse(caller.app, caller.proof, frames, format_frame))
}

/// Refuses a position after the end of the log. A reader can only have got it before the database failed over and
/// lost the last commits.
pub(crate) fn is_in_log(session: &Session, tail: &Tail) -> Result<()> {
    if tail.after <= session.head {
        return Ok(());
    }
    let head = session.head;
    Err(ApiError::conflict(
        "events_lost",
        format!("the log ends at `seq` {head}; read it again from the beginning"),
    ))
}

/// Returns the `seq` in `Last-Event-ID`. An invalid value is rejected, because a stream from the
/// beginning would repeat everything.
fn last_seen(headers: &HeaderMap) -> Result<Option<i64>> {
    let read = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    let refused = || ApiError::invalid("Last-Event-ID", "`Last-Event-ID` must be the `seq` of an event");
    headers.get("last-event-id").map(|value| read(value).ok_or_else(refused)).transpose()
}

/// Builds the requested tail, limited to what the caller may read.
pub(crate) fn tail(
    caller: &SessionCaller<ReadLog>,
    query: EventQuery,
    last_seen: Option<i64>,
) -> Result<Tail> {
    Ok(Tail {
        org: caller.org,
        session: caller.session,
        after: start(query.after, query.cursor.as_deref())?.max(last_seen.unwrap_or_default()),
        level: query.level.unwrap_or(Level::Internal).min(caller.level),
        kind: query.kind,
        turn: query.turn_id.as_deref().map(path::id).transpose()?,
        deltas: query.deltas.unwrap_or_default(),
    })
}

pub(crate) fn full(_: Full) -> ApiError {
    ApiError::unavailable(std::time::Duration::from_secs(5))
}

/// Formats a frame as a server-sent event: LF only, no `event:` line, the `seq` as id.
fn format_frame(frame: Frame) -> String {
    match frame {
        Frame::Event(item) if item.json.is_empty() => ": unreadable event\n\n".to_owned(),
        Frame::Event(item) => format!("id: {}\ndata: {}\n\n", item.seq, item.json),
        Frame::Delta(json) => format!("data: {json}\n\n"),
        Frame::Alive => ": alive\n\n".to_owned(),
    }
}

/// Streams frames as a response body until they end or the caller's key is no longer valid.
pub(crate) fn sse<F: Send + 'static>(
    app: App,
    proof: Proof,
    frames: mpsc::Receiver<F>,
    format_frame: impl Fn(F) -> String + Send + 'static,
) -> Response {
    let due = Instant::now() + proof.interval();
    let reader = (frames, due, true);
    let state = (app, proof, reader, format_frame);
    let frames = futures::stream::unfold(state, async |(app, proof, mut reader, format_frame)| {
        let (frames, due, may_read) = &mut reader;
        loop {
            // Cancel-safe: a frame that was not received stays in the channel.
            tokio::select! {
                biased;
                () = sleep_until(*due) => {
                    if !*may_read {
                        return None;
                    }
                    *may_read = proof.holds(&app).await;
                    *due = Instant::now() + if *may_read { proof.interval() } else { STREAM_REVOKED_GRACE };
                }
                frame = frames.recv() => {
                    let text = Ok::<_, std::convert::Infallible>(format_frame(frame?));
                    return Some((text, (app, proof, reader, format_frame)));
                }
            }
        }
    });
    let first = futures::stream::iter([Ok("retry: 2000\n\n".to_owned())]);
    let mut response = HttpBody::from_stream(first.chain(frames).boxed()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies must forward each frame immediately.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

async fn visible(caller: &SessionCaller<ReadLog>, event: EventId) -> Result<Entry> {
    let page = caller.begin().await?.event(caller.session, event).await?;
    let entry = page.entry(&caller.app.0.store).await?;
    if entry.level > caller.level { Err(ApiError::not_found()) } else { Ok(entry) }
}

/// Builds the view of a log entry.
pub(crate) fn view(entry: &Entry) -> Result<EventView, ApiError> {
    EventView::of(entry).map_err(|error| crate::store::Error::Corrupt(error.to_string()).into())
}
