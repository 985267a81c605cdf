//! Organizations as the operator sees them, on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{NAME_BYTES_MAX, ORGANIZATION_TURNS_MAX, ORGANIZATION_WEIGHT_MAX},
    domain::{OrgId, price::PriceList},
};

/// An organization to make.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrganization {
    /// What people call it.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
}

/// What changes of an organization; an absent field stays.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchAdminOrganization {
    /// Turns that may run at once; null is the deployment's own number.
    #[garde(inner(inner(range(min = 1, max = ORGANIZATION_TURNS_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100000)]
    pub concurrency: Option<Option<i32>>,
    /// Turns that run for each one of an organization of weight 1, when both have work.
    #[garde(inner(range(min = 1, max = ORGANIZATION_WEIGHT_MAX)))]
    #[schema(minimum = 1, maximum = 100)]
    pub weight: Option<i32>,
}

/// What is added to a balance.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TopUp {
    /// Micro-USD: 5000000 is five dollars; negative takes away.
    #[garde(range(min = -1_000_000_000_000_000, max = 1_000_000_000_000_000))]
    #[schema(minimum = -1000000000000000i64, maximum = 1000000000000000i64)]
    pub micros: i64,
}

/// What a balance is from now on.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBalance {
    /// Micro-USD that are left; null is without a bound.
    #[garde(inner(range(min = -1_000_000_000_000_000, max = 1_000_000_000_000_000)))]
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required, minimum = -1000000000000000i64, maximum = 1000000000000000i64)]
    pub balance_micros: Option<i64>,
}

/// What is left to an organization.
#[derive(Debug, Serialize, ToSchema)]
pub struct Balance {
    /// Micro-USD; null is without a bound.
    #[schema(required)]
    pub balance_micros: Option<i64>,
}

/// Prices in front of the bundled list.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPrices {
    /// The list; null takes the one away that is there.
    #[garde(skip)]
    #[serde(deserialize_with = "crate::base::json::object_or_null")]
    #[schema(required)]
    pub prices: Option<PriceList>,
}

/// An organization as the operator sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminOrganization)]
pub struct AdminOrganization {
    pub id: OrgId,
    pub name: String,
    /// `active`, `suspended` or `deleted`.
    pub state: &'static str,
    /// Turns that may run at once; null is the deployment's own number.
    #[schema(required)]
    pub concurrency: Option<i32>,
    pub weight: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Its first API key, in the answer that made it and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
