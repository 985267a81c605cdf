//! Names that most handlers use.

pub use axum::{http::StatusCode, response::Response};

pub use super::{
    App,
    auth::Caller,
    body::{Body, OptionalBody},
    error::{ApiError, Result},
    idempotency::{Answer, Idempotent, IdempotentRequest, no_content, respond},
    openapi::Errors,
    page::{PageQuery, Query},
    path::Path,
};
pub use crate::{journal::Unit, wire::Page};
