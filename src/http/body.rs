//! Extractors of request bodies.
//!
//! They check the media type, reject unknown fields and validate values.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use garde::Validate;
use serde::de::DeserializeOwned;

use super::error::{ApiError, Result};
use crate::wire::ErrorType;

/// A validated JSON body.
pub(super) struct Body<T>(pub T);

impl<T, S> FromRequest<S> for Body<T>
where
    T: DeserializeOwned + Validate<Context = ()>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let is_json = is_json(request.headers());
        let bytes = bytes(request, state).await?;
        if !is_json {
            return Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/json"));
        }
        parse(&bytes).map(Self)
    }
}

/// A body that may be absent; the value is then the default.
pub(super) struct OptionalBody<T>(pub T);

impl<T, S> FromRequest<S> for OptionalBody<T>
where
    T: DeserializeOwned + Validate<Context = ()> + Default,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let is_json = is_json(request.headers());
        let bytes = bytes(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        if !is_json {
            return Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/json"));
        }
        parse(&bytes).map(Self)
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

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    essence(headers).eq_ignore_ascii_case("application/json")
}

/// Returns the media type without its parameters.
pub(super) fn essence(headers: &HeaderMap) -> &str {
    let media_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type.split(';').next().unwrap_or_default().trim()
}

fn parse<T: DeserializeOwned + Validate<Context = ()>>(bytes: &[u8]) -> Result<T> {
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
