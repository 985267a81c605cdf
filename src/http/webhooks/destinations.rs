//! Webhook destinations of a session.

use serde_json::json;

use crate::{
    base::limit::{DESTINATIONS_MAX, WEBHOOK_OVERLAP_SECONDS},
    domain::{DestinationId, Level, SessionId, Status},
    http::{
        auth::missing_scope,
        prelude::*,
        scope::{ReadSessions, Scope as _, WriteSessions},
    },
    store::{
        Tx,
        destination::{self, Destination},
    },
    webhook::Secret,
    wire::webhook::{CreateDestination, DestinationView, PatchDestination, RotateSecret},
};

/// Add a webhook destination to a session
///
/// Events appended from now on are sent to it, so the key also needs `sessions:read`.
#[utoipa::path(post, path = "/sessions/{session_id}/destinations", tag = "webhooks",
    operation_id = "createDestination", params(("session_id" = SessionId, Path)),
    request_body = CreateDestination, responses((status = 201, body = DestinationView), Errors))]
pub(crate) async fn create(
    caller: Caller<WriteSessions>,
    Path(id): Path<SessionId>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateDestination>>,
) -> Result<Answer> {
    may_read(&caller)?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let session = unit.tx().lock_session(id).await?;
        if session.status == Status::Archived {
            return Err(crate::domain::decide::Rejection::Archived.into());
        }
        if unit.tx().destinations(Some(id)).await?.len() >= DESTINATIONS_MAX {
            let message = format!("a session has at most {DESTINATIONS_MAX} destinations");
            return Err(ApiError::conflict("too_many_destinations", message));
        }
        let view = store(&caller.app, unit, id, session.head, wanted).await?;
        unit.tx().mark_destinations_changed(id).await?;
        let details = json!({ "destination_id": view.id, "url": view.url, "level": view.level });
        caller.record_audit(unit.tx(), "destination.created", id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &view))
    })
    .await
}

/// List a session's destinations
///
/// Newest first.
#[utoipa::path(get, path = "/sessions/{session_id}/destinations", tag = "webhooks",
    operation_id = "listDestinations", params(("session_id" = SessionId, Path)),
    responses((status = 200, body = Page<DestinationView>), Errors))]
pub(crate) async fn list(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.session(id).await?;
    let data = tx.destinations(Some(id)).await?.into_iter().map(view).collect::<Result<_, _>>()?;
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Get a destination
#[utoipa::path(get, path = "/sessions/{session_id}/destinations/{destination_id}", tag = "webhooks",
    operation_id = "getDestination",
    params(("session_id" = SessionId, Path), ("destination_id" = DestinationId, Path)),
    responses((status = 200, body = DestinationView), Errors))]
pub(crate) async fn get(
    caller: Caller<ReadSessions>,
    Path((session, destination)): Path<(SessionId, DestinationId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.destination(Some(session), destination).await?)?))
}

/// Change a destination
///
/// Also possible for an archived session: its pending deliveries continue. For another URL or other events
/// the key also needs `sessions:read`.
#[utoipa::path(patch, path = "/sessions/{session_id}/destinations/{destination_id}", tag = "webhooks",
    operation_id = "updateDestination",
    params(("session_id" = SessionId, Path), ("destination_id" = DestinationId, Path)),
    request_body = PatchDestination, responses((status = 200, body = DestinationView), Errors))]
pub(crate) async fn patch(
    caller: Caller<WriteSessions>,
    Path((session, destination)): Path<(SessionId, DestinationId)>,
    Body(change): Body<PatchDestination>,
) -> Result<Response> {
    let PatchDestination { url, level, types, include_raw, .. } = &change;
    if url.is_some() || level.is_some() || types.is_some() || include_raw.is_some() {
        may_read(&caller)?;
    }
    let mut tx = caller.begin().await?;
    // First, because it locks the session: lock order is session before destination.
    tx.mark_destinations_changed(session).await?;
    let destination = update(&caller.app, &mut tx, Some(session), destination, change).await?;
    let details =
        json!({ "destination_id": destination.id, "url": destination.url, "level": destination.level });
    caller.record_audit(&mut tx, "destination.updated", session, details).await?;
    tx.commit().await?;
    Ok(respond(&view(destination)?))
}

/// Rotate the signing secret of a destination
///
/// During the overlap, deliveries are signed with both secrets.
#[utoipa::path(post, path = "/sessions/{session_id}/destinations/{destination_id}/rotate-secret", tag = "webhooks",
    operation_id = "rotateDestinationSecret",
    params(("session_id" = SessionId, Path), ("destination_id" = DestinationId, Path)),
    request_body = RotateSecret, responses((status = 200, body = DestinationView), Errors))]
pub(crate) async fn rotate(
    caller: Caller<WriteSessions>,
    Path((session, destination)): Path<(SessionId, DestinationId)>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<RotateSecret>>,
) -> Result<Answer> {
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let (destination, secret) =
            replace_secret(&caller.app, unit, Some(session), destination, wanted).await?;
        Ok(Answer::new(StatusCode::OK, &DestinationView { secret, ..view(destination)? }))
    })
    .await
}

/// Delete a destination
///
/// Its pending deliveries become `dead_letter`.
#[utoipa::path(delete, path = "/sessions/{session_id}/destinations/{destination_id}", tag = "webhooks",
    operation_id = "deleteDestination",
    params(("session_id" = SessionId, Path), ("destination_id" = DestinationId, Path)),
    responses((status = 204), Errors))]
