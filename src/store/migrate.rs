//! Schema migrations to this binary's version, and checks of the database roles.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, migrate::Migrator};
use tokio::time::timeout;

use super::{
    Error, Urls,
    pool::GENERIC_PLANS,
    start::{self, StartWait, Waiting, exclusively},
};
use crate::base::{
    Origin,
    limit::{IDLE_TRANSACTION_TIMEOUT, STATEMENT_TIMEOUT},
    seal::MasterKey,
};

/// The migrations of this binary. Later ones that the database has are accepted: an operator may go back to
/// the previous binary.
fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.set_ignore_missing(true);
    migrator
}

/// Reasons why the database cannot be used. Each message is one line for the operator.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    #[error(
        "role \"{0}\" is a superuser or bypasses row level security; use a role that does neither, \
         because nothing would keep organizations apart"
    )]
    TooPowerful(String),
    #[error("this database was set up with another SOJOURN_MASTER_KEY; start with that one")]
    WrongMasterKey,
    #[error(
        "the schema has version {found}, and this binary needs {needed}: run `sojourn migrate` with the \
         owner's URL"
    )]
    Outdated { found: i64, needed: i64 },
    #[error(
        "the schema was not migrated for the roles \"{0}\" (DATABASE_URL) and \"{1}\" \
         (SOJOURN_SYSTEM_DATABASE_URL): run `sojourn migrate` with these URLs and the owner's"
    )]
    OtherRoles(String, String),
    #[error("the schema could not be migrated: {0}")]
    Failed(String),
}

impl From<Error> for MigrateError {
    fn from(error: Error) -> Self {
        match std::error::Error::source(&error) {
            Some(source) if matches!(error, Error::Unavailable { .. }) => {
                Self::Unreachable(source.to_string())
            }
            Some(source) => Self::Failed(source.to_string()),
            None => Self::Failed(error.to_string()),
        }
    }
}

/// Creates or upgrades the schema as the owner and grants privileges to the roles.
///
/// Safe to run from several processes at once (one waits for the other) and while processes of the
/// previous version still run.
///
/// Returns the master key with the pepper of this deployment's hashes.
pub async fn migrate(urls: &Urls, master: MasterKey, wait: StartWait<'_>) -> Result<MasterKey, MigrateError> {
    let app_role = check_role(&urls.app, wait).await?;
    let system_role = check_role(&urls.system, wait).await?;
    exclusively(&urls.owner, wait, async || {
        schema(&urls.owner).await?;
        let held = ask(&urls.owner, wait, async |owner| {
            claim_deployment(owner, &master, &app_role, &system_role).await
        });
        let held = held.await?;
        let master = accept_master_key(master, &held)?;
        // Monthly partitions were not created while no process ran.
        ask(&urls.owner, wait, async |owner| {
            Ok(sqlx::query("select sojourn_roll_months()").execute(owner).await.map(drop)?)
        })
        .await?;
        ask(&urls.owner, wait, async |owner| grant(owner, &app_role, &system_role).await).await?;
        set_defaults(&urls.app, &[], wait).await?;
        let of_system = if app_role == system_role { &[][..] } else { &[GENERIC_PLANS] };
        set_defaults(&urls.system, of_system, wait).await?;
        Ok(master)
    })
    .await
}

/// Checks that the schema has this binary's version or a later one, for a process without the owner's URL.
/// Waits for it as for the server.
///
/// Returns the master key with the pepper of this deployment's hashes.
pub async fn check(urls: &Urls, master: MasterKey, wait: StartWait<'_>) -> Result<MasterKey, MigrateError> {
    let app_role = check_role(&urls.app, wait).await?;
    let system_role = check_role(&urls.system, wait).await?;
    let needed = migrator().iter().map(|migration| migration.version).max().unwrap_or_default();
    let mut waiting = Waiting::new(wait);
    loop {
        let found = ask(&urls.system, wait, async |connection| schema_version(connection).await).await?;
        if found >= needed {
            break;
        }
        let reason = format!("waiting for the schema: it has version {found}, this binary needs {needed}");
        if !waiting.next(&reason).await {
            return Err(MigrateError::Outdated { found, needed });
        }
    }
    let held: Option<Held> = ask(&urls.system, wait, async |connection| {
        let held =
            "select master_key_check, sealed_pepper, app_role::text, system_role::text from deployment";
        Ok(sqlx::query_as(held).fetch_optional(connection).await?)
    })
    .await?;
    let Some(held) = held.filter(|held| held.app_role == app_role && held.system_role == system_role) else {
        return Err(MigrateError::OtherRoles(app_role, system_role));
    };
    accept_master_key(master, &held)
}

