//! Liveness and readiness endpoints.

use axum::{Json, extract::State};
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, Result},
    openapi::Errors,
};
use crate::base::limit::READY_TIMEOUT;

/// Response of a healthy process.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Check liveness
///
/// Returns 200 while the process runs.
#[utoipa::path(get, path = "/healthz", tag = "service", security(()), operation_id = "healthz",
    responses((status = 200, body = Health), Errors))]
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Check readiness
///
/// Returns 200 if the database responds within 3 s.
#[utoipa::path(get, path = "/readyz", tag = "service", security(()), operation_id = "readyz",
    responses((status = 200, body = Health), Errors))]
pub(super) async fn readyz(State(app): State<App>) -> Result<Json<Health>> {
    let answered = timeout(READY_TIMEOUT, app.0.store.ping()).await;
    answered.map_err(|_| ApiError::unavailable(READY_TIMEOUT))??;
    Ok(Json(Health { status: "ok" }))
}
