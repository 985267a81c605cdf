//! Outbox: the dispatcher claims due deliveries here and records their results.
//!
//! The statement that appends the event inserts the rows. A claim moves `ready_at` beyond the
//! longest attempt, so a dispatcher that dies loses nothing.

use std::{slice, time::Duration};

use serde_json::json;
use sqlx::{FromRow, Row, postgres::PgRow};
use uuid::Uuid;

use crate::store::{
    Error, Result, Store,
    audit::{self, Act},
    connection::Connection,
    notice,
    org::unwrap,
    parameter::named,
};
use crate::{
    base::{Id, Origin, Timestamp, limit},
    domain::{Actor, DeliveryId, DestinationId, EventId, Notice, OrgId, SessionId, WebhookId},
};

/// A delivery claimed for an attempt.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub org: OrgId,
    pub delivery: DeliveryId,
    /// The session of the event; none for a notice about the organization.
    pub session: Option<SessionId>,
    pub destination: DestinationId,
    pub event: EventId,
    /// The event's `seq` in the session's log; none when `notice` is the payload.
    pub event_seq: Option<i64>,
    pub kind: Option<String>,
    pub notice: Option<String>,
    /// Number of this attempt, from 1.
    pub attempt: i32,
    pub url: String,
    pub include_raw: bool,
    /// Whether the destination still accepts deliveries.
    pub is_wanted: bool,
    /// The session's metadata as JSON.
    pub metadata: Option<String>,
    created_at: Timestamp,
    /// Time of the claim, by the clock of the database.
    claimed_at: Timestamp,
    wrapped_key: Vec<u8>,
    sealed_secret: Vec<u8>,
    sealed_secret_before: Option<Vec<u8>>,
}

/// Result of a claim.
#[derive(Debug, Default)]
pub struct Claim {
    pub deliveries: Vec<Claimed>,
    /// Destination after which the next claim looks for more; none if this one has seen them all.
    pub next: Option<DestinationId>,
}

/// Remaining capacity, so that a slow receiver does not delay deliveries to others.
#[derive(Clone, Debug, Default)]
pub struct Capacity {
    /// Number of deliveries that may be claimed.
    pub free: i64,
    /// Deliveries in progress, by destination and by organization.
    pub destinations: (Vec<Uuid>, Vec<i32>),
    pub orgs: (Vec<Uuid>, Vec<i32>),
    /// Destinations and organizations at their maximum.
    pub full_destinations: Vec<Uuid>,
    pub full_orgs: Vec<Uuid>,
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub status: Status,
    pub response_code: Option<u16>,
    pub error: Option<String>,
    /// Duration of the attempt; none when no attempt was made.
    pub duration: Option<Duration>,
}

/// Next state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Delivered,
    /// Attempted again after this time, by the clock of the database.
    Failed {
        retry_after: Duration,
    },
    /// Nothing was sent, because the service could not read the event: no attempt, claimed again after this time.
    Postponed {
        retry_after: Duration,
    },
    DeadLetter,
    /// The receiver answered 410: its destination is disabled as well.
    Gone,
}

/// A claimed delivery, or an answer without one.
struct ClaimRow {
    next: Option<Uuid>,
    claimed: Option<ClaimedRow>,
}

impl<'r> FromRow<'r, PgRow> for ClaimRow {
    fn from_row(row: &'r PgRow) -> sqlx::Result<Self> {
        let delivery: Option<Uuid> = row.try_get("delivery_id")?;
        let claimed = delivery.map(|_| ClaimedRow::from_row(row)).transpose()?;
        Ok(Self { next: row.try_get("next")?, claimed })
    }
}

#[derive(FromRow)]
struct ClaimedRow {
    org_id: Uuid,
    delivery_id: Uuid,
    created_at: Timestamp,
    session_id: Option<Uuid>,
    destination_id: Uuid,
    event_id: Uuid,
    event_seq: Option<i64>,
    r#type: Option<String>,
    notice: Option<String>,
    attempts: i32,
    last_attempt_at: Timestamp,
    url: String,
    include_raw: bool,
    is_wanted: bool,
    metadata: Option<String>,
    wrapped_key: Vec<u8>,
    sealed_secret: Vec<u8>,
    sealed_secret_before: Option<Vec<u8>>,
}

