//! Postgres, the system of record. The only module with SQL; one directory per family of tables.
//!
//! Two kinds of connections exist. `app` acts for one organization at a time, under forced
//! row-level security. `system` does the service's own work and names the organization in every
//! statement. This module decides nothing: the rules are in `domain`.

mod blob_store;
pub(crate) mod column;
mod configuration;
mod connection;
mod deliveries;
pub mod embedded;
mod generation;
pub mod migrate;
mod money;
mod organizations;
mod parameter;
pub mod pool;
mod sandboxes;
mod sessions;
pub mod start;
mod triggers;
mod work;

use std::time::Duration;

pub(crate) use configuration::{agent, credential, environment, oauth, skill};
pub use deliveries::outbox;
pub(crate) use deliveries::{delivery, destination, notice};
pub use money::reservation;
pub(crate) use money::{billing, budget, spend, usage};
pub use organizations::key;
pub(crate) use organizations::{audit, operator, org};
pub use sandboxes::{admission, sandbox};
pub(crate) use sandboxes::{capacity, checkpoint, operation, output, sandbox_summary};
pub(crate) use sessions::{
    action, child_session, command, creation, event, event_content, file, idempotency, listing, log, purge,
    registry, session, token, turn,
};
pub use sessions::{object, record, snapshot};
pub use triggers::scheduled_wake;
pub(crate) use triggers::{invoke_token, run, schedule, trigger};
pub use work::{job, notification, process};
pub(crate) use work::{leader, stuck};

pub use pool::{Store, Tx, Urls};

/// Database errors, by the reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such row for this organization.
    #[error("not found")]
    NotFound,
    /// A named constraint rejected the row.
    #[error("the row conflicts with {0}")]
    Conflict(String),
    /// An equal request holds the row; retry.
    #[error("an equal request is in flight")]
    Busy,
    /// The database is unreachable or shutting down; retry.
    #[error("the database is not available")]
    Unavailable {
        retry_after: Duration,
        #[source]
        source: sqlx::Error,
    },
    /// A text contains U+0000, which a text column cannot store.
    #[error("a text contains the character U+0000, which cannot be stored")]
    Unstorable,
    /// The blob store, which has a part of the log, does not answer; retry.
    #[error("the blob store is not available: {reason}")]
    BlobStore { retry_after: Duration, reason: String },
    /// A part of the log is missing from the blob store or damaged.
    #[error("events {from} to {to} of the log are missing from the blob store or damaged")]
    SegmentLost { from: i64, to: i64 },
    /// This version cannot decode a row.
    #[error("a row cannot be read: {0}")]
    Corrupt(String),
    /// The statement itself failed.
    #[error("the statement failed")]
    Database(#[source] sqlx::Error),
}

/// Result of the store's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates the error for callers that share a statement: the database did not answer.
    pub fn unanswered(reason: &str) -> Self {
        Self::Unavailable { retry_after: RETRY_AFTER, source: sqlx::Error::Protocol(reason.to_owned()) }
    }
}

/// SQLSTATE of a write on a standby: the connection leads to a server that is not, or not any more, the primary.
const READ_ONLY: &str = "25006";

/// Delay before a retry after the database did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<sqlx::Error> for Error {
    fn from(source: sqlx::Error) -> Self {
        match &source {
            sqlx::Error::RowNotFound => Self::NotFound,
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
            | sqlx::Error::Protocol(_) => Self::Unavailable { retry_after: RETRY_AFTER, source },
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::Corrupt(source.to_string())
            }
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                match (&*code, database.constraint()) {
                    ("23505" | "23503" | "23514", Some(constraint)) => Self::Conflict(constraint.to_owned()),
                    // A byte that is invalid in text, or its escape where JSON was read as text.
                    ("22021" | "22P05", _) => Self::Unstorable,
                    // `lock_timeout`: the holder of the row executes an equal request.
                    ("55P03", _) => Self::Busy,
                    // 08 connection, 53 resources, 57P operator intervention, 40 serialization,
                    // 57014 a statement that took longer than STATEMENT_TIMEOUT, 25P03 a transaction that this process
                    // left idle for too long, because it was frozen, 25006 a standby.
                    (code, _)
                        if ["08", "53", "57P", "57014", "40", "25P03", READ_ONLY]
                            .iter()
                            .any(|class| code.starts_with(class)) =>
                    {
                        Self::Unavailable { retry_after: RETRY_AFTER, source }
                    }
                    _ => Self::Database(source),
                }
            }
            _ => Self::Database(source),
        }
    }
}
