//! Events of callers' operations, each recorded once.

use super::{Error, OperationServer};
use crate::{
    base::limit::EXEC_SUMMARY_BYTES_MAX,
    domain::{Actor, Body, Cost, event::Draft, operation::Request},
    sandbox::Exit,
    store::operation::Open,
};

impl OperationServer<'_> {
    /// Records `exec.completed` of a command once, with its exit if it ran.
    pub(super) async fn record_end(
        &self,
        open: &Open,
        exit: Option<(&Exit, &str, &str)>,
    ) -> Result<(), Error> {
        let Request::Exec { command, .. } = &open.request else { return Ok(()) };
        let said =
            |body: &Body| matches!(body, Body::ExecCompleted { exec_id, .. } if *exec_id == Some(open.id));
        let may_be_said = open.sandbox.is_some() || exit.is_none();
        if may_be_said && self.is_recorded("exec.completed", said).await? {
            return self.spent(open, Cost::default()).await;
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
        self.record(Actor::system(), body).await?;
        self.spent(open, cost).await
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
