//! Ids in paths. A malformed id is handled like an unknown one.

use std::str::FromStr;

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::base::{Id, Kind};

/// The segments of a path; segments that cannot be decoded are 404.
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

/// Parses the id in a path segment. A malformed id is 404 and not 400, so that the response does not
/// depend on whether an id is well formed.
pub fn id<K: Kind>(segment: &str) -> Result<Id<K>, ApiError> {
    Id::from_str(segment).map_err(|_| ApiError::not_found())
}
