//! The repositories of a session on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::source::{self, PinnedSource, Repository, SourceStatus, State};

/// How far a repository of a session is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SourceSummary)]
pub struct SourceView {
    pub name: String,
    pub status: State,
    /// Where it is in the sandbox.
    pub path: String,
    pub url: String,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The commit that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha: Option<String>,
    /// The commit that was checked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_sha: Option<String>,
    /// Why it could not be cloned: a stable word, as in `source.ref_not_found`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Whether the next need tries again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl SourceView {
    /// Joins a source to what became of it.
    pub fn new(source: PinnedSource, status: SourceStatus) -> Self {
        let (error_code, error_message, retryable) = match status.failure {
            Some((code, message, retryable)) => (Some(code), Some(message), Some(retryable)),
            None => (None, None, None),
        };
        Self {
            name: source.name,
            status: status.state,
            path: source.path,
            url: source.url,
            reference: source.reference,
            sha: source.sha,
            resolved_sha: status.sha,
            error_code,
            error_message,
            retryable,
        }
    }
}

/// Refuses repositories that cannot be cloned as they are named.
#[allow(clippy::ptr_arg)] // garde hands over the field as it is
pub(super) fn sound_sources(sources: &Vec<Repository>, _context: &()) -> garde::Result {
    match source::problem(sources) {
        None => Ok(()),
        Some((field, words)) => Err(garde::Error::new(format!("`{field}` {words}"))),
    }
}
