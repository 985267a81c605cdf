//! Reservations of many callers in two processes: never above a cap, never all refused, at a constant cost.

use std::time::Instant;

use futures::future::join_all;
use serde_json::json;
use sojourn::{
    base::Id,
    domain::{AgentId, OrgId, SessionId, budget::MaxUsage, spend::Verdict},
    store::{Store, record::Fence, reservation::Ask},
};
use uuid::Uuid;

use crate::support::service::{Caller, Ground};

/// The most that each call may cost, in micro-USD.
const CALL: u64 = 1_000;
const ROUNDS: usize = 15;

/// Rows of a month in which an organization has used many agents.
const MONTH_ROWS: i64 = 139_000;

/// Rows of usage read so far.
const USAGE_READ: &str = "select (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
                          from pg_stat_user_tables where schemaname = 'public' and relname = 'usage_hour'";

/// Sessions with a held lease, and two stores as two processes have them.
struct Callers {
    ground: Ground,
    stores: [Store; 2],
    org: OrgId,
    agent: AgentId,
    fences: Vec<Fence>,
}

impl Callers {
    /// `limits` are those of a parent session of all of them; without, they are not related.
    async fn new(count: usize, caps: serde_json::Value, limits: Option<serde_json::Value>) -> Self {
        let ground = Ground::new().await;
        let api = ground.serve(&["--role=api"]).await;
        let owner = api.owner();
        owner.patch("/budget", json!({ "spend_caps": caps })).await.ok();
        let agent = owner.inline_agent().await;
        let parent = match limits {
            Some(limits) => Some(open(&owner, json!({ "agent": agent, "limits": limits })).await),
            None => None,
        };
        for _ in 0..count {
            open(&owner, json!({ "agent": agent })).await;
        }
        api.stop().await;
        let mut superuser = ground.database.superuser().await;
        if let Some(parent) = parent {
            sqlx::query("update session set parent_session_id = $1 where session_id <> $1")
                .bind(parent.uuid())
                .execute(&mut superuser)
                .await
                .expect("child sessions");
        }
        sqlx::raw_sql(
            "insert into job (org_id, session_id, kind, ready_at, worker_id)
             select org_id, session_id, 'turn', now() + interval '1 hour', session_id from session
             on conflict (org_id, session_id, kind)
             do update set ready_at = excluded.ready_at, worker_id = excluded.worker_id",
        )
        .execute(&mut superuser)
        .await
        .expect("leases");
        let rows: Vec<(Uuid, Uuid, Uuid, i64)> = sqlx::query_as(
            "select org_id, session_id, agent_id, epoch from session order by session_id desc limit $1",
        )
        .bind(i64::try_from(count).expect("a small number"))
        .fetch_all(&mut superuser)
        .await
        .expect("sessions");
        let (org, _, agent, _) = rows[0];
        let fence = |(org, session, _, epoch): (Uuid, Uuid, Uuid, i64)| Fence {
            org: Id::from_uuid(org),
            session: Id::from_uuid(session),
            epoch,
            worker: session,
            generation: 1,
        };
        let stores = [process(&ground), process(&ground)];
        let fences = rows.into_iter().map(fence).collect();
        Self { ground, stores, org: Id::from_uuid(org), agent: Id::from_uuid(agent), fences }
    }

    /// Reserves for the `n`-th caller.
    async fn reserve(&self, n: usize, call: Option<&str>, limits: (bool, bool)) -> bool {
        let (is_bound, is_shared) = limits;
        let most = MaxUsage { tokens: 0, cost_micros: Some(CALL) };
        let ask = Ask { agent: Some(self.agent), call, most, is_bound, is_shared };
        let verdict = self.stores[n % 2].reserve(self.fences[n], &ask).await;
        match verdict.expect("an answer").expect("the lease is held") {
            Verdict::Granted { .. } => true,
            Verdict::Wait => false,
            verdict => panic!("nothing is spent: {verdict:?}"),
        }
    }