/// Returns the version of the schema; 0 if there is none, or none that this role may use.
async fn schema_version(connection: &mut PgConnection) -> Result<i64, Error> {
    let version = "select coalesce(max(version), 0) from _sqlx_migrations where success";
    match sqlx::query_scalar(version).fetch_one(connection).await {
        Ok(version) => Ok(version),
        Err(sqlx::Error::Database(error)) if matches!(error.code().as_deref(), Some("42P01" | "42501")) => {
            Ok(0)
        }
        Err(error) => Err(error.into()),
    }
}

/// Accepts the configured key if it, or the key that it replaces, is the deployment's.
fn accept_master_key(master: MasterKey, held: &Held) -> Result<MasterKey, MigrateError> {
    let is_held = |key: &MasterKey| held.master_key_check == key.check_value();
    let before = master.before().filter(is_held);
    if !is_held(&master) && before.is_none() {
        return Err(MigrateError::WrongMasterKey);
    }
    match (&held.sealed_pepper, before) {
        (Some(sealed), _) => master.open_pepper(sealed).map_err(|_| MigrateError::WrongMasterKey),
        (None, Some(before)) => Ok(master.with_pepper_of(&before)),
        (None, None) => Ok(master),
    }
}

/// Makes the current master key the deployment's, once no data key needs another one.
pub async fn replace_master_key(
    owner_url: &str,
    master: &MasterKey,
    origin: &Origin,
) -> Result<(), MigrateError> {
    let mut owner = connect(owner_url, StartWait::NONE).await?;
    sqlx::query("update deployment set master_key_check = $1, sealed_pepper = $2")
        .bind(master.check_value().as_slice())
        .bind(master.seal_pepper(origin))
        .execute(&mut owner)
        .await
        .map_err(Error::from)?;
    let _ = owner.close().await;
    Ok(())
}

#[derive(sqlx::FromRow)]
struct Held {
    master_key_check: Vec<u8>,
    sealed_pepper: Option<Vec<u8>>,
    app_role: String,
    system_role: String,
}

/// Creates or upgrades the tables only, as the owner.
pub async fn schema(owner_url: &str) -> Result<(), MigrateError> {
    let mut owner = connect(owner_url, StartWait::NONE).await?;
    let migrator = migrator();
    // The limit of the role, if it also serves: an index of a large table takes longer, and waits for every snapshot.
    sqlx::raw_sql("set statement_timeout = 0").execute(&mut owner).await.map_err(Error::from)?;
    drop_unrecorded_indexes(&mut owner, &migrator).await?;
    migrator.run(&mut owner).await.map_err(|error| MigrateError::Failed(error.to_string()))?;
    complete_indexes(&mut owner).await?;
    // The connection may be a pooler's.
    sqlx::raw_sql("reset statement_timeout").execute(&mut owner).await.map_err(Error::from)?;
    let _ = owner.close().await;
    Ok(())
}

/// Drops the indexes of migrations that create one outside a transaction and are not recorded: the server may have
/// created a part of it, or all, for a process that was gone at the end. These migrations run again.
async fn drop_unrecorded_indexes(owner: &mut PgConnection, migrator: &Migrator) -> Result<(), Error> {
    let has_schema: bool = sqlx::query_scalar("select to_regclass('public._sqlx_migrations') is not null")
        .fetch_one(&mut *owner)
        .await?;
    if !has_schema {
        return Ok(());
    }
    let (versions, names): (Vec<_>, Vec<_>) = migrator
        .iter()
        .flat_map(|migration| {
            let created = migration.sql.as_str().split("create index concurrently ").skip(1);
            created.filter_map(|rest| Some((migration.version, rest.split_whitespace().next()?.to_owned())))
        })
        .unzip();
    let left: Vec<String> = sqlx::query_scalar(
        "select format('drop index concurrently %s', c.oid::regclass)
         from unnest($1::bigint[], $2::text[]) as created (version, name)
         join pg_class c on c.relname = created.name and c.relnamespace = 'public'::regnamespace and c.relkind = 'i'
         where not exists (select from _sqlx_migrations m where m.version = created.version and m.success)",
    )
    .bind(&versions)
    .bind(&names)
    .fetch_all(&mut *owner)
    .await?;
    for statement in left {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *owner).await?;
    }
    Ok(())
}

