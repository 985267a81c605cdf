//! Callers' operations on a sandbox and their results.

use std::collections::HashSet;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    column::{from_json, json},
    job::Ready,
    purge::ScanPosition,
    record::{Fence, held},
};
use crate::{
    base::{
        Id, Timestamp,
        limit::{OPERATION_HOURS, OPERATIONS_OPEN_MAX},
    },
    domain::{
        Actor, OperationId, OrgId, SandboxId, SessionId,
        operation::{Answer, Failure, Request},
    },
};

/// An operation without an answer.
#[derive(Clone, Debug)]
pub struct Open {
    pub id: OperationId,
    pub request: Request,
    pub actor: Actor,
    /// The sandbox in which it started.
    pub sandbox: Option<SandboxId>,
}

/// State of an operation when a worker is about to start it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It starts, or has started, in this sandbox.
    In(SandboxId),
    /// A kill ended it before.
    Ended,
}

/// An operation past its time.
#[derive(Clone, Copy, Debug)]
pub struct OldOperation {
    pub org: OrgId,
    pub session: SessionId,
    pub operation: OperationId,
    pub position: ScanPosition,
}

/// An operation as the API returns it.
#[derive(Clone, Debug)]
pub struct OperationRecord {
    pub id: OperationId,
    pub request: Request,
    pub answer: Option<Answer>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
}

#[derive(FromRow)]
struct OpenRow {
    operation_id: Uuid,
    request: String,
    actor: String,
    sandbox_id: Option<Uuid>,
}

#[derive(FromRow)]
struct OperationRow {
    request: String,
    answer: Option<String>,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    completed_at: Option<Timestamp>,
}

/// The request of the operation `o` with its answer. Variables may be secrets, and nobody needs them any more.
macro_rules! answered_request {
    () => {
        "case
                     when o.request ->> 'kind' = 'exec' then jsonb_set(o.request::jsonb, '{env}', '[]')::json
                     else o.request
                 end"
    };
}

