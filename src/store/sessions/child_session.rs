//! Sessions below another one: their states, locks on them, and the wake of a parent that waits for one.
//!
//! A wait is in `session.waits_for`. Whoever ends the turn of a child, or lets it wait, locks the jobs of all sessions above
//! it before it commits; so does a session before it waits. So one of the two sees the other.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Tx, budget::above, column::from_word, connection::Connection, job::Ready, parameter::named,
};
use crate::{
    base::Id,
    domain::{OrgId, SessionId, Status},
};

/// Whether the session `c` has nothing to do for now: it has no turn, or its turn asks one question that a text answers,
/// which the session above may send. Results of tools, confirmations and answers for MCP servers come from others.
macro_rules! is_settled {
    () => {
        "(c.status not in ('queued', 'running')
           and (c.running_turn_id is null or 1 = (
               select count(*)
               from action a
               where a.org_id = c.org_id
                 and a.session_id = c.session_id
                 and a.kind = 'question'
                 and a.outcome is null
           ) and exists (
               select from action a
               join event e on e.org_id = a.org_id and e.session_id = a.session_id and e.seq = a.seq
               where a.org_id = c.org_id
                 and a.session_id = c.session_id
                 and a.kind = 'question'
                 and a.outcome is null
                 and e.body ->> 'server' is null
                 and json_array_length(e.body -> 'questions') = 1
                 and (e.body #>> '{questions,0,free_text}' = 'true'
                      or json_array_length(e.body #> '{questions,0,options}') = 0)
           )))"
    };
}

/// State of a session below another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildState {
    pub id: SessionId,
    pub status: Status,
    /// Whether it has nothing to do for now.
    pub is_settled: bool,
    /// Whether it asks a question: in its turn, or with the end of its last one.
    pub is_asking: bool,
}

#[derive(FromRow)]
struct ChildRow {
    session_id: Uuid,
    status: String,
    is_settled: bool,
    has_asked: bool,
}

impl Tx {
    /// Returns the states of those of `ids` that are below `top`, in the order of `ids`.
    pub async fn children_of(&mut self, top: SessionId, ids: &[SessionId]) -> Result<Vec<ChildState>> {
        let query = named!(
            query_as(concat!(
                "with recursive above as (
                     select session_id as id, parent_session_id as next
                     from session
                     where org_id = $org_id and session_id = any($ids)
                     union all
                     select a.id, p.parent_session_id
                     from above a
                     join session p on p.org_id = $org_id and p.session_id = a.next
                     where a.next <> $top
                 )
                 select c.session_id, c.status, ",
                is_settled!(),
                " as is_settled,
                        c.status = 'awaiting_input' and (c.running_turn_id is not null or exists (
                            select from turn t
                            where t.org_id = c.org_id
                              and t.session_id = c.session_id
                              and t.turn_id = c.ended_turn_id
                              and t.yield_reason = 'needs_input'
                        )) as has_asked
                 from unnest($ids::uuid[]) with ordinality as wanted (session_id, place)
                 join session c on c.org_id = $org_id and c.session_id = wanted.session_id
                 where exists (select from above a where a.id = c.session_id and a.next = $top)
                 order by place"
            )),
            {
                org_id: self.org.uuid(),
                ids: ids.iter().map(|id| id.uuid()).collect::<Vec<_>>(),
                top: top.uuid(),
            }
        );
        let rows: Vec<ChildRow> = query.fetch_all(self.connection()).await?;
        let state = |row: ChildRow| {
            let (id, status) = (Id::from_uuid(row.session_id), from_word(&row.status)?);
            let is_asking = row.is_settled && row.has_asked;
            Ok(ChildState { id, status, is_settled: row.is_settled, is_asking })
        };
        rows.into_iter().map(state).collect()
    }

    /// Locks a session and the open ones below it until the commit. Returns those below, parents first.
    ///
    /// All are locked before any is changed: a change locks the job of a parent, and whoever has that lock must not wait
    /// for a session.
    pub async fn lock_descendants(&mut self, session: SessionId) -> Result<Vec<SessionId>> {
        let mut locked = self.lock_known_descendants(session).await?;
        loop {
            // A session that was being created while this waited for a lock is seen by the next statement.
            let again = self.lock_known_descendants(session).await?;
            if again.len() == locked.len() {
                return Ok(again);
            }
            locked = again;
        }
    }

    async fn lock_known_descendants(&mut self, session: SessionId) -> Result<Vec<SessionId>> {
        let query = named!(
            query_scalar(
                "with recursive tree as (
                     select session_id, 0 as depth
                     from session
                     where org_id = $org_id and session_id = $session_id
                     union all
                     select s.session_id, t.depth + 1
                     from tree t
                     join session s on s.org_id = $org_id and s.parent_session_id = t.session_id
                 ), locked as (
                     select s.session_id, t.depth
                     from tree t
                     join session s on s.org_id = $org_id and s.session_id = t.session_id
                     where s.status <> 'archived' or t.depth = 0
                     order by t.depth, s.session_id
                     for update of s
                 )
                 select session_id from locked where depth > 0 order by depth, session_id"
            ),
            { org_id: self.org.uuid(), session_id: session.uuid() }
        );
        let ids: Vec<Uuid> = query.fetch_all(self.connection()).await?;
        Ok(ids.into_iter().map(Id::from_uuid).collect())
    }

    /// As [`lock_jobs_above`], in this transaction.
    pub async fn lock_jobs_above(&mut self, parent: SessionId) -> Result<Vec<SessionId>> {
        let org = self.org;
        lock_jobs_above(self.connection(), org, parent).await
    }

    /// As [`wake_above`], in this transaction.
    pub async fn wake_above(&mut self, above: &[SessionId], child: SessionId) -> Result<Vec<Ready>> {
        let org = self.org;
        wake_above(self.connection(), org, above, child).await
    }

    /// Returns whether a descendant of this session is not archived.
    pub async fn has_open_descendants(&mut self, session: SessionId) -> Result<bool> {
        let org = self.org.uuid();
        let (is_any,): (bool,) = sqlx::query_as(
            "with recursive below as (
                select session_id, status
                from session
                where org_id = $1 and parent_session_id = $2
                union all
                select s.session_id, s.status
                from below b
                join session s on s.org_id = $1 and s.parent_session_id = b.session_id
             )
             select exists (select from below where status <> 'archived')",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok(is_any)
    }
}

