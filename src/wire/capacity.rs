//! Response body of the organization's capacity.

use serde::Serialize;
use utoipa::ToSchema;

/// Resources of an organization's sandboxes: what they take, and what they may take.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Capacity)]
pub(crate) struct CapacityView {
    /// Number of sandboxes, frozen ones too.
    pub sandboxes: Share,
    /// Memory that is reserved for them, in bytes.
    pub memory_bytes: Share,
    /// Size of all checkpoints in bytes; above the maximum no new sandbox is made.
    pub checkpoint_bytes: Share,
    /// Sessions that wait for capacity, of the organization or of a node.
    pub sessions_waiting: i64,
}

/// A resource.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CapacityShare)]
pub(crate) struct Share {
    pub used: i64,
    /// Null means that the operator set no maximum.
    #[schema(required)]
    pub max: Option<u64>,
}
