//! List sessions, newest first, or follow the list.

use axum::http::{HeaderMap, Uri};
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::IntoParams;

use crate::{
    domain::Status,
    http::{
        page::{List, rows},
        path,
        prelude::*,
        scope::ReadSessions,
        sessions::events::{StreamMode, full, sse},
    },
    store::session::Filter,
    stream::{ListFrame, ListTail, Position, views},
    wire::session::SessionView,
};

/// Filters for listing sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionQuery {
    pub status: Option<Status>,
    /// Id or name of an agent; `agent_id` is accepted too.
    #[serde(alias = "agent_id")]
    pub agent: Option<String>,
    /// The key that the session was created with.
    pub key: Option<String>,
    /// Slug of a session that is not archived.
    pub slug: Option<String>,
    /// Id or slug of the parent session.
    pub parent_session_id: Option<String>,
    /// Created after this time (RFC 3339).
    pub after: Option<String>,
    /// Created before this time (RFC 3339).
    pub before: Option<String>,
    /// `true`: only sessions that should make progress and do not; empty when the service is healthy.
    pub overdue: Option<bool>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page; for a stream, the `id` of the last received frame.
    pub cursor: Option<String>,
    /// `sse` follows the list as server-sent events.
    pub stream: Option<StreamMode>,
}

const FIELDS: [&str; 12] = [
    "status",
    "agent",
    "agent_id",
    "key",
    "slug",
    "parent_session_id",
    "after",
    "before",
    "overdue",
    "limit",
    "cursor",
    "stream",
];
/// Names of the lists in cursors.
const PAGES: &str = "sessions";
const LIVE: &str = "sessions/live";

/// List sessions, or follow the list with `stream=sse`
///
/// Newest first. `metadata[name]=value` matches fields of the metadata. A stream sends the newest `limit`
/// sessions (`session.listed`), then `list.current`, then a frame whenever the status, phase, title,
/// metadata, limits or turns of a session change: `session.listed` with its current state, or
/// `session.unlisted` if it was deleted or no longer matches the filter. `Last-Event-ID` or `cursor`
/// resumes a stream without missing a change.
#[utoipa::path(get, path = "/sessions", tag = "sessions", operation_id = "listSessions",
    params(SessionQuery, ("metadata" = Option<HashMap<String, String>>, Query, style = DeepObject, explode,
        description = "Required text of metadata fields, for example `metadata[team]=blue`."),
        ("Last-Event-ID" = Option<String>, Header,
        description = "`id` of the last received frame; the stream resumes after it.")),
    responses((status = 200, content(
        (Page<SessionView> = "application/json"), (String = "text/event-stream"))), Errors))]
pub(super) async fn list(
    caller: Caller<ReadSessions>,
    Query(query): Query<SessionQuery>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response> {
    let rows = rows(query.limit)?;
    let agent = path::resolve_optional(&caller.app, caller.org, query.agent.as_deref()).await?;
    let parent = path::resolve_optional(&caller.app, caller.org, query.parent_session_id.as_deref()).await?;
    let mut filter = Filter {
        status: query.status,
        agent,
        key: query.key,
        // Postgres rejects U+0000 in text, and no slug contains it.
        slug: query.slug.map(|slug| slug.replace('\0', "")),
        parent,
        metadata: metadata(&uri)?,
        after: instant("after", query.after)?,
        before: instant("before", query.before)?,
        overdue: query.overdue,
        below: None,
    };
    if let Some(StreamMode::Sse) = query.stream {
        return follow(caller, filter, rows, last_seen(&headers, query.cursor)?);
    }
    let list = caller.list(PAGES, &filter).at(query.limit, query.cursor.as_deref())?;
    filter.below = list.below;
    let mut tx = caller.begin().await?;
    let sessions = tx.sessions(&filter, list.limit()).await?;
    let views = views(&mut tx, sessions).await?;
    Ok(respond(&list.page(views, |view| view.id, std::convert::identity)))
}

fn follow(
    caller: Caller<ReadSessions>,
    filter: Filter,
    rows: usize,
    last_seen: Option<(&'static str, String)>,
) -> Result<Response> {
    if filter.overdue.is_some() {
        let message = "`overdue` depends on the time and cannot be followed; poll the list instead";
        return Err(ApiError::invalid("overdue", message));
    }
    let list = caller.list(LIVE, &filter);
    let from: Option<Option<Position>> = match &last_seen {
        // A position of another list is rejected.
        Some((param, id)) => list.position(Some(id.as_str())).map_err(|_| {
            ApiError::invalid(
                *param,
                format!("`{param}` is not the id of a frame of this stream; omit it to start over"),
            )
        })?,
        None => None,
    };
    let (org, from) = (caller.org, from.flatten());
    let tail = ListTail { org, filter: filter.clone(), rows: rows as i64, from };
    let frames = caller.app.0.streams.follow_list(tail).map_err(full)?;
    let app = caller.app.clone();
    let written = move |frame| match frame {
        ListFrame::Line { position, json } => {
            let id = List::new(&app, org, LIVE, &filter).encode(&position);
            format!("id: {id}\ndata: {json}\n\n")
        }
        ListFrame::Alive => ": alive\n\n".to_owned(),
    };
    Ok(sse(caller.app, caller.proof, frames, written))
}

/// Returns the position at which a stream was interrupted. A reconnecting browser repeats its first URL,
/// so the header is newer than the query.
fn last_seen(headers: &HeaderMap, cursor: Option<String>) -> Result<Option<(&'static str, String)>> {
    let header = headers.get("last-event-id").map(|value| value.to_str());
    match header.transpose() {
        Ok(Some(id)) => Ok(Some(("Last-Event-ID", id.to_owned()))),
        Ok(None) => Ok(cursor.map(|cursor| ("cursor", cursor))),
        Err(_) => Err(ApiError::invalid("Last-Event-ID", "`Last-Event-ID` is not the id of a frame")),
    }
}

/// Returns the `metadata[name]=value` pairs. Any other unknown parameter is rejected.
fn metadata(uri: &Uri) -> Result<Vec<(String, String)>> {
    let Ok(axum::extract::Query(pairs)) = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
    else {
        return Ok(Vec::new());
    };
    let mut metadata = Vec::new();
    for (name, value) in pairs {
        if FIELDS.contains(&name.as_str()) {
            continue;
        }
        let field = name.strip_prefix("metadata[").and_then(|rest| rest.strip_suffix(']'));
        // `metadata[a][b]` names a field of an object, and values of metadata are compared as texts.
        match field.filter(|field| !field.contains("][")) {
            Some(field) => metadata.push((field.to_owned(), value)),
            None => return Err(ApiError::invalid(name.clone(), format!("unknown parameter `{name}`"))),
        }
    }
    Ok(metadata)
}

fn instant(param: &'static str, text: Option<String>) -> Result<Option<OffsetDateTime>> {
    text.map(|text| OffsetDateTime::parse(&text, &Rfc3339))
        .transpose()
        .map_err(|_| ApiError::invalid(param, format!("`{param}` must be a time like 2026-01-31T12:00:00Z")))
}
