//! Start of a process: waits for the database, and changes it while no other process does.

use std::{pin::pin, time::Duration};

use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep, timeout};

use super::{Error, embedded::Progress};
use crate::base::limit::STATEMENT_TIMEOUT;

/// Limit of one attempt to connect. A host that is gone does not answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Delay between two lines of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Statement that the holder of the lock repeats: the server ends its transaction after 20 s without one. A `set` takes no
/// snapshot, for which `create index concurrently` would wait.
const KEEP_LOCK: &str = "set local idle_in_transaction_session_timeout = '20s'";
/// Interval of the repetitions.
const KEEP_LOCK_INTERVAL: Duration = Duration::from_secs(5);

/// How long a process waits for the database, and where it reports that.
#[derive(Clone, Copy)]
pub struct StartWait<'a> {
    pub limit: Duration,
    pub says: Progress<'a>,
}

impl StartWait<'_> {
    /// Fails at once.
    pub const NONE: StartWait<'static> = StartWait { limit: Duration::ZERO, says: &|_| {} };
}

/// Lines of progress of one wait: the first at once, then one every 5 s.
pub(super) struct Waiting<'a> {
    wait: StartWait<'a>,
    started: Instant,
    reported: Option<Instant>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(wait: StartWait<'a>) -> Self {
        Self { wait, started: Instant::now(), reported: None }
    }

    /// Reports `reason` and waits for the next attempt. Returns false when the limit is reached.
    pub(super) async fn next(&mut self, reason: &str) -> bool {
        let (waited, limit) = (self.started.elapsed(), self.wait.limit);
        if waited >= limit {
            return false;
        }
        self.report(&format!("{reason} ({} s of {} s)", waited.as_secs(), limit.as_secs()));
        sleep(RETRY_DELAY).await;
        true
    }

    fn report(&mut self, line: &str) {
        if self.reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            self.reported = Some(Instant::now());
            (self.wait.says)(line);
        }
    }
}

/// Connects; while the server cannot be reached, tries again.
///
/// # Errors
/// The last error, after the limit. At once an error that does not pass by itself, such as a wrong password.
pub(super) async fn connect(url: &str, wait: StartWait<'_>) -> Result<PgConnection, String> {
    connect_within(url, &mut Waiting::new(wait)).await
}

/// The same within a wait that has begun.
pub(super) async fn connect_within(url: &str, waiting: &mut Waiting<'_>) -> Result<PgConnection, String> {
    loop {
        let (reason, is_temporary) = match timeout(CONNECT_TIMEOUT, PgConnection::connect(url)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => {
                let reason = error.to_string();
                (reason, matches!(Error::from(error), Error::Unavailable { .. }))
            }
            Err(_) => (format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()), true),
        };
        if !is_temporary || !waiting.next(&format!("waiting for the database: {reason}")).await {
            return Err(reason);
        }
    }
}

/// Runs `work` while no other process does. Waits without a limit, because a migration may take long.
///
/// The lock is held by a transaction, so it also works behind a pooler in transaction mode. A process that
/// waits holds no snapshot between its attempts: `create index concurrently` waits for every snapshot. A holder that is
/// frozen, or whose machine is gone, loses the lock after 20 s.
///
/// # Errors
/// `Unavailable` when the lock was lost, too; `work` is dropped then.
pub(crate) async fn exclusively<T, E: From<Error>>(
    url: &str,
    wait: StartWait<'_>,
    work: impl AsyncFnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let mut holder = connect(url, wait).await.map_err(|reason| E::from(Error::unanswered(&reason)))?;
    let mut waiting = Waiting::new(wait);
    loop {
        let mut tx = answered(holder.begin()).await?;
        keep_lock(&mut tx).await?;
        let lock =
            sqlx::query_scalar("select pg_try_advisory_xact_lock(hashtextextended('sojourn_start', 0))");
        let is_ours: bool = answered(lock.fetch_one(&mut *tx)).await?;
        if is_ours {
            let done = {
                let mut work = pin!(work());
                loop {
                    match timeout(KEEP_LOCK_INTERVAL, &mut work).await {
                        Ok(done) => break done,
                        Err(_) => keep_lock(&mut tx).await?,
                    }
                }
            };
            // Releases the lock; if the connection is gone, the server does.
            let _ = answered(tx.rollback()).await;
            let _ = answered(holder.close()).await;
            return done;
        }
        answered(tx.rollback()).await?;
        waiting.report("waiting for another process that prepares the database");
        sleep(RETRY_DELAY).await;
    }
}

/// Tells the server that the holder of the lock is there.
async fn keep_lock(holder: &mut PgConnection) -> Result<(), Error> {
    answered(sqlx::raw_sql(KEEP_LOCK).execute(holder)).await.map(drop)
}

/// Waits for an answer of the server. A host that is gone gives none.
async fn answered<T>(question: impl Future<Output = sqlx::Result<T>>) -> Result<T, Error> {
    match timeout(STATEMENT_TIMEOUT, question).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Error::unanswered("the database does not answer, so the lock of the start is lost")),
    }
}
