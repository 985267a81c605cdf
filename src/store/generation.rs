//! Generation of the database: another one begins when it fails over, restarts or is replaced by a copy, and may
//! have lost the last commits.
//!
//! Each new connection tells it before its first use, and so does each claim. A fenced append compares the one in
//! which its lease read the log with that of the server that executes it, because a pooler may change the server of
//! an open connection.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use sqlx::{Error, Executor, Postgres, Row};

/// The generation that a process has met last. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Generation(Arc<Mutex<Option<Known>>>);

#[derive(Clone, Copy)]
struct Known {
    number: i64,
    /// Time of the first answer from it.
    since: Instant,
}

/// A number of the generation; null on a standby. Of the timeline of the primary, which a promotion changes, the
/// id of the database, and the start of the server: two servers may begin the same timeline.
macro_rules! generation {
    () => {
        "case when not pg_is_in_recovery() then hashtextextended(
            substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
            || ' ' || (select oid from pg_database where datname = current_database())
            || ' ' || extract(epoch from pg_postmaster_start_time()), 0) end"
    };
}
pub(in crate::store) use generation;

impl Generation {
    /// Returns the number of the current one; 0 before the first connection.
    pub(super) fn number(&self) -> i64 {
        self.known().map_or(0, |known| known.number)
    }

    /// Reads it on a new connection.
    ///
    /// # Errors
    /// If the server is a standby: its rows may be old, and it writes nothing. After a failover an address may lead
    /// to one for a moment.
    pub(super) async fn read<'c>(
        &self,
        connection: impl Executor<'c, Database = Postgres>,
    ) -> Result<(), Error> {
        let read = sqlx::raw_sql(concat!("select ", generation!()));
        let number: Option<i64> = read.fetch_one(connection).await?.try_get(0)?;
        let Some(number) = number else {
            return Err(Error::Protocol("the server is a standby".to_owned()));
        };
        self.notice(number);
        Ok(())
    }

    /// Notices the generation of an answer.
    pub(super) fn notice(&self, number: i64) {
        let mut known = self.known();
        if known.is_some_and(|known| known.number == number) {
            return;
        }
        if known.is_some() {
            tracing::warn!("the database has failed over or was restarted; commits may be lost");
        }
        *known = Some(Known { number, since: Instant::now() });
    }

    /// Whether a connection of this age is from an earlier one: it may lead to a former primary.
    pub(super) fn is_older(&self, age: Duration) -> bool {
        self.known().is_some_and(|known| known.since.elapsed() < age)
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().expect("no code panics while it holds the lock")
    }
}
