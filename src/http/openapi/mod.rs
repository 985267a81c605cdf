//! The OpenAPI document of the API, generated from the routes.

mod constraints;
mod document;
mod errors;
mod events;
mod examples;
mod header;
mod refusals;

pub use document::{description, document};
pub(super) use errors::Errors;
pub(super) use header::header;
