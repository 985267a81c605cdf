//! Connections: the pools, and a transaction that speaks for one organization.

use std::{str::FromStr, time::Duration};

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::Result;
use crate::{
    base::{Timestamp, limit, seal::MasterKey},
    domain::OrgId,
};

/// Where the database is and as whom it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urls {
    /// Owns the schema and migrates.
    pub owner: String,
    /// Serves requests, one organization at a time.
    pub app: String,
    /// The service's own work. The same role as `app` in a single-role deployment.
    pub system: String,
}

/// Has the server plan a statement once for a connection, whatever its values.
const GENERIC_PLANS: (&str, &str) = ("plan_cache_mode", "force_generic_plan");

/// Connections for the appends of leased turns: those under way, and some that wait for a
/// row that a caller holds.
const APPEND_CONNECTIONS_MAX: u32 = 8;

/// How long a connection that was given back is taken to be alive. The pool looks at each
/// one when it comes back; to look again when it leaves at once would cost every
/// transaction a round trip. No server goes and comes back in that time.
const CONNECTION_TRUSTED_FOR: Duration = Duration::from_millis(100);

/// The database of a running process. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(super) app: PgPool,
    pub(super) system: PgPool,
    /// For the appends of leased turns alone: few at a time, and their statements are the
    /// longest to plan, so they stay on the few connections that have planned them.
    pub(super) append: PgPool,
    pub(super) master: MasterKey,
}

/// A transaction that sees one organization's rows. Dropped without commit, it is undone.
pub struct Tx {
    pub(super) inner: Transaction<'static, Postgres>,
    pub(super) org: OrgId,
}

/// How many connections the pools may open; that of the appends is a part of `system`'s
/// size, beside it.
#[derive(Clone, Copy, Debug)]
pub struct PoolSizes {
    pub app: u32,
    pub system: u32,
}

impl Store {
    /// Opens the pools; connects lazily, so that a start does not depend on the
    /// database being up at that very moment.
    pub fn open(urls: &Urls, sizes: PoolSizes, master: MasterKey) -> Result<Self> {
        let app = PgConnectOptions::from_str(&urls.app)?.application_name("sojourn-app");
        let mut system = PgConnectOptions::from_str(&urls.system)?.application_name("sojourn-system");
        // The service's own statements are few, come often, and find their rows by whole keys:
        // a plan for the values at hand is worth less than the time that it takes.
        system = system.options([GENERIC_PLANS]);
        if urls.app == urls.system {
            // One role for both: the connection itself says what it is for.
            system = system.options([("sojourn.scope", "system")]);
        }
        let append = pool(system.clone(), sizes.system.min(APPEND_CONNECTIONS_MAX));
        Ok(Self { app: pool(app, sizes.app), system: pool(system, sizes.system), append, master })
    }

    /// Begins a transaction that sees only `organization`'s rows.
    ///
    /// The settings travel with `begin` itself, so they cost no round trip and
    /// end with the transaction: safe behind a pooler in transaction mode.
    pub async fn begin(&self, org: OrgId) -> Result<Tx> {
        self.begin_with(org, String::new()).await
    }

    /// Begins a transaction as [`Store::begin`] does, for commands: they find their rows by
    /// whole keys, so the server plans each statement once. Pages of a list want plans of
    /// their own.
    pub async fn begin_command(&self, org: OrgId) -> Result<Tx> {
        let (name, value) = GENERIC_PLANS;
        self.begin_with(org, format!("; set local {name} = {value}")).await
    }

    async fn begin_with(&self, org: OrgId, more: String) -> Result<Tx> {
        let begin = format!(
            "begin; set local sojourn.org = '{}'; set local lock_timeout = '{}ms'; set local statement_timeout = '{}ms'{more}",
            org.uuid(),
            limit::IDEMPOTENCY_WAIT.as_millis(),
            limit::STATEMENT_TIMEOUT.as_millis(),
        );
        let inner = self.app.begin_with(AssertSqlSafe(begin)).await?;
        Ok(Tx { inner, org })
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("select 1").execute(&self.system).await?;
        Ok(())
    }

    /// The server's version, and what it takes the time to be.
    pub async fn server(&self) -> Result<(String, Timestamp)> {
        Ok(sqlx::query_as("select current_setting('server_version'), now()").fetch_one(&self.system).await?)
    }

    /// The key that this deployment's secrets hang on.
    pub fn master(&self) -> &MasterKey {
        &self.master
    }

    /// Closes every connection; running statements are waited for.
    pub async fn close(&self) {
        self.app.close().await;
        self.append.close().await;
        self.system.close().await;
    }
}

impl Tx {
    /// The organization whose rows this transaction sees.
    pub fn org(&self) -> OrgId {
        self.org
    }

    /// Makes everything that was done in it durable, at once.
    pub async fn commit(self) -> Result<()> {
        Ok(self.inner.commit().await?)
    }

    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.inner
    }
}

fn pool(options: PgConnectOptions, size: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(Duration::from_secs(5))
        .max_lifetime(Duration::from_secs(1_800))
        .test_before_acquire(false)
        .before_acquire(|connection, held| {
            Box::pin(async move {
                if held.idle_for >= CONNECTION_TRUSTED_FOR {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_lazy_with(options)
}
