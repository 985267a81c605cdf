//! Tools that callers registered: read from the log, which alone remembers them.

use super::{Result, Tx, column::from_json};
use crate::domain::{SessionId, registry::Tool};

impl Tx {
    /// The tools of a session, each as it was registered last, by name. Their events lie
    /// within the session's part of the log.
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