impl From<ClaimedRow> for Claimed {
    fn from(row: ClaimedRow) -> Self {
        Self {
            org: Id::from_uuid(row.org_id),
            delivery: Id::from_uuid(row.delivery_id),
            session: row.session_id.map(Id::from_uuid),
            destination: Id::from_uuid(row.destination_id),
            event: Id::from_uuid(row.event_id),
            event_seq: row.event_seq,
            kind: row.r#type,
            notice: row.notice,
            attempt: row.attempts,
            url: row.url,
            include_raw: row.include_raw,
            is_wanted: row.is_wanted,
            metadata: row.metadata,
            created_at: row.created_at,
            claimed_at: row.last_attempt_at,
            wrapped_key: row.wrapped_key,
            sealed_secret: row.sealed_secret,
            sealed_secret_before: row.sealed_secret_before,
        }
    }
}

/// The limits are literals in `sojourn_due_deliveries`, and here.
const _: () = assert!(limit::WEBHOOK_CLAIM_ROWS == 1_024, "the literal limit in the function must match");
const _: () = assert!(limit::WEBHOOK_CLAIM_LOOKS == 256, "the literal limit in the statement must match");
/// As is the number of shards.
const _: () = assert!(limit::DELIVERY_SHARDS == 64, "the literal number in the statement must match");

/// Reads more rows than it claims, because the oldest may all have one destination. If these are not all that are due, it
/// also looks for other destinations that have some, so that the rows of one that is behind are not read to find those of
/// others. A row is matched by all leading columns of its indexes, so any of them finds it directly. Limits keep the
/// planner from joins that read all deliveries or all sessions instead of the due ones. `coalesce` keeps it from the index
/// `delivery_ready`: that index is empty whenever statistics are collected while no delivery is late, and the plan would
/// then search all due deliveries for each one.
const CLAIM: &str = "
with found as materialized (
    select *
    from sojourn_due_deliveries(
        now(), $shards, $shard_grace_ms * interval '1 millisecond', $after, $per_destination_max
    )
), due as (
    select distinct org_id, delivery_id, created_at, destination_id, ready_at
    from found
    where destination_id <> all ($full_destinations::uuid[])
      and org_id <> all ($full_orgs::uuid[])
      and (place = 0
           or ready_at <= now() - $shard_grace_ms * interval '1 millisecond'
           or (ready_at <= now() and get_byte(uuid_send(org_id), 15) % 64 = any ($shards::integer[])))
), of_destination as (
    select due.*,
           row_number() over (partition by due.destination_id order by due.ready_at) + coalesce(d.held, 0) as place
    from due
    left join unnest($destinations::uuid[], $destinations_held::integer[]) as d (destination_id, held) using (destination_id)
), of_org as (
    -- Of those that their destinations may have, or one that is behind would keep the others from theirs.
    select f.org_id, f.delivery_id, f.created_at, f.destination_id, f.ready_at,
           row_number() over (partition by f.org_id order by f.ready_at) + coalesce(t.held, 0) as place
    from of_destination f
    left join unnest($orgs::uuid[], $orgs_held::integer[]) as t (org_id, held) using (org_id)
    where f.place <= $per_destination_max
), taken as (
    -- Only these are locked; one that another dispatcher took meanwhile is due no more.
    select v.*
    from (
        select * from of_org where place <= $per_org_max order by ready_at
    ) r
    cross join lateral (
        select v.org_id, v.delivery_id, v.created_at, v.destination_id
        from delivery v
        where v.org_id = r.org_id and v.delivery_id = r.delivery_id and v.created_at = r.created_at
          and v.destination_id = r.destination_id
          and coalesce(v.ready_at <= now(), false)
        limit 1
        for update skip locked
    ) v
    limit $rows_max
), held as (
    update delivery v
    set status = 'delivering', attempts = v.attempts + 1, ready_at = now() + $hold_seconds * interval '1 second',
        last_attempt_at = now(), updated_at = now()
    from taken
    where v.org_id = taken.org_id
      and v.delivery_id = taken.delivery_id
      and v.created_at = taken.created_at
      and v.destination_id = taken.destination_id
    returning v.*
), claimed as (
select h.org_id, h.delivery_id, h.created_at, h.session_id, h.destination_id, h.event_id, h.event_seq, h.type,
       h.notice::text, h.attempts, h.last_attempt_at, d.url, d.include_raw,
       d.enabled and d.deleted_at is null and (h.event_seq is null or s.session_id is not null) as is_wanted,
       s.metadata::text, t.data_key as wrapped_key, d.sealed_secret,
       case when d.secret_before_until > now() then d.sealed_secret_before end as sealed_secret_before
from held h
join org t using (org_id)
join destination d using (org_id, destination_id)
left join lateral (
    select session_id, metadata from session s where s.org_id = h.org_id and s.session_id = h.session_id limit 1
) s on true
)
select (select destination_id from found where place = 256 order by destination_id desc limit 1) as next, claimed.*
from (select) one
left join claimed on true";

