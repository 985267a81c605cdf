//! Pages of lists.

use serde::Serialize;
use utoipa::ToSchema;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    pub data: Vec<T>,
    /// Where the next page begins; null on the last one.
    #[schema(required)]
    pub next_cursor: Option<String>,
}
