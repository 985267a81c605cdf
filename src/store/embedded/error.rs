//! Errors and progress of the embedded database.

use std::io;

/// Reasons why there is no embedded database.
///
/// Every message is one line that says what to do. A retry without that change fails again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operator has to change something first; the text says what.
    #[error("{0}")]
    Refused(String),
    /// A file or a process of the cluster failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server runs and rejected a statement of the service.
    #[error("{what}: {source}")]
    Database {
        /// The attempted action.
        what: &'static str,
        /// The server's error.
        source: sqlx::Error,
    },
}

impl Error {
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }
}

/// Reports progress to the person at the terminal.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);
