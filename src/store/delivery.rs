//! The outbox: one row for each event on its way to each destination.
//!
//! Rows are inserted by the statement that appends the event. A claim moves
//! `ready_at` beyond the longest try, so a courier that dies loses nothing.

use sqlx::FromRow;
use uuid::Uuid;

use super::{Error, Result, Store, Tx};
use crate::{
    base::{Id, Timestamp, seal::DataKey},
    domain::{DeliveryId, DestinationId, EventId, SessionId, TenantId},
};

/// A delivery as the control surface shows it.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct DeliveryRow {
    pub delivery_id: Uuid,
    pub session_id: Uuid,
    pub destination_id: Uuid,
    pub event_id: Uuid,
    pub event_seq: i64,
    pub status: String,
    pub attempts: i32,
    pub last_attempt_at: Option<Timestamp>,
    pub response_code: Option<i16>,
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A delivery that was taken to be sent.
#[derive(Debug)]
pub struct Claimed {
    pub tenant: TenantId,
    pub delivery: DeliveryId,
    pub session: SessionId,
    pub destination: DestinationId,
    pub event: EventId,
    pub event_seq: i64,
    /// Which try this is, from 1.
    pub attempt: i32,
    pub url: String,
    pub include_raw: bool,
    /// Whether the destination still wants letters.
    pub is_wanted: bool,
    pub metadata: String,
    sealed_secret: Vec<u8>,
}

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub status: Status,
    pub response_code: Option<u16>,
    pub error: Option<String>,
}

/// Where a delivery goes from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Delivered,
    /// Tried again at this time.
    Failed {
        retry_at: Timestamp,
    },
    DeadLetter,
    /// The receiver said 410: the destination is disabled with it.
    Gone,
}

#[derive(FromRow)]
struct ClaimRow {
    tenant_id: Uuid,
    delivery_id: Uuid,
    session_id: Uuid,
    destination_id: Uuid,
    event_id: Uuid,
    event_seq: i64,
    attempts: i32,
    url: String,
    include_raw: bool,
    is_wanted: bool,
    metadata: String,
    sealed_secret: Vec<u8>,
}

impl Claimed {
    /// The destination's secret.
    pub fn secret(&self, key: &DataKey) -> Result<String> {
        let context = super::destination::context(self.tenant, self.destination);
        let plain =
            key.open(&self.sealed_secret, &context).map_err(|error| Error::Corrupt(error.to_string()))?;
        String::from_utf8(plain.to_vec()).map_err(|error| Error::Corrupt(error.to_string()))
    }
}

