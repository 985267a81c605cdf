//! Request and response bodies of the organization and its audit log.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{NAME_BYTES_MAX, RETENTION_DAYS_MAX},
    domain::{Actor, AuditId, OrgId},
};

/// The organization that the key belongs to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Organization)]
pub(crate) struct OrganizationView {
    pub id: OrgId,
    pub name: String,
    /// Days after which an archived session is deleted; null retains it indefinitely.
    #[schema(required)]
    pub retention_days: Option<i32>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Changes to an organization; absent fields are unchanged.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchOrganization {
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub name: Option<String>,
    /// 1 to 36500 days; null retains archived sessions indefinitely.
    #[garde(inner(inner(range(min = 1, max = RETENTION_DAYS_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 36500)]
    pub retention_days: Option<Option<i32>>,
}

/// Record of an action in the organization.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub(crate) struct AuditView {
    pub id: AuditId,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    #[schema(value_type = Actor)]
    pub actor: Box<RawValue>,
    /// Action, for example `key.created`.
    pub action: String,
    /// Id of the affected resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[schema(value_type = Object)]
    pub details: Box<RawValue>,
}
