//! Response bodies of the permissions of a session.

use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::{
    Actor, EventId,
    permission::{Permissions, Rule},
};

/// The rules that bind a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionPermissions {
    /// Those of its agent, its own, and those of the sessions above it. The strictest of their decisions counts.
    pub permissions: Permissions,
    /// Those that were granted, oldest first. They allow what else must be confirmed, and nothing that is denied.
    pub granted: Vec<GrantView>,
}

/// A granted rule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GrantedRule)]
pub(crate) struct GrantView {
    /// The event `permission.granted`.
    pub event_id: EventId,
    pub rule: Rule,
    pub granted_by: Actor,
    #[serde(with = "time::serde::rfc3339")]
    pub granted_at: OffsetDateTime,
}
