//! Tools registered by callers and rules granted by them, read from the log, which is their only record.

use uuid::Uuid;

use crate::base::{Id, Timestamp};
use crate::domain::{Actor, EventId, SessionId, permission::Grant, registry::Tool};
use crate::store::{Result, Tx, column::from_json};

/// A rule that was granted and not revoked.
#[derive(Clone, Debug)]
pub struct StoredGrant {
    pub event: EventId,
    pub at: Timestamp,
    pub actor: Actor,
    pub grant: Grant,
}

impl Tx {
    /// Returns the tools of an open session, the latest registration of each name, for a command.
    ///
    /// Scans the session's part of the log.
    pub async fn registered_tools(&mut self, session: SessionId) -> Result<Vec<Tool>> {
        let org = self.org.uuid();
        let rows: Vec<(String,)> = sqlx::query_as(
            "select distinct on (body ->> 'name') body::text
             from event
             where org_id = $1 and session_id = $2 and type = 'tool.registered'
             order by body ->> 'name', seq desc",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_all(self.connection())
        .await?;
        rows.iter().map(|(body,)| from_json(body)).collect()
    }

    /// Returns the rules that were granted in an open session and not revoked, oldest first.
    ///
    /// Scans the session's part of the log.
    pub async fn grants(&mut self, session: SessionId) -> Result<Vec<StoredGrant>> {
        let org = self.org.uuid();
        let rows: Vec<(Uuid, Timestamp, String, String)> = sqlx::query_as(
            "select event_id, ts, actor::text, body::text
             from event
             where org_id = $1 and session_id = $2 and type = 'permission.granted'
             order by seq",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_all(self.connection())
        .await?;
        let revoked: Vec<(String,)> = sqlx::query_as(
            "select body ->> 'grant_event_id'
             from event
             where org_id = $1 and session_id = $2 and type = 'permission.revoked'",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_all(self.connection())
        .await?;
        let is_live = |event: &EventId| !revoked.iter().any(|(ended,)| *ended == event.to_string());
        let grants = rows.into_iter().map(|(event, at, actor, body)| {
            let (event, actor, grant) = (Id::from_uuid(event), from_json(&actor)?, from_json(&body)?);
            Ok(StoredGrant { event, at, actor, grant })
        });
        grants.filter(|grant| grant.as_ref().map_or(true, |grant| is_live(&grant.event))).collect()
    }
}
