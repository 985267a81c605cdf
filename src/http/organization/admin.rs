//! Organization administration for the operator: `sojourn admin` over HTTP.
//!
//! Requires the operator's key, which belongs to no organization.

use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::{
    base::{Id, key, seal::sha256},
    domain::{KeyId, OrgId, session::Source},
    http::{auth::Operator, page::List, prelude::*},
    store::{
        self,
        audit::Act,
        key::NewKey,
        operator::actor,
        org::{Organization, Share},
    },
    wire::admin::{
        AdminOrganization, Balance, CreateOrganization, PatchAdminOrganization, SetBalance, SetPrices, TopUp,
    },
};

/// Confirmation for deleting an organization.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// The organization's id again. The deletion cannot be undone.
    #[param(value_type = OrgId)]
    pub confirm: String,
}

/// Create an organization
///
/// Returns its first API key, which has all scopes, once.
#[utoipa::path(post, path = "/admin/organizations", tag = "admin", operation_id = "createOrganization",
    security(("operator" = [])), request_body = CreateOrganization,
    responses((status = 201, body = AdminOrganization), Errors))]
pub(super) async fn create(
    Operator { app, .. }: Operator,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateOrganization>>,
) -> Result<Answer> {
    let origin = app.0.journal.origin();
    // The key determines the id, so a repeated request finds the response stored in that organization.
    let org: OrgId = once.key().map_or_else(|| origin.id(), org_id_of_key);
    app.0.store.operator(origin).found(org, &wanted.name).await?;
    once.run(&app, org, async |unit: &mut Unit| {
        let (id, secret): (KeyId, _) = (origin.id(), key::generate(origin));
        let (scopes, source) = (["*".to_owned()], Source::Api);
        let new = NewKey {
            org,
            key: id,
            secret: &secret,
            name: "first key",
            scopes: &scopes,
            source,
            expires_at: None,
        };
        unit.tx().insert_key(app.0.store.master(), &new).await?;
        let details = json!({ "key_id": id, "name": new.name, "scopes": scopes });
        record_audit(&app, unit, "key.created", details).await?;
        let made = unit.tx().organization().await?;
        Ok(Answer::new(StatusCode::CREATED, &AdminOrganization { key: Some(secret), ..view(made) }))
    })
    .await
}

/// List organizations
///
/// Newest first, including deleted ones.
#[utoipa::path(get, path = "/admin/organizations", tag = "admin", operation_id = "listOrganizations",
    security(("operator" = [])), params(PageQuery), responses((status = 200, body = Page<AdminOrganization>), Errors))]
pub(super) async fn list(Operator { app, .. }: Operator, Query(query): Query<PageQuery>) -> Result<Response> {
    let list = List::new(&app, Id::from_uuid(Uuid::nil()), "organizations", &())
        .at(query.limit, query.cursor.as_deref())?;
    let organizations = app.0.store.organizations_below(list.below, list.limit()).await?;
    Ok(respond(&list.page(organizations, |organization| organization.id, view)))
}

/// Get an organization
#[utoipa::path(get, path = "/admin/organizations/{organization_id}", tag = "admin", operation_id = "readOrganization",
    security(("operator" = [])), params(("organization_id" = OrgId, Path)),
    responses((status = 200, body = AdminOrganization), Errors))]
pub(super) async fn get(Operator { app, .. }: Operator, Path(organization): Path<OrgId>) -> Result<Response> {
    Ok(respond(&view(app.0.store.organization(organization).await?)))
}

/// Change an organization's concurrency limit and weight
#[utoipa::path(patch, path = "/admin/organizations/{organization_id}", tag = "admin",
    operation_id = "limitOrganization", security(("operator" = [])), params(("organization_id" = OrgId, Path)),
    request_body = PatchAdminOrganization, responses((status = 200, body = AdminOrganization), Errors))]
pub(super) async fn patch(
    Operator { app, .. }: Operator,
    Path(organization): Path<OrgId>,
    Body(change): Body<PatchAdminOrganization>,
) -> Result<Response> {
    let share = Share { concurrency: change.concurrency, weight: change.weight };
    let operator = app.0.store.operator(app.0.journal.origin());
    Ok(respond(&view(operator.share(organization, share).await?)))
}

/// Suspend an organization
///
/// Its requests are rejected, and its turns are canceled before they start.
#[utoipa::path(post, path = "/admin/organizations/{organization_id}/suspend", tag = "admin",
    operation_id = "suspendOrganization", security(("operator" = [])), params(("organization_id" = OrgId, Path)),
    responses((status = 200, body = AdminOrganization), Errors))]
pub(super) async fn suspend(
    Operator { app, .. }: Operator,
    Path(organization): Path<OrgId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    set_suspended(&app, organization, &once, true).await
}

/// Resume a suspended organization
#[utoipa::path(post, path = "/admin/organizations/{organization_id}/resume", tag = "admin",
    operation_id = "resumeOrganization", security(("operator" = [])), params(("organization_id" = OrgId, Path)),
    responses((status = 200, body = AdminOrganization), Errors))]
pub(super) async fn resume(
    Operator { app, .. }: Operator,
    Path(organization): Path<OrgId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    set_suspended(&app, organization, &once, false).await
}