impl Tx {
    /// Returns those of these sessions with an operation that is not answered.
    ///
    /// By the index `operation_open`.
    pub async fn with_open_operations(&mut self, sessions: &[SessionId]) -> Result<HashSet<SessionId>> {
        let org = self.org.uuid();
        let ids: Vec<_> = sessions.iter().map(|session| session.uuid()).collect();
        let rows: Vec<(Uuid,)> = sqlx::query_as(
            "select distinct session_id
             from operation
             where org_id = $1 and session_id = any($2) and completed_at is null",
        )
        .bind(org)
        .bind(ids)
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(|(session,)| Id::from_uuid(session)).collect())
    }

    /// Stores an operation on a locked session's sandbox and makes its job ready.
    ///
    /// Returns `None` when `OPERATIONS_OPEN_MAX` operations are open already.
    pub async fn ask(
        &mut self,
        session: SessionId,
        operation: OperationId,
        request: &Request,
        actor: &Actor,
    ) -> Result<Option<Ready>> {
        let org = self.org.uuid();
        let asked: Option<(Option<Uuid>,)> = sqlx::query_as(
            "with counted as (
                update session
                set operations = operations + 1
                where org_id = $1
                  and session_id = $2
                  and (select count(*) from operation
                       where org_id = $1 and session_id = $2 and completed_at is null) < $6
                returning session_id
             ), asked as (
                insert into operation (org_id, session_id, operation_id, request, actor)
                select $1, session_id, $3, $4::json, $5::json from counted
             )
             insert into job (org_id, session_id, kind, ready_at, node_id)
             select $1, session_id, 'operation', now(), (
                 select node_id from sandbox where org_id = $1 and session_id = $2 and state <> 'ended'
             )
             from counted
             on conflict (org_id, session_id, kind) do update
             set ready_at = case
                     when job.worker_id is null and (job.is_scheduled or job.ready_at > now()) then now()
                     else job.ready_at
                 end,
                 is_scheduled = false
             returning node_id",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(operation.uuid())
        .bind(json(request))
        .bind(json(actor))
        .bind(OPERATIONS_OPEN_MAX)
        .fetch_optional(self.connection())
        .await?;
        Ok(asked.map(|(node,)| Ready { node }))
    }

    /// Reads one operation of a session.
    pub async fn operation(&mut self, session: SessionId, operation: OperationId) -> Result<OperationRecord> {
        let org = self.org.uuid();
        let row: OperationRow = sqlx::query_as(
            "select request::text, answer::text, created_at, started_at, completed_at
             from operation
             where org_id = $1 and session_id = $2 and operation_id = $3",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(operation.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok(OperationRecord {
            id: operation,
            request: from_json(&row.request)?,
            answer: row.answer.as_deref().map(from_json).transpose()?,
            created_at: row.created_at,
            started_at: row.started_at,
            completed_at: row.completed_at,
        })
    }

    /// Answers a command of a locked session that no worker has begun. Returns whether it did.
    ///
    /// `begin_operation` shares the lock: the command begins before this, or never.
    pub async fn end_queued_exec(
        &mut self,
        session: SessionId,
        exec: OperationId,
        end: &Answer,
    ) -> Result<bool> {
        let org = self.org.uuid();
        let done = sqlx::query(concat!(
            "update operation o
             set answer = $4::json,
                 completed_at = now(),
                 request = ",
            answered_request!(),
            "
             where o.org_id = $1 and o.session_id = $2 and o.operation_id = $3
               and o.request ->> 'kind' = 'exec'
               and o.sandbox_id is null and o.completed_at is null",
        ))
        .bind(org)
        .bind(session.uuid())
        .bind(exec.uuid())
        .bind(json(end))
        .execute(self.connection())
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Answers the open operations of a session that is being archived.
    pub async fn cancel_operations(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        let message = "the session was archived".to_owned();
        sqlx::query(
            "update operation
             set answer = $3::json, completed_at = now()
             where org_id = $1 and session_id = $2 and completed_at is null",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(json(&Answer::Failed { code: Failure::Canceled, message }))
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

impl Store {
    /// Returns the open operations of a session, oldest first. By the index `operation_open`.
    pub async fn open_operations(&self, org: OrgId, session: SessionId) -> Result<Vec<Open>> {
        let rows: Vec<OpenRow> = sqlx::query_as(
            "select operation_id, request::text, actor::text, sandbox_id
             from operation
             where org_id = $1 and session_id = $2 and completed_at is null
             order by created_at, operation_id",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .fetch_all(&self.system)
        .await?;
        let open = |row: OpenRow| {
            Ok(Open {
                id: Id::from_uuid(row.operation_id),
                request: from_json(&row.request)?,
                actor: from_json(&row.actor)?,
                sandbox: row.sandbox_id.map(Id::from_uuid),
            })
        };
        rows.into_iter().map(open).collect()
    }

    /// Records the sandbox of an operation before it starts there; the first record stays.
    ///
    /// `None` when the fence does not hold.
    pub async fn begin_operation(
        &self,
        fence: Fence,
        operation: OperationId,
        sandbox: SandboxId,
    ) -> Result<Option<Begun>> {
        let row: Option<(Option<Uuid>,)> = sqlx::query_as(concat!(
            held!(),
            ", begun as (
                update operation o
                set sandbox_id = coalesce(o.sandbox_id, $5), started_at = coalesce(o.started_at, now())
                from held
                where o.org_id = $1 and o.session_id = held.session_id and o.operation_id = $4
                  and o.completed_at is null
                returning o.sandbox_id
             )
             select begun.sandbox_id from held left join begun on true",
        ))
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(operation.uuid())
        .bind(sandbox.uuid())
        .fetch_optional(&self.system)
        .await?;
        let begun = |sandbox| Begun::In(Id::from_uuid(sandbox));
        Ok(row.map(|(sandbox,)| sandbox.map_or(Begun::Ended, begun)))
    }

    /// Answers an operation, unless it has an answer, and records a use of its sandbox. Returns whether the fence
    /// holds.
    pub async fn answer_operation(
        &self,
        fence: Fence,
        operation: OperationId,
        answer: &Answer,
    ) -> Result<bool> {
        let row: Option<(Uuid,)> = sqlx::query_as(concat!(
            held!(),
            ", used as (
                update sandbox b
                set used_at = now()
                from held
                where b.org_id = $1 and b.session_id = held.session_id and b.state <> 'ended'
             ), told as (
                -- The answer has the whole; what has none keeps what was seen of it.
                delete from exec_output x
                using held
                where x.org_id = $1 and x.session_id = held.session_id and x.operation_id = $4
                  and $5::json ->> 'kind' = 'exec'
             ), answered as (
                update operation o
                set answer = $5::json,
                    completed_at = now(),
                    request = ",
            answered_request!(),
            "
                from held
                where o.org_id = $1 and o.session_id = held.session_id and o.operation_id = $4
                  and o.completed_at is null
             )
             select session_id from held",
        ))
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(operation.uuid())
        .bind(json(answer))
        .fetch_optional(&self.system)
        .await?;
        Ok(row.is_some())
    }

    /// Returns operations answered more than `OPERATION_HOURS` ago, the oldest first. By the index
    /// `operation_completed`.
    pub async fn old_operations(&self, after: Option<ScanPosition>, limit: i64) -> Result<Vec<OldOperation>> {
        let rows: Vec<(Uuid, Uuid, Uuid, Timestamp)> = sqlx::query_as(
            "select org_id, session_id, operation_id, completed_at
             from operation
             where completed_at < now() - make_interval(hours => $1)
               and ($2::timestamptz is null or (completed_at, org_id, operation_id) > ($2, $3, $4))
             order by completed_at, org_id, operation_id
             limit $5",
        )
        .bind(OPERATION_HOURS)
        .bind(after.map(|after| after.at))
        .bind(after.map(|after| after.org))
        .bind(after.map(|after| after.id))
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        let old = |(org, session, operation, at)| OldOperation {
            org: Id::from_uuid(org),
            session: Id::from_uuid(session),
            operation: Id::from_uuid(operation),
            position: ScanPosition { org, at, id: operation },
        };
        Ok(rows.into_iter().map(old).collect())
    }

    /// Deletes an operation, after its blob.
    pub async fn delete_operation(
        &self,
        org: OrgId,
        session: SessionId,
        operation: OperationId,
    ) -> Result<()> {
        sqlx::query("delete from operation where org_id = $1 and session_id = $2 and operation_id = $3")
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(operation.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }
}