/// Locks the turn jobs of `parent` and of all sessions above it until the commit, from the top. Returns their sessions.
///
/// Call it after the row of the child is locked, and before anything is written: the job of the child comes last, and an
/// end of a turn locks its job before the sums of usage.
pub(in crate::store) async fn lock_jobs_above(
    connection: &mut Connection,
    org: OrgId,
    parent: SessionId,
) -> Result<Vec<SessionId>> {
    let ids: Vec<Uuid> = sqlx::query_scalar(concat!(
        "with recursive ",
        above!(),
        "
         select j.session_id
         from above a
         join job j on j.org_id = $1 and j.session_id = a.session_id and j.kind = 'turn'
         order by a.height desc
         for update of j"
    ))
    .bind(org.uuid())
    .bind(parent.uuid())
    .fetch_all(connection)
    .await?;
    Ok(ids.into_iter().map(Id::from_uuid).collect())
}

/// Makes those of the locked jobs of `above` ready whose turns wait for `child`, if it is settled or gone.
///
/// A statement of its own: what it reads is as it is once the locks are taken.
pub(in crate::store) async fn wake_above(
    connection: &mut Connection,
    org: OrgId,
    above: &[SessionId],
    child: SessionId,
) -> Result<Vec<Ready>> {
    if above.is_empty() {
        return Ok(Vec::new());
    }
    let query = named!(
        query_scalar(concat!(
            "update job j
             set ready_at = now(), is_scheduled = false
             from session p
             where p.org_id = $org_id
               and p.session_id = any($above)
               and $child_id = any(p.waits_for)
               and j.org_id = p.org_id
               and j.session_id = p.session_id
               and j.kind = 'turn'
               and j.worker_id is null
               and (j.is_scheduled or j.ready_at > now())
               and not exists (
                   select from session c
                   where c.org_id = $org_id and c.session_id = $child_id and not ",
            is_settled!(),
            ")
             returning j.node_id"
        )),
        {
            org_id: org.uuid(),
            above: above.iter().map(|id| id.uuid()).collect::<Vec<_>>(),
            child_id: child.uuid(),
        }
    );
    let nodes: Vec<Option<Uuid>> = query.fetch_all(connection).await?;
    Ok(nodes.into_iter().map(|node| Ready { node }).collect())
}

/// Makes the job of `session` ready, whose turn waits from now on, if one of the sessions that it waits for has settled
/// since it was read. Call it after the wait was written: from then on the job is locked, and no child ends unseen.
pub(in crate::store) async fn wake_settled(
    connection: &mut Connection,
    org: OrgId,
    session: SessionId,
) -> Result<Option<Ready>> {
    let query = named!(
        query_scalar(concat!(
            "update job j
             set ready_at = now(), is_scheduled = false
             from session p
             where p.org_id = $org_id
               and p.session_id = $session_id
               and j.org_id = p.org_id
               and j.session_id = p.session_id
               and j.kind = 'turn'
               and exists (
                   select from unnest(p.waits_for) as awaited (session_id)
                   left join session c on c.org_id = p.org_id and c.session_id = awaited.session_id
                   where c.session_id is null or ",
            is_settled!(),
            ")
             returning j.node_id"
        )),
        { org_id: org.uuid(), session_id: session.uuid() }
    );
    let node: Option<Option<Uuid>> = query.fetch_optional(connection).await?;
    Ok(node.map(|node| Ready { node }))
}
