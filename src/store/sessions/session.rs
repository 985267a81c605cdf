//! Session rows: the folded state of each log, and the epoch.

use std::collections::HashMap;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    agent::snapshot,
    column::{count, from_json, from_word, uncount, word},
    connection::Connection,
    parameter::named,
    stuck::{self, overdue},
    turn,
    usage::Counters,
};
use crate::{
    base::{Id, Timestamp},
    domain::{
        Actor, AgentId, OrgId, Session, SessionId, Status, Turn,
        session::{Created, Stopped},
        turn::TurnState,
    },
};

#[derive(FromRow)]
struct Row {
    session_id: Uuid,
    agent_id: Option<Uuid>,
    credential_id: Option<Uuid>,
    agent_snapshot: Option<String>,
    title: Option<String>,
    key: Option<String>,
    client_id: Option<String>,
    slug: Option<String>,
    metadata: String,
    limits: String,
    environment: Option<String>,
    sources: Option<String>,
    source: String,
    parent_session_id: Option<Uuid>,
    status: String,
    head: i64,
    input_head: i64,
    input_cursor: i64,
    action_head: i64,
    steer_head: i64,
    agent_head: i64,
    waits_for: Option<Vec<Uuid>>,
    running_turn_id: Option<Uuid>,
    queued_turn_id: Option<Uuid>,
    cancel_turn_id: Option<Uuid>,
    ended_turn_id: Option<Uuid>,
    turns: i64,
    active_seconds: i64,
    exec_ms: i64,
    #[sqlx(flatten)]
    counters: Counters,
    actor: Option<String>,
    stopped_by: Option<String>,
    stopped_at: Option<Timestamp>,
    stop_reason: Option<String>,
    hold: Option<String>,
    context: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

// `json` columns are read as text: sqlx would parse them, and we need them verbatim.
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "select session_id, agent_id, credential_id, ",
            snapshot!("session"),
            "::text as agent_snapshot, environment::text, sources::text, title, key, client_id, slug,
                    metadata::text, limits::text, source, status, head, input_head, input_cursor, action_head, steer_head,
                    agent_head, waits_for, running_turn_id,
                    queued_turn_id, cancel_turn_id, ended_turn_id, turns, active_seconds, exec_ms, input_tokens,
                    output_tokens, cache_write_tokens, cache_read_tokens, steps, tool_calls, model_micros, sandbox_cpu_micros,
                    sandbox_memory_micros, fee_micros, unpriced_steps, actor::text, stopped_by::text, stopped_at,
                    stop_reason, hold, context::text, parent_session_id, created_at, updated_at
             from session ",
            $rest
        )
    };
}

/// Filter for a listing; an absent field matches every session.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub status: Option<Status>,
    pub agent: Option<AgentId>,
    pub key: Option<String>,
    /// Matches open sessions only.
    pub slug: Option<String>,
    /// The parent session.
    pub parent: Option<SessionId>,
    /// Metadata fields that must have this text.
    pub metadata: Vec<(String, String)>,
    /// Created after this time, and before this time.
    pub after: Option<Timestamp>,
    pub before: Option<Timestamp>,
    /// Only overdue sessions (see `stuck`), or only the others.
    pub overdue: Option<bool>,
    /// Page position: only sessions older than this one.
    pub below: Option<SessionId>,
}

impl Row {
    fn turn_ids(&self) -> impl Iterator<Item = Uuid> {
        [self.running_turn_id, self.queued_turn_id, self.ended_turn_id].into_iter().flatten()
    }