pub(crate) async fn delete(
    caller: Caller<WriteSessions>,
    Path((session, destination)): Path<(SessionId, DestinationId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_destination(Some(session), destination).await?;
    let details = json!({ "destination_id": destination });
    caller.record_audit(&mut tx, "destination.deleted", session, details).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Refuses a key that may not read the events which a destination gets.
fn may_read(caller: &Caller<WriteSessions>) -> Result<()> {
    if ReadSessions::is_in(&caller.scopes) { Ok(()) } else { Err(missing_scope(ReadSessions::NAME)) }
}

/// Stores a destination for events with a `seq` larger than `after`. The view contains the generated
/// secret.
pub(crate) async fn store(
    app: &App,
    unit: &mut Unit,
    session: SessionId,
    after: i64,
    wanted: CreateDestination,
) -> Result<DestinationView> {
    let (destination, secret) = insert(app, unit, Some(session), after, wanted).await?;
    Ok(DestinationView { secret, ..view(destination)? })
}

/// Stores a destination of a session, or of the organization if `session` is `None`. Returns the secret
/// only if it was generated here.
pub(crate) async fn insert(
    app: &App,
    unit: &mut Unit,
    session: Option<SessionId>,
    after: i64,
    wanted: CreateDestination,
) -> Result<(Destination, Option<String>)> {
    let origin = app.0.journal.origin();
    let now = origin.now();
    let destination = Destination {
        id: origin.id(),
        session,
        url: checked_url(app, &wanted.url)?,
        level: wanted.level.unwrap_or(Level::User),
        types: wanted.types,
        include_raw: wanted.include_raw,
        enabled: wanted.enabled.unwrap_or(true),
        created_after_seq: after,
        secret_before_until: None,
        failing_since: None,
        disabled_reason: None,
        created_at: now,
        updated_at: now,
    };
    let secret = match &wanted.secret {
        Some(secret) => parse_secret(secret)?,
        None => Secret::generate(origin),
    };
    let sealed = seal(app, unit.tx(), destination.id, &secret).await?;
    unit.tx().insert_destination(&destination, &sealed).await?;
    let shown = wanted.secret.is_none().then(|| secret.expose().to_owned());
    Ok((destination, shown))
}

/// Changes a destination of a session or of the organization.
pub(crate) async fn update(
    app: &App,
    tx: &mut Tx,
    session: Option<SessionId>,
    destination: DestinationId,
    change: PatchDestination,
) -> Result<Destination> {
    let mut destination = tx.lock_destination(session, destination).await?;
    if let Some(url) = change.url {
        destination.url = checked_url(app, &url)?;
    }
    destination.level = change.level.unwrap_or(destination.level);
    destination.types = change.types.unwrap_or(destination.types);
    destination.include_raw = change.include_raw.unwrap_or(destination.include_raw);
    destination.enabled = change.enabled.unwrap_or(destination.enabled);
    destination.updated_at = app.0.journal.origin().now();
    let secret = change.secret.as_deref().map(parse_secret).transpose()?;
    let sealed = match &secret {
        Some(secret) => Some(seal(app, tx, destination.id, secret).await?),
        None => None,
    };
    tx.update_destination(&destination, sealed).await?;
    Ok(tx.destination(session, destination.id).await?)
}

/// Replaces the secret of a destination. Returns the secret only if it was generated here.
pub(crate) async fn replace_secret(
    app: &App,
    unit: &mut Unit,
    session: Option<SessionId>,
    destination: DestinationId,
    wanted: RotateSecret,
) -> Result<(Destination, Option<String>)> {
    unit.tx().lock_destination(session, destination).await?;
    let secret = match &wanted.secret {
        Some(secret) => parse_secret(secret)?,
        None => Secret::generate(app.0.journal.origin()),
    };
    let sealed = seal(app, unit.tx(), destination, &secret).await?;
    let overlap = wanted.overlap_seconds.unwrap_or(WEBHOOK_OVERLAP_SECONDS.0);
    unit.tx().rotate_secret(destination, &sealed, overlap).await?;
    let shown = wanted.secret.is_none().then(|| secret.expose().to_owned());
    Ok((unit.tx().destination(session, destination).await?, shown))
}

fn checked_url(app: &App, url: &str) -> Result<String> {
    let parsed = crate::net::parse(url)?;
    app.0.webhooks.check(&parsed)?;
    Ok(url.to_owned())
}

fn parse_secret(text: &str) -> Result<Secret> {
    Secret::parse(text).map_err(|error| ApiError::invalid("secret", error.to_string()))
}

async fn seal(app: &App, tx: &mut Tx, id: DestinationId, secret: &Secret) -> Result<Vec<u8>> {
    let org = tx.org();
    let data_key = tx.data_key(app.0.store.master()).await?;
    Ok(data_key.seal(secret.expose().as_bytes(), &destination::context(org, id), app.0.journal.origin()))
}

fn view(destination: Destination) -> Result<DestinationView> {
    // The query selected a destination of a session.
    let session = destination.session.ok_or_else(ApiError::not_found)?;
    Ok(DestinationView {
        id: destination.id,
        session,
        disabled_reason: destination.disabled_reason,
        failing_since: destination.failing_since,
        secret_before_until: destination.secret_before_until,
        kind: "webhook".to_owned(),
        url: destination.url,
        level: destination.level,
        types: destination.types,
        include_raw: destination.include_raw,
        enabled: destination.enabled,
        has_secret: true,
        secret: None,
        created_after_seq: destination.created_after_seq,
        created_at: destination.created_at,
        updated_at: destination.updated_at,
    })
}
