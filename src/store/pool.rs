//! Connection pools, and a transaction scoped to one organization.

use std::{str::FromStr, sync::Arc, time::Duration};

use sqlx::{
    Connection as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::timeout;

use super::{
    Result,
    connection::{Connection, Pool},
    generation::Generation,
    log::Segments,
    money::PastSpend,
};

use crate::{
    base::{
        Timestamp,
        limit::{self, CONNECTION_CHECK_TIMEOUT},
        seal::MasterKey,
        shares::{Place, Shares},
    },
    blob::Blobs,
    domain::OrgId,
};

/// Connection URLs of the database, one for each role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urls {
    /// Owns the schema and migrates.
    pub owner: String,
    /// Serves requests, one organization at a time.
    pub app: String,
    /// Does the service's own work. The same role as `app` in a single-role deployment.
    pub system: String,
}

/// Makes the server plan a statement once per connection, whatever its values.
///
/// A default of the system role: the service's own statements are few and frequent, and they find rows by
/// complete keys. A plan for the actual values is worth less than the time to plan it.
pub(super) const GENERIC_PLANS: (&str, &str) = ("plan_cache_mode", "force_generic_plan");

/// Connections for the appends of leased turns: those in progress, and some that wait for a row
/// lock of a caller.
const APPEND_CONNECTIONS_MAX: u32 = 8;
/// Connections of the system role from which on the appends have their own.
const APPEND_SEPARATE_FROM: u32 = 12;

/// Connections of the system role from which on the leases have their own.
const LEASE_SEPARATE_FROM: u32 = 4;

/// Time that a transaction waits for a connection, and before that for its organization's share of them.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle time for which a connection is assumed to be alive.
///
/// The pool checks each connection when it is returned. Another check when it is acquired at once
/// would cost every transaction a round trip. A server cannot restart within this time.
const CONNECTION_TRUSTED_FOR: Duration = Duration::from_millis(100);

/// Database of a running process. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(super) app: Pool,
    /// The connections of `app`, of which one organization leaves a quarter to the others.
    app_shares: Arc<Shares<OrgId>>,
    pub(super) system: Pool,
    /// For the appends of leased turns. They are few at a time and their statements take longest to plan, so
    /// they stay on the few connections that have planned them, unless the system role has few connections
    /// altogether.
    pub(super) append: Pool,
    /// For the renewal of leases: one connection that waits for no lock of another statement, so that a lock which a
    /// stopped process holds costs no lease. Opened by the first renewal, so none in a process without leases.
    pub(super) lease: Pool,
    /// For the connection that listens. It is none of a pool: a dead one would occupy a place there.
    pub(super) listen: PgConnectOptions,
    pub(super) generation: Generation,
    pub(super) master: MasterKey,
    pub(super) past_spend: PastSpend,
    pub(super) segments: Segments,
}

/// A transaction that sees one organization's rows. Dropping it without commit rolls back.
pub struct Tx {
    pub(super) inner: Connection,
    pub(super) org: OrgId,
    pub(super) past_spend: PastSpend,
    /// Its place among the connections of its organization.
    _place: Place,
}

/// Maximum connections of the two roles. The connection that listens is additional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    pub app: u32,
    pub system: u32,
}

impl Store {
    /// Opens the pools; connects lazily, so the service can start while the database is down.
    pub fn open(urls: &Urls, sizes: PoolSizes, master: MasterKey) -> Result<Self> {
        let app = PgConnectOptions::from_str(&urls.app)?.application_name("sojourn-app");
        let mut system = PgConnectOptions::from_str(&urls.system)?.application_name("sojourn-system");
        if urls.app == urls.system {
            // One role for both: a connection setting states the purpose.
            system = system.options([GENERIC_PLANS, ("sojourn.scope", "system")]);
        }
        let generation = Generation::default();
        let listen = system.clone().application_name("sojourn-listen");
        let appending = match sizes.system {
            few if few < APPEND_SEPARATE_FROM => 0,
            many => APPEND_CONNECTIONS_MAX.min(many / 3),
        };
        let leasing = u32::from(sizes.system >= LEASE_SEPARATE_FROM);
        let separate = |count: u32| (count > 0).then(|| pool(system.clone(), count, &generation));
        let (append, lease) = (separate(appending), separate(leasing));
        let app = pool(app, sizes.app, &generation);
        let app_shares = Arc::new(Shares::new(sizes.app as usize, (sizes.app - sizes.app / 4) as usize));
        let system = pool(system, sizes.system - appending - leasing, &generation);
        let append = append.unwrap_or_else(|| system.clone());
        let lease = lease.unwrap_or_else(|| system.clone());
        let (past_spend, segments) = (PastSpend::default(), Segments::new(None));
        Ok(Self { app, app_shares, system, append, lease, listen, generation, master, past_spend, segments })
    }

