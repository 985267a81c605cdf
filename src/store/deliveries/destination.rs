//! Destinations of events: those of a session, and webhooks of the organization.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Error, Result, Store, Tx, column, parameter::named};
use crate::{
    base::{Id, Timestamp, limit::DESTINATION_DAYS},
    domain::{DestinationId, Level, OrgId, SessionId},
};

/// A destination, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub id: DestinationId,
    /// `None` for a webhook of the organization.
    pub session: Option<SessionId>,
    pub url: String,
    pub level: Level,
    pub types: Option<Vec<String>>,
    pub include_raw: bool,
    pub enabled: bool,
    pub created_after_seq: i64,
    /// Until this time deliveries also carry the signature of the replaced secret.
    pub secret_before_until: Option<Timestamp>,
    /// Time of the first failure since the last success.
    pub failing_since: Option<Timestamp>,
    /// Reason why the service disabled it: `gone` or `failing`.
    pub disabled_reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    destination_id: Uuid,
    session_id: Option<Uuid>,
    url: String,
    level: i16,
    types: Option<Vec<String>>,
    include_raw: bool,
    enabled: bool,
    created_after_seq: i64,
    secret_before_until: Option<Timestamp>,
    failing_since: Option<Timestamp>,
    disabled_reason: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl Row {
    fn destination(self) -> Result<Destination> {
        Ok(Destination {
            id: Id::from_uuid(self.destination_id),
            session: self.session_id.map(Id::from_uuid),
            url: self.url,
            level: column::level(self.level)?,
            types: self.types,
            include_raw: self.include_raw,
            enabled: self.enabled,
            created_after_seq: self.created_after_seq,
            secret_before_until: self.secret_before_until,
            failing_since: self.failing_since,
            disabled_reason: self.disabled_reason,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

// Destinations of session $2, or webhooks of the organization when $2 is null.
macro_rules! destinations {
    ($rest:literal) => {
        concat!(
            "select destination_id, session_id, url, level, types, include_raw, enabled, created_after_seq,
                    case when secret_before_until > now() then secret_before_until end as secret_before_until,
                    failing_since, disabled_reason, created_at, updated_at
             from destination
             where org_id = $1
               and (session_id = $2 or ($2 is null and session_id is null))
               and deleted_at is null ",
            $rest
        )
    };
}

/// Associated data that binds a sealed secret to its row.
pub(crate) fn context(org: OrgId, destination: DestinationId) -> String {
    format!("destination/{org}/{destination}")
}

impl Tx {
    /// Stores a destination with its sealed secret.
    pub async fn insert_destination(
        &mut self,
        destination: &Destination,
        sealed_secret: &[u8],
    ) -> Result<()> {
        named!(
            query(
                "insert into destination (org_id, session_id, destination_id, url, sealed_secret, level, types,
                                          include_raw, enabled, created_after_seq, created_at, updated_at)
                 values ($org_id, $session_id, $destination_id, $url, $sealed_secret, $level, $types, $include_raw,
                         $enabled, $created_after_seq, $created_at, $created_at)"
            ),
            {
                org_id: self.org.uuid(),
                session_id: destination.session.map(Id::uuid),
                destination_id: destination.id.uuid(),
                url: &destination.url,
                sealed_secret: sealed_secret,
                level: column::threshold(destination.level),
                types: &destination.types,
                include_raw: destination.include_raw,
                enabled: destination.enabled,
                created_after_seq: destination.created_after_seq,
                created_at: destination.created_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Tells appends that wait for the row of a locked session that its destinations have changed.
    pub async fn mark_destinations_changed(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update session
             set destination_changes = destination_changes + 1
             where org_id = $1 and session_id = $2",
        )
        .bind(org)
        .bind(session.uuid())
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns the destinations of a session or the organization's webhooks.
    ///
    /// Newest first; at most `DESTINATIONS_MAX` or `WEBHOOKS_MAX` exist.
    pub async fn destinations(&mut self, session: Option<SessionId>) -> Result<Vec<Destination>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(destinations!("order by destination_id desc"))
            .bind(org)
            .bind(session.map(Id::uuid))
            .fetch_all(self.connection())
            .await?;
        rows.into_iter().map(Row::destination).collect()
    }

    /// Reads one destination.
    pub async fn destination(
        &mut self,
        session: Option<SessionId>,
        destination: DestinationId,
    ) -> Result<Destination> {
        self.read_destination(destinations!("and destination_id = $3"), session, destination).await
    }

    /// Reads one destination and locks it until the transaction ends.
    ///
    /// Without the lock, two changes of different fields would undo each other.
    pub async fn lock_destination(
        &mut self,
        session: Option<SessionId>,
        destination: DestinationId,
    ) -> Result<Destination> {
        self.read_destination(
            destinations!("and destination_id = $3 for no key update"),
            session,
            destination,
        )
        .await
    }

    async fn read_destination(
        &mut self,
        sql: &'static str,
        session: Option<SessionId>,
        destination: DestinationId,
    ) -> Result<Destination> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(sql)
            .bind(org)
            .bind(session.map(Id::uuid))
            .bind(destination.uuid())
            .fetch_one(self.connection())
            .await?;
        row.destination()
    }

    /// Locks the organization's webhooks until the transaction ends.
    ///
    /// Otherwise two concurrent creations could exceed the maximum.
    pub async fn lock_webhooks(&mut self) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("select from org where org_id = $1 for no key update")
            .bind(org)
            .execute(self.connection())
            .await?;
        Ok(())
    }

    /// Updates the mutable columns of a locked destination; a new secret replaces the old one at
    /// once.
    pub async fn update_destination(
        &mut self,
        destination: &Destination,
        sealed_secret: Option<Vec<u8>>,
    ) -> Result<()> {
        named!(
            query(
                "update destination
                 set url = $url, level = $level, types = $types, include_raw = $include_raw, enabled = $enabled,
                     sealed_secret = coalesce($sealed_secret, sealed_secret),
                     sealed_secret_before = case when $sealed_secret is null then sealed_secret_before end,
                     secret_before_until = case when $sealed_secret is null then secret_before_until end,
                     -- Whoever enables it again has fixed it: what failed before says nothing.
                     failing_since = case when $enabled and not enabled then null else failing_since end,
                     disabled_reason = case when $enabled then null else disabled_reason end,
                     updated_at = $updated_at
                 where org_id = $org_id and destination_id = $destination_id"
            ),
            {
                org_id: self.org.uuid(),
                destination_id: destination.id.uuid(),
                url: &destination.url,
                level: column::threshold(destination.level),
                types: &destination.types,
                include_raw: destination.include_raw,
                enabled: destination.enabled,
                sealed_secret: sealed_secret,
                updated_at: destination.updated_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Replaces the secret; for `overlap_seconds` deliveries carry both signatures.
    pub async fn rotate_secret(
        &mut self,
        destination: DestinationId,
        sealed_secret: &[u8],
        overlap_seconds: i64,
    ) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update destination
             set sealed_secret_before = sealed_secret,
                 secret_before_until = now() + $4 * interval '1 second',
                 sealed_secret = $3,
                 updated_at = now()
             where org_id = $1 and destination_id = $2",
        )
        .bind(org)
        .bind(destination.uuid())
        .bind(sealed_secret)
        .bind(overlap_seconds as f64)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes a destination; its pending deliveries become dead letters.
    ///
    /// Locks deliveries before their destination, in the same order as the settlement of an
    /// attempt; the reverse order could deadlock. A delivery appended between the two statements is
    /// claimed, found without a destination and becomes a dead letter too.
    pub async fn delete_destination(
        &mut self,
        session: Option<SessionId>,
        destination: DestinationId,
    ) -> Result<()> {
        let org = self.org.uuid();
        self.destination(session, destination).await?;
        sqlx::query(
            "update delivery
             set status = 'dead_letter', ready_at = null, error = 'the destination was deleted', updated_at = now()
             where org_id = $1 and destination_id = $2 and ready_at is not null",
        )
        .bind(org)
        .bind(destination.uuid())
        .execute(self.connection())
        .await?;
        let done = sqlx::query(
            "update destination
             set deleted_at = now(), enabled = false, sealed_secret = '', sealed_secret_before = null,
                 secret_before_until = null
             where org_id = $1 and destination_id = $2 and deleted_at is null",
        )
        .bind(org)
        .bind(destination.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Deletes one batch of destinations that were deleted `DESTINATION_DAYS` ago and to which no delivery refers any
    /// more; returns how many.
    ///
    /// By the indexes `destination_deleted` and `delivery_of_destination`.
    pub async fn delete_old_destinations(&self, batch: i64) -> Result<u64> {
        let done = sqlx::query(
            "delete from destination d
             using (
                 select old.org_id, old.destination_id
                 from destination old
                 where old.deleted_at < now() - make_interval(days => $1)
                   and not exists (
                       select from delivery v
                       where v.org_id = old.org_id and v.destination_id = old.destination_id
                   )
                 order by old.deleted_at
                 limit $2
                 for update skip locked
             ) old
             where d.org_id = old.org_id and d.destination_id = old.destination_id",
        )
        .bind(DESTINATION_DAYS)
        .bind(batch)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }
}
