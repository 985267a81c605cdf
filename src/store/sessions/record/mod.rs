//! Fenced append: everything that a leased turn writes, in one statement.
//!
//! It advances the session's `head` only if the epoch still matches, so a worker that lost its
//! lease changes nothing. It changes only columns that the turn owns, and only by differences,
//! because a caller may change the row between two records. `together` does the same for several
//! sessions in one commit; `plain` is for events that change only the log.

mod batch;
mod log_only;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store,
    column::{count, storable, word},
    event::{Columns, Packed, appended, outbox},
    session::snapshot,
    usage::ledger,
};
use crate::{
    base::{Id, Timestamp},
    domain::{OrgId, SessionId, TurnId, delta::Delta},
};

/// Permission to write for a session, valid until another worker takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    pub org: OrgId,
    pub session: SessionId,
    pub epoch: i64,
    /// The process that holds the job.
    pub worker: Uuid,
}

/// Start of a statement that writes other tables under a fence.
///
/// Selects session $2 of organization $1 if its epoch is still $3.
macro_rules! held {
    () => {
        "with held as (
    select session_id
    from session
    where org_id = $1 and session_id = $2 and epoch = $3 and status <> 'archived'
    for share
)"
    };
}
pub(in crate::store) use held;

/// Events to append under one lease.
#[derive(Clone, Debug)]
pub struct Record {
    pub fence: Fence,
    /// `None` for events of the session alone.
    pub turn: Option<TurnId>,
    pub ts: Timestamp,
    pub events: Vec<Packed>,
}

impl Record {
    fn delta(&self) -> Delta {
        Delta::of(self.events.iter().map(|event| &event.draft))
    }
}

/// Result of a fenced append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The events follow the `seq` of `base`.
    After {
        base: i64,
        /// Whether some of them created deliveries.
        has_deliveries: bool,
    },
    /// Another worker has a newer epoch: stop.
    Stale,
    /// The epoch holds, but the row is not in the state that the events assume.
    ///
    /// Either input arrived before the start, so the input window must be read again. Or the turn
    /// has ended, and this statement was abandoned before that and executed late.
    Moved,
}

#[derive(FromRow)]
struct Row {
    base: Option<i64>,
    held: bool,
    has_deliveries: bool,
}

impl Row {
    fn recorded(&self) -> Recorded {
        match (self.base, self.held) {
            (Some(base), _) => Recorded::After { base, has_deliveries: self.has_deliveries },
            (None, true) => Recorded::Moved,
            (None, false) => Recorded::Stale,
        }
    }
}

impl Store {
    /// Appends the events of one turn and applies their changes, if the fence holds.
    ///
    /// At the end of the turn the same statement removes the job, or makes it ready again when more
    /// input waits, so no wake is lost. Without a turn the events belong to the session alone, for
    /// example events of its sandbox.
    pub async fn record(&self, record: &Record) -> Result<Recorded> {
        let Record { fence, turn, ts, events } = record;
        let delta = record.delta();
        if delta.is_none() {
            return self.record_plain(record).await;
        }
        let columns = Columns::of(events);
        let end = delta.end.as_ref();
        let query = sqlx::query_as(RECORD)
            .bind(fence.org.uuid())
            .bind(fence.session.uuid())
            .bind(fence.epoch)
            .bind(fence.worker)
            .bind(turn.map(Id::uuid))
            .bind(ts);
        let row: Row = columns
            .bound(query)
            .bind(delta.start.map(|start| start.attempt))
            .bind(delta.start.map(|start| start.input_to_seq))
            .bind(end.map(|end| word(&end.idle_status())))
            .bind(end.map(|end| word(&end.yield_reason.state())))
            .bind(end.map(|end| word(&end.yield_reason)))
            .bind(end.and_then(|end| end.result_event_id).map(Id::uuid))
            .bind(end.and_then(|end| end.error.as_ref()).map(|error| storable(&error.code)))
            .bind(end.and_then(|end| end.error.as_ref()).map(|error| storable(&error.message)))
            .bind(end.map(|end| count(end.active_seconds)))
            .bind(count(delta.usage.input_tokens))
            .bind(count(delta.usage.output_tokens))
            .bind(count(delta.usage.cache_write_tokens))
            .bind(count(delta.usage.cache_read_tokens))
            .bind(count(delta.usage.steps))
            .bind(count(delta.usage.tool_calls))
            .bind(count(delta.usage.cost.model_micros))
            .bind(count(delta.usage.cost.sandbox_cpu_micros))
            .bind(count(delta.usage.cost.sandbox_memory_micros))
            .bind(count(delta.usage.cost.fee_micros))
            .bind(count(delta.usage.cost.unpriced_steps))
            .bind(!delta.usage.is_none())
            .bind(delta.model)
            .bind(delta.settles)
            .bind(count(delta.exec_ms))
            .bind(delta.fails)
            .fetch_one(&self.append)
            .await
            .map_err(Error::from)?;
        Ok(row.recorded())
    }
}

