//! Leaders: processes that do a task for the whole deployment.

use std::time::Duration;

use uuid::Uuid;

use crate::store::{Result, Store};

/// A task of which one process at a time takes care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The search for sessions that have work but no job.
    Sweep,
    /// The deletion of rows and blobs whose time is over.
    Retention,
    /// The move of events of archived sessions to the blob store.
    MoveEvents,
}

impl Task {
    const fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Retention => "retention",
            Self::MoveEvents => "move_events",
        }
    }
}

impl Store {
    /// Makes a process the leader of a task for `ttl`, unless another one is. Returns whether it is.
    ///
    /// A leader that is late may work beside its successor, so a task must allow that.
    pub(crate) async fn lead(&self, task: Task, process: Uuid, ttl: Duration) -> Result<bool> {
        let done = sqlx::query(
            "insert into leader as l (task, process_id, held_until)
             values ($1, $2, now() + $3 * interval '1 second')
             on conflict (task) do update
             set process_id = excluded.process_id, held_until = excluded.held_until
             where l.process_id = excluded.process_id or l.held_until < now()",
        )
        .bind(task.name())
        .bind(process)
        .bind(ttl.as_secs_f64())
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Gives a task up, so that another process can lead at once.
    pub(crate) async fn give_up(&self, task: Task, process: Uuid) -> Result<()> {
        sqlx::query("delete from leader where task = $1 and process_id = $2")
            .bind(task.name())
            .bind(process)
            .execute(&self.system)
            .await?;
        Ok(())
    }
}
