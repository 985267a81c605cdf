//! Whether the process lives and whether it can do its work.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{App, error::ApiError, openapi::Errors};

/// A healthy answer.
#[derive(Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "service", security(()), operation_id = "healthz",
    responses((status = 200, body = Health), Errors))]
pub async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// The process can serve: its database answers.
#[utoipa::path(get, path = "/readyz", tag = "service", security(()), operation_id = "readyz",
    responses((status = 200, body = Health), Errors))]
pub async fn readyz(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    app.0.store.ping().await?;
    Ok(Json(Health { status: "ok" }))
}