    /// Every caller reserves at the same moment; returns how many were granted.
    async fn race(&self, limits: (bool, bool)) -> usize {
        let asked = (0..self.fences.len()).map(|n| self.reserve(n, Some("call"), limits));
        let granted = join_all(asked).await.into_iter().filter(|granted| *granted).count();
        let held = self.ground.count("select count(*) from exec_reservation").await;
        assert_eq!(usize::try_from(held), Ok(granted), "who is refused reserves nothing");
        join_all(self.fences.iter().map(async |fence| {
            self.stores[0].release_exec(*fence, "call").await.expect("an answer");
        }))
        .await;
        granted
    }

    async fn close(self) {
        for store in &self.stores {
            store.close().await;
        }
    }
}

fn process(ground: &Ground) -> Store {
    ground.store(8)
}

async fn open(owner: &Caller, session: serde_json::Value) -> SessionId {
    let answer = owner.post("/sessions", session).await.ok();
    answer["session"]["id"].as_str().and_then(|id| id.parse().ok()).expect("an id")
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_race_for_a_cap_reserve_all_of_it_and_no_more() {
    for fit in [1, 10] {
        let callers = Callers::new(24, json!({ "days_7": CALL * fit }), None).await;
        for _ in 0..ROUNDS {
            assert_eq!(callers.race((true, false)).await as u64, fit);
        }
        callers.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_race_for_a_limit_of_their_parent_reserve_all_of_it_and_no_more() {
    let callers = Callers::new(24, json!({}), Some(json!({ "cost_micros": CALL * 5 }))).await;
    for _ in 0..ROUNDS {
        assert_eq!(callers.race((false, true)).await, 5);
    }
    callers.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_costs_the_same_after_a_month_of_usage() {
    let callers = Callers::new(16, json!({ "days_28": u64::MAX >> 2 }), None).await;
    insert_month(&callers).await;
    let read = async || {
        for n in 0..16 {
            assert!(callers.reserve(n, None, (true, false)).await);
        }
        // A connection reports what it read at the end of a statement, at most once a second.
        tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
        for n in 0..16 {
            assert!(callers.reserve(n, None, (true, false)).await);
        }
        callers.ground.count(USAGE_READ).await
    };
    let before = read().await;
    let rows = read().await - before;
    let started = Instant::now();
    let mut calls = 0_u32;
    while started.elapsed().as_millis() < 2_000 {
        let granted = join_all((0..16).map(|n| callers.reserve(n, None, (true, false)))).await;
        assert!(granted.iter().all(|granted| *granted));
        calls += 16;
    }
    let per_second = f64::from(calls) / started.elapsed().as_secs_f64();
    println!(
        "{MONTH_ROWS} rows of usage, 16 callers: {per_second:.0} reservations/s, {rows} rows read for 32"
    );
    assert!(rows <= 64, "{rows} rows of usage read for 32 reservations");
    callers.close().await;
}

/// Inserts usage of the last 28 days, except the last 2 hours, of many agents.
async fn insert_month(callers: &Callers) {
    let mut superuser = callers.ground.database.superuser().await;
    sqlx::query(
        "insert into usage_hour (
            org_id, hour, agent_id, model, shard, steps, unpriced_steps, tool_calls, input_tokens, output_tokens,
            cache_write_tokens, cache_read_tokens, model_micros, sandbox_cpu_micros, sandbox_memory_micros,
            fee_micros
         )
         select $1, date_trunc('hour', now(), 'UTC') - make_interval(hours => (n % 660)::int + 3),
                case when n / 660 % 4 = 0 then $2 else md5((n / 660)::text)::uuid end, 'm' || n / 2640, 0,
                1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0
         from generate_series(0, $3 - 1) n",
    )
    .bind(callers.org.uuid())
    .bind(callers.agent.uuid())
    .bind(MONTH_ROWS)
    .execute(&mut superuser)
    .await
    .expect("rows");
    sqlx::raw_sql("vacuum analyze usage_hour").execute(&mut superuser).await.expect("statistics");
}
