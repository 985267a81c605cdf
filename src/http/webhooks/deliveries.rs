//! Deliveries of a session's events: list, read, send again.

use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    base::{Id, limit::DELIVERY_ATTEMPTS_SHOWN},
    domain::{DeliveryId, DestinationId, SessionId, WebhookId},
    http::{
        path,
        prelude::*,
        scope::{ReadSessions, WriteSessions},
    },
    store::{
        Tx,
        column::{from_word, word},
        delivery::{AttemptRow, DeliveryRow, Filter, Of},
    },
    wire::webhook::{AttemptView, DeliveryStatus, DeliveryView},
};

/// Filters for listing deliveries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeliveryQuery {
    /// Id of a destination.
    #[param(value_type = Option<DestinationId>)]
    pub destination: Option<String>,
    pub status: Option<DeliveryStatus>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// List a session's deliveries
///
/// Newest event first.
#[utoipa::path(get, path = "/sessions/{session_id}/deliveries", tag = "webhooks",
    operation_id = "listDeliveries", params(("session_id" = SessionId, Path), DeliveryQuery),
    responses((status = 200, body = Page<DeliveryView>), Errors))]
pub(super) async fn list(
    caller: Caller<ReadSessions>,
    Path(id): Path<SessionId>,
    Query(query): Query<DeliveryQuery>,
) -> Result<Response> {
    let destination: Option<DestinationId> = query.destination.as_deref().map(path::id).transpose()?;
    let status = query.status.as_ref().map(word);
    let list = caller
        .list("deliveries", &(id, destination, &query.status))
        .at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    tx.session(id).await?;
    let filter = Filter { destination, status, below: list.below };
    let found = tx.deliveries(id, &filter, list.limit()).await?;
    let position =
        |row: &DeliveryRow| (row.event_seq.unwrap_or_default(), Id::from_uuid(row.delivery_id) as DeliveryId);
    let page = list.page(found, position, view);
    let data = page.data.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(respond(&Page { data, next_cursor: page.next_cursor }))
}

/// Get a delivery
///
/// Includes its attempts.
#[utoipa::path(get, path = "/sessions/{session_id}/deliveries/{delivery_id}", tag = "webhooks",
    operation_id = "getDelivery",
    params(("session_id" = SessionId, Path), ("delivery_id" = DeliveryId, Path)),
    responses((status = 200, body = DeliveryView), Errors))]
pub(super) async fn get(
    caller: Caller<ReadSessions>,
    Path((session, delivery)): Path<(SessionId, DeliveryId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&with_attempts(&mut tx, Of::Session(session), delivery).await?))
}

/// Send a delivery again
///
/// Allowed in any status. The `webhook-id` stays the same.
#[utoipa::path(post, path = "/sessions/{session_id}/deliveries/{delivery_id}/redeliver", tag = "webhooks",
    operation_id = "redeliver",
    params(("session_id" = SessionId, Path), ("delivery_id" = DeliveryId, Path)),
    responses((status = 202, body = DeliveryView), Errors))]
pub(super) async fn redeliver(
    caller: Caller<WriteSessions>,
    Path((session, delivery)): Path<(SessionId, DeliveryId)>,
    once: IdempotentRequest,
) -> Result<Answer> {
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let row = unit.tx().delivery(Of::Session(session), delivery).await?;
        // A deleted destination is reported as 409, instead of queueing a delivery that cannot be sent.
        match unit.tx().destination(Some(session), Id::from_uuid(row.destination_id)).await {
            Ok(_) => {}
            Err(crate::store::Error::NotFound) => {
                return Err(ApiError::conflict("destination_deleted", "the destination was deleted"));
            }
            Err(error) => return Err(error.into()),
        }
        let view = make_due(unit, Of::Session(session), delivery).await?;
        Ok(Answer::new(StatusCode::ACCEPTED, &view))
    })
    .await
}

/// Makes a delivery due immediately.
pub(super) async fn make_due(unit: &mut Unit, of: Of, delivery: DeliveryId) -> Result<DeliveryView> {
    unit.tx().redeliver(delivery).await?;
    unit.has_due_delivery();
    view(unit.tx().delivery(of, delivery).await?)
}

/// Returns a delivery with its attempts.
pub(super) async fn with_attempts(tx: &mut Tx, of: Of, delivery: DeliveryId) -> Result<DeliveryView> {
    let row = tx.delivery(of, delivery).await?;
    let attempts = tx.attempts(delivery, DELIVERY_ATTEMPTS_SHOWN).await?;
    let log = attempts.into_iter().map(attempt).collect();
    let view = view(row)?;
    Ok(match of {
        Of::Session(_) => DeliveryView { log: Some(log), ..view },
        Of::Webhook(_) => DeliveryView { log: Some(log), ..of_webhook(view) },
    })
}

/// Builds the view of a delivery for the owner of an organization webhook.
pub(super) fn of_webhook(view: DeliveryView) -> DeliveryView {
    let webhook = view.destination.map(|id| WebhookId::from_uuid(id.uuid()));
    DeliveryView { destination: None, webhook, ..view }
}

fn attempt(row: AttemptRow) -> AttemptView {
    AttemptView {
        at: row.at,
        number: row.number,
        response_code: row.response_code,
        error: row.error,
        duration_ms: row.duration_ms,
    }
}

pub(super) fn view(row: DeliveryRow) -> Result<DeliveryView> {
    Ok(DeliveryView {
        id: Id::from_uuid(row.delivery_id),
        session: row.session_id.map(Id::from_uuid),
        destination: Some(Id::from_uuid(row.destination_id)),
        webhook: None,
        event_id: Id::from_uuid(row.event_id),
        event_seq: row.event_seq,
        kind: row.r#type,
        status: from_word(&row.status)?,
        attempts: row.attempts,
        last_attempt_at: row.last_attempt_at,
        response_code: row.response_code,
        error: row.error,
        log: None,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}