/// Creates indexes of partitioned tables on the partitions that lack them, without stopping writers, and attaches them.
///
/// A migration creates such an index on the parent only: it does not know the months of a deployment, and one statement
/// for all of them would stop writers.
async fn complete_indexes(owner: &mut PgConnection) -> Result<(), Error> {
    let missing: Vec<(bool, Option<String>, String, String)> = sqlx::query_as(
        "select child.indisvalid is true,
                'drop index concurrently ' || child.indexrelid::regclass::text,
                format('create index concurrently %I on %s %s', of_part.name, part.oid::regclass,
                       regexp_replace(pg_get_indexdef(parent.indexrelid), '^CREATE INDEX \\S+ ON ONLY \\S+ ', '')),
                format('alter index %s attach partition %I', parent.indexrelid::regclass, of_part.name)
         from pg_index parent
         join pg_class of_parent on of_parent.oid = parent.indexrelid
         join pg_inherits i on i.inhparent = parent.indrelid
         join pg_class part on part.oid = i.inhrelid
         cross join format('%s_%s', part.relname, of_parent.relname) as of_part (name)
         left join pg_index child on child.indexrelid = to_regclass(of_part.name)
         where of_parent.relkind = 'I'
           and of_parent.relnamespace = 'public'::regnamespace
           and not parent.indisvalid
           and not exists (
               select
               from pg_inherits attached
               join pg_index own on own.indexrelid = attached.inhrelid
               where attached.inhparent = parent.indexrelid and own.indrelid = part.oid
           )
         order by part.relname",
    )
    .fetch_all(&mut *owner)
    .await?;
    for (is_there, drop, create, attach) in missing {
        let drop = drop.filter(|_| !is_there);
        for statement in drop.into_iter().chain((!is_there).then_some(create)) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *owner).await?;
        }
        // It is used before it is attached, so a reader that holds the partition stops nothing.
        sqlx::raw_sql("set lock_timeout = '2s'").execute(&mut *owner).await?;
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(attach)).execute(&mut *owner).await {
            tracing::warn!(%error, "an index is attached by the next migration");
        }
        sqlx::raw_sql("reset lock_timeout").execute(&mut *owner).await?;
    }
    Ok(())
}

async fn connect(url: &str, wait: StartWait<'_>) -> Result<PgConnection, MigrateError> {
    start::connect(url, wait).await.map_err(MigrateError::Unreachable)
}

/// Asks on a connection of its own. While the server cannot be reached or does not answer, tries again.
///
/// # Errors
/// The last error, after the limit. At once an error that does not pass by itself.
async fn ask<T>(
    url: &str,
    wait: StartWait<'_>,
    question: impl AsyncFn(&mut PgConnection) -> Result<T, Error>,
) -> Result<T, MigrateError> {
    let mut waiting = Waiting::new(wait);
    loop {
        let mut connection =
            start::connect_within(url, &mut waiting).await.map_err(MigrateError::Unreachable)?;
        let error = match timeout(STATEMENT_TIMEOUT, question(&mut connection)).await {
            Ok(Ok(answer)) => {
                let _ = connection.close().await;
                return Ok(answer);
            }
            Ok(Err(error)) => error,
            Err(_) => Error::unanswered(&format!("no answer within {} s", STATEMENT_TIMEOUT.as_secs())),
        };
        let is_temporary = matches!(error, Error::Unavailable { .. });
        let error = MigrateError::from(error);
        if !is_temporary || !waiting.next(&format!("waiting for the database: {error}")).await {
            return Err(error);
        }
    }
}

/// Returns the role of a URL; fails when row-level security would not apply to it.
async fn check_role(url: &str, wait: StartWait<'_>) -> Result<String, MigrateError> {
    let (role, powerful): (String, bool) = ask(url, wait, async |connection| {
        let role =
            "select rolname::text, rolsuper or rolbypassrls from pg_roles where rolname = current_user";
        Ok(sqlx::query_as(role).fetch_one(connection).await?)
    })
    .await?;
    if powerful { Err(MigrateError::TooPowerful(role)) } else { Ok(role) }
}

/// Stores the roles of this start; returns the master key data stored first.
async fn claim_deployment(
    owner: &mut PgConnection,
    master: &MasterKey,
    app_role: &str,
    system_role: &str,
) -> Result<Held, Error> {
    let held = sqlx::query_as(
        "insert into deployment (master_key_check, app_role, system_role)
         values ($1, $2::text::name, $3::text::name)
         on conflict (singleton) do update set app_role = excluded.app_role, system_role = excluded.system_role
         returning master_key_check, sealed_pepper, app_role::text, system_role::text",
    )
    .bind(master.check_value().as_slice())
    .bind(app_role)
    .bind(system_role)
    .fetch_one(&mut *owner)
    .await?;
    sqlx::query("call sojourn_set_system_role()").execute(owner).await?;
    Ok(held)
}

