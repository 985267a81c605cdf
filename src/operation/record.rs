//! Events of callers' operations, each recorded once.

use super::{Error, OperationServer};
use crate::{
    base::limit::EXEC_SUMMARY_BYTES_MAX,
    domain::{Actor, Body, Cost, OperationId, event::Draft, operation::Request},
    sandbox::{Cause, Exit},
    store::{
        self,
        operation::{Open, OperationRecord},
    },
};

impl OperationServer<'_> {
    /// Records `exec.completed` of a command once, with its exit if it ran.
    pub(super) async fn record_end(
        &self,
        open: &Open,
        exit: Option<(&Exit, &str, &str)>,
    ) -> Result<(), Error> {
        let Request::Exec { command, .. } = &open.request else { return Ok(()) };
        // The kill that ended it in the queue is served, too, and records the end.
        if exit.is_none() && self.has_ended_in_queue(open.id).await? {
            return self.spent(open.id, Cost::default()).await;
        }
        let summary = exit.map_or(String::new(), |(_, stdout, stderr)| {
            let all = format!("{stdout}{stderr}");
            let from = all.len().saturating_sub(EXEC_SUMMARY_BYTES_MAX);
            all[all.ceil_char_boundary(from)..].to_owned()
        });
        let duration_ms = exit.map_or(0, |(exit, ..)| exit.duration.as_millis() as u64);
        let cost = self.tariff.exec(self.size, duration_ms);
        let body = Body::ExecCompleted {
            call_id: open.id.to_string(),
            exec_id: Some(open.id),
            command: command.clone(),
            exit_code: exit.map_or(-1, |(exit, ..)| exit.code),
            summary,
            bytes: exit.map_or(0, |(exit, ..)| exit.stdout_bytes + exit.stderr_bytes),
            cause: exit.map_or("unknown", |(exit, ..)| exit.cause.word()).to_owned(),
            duration_ms,
            cpu_micros: cost.sandbox_cpu_micros,
            memory_micros: cost.sandbox_memory_micros,
        };
        if open.sandbox.is_some() || exit.is_none() {
            return self.record_end_once(open.id, body, cost).await;
        }
        self.record(Actor::system(), body).await?;
        self.spent(open.id, cost).await
    }

    /// Records `exec.completed` of a command that a kill ended in the queue, once.
    pub(super) async fn record_queued_end(
        &self,
        exec: OperationId,
        command: String,
        exit_code: i32,
    ) -> Result<(), Error> {
        let body = Body::ExecCompleted {
            call_id: exec.to_string(),
            exec_id: Some(exec),
            command,
            exit_code,
            summary: String::new(),
            bytes: 0,
            cause: Cause::Killed.word().to_owned(),
            duration_ms: 0,
            cpu_micros: 0,
            memory_micros: 0,
        };
        self.record_end_once(exec, body, Cost::default()).await
    }

    /// Records the end of a command unless the log has one, which an earlier worker may have recorded.
    async fn record_end_once(&self, exec: OperationId, body: Body, cost: Cost) -> Result<(), Error> {
        let said =
            |body: &Body| matches!(body, Body::ExecCompleted { exec_id, .. } if *exec_id == Some(exec));
        // Under this lock, because a command that cannot start and a kill of it may end it at the same time.
        let end = self.end.lock().await;
        let is_known = self.is_recorded("exec.completed", said).await?;
        if !is_known {
            self.record(Actor::system(), body).await?;
        }
        drop(end);
        self.spent(exec, if is_known { Cost::default() } else { cost }).await
    }

    /// Whether a command has its answer without having begun, because it was killed.
    pub(super) async fn has_ended_in_queue(&self, exec: OperationId) -> Result<bool, Error> {
        let has_ended = |seen: OperationRecord| seen.answer.is_some() && seen.started_at.is_none();
        Ok(self.seen(exec).await?.is_some_and(has_ended))
    }

    /// Whether an operation has its answer.
    pub(super) async fn is_answered(&self, operation: OperationId) -> Result<bool, Error> {
        Ok(self.seen(operation).await?.is_none_or(|seen| seen.answer.is_some()))
    }

    /// Reads an operation as it is now. `None` if it was deleted, a day after its answer.
    pub(super) async fn seen(&self, operation: OperationId) -> Result<Option<OperationRecord>, Error> {
        let fence = self.writer.fence();
        let mut tx = self.sandboxes.store.begin(fence.org).await?;
        match tx.operation(fence.session, operation).await {
            Ok(seen) => Ok(Some(seen)),
            Err(store::Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Records `file.written` of an operation once.
    pub(super) async fn record_written(&self, open: &Open, path: &str, bytes: u64) -> Result<(), Error> {
        let said = |body: &Body| matches!(body, Body::FileWritten { write_id, .. } if *write_id == open.id);
        if open.sandbox.is_some() && self.is_recorded("file.written", said).await? {
            return Ok(());
        }
        let is_archive = matches!(open.request, Request::WriteTree { .. });
        let body = Body::FileWritten { write_id: open.id, path: path.to_owned(), bytes, is_archive };
        self.record(open.actor.clone(), body).await
    }

    /// Whether the log contains a matching event of this type. Called only where an earlier worker may have
    /// recorded it.
    pub(crate) async fn is_recorded(
        &self,
        kind: &'static str,
        said: impl Fn(&Body) -> bool + Send + Sync,
    ) -> Result<bool, Error> {
        let found = self.writer.newest(&[kind], |event| said(&event.draft.body).then_some(())).await;
        Ok(found.map_err(|error| Error::Unavailable(error.to_string()))?.is_some())
    }

    pub(super) fn draft(&self, actor: Actor, body: Body) -> Draft {
        Draft {
            id: self.sandboxes.journal.origin().id(),
            actor,
            level: body.level(),
            turn_id: None,
            step_id: None,
            refs: serde_json::Map::new(),
            body,
        }
    }

    /// Appends an event to the session's log without the id of the turn beside it.
    pub(crate) async fn record(&self, actor: Actor, body: Body) -> Result<(), Error> {
        let writer = self.sandboxes.journal.writer(self.writer.fence(), None);
        Ok(writer.record(vec![self.draft(actor, body)]).await.map(drop)?)
    }
}
