//! Result of one clone, as it is recorded in the log.

use crate::{domain::exit::PreparationFailure, lifecycle::Error, sandbox::Fault};

/// A source whose files are in the sandbox.
pub(super) struct Cloned {
    /// None in a repository without commits.
    pub sha: Option<String>,
    pub bytes: u64,
}

/// Reason why a source was not cloned.
pub(super) enum Failed {
    Sandbox(Fault),
    Source(Failure),
}

/// Failure of a clone, as it is recorded in the log.
pub(super) struct Failure {
    /// Stable word, as in `source.ref_not_found`.
    pub code: &'static str,
    pub message: String,
    /// A retry may succeed.
    pub retryable: bool,
}

impl Failure {
    pub(super) const AUTH_REQUIRED: &str = "source.auth_required";
    pub(super) const REF_NOT_FOUND: &str = "source.ref_not_found";
    pub(super) const SHA_NOT_FOUND: &str = "source.sha_mismatch";
    pub(super) const TOO_LARGE: &str = "source.too_large";
    pub(super) const TIMEOUT: &str = "source.timeout";
    pub(super) const PATH_TAKEN: &str = "source.path_taken";
    pub(super) const NOT_ALLOWED: &str = "source.not_allowed";
    pub(super) const CHECKOUT: &str = "source.checkout_failed";
    pub(super) const UNAVAILABLE: &str = "source.unavailable";

    /// A permanent failure.
    pub(super) fn for_good(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false }
    }

    /// A temporary failure, with the code `source.unavailable`.
    pub(super) fn for_now(message: impl Into<String>) -> Self {
        Self { code: Self::UNAVAILABLE, message: message.into(), retryable: true }
    }

    pub(super) fn fault(self, name: &str) -> Error {
        let words = format!("{name}: {}", self.message);
        match self.code {
            Self::AUTH_REQUIRED => Error::PreparationFailure(PreparationFailure::RepoAccess, words),
            _ if self.retryable => Error::Unavailable(words),
            _ => Error::PreparationFailure(PreparationFailure::Source, words),
        }
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Sandbox(fault)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self::Source(failure)
    }
}