/// Sets defaults of the role of a URL in its database, for its next connections.
///
/// They are settings of the role and not of a connection, because a pooler in transaction mode does not
/// pass those on. A role may change its own.
async fn set_defaults(
    url: &str,
    more: &[(&'static str, &'static str)],
    wait: StartWait<'_>,
) -> Result<(), MigrateError> {
    let millis = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut wanted = vec![
        ("statement_timeout", millis(STATEMENT_TIMEOUT)),
        ("idle_in_transaction_session_timeout", millis(IDLE_TRANSACTION_TIMEOUT)),
        // The server notices that a process is gone without a reset: while it waits for it, and while it
        // executes its statement.
        ("tcp_keepalives_idle", "10s".to_owned()),
        ("tcp_keepalives_interval", "5s".to_owned()),
        ("tcp_keepalives_count", "2".to_owned()),
        ("tcp_user_timeout", "20s".to_owned()),
        ("client_connection_check_interval", "5s".to_owned()),
    ];
    wanted.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    ask(url, wait, async |connection| write_defaults(connection, &wanted).await).await
}

async fn write_defaults(
    connection: &mut PgConnection,
    wanted: &[(&'static str, String)],
) -> Result<(), Error> {
    let written: Vec<String> = sqlx::query_scalar(
        "select unnest(setconfig)
         from pg_db_role_setting
         join pg_roles r on r.oid = setrole
         join pg_database d on d.oid = setdatabase
         where r.rolname = current_user and d.datname = current_database()",
    )
    .fetch_all(&mut *connection)
    .await?;
    for (name, value) in wanted {
        if written.contains(&format!("{name}={value}")) {
            continue;
        }
        // `format` in SQL quotes the names.
        let statement: String = sqlx::query_scalar(
            "select format('alter role %I in database %I set %I = %L', current_user, current_database(), $1, $2)",
        )
        .bind(name)
        .bind(value)
        .fetch_one(&mut *connection)
        .await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Grants the two roles their privileges and revokes those that could change history, unless that is done
/// already: each change of privileges invalidates the plans of all processes.
async fn grant(owner: &mut PgConnection, app_role: &str, system_role: &str) -> Result<(), Error> {
    let is_lacking: bool =
        sqlx::query_scalar(IS_LACKING).bind([app_role, system_role]).fetch_one(&mut *owner).await?;
    if !is_lacking {
        return Ok(());
    }
    let mut tx = owner.begin().await?;
    // One statement per role; `format` in SQL quotes the names.
    for role in [app_role, system_role] {
        sqlx::query("select set_config('sojourn.grantee', $1, true)").bind(role).execute(&mut *tx).await?;
        sqlx::raw_sql(GRANT).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Whether one of the roles $1 has other privileges on a table than [`GRANT`] leaves it. An owner that
/// serves itself keeps its tables.
const IS_LACKING: &str = "
select exists (
    select
    from pg_class c
    cross join unnest($1::text[]) as role
    cross join unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as privilege
    where c.relnamespace = 'public'::regnamespace
      and c.relkind in ('r', 'p')
      and not c.relispartition
      and (c.relname in ('event', 'audit') or not pg_has_role(role, c.relowner, 'member'))
      and has_table_privilege(role, c.oid, privilege) <> case
          when c.relname in ('deployment', '_sqlx_migrations') then privilege = 'SELECT'
          when c.relname in ('event', 'audit') then privilege in ('SELECT', 'INSERT')
          else true
      end
)";

/// Revokes changes of history: an event is never updated and is deleted only with its session, by a
/// separate function. An audit row is never updated or deleted.
const GRANT: &str = "
do $$
declare
    grantee text := quote_ident(current_setting('sojourn.grantee'));
    event_table regclass;
begin
    if pg_has_role(current_setting('sojourn.grantee'), current_user, 'member') then
        -- The owner itself serves: it keeps its tables and gives up the rights on history.
        null;
    else
        execute format('grant usage on schema public to %s', grantee);
        execute format('grant select, insert, update, delete on all tables in schema public to %s', grantee);
        execute format('revoke all on _sqlx_migrations from %s', grantee);
        execute format('grant select on _sqlx_migrations to %s', grantee);
        execute format('revoke insert, update, delete on deployment from %s', grantee);
    end if;
    for event_table in
        select c.oid from pg_class c
        where c.relname ~ '^(event(_[0-9]{2})?|audit(_default|_[0-9]{6})?)$' and c.relnamespace = 'public'::regnamespace
    loop
        execute format('revoke update, delete, truncate on %s from %s', event_table, grantee);
    end loop;
end
$$";
