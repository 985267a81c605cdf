//! Extractors of request bodies.
//!
//! They check the media type, reject unknown fields and validate values. Parsing takes time in proportion to the
//! values of a body, so their number is bounded, and a large body is parsed on a thread for blocking work, in a share of
//! its organization: it delays no other request.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use garde::Validate;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use super::{
    App,
    error::{ApiError, Result},
    path::CallerOrg,
};
use crate::{
    base::{
        json::has_more_values,
        limit::{JSON_VALUES_MAX, SMALL_BODY_BYTES_MAX},
    },
    domain::OrgId,
    wire::ErrorType,
};

/// A validated JSON body.
pub(super) struct Body<T>(pub T);

impl<T> FromRequest<App> for Body<T>
where
    T: DeserializeOwned + Validate<Context = ()> + Send + 'static,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let json = Json::of(request, app).await?;
        json.checked()?.parsed(app).await.map(Self)
    }
}

/// A body that may be absent; the value is then the default.
pub(super) struct OptionalBody<T>(pub T);

impl<T> FromRequest<App> for OptionalBody<T>
where
    T: DeserializeOwned + Validate<Context = ()> + Default + Send + 'static,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let json = Json::of(request, app).await?;
        if json.bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        json.checked()?.parsed(app).await.map(Self)
    }
}

/// A body that has not been parsed, and who sent it.
struct Json {
    bytes: Bytes,
    is_json: bool,
    /// `None` for the operator.
    org: Option<OrgId>,
}

impl Json {
    async fn of(request: Request, app: &App) -> Result<Self> {
        let is_json = is_json(request.headers());
        let org = request.extensions().get::<CallerOrg>().map(|caller| caller.0);
        Ok(Self { bytes: bytes(request, app).await?, is_json, org })
    }

    /// Checks the media type.
    fn checked(self) -> Result<Self> {
        if self.is_json {
            Ok(self)
        } else {
            Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/json"))
        }
    }

    /// Parses and validates the body; a large one waits for its place.
    async fn parsed<T>(self, app: &App) -> Result<T>
    where
        T: DeserializeOwned + Validate<Context = ()> + Send + 'static,
    {
        if self.bytes.len() <= SMALL_BODY_BYTES_MAX {
            return parse(&self.bytes);
        }
        let place = app.0.large_bodies.take(self.org).await;
        let parsed = on_blocking_thread(move || {
            // Held by the work and not by the request, which may be given up.
            let _place = place;
            parse(&self.bytes)
        });
        parsed.await?
    }
}

/// The raw bytes of an `application/x-ndjson` body.
pub(super) struct Lines(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Lines {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let is_lines = essence(request.headers()).eq_ignore_ascii_case("application/x-ndjson");
        let bytes = bytes(request, state).await?;
        if !is_lines {
            return Err(ApiError::new(
                ErrorType::UnsupportedMediaType,
                "send the body as application/x-ndjson",
            ));
        }
        Ok(Self(bytes))
    }
}

/// The bytes of a body of any media type.
pub(super) struct Raw(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        bytes(request, state).await.map(Self)
    }
}

/// Body of a request without fields: empty, or an empty JSON object.
#[derive(Debug, Default, serde::Deserialize, garde::Validate, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(super) async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes> {
    Bytes::from_request(request, state).await.map_err(|rejection| {
        let kind = match rejection.status().as_u16() {
            413 => ErrorType::TooLarge,
            _ => ErrorType::Invalid,
        };
        ApiError::new(kind, format!("the body could not be read: {}", rejection.body_text()))
    })
}

/// Runs work that would delay other requests on a thread of its own. It goes on if the request is given up.
#[expect(clippy::disallowed_methods, reason = "awaited at once")]
pub(super) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "the work of a request ended early");
        ApiError::new(ErrorType::Internal, "internal error")
    })
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    essence(headers).eq_ignore_ascii_case("application/json")
}

/// Returns the media type without its parameters.
pub(super) fn essence(headers: &HeaderMap) -> &str {
    let media_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Rejects JSON with more than `JSON_VALUES_MAX` values and names of fields.
pub(super) fn check_values(json: &[u8]) -> Result<()> {
    if has_more_values(json, JSON_VALUES_MAX) {
        let message = format!("the body has more than {JSON_VALUES_MAX} JSON values and names");
        return Err(ApiError::new(ErrorType::TooLarge, message));
    }
    Ok(())
}

fn parse<T: DeserializeOwned + Validate<Context = ()>>(bytes: &[u8]) -> Result<T> {
    check_values(bytes)?;
    // serde would accept an array as the fields in order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::new(ErrorType::Invalid, "the body must be a JSON object"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| ApiError::undeserializable(error.path(), error.inner()))?;
    deserializer.end().map_err(|error| ApiError::new(ErrorType::Invalid, error.to_string()))?;
    if let Err(report) = value.validate() {
        let (path, error) = report.into_inner().into_iter().next().unzip();
        let message = error.map_or_else(|| "is not valid".to_owned(), |error| error.to_string());
        let param = path.map(|path: garde::Path| path.to_string());
        let text = param.as_ref().map_or_else(|| message.clone(), |param| format!("`{param}` {message}"));
        return Err(ApiError { param, ..ApiError::new(ErrorType::Invalid, text) });
    }
    Ok(value)
}
