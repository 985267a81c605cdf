//! A clock that a test moves, for the real program and its database together.
//!
//! The program reads it by a preloaded library (`clock.c`), the database by functions `now()` and
//! `clock_timestamp()` that its search path finds before the built-in ones. So time passes for schedules, and no row
//! is edited.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, process::Command, time::Duration};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use super::service::Ground;

const NOW: &str = "
create schema clock;
create table clock.moved (by interval not null);
insert into clock.moved values ('0');
create function clock.now() returns timestamptz language sql stable as $$
    select pg_catalog.now() + (select by from clock.moved)
$$;
create function clock.clock_timestamp() returns timestamptz language sql volatile as $$
    select pg_catalog.clock_timestamp() + (select by from clock.moved)
$$;
grant usage on schema clock to public;
grant select on clock.moved to public;
";

/// The clock of one test.
pub struct MovedClock {
    directory: TempDir,
    database: PgConnection,
    by: Duration,
}

impl MovedClock {
    /// Prepares the database of the ground. Programs of [`Self::environment`] must be started afterwards.
    pub async fn new(ground: &Ground) -> Self {
        let directory = tempfile::Builder::new().prefix("sojourn-clock-").tempdir().expect("a directory");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/clock.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        let compiled = compile.arg(directory.path().join("clock.so")).args([source, "-ldl"]).status();
        assert!(compiled.expect("a C compiler").success());
        fs::write(directory.path().join("seconds"), [0u8; 8]).expect("a file");
        let mut database = ground.database.superuser().await;
        sqlx::raw_sql(NOW).execute(&mut database).await.expect("a schema");
        let name: String =
            sqlx::query_scalar("select current_database()").fetch_one(&mut database).await.expect("a name");
        // Objects are created in the first schema.
        let path = format!("alter database {name} set search_path = public, clock, pg_catalog");
        sqlx::raw_sql(AssertSqlSafe(path)).execute(&mut database).await.expect("a search path");
        database.close().await.expect("a clean end");
        let database = ground.database.superuser().await;
        Self { directory, database, by: Duration::ZERO }
    }

    /// Environment variables of a program that reads this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let text = |path: PathBuf| path.to_str().expect("a readable path").to_owned();
        vec![
            ("LD_PRELOAD", text(self.directory.path().join("clock.so"))),
            ("SOJOURN_TEST_CLOCK", text(self.directory.path().join("seconds"))),
        ]
    }

    /// Moves the clock on, in whole seconds.
    pub async fn advance(&mut self, by: Duration) {
        self.by += Duration::from_secs(by.as_secs().max(1));
        // The program's clock first: it never writes a time before the database's.
        let file =
            fs::File::options().write(true).open(self.directory.path().join("seconds")).expect("a file");
        file.write_all_at(&self.by.as_secs().to_ne_bytes(), 0).expect("it is written");
        sqlx::query("update clock.moved set by = $1 * interval '1 second'")
            .bind(self.by.as_secs() as f64)
            .execute(&mut self.database)
            .await
            .expect("the clock moves");
    }

    /// A connection that reads this clock.
    pub fn database(&mut self) -> &mut PgConnection {
        &mut self.database
    }
}