    /// Reads the events that are in the blob store from this one.
    pub fn with_blobs(self, blobs: Blobs) -> Self {
        Self { segments: Segments::new(Some(blobs)), ..self }
    }

    /// Listens at another URL, because a pooler in transaction mode cannot listen.
    pub fn listening_at(mut self, url: &str) -> Result<Self> {
        self.listen = PgConnectOptions::from_str(url)?.application_name("sojourn-listen");
        Ok(self)
    }

    /// Returns how many connections the server accepts from other roles than superusers, and how many are open.
    pub async fn server_connections(&self) -> Result<(i64, i64)> {
        let counted = sqlx::query_as(
            "select current_setting('max_connections')::bigint
                        - current_setting('superuser_reserved_connections')::bigint,
                    (select count(*) from pg_stat_activity where backend_type = 'client backend')",
        );
        Ok(counted.fetch_one(&self.system).await?)
    }

    /// Begins a transaction that sees only `org`'s rows.
    ///
    /// The settings are sent with `begin` itself, so they cost no round trip. They end with the
    /// transaction, so this is safe behind a pooler in transaction mode.
    pub async fn begin(&self, org: OrgId) -> Result<Tx> {
        self.begin_with(org, String::new()).await
    }

    /// Begins a transaction as [`Store::begin`] does, for commands.
    ///
    /// Commands find their rows by complete keys, so the server plans each statement once. Pages of
    /// a list need plans for their values.
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
        let place = timeout(ACQUIRE_TIMEOUT, self.app_shares.take(Some(org))).await;
        let _place = place.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let inner = self.app.begin_with(begin).await?;
        Ok(Tx { inner, org, past_spend: self.past_spend.clone(), _place })
    }

    /// Returns the generation of the database, which changes when it fails over or restarts and may have lost
    /// commits; 0 before the first connection.
    pub fn generation(&self) -> i64 {
        self.generation.number()
    }

    /// Checks that the database answers.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("select 1").execute(&self.system).await?;
        Ok(())
    }

    /// Returns the server's version and its current time.
    pub async fn server(&self) -> Result<(String, Timestamp)> {
        Ok(sqlx::query_as("select current_setting('server_version'), now()").fetch_one(&self.system).await?)
    }

    /// Returns the server's current time.
    pub async fn time(&self) -> Result<Timestamp> {
        let (now,): (Timestamp,) = sqlx::query_as("select now()").fetch_one(&self.system).await?;
        Ok(now)
    }

    /// Returns the master key of this deployment's secrets.
    pub fn master(&self) -> &MasterKey {
        &self.master
    }

    /// Closes every connection after its running statement.
    pub async fn close(&self) {
        self.app.close().await;
        self.append.close().await;
        self.lease.close().await;
        self.system.close().await;
    }
}

impl Tx {
    /// Returns the organization whose rows this transaction sees.
    pub fn org(&self) -> OrgId {
        self.org
    }

    /// Commits the transaction.
    pub async fn commit(self) -> Result<()> {
        Ok(self.inner.commit().await?)
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.inner
    }
}

fn pool(options: PgConnectOptions, size: u32, generation: &Generation) -> Pool {
    let (generation, current) = (generation.clone(), generation.clone());
    let pool = PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .max_lifetime(Duration::from_secs(1_800))
        .test_before_acquire(false)
        .before_acquire(move |connection, held| {
            let is_older = current.is_older(held.age);
            Box::pin(async move {
                if is_older {
                    return Ok(false);
                }
                if held.idle_for >= CONNECTION_TRUSTED_FOR {
                    let answered = timeout(CONNECTION_CHECK_TIMEOUT, connection.ping()).await;
                    answered.map_err(|_| sqlx::Error::PoolTimedOut)??;
                }
                Ok(true)
            })
        })
        .after_connect(move |connection, _| {
            let generation = generation.clone();
            Box::pin(async move { generation.read(connection).await })
        })
        .connect_lazy_with(options);
    Pool::new(pool)
}
