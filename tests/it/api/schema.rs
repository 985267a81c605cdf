//! The schema isolates organizations even when a query lacks the condition.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use sojourn::store::{Store, migrate};
use sqlx::{Connection, PgConnection, Row};
use tokio::{process::Command, time::sleep};

use super::World;
use crate::support::{
    database::{Database, program},
    wait::wait_for,
};

/// Tables of the schema, including partitions, with the mechanisms that isolate their rows.
const TABLES: &str = "
    select c.relname::text as name,
           c.relrowsecurity as enabled,
           c.relforcerowsecurity as forced,
           (select a.attname::text
            from pg_index i
            join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
            where i.indrelid = c.oid and i.indisprimary) as leads,
           exists (select from pg_policy p where p.polrelid = c.oid) as has_policy
    from pg_class c
    where c.relnamespace = 'public'::regnamespace
      and c.relkind in ('r', 'p')
      and exists (
          select from pg_attribute a
          where a.attrelid = c.oid and a.attname = 'org_id' and not a.attisdropped
      )
    order by 1";

#[tokio::test]
async fn every_table_of_an_organization_is_keyed_by_it_and_protected() {
    let database = Database::create().await;
    let mut superuser = database.superuser().await;
    let tables = sqlx::query(TABLES).fetch_all(&mut superuser).await.expect("tables");
    let mut names = Vec::new();
    for table in &tables {
        let name: String = table.get("name");
        assert_eq!(
            table.get::<Option<String>, _>("leads").as_deref(),
            Some("org_id"),
            "primary key of {name}"
        );
        assert!(table.get::<bool, _>("enabled"), "{name} has no row-level security");
        assert!(table.get::<bool, _>("forced"), "{name} does not force row-level security");
        assert!(table.get::<bool, _>("has_policy"), "{name} has no policy");
        names.push(name);
    }
    for known in [
        "agent",
        "api_key",
        "audit",
        "credential",
        "delivery",
        "delivery_attempt",
        "event",
        "event_00",
        "event_15",
        "session",
        "org",
    ] {
        assert!(names.iter().any(|name| name == known), "{known} is not among {names:?}");
    }
    // Tables without an organization are listed here, so that a new table is a deliberate choice.
    let others: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class
         where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relname <> all ($1)
         order by 1",
    )
    .bind(&names)
    .fetch_all(&mut superuser)
    .await
    .expect("tables");
    assert_eq!(
        others,
        ["_sqlx_migrations", "blob_store", "deployment", "leader", "node", "process", "rootfs"]
    );
}

#[tokio::test]
async fn history_cannot_be_changed() {
    let world = World::still().await;
    world.owner.post("/sessions", serde_json::json!({})).await.ok();
    let database = &world.ground.database;
    for (role, url) in [("app", &database.app_url), ("system", &database.system_url)] {
        let mut connection = PgConnection::connect(url).await.expect("the role may connect");
        for table in ["event", "event_00", "event_07"] {
            for statement in [
                format!("update {table} set level = 1"),
                format!("delete from {table}"),
                format!("truncate {table}"),
            ] {
                refused(&mut connection, &statement, role).await;
            }
        }
        refused(&mut connection, "update deployment set app_role = 'x'", role).await;
        refused(&mut connection, "delete from _sqlx_migrations", role).await;
        refused(&mut connection, "alter table session disable row level security", role).await;
    }
    world.end().await;
}

