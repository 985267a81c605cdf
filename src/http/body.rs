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

use super::error::ApiError;
use crate::{base::seal::sha256, wire::ErrorType};

/// A validated JSON body and the SHA-256 of its bytes.
pub struct Body<T> {
    pub value: T,
    pub digest: [u8; 32],
}

impl<T, S> FromRequest<S> for Body<T>
where
    T: DeserializeOwned + Validate<Context = ()>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let bytes = bytes(request, state).await?;
        if !is_json {
            return Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/json"));
        }
        Ok(Self { value: parse(&bytes)?, digest: sha256(&bytes) })
    }
}

/// A body that may be absent; the value is then the default.
pub struct OptionalBody<T>(pub Body<T>);

impl<T, S> FromRequest<S> for OptionalBody<T>
where
    T: DeserializeOwned + Validate<Context = ()> + Default,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let bytes = bytes(request, state).await?;
        let digest = sha256(&bytes);
        if bytes.is_empty() {
            return Ok(Self(Body { value: T::default(), digest }));
        }
        if !is_json {
            return Err(ApiError::new(ErrorType::UnsupportedMediaType, "send the body as application/json"));
        }
        Ok(Self(Body { value: parse(&bytes)?, digest }))
    }
}

/// The raw bytes of an `application/x-ndjson` body and their SHA-256.
pub struct Lines {
    pub bytes: Bytes,
    pub digest: [u8; 32],
}

impl<S: Send + Sync> FromRequest<S> for Lines {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_lines = essence(request.headers()).eq_ignore_ascii_case("application/x-ndjson");
        let bytes = bytes(request, state).await?;
        if !is_lines {
            return Err(ApiError::new(
                ErrorType::UnsupportedMediaType,
                "send the body as application/x-ndjson",
            ));
        }
        let digest = sha256(&bytes);
        Ok(Self { bytes, digest })
    }
}

/// The bytes of a body of any media type.
pub struct Raw(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        bytes(request, state).await.map(Self)
    }
}

/// Body of a request without fields: empty, or an empty JSON object.
#[derive(Debug, Default, serde::Deserialize, garde::Validate, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

pub(super) async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
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

fn parse<T: DeserializeOwned + Validate<Context = ()>>(bytes: &[u8]) -> Result<T, ApiError> {
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
