//! Deliveries and their attempts, as the API returns them.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Error, Result, Store, Tx};
use crate::{
    base::{Id, Timestamp},
    domain::{DeliveryId, DestinationId, SessionId},
};

/// One delivery row.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct DeliveryRow {
    pub delivery_id: Uuid,
    pub session_id: Option<Uuid>,
    pub destination_id: Uuid,
    pub event_id: Uuid,
    pub event_seq: Option<i64>,
    pub r#type: Option<String>,
    pub status: String,
    pub attempts: i32,
    pub last_attempt_at: Option<Timestamp>,
    pub response_code: Option<i16>,
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// One attempt of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct AttemptRow {
    pub at: Timestamp,
    pub number: i32,
    pub response_code: Option<i16>,
    pub error: Option<String>,
    pub duration_ms: i32,
}

/// Owner of the deliveries to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Deliveries to a session's own destinations.
    Session(SessionId),
    /// Deliveries to one webhook of the organization.
    Webhook(DestinationId),
}

/// Filter for a listing of deliveries.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub destination: Option<DestinationId>,
    pub status: Option<String>,
    /// Page position: the event's `seq` for a session, or the creation time in microseconds since
    /// 1970 for a webhook; then the delivery id.
    pub below: Option<(i64, DeliveryId)>,
}

macro_rules! deliveries {
    ($rest:literal) => {
        concat!(
            "select v.delivery_id, v.session_id, v.destination_id, v.event_id, v.event_seq, v.type, v.status, v.attempts,
                    v.last_attempt_at, v.response_code, v.error, v.created_at, v.updated_at
             from delivery v
             join destination d on d.org_id = v.org_id and d.destination_id = v.destination_id
             where v.org_id = $1 ",
            $rest
        )
    };
}

impl Of {
    fn ids(self) -> (Option<Uuid>, Option<Uuid>) {
        match self {
            Self::Session(session) => (Some(session.uuid()), None),
            Self::Webhook(webhook) => (None, Some(webhook.uuid())),
        }
    }
}

impl Tx {
    /// Returns a page of a session's deliveries, newest event first.
    ///
    /// By the index `delivery_of_session`.
    pub async fn deliveries(
        &mut self,
        session: SessionId,
        filter: &Filter,
        limit: i64,
    ) -> Result<Vec<DeliveryRow>> {
        let org = self.org.uuid();
        let rows = sqlx::query_as(deliveries!(
            "and v.session_id = $2
             and d.session_id = $2
             and ($3::text is null or v.status = $3)
             and ($4::bigint is null or (v.event_seq, v.delivery_id) < ($4, $5))
             and ($7::uuid is null or v.destination_id = $7)
             order by v.event_seq desc, v.delivery_id desc
             limit $6"
        ))
        .bind(org)
        .bind(session.uuid())
        .bind(&filter.status)
        .bind(filter.below.map(|(seq, _)| seq))
        .bind(filter.below.map(|(_, delivery)| delivery.uuid()))
        .bind(limit)
        .bind(filter.destination.map(Id::uuid))
        .fetch_all(self.connection())
        .await?;
        Ok(rows)
    }

    /// Returns a page of a webhook's deliveries, newest first.
    ///
    /// By the index `delivery_of_destination`.
    pub async fn deliveries_of_webhook(
        &mut self,
        webhook: DestinationId,
        filter: &Filter,
        limit: i64,
    ) -> Result<Vec<DeliveryRow>> {
        let org = self.org.uuid();
        let rows = sqlx::query_as(deliveries!(
            "and v.destination_id = $2
             and ($3::text is null or v.status = $3)
             and ($4::bigint is null
                  or (v.created_at, v.delivery_id) < (timestamptz 'epoch' + $4 * interval '1 microsecond', $5))
             order by v.created_at desc, v.delivery_id desc
             limit $6"
        ))
        .bind(org)
        .bind(webhook.uuid())
        .bind(&filter.status)
        .bind(filter.below.map(|(at, _)| at))
        .bind(filter.below.map(|(_, delivery)| delivery.uuid()))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        Ok(rows)
    }

    /// Reads one delivery.
    pub async fn delivery(&mut self, of: Of, delivery: DeliveryId) -> Result<DeliveryRow> {
        let (org, (session, webhook)) = (self.org.uuid(), of.ids());
        let row = sqlx::query_as(deliveries!(
            "and v.delivery_id = $2
             and ($3::uuid is null or d.session_id = $3)
             and ($4::uuid is null or v.destination_id = $4)"
        ))
        .bind(org)
        .bind(delivery.uuid())
        .bind(session)
        .bind(webhook)
        .fetch_one(self.connection())
        .await?;
        Ok(row)
    }

    /// Returns the newest attempts of a delivery, oldest first, by the primary key.
    pub async fn attempts(&mut self, delivery: DeliveryId, limit: i64) -> Result<Vec<AttemptRow>> {
        let org = self.org.uuid();
        let mut rows: Vec<AttemptRow> = sqlx::query_as(
            "select at, number, response_code, error, duration_ms
             from delivery_attempt
             where org_id = $1 and delivery_id = $2
             order by at desc
             limit $3",
        )
        .bind(org)
        .bind(delivery.uuid())
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.reverse();
        Ok(rows)
    }

    /// Makes a delivery pending again, with its attempts reset, whatever its status.
    pub async fn redeliver(&mut self, delivery: DeliveryId) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query(
            "update delivery
             set status = 'pending', attempts = 0, ready_at = now(), error = null, response_code = null,
                 updated_at = now()
             where org_id = $1 and delivery_id = $2",
        )
        .bind(org)
        .bind(delivery.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Creates the coming monthly partitions and drops expired ones.
    ///
    /// These are partitions of the delivery tables. Also deletes expired rows from the default
    /// partitions, which receive rows when no monthly partition existed in time.
    pub async fn roll_months(&self) -> Result<()> {
        let mut tx = self.system.begin_long().await?;
        sqlx::query("select sojourn_roll_months()").execute(&mut tx).await?;
        tx.commit().await?;
        for old in [
            "delete from delivery_default where created_at < date_trunc('month', now() - interval '30 days')",
            "delete from delivery_attempt_default where at < date_trunc('month', now() - interval '30 days')",
        ] {
            sqlx::query(old).execute(&self.system).await?;
        }
        Ok(())
    }
}
