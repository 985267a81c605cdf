//! Paging: validated limits, and cursors bound to an organization and a query.

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::IntoParams;

use super::{App, error::ApiError};
use crate::{
    base::{
        cursor,
        limit::{PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX},
    },
    domain::OrgId,
    wire::Page,
};

/// Cursor and size of a page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// Query parameters; unknown ones are rejected.
pub struct Query<T>(pub T);

impl<T, S> FromRequestParts<S> for Query<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let pairs = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs))
            .map(Self)
            .map_err(|error| ApiError::undeserializable(error.path(), error.inner()))
    }
}

/// Validates the page size.
///
/// # Errors
/// 400 if it is 0 or larger than `PAGE_ROWS_MAX`.
pub fn rows(limit: Option<u32>) -> Result<usize, ApiError> {
    match limit.unwrap_or(PAGE_ROWS_DEFAULT) {
        rows @ 1..=PAGE_ROWS_MAX => Ok(rows as usize),
        _ => Err(ApiError::invalid("limit", format!("`limit` must be 1 to {PAGE_ROWS_MAX}"))),
    }
}

/// The list that a cursor belongs to: organization, name and filters.
pub struct List<'a> {
    app: &'a App,
    scope: String,
}

impl<'a> List<'a> {
    /// Identifies a list by its name and all its filters.
    pub fn new(app: &'a App, org: OrgId, name: &str, filters: &impl std::fmt::Debug) -> Self {
        Self { app, scope: format!("{org}/{name}/{filters:?}") }
    }

    /// Decodes the position in a cursor.
    pub fn position<P: DeserializeOwned>(&self, cursor: Option<&str>) -> Result<Option<P>, ApiError> {
        cursor
            .map(|cursor| cursor::decode(self.app.0.store.master(), &self.scope, cursor))
            .transpose()
            .map_err(|error| ApiError::invalid("cursor", format!("`cursor` is {error}")))
    }

    /// Encodes a position as a cursor of this list.
    pub fn encode<P: Serialize>(&self, position: &P) -> String {
        cursor::encode(self.app.0.store.master(), &self.scope, position)
    }

    /// Builds a page of at most `rows`. `read` has one row more if there is a next page.
    pub fn page<R, V, P: Serialize>(
        &self,
        mut read: Vec<R>,
        rows: usize,
        position: impl Fn(&R) -> P,
        view: impl FnMut(R) -> V,
    ) -> Page<V> {
        let has_more = read.len() > rows;
        read.truncate(rows);
        let last = read.last().filter(|_| has_more).map(position);
        let next_cursor = last.map(|last| self.encode(&last));
        Page { data: read.into_iter().map(view).collect(), next_cursor }
    }
}
