//! What was used and what it costs: prices.

use axum::{extract::State, response::Response};

use super::{
    App,
    auth::{Caller, ReadUsage},
    error::ApiError,
    openapi::Errors,
    write::json,
};
use crate::{domain::price::PriceList, wire::price::PricesView};

/// Get the prices by which this organization's steps are priced.
#[utoipa::path(get, path = "/prices", tag = "usage", operation_id = "getPrices",
    responses((status = 200, body = PricesView), Errors))]
pub async fn prices(State(app): State<App>, caller: Caller<ReadUsage>) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.tenant).await?;
    let own = tx.prices().await?;
    Ok(json(&PricesView { unit: "micro_usd", own, bundled: PriceList::bundled().clone() }))
}
