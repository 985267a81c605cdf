//! Roles and database of the service, created as the superuser, which has no other use.

use std::str::FromStr;

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, postgres::PgConnectOptions};

use super::{Error, location::Location};

/// Exists in every cluster; only the machine's administrator can use it.
pub(super) const SUPERUSER: &str = "postgres";
/// Owns the database and its schema, and migrates it.
pub(super) const OWNER: &str = "sojourn_owner";
/// Serves requests.
pub(super) const APP: &str = "sojourn_app";
/// Runs the queue, the log and the outbox.
pub(super) const SYSTEM: &str = "sojourn_system";
/// Name of the service's database.
pub(super) const DATABASE: &str = "sojourn";

/// Opens a connection as the superuser.
pub(super) async fn connect(location: &Location) -> Result<PgConnection, sqlx::Error> {
    PgConnectOptions::from_str(&location.url(SUPERUSER, "postgres"))?
        .disable_statement_logging()
        .connect()
        .await
}

/// Creates missing roles and the database, and revokes excess privileges. Idempotent.
pub(super) async fn ensure(location: &Location) -> Result<(), Error> {
    let failed = |source| Error::Database { what: "could not create the roles of the database", source };
    let mut connection = connect(location).await.map_err(failed)?;
    make_roles(&mut connection).await.map_err(failed)?;
    make_database(&mut connection).await.map_err(failed)?;
    connection.close().await.map_err(failed)
}

async fn make_roles(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    for role in [OWNER, APP, SYSTEM] {
        let exists: Option<i32> = sqlx::query_scalar("select 1 from pg_roles where rolname = $1")
            .bind(role)
            .fetch_optional(&mut *connection)
            .await?;
        let verb = if exists.is_some() { "alter" } else { "create" };
        let rights = "login nosuperuser nobypassrls nocreaterole nocreatedb noreplication";
        run(connection, format!("{verb} role {role} {rights}")).await?;
    }
    Ok(())
}

async fn make_database(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let exists: Option<i32> = sqlx::query_scalar("select 1 from pg_database where datname = $1")
        .bind(DATABASE)
        .fetch_optional(&mut *connection)
        .await?;
    if exists.is_none() {
        run(connection, format!("create database {DATABASE} owner {OWNER}")).await?;
    }
    run(connection, format!("revoke all on database {DATABASE} from public")).await?;
    run(connection, format!("grant connect on database {DATABASE} to {APP}, {SYSTEM}")).await
}

/// Names of roles and databases cannot be bound; these are the constants above.
async fn run(connection: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.map(|_| ())
}
