//! Reasons why a root file system is not available.

use std::io;

use crate::base::text;

/// Reason why a root file system is not available, by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Another process of this node is building it: retry later.
    #[error("the image is being built")]
    Busy,
    /// A retry fails too, until the operator or the organization changes something.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for BuildError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Last non-empty line of an output, for an error message.
pub(super) fn last_line(said: &str) -> &str {
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    text::truncate(line.unwrap_or("it left no message"), 1_000)
}
