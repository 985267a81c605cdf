//! The organization of the key and its audit log.

pub mod admin;
pub mod keys;
pub mod usage;

use axum::{
    body::{Body as HttpBody, Bytes},
    extract::State,
    response::Response,
};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    base::{Id, Timestamp, limit::PAGE_ROWS_MAX},
    domain::OrgId,
    http::{
        App,
        auth::{Caller, ReadAudit, ReadOrganization, WriteOrganization},
        body::Body,
        download::ndjson,
        error::ApiError,
        idempotency::json as answer,
        openapi::Errors,
        page::{List, Query, rows},
    },
    store::{
        self,
        audit::{AuditRow, Filter},
        org::Organization,
    },
    wire::{
        Page,
        organization::{AuditView, OrganizationView, PatchOrganization},
    },
};

/// Routes of organizations, their keys and usage.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(get, patch))
        .routes(routes!(audit))
        .routes(routes!(export))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::get, keys::revoke))
        .routes(routes!(keys::rotate))
        .routes(routes!(admin::create, admin::list))
        .routes(routes!(admin::get, admin::patch, admin::delete))
        .routes(routes!(admin::suspend))
        .routes(routes!(admin::resume))
        .routes(routes!(admin::top_up, admin::set_balance))
        .routes(routes!(admin::set_prices))
        .routes(routes!(usage::usage))
        .routes(routes!(usage::budget, usage::patch_budget))
        .routes(routes!(usage::prices))
}

/// Filters for listing audit records.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Exact action, or `prefix.*`.
    pub action: Option<String>,
    /// Id of the affected resource.
    pub target: Option<String>,
    /// Only records after this time (RFC 3339).
    pub after: Option<String>,
    /// Only records before this time (RFC 3339).
    pub before: Option<String>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// Filters for exporting audit records.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExportQuery {
    /// Only records after this time (RFC 3339).
    pub after: Option<String>,
    /// Only records before this time (RFC 3339).
    pub before: Option<String>,
}

/// Get the organization of the key
#[utoipa::path(get, path = "/organization", tag = "organization", operation_id = "getOrganization",
    responses((status = 200, body = OrganizationView), Errors))]
pub async fn get(State(app): State<App>, caller: Caller<ReadOrganization>) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    Ok(answer(&view(tx.organization().await?)))
}

/// Change the organization's name or retention
#[utoipa::path(patch, path = "/organization", tag = "organization", operation_id = "updateOrganization",
    request_body = PatchOrganization, responses((status = 200, body = OrganizationView), Errors))]
pub async fn patch(
    State(app): State<App>,
    caller: Caller<WriteOrganization>,
    Body { value: change, .. }: Body<PatchOrganization>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    let mut organization = tx.lock_organization().await?;
    organization.name = change.name.unwrap_or(organization.name);
    organization.retention_days = change.retention_days.unwrap_or(organization.retention_days);
    tx.update_organization(&organization).await?;
    let details = json!({ "name": organization.name, "retention_days": organization.retention_days });
    let act = caller.act(app.0.journal.origin(), "organization.updated", caller.org, details);
    tx.record_audit(&act).await?;
    tx.commit().await?;
    Ok(answer(&view(organization)))
}

/// List the audit log
///
/// Newest first.
#[utoipa::path(get, path = "/audit", tag = "organization", operation_id = "listAudit", params(AuditQuery),
    responses((status = 200, body = Page<AuditView>), Errors))]
pub async fn audit(
    State(app): State<App>,
    caller: Caller<ReadAudit>,
    Query(query): Query<AuditQuery>,
) -> Result<Response, ApiError> {
    let rows = rows(query.limit)?;
    let of = (&query.action, &query.target, &query.after, &query.before);
    let list = List::new(&app, caller.org, "audit", &of);
    let filter = Filter {
        below: list.position(query.cursor.as_deref())?,
        after: time("after", query.after.as_deref())?,
        before: time("before", query.before.as_deref())?,
        action: query.action.clone(),
        target: query.target.clone(),
    };
    let mut tx = app.0.store.begin(caller.org).await?;
    let found = tx.audit(&filter, rows as i64 + 1).await?;
    let page = list.page(found, rows, |row| Id::from_uuid(row.audit_id) as crate::domain::AuditId, record);
    let data = page.data.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(answer(&Page { data, next_cursor: page.next_cursor }))
}

/// Export the audit log
///
/// Newest first, one JSON record per line.
#[utoipa::path(get, path = "/audit/export", tag = "organization", operation_id = "exportAudit",
    params(ExportQuery), responses((status = 200, content((String = "application/x-ndjson"))), Errors))]
pub async fn export(
    State(app): State<App>,
    caller: Caller<ReadAudit>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let filter = Filter {
        after: time("after", query.after.as_deref())?,
        before: time("before", query.before.as_deref())?,
        ..Filter::default()
    };
    let first = lines(&app, caller.org, filter).await?;
    let rest = futures::stream::unfold((app, caller.org, Some(first)), async |(app, org, page)| {
        let (text, next) = page?;
        let following = match next {
            // On an error the connection is cut, so that a partial log does not look complete.
            Some(filter) => match lines(&app, org, filter).await {
                Ok(page) => Ok(Some(page)),
                Err(error) => Err(error),
            },
            None => Ok(None),
        };
        Some(match following {
            Ok(page) => (Ok(Bytes::from(text)), (app, org, page)),
            Err(error) => (Err(std::io::Error::other(error.message.into_owned())), (app, org, None)),
        })
    });
    Ok(ndjson(HttpBody::from_stream(rest.boxed()), "audit.ndjson"))
}

/// Reads a page of the audit log as text, and the filter of the next page.
async fn lines(app: &App, org: OrgId, filter: Filter) -> Result<(String, Option<Filter>), ApiError> {
    let rows = app.0.store.begin(org).await?.audit(&filter, i64::from(PAGE_ROWS_MAX)).await?;
    let next = rows
        .last()
        .filter(|_| rows.len() == PAGE_ROWS_MAX as usize)
        .map(|row| Filter { below: Some(Id::from_uuid(row.audit_id)), ..filter });
    let mut text = String::new();
    for row in rows {
        let line = serde_json::to_string(&record(row)?);
        text.push_str(&line.map_err(|error| store::Error::Corrupt(error.to_string()))?);
        text.push('\n');
    }
    Ok((text, next))
}

fn time(name: &str, text: Option<&str>) -> Result<Option<Timestamp>, ApiError> {
    let parse = |text| OffsetDateTime::parse(text, &Rfc3339);
    let refused = |_| ApiError::invalid(name, format!("`{name}` must be a time like 2026-11-01T08:00:00Z"));
    text.map(parse).transpose().map_err(refused)
}

fn record(row: AuditRow) -> Result<AuditView, ApiError> {
    let json = |text| RawValue::from_string(text).map_err(|error| store::Error::Corrupt(error.to_string()));
    Ok(AuditView {
        id: Id::from_uuid(row.audit_id),
        at: row.at,
        actor: json(row.actor)?,
        action: row.action,
        target: row.target,
        details: json(row.details)?,
    })
}

fn view(organization: Organization) -> OrganizationView {
    OrganizationView {
        id: organization.id,
        name: organization.name,
        retention_days: organization.retention_days,
        created_at: organization.created_at,
    }
}
