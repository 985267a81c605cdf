//! P9: resources of an idle session.

use sqlx::{Connection, PgConnection};
use tokio::{
    task::JoinSet,
    time::{Duration, sleep},
};

use crate::{
    Bench,
    anchor::{Anchor, Way},
    cpu,
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
};

/// Concurrent requests that fill the service's connection pools: more than any pool has.
const AT_ONCE: usize = 64;
/// Consecutive rounds without a new connection, after which the pools are full.
const QUIET_ROUNDS: usize = 5;
/// Rounds after which the measurement fails.
const ROUNDS_MAX: usize = 200;

/// Size of a session's rows besides its events, including indexes.
const BESIDE_EVENTS: &str = "
select sum(pg_total_relation_size(oid))::float8
from pg_class
where relkind = 'r'
  and relnamespace = 'public'::regnamespace
  and relname !~ '^event_'
  and relname not in ('idempotency', 'delivery', 'audit')";

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let anchor = Anchor::open(bench).await?;
    let span = bench.plan.span();
    let service = bench.ground.serve(&["--role=all", "--max-concurrent-turns=16"]).await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    let template = caller.session(&agent, Some(&serde_json::json!("Hello."))).await?;
    caller.settled(&template).await?;
    let template: sojourn::domain::SessionId = template.parse()?;
    let (few, many) = (bench.plan.size(10_000, 500), bench.plan.size(1_000_000, 5_000));
    let mut connection = bench.ground.connection().await?;
    let metrics = vec![
        Metric::new(Goal::P9, "storage without its events", "bytes", Target::AtMost(1_000.0)),
        Metric::new(
            Goal::P9,
            format!("memory of the service, {few} to {many} sessions"),
            "x",
            Target::AtMost(1.05),
        ),
        Metric::new(Goal::P9, "additional connections", "", Target::AtMost(0.0)),
        Metric::new(Goal::P9, "CPU time of the idle service", "ms/s", Target::Told),
    ];
    let measured = bench
        .measure_once(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let empty = size(&mut connection).await?;
                copies(&mut connection, template.uuid(), 0, few).await?;
                settle(&caller, &mut connection).await?;
                let (memory, connections) = (cpu::memory(service.pid)?, connections(&mut connection).await?);
                copies(&mut connection, template.uuid(), few, many).await?;
                settle(&caller, &mut connection).await?;
                let per_session = (size(&mut connection).await? - empty) / many as f64;
                let used = cpu::process(service.pid)?;
                sleep(span).await;
                let idle = cpu::process(service.pid)?.saturating_sub(used);
                Ok(vec![
                    per_session,
                    cpu::memory(service.pid)? / memory,
                    (self::connections(&mut connection).await? - connections).max(0.0),
                    idle.as_secs_f64() * 1_000.0 / span.as_secs_f64(),
                ])
            },
        )
        .await?;
    remove_copies(&mut connection).await?;
    connection.close().await?;
    service.stop().await?;
    anchor.close().await;
    Ok(measured)
}

/// Gives the service the same work before each reading, and one second of idle time.
///
/// Its pools open connections on demand up to a fixed size. Both readings find them full, so any difference
/// is caused by the sessions.
pub async fn settle(caller: &Caller, connection: &mut PgConnection) -> anyhow::Result<()> {
    let (mut open, mut quiet) = (connections(connection).await?, 0);
    for round in 0.. {
        anyhow::ensure!(round < ROUNDS_MAX, "the service opens connections without end");
        let mut requests = JoinSet::new();
        for number in 0..AT_ONCE {
            let caller = caller.clone();
            // Callers' requests and the service's own statements use separate pools; a token is looked up
            // with the latter.
            requests.spawn(async move {
                match number % 2 {
                    0 => caller.get("/sessions?limit=1").await.map(drop),
                    _ => caller.stranger("/sessions/none/events").await,
                }
            });
        }
        while let Some(done) = requests.join_next().await {
            done??;
        }
        let now = connections(connection).await?;
        quiet = if now > open { 0 } else { quiet + 1 };
        open = now;
        if quiet == QUIET_ROUNDS {
            break;
        }
    }
    for _ in 0..20 {
        caller.get("/sessions?limit=50").await?;
    }
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

async fn size(connection: &mut PgConnection) -> anyhow::Result<f64> {
    let (bytes,): (f64,) = sqlx::query_as(BESIDE_EVENTS).fetch_one(connection).await?;
    Ok(bytes)
}

pub async fn connections(connection: &mut PgConnection) -> anyhow::Result<f64> {
    let (count,): (i64,) =
        sqlx::query_as("select count(*) from pg_stat_activity where application_name like 'sojourn%'")
            .fetch_one(connection)
            .await?;
    Ok(count as f64)
}

/// Copies of an idle session with its turn and its first events, numbered from `from` to `to`. Their ids are
/// in the order of creation and after all existing ones, as real ids are.
pub async fn copies(
    connection: &mut PgConnection,
    template: uuid::Uuid,
    from: usize,
    to: usize,
) -> anyhow::Result<()> {
    sqlx::query("set session_replication_role = replica").execute(&mut *connection).await?;
    for begin in (from..to).step_by(100_000) {
        let end = (begin + 100_000).min(to);
        for table in ["session", "turn", "event"] {
            // Current columns of the table, with the copy's own id in its place.
            let (columns,): (String,) = sqlx::query_as(
                "select string_agg(quote_ident(attname), ', ' order by attnum)
                 from pg_attribute
                 where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attname <> 'session_id'",
            )
            .bind(table)
            .fetch_one(&mut *connection)
            .await?;
            let copy = format!(
                "insert into {table} (session_id, {columns})
                 select ('01ff' || lpad(to_hex(n), 8, '0') || '70008000000000000000')::uuid, {columns}
                 from generate_series({begin}, {end} - 1) n, {table}
                 where session_id = '{template}'{}",
                // Two events each: the measurement is about growing indexes, not about long logs.
                if table == "event" { " and seq <= 2" } else { "" }
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(copy)).execute(&mut *connection).await?;
        }
    }
    sqlx::query("set session_replication_role = origin").execute(&mut *connection).await?;
    sqlx::query("analyze session").execute(&mut *connection).await?;
    Ok(())
}

/// Id of copy number `n`, as [`copies`] builds it.
pub fn copy_id(n: u64) -> uuid::Uuid {
    uuid::Uuid::from_u128(0x01ff << 112 | u128::from(n) << 80 | 0x7000_8000_0000_0000_0000)
}

/// Removes the copies.
pub async fn remove_copies(connection: &mut PgConnection) -> anyhow::Result<()> {
    sqlx::query("set session_replication_role = replica").execute(&mut *connection).await?;
    for table in ["session", "turn", "event"] {
        let text = format!("delete from {table} where session_id::text like '01ff%-7000-8000-000000000000'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut *connection).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("vacuum {table}"))).execute(&mut *connection).await?;
    }
    sqlx::query("set session_replication_role = origin").execute(&mut *connection).await?;
    Ok(())
}
