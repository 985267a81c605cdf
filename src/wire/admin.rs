//! Request and response bodies of the operator's organization API.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::validate_numbers;
use crate::{
    base::limit::{NAME_BYTES_MAX, ORGANIZATION_TURNS_MAX, ORGANIZATION_WEIGHT_MAX},
    domain::{OrgId, price::PriceList},
};

/// Organization to create.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateOrganization {
    /// Display name.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
}

/// Changes to an organization; absent fields are unchanged.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchAdminOrganization {
    /// Maximum number of concurrent turns; null uses the deployment's default.
    #[garde(inner(inner(range(min = 1, max = ORGANIZATION_TURNS_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100000)]
    pub concurrency: Option<Option<i32>>,
    /// Scheduling weight, 1 to 100: turns started for each turn of an organization of weight 1 while both
    /// have queued work.
    #[garde(inner(range(min = 1, max = ORGANIZATION_WEIGHT_MAX)))]
    #[schema(minimum = 1, maximum = 100)]
    pub weight: Option<i32>,
}

/// Amount to add to a balance.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopUp {
    /// Micro-USD: 5000000 is 5 USD. A negative amount is subtracted.
    #[garde(range(min = -1_000_000_000_000_000, max = 1_000_000_000_000_000))]
    #[schema(minimum = -1000000000000000i64, maximum = 1000000000000000i64)]
    pub micros: i64,
}

/// New balance of an organization.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetBalance {
    /// Remaining micro-USD; null means unlimited.
    #[garde(inner(range(min = -1_000_000_000_000_000, max = 1_000_000_000_000_000)))]
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required, minimum = -1000000000000000i64, maximum = 1000000000000000i64)]
    pub balance_micros: Option<i64>,
}

/// Remaining balance of an organization.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Balance {
    /// Micro-USD; null means unlimited.
    #[schema(required)]
    pub balance_micros: Option<i64>,
}

/// Price list that takes precedence over the bundled one.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetPrices {
    /// The price list; null removes the organization's own list.
    #[garde(custom(validate_numbers))]
    #[serde(deserialize_with = "crate::base::json::object_or_null")]
    #[schema(required)]
    pub prices: Option<PriceList>,
}

/// Organization as shown to the operator.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminOrganization)]
pub(crate) struct AdminOrganization {
    pub id: OrgId,
    pub name: String,
    /// `active`, `suspended` or `deleted`.
    pub state: &'static str,
    /// Maximum number of concurrent turns; null uses the deployment's default.
    #[schema(required)]
    pub concurrency: Option<i32>,
    pub weight: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// The first API key; only in the response to the create request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