    fn session(self, turns: &HashMap<(Uuid, Uuid), Turn>) -> Result<Session> {
        let session_id = self.session_id;
        let find =
            |turn_id: Option<Uuid>| turn_id.and_then(|turn_id| turns.get(&(session_id, turn_id)).cloned());
        let stopped = match (&self.stopped_by, self.stopped_at) {
            (Some(by), Some(at)) => Some(Stopped { by: from_json(by)?, at, reason: self.stop_reason }),
            (Some(_) | None, _) => None,
        };
        let status: Status = from_word(&self.status)?;
        // Where the session is not locked, the rows of its turns are read later and may be newer than its own.
        let waits_for = self.waits_for.unwrap_or_default();
        let is_waiting = status == Status::AwaitingInput || !waits_for.is_empty();
        let running_state = if is_waiting { TurnState::Waiting } else { TurnState::Running };
        let as_of_session = |turn_id, state| find(turn_id).map(|turn| turn.unended(state));
        Ok(Session {
            id: Id::from_uuid(session_id),
            created: Created {
                agent_id: self.agent_id.map(Id::from_uuid),
                credential_id: self.credential_id.map(Id::from_uuid),
                agent_snapshot: self.agent_snapshot.as_deref().map(from_json).transpose()?,
                environment: self.environment.as_deref().map(from_json).transpose()?,
                sources: self.sources.as_deref().map(from_json).transpose()?.unwrap_or_default(),
                title: self.title,
                key: self.key,
                client_id: self.client_id,
                slug: self.slug,
                metadata: from_json(&self.metadata)?,
                limits: from_json(&self.limits)?,
                source: from_word(&self.source)?,
                parent_session_id: self.parent_session_id.map(Id::from_uuid),
            },
            status,
            head: self.head,
            input_cursor: self.input_cursor,
            input_head: self.input_head,
            action_head: self.action_head,
            steer_head: self.steer_head,
            agent_head: self.agent_head,
            waits_for: waits_for.into_iter().map(Id::from_uuid).collect(),
            running: as_of_session(self.running_turn_id, running_state),
            queued: as_of_session(self.queued_turn_id, TurnState::Queued),
            cancel_turn_id: self.cancel_turn_id.map(Id::from_uuid),
            ended: find(self.ended_turn_id).filter(|turn| turn.completed_at.is_some()),
            // Rows from before this column have no actor; the actor is in their first event.
            actor: self.actor.as_deref().map(from_json).transpose()?.unwrap_or_else(Actor::system),
            stopped,
            hold: self.hold.as_deref().map(from_word).transpose()?,
            context: self.context.as_deref().map(from_json).transpose()?.unwrap_or_default(),
            turns: self.turns,
            active_seconds: uncount(self.active_seconds),
            exec_ms: uncount(self.exec_ms),
            usage: self.counters.into(),
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

impl Tx {
    /// Reads one session.
    pub async fn session(&mut self, session: SessionId) -> Result<Session> {
        let org = self.org;
        let row: Row = sqlx::query_as(columns!("where org_id = $1 and session_id = $2"))
            .bind(org.uuid())
            .bind(session.uuid())
            .fetch_one(self.connection())
            .await?;
        one(self.connection(), org, row).await
    }

    /// Reads one session and locks it until the transaction ends.
    ///
    /// Commands are decided on a locked session.
    pub async fn lock_session(&mut self, session: SessionId) -> Result<Session> {
        let org = self.org;
        let row: Row = sqlx::query_as(columns!("where org_id = $1 and session_id = $2 for update"))
            .bind(org.uuid())
            .bind(session.uuid())
            .fetch_one(self.connection())
            .await?;
        one(self.connection(), org, row).await
    }

    /// Reads the session created with a caller's key, by the unique index `session_key`.
    pub async fn session_by_key(&mut self, key: &str) -> Result<Option<Session>> {
        self.find_session(columns!("where org_id = $1 and key = $2"), key).await
    }

    /// Reads the open session of a slug, by the unique index `session_slug`.
    pub async fn session_by_slug(&mut self, slug: &str) -> Result<Option<Session>> {
        // No slug contains U+0000, which a text parameter cannot carry.
        let slug = slug.replace('\0', "");
        self.find_session(columns!("where org_id = $1 and slug = $2 and status <> 'archived'"), &slug).await
    }

    /// Returns the newest archived session of a slug, by the index `session_slug_archived`.
    pub async fn archived_session_by_slug(&mut self, slug: &str) -> Result<Option<SessionId>> {
        // No slug contains U+0000, which a text parameter cannot carry.
        if slug.contains('\0') {
            return Ok(None);
        }
        let org = self.org.uuid();
        let found: Option<Uuid> = sqlx::query_scalar(
            "select session_id
             from session
             where org_id = $1 and slug = $2 and status = 'archived'
             order by session_id desc
             limit 1",
        )
        .bind(org)
        .bind(slug)
        .fetch_optional(self.connection())
        .await?;
        Ok(found.map(Id::from_uuid))
    }

    /// Reads the newest open session of a client, by the index `session_client`.
    pub async fn session_of_client(&mut self, client: &str) -> Result<Option<Session>> {
        let newest = columns!(
            "where org_id = $1 and client_id = $2 and status <> 'archived' order by session_id desc limit 1"
        );
        self.find_session(newest, client).await
    }

    async fn find_session(&mut self, sql: &'static str, by: &str) -> Result<Option<Session>> {
        let org = self.org;
        let query = sqlx::query_as(sql).bind(org.uuid()).bind(by);
        match query.fetch_optional(self.connection()).await? {
            Some(row) => one(self.connection(), org, row).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a page of sessions, newest first.
    ///
    /// In the order of the primary key, or of the index `session_agent` or `session_parent` when an
    /// agent or a parent is given.
    pub async fn sessions(&mut self, filter: &Filter, limit: i64) -> Result<Vec<Session>> {
        let org = self.org;
        let (names, values): (Vec<_>, Vec<_>) = filter.metadata.iter().cloned().unzip();
        let query = named!(
            query_as(concat!(
                columns!(
                    "where org_id = $org_id
                   and ($below::uuid is null or session_id < $below)
                   and ($status::text is null or status = $status)
                   and ($agent_id::uuid is null or agent_id = $agent_id)
                   and ($key::text is null or key = $key)
                   and ($parent_id::uuid is null or parent_session_id = $parent_id)
                   and ($after::timestamptz is null or created_at > $after)
                   and ($before::timestamptz is null or created_at < $before)
                   and not exists (
                       select from unnest($names::text[], $values::text[]) as wanted (name, value)
                       where metadata ->> name is distinct from value
                   )
                   and ($slug::text is null or (slug = $slug and status <> 'archived'))
                   and ($overdue::boolean is null or $overdue = "
                ),
                overdue!("$overdue_seconds"),
                ") order by session_id desc
                 limit $limit"
            )),
            {
                org_id: org.uuid(),
                below: filter.below.map(Id::uuid),
                status: filter.status.as_ref().map(word),
                agent_id: filter.agent.map(Id::uuid),
                key: &filter.key,
                parent_id: filter.parent.map(Id::uuid),
                after: filter.after,
                before: filter.before,
                names: names,
                values: values,
                slug: &filter.slug,
                overdue: filter.overdue,
                overdue_seconds: stuck::seconds(),
                limit: limit,
            }
        );
        let rows: Vec<Row> = query.fetch_all(self.connection()).await?;
        let turns = turns_of(self.connection(), org, &rows).await?;
        rows.into_iter().map(|row| row.session(&turns)).collect()
    }

    /// Reads those of these sessions that exist, in no order.
    pub async fn sessions_of(&mut self, ids: &[SessionId]) -> Result<Vec<Session>> {
        let org = self.org;
        let ids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
        let rows: Vec<Row> = sqlx::query_as(columns!("where org_id = $1 and session_id = any($2)"))
            .bind(org.uuid())
            .bind(ids)
            .fetch_all(self.connection())
            .await?;
        let turns = turns_of(self.connection(), org, &rows).await?;
        rows.into_iter().map(|row| row.session(&turns)).collect()
    }

    /// Writes the usage counters of an imported session from its folded state.
    pub async fn write_imported_usage(&mut self, session: &Session) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("update session set tool_calls = $3, exec_ms = $4 where org_id = $1 and session_id = $2")
            .bind(org)
            .bind(session.id.uuid())
            .bind(count(session.usage.tool_calls))
            .bind(count(session.exec_ms))
            .execute(self.connection())
            .await?;
        Ok(())
    }
}

/// A position in a log, as the database has it.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct LogPosition {
    /// `seq` of the last event.
    pub head: i64,
    /// Time of the event at the position; `None` if the table does not have it.
    pub ts: Option<Timestamp>,
}

impl Store {
    /// Reads the head of a log and the time of its event `seq`.
    pub async fn log_position(&self, org: OrgId, session: SessionId, seq: i64) -> Result<LogPosition> {
        let position = sqlx::query_as(
            "select s.head, e.ts
             from session s
             left join event e on e.org_id = s.org_id and e.session_id = s.session_id and e.seq = $3
             where s.org_id = $1 and s.session_id = $2",
        );
        Ok(position.bind(org.uuid()).bind(session.uuid()).bind(seq).fetch_one(&self.system).await?)
    }

    /// Reads one session, for the service's own work.
    pub async fn load_session(&self, org: OrgId, session: SessionId) -> Result<Session> {
        let mut connection = self.system.acquire().await.map_err(Error::from)?;
        let row: Row = sqlx::query_as(columns!("where org_id = $1 and session_id = $2"))
            .bind(org.uuid())
            .bind(session.uuid())
            .fetch_one(&mut connection)
            .await?;
        one(&mut connection, org, row).await
    }
}

async fn one(connection: &mut Connection, org: OrgId, row: Row) -> Result<Session> {
    let ids: Vec<_> = row.turn_ids().collect();
    if ids.is_empty() {
        return row.session(&HashMap::new());
    }
    // Not a join of pairs as below: the server would plan that again each time.
    let turns: Vec<turn::Row> =
        sqlx::query_as("select * from turn where org_id = $1 and session_id = $2 and turn_id = any($3)")
            .bind(org.uuid())
            .bind(row.session_id)
            .bind(ids)
            .fetch_all(connection)
            .await?;
    row.session(&by_id(turns)?)
}

/// Reads the running, queued and last turns of some sessions, by the turns' primary key.
async fn turns_of(
    connection: &mut Connection,
    org: OrgId,
    rows: &[Row],
) -> Result<HashMap<(Uuid, Uuid), Turn>> {
    let sessions: Vec<_> = rows.iter().flat_map(|row| row.turn_ids().map(|_| row.session_id)).collect();
    let turns: Vec<_> = rows.iter().flat_map(Row::turn_ids).collect();
    let rows: Vec<turn::Row> = sqlx::query_as(
        "select t.*
         from unnest($2::uuid[], $3::uuid[]) as wanted (session_id, turn_id)
         join turn t on t.org_id = $1 and t.session_id = wanted.session_id and t.turn_id = wanted.turn_id",
    )
    .bind(org.uuid())
    .bind(sessions)
    .bind(turns)
    .fetch_all(connection)
    .await?;
    by_id(rows)
}

fn by_id(rows: Vec<turn::Row>) -> Result<HashMap<(Uuid, Uuid), Turn>> {
    rows.into_iter().map(|row| Ok(((row.session_id, row.turn_id), row.turn()?))).collect()
}
