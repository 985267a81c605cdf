//! Upgrades from the released baseline, and the digests of released migrations.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha384};
use sojourn::{
    base::{seal::MasterKey, text::hex},
    store::{Urls, migrate, start::StartWait},
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, migrate::Migrator};

use crate::support::database::Database;

/// The last migration of the baseline.
const BASELINE: u32 = 9;

/// One row of each table of the baseline.
const ROWS: &str = r#"
insert into deployment (master_key_check, app_role, system_role) values ('', 'sojourn_app', 'sojourn_system');
insert into node (node_id) values ('00000000-0000-7000-8000-000000000003');
insert into org (org_id, name, data_key) values ('00000000-0000-7000-8000-000000000001', 'a', '');
insert into api_key (org_id, key_id, hash, name, hint, scopes)
select org_id, gen_random_uuid(), 'key', 'k', 'last', '{*}' from org;
insert into billing (org_id, balance_micros) select org_id, 1000000 from org;
insert into audit (org_id, audit_id, actor, action, details)
select org_id, gen_random_uuid(), '{}', 'key.created', '{}' from org;
insert into credential (org_id, credential_id, provider, sealed_key, last4)
select org_id, gen_random_uuid(), 'scripted', '', '1234' from org;
insert into environment (org_id, environment_id, name, config, secrets, sealed_secrets)
select org_id, gen_random_uuid(), 'e', '{}', '[]', '' from org;
insert into rootfs (node_id, rootfs_key, spec, requested_by)
select node_id, 'r', '{}', org_id from node, org;
insert into agent (org_id, agent_id, name, active_revision_id, credential_id, limits)
select org_id, gen_random_uuid(), 'a', gen_random_uuid(), credential_id, '{}' from credential;
insert into revision (org_id, revision_id, agent_id, number, prompt, model, model_options, runtime, digest)
select org_id, active_revision_id, agent_id, 1, 'p', 'scripted/demo', '{}', 'default', 'd' from agent;
insert into agent_snapshot (org_id, snapshot_id, content) select org_id, gen_random_uuid(), '{}' from org;
insert into session (
    org_id, session_id, agent_id, snapshot_id, metadata, limits, source, status, head, input_head, input_cursor,
    turns, steps, created_at, updated_at
)
select org_id, '00000000-0000-7000-8000-000000000002', agent_id, snapshot_id, '{}', '{}', 'api', 'idle', 1, 1, 1,
       1, 3, now(), now()
