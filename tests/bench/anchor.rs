//! Anchors: the raw statements to append, wake and claim, without the service.
//!
//! Separate tables, with as many columns as an append needs and the same 393 bytes of JSON in each event;
//! statements as short as possible.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;

use crate::{Bench, cpu};

/// Bytes of JSON in each event.
pub const BODY_BYTES: usize = 393;
/// Writers of a throughput anchor: more only compete for the same two cores.
const WRITERS: usize = 8;

const SCHEMA: &str = "
create schema bench;
create table bench.session (
    org_id uuid, session_id uuid, head bigint not null default 0, primary key (org_id, session_id)
) with (fillfactor = 80);
create table bench.event (
    org_id uuid, session_id uuid, seq bigint, event_id uuid not null, ts timestamptz not null, type text not null,
    body json not null, primary key (org_id, session_id, seq)
);
create table bench.job (
    org_id uuid, session_id uuid, ready_at timestamptz not null, worker_id uuid, primary key (org_id, session_id)
);
create index on bench.job (ready_at) where worker_id is null;
";

const ONE: &str = "
with s as (
    update bench.session set head = head + 1 where org_id = $1 and session_id = $2 returning head
)
insert into bench.event select $1, $2, s.head, gen_random_uuid(), now(), 'agent.message', $3::json from s";

const SEVERAL: &str = "
with s as (
    update bench.session set head = head + $4 where org_id = $1 and session_id = $2 returning head - $4 as base
)
insert into bench.event
select $1, $2, s.base + n, gen_random_uuid(), now(), 'agent.message', $3::json
from s, generate_series(1, $4::integer) n";

const TOGETHER: &str = "
with s as (
    update bench.session set head = head + 1 where org_id = $1 and session_id = any($2) returning session_id, head
)
insert into bench.event
select $1, s.session_id, s.head, gen_random_uuid(), now(), 'agent.message', $3::json from s";

/// A raw way to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Begin, update, insert, commit.
    FourTrips,
    /// One event, one statement.
    One,
    /// One event each of ten sessions, one commit.
    TenSessions,
    /// This many events of one session, one statement.
    Several(i32),
}

/// The raw side of the measurements.
pub struct Anchor {
    pool: PgPool,
    postmaster: u32,
    org: Uuid,
    body: String,
}

impl Anchor {
    /// Creates its tables if they are missing.
    pub async fn open(bench: &Bench) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(24).connect(&bench.ground.superuser()).await?;
        let (there,): (bool,) =
            sqlx::query_as("select to_regnamespace('bench') is not null").fetch_one(&pool).await?;
        if !there {
            sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        }
        let body = body(BODY_BYTES);
        Ok(Self { pool, postmaster: bench.ground.postmaster, org: Uuid::now_v7(), body })
    }

    pub async fn close(self) {
        self.pool.close().await;
    }

    /// Appends for `span` with several writers: events per second, and the server's CPU time per event in
    /// microseconds.
    pub async fn throughput(&self, way: Way, span: Duration) -> anyhow::Result<Vec<f64>> {
        let done = Arc::new(AtomicU64::new(0));
        let (began, before) = (Instant::now(), cpu::server(self.postmaster)?);
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let (pool, org, body) = (self.pool.clone(), self.org, self.body.clone());
            let sessions = self.sessions(10).await?;
            let done = done.clone();
            writers.spawn(async move {
                while began.elapsed() < span {
                    let events = append(&pool, way, org, &sessions, &body).await?;
                    done.fetch_add(events, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = writers.join_next().await {
            ended??;
        }
        let events = done.load(Ordering::Relaxed) as f64;
        let used = cpu::server(self.postmaster)?.saturating_sub(before);
        Ok(vec![events / began.elapsed().as_secs_f64(), used.as_secs_f64() * 1e6 / events])
    }

    /// Durations of single appends, one after the other.
    pub async fn singles(&self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let sessions = self.sessions(1).await?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            append(&self.pool, Way::One, self.org, &sessions, &self.body).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    /// Durations of rounds of inserting a job, notifying, receiving the notification, and claiming the job.
    pub async fn wakes(&self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let mut listener = sqlx::postgres::PgListener::connect_with(&self.pool).await?;
        listener.listen("bench").await?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let (session, began) = (Uuid::now_v7(), Instant::now());
            sqlx::query("insert into bench.job values ($1, $2, now())")
                .bind(self.org)
                .bind(session)
                .execute(&self.pool)
                .await?;
            sqlx::query("select pg_notify('bench', '')").execute(&self.pool).await?;
            listener.recv().await?;
            sqlx::query(
                "update bench.job set worker_id = $1, ready_at = now() + interval '15 s'
                 where (org_id, session_id) in (
                     select org_id, session_id from bench.job where worker_id is null and ready_at <= now()
                     order by ready_at limit 1 for update skip locked
                 )",
            )
            .bind(self.org)
            .execute(&self.pool)
            .await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    async fn sessions(&self, count: usize) -> anyhow::Result<Vec<Uuid>> {
        let mut sessions: Vec<_> = (0..count).map(|_| Uuid::now_v7()).collect();
        // In the same order everywhere, or statements over several sessions deadlock.
        sessions.sort_unstable();
        sqlx::query("insert into bench.session select $1, unnest($2::uuid[])")
            .bind(self.org)
            .bind(&sessions)
            .execute(&self.pool)
            .await?;
        Ok(sessions)
    }
}

async fn append(pool: &PgPool, way: Way, org: Uuid, sessions: &[Uuid], body: &str) -> anyhow::Result<u64> {
    match way {
        Way::One => {
            sqlx::query(ONE).bind(org).bind(sessions[0]).bind(body).execute(pool).await?;
            Ok(1)
        }
        Way::TenSessions => {
            sqlx::query(TOGETHER).bind(org).bind(sessions).bind(body).execute(pool).await?;
            Ok(sessions.len() as u64)
        }
        Way::Several(count) => {
            sqlx::query(SEVERAL).bind(org).bind(sessions[0]).bind(body).bind(count).execute(pool).await?;
            Ok(count as u64)
        }
        Way::FourTrips => {
            let mut tx = pool.begin().await?;
            let (head,): (i64,) = sqlx::query_as(
                "update bench.session set head = head + 1 where org_id = $1 and session_id = $2 returning head",
            )
            .bind(org)
            .bind(sessions[0])
            .fetch_one(&mut *tx)
            .await?;
            sqlx::query("insert into bench.event values ($1, $2, $3, $4, now(), 'agent.message', $5::json)")
                .bind(org)
                .bind(sessions[0])
                .bind(head)
                .bind(Uuid::now_v7())
                .bind(body)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(1)
        }
    }
}

/// JSON with this many bytes.
pub fn body(bytes: usize) -> String {
    let frame = serde_json::json!({ "text": "" }).to_string().len();
    serde_json::json!({ "text": "x".repeat(bytes - frame) }).to_string()
}
