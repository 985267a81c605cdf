//! Complete bodies of events, until a worker has stored them as blobs.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::Id,
    domain::{EventId, OrgId, SessionId},
    store::{Result, Store, Tx},
};

/// The complete body of an event whose row has a truncated one.
#[derive(Clone, Debug)]
pub struct EventContent {
    pub org: OrgId,
    pub session: SessionId,
    pub event: EventId,
    /// JSON of the complete body.
    pub body: String,
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    session_id: Uuid,
    event_id: Uuid,
    content: String,
}

/// `$1` is the organization, then columns of several bodies. An append that is repeated stores them again.
const INSERT: &str = "insert into event_content (org_id, session_id, event_id, content)
                      select $1, * from unnest($2::uuid[], $3::uuid[], $4::text[])
                      on conflict do nothing";

macro_rules! insert {
    ($org:expr, $contents:expr) => {{
        let contents: &[EventContent] = $contents;
        let sessions: Vec<_> = contents.iter().map(|content| content.session.uuid()).collect();
        let events: Vec<_> = contents.iter().map(|content| content.event.uuid()).collect();
        let bodies: Vec<_> = contents.iter().map(|content| content.body.as_str()).collect();
        sqlx::query(INSERT).bind($org.uuid()).bind(sessions).bind(events).bind(bodies)
    }};
}

impl Tx {
    /// Stores complete bodies of events of this transaction.
    pub async fn insert_event_contents(&mut self, contents: &[EventContent]) -> Result<()> {
        insert!(self.org, contents).execute(self.connection()).await?;
        Ok(())
    }
}

impl Store {
    /// Stores complete bodies of events of one organization that are appended afterwards.
    pub async fn insert_event_contents(&self, org: OrgId, contents: &[EventContent]) -> Result<()> {
        insert!(org, contents).execute(&self.system).await?;
        Ok(())
    }

    /// Returns the complete body of an event, if no worker has stored it as a blob yet.
    pub async fn event_content(
        &self,
        org: OrgId,
        session: SessionId,
        event: EventId,
    ) -> Result<Option<String>> {
        let content = sqlx::query_scalar(
            "select content from event_content where org_id = $1 and session_id = $2 and event_id = $3",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(event.uuid())
        .fetch_optional(&self.system)
        .await?;
        Ok(content)
    }

    /// Claims up to `count` complete bodies, the oldest first, for `ttl`.
    pub async fn claim_event_contents(&self, count: i64, ttl: Duration) -> Result<Vec<EventContent>> {
        let rows: Vec<Row> = sqlx::query_as(
            "update event_content c
             set claimed_until = now() + $2 * interval '1 second'
             from (
                 select org_id, session_id, event_id
                 from event_content
                 where claimed_until < now()
                 order by created_at
                 limit $1
                 for update skip locked
             ) due
             where c.org_id = due.org_id and c.session_id = due.session_id and c.event_id = due.event_id
             returning c.org_id, c.session_id, c.event_id, c.content",
        )
        .bind(count)
        .bind(ttl.as_secs_f64())
        .fetch_all(&self.system)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| EventContent {
                org: Id::from_uuid(row.org_id),
                session: Id::from_uuid(row.session_id),
                event: Id::from_uuid(row.event_id),
                body: row.content,
            })
            .collect())
    }

    /// Deletes a complete body that is stored as a blob. Returns false if it was gone: the session was deleted,
    /// or another worker stored it.
    pub async fn delete_event_content(&self, content: &EventContent) -> Result<bool> {
        let deleted =
            sqlx::query("delete from event_content where org_id = $1 and session_id = $2 and event_id = $3")
                .bind(content.org.uuid())
                .bind(content.session.uuid())
                .bind(content.event.uuid())
                .execute(&self.system)
                .await?;
        Ok(deleted.rows_affected() > 0)
    }
}
