//! Response body of the organization's capacity.

use serde::Serialize;
use utoipa::ToSchema;

/// Resources reserved for an organization's sandboxes, with the maxima.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Capacity)]
pub(crate) struct CapacityView {
    /// Number of sandboxes, frozen ones too.
    pub sandboxes: ResourceUse,
    /// Memory that is reserved for them, in bytes.
    pub memory_bytes: ResourceUse,
    /// Size of all checkpoints in bytes; above the maximum no new sandbox is made.
    pub checkpoint_bytes: ResourceUse,
    /// Size in bytes of the root file systems with packages that the organization had built, on the node with most of
    /// them. The maximum applies to each node: a build beyond it fails.
    pub image_bytes: ResourceUse,
    /// Sessions that wait for capacity, of the organization or of a node.
    pub sessions_waiting: i64,
}

/// Use of a resource and its maximum.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResourceUse)]
pub(crate) struct ResourceUse {
    pub used: i64,
    /// Null means that the operator set no maximum.
    #[schema(required)]
    pub max: Option<u64>,
}
