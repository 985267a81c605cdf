//! Write-back of a caller's command in one statement.
//!
//! Writes the session's row, its queued turn, the events, their deliveries and the job.

use crate::store::{
    Result, Tx,
    column::{count, json, word},
    event::{Columns, Packed, appended, outbox},
    job::{turn_due, turn_held},
};
use crate::{
    base::Id,
    domain::{Session, Turn},
};

/// A locked session after `apply`, with the new events.
pub struct Change<'a> {
    pub session: &'a Session,
    /// Turns that ended by the command.
    pub ended: &'a [Turn],
    /// The `seq` that the events follow.
    pub base: i64,
    pub events: &'a [Packed],
    /// A worker must process the session.
    pub is_due: bool,
}

/// Effects of the write-back beside the session.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct Written {
    /// Whether some of the events created deliveries.
    pub has_deliveries: bool,
    /// Whether another job holds the session; its holder must be notified of the due turn.
    pub is_held: bool,
}

impl Tx {
    /// Writes a locked session back.
    ///
    /// Raises the epoch when the session was archived, so that its worker's next write is refused.
    pub async fn write_back(&mut self, change: &Change<'_>) -> Result<Written> {
        let org = self.org.uuid();
        let session = change.session;
        let (turn, stopped) = (session.queued.as_ref(), session.stopped.as_ref());
        let query = sqlx::query_as(WRITE_BACK)
            .bind(org)
            .bind(session.id.uuid())
            .bind(&session.created.title)
            .bind(json(&session.created.metadata))
            .bind(json(&session.created.limits))
            .bind(word(&session.status))
            .bind(session.head)
            .bind(session.input_head)
            .bind(session.input_cursor)
            .bind(session.running.as_ref().map(|turn| turn.id.uuid()))
            .bind(turn.map(|turn| turn.id.uuid()))
            .bind(session.cancel_turn_id.map(Id::uuid))
            .bind(session.ended.as_ref().map(|turn| turn.id.uuid()))
            .bind(session.turns)
            .bind(session.updated_at)
            .bind(count(session.active_seconds))
            .bind(stopped.map(|stopped| json(&stopped.by)))
            .bind(stopped.map(|stopped| stopped.at))
            .bind(stopped.and_then(|stopped| stopped.reason.as_deref()))
            .bind(session.hold.as_ref().map(word))
            .bind((!session.context.is_empty()).then(|| json(&session.context)))
            .bind(&session.created.slug)
            .bind(turn.map(|turn| word(&turn.state)))
            .bind(turn.map(|turn| turn.attempt))
            .bind(turn.map(|turn| turn.input_from_seq))
            .bind(turn.map(|turn| turn.input_to_seq));
        let written = Columns::of(change.events)
            .bound(query)
            .bind(change.base)
            .bind(change.is_due)
            .fetch_one(self.connection())
            .await?;
        for turn in change.ended {
            self.put_turn(session.id, turn).await?;
        }
        Ok(written)
    }
}

/// $1 organization, $2 session, $3-$22 its row, $23-$26 the queued turn, $27-$36 events, $37 the
/// `seq` before them, $38 whether a turn is due.
const WRITE_BACK: &str = concat!(
    "
with queued as (
    insert into turn (org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq)
    select $1, $2, $11, $23, $24, $25, $26
    where $11::uuid is not null
    on conflict (org_id, session_id, turn_id) do update set input_to_seq = excluded.input_to_seq
), s as (
    update session
    set title = $3, metadata = $4::json, limits = $5::json, status = $6, head = $7, input_head = $8,
        input_cursor = $9, running_turn_id = $10, queued_turn_id = $11, cancel_turn_id = $12,
        ended_turn_id = coalesce($13, ended_turn_id), turns = $14, updated_at = $15, active_seconds = $16,
        stopped_by = $17::json, stopped_at = $18, listed_in = pg_current_xact_id(),
        stop_reason = $19, hold = $20, context = $21::json, slug = $22,
        closed_epoch = case when $6 = 'archived' then epoch end,
        epoch = epoch + case when $6 = 'archived' then 1 else 0 end
    where org_id = $1 and session_id = $2
    returning org_id, session_id, updated_at as ts, $37::bigint as base
), appended as (
    ",
    appended!(
        "cross join unnest($27::uuid[], $28::text[], $29::smallint[], $30::text[], $31::uuid[], $32::uuid[],
                      $33::text[], $34::text[], $35::text[], $36::integer[]) with ordinality
        as e (event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes, place)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
), job_of_turn as (
    ",
    turn_due!("$38"),
    "
)
select exists (select from outbox) as has_deliveries, $38 and ",
    turn_held!(),
    " as is_held"
);
