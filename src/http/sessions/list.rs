//! List sessions, newest first.

use axum::{extract::State, http::Uri, response::Response};
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::IntoParams;

use crate::{
    domain::{AgentId, Status},
    http::{
        App,
        auth::{Caller, ReadSessions},
        error::ApiError,
        openapi::Errors,
        page::{List, Query, rows},
        path,
        sessions::view::views,
        write::json,
    },
    store::session::Filter,
    wire::{Page, session::SessionView},
};

/// Which sessions are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SessionQuery {
    pub status: Option<Status>,
    /// Id of an agent.
    #[param(value_type = Option<AgentId>)]
    pub agent: Option<String>,
    /// The key that a session was created with.
    pub key: Option<String>,
    /// Created after this time (RFC 3339).
    pub after: Option<String>,
    /// Created before this time (RFC 3339).
    pub before: Option<String>,
    /// `true`: only sessions that stand still although they should not; none when the
    /// service is healthy.
    pub overdue: Option<bool>,
    /// Rows of the page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

const FIELDS: [&str; 8] = ["status", "agent", "key", "after", "before", "overdue", "limit", "cursor"];

/// List sessions, newest first; `metadata[name]=value` matches fields of the metadata.
#[utoipa::path(get, path = "/sessions", tag = "sessions", operation_id = "listSessions",
    params(SessionQuery, ("metadata" = Option<HashMap<String, String>>, Query, style = DeepObject, explode,
        description = "Fields of the metadata that must have this text, as in `metadata[team]=blue`.")),
    responses((status = 200, body = Page<SessionView>), Errors))]
pub async fn list(
    State(app): State<App>,
    caller: Caller<ReadSessions>,
    Query(query): Query<SessionQuery>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let rows = rows(query.limit)?;
    let mut filter = Filter {
        status: query.status,
        agent: query.agent.as_deref().map(path::id).transpose()?,
        key: query.key,
        metadata: metadata(&uri)?,
        after: instant("after", query.after)?,
        before: instant("before", query.before)?,
        overdue: query.overdue,
        below: None,
    };
    let list = List::new(&app, caller.tenant, "sessions", &filter);
    filter.below = list.position(query.cursor.as_deref())?;
    let mut tx = app.0.store.begin(caller.tenant).await?;
    let sessions = tx.sessions(&filter, rows as i64 + 1).await?;
    let views = views(&mut tx, sessions).await?;
    Ok(json(&list.page(views, rows, |view| view.id, std::convert::identity)))
}

/// The `metadata[name]=value` pairs; any other unknown parameter is refused here.
fn metadata(uri: &Uri) -> Result<Vec<(String, String)>, ApiError> {
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
        match field {
            Some(field) => metadata.push((field.to_owned(), value)),
            None => return Err(ApiError::invalid(name.clone(), format!("unknown parameter `{name}`"))),
        }
    }
    Ok(metadata)
}

fn instant(param: &'static str, text: Option<String>) -> Result<Option<OffsetDateTime>, ApiError> {
    text.map(|text| OffsetDateTime::parse(&text, &Rfc3339))
        .transpose()
        .map_err(|_| ApiError::invalid(param, format!("`{param}` must be a time like 2026-01-31T12:00:00Z")))
}
