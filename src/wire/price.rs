//! Response body of prices.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::price::PriceList;

/// The prices that apply to an organization.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Prices)]
pub(crate) struct PricesView {
    /// Always `micro_usd`. Prices are per million tokens.
    pub unit: &'static str,
    /// The organization's own price list, if the operator set one; it takes precedence over the bundled
    /// list.
    #[schema(required)]
    pub own: Option<PriceList>,
    /// The price list included in the program.
    pub bundled: PriceList,
}