/// The audit log is append-only: for the roles of the service, with one role for everything, and in
/// partitions created while the service runs.
#[tokio::test]
async fn audit_records_cannot_be_changed_or_deleted() {
    let world = World::still().await;
    world.owner.post("/keys", serde_json::json!({ "name": "k", "scopes": ["*"] })).await.ok();
    let database = &world.ground.database;
    let mut superuser = database.superuser().await;
    let before = acts(&mut superuser).await;
    assert!(before > 0);
    let last: String = sqlx::query_scalar(
        "select max(relname::text) from pg_class where relname ~ '^audit_[0-9]{6}$' and relkind = 'r'",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("a month");
    // As if that month were new.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("drop table {last}")))
        .execute(&mut superuser)
        .await
        .expect("it is dropped");
    roll_months_until(&world.store, &mut superuser, "to_regclass($1) is not null", &last).await;
    let urls = [("app", &database.app_url), ("system", &database.system_url), ("owner", &database.owner_url)];
    for (role, url) in urls {
        let mut connection = PgConnection::connect(url).await.expect("the role may connect");
        let tables =
            if role == "owner" { vec![last.as_str()] } else { vec!["audit", "audit_default", &last] };
        for table in tables {
            for statement in [
                format!("update {table} set action = 'x'"),
                format!("delete from {table}"),
                format!("truncate {table}"),
            ] {
                refused(&mut connection, &statement, role).await;
            }
        }
    }
    assert_eq!(acts(&mut superuser).await, before);
    world.end().await;
}

async fn acts(superuser: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from audit").fetch_one(superuser).await.expect("a count")
}

#[tokio::test]
async fn one_role_for_everything_cannot_change_the_audit_log_either() {
    let ground = crate::support::service::Ground::new().await;
    let service = ground.serve_as_one_role().await;
    service.owner().post("/keys", serde_json::json!({ "name": "k", "scopes": ["*"] })).await.ok();
    let mut owner = PgConnection::connect(&ground.database.owner_url).await.expect("the role may connect");
    sqlx::raw_sql("set sojourn.scope = 'system'").execute(&mut owner).await.expect("a setting");
    let months: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class where relname ~ '^audit(_default|_[0-9]{6})?$' and relkind in ('r', 'p')",
    )
    .fetch_all(&mut owner)
    .await
    .expect("the tables");
    assert!(months.len() >= 5, "{months:?}");
    for table in months {
        refused(&mut owner, &format!("update {table} set action = 'x'"), "the only role").await;
        refused(&mut owner, &format!("delete from {table}"), "the only role").await;
        refused(&mut owner, &format!("truncate {table}"), "the only role").await;
    }
    service.stop().await;
}

#[tokio::test]
async fn a_month_of_deliveries_is_made_ahead_and_one_that_is_over_goes() {
    let world = World::still().await;
    let body = serde_json::json!({ "destinations": [{ "url": "https://example.com/hook" }] });
    world.owner.post("/sessions", body).await.ok();
    let mut superuser = world.ground.database.superuser().await;
    // The partition two months ahead does not exist yet, but has rows. Old rows without a partition exist
    // too, and one month has passed.
    let prepare = "
        do $$
        declare
            ahead timestamptz := date_trunc('month', now() at time zone 'utc') at time zone 'utc' + interval '2 months';
            over timestamptz := date_trunc('month', now() at time zone 'utc') at time zone 'utc' - interval '3 months';
            parent text;
        begin
            foreach parent in array array['delivery', 'delivery_attempt'] loop
                execute format('drop table %I', parent || to_char(ahead at time zone 'utc', '_YYYYMM'));
                execute format('create table %I partition of %I for values from (%L) to (%L)',
                    parent || to_char(over at time zone 'utc', '_YYYYMM'), parent, over, over + interval '1 month');
            end loop;
            insert into delivery (org_id, delivery_id, session_id, destination_id, event_id, event_seq, type, status, created_at)
            select org_id, gen_random_uuid(), session_id, destination_id, gen_random_uuid(), 1, 'user.message', 'delivered', at
            from destination
            cross join unnest(array[ahead + interval '1 day', over + interval '1 day', over - interval '40 days', now()]) as at;
            insert into delivery_attempt (org_id, delivery_id, session_id, number, duration_ms, at)
            select org_id, delivery_id, session_id, 1, 5, created_at
            from delivery;
        end
        $$";
    sqlx::raw_sql(prepare).execute(&mut superuser).await.expect("rows");
    for parent in ["delivery", "delivery_attempt"] {
        let count = format!("select count(*) from {parent}_default");
        let count: i64 =
            sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&mut superuser).await.expect("a count");
        assert_eq!(count, 2, "{parent}");
    }
    for parent in ["delivery", "delivery_attempt"] {
        // This month and the next two, without the one of three months ago.
        let months = "(select count(*) from pg_class where relname ~ ('^' || $1 || '_[0-9]{6}$') and relkind = 'r') = 3
             and to_regclass($1 || to_char(date_trunc('month', now() at time zone 'utc') + interval '2 months', '_YYYYMM')) is not null";
        roll_months_until(&world.store, &mut superuser, months, parent).await;
    }
    for (parent, time) in [("delivery", "created_at"), ("delivery_attempt", "at")] {
        let sql = format!(
            "select (select count(*) from {parent}_default),
                    array(select count(*) from {parent} group by date_trunc('month', {time}) order by date_trunc('month', {time})),
                    array(select relname::text from pg_class where relname ~ '^{parent}_[0-9]{{6}}$' and relkind = 'r' order by 1),
                    array(select to_char(date_trunc('month', now() at time zone 'utc') + make_interval(months => ahead), '\"{parent}_\"YYYYMM')
                          from generate_series(0, 2) as ahead)"
        );
        let (left, kept, made, wanted): (i64, Vec<i64>, Vec<String>, Vec<String>) =
            sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_one(&mut superuser).await.expect("a look");
        // Partitions of the current month (which may be two) and of the next month.
        assert_eq!((left, kept.len()), (0, 2), "{parent}: {kept:?}");
        assert_eq!(made, wanted, "{parent}");
    }
    // The new partition is isolated like the others.
    let protected: bool = sqlx::query_scalar(
        "select bool_and(relrowsecurity and relforcerowsecurity) from pg_class
         where relname ~ '^delivery(_attempt)?_([0-9]{6}|default)$' and relkind = 'r'",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("a look");
    assert!(protected);
    world.end().await;
}

