//! Ids in paths. One that is not spelled right does not exist.

use std::str::FromStr;

use super::error::ApiError;
use crate::base::{Id, Kind};

/// The id that a path segment spells; anything else is 404, not 400: whether an id
/// is well formed is nobody's business but its owner's.
pub fn id<K: Kind>(segment: &str) -> Result<Id<K>, ApiError> {
    Id::from_str(segment).map_err(|_| ApiError::not_found())
}
