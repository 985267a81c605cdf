//! Upgrade of a database of an earlier version with its data.

use std::{fs, path::Path};

use sojourn::{
    base::seal::MasterKey,
    store::{Urls, migrate},
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, migrate::Migrator};

use crate::support::database::Database;

/// Last migration of the version that the rows below come from.
const BEFORE: u32 = 10;

/// One row of each kind that later migrations change: a session that a user archived after a turn of seven
/// seconds and three steps, its sandbox, an unsent delivery.
const ROWS: &str = r#"
insert into org (org_id, name, data_key) values ('00000000-0000-7000-8000-000000000001', 'a', '');
insert into session (
    org_id, session_id, metadata, limits, source, status, head, input_head, input_cursor, turns, steps,
    created_at, updated_at
)
select org_id, '00000000-0000-7000-8000-000000000002', '{}', '{}', 'api', 'archived', 3, 0, 0, 1, 3, now(), now()
from org;
insert into turn (
    org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq, completed_at, yield_reason,
    active_seconds, steps
)
select org_id, session_id, gen_random_uuid(), 'ok', 1, 1, 1, now(), 'completed', 7, 3 from session;
insert into event (org_id, session_id, seq, event_id, ts, type, level, actor, body, body_bytes)
select org_id, session_id, seq, gen_random_uuid(), now(), type, 2, actor::json, '{}', 2
from session, (values
    (1, 'session.created', '{"type": "human", "display": "maker"}'),
    (2, 'turn.completed', '{"type": "system"}'),
    (3, 'session.status_changed', '{"type": "human", "display": "stopper"}')
) as e (seq, type, actor);
insert into sandbox (org_id, sandbox_id, session_id, node_id, state)
select org_id, gen_random_uuid(), session_id, gen_random_uuid(), 'live' from session;
insert into destination (
    org_id, session_id, destination_id, url, sealed_secret, level, include_raw, enabled, created_after_seq
)
select org_id, session_id, gen_random_uuid(), 'https://receiver.example', '', 1, false, true, 0 from session;
insert into delivery (
    org_id, delivery_id, session_id, destination_id, event_id, event_seq, status, ready_at
)
select org_id, gen_random_uuid(), session_id, destination_id, gen_random_uuid(), 2, 'pending', now()
from destination;
"#;

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.expect("a statement");
}

/// Runs the migrations up to `last`, as their owner.
async fn migrate_to(last: u32, owner_url: &str) {
    let some = tempfile::tempdir().expect("a directory");
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations")).expect("migrations") {
        let file = file.expect("a file").path();
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let number: u32 = name.split('_').next().and_then(|digits| digits.parse().ok()).expect("a number");
        if number <= last {
            fs::copy(&file, some.path().join(&name)).expect("a copy");
        }
    }
    let migrator = Migrator::new(some.path()).await.expect("migrations");
    let mut owner = PgConnection::connect(owner_url).await.expect("the owner");
    migrator.run(&mut owner).await.expect("the migrations run");
    owner.close().await.expect("a clean end");
}

/// The row-level security policies also apply to the owner: a migration that does not disable them updates no
/// rows, without an error.
#[tokio::test]
async fn what_a_database_holds_is_brought_up_to_date_with_it() {
    let database = Database::create().await;
    let mut superuser = database.superuser().await;
    run(&mut superuser, "drop schema public cascade; create schema public authorization sojourn_owner").await;
    migrate_to(BEFORE, &database.owner_url).await;
    run(&mut superuser, ROWS).await;
    let key = MasterKey::parse("a passphrase that is long enough for tests").expect("a key");
    sqlx::query("insert into deployment values (true, $1, 'sojourn_app', 'sojourn_system')")
        .bind(key.check_value().as_slice())
        .execute(&mut superuser)
        .await
        .expect("its deployment");

    let urls = Urls {
        owner: database.owner_url.clone(),
        app: database.app_url.clone(),
        system: database.system_url.clone(),
    };
    migrate::migrate(&urls, key).await.expect("an upgrade");

    let (maker, stopper, seconds, unpriced): (String, String, i64, i64) = sqlx::query_as(
        "select actor ->> 'display', stopped_by ->> 'display', active_seconds, unpriced_steps
         from session
         where stopped_at is not null",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("the session");
    assert_eq!((maker.as_str(), stopper.as_str(), seconds, unpriced), ("maker", "stopper", 7, 3));
    let (shares,): (bool,) = sqlx::query_as("select shares_snapshots from deployment")
        .fetch_one(&mut superuser)
        .await
        .expect("the deployment");
    assert!(!shares, "the previous version finds a session's agent only in its row");
    let (unpriced,): (i64,) =
        sqlx::query_as("select unpriced_steps from turn").fetch_one(&mut superuser).await.expect("the turn");
    assert_eq!(unpriced, 3);
    let (announced,): (bool,) = sqlx::query_as("select is_announced from sandbox")
        .fetch_one(&mut superuser)
        .await
        .expect("the sandbox");
    assert!(announced);
    let character: (String, String) = sqlx::query_as("select status, type from delivery")
        .fetch_one(&mut superuser)
        .await
        .expect("the delivery");
    assert_eq!(character, ("pending".to_owned(), "turn.completed".to_owned()));
    let (open,): (i64,) = sqlx::query_as(
        "select count(*) from pg_class
         where relnamespace = 'public'::regnamespace and relrowsecurity and not relforcerowsecurity",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("a count");
    assert_eq!(open, 0, "a table was left open to its owner");
    superuser.close().await.expect("a clean end");
}
