//! Paging: validated limits, and cursors bound to an organization and a query.

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::IntoParams;

use super::{
    App,
    error::{ApiError, Result},
};
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
pub(super) struct PageQuery {
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// Query parameters; unknown ones are rejected.
pub(super) struct Query<T>(pub T);

impl<T, S> FromRequestParts<S> for Query<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self> {
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
pub(super) fn rows(limit: Option<u32>) -> Result<usize> {
    match limit.unwrap_or(PAGE_ROWS_DEFAULT) {
        rows @ 1..=PAGE_ROWS_MAX => Ok(rows as usize),
        _ => Err(ApiError::invalid("limit", format!("`limit` must be 1 to {PAGE_ROWS_MAX}"))),
    }
}

/// The list that a cursor belongs to: organization, name and filters.
pub(super) struct List<'a> {
    app: &'a App,
    scope: String,
}

impl<'a> List<'a> {
    /// Identifies a list by its name and all its filters.
    pub(super) fn new(app: &'a App, org: OrgId, name: &str, filters: &impl std::fmt::Debug) -> Self {
        Self { app, scope: format!("{org}/{name}/{filters:?}") }
    }

    /// Decodes the position in a cursor.
    pub(super) fn position<P: DeserializeOwned>(&self, cursor: Option<&str>) -> Result<Option<P>> {
        cursor
            .map(|cursor| cursor::decode(self.app.0.store.master(), &self.scope, cursor))
            .transpose()
            .map_err(|error| ApiError::invalid("cursor", format!("`cursor` is {error}")))
    }

    /// Encodes a position as a cursor of this list.
    pub(super) fn encode<P: Serialize>(&self, position: &P) -> String {
        cursor::encode(self.app.0.store.master(), &self.scope, position)
    }

    /// Begins a page of `limit` rows after `cursor`.
    pub(super) fn at<P: DeserializeOwned>(
        self,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<PageOf<'a, P>> {
        Ok(PageOf { rows: rows(limit)?, below: self.position(cursor)?, list: self })
    }
}

/// A page to read of a list.
pub(super) struct PageOf<'a, P> {
    list: List<'a>,
    rows: usize,
    /// Position after which the page begins.
    pub below: Option<P>,
}

impl<P: Serialize> PageOf<'_, P> {
    /// Returns the number of rows to read: one more than the page has, to see whether there is a next page.
    pub(super) fn limit(&self) -> i64 {
        self.rows as i64 + 1
    }

    /// Builds the page from the rows that were read.
    pub(super) fn page<R, V>(
        &self,
        mut read: Vec<R>,
        position: impl Fn(&R) -> P,
        view: impl FnMut(R) -> V,
    ) -> Page<V> {
        let has_more = read.len() > self.rows;
        read.truncate(self.rows);
        let last = read.last().filter(|_| has_more).map(position);
        let next_cursor = last.map(|last| self.list.encode(&last));
        Page { data: read.into_iter().map(view).collect(), next_cursor }
    }
}