from agent
join agent_snapshot using (org_id);
insert into removal (org_id, session_id) select org_id, gen_random_uuid() from org;
insert into purged_session_blobs (org_id, session_id) select org_id, session_id from removal;
insert into turn (
    org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq, completed_at, yield_reason
)
select org_id, session_id, gen_random_uuid(), 'ok', 1, 1, 1, now(), 'completed' from session;
insert into event (org_id, session_id, seq, event_id, ts, type, level, actor, body, body_bytes)
select org_id, session_id, 1, gen_random_uuid(), now(), 'session.created', 2, '{}', '{}', 2 from session;
insert into client_token (org_id, session_id, hash, scopes, level, expires_at)
select org_id, session_id, 'token', '{}', 1, now() from session;
insert into idempotency (org_id, scope, key, fingerprint) select org_id, 'header', 'k', '' from org;
insert into job (org_id, session_id, kind, ready_at) select org_id, session_id, 'idle', now() from session;
insert into sandbox (org_id, sandbox_id, session_id, node_id, state)
select org_id, gen_random_uuid(), session_id, node_id, 'live' from session, node;
insert into checkpoint (org_id, session_id, checkpoint_id, sandbox_id, digest, bytes)
select org_id, session_id, gen_random_uuid(), sandbox_id, 'd', 1 from sandbox;
insert into operation (org_id, session_id, operation_id, request, actor)
select org_id, session_id, gen_random_uuid(), '{}', '{}' from session;
insert into exec_output (org_id, session_id, operation_id, stream, position, content, raw_end)
select org_id, session_id, operation_id, 'stdout', 0, 'x', 1 from operation;
insert into destination (
    org_id, destination_id, session_id, url, sealed_secret, level, include_raw, enabled, created_after_seq
)
select org_id, gen_random_uuid(), session_id, 'https://receiver.example', '', 1, false, true, 0 from session;
insert into delivery (
    org_id, delivery_id, session_id, destination_id, event_id, event_seq, type, status, ready_at
)
select org_id, gen_random_uuid(), session_id, destination_id, gen_random_uuid(), 1, 'session.created', 'pending', now()
from destination;
insert into delivery_attempt (org_id, delivery_id, session_id, number, duration_ms)
select org_id, delivery_id, session_id, 1, 5 from delivery;
insert into schedule (org_id, schedule_id, agent_id, cron, time_zone, input, overlap, enabled, session_id)
select org_id, gen_random_uuid(), agent_id, '0 0 * * *', 'UTC', '"x"', 'skip', true, session_id from session;
insert into schedule_run (org_id, run_id, schedule_id, slot, manual, state)
select org_id, gen_random_uuid(), schedule_id, now(), false, 'skipped' from schedule;
insert into trigger (org_id, trigger_id, agent_id, kind, enabled, session_template, sealed_secret)
select org_id, gen_random_uuid(), agent_id, 'generic', true, '{}', '' from agent;
insert into invoke_token (org_id, invoke_token_id, agent_id, hash, name, hint, session_template)
select org_id, gen_random_uuid(), agent_id, 'invoke', 'n', 'last', '{}' from agent;
insert into scheduled_wake (org_id, session_id, call_id, fire_at, note)
select org_id, session_id, 'call', now(), 'n' from session;
insert into session_model select org_id, session_id, 'm', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 from session;
insert into usage_hour
select org_id, date_trunc('hour', now(), 'UTC'), agent_id, 'm', 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 from agent;
insert into reservation (org_id, session_id, agent_id, epoch, micros)
select org_id, session_id, agent_id, 1, 1 from session;
insert into exec_reservation (org_id, session_id, call_id, epoch, micros)
select org_id, session_id, 'call', 1, 1 from session;
insert into spend_notice (org_id, agent_id, kind, cap, allowed)
select org_id, agent_id, 'warning', 'agent_spend_1d', 1 from agent;
insert into limit_notice (org_id, session_id, name, allowed) select org_id, session_id, 'cost_micros', 1 from session;
"#;

/// Statements of a migration that fills in rows, as `migrations/README.md` describes it.
const FILLS_IN: &str = "
alter table session no force row level security;
update session set title = 'filled in';
alter table session force row level security;";

/// The same without releasing the owner from the policies.
const LIFTS_NO_POLICY: &str = "update session set title = 'never';";

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.expect("a statement");
}

/// The migrations, by number.
fn migrations() -> BTreeMap<u32, PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let files = fs::read_dir(dir).expect("migrations").map(|file| file.expect("a file").path());
    let scripts = files.filter(|file| file.extension().is_some_and(|extension| extension == "sql"));
    let mut numbered = BTreeMap::new();
    for file in scripts {
        let digits = name(&file).split('_').next().expect("a part");
        let number = digits.parse().unwrap_or_else(|_| panic!("{} has no number", file.display()));
        let other = numbered.insert(number, file);
        assert_eq!(other, None, "two migrations have the number {number}");
    }
    numbered
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(|name| name.to_str()).expect("a name")
}

/// Runs the migrations up to `last` as the owner, then those of `more`.
async fn migrate_to(last: u32, more: &[(&str, &str)], owner_url: &str) {
    let some = tempfile::tempdir().expect("a directory");
    for (_, file) in migrations().range(..=last) {
        fs::copy(file, some.path().join(name(file))).expect("a copy");
    }
    for (name, sql) in more {
        fs::write(some.path().join(name), sql).expect("a file");
    }
    let migrator = Migrator::new(some.path()).await.expect("migrations");
    let mut owner = PgConnection::connect(owner_url).await.expect("the owner");
    migrator.run(&mut owner).await.expect("the migrations run");
    owner.close().await.expect("a clean end");
}

/// Tables with how many rows they have; partitions count for their table.
async fn rows(superuser: &mut PgConnection) -> BTreeMap<String, i64> {
    let tables: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class
         where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition
           and relname <> '_sqlx_migrations'",
    )
    .fetch_all(&mut *superuser)
    .await
    .expect("tables");
    let mut counts = BTreeMap::new();
    for table in tables {
        let sql = AssertSqlSafe(format!("select count(*) from {table}"));
        counts.insert(table, sqlx::query_scalar(sql).fetch_one(&mut *superuser).await.expect("a count"));
    }
    counts
}

