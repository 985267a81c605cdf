//! Limits of statements, connections and transactions.

use std::time::Duration;

/// First and longest back-off of a turn while the database is unavailable.
pub const DATABASE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Retries of the database by a turn before its job is released to other workers.
pub const DATABASE_ATTEMPTS_MAX: u32 = 60;
/// Timeout of one SQL statement.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time after which a process stops to wait for the answer to a statement; its outcome is unknown. Longer
/// than `STATEMENT_TIMEOUT`, with which a server that lives answers.
pub const STATEMENT_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of a statement that works on many rows: partitions of the next month.
pub const LONG_STATEMENT_TIMEOUT: Duration = Duration::from_secs(600);
/// Time to answer for a connection that was idle, before it is used. Afterwards it is closed, and another one
/// is opened within the time to acquire one.
pub const CONNECTION_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the end of a transaction that was not committed, and for the check of a connection that is
/// returned to its pool. Afterwards it is closed.
pub const CONNECTION_RETURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the server ends a transaction whose process sends nothing: it is frozen, or gone without
/// a reset. Its locks delay others for at most this time.
pub const IDLE_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Difference between the clocks of a process and of the database that is not corrected.
pub const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_millis(500);
/// Interval at which a process compares its clock with that of the database.
pub const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(10);
