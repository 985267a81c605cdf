//! The organization of the key and its audit log.

mod admin;
mod keys;
mod usage;

use axum::body::{Body as HttpBody, Bytes};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    base::{Id, Timestamp, limit::PAGE_ROWS_MAX},
    http::{
        download::ndjson,
        prelude::*,
        scope::{ReadAudit, ReadOrganization, WriteOrganization},
    },
    store::{
        self,
        audit::{AuditRow, Filter},
        org::Organization,
    },
    wire::organization::{AuditView, OrganizationView, PatchOrganization},
};

/// Routes of organizations, their keys and usage.
pub(super) fn routes() -> OpenApiRouter<App> {
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
        .routes(routes!(usage::capacity))
}

/// Filters for listing audit records.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
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
pub(super) struct ExportQuery {
    /// Only records after this time (RFC 3339).
    pub after: Option<String>,
    /// Only records before this time (RFC 3339).
    pub before: Option<String>,
}

/// Get the organization of the key
#[utoipa::path(get, path = "/organization", tag = "organization", operation_id = "getOrganization",
    responses((status = 200, body = OrganizationView), Errors))]
pub(super) async fn get(caller: Caller<ReadOrganization>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.organization().await?)))
}

/// Change the organization's name or retention
#[utoipa::path(patch, path = "/organization", tag = "organization", operation_id = "updateOrganization",
    request_body = PatchOrganization, responses((status = 200, body = OrganizationView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteOrganization>,
    Body(change): Body<PatchOrganization>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let mut organization = tx.lock_organization().await?;
    organization.name = change.name.unwrap_or(organization.name);
    organization.retention_days = change.retention_days.unwrap_or(organization.retention_days);
    tx.update_organization(&organization).await?;
    let details = json!({ "name": organization.name, "retention_days": organization.retention_days });
    caller.record_audit(&mut tx, "organization.updated", caller.org, details).await?;
    tx.commit().await?;
    Ok(respond(&view(organization)))
}

/// List the audit log
///
/// Newest first.
#[utoipa::path(get, path = "/audit", tag = "organization", operation_id = "listAudit", params(AuditQuery),
    responses((status = 200, body = Page<AuditView>), Errors))]
pub(super) async fn audit(caller: Caller<ReadAudit>, Query(query): Query<AuditQuery>) -> Result<Response> {
    let of = (&query.action, &query.target, &query.after, &query.before);
    let list = caller.list("audit", &of).at(query.limit, query.cursor.as_deref())?;
    let filter = Filter {
        below: list.below,
        after: time("after", query.after.as_deref())?,
        before: time("before", query.before.as_deref())?,
        action: query.action.clone(),
        target: query.target.clone(),
    };
    let mut tx = caller.begin().await?;
    let found = tx.audit(&filter, list.limit()).await?;
    let page = list.page(found, |row| Id::from_uuid(row.audit_id) as crate::domain::AuditId, record);
    let data = page.data.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(respond(&Page { data, next_cursor: page.next_cursor }))
}

/// Export the audit log
///
/// Newest first, one JSON record per line.
#[utoipa::path(get, path = "/audit/export", tag = "organization", operation_id = "exportAudit",
    params(ExportQuery), responses((status = 200, content((String = "application/x-ndjson"))), Errors))]
pub(super) async fn export(caller: Caller<ReadAudit>, Query(query): Query<ExportQuery>) -> Result<Response> {
    let filter = Filter {
        after: time("after", query.after.as_deref())?,
        before: time("before", query.before.as_deref())?,
        ..Filter::default()
    };
    let first = lines(&caller, filter).await?;
    let rest = futures::stream::unfold((caller, Some(first)), async |(caller, page)| {
        let (text, next) = page?;
        let following = match next {
            Some(filter) => lines(&caller, filter).await.map(Some),
            None => Ok(None),
        };
        Some(match following {
            Ok(page) => (Ok(Bytes::from(text)), (caller, page)),
            // The connection is cut, so that a partial log does not look complete.
            Err(error) => (Err(std::io::Error::other(error.message.into_owned())), (caller, None)),
        })
    });
    Ok(ndjson(HttpBody::from_stream(rest.boxed()), "audit.ndjson"))
}

/// Reads a page of the audit log as text, and the filter of the next page.
async fn lines(caller: &Caller<ReadAudit>, filter: Filter) -> Result<(String, Option<Filter>)> {
    let rows = caller.begin().await?.audit(&filter, i64::from(PAGE_ROWS_MAX)).await?;
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

fn time(name: &str, text: Option<&str>) -> Result<Option<Timestamp>> {
    let parse = |text| OffsetDateTime::parse(text, &Rfc3339);
    let refused = |_| ApiError::invalid(name, format!("`{name}` must be a time like 2026-11-01T08:00:00Z"));
    text.map(parse).transpose().map_err(refused)
}

fn record(row: AuditRow) -> Result<AuditView> {
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
