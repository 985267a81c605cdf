//! Usage and reservations of sessions together with their descendants.
//!
//! No sum is stored: an append updates only its own session, and a reader adds up the descendants. A
//! tree has at most `SESSION_DESCENDANTS_MAX` of them.

use std::collections::HashMap;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    column::{count, from_json, uncount},
    connection::Connection,
    record::{Fence, leased},
};
use crate::{
    base::Id,
    domain::{
        OrgId, SessionId,
        budget::{Budget, Consumed},
        spend::Spend,
    },
};

/// Session $2 of organization $1 and its ancestors, with their height above it.
macro_rules! above {
    () => {
        "above as (
    select session_id, parent_session_id, 0 as height
    from session
    where org_id = $1 and session_id = $2
    union all
    select p.session_id, p.parent_session_id, a.height + 1
    from above a
    join session p on p.org_id = $1 and p.session_id = a.parent_session_id
)"
    };
}
pub(in crate::store) use above;

/// Part of a query on reservations `r` of organization $1: those whose lease is held.
macro_rules! of_held_leases {
    () => {
        "join session s on s.org_id = $1 and s.session_id = r.session_id and s.epoch = r.epoch
    where exists (
        select from job j
        where j.org_id = $1
          and j.session_id = r.session_id
          and j.kind in ('turn', 'operation')
          and j.worker_id is not null
          and j.ready_at > now()
    )"
    };
}
pub(in crate::store) use of_held_leases;

/// Usage of one session; $1 organization. By the primary key of `session_model`.
macro_rules! used {
    ($session:literal) => {
        concat!(
            "lateral (
        select coalesce(sum(input_tokens + output_tokens + cache_write_tokens + cache_read_tokens), 0) as tokens,
               coalesce(sum(model_micros + sandbox_cpu_micros + sandbox_memory_micros + fee_micros), 0) as cost_micros,
               coalesce(sum(tool_calls), 0) as tool_calls
        from session_model
        where org_id = $1 and session_id = ",
            $session,
            "
    ) own"
        )
    };
}

/// $1 organization, $2 session, $3 the exec that reserves, null for a model call.
///
/// An existing reservation of the same call is ignored, because the new one replaces it. By the
/// primary key of `session` upwards and by the index `session_parent` downwards.
const BUDGETS: &str = concat!(
    "
with recursive above as (
    select session_id, parent_session_id, limits, 0 as height
    from session
    where org_id = $1 and session_id = $2
    union all
    select p.session_id, p.parent_session_id, p.limits, a.height + 1
    from above a
    join session p on p.org_id = $1 and p.session_id = a.parent_session_id
), bound as (
    select session_id, limits, height
    from above
    where limits ->> 'tokens' is not null
       or limits ->> 'cost_micros' is not null
       or limits ->> 'tool_calls' is not null
), below as (
    select b.session_id as top, s.session_id, s.deleted_tokens, s.deleted_cost_micros, s.deleted_tool_calls
    from bound b
    join session s on s.org_id = $1 and s.session_id = b.session_id
    union all
    select b.top, s.session_id, s.deleted_tokens, s.deleted_cost_micros, s.deleted_tool_calls
    from below b
    join session s on s.org_id = $1 and s.parent_session_id = b.session_id
), used as (
    select b.top, sum(own.tokens + b.deleted_tokens)::bigint as tokens,
           sum(own.cost_micros + b.deleted_cost_micros)::bigint as cost_micros,
           sum(own.tool_calls + b.deleted_tool_calls)::bigint as tool_calls
    from below b
    cross join ",
    used!("b.session_id"),
    "
    group by b.top
), active_reservation as (
    select session_id, epoch, tokens, micros
    from reservation
    where org_id = $1 and ($3::text is not null or session_id <> $2)
    union all
    select session_id, epoch, 0, micros
    from exec_reservation
    where org_id = $1 and (session_id <> $2 or call_id is distinct from $3)
), reserved as (
    select b.top, sum(r.tokens)::bigint as tokens, sum(r.micros)::bigint as cost_micros
    from below b
    join active_reservation r using (session_id)
    ",
    of_held_leases!(),
    "
    group by b.top
)
select b.session_id, b.limits::text, u.tokens, u.cost_micros, u.tool_calls,
       coalesce(r.tokens, 0) as reserved_tokens, coalesce(r.cost_micros, 0) as reserved_micros
from bound b
join used u on u.top = b.session_id
left join reserved r on r.top = b.session_id
order by b.height"
);

