//! File operations that take longer than a few system calls, and their failure.

use std::io;

use crate::sandbox::Fault;

/// Runs file operations that may take longer than a few system calls on a blocking thread.
#[expect(clippy::disallowed_methods, reason = "awaited at once")]
pub(super) async fn in_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Creates the fault of a sandbox whose files could not be changed.
pub(super) fn unavailable(what: &str, error: &io::Error) -> Fault {
    Fault::Unavailable(format!("{what}: {error}"))
}
