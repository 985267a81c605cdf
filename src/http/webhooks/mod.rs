//! Webhooks of the organization. They receive events of every session.

mod deliveries;
pub(crate) mod destinations;

use deliveries::{make_due, of_webhook, with_attempts};
use destinations::{insert, replace_secret, update};

use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    base::{Id, limit::WEBHOOKS_MAX},
    domain::{DeliveryId, DestinationId, Notice, WebhookId},
    http::{
        prelude::*,
        scope::{ReadWebhooks, WriteWebhooks},
    },
    store::{
        column::word,
        delivery::{DeliveryRow, Filter, Of},
        destination::Destination,
    },
    wire::webhook::{
        CreateDestination, DeliveryStatus, DeliveryView, PatchDestination, RotateSecret, WebhookView,
    },
};

/// Routes of webhooks, destinations of a session and their deliveries.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, patch, delete))
        .routes(routes!(rotate))
        .routes(routes!(test))
        .routes(routes!(deliveries))
        .routes(routes!(delivery))
        .routes(routes!(redeliver))
        .routes(routes!(destinations::create, destinations::list))
        .routes(routes!(destinations::get, destinations::patch, destinations::delete))
        .routes(routes!(destinations::rotate))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::get))
        .routes(routes!(deliveries::redeliver))
}

/// Add a webhook to the organization
///
/// Events of all sessions from now on are sent to it.
#[utoipa::path(post, path = "/webhooks", tag = "webhooks", operation_id = "createWebhook",
    request_body = CreateDestination, responses((status = 201, body = WebhookView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteWebhooks>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateDestination>>,
) -> Result<Answer> {
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        unit.tx().lock_webhooks().await?;
        if unit.tx().destinations(None).await?.len() >= WEBHOOKS_MAX {
            let message = format!("an organization has at most {WEBHOOKS_MAX} webhooks");
            return Err(ApiError::conflict("too_many_webhooks", message));
        }
        let (webhook, secret) = insert(&caller.app, unit, None, 0, wanted).await?;
        let view = WebhookView { secret, ..view(webhook) };
        caller.record_audit(unit.tx(), "webhook.created", view.id, json!({ "url": view.url })).await?;
        Ok(Answer::new(StatusCode::CREATED, &view))
    })
    .await
}

/// List the organization's webhooks
///
/// Newest first.
#[utoipa::path(get, path = "/webhooks", tag = "webhooks", operation_id = "listWebhooks",
    responses((status = 200, body = Page<WebhookView>), Errors))]
pub(super) async fn list(caller: Caller<ReadWebhooks>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let data = tx.destinations(None).await?.into_iter().map(view).collect();
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Get a webhook
#[utoipa::path(get, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "getWebhook",
    params(("webhook_id" = WebhookId, Path)), responses((status = 200, body = WebhookView), Errors))]
pub(super) async fn get(caller: Caller<ReadWebhooks>, Path(webhook): Path<WebhookId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.destination(None, id(webhook)).await?)))
}

/// Change a webhook
///
/// Enabling it again clears `disabled_reason`.
#[utoipa::path(patch, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "updateWebhook",
    params(("webhook_id" = WebhookId, Path)), request_body = PatchDestination,
    responses((status = 200, body = WebhookView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteWebhooks>,
    Path(webhook): Path<WebhookId>,
    Body(change): Body<PatchDestination>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let view = view(update(&caller.app, &mut tx, None, id(webhook), change).await?);
    let details = json!({ "url": view.url, "enabled": view.enabled });
    caller.record_audit(&mut tx, "webhook.updated", view.id, details).await?;
    tx.commit().await?;
    Ok(respond(&view))
}

/// Delete a webhook
///
/// Its pending deliveries become `dead_letter`.
#[utoipa::path(delete, path = "/webhooks/{webhook_id}", tag = "webhooks", operation_id = "deleteWebhook",
    params(("webhook_id" = WebhookId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(
    caller: Caller<WriteWebhooks>,
    Path(webhook): Path<WebhookId>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_destination(None, id(webhook)).await?;
    caller.record_audit(&mut tx, "webhook.deleted", webhook, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Rotate the signing secret of a webhook
///
/// During the overlap, deliveries are signed with both secrets.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/rotate-secret", tag = "webhooks",
    operation_id = "rotateWebhookSecret", params(("webhook_id" = WebhookId, Path)), request_body = RotateSecret,
    responses((status = 200, body = WebhookView), Errors))]
pub(super) async fn rotate(
    caller: Caller<WriteWebhooks>,
    Path(webhook): Path<WebhookId>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<RotateSecret>>,
) -> Result<Answer> {
    let webhook = id(webhook);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let (webhook, secret) = replace_secret(&caller.app, unit, None, webhook, wanted).await?;
        let view = WebhookView { secret, ..view(webhook) };
        caller.record_audit(unit.tx(), "webhook.secret_rotated", view.id, json!({})).await?;
        Ok(Answer::new(StatusCode::OK, &view))
    })
    .await
}

/// Send a `webhook.test` event to a webhook
///
/// The webhook's filters are ignored.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/test", tag = "webhooks", operation_id = "testWebhook",
    params(("webhook_id" = WebhookId, Path)), responses((status = 202, body = DeliveryView), Errors))]
