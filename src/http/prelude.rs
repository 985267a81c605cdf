//! Names that most handlers use.

pub(super) use axum::{http::StatusCode, response::Response};

pub(super) use super::{
    App,
    answer::{Answer, no_content, respond},
    auth::Caller,
    body::{Body, OptionalBody},
    error::{ApiError, Result},
    idempotency::{Idempotent, IdempotentRequest},
    openapi::Errors,
    page::{PageQuery, Query},
    path::Path,
};
pub(super) use crate::{journal::Unit, wire::Page};
