//! Tools registered by callers, read from the log, which is their only record.

use crate::domain::{SessionId, registry::Tool};
use crate::store::{Result, Tx, column::from_json};

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
}
