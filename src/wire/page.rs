//! Pages of lists.

use serde::Serialize;
use utoipa::ToSchema;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    pub data: Vec<T>,
    /// Cursor of the next page; null on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}