async fn refused(connection: &mut PgConnection, statement: &str, role: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(connection).await;
    let error = done.err().unwrap_or_else(|| panic!("{role} may {statement}"));
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.to_string()));
    assert_eq!(code.as_deref(), Some("42501"), "{role}: {statement}: {error}");
}

/// The policy of a table is part of each of its statements: a function call or a table read in the policy
/// would be paid by every append.
#[tokio::test]
async fn a_policy_compares_and_calls_nothing() {
    let world = World::still().await;
    let mut app = PgConnection::connect(&world.ground.database.app_url).await.expect("the role may connect");
    let plan: Vec<String> = sqlx::query_scalar("explain (verbose, costs off) select head from session")
        .fetch_all(&mut app)
        .await
        .expect("a plan");
    let plan = plan.join("\n");
    assert!(plan.contains("CURRENT_USER = '") && plan.contains("'sojourn.org'"), "{plan}");
    assert!(!plan.contains("sojourn_is_system") && !plan.contains("deployment"), "{plan}");
    world.end().await;
}

#[tokio::test]
async fn the_app_role_sees_one_organization_or_none() {
    let world = World::still().await;
    for caller in [&world.owner, &world.owner, &world.stranger] {
        caller.post("/sessions", serde_json::json!({})).await.ok();
    }
    let mut app = PgConnection::connect(&world.ground.database.app_url).await.expect("the role may connect");
    let owner = world.store.find_key(&world.owner.key).await.expect("a store").expect("a key").org;
    let stranger = world.store.find_key(&world.stranger.key).await.expect("a store").expect("a key").org;
    for table in ["session", "event", "client_token", "api_key", "org"] {
        let count = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
        let seen: i64 = sqlx::query_scalar(count).fetch_one(&mut app).await.expect("a count");
        assert_eq!(seen, 0, "{table} without an organization");
    }
    let count = "select count(*) from session";
    for (org, expected) in [(owner, 2), (stranger, 1)] {
        let mut tx = app.begin().await.expect("a transaction");
        set_org(&mut tx, org.uuid()).await;
        let seen: i64 = sqlx::query_scalar(count).fetch_one(&mut *tx).await.expect("a count");
        assert_eq!(seen, expected);
        // Nor may it write into another organization's rows, or move its own there.
        let moved =
            sqlx::query("update session set org_id = $1").bind(uuid::Uuid::nil()).execute(&mut *tx).await;
        assert!(moved.is_err());
    }
    // The setting ended with its transaction.
    let seen: i64 = sqlx::query_scalar(count).fetch_one(&mut app).await.expect("a count");
    assert_eq!(seen, 0);
    world.end().await;
}