#[derive(FromRow)]
struct Row {
    session_id: Uuid,
    limits: String,
    tokens: i64,
    cost_micros: i64,
    tool_calls: i64,
    reserved_tokens: i64,
    reserved_micros: i64,
}

/// Number and usage of the descendants of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Descendants that were not deleted.
    pub sessions: u64,
    /// Includes the usage of deleted descendants.
    pub used: Consumed,
}

#[derive(FromRow)]
struct BelowRow {
    session_id: Uuid,
    sessions: i64,
    tokens: i64,
    cost_micros: i64,
    tool_calls: i64,
}

impl BelowRow {
    fn below(&self) -> Below {
        let used = Consumed {
            tokens: uncount(self.tokens),
            cost_micros: uncount(self.cost_micros),
            tool_calls: uncount(self.tool_calls),
        };
        Below { sessions: uncount(self.sessions), used }
    }
}

/// Reads the limits that apply to a session: its own first, then those of its ancestors.
pub(in crate::store) async fn budgets(
    connection: &mut Connection,
    org: OrgId,
    session: SessionId,
    call: Option<&str>,
) -> Result<Vec<Budget>> {
    let rows: Vec<Row> = sqlx::query_as(BUDGETS)
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(call)
        .fetch_all(connection)
        .await?;
    let budget = |row: Row| {
        Ok(Budget {
            session: Id::from_uuid(row.session_id),
            limits: from_json(&row.limits)?,
            used: Consumed {
                tokens: uncount(row.tokens),
                cost_micros: uncount(row.cost_micros),
                tool_calls: uncount(row.tool_calls),
            },
            reserved: Consumed {
                tokens: uncount(row.reserved_tokens),
                cost_micros: uncount(row.reserved_micros),
                tool_calls: 0,
            },
        })
    };
    rows.into_iter().map(budget).collect()
}

/// Serializes additions to a session tree, and refusals of reservations in it.
///
/// Statements after the lock see everything that was committed before. The root of a tree does not
/// change while a session below it is open.
pub(in crate::store) async fn lock_tree(
    connection: &mut Connection,
    org: OrgId,
    session: SessionId,
) -> Result<()> {
    sqlx::query(concat!(
        "with recursive ",
        above!(),
        ", top as (
            select session_id from above order by height desc limit 1
         )
         select pg_advisory_xact_lock(hashtextextended('tree/' || session_id, 0))
         from top"
    ))
    .bind(org.uuid())
    .bind(session.uuid())
    .execute(connection)
    .await?;
    Ok(())
}

