//! A gate in the database: statements that fire its trigger wait until the test opens it.

use sqlx::{Connection, PgConnection};

use super::{service::Ground, wait::wait_for};

const BLOCK: &str = "
create function block() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(4711);
    return new;
end
$$;
grant execute on function block() to public;
";

/// A closed gate.
pub struct Gate<'a> {
    ground: &'a Ground,
    holder: PgConnection,
}

impl<'a> Gate<'a> {
    /// Closes a gate for statements that fire this trigger, which executes the function `block`.
    pub async fn close(ground: &'a Ground, trigger: &str) -> Self {
        ground.sql(&format!("{BLOCK}{trigger}")).await;
        let mut holder = PgConnection::connect(&ground.database.superuser_url()).await.expect("a connection");
        sqlx::raw_sql("select pg_advisory_lock(4711)").execute(&mut holder).await.expect("the lock");
        Self { ground, holder }
    }

    /// Waits until a statement waits.
    pub async fn is_reached(&self) {
        // Other tests have the same gate in their databases.
        let waiting = "select count(*)
            from pg_locks l
            join pg_database d on d.oid = l.database and d.datname = current_database()
            where l.locktype = 'advisory' and l.objid = 4711 and not l.granted";
        wait_for("a statement is blocked", async || (self.ground.count(waiting).await > 0).then_some(()))
            .await;
    }

    /// Lets all statements pass from now on.
    pub async fn open(self) {
        self.holder.close().await.expect("it closes");
    }
}