/// $1 organization, $2 session, $3 epoch, $4 worker, $5 turn or null, $6 time, $7-$16 events, $17
/// attempt and $18 window of a start, $19-$25 an end, $26-$36 usage, $37 whether there is any
/// usage, $38 the model that answered, $39 whether a call has ended, $40 run time of callers'
/// commands, $41 whether an idle session fails.
const RECORD: &str = concat!(
    "
with s as (
    update session
    set head = head + cardinality($7::uuid[]),
        updated_at = $6,
        status = case
            when $17::integer is not null then 'running'
            when $41 and status = 'idle' then 'failed'
            when $19::text is null then status
            when running_turn_id = $5 and queued_turn_id is not null then 'queued'
            else $19
        end,
        input_cursor = case
            when $17 = 1 then $18::bigint
            when $19 is not null and queued_turn_id = $5 then input_head
            else input_cursor
        end,
        turns = turns + case when $17 = 1 then 1 else 0 end,
        running_turn_id = case
            when $17 is not null then $5
            when $19 is not null and running_turn_id = $5 then null
            else running_turn_id
        end,
        queued_turn_id = case
            when ($17 = 1 or $19 is not null) and queued_turn_id = $5 then null
            else queued_turn_id
        end,
        cancel_turn_id = case when $19 is not null and cancel_turn_id = $5 then null else cancel_turn_id end,
        ended_turn_id = case when $19 is not null then $5 else ended_turn_id end,
        input_tokens = input_tokens + $26,
        output_tokens = output_tokens + $27,
        cache_write_tokens = cache_write_tokens + $28,
        cache_read_tokens = cache_read_tokens + $29,
        steps = steps + $30,
        tool_calls = tool_calls + $31,
        model_micros = model_micros + $32,
        sandbox_cpu_micros = sandbox_cpu_micros + $33,
        sandbox_memory_micros = sandbox_memory_micros + $34,
        fee_micros = fee_micros + $35,
        unpriced_steps = unpriced_steps + $36,
        active_seconds = active_seconds + coalesce($25, 0),
        exec_ms = exec_ms + $40,
        listed_in = case when $17 is not null or $19 is not null or $41 then pg_current_xact_id() else listed_in end
    where org_id = $1
      and session_id = $2
      and epoch = $3
      and status <> 'archived'
      and ($17 is null
           or ($17 = 1 and queued_turn_id = $5 and running_turn_id is null and input_head = $18)
           or ($17 > 1 and running_turn_id = $5))
      -- Nothing is written for a turn that is over, by whoever comes late.
      and ($5::uuid is null or running_turn_id = $5 or (queued_turn_id = $5 and running_turn_id is null))
    returning org_id, session_id, updated_at as ts, head - cardinality($7::uuid[]) as base,
              queued_turn_id is not null as more, agent_id,
              case when $37 then coalesce($38, ",
    snapshot!("session"),
    " ->> 'model', '') end as model
), appended as (
    ",
    appended!(
        "cross join unnest($7::uuid[], $8::text[], $9::smallint[], $10::text[], $11::uuid[], $12::uuid[], $13::text[],
                      $14::text[], $15::text[], $16::integer[]) with ordinality
        as e (event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes, place)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
), folded as (
    update turn t
    set state = case when $17 is not null then 'running' else coalesce($20, t.state) end,
        attempt = coalesce($17, t.attempt),
        started_at = case when $17 = 1 then $6 else t.started_at end,
        completed_at = case when $19 is not null then $6 else t.completed_at end,
        yield_reason = coalesce($21, t.yield_reason),
        result_event_id = coalesce($22, t.result_event_id),
        error_code = coalesce($23, t.error_code),
        error_message = coalesce($24, t.error_message),
        active_seconds = coalesce($25, t.active_seconds),
        input_tokens = t.input_tokens + $26,
        output_tokens = t.output_tokens + $27,
        cache_write_tokens = t.cache_write_tokens + $28,
        cache_read_tokens = t.cache_read_tokens + $29,
        steps = t.steps + $30,
        tool_calls = t.tool_calls + $31,
        model_micros = t.model_micros + $32,
        sandbox_cpu_micros = t.sandbox_cpu_micros + $33,
        sandbox_memory_micros = t.sandbox_memory_micros + $34,
        fee_micros = t.fee_micros + $35,
        unpriced_steps = t.unpriced_steps + $36
    from s
    where t.org_id = $1
      and t.session_id = $2
      and t.turn_id = $5
      and ($17 is not null or $19 is not null or $37)
), ",
    ledger!(
        "select $1 as org_id, $2 as session_id, $6 as ts, s.agent_id, s.model,
           $26 as input_tokens, $27 as output_tokens, $28 as cache_write_tokens, $29 as cache_read_tokens,
           $30 as steps, $31 as tool_calls, $32 as model_micros, $33 as sandbox_cpu_micros,
           $34 as sandbox_memory_micros, $35 as fee_micros, $36 as unpriced_steps
    from s
    where s.model is not null",
        "select $1 as org_id, $2 as session_id from s where $39"
    ),
    ", done as (
    delete from job j
    using s
    where $19 is not null
      and not s.more
      and j.org_id = $1
      and j.session_id = $2
      and j.kind = 'turn'
      and j.worker_id = $4
), again as (
    update job j
    set worker_id = null, ready_at = now(), takeovers = 0
    from s
    where $19 is not null
      and s.more
      and j.org_id = $1
      and j.session_id = $2
      and j.kind = 'turn'
      and j.worker_id = $4
)
select (select base from s) as base,
       exists (select from session where org_id = $1 and session_id = $2 and epoch = $3 and status <> 'archived')
           as held,
       exists (select from outbox) as has_deliveries"
);
