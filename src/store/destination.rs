//! Where the events of a session are sent.

use sqlx::FromRow;
use uuid::Uuid;

use super::{Error, Result, Tx, column};
use crate::{
    base::{Id, Timestamp},
    domain::{DestinationId, Level, SessionId, TenantId},
};

/// A destination, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub id: DestinationId,
    pub session: SessionId,
    pub url: String,
    pub level: Level,
    pub types: Option<Vec<String>>,
    pub include_raw: bool,
    pub enabled: bool,
    pub created_after_seq: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    destination_id: Uuid,
    session_id: Uuid,
    url: String,
    level: i16,
    types: Option<Vec<String>>,
    include_raw: bool,
    enabled: bool,
    created_after_seq: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl Row {
    fn destination(self) -> Result<Destination> {
        Ok(Destination {
            id: Id::from_uuid(self.destination_id),
            session: Id::from_uuid(self.session_id),
            url: self.url,
            level: column::level(self.level)?,
            types: self.types,
            include_raw: self.include_raw,
            enabled: self.enabled,
            created_after_seq: self.created_after_seq,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

macro_rules! destinations {
    ($rest:literal) => {
        concat!(
            "select destination_id, session_id, url, level, types, include_raw, enabled, created_after_seq,
                    created_at, updated_at
             from destination
             where tenant_id = $1 and session_id = $2 and deleted_at is null ",
            $rest
        )
    };
}

/// The associated data that binds a sealed secret to its row.
pub fn context(tenant: TenantId, destination: DestinationId) -> String {
    format!("destination/{tenant}/{destination}")
}

impl Tx {
    /// Stores a destination with its sealed secret.
    pub async fn insert_destination(
        &mut self,
        destination: &Destination,
        sealed_secret: &[u8],
    ) -> Result<()> {
        let tenant = self.tenant.uuid();
        sqlx::query(
            "insert into destination (tenant_id, session_id, destination_id, url, sealed_secret, level, types,
                                      include_raw, enabled, created_after_seq, created_at, updated_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)",
        )
        .bind(tenant)
        .bind(destination.session.uuid())
        .bind(destination.id.uuid())
        .bind(&destination.url)
        .bind(sealed_secret)
        .bind(column::threshold(destination.level))
        .bind(&destination.types)
        .bind(destination.include_raw)
        .bind(destination.enabled)
        .bind(destination.created_after_seq)
        .bind(destination.created_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// A session's destinations, oldest first; at most `DESTINATIONS_MAX` exist.
    pub async fn destinations(&mut self, session: SessionId) -> Result<Vec<Destination>> {
        let tenant = self.tenant.uuid();
        let rows: Vec<Row> = sqlx::query_as(destinations!("order by destination_id"))
            .bind(tenant)
            .bind(session.uuid())
            .fetch_all(self.connection())
            .await?;
        rows.into_iter().map(Row::destination).collect()
    }

    /// One destination.
    pub async fn destination(
        &mut self,
        session: SessionId,
        destination: DestinationId,
    ) -> Result<Destination> {
        let tenant = self.tenant.uuid();
        let row: Row = sqlx::query_as(destinations!("and destination_id = $3"))
            .bind(tenant)
            .bind(session.uuid())
            .bind(destination.uuid())
            .fetch_one(self.connection())
            .await?;
        row.destination()
    }

    /// Writes what may change of a destination; a new secret replaces the old one.
    pub async fn update_destination(
        &mut self,
        destination: &Destination,
        sealed_secret: Option<Vec<u8>>,
    ) -> Result<()> {
        let tenant = self.tenant.uuid();
        sqlx::query(
            "update destination
             set url = $4, level = $5, types = $6, include_raw = $7, enabled = $8,
                 sealed_secret = coalesce($9, sealed_secret), updated_at = $10
             where tenant_id = $1 and session_id = $2 and destination_id = $3",
        )
        .bind(tenant)
        .bind(destination.session.uuid())
        .bind(destination.id.uuid())
        .bind(&destination.url)
        .bind(column::threshold(destination.level))
        .bind(&destination.types)
        .bind(destination.include_raw)
        .bind(destination.enabled)
        .bind(sealed_secret)
        .bind(destination.updated_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Removes a destination; what was still to be sent to it is dead.
    pub async fn delete_destination(&mut self, session: SessionId, destination: DestinationId) -> Result<()> {
        let tenant = self.tenant.uuid();
        let done = sqlx::query(
            "with dead as (
                update delivery
                set status = 'dead_letter', ready_at = null, error = 'the destination was deleted', updated_at = now()
                where tenant_id = $1 and session_id = $2 and destination_id = $3 and ready_at is not null
             )
             update destination
             set deleted_at = now(), enabled = false, sealed_secret = ''
             where tenant_id = $1 and session_id = $2 and destination_id = $3 and deleted_at is null",
        )
        .bind(tenant)
        .bind(session.uuid())
        .bind(destination.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}