impl Store {
    /// Claims due deliveries of the organizations in these shards, and of all those that are overdue by
    /// `DELIVERY_SHARD_GRACE`; the longest waiting first, by `delivery_ready`.
    ///
    /// Passes over what became due within that time in other shards, so its cost does not grow with their
    /// backlog.
    ///
    /// If more are due than one claim reads, it also looks at the next destinations after `after`.
    ///
    /// Also claims deliveries whose destination was disabled or whose session was deleted meanwhile, and gives them the
    /// status `dead_letter`.
    pub async fn claim_deliveries(
        &self,
        capacity: &Capacity,
        shards: &[i32],
        after: Option<DestinationId>,
    ) -> Result<Claim> {
        let query = named!(query_as(CLAIM), {
            rows_max: capacity.free,
            hold_seconds: limit::WEBHOOK_CLAIM_TTL.as_secs_f64(),
            full_destinations: &capacity.full_destinations,
            full_orgs: &capacity.full_orgs,
            shards: shards,
            shard_grace_ms: limit::DELIVERY_SHARD_GRACE.as_secs_f64() * 1_000.0,
            destinations: &capacity.destinations.0,
            destinations_held: &capacity.destinations.1,
            orgs: &capacity.orgs.0,
            orgs_held: &capacity.orgs.1,
            per_destination_max: limit::WEBHOOKS_PER_DESTINATION_MAX,
            per_org_max: limit::WEBHOOKS_PER_ORG_MAX,
            after: after.map_or(Uuid::nil(), Id::uuid),
        });
        let rows: Vec<ClaimRow> = query.fetch_all(&self.system).await?;
        let next = rows.first().and_then(|row| row.next).map(Id::from_uuid);
        Ok(Claim {
            deliveries: rows.into_iter().filter_map(|row| row.claimed).map(Into::into).collect(),
            next,
        })
    }

    /// Decrypts the destination's secrets: one, or two during a rotation.
    pub fn secrets(&self, claimed: &Claimed) -> Result<Vec<String>> {
        let key = unwrap(&self.master, &claimed.wrapped_key, claimed.org)?;
        let context = crate::store::destination::context(claimed.org, claimed.destination);
        let open = |sealed: &Vec<u8>| {
            let plain = key.open(sealed, &context).map_err(|error| Error::Corrupt(error.to_string()))?;
            String::from_utf8(plain.to_vec()).map_err(|error| Error::Corrupt(error.to_string()))
        };
        [Some(&claimed.sealed_secret), claimed.sealed_secret_before.as_ref()]
            .into_iter()
            .flatten()
            .map(open)
            .collect()
    }

    /// Records the result of an attempt and updates its destination.
    ///
    /// A destination that has failed for `WEBHOOK_DISABLE_AFTER` is disabled, and its organization
    /// is notified.
    pub async fn settle_delivery(&self, claimed: &Claimed, settled: &Settled, origin: &Origin) -> Result<()> {
        if settled.status == Status::Delivered {
            // In most cases there is no second write. A crash between the two leaves the
            // destination marked as failing until its next successful delivery.
            let mut connection = self.system.acquire().await?;
            if write(&mut connection, claimed, settled).await? == Some(true) {
                update_destination_state(&mut connection, claimed, settled).await?;
            }
            return Ok(());
        }
        let mut tx = self.system.begin().await?;
        let is_written = write(&mut tx, claimed, settled).await?.is_some();
        if is_written
            && settled.duration.is_some()
            && let Some((session, reason)) = update_destination_state(&mut tx, claimed, settled).await?
        {
            let id = match session {
                Some(_) => claimed.destination.to_string(),
                None => WebhookId::from_uuid(claimed.destination.uuid()).to_string(),
            };
            let session = session.map(Id::from_uuid);
            let act = Act {
                id: origin.id(),
                actor: &Actor::system(),
                action: "webhook.disabled",
                target: Some(id.clone()),
                details: json!({ "reason": reason }),
            };
            audit::record_acts(&mut tx, claimed.org, slice::from_ref(&act)).await?;
            let notice = Notice::disabled(id, session, &reason, origin);
            notice::tell(&mut tx, claimed.org, slice::from_ref(&notice), Some(claimed.destination)).await?;
        }
        Ok(tx.commit().await?)
    }
}