/// Records a limit warning. Returns whether it is the first for this value of the limit.
pub(in crate::store) async fn is_first_warning(
    connection: &mut Connection,
    org: OrgId,
    session: SessionId,
    spend: &Spend,
) -> Result<bool> {
    let done = sqlx::query(
        "insert into limit_notice as s (org_id, session_id, name, allowed)
         values ($1, $2, $3, $4)
         on conflict (org_id, session_id, name) do update set allowed = excluded.allowed
         where s.allowed <> excluded.allowed",
    )
    .bind(org.uuid())
    .bind(session.uuid())
    .bind(spend.limit)
    .bind(count(spend.allowed))
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

impl Store {
    /// Records the warning for a limit of an ancestor. Returns whether it is the first one.
    pub async fn is_first_warning(&self, org: OrgId, spend: &Spend) -> Result<bool> {
        let Some(session) = spend.session else { return Ok(false) };
        let mut connection = self.system.acquire().await?;
        is_first_warning(&mut connection, org, session, spend).await
    }

    /// Reads the limits that apply to a session, for the service's own work: its own first, then
    /// those of its ancestors.
    pub async fn budgets_of(&self, org: OrgId, session: SessionId) -> Result<Vec<Budget>> {
        let mut connection = self.system.acquire().await?;
        budgets(&mut connection, org, session, None).await
    }
}

impl Tx {
    /// Reads the limits that apply to a session: its own first, then those of its ancestors.
    pub async fn budgets(&mut self, session: SessionId) -> Result<Vec<Budget>> {
        let org = self.org;
        budgets(self.connection(), org, session, None).await
    }

    /// Returns whether a lease holds its session, and locks the row for share.
    ///
    /// Nobody can take over or archive the session until the commit.
    pub async fn is_held(&mut self, fence: Fence) -> Result<bool> {
        let held: Option<(bool,)> = sqlx::query_as(concat!("select true ", leased!(), " for share of u"))
            .bind(fence.org.uuid())
            .bind(fence.session.uuid())
            .bind(fence.epoch)
            .fetch_optional(self.connection())
            .await?;
        Ok(held.is_some())
    }

    /// Locks a parent session and its tree until the commit.
    ///
    /// The session cannot be archived or deleted meanwhile, and nobody else can add to the tree.
    /// Returns the number of its ancestors and the number of sessions below the root of its tree.
    ///
    /// # Errors
    /// `NotFound` when there is no such session.
    pub async fn lock_parent(&mut self, session: SessionId) -> Result<(i64, i64)> {
        let org = self.org;
        let _: (bool,) =
            sqlx::query_as("select true from session where org_id = $1 and session_id = $2 for key share")
                .bind(org.uuid())
                .bind(session.uuid())
                .fetch_one(self.connection())
                .await?;
        lock_tree(self.connection(), org, session).await?;
        let counts = sqlx::query_as(concat!(
            "with recursive ",
            above!(),
            ", tree as (
                (select session_id from above order by height desc limit 1)
                union all
                select s.session_id
                from tree t
                join session s on s.org_id = $1 and s.parent_session_id = t.session_id
             )
             select (select count(*) from above) - 1, (select count(*) from tree) - 1"
        ))
        .bind(org.uuid())
        .bind(session.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok(counts)
    }

    /// Returns number and usage of the descendants of each session; omits sessions that never had
    /// any.
    pub async fn below(&mut self, sessions: &[SessionId]) -> Result<HashMap<SessionId, Below>> {
        let org = self.org.uuid();
        let sessions: Vec<_> = sessions.iter().map(|session| session.uuid()).collect();
        let rows: Vec<BelowRow> = sqlx::query_as(concat!(
            "with recursive below as (
                select parent_session_id as top, session_id, deleted_tokens, deleted_cost_micros, deleted_tool_calls
                from session
                where org_id = $1 and parent_session_id = any($2)
                union all
                select b.top, s.session_id, s.deleted_tokens, s.deleted_cost_micros, s.deleted_tool_calls
                from below b
                join session s on s.org_id = $1 and s.parent_session_id = b.session_id
             ), used as (
                select b.top, count(*) as sessions, sum(own.tokens + b.deleted_tokens)::bigint as tokens,
                       sum(own.cost_micros + b.deleted_cost_micros)::bigint as cost_micros,
                       sum(own.tool_calls + b.deleted_tool_calls)::bigint as tool_calls
                from below b
                cross join ",
            used!("b.session_id"),
            "
                group by b.top
             )
             select s.session_id, coalesce(u.sessions, 0) as sessions,
                    s.deleted_tokens + coalesce(u.tokens, 0) as tokens,
                    s.deleted_cost_micros + coalesce(u.cost_micros, 0) as cost_micros,
                    s.deleted_tool_calls + coalesce(u.tool_calls, 0) as tool_calls
             from session s
             left join used u on u.top = s.session_id
             where s.org_id = $1
               and s.session_id = any($2)
               and (u.top is not null
                    or s.deleted_tokens + s.deleted_cost_micros + s.deleted_tool_calls > 0)"
        ))
        .bind(org)
        .bind(sessions)
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(|row| (Id::from_uuid(row.session_id), row.below())).collect())
    }

    /// Adds the usage of a session and its descendants to its parent.
    ///
    /// Call it before the session is deleted.
    pub(in crate::store) async fn add_usage_to_parent(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(concat!(
            "with recursive below as (
                select session_id, deleted_tokens, deleted_cost_micros, deleted_tool_calls
                from session
                where org_id = $1 and session_id = $2 and parent_session_id is not null
                union all
                select s.session_id, s.deleted_tokens, s.deleted_cost_micros, s.deleted_tool_calls
                from below b
                join session s on s.org_id = $1 and s.parent_session_id = b.session_id
             ), used as (
                select sum(own.tokens + b.deleted_tokens)::bigint as tokens,
                       sum(own.cost_micros + b.deleted_cost_micros)::bigint as cost_micros,
                       sum(own.tool_calls + b.deleted_tool_calls)::bigint as tool_calls
                from below b
                cross join ",
            used!("b.session_id"),
            "
                having count(*) > 0
             )
             update session p
             set deleted_tokens = p.deleted_tokens + u.tokens,
                 deleted_cost_micros = p.deleted_cost_micros + u.cost_micros,
                 deleted_tool_calls = p.deleted_tool_calls + u.tool_calls
             from used u, session s
             where s.org_id = $1
               and s.session_id = $2
               and p.org_id = $1
               and p.session_id = s.parent_session_id"
        ))
        .bind(org)
        .bind(session.uuid())
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
