//! Reasons why a session has no usable sandbox.

use std::time::Duration;

use crate::{base::limit::SANDBOX_NOT_YET_RETRY, domain::exit::PreparationFailure, store};

/// Reason why a session has no usable sandbox.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Error {
    /// Another worker holds the lease of the session; stop.
    #[error("another worker holds the sandbox")]
    Stale,
    /// No sandbox started after bounded retries.
    #[error("no sandbox is available: {0}")]
    Unavailable(String),
    /// The node of the session's files does not answer or builds their image, or there is no capacity. Release the job
    /// for this time.
    #[error("the sandbox is not available yet: {0}")]
    NotYet(String, Duration),
    /// The sandbox cannot be prepared as the environment requires; a retry does not help.
    #[error("the sandbox could not be prepared: {1}")]
    PreparationFailure(PreparationFailure, String),
    /// The database or a blob is unreachable; ask again later.
    #[error("the log is unreachable: {0}")]
    LogUnavailable(String),
}

impl Error {
    pub(super) fn not_yet(reason: &str) -> Self {
        Self::NotYet(reason.to_owned(), SANDBOX_NOT_YET_RETRY)
    }

    /// The turn ends, and the next message tries again.
    pub(super) fn not_admitted(reason: String) -> Self {
        Self::PreparationFailure(PreparationFailure::NotAdmitted, reason)
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::LogUnavailable(error.to_string())
    }
}
