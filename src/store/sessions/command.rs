//! Write-back of a caller's command in one statement.
//!
//! Writes the session's row, its queued turn, the events, their deliveries and the job.

use uuid::Uuid;

use super::creation::name_of;
use crate::store::{
    Result, Tx,
    column::{count, json, word},
    event::{Columns, Packed, appended, outbox},
    job::{DueTurn, DueTurnRow, due_turn, turn_due},
    parameter::named,
    record::next_epoch,
};
use crate::{
    base::Id,
    domain::{Session, Turn, session::AgentSnapshot},
};

/// A locked session after `apply`, with the new events.
pub struct Change<'a> {
    pub session: &'a Session,
    /// Turns that ended by the command, or had ended and are queued again.
    pub turns: &'a [Turn],
    /// The `seq` that the events follow.
    pub base: i64,
    pub events: &'a [Packed],
    /// The pinned agent, if it changed.
    pub agent_snapshot: Option<&'a AgentSnapshot>,
    /// A worker must process the session.
    pub is_due: bool,
}

/// Effects of the write-back beside the session.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Whether some of the events created deliveries.
    pub has_deliveries: bool,
    /// Whom the due turn concerns.
    pub due: DueTurn,
}

#[derive(sqlx::FromRow)]
struct WrittenRow {
    has_deliveries: bool,
    #[sqlx(flatten)]
    due: DueTurnRow,
}

impl Tx {
    /// Writes a locked session back.
    ///
    /// Raises the epoch when the session was archived, so that its worker's next write is refused.
    pub async fn write_back(&mut self, change: &Change<'_>) -> Result<Written> {
        let session = change.session;
        let (turn, stopped) = (session.queued.as_ref(), session.stopped.as_ref());
        let snapshot = change.agent_snapshot.map(json);
        let query = named!(
            query_as(WRITE_BACK),
            {
                org_id: self.org.uuid(),
                session_id: session.id.uuid(),
                title: &session.created.title,
                metadata: json(&session.created.metadata),
                limits: json(&session.created.limits),
                status: word(&session.status),
                head: session.head,
                input_head: session.input_head,
                input_cursor: session.input_cursor,
                action_head: session.action_head,
                steer_head: session.steer_head,
                agent_head: session.agent_head,
                waits_for: (!session.waits_for.is_empty()).then(|| waits_for(session)),
                snapshot_id: snapshot.as_deref().map(name_of),
                snapshot: &snapshot,
                running_turn_id: session.running.as_ref().map(|turn| turn.id.uuid()),
                queued_turn_id: turn.map(|turn| turn.id.uuid()),
                cancel_turn_id: session.cancel_turn_id.map(Id::uuid),
                ended_turn_id: session.ended.as_ref().map(|turn| turn.id.uuid()),
                turns: session.turns,
                updated_at: session.updated_at,
                active_seconds: count(session.active_seconds),
                stopped_by: stopped.map(|stopped| json(&stopped.by)),
                stopped_at: stopped.map(|stopped| stopped.at),
                stop_reason: stopped.and_then(|stopped| stopped.reason.as_deref()),
                hold: session.hold.as_ref().map(word),
                context: (!session.context.is_empty()).then(|| json(&session.context)),
                slug: &session.created.slug,
                state: turn.map(|turn| word(&turn.state)),
                attempt: turn.map(|turn| turn.attempt),
                input_from_seq: turn.map(|turn| turn.input_from_seq),
                input_to_seq: turn.map(|turn| turn.input_to_seq),
                base: change.base,
                is_due: change.is_due,
            },
            Columns = Columns::of(change.events)
        );
        let written: WrittenRow = query.fetch_one(self.connection()).await?;
        for turn in change.turns {
            self.put_turn(session.id, turn).await?;
        }
        Ok(Written { has_deliveries: written.has_deliveries, due: written.due.into() })
    }
}

fn waits_for(session: &Session) -> Vec<Uuid> {
    session.waits_for.iter().map(|id| id.uuid()).collect()
}

const WRITE_BACK: &str = concat!(
    "
with queued as (
    insert into turn (org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq)
    select $org_id, $session_id, $queued_turn_id, $state, $attempt, $input_from_seq, $input_to_seq
    where $queued_turn_id::uuid is not null
    on conflict (org_id, session_id, turn_id) do update set input_to_seq = excluded.input_to_seq
), pinned as (
    insert into agent_snapshot (org_id, snapshot_id, content)
    select $org_id, $snapshot_id, $snapshot::json
    where $snapshot::text is not null
    on conflict do nothing
), s as (
    update session
    set title = $title, metadata = $metadata::json, limits = $limits::json, status = $status, head = $head,
        input_head = $input_head, input_cursor = $input_cursor, action_head = $action_head,
        steer_head = $steer_head, agent_head = $agent_head, waits_for = $waits_for, snapshot_id = coalesce($snapshot_id, snapshot_id),
        running_turn_id = $running_turn_id,
        queued_turn_id = $queued_turn_id, cancel_turn_id = $cancel_turn_id,
        ended_turn_id = $ended_turn_id, turns = $turns, updated_at = $updated_at,
        active_seconds = $active_seconds, stopped_by = $stopped_by::json, stopped_at = $stopped_at,
        stop_reason = $stop_reason, hold = $hold, context = $context::json, slug = $slug,
        listed_in = pg_current_xact_id(),
        closed_epoch = case when $status = 'archived' then epoch end,
        epoch = case when $status = 'archived' then ",
    next_epoch!("session"),
    " else epoch end
    where org_id = $org_id and session_id = $session_id
    returning org_id, session_id, updated_at as ts, $base::bigint as base
), appended as (
    ",
    appended!(of_session),
    "
), outbox as (
    ",
    outbox!(),
    "
), job_of_turn as (
    ",
    turn_due!("$is_due"),
    "
)
select exists (select from outbox) as has_deliveries, ",
    due_turn!()
);