async fn set_org(connection: &mut PgConnection, org: uuid::Uuid) {
    sqlx::query("select set_config('sojourn.org', $1, true)")
        .bind(org.to_string())
        .execute(connection)
        .await
        .expect("a setting");
}

#[tokio::test]
async fn migrating_twice_changes_nothing() {
    let database = Database::create().await;
    migrate::schema(&database.owner_url).await.expect("the schema is there");
}

#[tokio::test]
async fn months_are_rolled_beside_a_dump_without_stopping_a_writer() {
    let world = World::still().await;
    let destinations = serde_json::json!([{ "url": "https://example.com/hook" }]);
    let agent = world.owner.inline_agent().await;
    let body = serde_json::json!({ "agent": agent, "destinations": destinations });
    let made = world.owner.post("/sessions", body).await.ok();
    let messages = format!("/sessions/{}/messages", made["session"]["id"].as_str().expect("an id"));
    let database = &world.ground.database;
    let mut superuser = database.superuser().await;
    let ahead =
        "to_char(date_trunc('month', now() at time zone 'utc') + interval '2 months', '\"delivery_\"YYYYMM')";
    let last: String = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select {ahead}")))
        .fetch_one(&mut superuser)
        .await
        .expect("a name");
    let months = format!(
        "drop table {last};
         create table delivery_202401 partition of delivery for values from ('2024-01-01') to ('2024-02-01')"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(months)).execute(&mut superuser).await.expect("months");
    // Nobody reads its output yet, so it stays in the middle of its work.
    let mut dump = Command::new(program("pg_dump"));
    dump.arg(format!("--dbname={}", database.superuser_url())).stdout(Stdio::piped());
    let dump = dump.kill_on_drop(true).spawn().expect("pg_dump runs");
    let held = "select count(*)
                from pg_locks l
                join pg_stat_activity a using (pid)
                where a.application_name = 'pg_dump' and a.datname = current_database()
                  and l.mode = 'AccessShareLock'
                  and l.relation in ('delivery'::regclass, 'delivery_202401'::regclass, 'audit'::regclass)";
    wait_for("the locks of the dump", async || (world.ground.count(held).await == 3).then_some(())).await;
    let roll = async {
        for _ in 0..20 {
            world.store.roll_months().await.expect("it does not wait");
        }
    };
    let write = async {
        for _ in 0..20 {
            world.owner.post(&messages, serde_json::json!({ "text": "Go on." })).await.ok();
        }
    };
    tokio::join!(roll, write);
    assert_eq!(world.ground.count(held).await, 3, "the dump was there all the time");
    let dumped = dump.wait_with_output().await.expect("it ends");
    assert!(dumped.status.success() && dumped.stdout.len() > 100_000, "{}", dumped.status);
    // Created and dropped once the reader is gone.
    roll_months_until(&world.store, &mut superuser, "to_regclass($1) is not null", &last).await;
    roll_months_until(&world.store, &mut superuser, "to_regclass($1) is null", "delivery_202401").await;
    world.end().await;
}

/// Rolls the months until `condition` of `table`, an expression of SQL, holds: a partition whose lock is not
/// granted at once is created or dropped in a later call.
async fn roll_months_until(store: &Store, look: &mut PgConnection, condition: &'static str, table: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        store.roll_months().await.expect("it does not wait");
        let query = format!("select {condition}");
        let query = sqlx::query_scalar(sqlx::AssertSqlSafe(query)).bind(table);
        if query.fetch_one(&mut *look).await.expect("a look") {
            return;
        }
        assert!(Instant::now() < deadline, "not after 60 s: {condition}, {table}");
        sleep(Duration::from_millis(100)).await;
    }
}
