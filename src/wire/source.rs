//! Response bodies of a session's repositories.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::source::{self, PinnedSource, Repository, SourceStatus, State};

/// State of a repository of a session.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SourceSummary)]
pub(crate) struct SourceView {
    pub name: String,
    pub status: State,
    /// Path in the sandbox.
    pub path: String,
    pub url: String,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The requested commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha: Option<String>,
    /// The commit that was checked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_sha: Option<String>,
    /// Stable code of the failure, for example `source.ref_not_found`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Whether the clone is retried when the sandbox is needed next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl SourceView {
    /// Combines a pinned source with its clone status.
    pub(crate) fn new(source: PinnedSource, status: SourceStatus) -> Self {
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

/// Rejects repositories that cannot be cloned as specified.
#[expect(clippy::ptr_arg, reason = "garde passes a reference to the field")]
pub(super) fn validate_sources(sources: &Vec<Repository>, _context: &()) -> garde::Result {
    match source::problem(sources) {
        None => Ok(()),
        Some((field, words)) => Err(garde::Error::new(format!("`{field}` {words}"))),
    }
}