impl Store {
    /// Takes up to `rows` deliveries that are due, by the index `delivery_ready`.
    ///
    /// Letters to a destination that was disabled meanwhile are taken too, to be killed.
    pub async fn claim_deliveries(&self, rows: i64, hold_seconds: f64) -> Result<Vec<Claimed>> {
        let rows: Vec<ClaimRow> = sqlx::query_as(
            "with due as (
                select tenant_id, delivery_id
                from delivery
                where ready_at <= now()
                order by ready_at
                limit $1
                for update skip locked
             ), held as (
                update delivery v
                set status = 'delivering', attempts = v.attempts + 1, ready_at = now() + $2 * interval '1 second',
                    last_attempt_at = now(), updated_at = now()
                from due
                where v.tenant_id = due.tenant_id and v.delivery_id = due.delivery_id
                returning v.tenant_id, v.delivery_id, v.session_id, v.destination_id, v.event_id, v.event_seq,
                          v.attempts
             )
             select h.tenant_id, h.delivery_id, h.session_id, h.destination_id, h.event_id, h.event_seq, h.attempts,
                    d.url, d.include_raw, d.enabled and d.deleted_at is null as is_wanted, s.metadata::text,
                    d.sealed_secret
             from held h
             join destination d using (tenant_id, session_id, destination_id)
             join session s using (tenant_id, session_id)",
        )
        .bind(rows)
        .bind(hold_seconds)
        .fetch_all(&self.system)
        .await?;
        let claimed = |row: ClaimRow| Claimed {
            tenant: Id::from_uuid(row.tenant_id),
            delivery: Id::from_uuid(row.delivery_id),
            session: Id::from_uuid(row.session_id),
            destination: Id::from_uuid(row.destination_id),
            event: Id::from_uuid(row.event_id),
            event_seq: row.event_seq,
            attempt: row.attempts,
            url: row.url,
            include_raw: row.include_raw,
            is_wanted: row.is_wanted,
            metadata: row.metadata,
            sealed_secret: row.sealed_secret,
        };
        Ok(rows.into_iter().map(claimed).collect())
    }

    /// Writes what became of a try.
    pub async fn settle_delivery(&self, claimed: &Claimed, settled: &Settled) -> Result<()> {
        let (status, retry_at, gone) = match settled.status {
            Status::Delivered => ("delivered", None, false),
            Status::Failed { retry_at } => ("failed", Some(retry_at), false),
            Status::DeadLetter => ("dead_letter", None, false),
            Status::Gone => ("dead_letter", None, true),
        };
        sqlx::query(
            "with disabled as (
                update destination
                set enabled = false, updated_at = now()
                where $7 and tenant_id = $1 and session_id = $8 and destination_id = $9
             )
             update delivery
             set status = $3, ready_at = $4, response_code = $5, error = $6, updated_at = now()
             where tenant_id = $1 and delivery_id = $2 and status = 'delivering'",
        )
        .bind(claimed.tenant.uuid())
        .bind(claimed.delivery.uuid())
        .bind(status)
        .bind(retry_at)
        .bind(settled.response_code.map(|code| i16::try_from(code).unwrap_or(i16::MAX)))
        .bind(&settled.error)
        .bind(gone)
        .bind(claimed.session.uuid())
        .bind(claimed.destination.uuid())
        .execute(&self.system)
        .await?;
        Ok(())
    }
}

macro_rules! deliveries {
    ($rest:literal) => {
        concat!(
            "select delivery_id, session_id, destination_id, event_id, event_seq, status, attempts, last_attempt_at,
                    response_code, error, created_at, updated_at
             from delivery
             where tenant_id = $1 and session_id = $2 ",
            $rest
        )
    };
}

impl Tx {
    /// A page of a session's deliveries, newest event first, by `delivery_of_session`.
    pub async fn deliveries(
        &mut self,
        session: SessionId,
        destination: Option<DestinationId>,
        status: Option<&str>,
        below: Option<(i64, DeliveryId)>,
        limit: i64,
    ) -> Result<Vec<DeliveryRow>> {
        let tenant = self.tenant.uuid();
        let rows = sqlx::query_as(deliveries!(
            "and ($3::text is null or status = $3)
             and ($4::bigint is null or (event_seq, delivery_id) < ($4, $5))
             and ($7::uuid is null or destination_id = $7)
             order by event_seq desc, delivery_id desc
             limit $6"
        ))
        .bind(tenant)
        .bind(session.uuid())
        .bind(status)
        .bind(below.map(|(seq, _)| seq))
        .bind(below.map(|(_, delivery)| delivery.uuid()))
        .bind(limit)
        .bind(destination.map(Id::uuid))
        .fetch_all(self.connection())
        .await?;
        Ok(rows)
    }

    /// One delivery.
    pub async fn delivery(&mut self, session: SessionId, delivery: DeliveryId) -> Result<DeliveryRow> {
        let tenant = self.tenant.uuid();
        let row = sqlx::query_as(deliveries!("and delivery_id = $3"))
            .bind(tenant)
            .bind(session.uuid())
            .bind(delivery.uuid())
            .fetch_one(self.connection())
            .await?;
        Ok(row)
    }

    /// Sends a delivery again from the first try, whatever became of it.
    pub async fn redeliver(&mut self, session: SessionId, delivery: DeliveryId) -> Result<()> {
        let tenant = self.tenant.uuid();
        let done = sqlx::query(
            "update delivery
             set status = 'pending', attempts = 0, ready_at = now(), error = null, response_code = null,
                 updated_at = now()
             where tenant_id = $1 and session_id = $2 and delivery_id = $3",
        )
        .bind(tenant)
        .bind(session.uuid())
        .bind(delivery.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}
