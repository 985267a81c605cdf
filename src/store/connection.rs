//! Connections whose statements have a time limit in this process.
//!
//! The limits of the server (`statement_timeout`) do not help when its host vanishes: nothing answers, and
//! without a reset the kernel waits for many minutes. A statement that exceeds the limit here has an unknown
//! outcome, like one whose connection was reset, and its connection is closed. Own code, because sqlx has no
//! limit for a statement, and its pool waits without a limit for the answer of a connection that is returned.

use std::{fmt, io, time::Duration};

use futures::{
    FutureExt, StreamExt, TryFutureExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    AssertSqlSafe, Describe, Either, Error, Executor, PgPool, Postgres, SqlStr,
    error::DatabaseError,
    pool::PoolConnection,
    postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};
use tokio::time::timeout;

use super::READ_ONLY;
use crate::base::limit::{CONNECTION_RETURN_TIMEOUT, LONG_STATEMENT_TIMEOUT, STATEMENT_ANSWER_TIMEOUT};

/// A pool of connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    inner: PgPool,
    limit: Duration,
}

/// A connection of a pool, with or without an open transaction. Dropping it rolls the transaction back.
pub(super) struct Connection {
    /// Set until it is returned.
    inner: Option<PoolConnection<Postgres>>,
    limit: Duration,
    is_in_transaction: bool,
    /// A statement was not answered in time, or the server does not write.
    is_lost: bool,
}

impl Pool {
    pub(super) fn new(inner: PgPool) -> Self {
        Self { inner, limit: STATEMENT_ANSWER_TIMEOUT }
    }

    pub(super) async fn acquire(&self) -> Result<Connection, Error> {
        let inner = Some(self.inner.acquire().await?);
        Ok(Connection { inner, limit: self.limit, is_in_transaction: false, is_lost: false })
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<Connection, Error> {
        self.begin_with("begin".to_owned()).await
    }

    /// Begins a transaction for work on many rows, whose statements may take `LONG_STATEMENT_TIMEOUT`.
    pub(super) async fn begin_long(&self) -> Result<Connection, Error> {
        let pool = Self { inner: self.inner.clone(), limit: LONG_STATEMENT_TIMEOUT };
        let timeout = LONG_STATEMENT_TIMEOUT.as_millis();
        pool.begin_with(format!("begin; set local statement_timeout = '{timeout}ms'")).await
    }

    /// Begins a transaction with these statements, in one round trip.
    pub(super) async fn begin_with(&self, statements: String) -> Result<Connection, Error> {
        let mut connection = self.acquire().await?;
        // Also if only the first of the statements is executed.
        connection.is_in_transaction = true;
        sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut connection).await?;
        Ok(connection)
    }

    pub(super) async fn close(&self) {
        self.inner.close().await;
    }
}

impl Connection {
    /// Commits the transaction. Without an answer its outcome is unknown.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        sqlx::raw_sql("commit").execute(&mut self).await?;
        self.is_in_transaction = false;
        Ok(())
    }

    /// Runs one statement within the limit.
    async fn within<T>(
        &mut self,
        run: impl AsyncFnOnce(&mut PoolConnection<Postgres>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.is_lost {
            return Err(unanswered(self.limit));
        }
        let inner = self.inner.as_mut().expect("it is set until it is returned");
        match timeout(self.limit, run(inner)).await {
            Ok(answer) => {
                self.is_lost = answer.as_ref().err().is_some_and(is_read_only);
                answer
            }
            Err(_) => {
                self.is_lost = true;
                Err(unanswered(self.limit))
            }
        }
    }
}

fn is_read_only(error: &Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == READ_ONLY)
}

fn unanswered(limit: Duration) -> Error {
    let message = format!("the database did not answer within {} s", limit.as_secs());
    Error::Io(io::Error::new(io::ErrorKind::TimedOut, message))
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        if self.is_lost {
            inner.close_on_drop();
            return;
        }
        let is_in_transaction = self.is_in_transaction;
        // The runtime may be shutting down: then the connection is closed with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Nobody joins the task: it ends within twice CONNECTION_RETURN_TIMEOUT.
        runtime.spawn(async move {
            if is_in_transaction {
                let rollback = sqlx::raw_sql("rollback").execute(&mut *inner);
                if !matches!(timeout(CONNECTION_RETURN_TIMEOUT, rollback).await, Ok(Ok(_))) {
                    inner.close_on_drop();
                    return;
                }
            }
            // Dropping the future closes the connection.
            let _ = timeout(CONNECTION_RETURN_TIMEOUT, inner.return_to_pool()).await;
        });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("is_in_transaction", &self.is_in_transaction)
            .finish_non_exhaustive()
    }
}

/// Rows of an answer are collected before the first is returned, so that the limit holds for all of them.
impl<'c> Executor<'c> for &'c mut Connection {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + sqlx::Execute<'q, Postgres>,
    {
        let all = async move {
            self.within(async |inner| (&mut **inner).fetch_many(query).try_collect::<Vec<_>>().await).await
        };
        all.map_ok(|items| stream::iter(items.into_iter().map(Ok))).try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + sqlx::Execute<'q, Postgres>,
    {
        async move { self.within(async |inner| (&mut **inner).fetch_optional(query).await).await }.boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        async move { self.within(async |inner| (&mut **inner).prepare_with(sql, parameters).await).await }
            .boxed()
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        async move { self.within(async |inner| (&mut **inner).describe(sql).await).await }.boxed()
    }
}

impl<'c> Executor<'c> for &'c Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + sqlx::Execute<'q, Postgres>,
    {
        let all = async move {
            let mut connection = self.acquire().await?;
            (&mut connection).fetch_many(query).try_collect::<Vec<_>>().await
        };
        all.map_ok(|items| stream::iter(items.into_iter().map(Ok))).try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + sqlx::Execute<'q, Postgres>,
    {
        async move { self.acquire().await?.fetch_optional(query).await }.boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        async move { self.acquire().await?.prepare_with(sql, parameters).await }.boxed()
    }
    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        async move { self.acquire().await?.describe(sql).await }.boxed()
    }
}
