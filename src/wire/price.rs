//! Prices on the wire.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::price::PriceList;

/// The prices that hold for an organization.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Prices)]
pub struct PricesView {
    /// Always `micro_usd`; tokens are priced by the million.
    pub unit: &'static str,
    /// The organization's own list, where the operator agreed on one: it stands in
    /// front of the bundled one.
    #[schema(required)]
    pub own: Option<PriceList>,
    /// The list that is part of the program.
    pub bundled: PriceList,
}
