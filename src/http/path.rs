//! Ids in paths. One that is not spelled right does not exist.

use std::str::FromStr;

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::base::{Id, Kind};

/// The segments of a path; those that no text can be read from are 404.
pub struct Path<T>(pub T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        read.map(|axum::extract::Path(segments)| Self(segments)).map_err(|_| ApiError::not_found())
    }
}

/// The id that a path segment spells; anything else is 404, not 400: whether an id
/// is well formed is nobody's business but its owner's.
pub fn id<K: Kind>(segment: &str) -> Result<Id<K>, ApiError> {
    Id::from_str(segment).map_err(|_| ApiError::not_found())
}