pub(super) async fn test(
    caller: Caller<WriteWebhooks>,
    Path(webhook): Path<WebhookId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    let webhook = id(webhook);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        if !unit.tx().destination(None, webhook).await?.enabled {
            return Err(ApiError::conflict("webhook_disabled", "the webhook is disabled; enable it first"));
        }
        let origin = caller.origin();
        let notice = Notice::test(Id::from_uuid(webhook.uuid()), caller.actor.clone(), origin);
        let delivery = unit.tx().insert_notice_delivery(webhook, &notice).await?;
        unit.has_due_delivery();
        let row = unit.tx().delivery(Of::Webhook(webhook), delivery).await?;
        Ok(Answer::new(StatusCode::ACCEPTED, &of_webhook(deliveries::view(row)?)))
    })
    .await
}

/// Filters for listing deliveries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SentQuery {
    pub status: Option<DeliveryStatus>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// List the deliveries of a webhook
///
/// Newest first.
#[utoipa::path(get, path = "/webhooks/{webhook_id}/deliveries", tag = "webhooks",
    operation_id = "listWebhookDeliveries", params(("webhook_id" = WebhookId, Path), SentQuery),
    responses((status = 200, body = Page<DeliveryView>), Errors))]
pub(super) async fn deliveries(
    caller: Caller<ReadWebhooks>,
    Path(webhook): Path<WebhookId>,
    Query(query): Query<SentQuery>,
) -> Result<Response> {
    let webhook = id(webhook);
    let list = caller
        .list("webhook deliveries", &(webhook, &query.status))
        .at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    tx.destination(None, webhook).await?;
    let status = query.status.as_ref().map(word);
    let filter = Filter { destination: None, status, below: list.below };
    let found = tx.deliveries_of_webhook(webhook, &filter, list.limit()).await?;
    let position = |row: &DeliveryRow| {
        let micros = row.created_at.unix_timestamp_nanos() / 1_000;
        // Microseconds since 1970 fit into an i64 for another 290,000 years.
        (i64::try_from(micros).unwrap_or(i64::MAX), Id::from_uuid(row.delivery_id) as DeliveryId)
    };
    let page = list.page(found, position, |row| deliveries::view(row).map(of_webhook));
    let data = page.data.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(respond(&Page { data, next_cursor: page.next_cursor }))
}

/// Get a delivery of a webhook
///
/// Includes its attempts.
#[utoipa::path(get, path = "/webhooks/{webhook_id}/deliveries/{webhook_delivery_id}", tag = "webhooks",
    operation_id = "getWebhookDelivery",
    params(("webhook_id" = WebhookId, Path), ("webhook_delivery_id" = DeliveryId, Path)),
    responses((status = 200, body = DeliveryView), Errors))]
pub(super) async fn delivery(
    caller: Caller<ReadWebhooks>,
    Path((webhook, delivery)): Path<(WebhookId, DeliveryId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let webhook = id(webhook);
    tx.destination(None, webhook).await?;
    Ok(respond(&with_attempts(&mut tx, Of::Webhook(webhook), delivery).await?))
}

/// Send a delivery of a webhook again
///
/// Allowed in any status. The `webhook-id` stays the same.
#[utoipa::path(post, path = "/webhooks/{webhook_id}/deliveries/{webhook_delivery_id}/redeliver", tag = "webhooks",
    operation_id = "redeliverToWebhook",
    params(("webhook_id" = WebhookId, Path), ("webhook_delivery_id" = DeliveryId, Path)),
    responses((status = 202, body = DeliveryView), Errors))]
pub(super) async fn redeliver(
    caller: Caller<WriteWebhooks>,
    Path((webhook, delivery)): Path<(WebhookId, DeliveryId)>,
    once: IdempotentRequest,
) -> Result<Answer> {
    let (webhook, delivery) = (id(webhook), delivery);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        unit.tx().destination(None, webhook).await?;
        unit.tx().delivery(Of::Webhook(webhook), delivery).await?;
        let view = make_due(unit, Of::Webhook(webhook), delivery).await?;
        Ok(Answer::new(StatusCode::ACCEPTED, &of_webhook(view)))
    })
    .await
}

/// Returns the id under which a webhook is stored: it is a destination without a session.
fn id(webhook: WebhookId) -> DestinationId {
    Id::from_uuid(webhook.uuid())
}

fn view(webhook: Destination) -> WebhookView {
    WebhookView {
        id: Id::from_uuid(webhook.id.uuid()),
        disabled_reason: webhook.disabled_reason,
        failing_since: webhook.failing_since,
        secret_before_until: webhook.secret_before_until,
        url: webhook.url,
        level: webhook.level,
        types: webhook.types,
        include_raw: webhook.include_raw,
        enabled: webhook.enabled,
        has_secret: true,
        secret: None,
        created_at: webhook.created_at,
        updated_at: webhook.updated_at,
    }
}