/// Writes the result to the delivery and its attempt log.
///
/// Returns whether the destination is marked as failing; `None` when another process has written or claimed it, also
/// after a redelivery, which counts its attempts anew.
async fn write(tx: &mut Connection, claimed: &Claimed, settled: &Settled) -> Result<Option<bool>> {
    let (status, retry_seconds) = match settled.status {
        Status::Delivered => ("delivered", None),
        Status::Failed { retry_after } | Status::Postponed { retry_after } => {
            ("failed", Some(retry_after.as_secs_f64()))
        }
        Status::DeadLetter | Status::Gone => ("dead_letter", None),
    };
    let millis = settled.duration.map(|took| i32::try_from(took.as_millis()).unwrap_or(i32::MAX));
    let query = named!(
        query_as(
            "with settled as (
                update delivery
                set status = $status, attempts = attempts - $uncounted, ready_at = now() + $retry_seconds * interval '1 second',
                    response_code = $response_code, error = $error, updated_at = now()
                where org_id = $org_id and delivery_id = $delivery_id and created_at = $created_at
                  and destination_id = $destination_id and status = 'delivering' and attempts = $attempt
                  and last_attempt_at = $claimed_at
                returning org_id, delivery_id, session_id, attempts
             ), logged as (
                insert into delivery_attempt (
                    org_id, delivery_id, session_id, number, response_code, error, duration_ms
                )
                select org_id, delivery_id, session_id, attempts, $response_code, $error, $duration_ms
                from settled
                where $duration_ms is not null
             )
             select exists (
                 select from destination
                 where org_id = $org_id and destination_id = $destination_id and failing_since is not null
             )
             from settled"
        ),
        {
            org_id: claimed.org.uuid(),
            delivery_id: claimed.delivery.uuid(),
            created_at: claimed.created_at,
            status: status,
            // Nothing was sent.
            uncounted: i32::from(
                matches!(settled.status, Status::Postponed { .. })
                    || claimed.attempt.unsigned_abs() as usize > limit::WEBHOOK_RETRY_SECONDS.len(),
            ),
            retry_seconds: retry_seconds,
            response_code: settled.response_code.map(|code| i16::try_from(code).unwrap_or(i16::MAX)),
            error: &settled.error,
            attempt: claimed.attempt,
            claimed_at: claimed.claimed_at,
            duration_ms: millis,
            destination_id: claimed.destination.uuid(),
        }
    );
    let written: Option<(bool,)> = query.fetch_optional(tx).await?;
    Ok(written.map(|(is_failing,)| is_failing))
}

/// Updates the destination if this attempt changes its state.
///
/// Returns its session and the reason when it was disabled now. Most attempts change nothing, so a
/// busy receiver's row is not written with every delivery.
async fn update_destination_state(
    tx: &mut Connection,
    claimed: &Claimed,
    settled: &Settled,
) -> Result<Option<(Option<Uuid>, String)>> {
    let is_success = settled.status == Status::Delivered;
    let row: Option<(Option<Uuid>, Option<String>)> = sqlx::query_as(
        "with verdict as (
            select org_id, destination_id,
                   case
                       when not enabled or $3 then null
                       when $4 then 'gone'
                       when failing_since <= now() - $5 * interval '1 second' then 'failing'
                   end as reason
            from destination
            where org_id = $1
              and destination_id = $2
              and (case when $3 then failing_since is not null else failing_since is null end
                   or (enabled and not $3 and ($4 or failing_since <= now() - $5 * interval '1 second')))
            for no key update
         )
         update destination d
         set failing_since = case when $3 then null else coalesce(d.failing_since, now()) end,
             enabled = d.enabled and v.reason is null,
             disabled_reason = coalesce(v.reason, d.disabled_reason),
             updated_at = now()
         from verdict v
         where d.org_id = v.org_id and d.destination_id = v.destination_id
         returning d.session_id, v.reason",
    )
    .bind(claimed.org.uuid())
    .bind(claimed.destination.uuid())
    .bind(is_success)
    .bind(settled.status == Status::Gone)
    .bind(limit::WEBHOOK_DISABLE_AFTER.as_secs_f64())
    .fetch_optional(tx)
    .await?;
    Ok(row.and_then(|(session, reason)| reason.map(|reason| (session, reason))))
}
