//! The sandbox of a session as the API returns it.

use std::collections::HashMap;

use sqlx::FromRow;
use uuid::Uuid;

use super::sandbox::ROTATED;
use crate::{
    base::{Id, Timestamp},
    domain::{CheckpointId, SandboxId, Session, SessionId},
    store::{Result, Tx},
};

/// A session's sandbox, as the API returns it.
#[derive(Clone, Debug)]
pub struct SandboxSummary {
    pub sandbox: SandboxId,
    /// The word in the column.
    pub state: String,
    pub is_announced: bool,
    pub is_ended: bool,
    /// It was removed on purpose, and its files were saved.
    pub is_put_away: bool,
    /// It is being removed to be replaced, or being created to replace another one.
    pub is_rotating: bool,
    pub checkpoint: Option<CheckpointId>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

#[derive(FromRow)]
struct ShownRow {
    session_id: Uuid,
    sandbox_id: Uuid,
    state: String,
    is_announced: bool,
    is_put_away: bool,
    is_rotating: bool,
    checkpoint_id: Option<Uuid>,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
}

impl Tx {
    /// Returns the sandbox of each session that has or had one: the live one, else the last.
    ///
    /// By the index `sandbox_of_session`.
    pub async fn sandboxes(&mut self, sessions: &[Session]) -> Result<HashMap<SessionId, SandboxSummary>> {
        let org = self.org.uuid();
        let ids: Vec<_> = sessions.iter().map(|session| session.id.uuid()).collect();
        let rows: Vec<ShownRow> = sqlx::query_as(
            "select distinct on (session_id)
                    session_id, sandbox_id, state, is_announced, ending is not null as is_put_away, checkpoint_id,
                    created_at, expires_at + coalesce(now() - paused_at, interval '0') as expires_at,
                    case
                        when state = 'ending' then ending = $3
                        when state = 'live' and not is_announced then coalesce((
                            select p.ending = $3
                            from sandbox p
                            where p.org_id = b.org_id and p.session_id = b.session_id and p.is_announced
                            order by p.created_at desc
                            limit 1
                        ), false)
                        else false
                    end as is_rotating
             from sandbox b
             where org_id = $1 and session_id = any($2) and (state <> 'ended' or is_announced)
             order by session_id, (state <> 'ended') desc, created_at desc",
        )
        .bind(org)
        .bind(ids)
        .bind(ROTATED)
        .fetch_all(self.connection())
        .await?;
        let shown = |row: ShownRow| {
            let shown = SandboxSummary {
                sandbox: Id::from_uuid(row.sandbox_id),
                is_announced: row.is_announced,
                is_ended: row.state == "ended",
                is_put_away: row.is_put_away,
                is_rotating: row.is_rotating,
                checkpoint: row.checkpoint_id.map(Id::from_uuid),
                created_at: row.created_at,
                expires_at: row.expires_at,
                state: row.state,
            };
            (Id::from_uuid(row.session_id), shown)
        };
        Ok(rows.into_iter().map(shown).collect())
    }
}
