//! State of the database at the end of a run, read as plain JSON and without the code of the service.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::cluster::Cluster;

/// An event of a log.
#[derive(Clone, Debug)]
pub struct Event {
    pub seq: i64,
    pub id: Uuid,
    pub kind: String,
    pub actor: String,
    pub turn: Option<Uuid>,
    pub at: OffsetDateTime,
    pub body: Value,
}

impl Event {
    /// A text of the body; empty if it is absent.
    pub fn text(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or_default()
    }

    /// A number of the body; 0 if it is absent.
    pub fn number(&self, name: &str) -> i64 {
        self.body[name].as_i64().unwrap_or_default()
    }
}

/// A session with everything that belongs to it.
#[derive(Debug)]
pub struct Session {
    pub row: Map<String, Value>,
    /// Rows of its turns, by id.
    pub turns: BTreeMap<Uuid, Map<String, Value>>,
    pub log: Vec<Event>,
}

#[derive(FromRow)]
struct EventRow {
    seq: i64,
    event_id: Uuid,
    r#type: String,
    actor: String,
    turn_id: Option<Uuid>,
    ts: OffsetDateTime,
    body: String,
}

/// Every session in the database, which has one organization.
pub struct Record {
    connection: PgConnection,
    pub sessions: Vec<Uuid>,
}

impl Record {
    pub async fn open(cluster: &Cluster) -> anyhow::Result<Self> {
        let mut connection = cluster.superuser().await?;
        let sessions = sqlx::query_scalar("select session_id from session order by session_id")
            .fetch_all(&mut connection);
        let sessions = sessions.await?;
        Ok(Self { connection, sessions })
    }

    /// Number of events of each session.
    pub async fn heads(&mut self) -> anyhow::Result<HashMap<Uuid, i64>> {
        let rows: Vec<(Uuid, i64)> =
            sqlx::query_as("select session_id, count(*) from event group by session_id")
                .fetch_all(&mut self.connection)
                .await?;
        Ok(rows.into_iter().collect())
    }

    /// One session.
    pub async fn session(&mut self, id: Uuid) -> anyhow::Result<Session> {
        // Times as microseconds, so that no format is compared.
        let row: String = sqlx::query_scalar(
            "select (to_jsonb(s) || jsonb_build_object(
                 'stopped_us', (extract(epoch from stopped_at) * 1000000)::bigint,
                 'has_agent', agent_id is not null
             ))::text
             from session s
             where org_id = (select org_id from org) and session_id = $1",
        )
        .bind(id)
        .fetch_one(&mut self.connection)
        .await?;
        let turns: Vec<(Uuid, String)> = sqlx::query_as(
            "select turn_id, to_jsonb(t)::text
             from turn t
             where org_id = (select org_id from org) and session_id = $1",
        )
        .bind(id)
        .fetch_all(&mut self.connection)
        .await?;
        let turns: Result<_, serde_json::Error> =
            turns.into_iter().map(|(id, row)| Ok((id, serde_json::from_str(&row)?))).collect();
        let rows: Vec<EventRow> = sqlx::query_as(
            "select seq, event_id, type, actor ->> 'type' as actor, turn_id, ts, body::text as body
             from event
             where org_id = (select org_id from org) and session_id = $1
             order by seq",
        )
        .bind(id)
        .fetch_all(&mut self.connection)
        .await?;
        let log = rows.into_iter().map(|row| {
            let body = serde_json::from_str(&row.body)?;
            let EventRow { seq, event_id: id, r#type: kind, actor, turn_id: turn, ts: at, .. } = row;
            Ok(Event { seq, id, kind, actor, turn, at, body })
        });
        let log: Result<_, serde_json::Error> = log.collect();
        Ok(Session { row: serde_json::from_str(&row)?, turns: turns?, log: log? })
    }

    /// Work that is left although every session is at rest.
    pub async fn leftovers(&mut self) -> anyhow::Result<Vec<String>> {
        let found = sqlx::query_scalar(
            "select format('the job %s of %s is left, held by %s', kind, session_id, worker_id)
             from job
             where worker_id is not null or kind in ('turn', 'operation')
             union all
             select format('the action %s of %s is open', action_id, session_id)
             from action
             where outcome is null
             union all
             select format('the operation %s of %s has no answer', operation_id, session_id)
             from operation
             where completed_at is null
             union all
             select format('%s events were written, the logs hold %s', w.count, e.count)
             from (select count(*) from chaos.write) w, (select count(*) from event where ts >= (
                 select min(at) - interval '1 minute' from chaos.write
             )) e
             where w.count <> e.count",
        );
        Ok(found.fetch_all(&mut self.connection).await?)
    }
}