/// Tables that have rows.
fn filled(counts: &BTreeMap<String, i64>) -> Vec<&str> {
    counts.iter().filter(|(_, count)| **count > 0).map(|(table, _)| table.as_str()).collect()
}

/// A database of the baseline with a row in each table, brought up to date.
async fn upgraded(database: &Database) -> PgConnection {
    let mut superuser = database.superuser().await;
    run(&mut superuser, "drop schema public cascade; create schema public authorization sojourn_owner").await;
    migrate_to(BASELINE, &[], &database.owner_url).await;
    run(&mut superuser, ROWS).await;
    let before = rows(&mut superuser).await;
    assert_eq!(
        filled(&before).len(),
        before.len(),
        "a table of the baseline has no row in `ROWS`: {before:?}"
    );
    let key = MasterKey::parse("a passphrase that is long enough for tests").expect("a key");
    sqlx::query("update deployment set master_key_check = $1")
        .bind(key.check_value().as_slice())
        .execute(&mut superuser)
        .await
        .expect("the key's check");
    let urls = Urls {
        owner: database.owner_url.clone(),
        app: database.app_url.clone(),
        system: database.system_url.clone(),
    };
    migrate::migrate(&urls, key, StartWait::NONE).await.expect("an upgrade");
    let after = rows(&mut superuser).await;
    for (table, count) in before {
        assert_eq!(after.get(&table), Some(&count), "rows of {table}");
    }
    superuser
}

#[tokio::test]
async fn an_upgrade_keeps_the_rows_of_the_baseline_and_its_policies() {
    let database = Database::create().await;
    let mut superuser = upgraded(&database).await;
    let open: i64 = sqlx::query_scalar(
        "select count(*) from pg_class
         where relnamespace = 'public'::regnamespace and relrowsecurity and not relforcerowsecurity",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("a count");
    assert_eq!(open, 0, "tables that do not bind their owner");
    let organization = "00000000-0000-7000-8000-000000000001".parse::<uuid::Uuid>().expect("an id");
    let mut system = PgConnection::connect(&database.system_url).await.expect("the system role");
    sqlx::query("select sojourn_purge($1, null)")
        .bind(organization)
        .execute(&mut system)
        .await
        .expect("a purge");
    let left = rows(&mut superuser).await;
    assert_eq!(filled(&left), ["audit", "deployment", "node", "org", "purged_session_blobs", "rootfs"]);
    system.close().await.expect("a clean end");
    superuser.close().await.expect("a clean end");
}

/// The owner is bound by the policies like everybody: a migration that does not lift that for a
/// table changes none of its rows, and reports nothing.
#[tokio::test]
async fn a_later_migration_sees_rows_only_where_it_lifts_the_policies() {
    let database = Database::create().await;
    let mut superuser = upgraded(&database).await;
    let last = *migrations().keys().next_back().expect("migrations");
    let more = [("9998_fill_in.sql", FILLS_IN), ("9999_without_lift.sql", LIFTS_NO_POLICY)];
    migrate_to(last, &more, &database.owner_url).await;
    let title: Option<String> =
        sqlx::query_scalar("select title from session").fetch_one(&mut superuser).await.expect("the session");
    assert_eq!(title.as_deref(), Some("filled in"));
    superuser.close().await.expect("a clean end");
}

/// A database refuses to start when a migration that it ran has another digest now.
#[test]
fn released_migrations_are_never_edited() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let list = fs::read_to_string(dir.join("released.sha384")).expect("the list");
    let released: BTreeMap<&str, &str> = list
        .lines()
        .map(|line| line.split_once("  ").expect("a digest, two spaces, a name"))
        .map(|(digest, name)| (name, digest))
        .collect();
    let how = "see `Released files` in migrations/README.md";
    for (name, digest) in &released {
        let file =
            fs::read(dir.join(name)).unwrap_or_else(|_| panic!("{name} is released and missing; {how}"));
        assert_eq!(hex(&Sha384::digest(file)), *digest, "{name} is released and was edited; {how}");
    }
    let numbered = migrations();
    assert!(
        numbered.keys().copied().eq(1..=numbered.len() as u32),
        "numbers have gaps: {:?}",
        numbered.keys()
    );
    for (number, file) in &numbered {
        let is_released = released.contains_key(name(file));
        assert!(is_released || *number > BASELINE, "{} is not listed; {how}", name(file));
    }
}