/// Add to an organization's balance
///
/// An unlimited balance becomes limited.
#[utoipa::path(post, path = "/admin/organizations/{organization_id}/balance", tag = "admin",
    operation_id = "topUpOrganization", security(("operator" = [])), params(("organization_id" = OrgId, Path)),
    request_body = TopUp, responses((status = 200, body = Balance), Errors))]
pub(super) async fn top_up(
    Operator { app, .. }: Operator,
    Path(organization): Path<OrgId>,
    Idempotent(once, Body(wanted)): Idempotent<Body<TopUp>>,
) -> Result<Answer> {
    let org = existing_org(&app, organization).await?;
    once.run(&app, org, async |unit: &mut Unit| {
        let left = unit.tx().top_up(wanted.micros).await?;
        let details = json!({ "added_micros": wanted.micros, "balance_micros": left });
        record_audit(&app, unit, "balance.changed", details).await?;
        Ok(Answer::new(StatusCode::OK, &Balance { balance_micros: Some(left) }))
    })
    .await
}

/// Set an organization's balance
///
/// Null makes it unlimited.
#[utoipa::path(put, path = "/admin/organizations/{organization_id}/balance", tag = "admin",
    operation_id = "setOrganizationBalance", security(("operator" = [])),
    params(("organization_id" = OrgId, Path)),
    request_body = SetBalance, responses((status = 200, body = Balance), Errors))]
pub(super) async fn set_balance(
    Operator { app, .. }: Operator,
    Path(organization): Path<OrgId>,
    Body(wanted): Body<SetBalance>,
) -> Result<Response> {
    let org = existing_org(&app, organization).await?;
    app.0.store.operator(app.0.journal.origin()).set_balance(org, wanted.balance_micros).await?;
    Ok(respond(&Balance { balance_micros: wanted.balance_micros }))
}

/// Set or remove an organization's own price list
///
/// It takes precedence over the bundled list.
#[utoipa::path(put, path = "/admin/organizations/{organization_id}/prices", tag = "admin",
    operation_id = "setOrganizationPrices", security(("operator" = [])),
    params(("organization_id" = OrgId, Path)), request_body = SetPrices, responses((status = 204), Errors))]
pub(super) async fn set_prices(
    Operator { app, .. }: Operator,
    Path(organization): Path<OrgId>,
    Body(wanted): Body<SetPrices>,
) -> Result<Response> {
    if let Some(list) = &wanted.prices {
        if list.version.is_empty() {
            return Err(ApiError::invalid("prices", "a price list needs a `version`"));
        }
        if let Some(name) = list.implausible_price() {
            let message = format!("the price of {name} is out of range; prices are in whole micro-USD");
            return Err(ApiError::invalid("prices", message));
        }
    }
    let org = existing_org(&app, organization).await?;
    app.0.store.operator(app.0.journal.origin()).set_prices(org, wanted.prices.as_ref()).await?;
    Ok(no_content())
}

/// Delete an organization and all its data
///
/// Only its audit log is retained. Its keys are refused and its turns end at once; its rows, blobs and sandboxes are
/// deleted in the background.
#[utoipa::path(delete, path = "/admin/organizations/{organization_id}", tag = "admin",
    operation_id = "deleteOrganization", security(("operator" = [])),
    params(("organization_id" = OrgId, Path), DeleteQuery), responses((status = 204), Errors))]
pub(super) async fn delete(
    Operator { app, .. }: Operator,
    Path(org): Path<OrgId>,
    Query(query): Query<DeleteQuery>,
) -> Result<Response> {
    if query.confirm != org.to_string() {
        return Err(ApiError::invalid(
            "confirm",
            "`confirm` must be the id of the organization; nothing was deleted",
        ));
    }
    app.0.store.operator(app.0.journal.origin()).delete(org).await?;
    Ok(no_content())
}

async fn set_suspended(
    app: &App,
    org: OrgId,
    once: &IdempotentRequest,
    is_suspended: bool,
) -> Result<Answer> {
    existing_org(app, org).await?;
    once.run(app, org, async |unit: &mut Unit| {
        unit.tx().suspend(is_suspended).await?;
        let action = if is_suspended { "organization.suspended" } else { "organization.resumed" };
        record_audit(app, unit, action, json!({})).await?;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx().organization().await?)))
    })
    .await
}

/// Returns the id if the organization exists and is not deleted.
async fn existing_org(app: &App, org: OrgId) -> Result<OrgId> {
    let organization = app.0.store.organization(org).await?;
    if organization.deleted_at.is_some() { Err(ApiError::not_found()) } else { Ok(org) }
}

/// Derives the id of an organization from the `Idempotency-Key` of its creation.
fn org_id_of_key(key: &str) -> OrgId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sha256(format!("organization/{key}").as_bytes())[..16]);
    Id::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

async fn record_audit(
    app: &App,
    unit: &mut Unit,
    action: &'static str,
    details: serde_json::Value,
) -> Result<(), store::Error> {
    let (id, target) = (app.0.journal.origin().id(), Some(unit.tx().org().to_string()));
    unit.tx().record_audit(&Act { id, actor: &actor(), action, target, details }).await
}

fn view(organization: Organization) -> AdminOrganization {
    AdminOrganization {
        state: organization.state(),
        id: organization.id,
        name: organization.name,
        concurrency: organization.concurrency,
        weight: organization.weight,
        created_at: organization.created_at,
        key: None,
    }
}
