//! Fenced appends of several sessions in one commit.
//!
//! Each member is checked separately: a stale one changes nothing, the others are written. Rows are
//! locked in one order, sessions before sums before jobs, so two of these statements cannot
//! deadlock. A session that another transaction has locked is left out, so a slow caller delays
//! only its own turn.

use sqlx::FromRow;
use uuid::Uuid;

use super::{Record, Recorded, Row};
use crate::{
    base::{Id, Timestamp},
    domain::delta::Delta,
    store::{
        Result, Store,
        column::{count, storable, word},
        event::{Columns, appended, outbox},
        session::snapshot,
        usage::ledger,
    },
};

/// Parameters of the members, one vector for each column, for `unnest`.
#[derive(Default)]
struct Members {
    orgs: Vec<Uuid>,
    sessions: Vec<Uuid>,
    epochs: Vec<i64>,
    workers: Vec<Uuid>,
    turns: Vec<Option<Uuid>>,
    times: Vec<Timestamp>,
    events: Vec<i64>,
    attempts: Vec<Option<i32>>,
    windows: Vec<Option<i64>>,
    statuses: Vec<Option<String>>,
    states: Vec<Option<String>>,
    reasons: Vec<Option<String>>,
    results: Vec<Option<Uuid>>,
    codes: Vec<Option<String>>,
    messages: Vec<Option<String>>,
    seconds: Vec<Option<i64>>,
    exec_ms: Vec<i64>,
    fails: Vec<bool>,
    used: Used,
}

/// Usage of the members, one vector for each column.
#[derive(Default)]
struct Used {
    is_any: Vec<bool>,
    models: Vec<Option<String>>,
    settles: Vec<bool>,
    input_tokens: Vec<i64>,
    output_tokens: Vec<i64>,
    cache_write_tokens: Vec<i64>,
    cache_read_tokens: Vec<i64>,
    steps: Vec<i64>,
    tool_calls: Vec<i64>,
    model_micros: Vec<i64>,
    sandbox_cpu_micros: Vec<i64>,
    sandbox_memory_micros: Vec<i64>,
    fee_micros: Vec<i64>,
    unpriced_steps: Vec<i64>,
}

impl Used {
    fn push(&mut self, delta: &Delta) {
        let (usage, cost) = (&delta.usage, &delta.usage.cost);
        self.is_any.push(!usage.is_none());
        self.models.push(delta.model.clone());
        self.settles.push(delta.settles);
        self.input_tokens.push(count(usage.input_tokens));
        self.output_tokens.push(count(usage.output_tokens));
        self.cache_write_tokens.push(count(usage.cache_write_tokens));
        self.cache_read_tokens.push(count(usage.cache_read_tokens));
        self.steps.push(count(usage.steps));
        self.tool_calls.push(count(usage.tool_calls));
        self.model_micros.push(count(cost.model_micros));
        self.sandbox_cpu_micros.push(count(cost.sandbox_cpu_micros));
        self.sandbox_memory_micros.push(count(cost.sandbox_memory_micros));
        self.fee_micros.push(count(cost.fee_micros));
        self.unpriced_steps.push(count(cost.unpriced_steps));
    }
}

/// Result of one member.
#[derive(FromRow)]
pub(in crate::store) struct MemberRow {
    /// False when another transaction had locked the session's row.
    seen: bool,
    base: Option<i64>,
    held: bool,
    has_deliveries: bool,
}

impl MemberRow {
    fn recorded(self) -> Option<Recorded> {
        self.seen
            .then(|| Row { base: self.base, held: self.held, has_deliveries: self.has_deliveries }.recorded())
    }
}

impl Members {
    fn of(records: &[Record], deltas: &[Delta]) -> Self {
        let mut members = Self::default();
        records.iter().zip(deltas).for_each(|(record, delta)| members.push(record, delta));
        members
    }

    fn push(&mut self, record: &Record, delta: &Delta) {
        let end = delta.end.as_ref();
        let error = end.and_then(|end| end.error.as_ref());
        self.orgs.push(record.fence.org.uuid());
        self.sessions.push(record.fence.session.uuid());
        self.epochs.push(record.fence.epoch);
        self.workers.push(record.fence.worker);
        self.turns.push(record.turn.map(Id::uuid));
        self.times.push(record.ts);
        self.events.push(record.events.len() as i64);
        self.attempts.push(delta.start.map(|start| start.attempt));
        self.windows.push(delta.start.map(|start| start.input_to_seq));
        self.statuses.push(end.map(|end| word(&end.idle_status())));
        self.states.push(end.map(|end| word(&end.yield_reason.state())));
        self.reasons.push(end.map(|end| word(&end.yield_reason)));
        self.results.push(end.and_then(|end| end.result_event_id).map(Id::uuid));
        self.codes.push(error.map(|error| storable(&error.code)));
        self.messages.push(error.map(|error| storable(&error.message)));
        self.seconds.push(end.map(|end| count(end.active_seconds)));
        self.exec_ms.push(count(delta.exec_ms));
        self.fails.push(delta.fails);
        self.used.push(delta);
    }
}

impl Store {
    /// Writes the records of different sessions in one commit.
    ///
    /// Each is written as [`Store::record`] does. Returns `None` for a session whose row was
    /// locked. Write that record alone, which waits for the lock.
    ///
    /// # Errors
    /// Any error except `Unavailable` means that nothing was written: one member's text may be
    /// `Unstorable`, and all members fail with it.
    pub async fn record_batch(&self, records: &[Record]) -> Result<Vec<Option<Recorded>>> {
        let deltas: Vec<_> = records.iter().map(Record::delta).collect();
        let rows = match deltas.iter().all(Delta::is_none) {
            true => self.record_plain_batch(records).await?,
            false => self.record_deltas_batch(records, &deltas).await?,
        };
        Ok(rows.into_iter().map(MemberRow::recorded).collect())
    }

    async fn record_deltas_batch(&self, records: &[Record], deltas: &[Delta]) -> Result<Vec<MemberRow>> {
        let members = Members::of(records, deltas);
        let columns = Columns::of(records.iter().flat_map(|record| &record.events));
        let query = sqlx::query_as(TOGETHER)
            .bind(members.orgs)
            .bind(members.sessions)
            .bind(members.epochs)
            .bind(members.workers)
            .bind(members.turns)
            .bind(members.times)
            .bind(members.events)
            .bind(members.attempts)
            .bind(members.windows)
            .bind(members.statuses)
            .bind(members.states)
            .bind(members.reasons)
            .bind(members.results)
            .bind(members.codes)
            .bind(members.messages)
            .bind(members.seconds)
            .bind(members_of_events(records))
            .bind(places_of_events(records));
        let rows = columns
            .bound(query)
            .bind(members.used.is_any)
            .bind(members.used.models)
            .bind(members.used.settles)
            .bind(members.used.input_tokens)
            .bind(members.used.output_tokens)
            .bind(members.used.cache_write_tokens)
            .bind(members.used.cache_read_tokens)
            .bind(members.used.steps)
            .bind(members.used.tool_calls)
            .bind(members.used.model_micros)
            .bind(members.used.sandbox_cpu_micros)
            .bind(members.used.sandbox_memory_micros)
            .bind(members.used.fee_micros)
            .bind(members.used.unpriced_steps)
            .bind(members.exec_ms)
            .bind(members.fails)
            .fetch_all(&self.append)
            .await?;
        Ok(rows)
    }
}

/// Returns the member number of each event, from 1.
pub(in crate::store) fn members_of_events(records: &[Record]) -> Vec<i64> {
    let of = |(member, record): (i64, &Record)| std::iter::repeat_n(member, record.events.len());
    (1..).zip(records).flat_map(of).collect()
}

/// Returns the position of each event among those of its member, from 1.
pub(in crate::store) fn places_of_events(records: &[Record]) -> Vec<i64> {
    records.iter().flat_map(|record| 1..=record.events.len() as i64).collect()
}

/// $1-$16 the members, $17-$28 their events, $29-$42 the usage of the members, $43 run time of callers'
/// commands, $44 whether an idle session fails.
///
/// Locked rows are read in their current state, not in the statement's snapshot, so the conditions
/// of `fit` stay true until the commit.
const TOGETHER: &str = concat!(
    "
with m as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::uuid[], $6::timestamptz[], $7::bigint[],
                $8::integer[], $9::bigint[], $10::text[], $11::text[], $12::text[], $13::uuid[], $14::text[],
                $15::text[], $16::bigint[], $29::boolean[], $30::text[], $31::boolean[], $32::bigint[],
                $33::bigint[], $34::bigint[], $35::bigint[], $36::bigint[], $37::bigint[], $38::bigint[],
                $39::bigint[], $40::bigint[], $41::bigint[], $42::bigint[], $43::bigint[], $44::boolean[]) with ordinality
        as m (org_id, session_id, epoch, worker_id, turn_id, ts, events, attempt, window_to, status, state,
              yield_reason, result_event_id, error_code, error_message, active_seconds, uses, model, settles,
              input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, steps, tool_calls, model_micros,
              sandbox_cpu_micros, sandbox_memory_micros, fee_micros, unpriced_steps, exec_ms, fails, member)
), locked as (
    select s.org_id, s.session_id, s.epoch, s.status, s.running_turn_id, s.queued_turn_id, s.input_head
    from m
    join session s using (org_id, session_id)
    order by s.org_id, s.session_id
    for update of s skip locked
), fit as (
    select m.*
    from m
    join locked l using (org_id, session_id)
    where l.epoch = m.epoch
      and l.status <> 'archived'
      and (m.attempt is null
           or (m.attempt = 1 and l.queued_turn_id = m.turn_id and l.running_turn_id is null
               and l.input_head = m.window_to)
           or (m.attempt > 1 and l.running_turn_id = m.turn_id))
      -- Nothing is written for a turn that is over, by whoever comes late.
      and (m.turn_id is null or l.running_turn_id = m.turn_id or (l.queued_turn_id = m.turn_id and l.running_turn_id is null))
), s as (
    update session u
    set head = u.head + m.events,
        updated_at = m.ts,
        status = case
            when m.attempt is not null then 'running'
            when m.fails and u.status = 'idle' then 'failed'
            when m.status is null then u.status
            when u.running_turn_id = m.turn_id and u.queued_turn_id is not null then 'queued'
            else m.status
        end,
        input_cursor = case
            when m.attempt = 1 then m.window_to
            when m.status is not null and u.queued_turn_id = m.turn_id then u.input_head
            else u.input_cursor
        end,
        turns = u.turns + case when m.attempt = 1 then 1 else 0 end,
        running_turn_id = case
            when m.attempt is not null then m.turn_id
            when m.status is not null and u.running_turn_id = m.turn_id then null
            else u.running_turn_id
        end,
        queued_turn_id = case
            when (m.attempt = 1 or m.status is not null) and u.queued_turn_id = m.turn_id then null
            else u.queued_turn_id
        end,
        cancel_turn_id = case
            when m.status is not null and u.cancel_turn_id = m.turn_id then null
            else u.cancel_turn_id
        end,
        ended_turn_id = case when m.status is not null then m.turn_id else u.ended_turn_id end,
        input_tokens = u.input_tokens + m.input_tokens,
        output_tokens = u.output_tokens + m.output_tokens,
        cache_write_tokens = u.cache_write_tokens + m.cache_write_tokens,
        cache_read_tokens = u.cache_read_tokens + m.cache_read_tokens,
        steps = u.steps + m.steps,
        tool_calls = u.tool_calls + m.tool_calls,
        model_micros = u.model_micros + m.model_micros,
        sandbox_cpu_micros = u.sandbox_cpu_micros + m.sandbox_cpu_micros,
        sandbox_memory_micros = u.sandbox_memory_micros + m.sandbox_memory_micros,
        fee_micros = u.fee_micros + m.fee_micros,
        unpriced_steps = u.unpriced_steps + m.unpriced_steps,
        active_seconds = u.active_seconds + coalesce(m.active_seconds, 0),
        exec_ms = u.exec_ms + m.exec_ms,
        listed_in = case
            when m.attempt is not null or m.status is not null or m.fails then pg_current_xact_id()
            else u.listed_in
        end
    from fit m
    where u.org_id = m.org_id
      and u.session_id = m.session_id
    returning m.member, m.ts, m.worker_id, m.status is not null as ends, u.org_id, u.session_id,
              u.head - m.events as base, u.queued_turn_id is not null as more, u.agent_id,
              case when m.uses then coalesce(m.model, ",
    snapshot!("u"),
    " ->> 'model', '') end as model
), appended as (
    ",
    appended!(
        "join unnest($17::bigint[], $18::bigint[], $19::uuid[], $20::text[], $21::smallint[], $22::text[], $23::uuid[],
                $24::uuid[], $25::text[], $26::text[], $27::text[], $28::integer[])
        as e (member, place, event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes)
        using (member)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
), folded as (
    update turn t
    set state = case when m.attempt is not null then 'running' else coalesce(m.state, t.state) end,
        attempt = coalesce(m.attempt, t.attempt),
        started_at = case when m.attempt = 1 then m.ts else t.started_at end,
        completed_at = case when m.status is not null then m.ts else t.completed_at end,
        yield_reason = coalesce(m.yield_reason, t.yield_reason),
        result_event_id = coalesce(m.result_event_id, t.result_event_id),
        error_code = coalesce(m.error_code, t.error_code),
        error_message = coalesce(m.error_message, t.error_message),
        active_seconds = coalesce(m.active_seconds, t.active_seconds),
        input_tokens = t.input_tokens + m.input_tokens,
        output_tokens = t.output_tokens + m.output_tokens,
        cache_write_tokens = t.cache_write_tokens + m.cache_write_tokens,
        cache_read_tokens = t.cache_read_tokens + m.cache_read_tokens,
        steps = t.steps + m.steps,
        tool_calls = t.tool_calls + m.tool_calls,
        model_micros = t.model_micros + m.model_micros,
        sandbox_cpu_micros = t.sandbox_cpu_micros + m.sandbox_cpu_micros,
        sandbox_memory_micros = t.sandbox_memory_micros + m.sandbox_memory_micros,
        fee_micros = t.fee_micros + m.fee_micros,
        unpriced_steps = t.unpriced_steps + m.unpriced_steps
    from fit m
    where t.org_id = m.org_id
      and t.session_id = m.session_id
      and t.turn_id = m.turn_id
      and (m.attempt is not null or m.status is not null or m.uses)
), ",
    ledger!(
        "select s.org_id, s.session_id, s.ts, s.agent_id, s.model,
           m.input_tokens, m.output_tokens, m.cache_write_tokens, m.cache_read_tokens, m.steps, m.tool_calls,
           m.model_micros, m.sandbox_cpu_micros, m.sandbox_memory_micros, m.fee_micros, m.unpriced_steps
    from s
    join m using (member)
    where s.model is not null",
        "select s.org_id, s.session_id from s join m using (member) where m.settles"
    ),
    ", jobs as (
    select j.org_id, j.session_id, s.more
    from s
    join job j using (org_id, session_id)
    where s.ends
      and j.kind = 'turn'
      and j.worker_id = s.worker_id
    order by j.org_id, j.session_id
    for update of j
), done as (
    delete from job j
    using jobs d
    where not d.more
      and j.org_id = d.org_id
      and j.session_id = d.session_id
      and j.kind = 'turn'
), again as (
    update job j
    set worker_id = null, ready_at = now(), takeovers = 0
    from jobs d
    where d.more
      and j.org_id = d.org_id
      and j.session_id = d.session_id
      and j.kind = 'turn'
)
select l.session_id is not null as seen,
       s.base,
       coalesce(l.epoch = m.epoch and l.status <> 'archived', false) as held,
       exists (select from outbox o where o.session_id = m.session_id) as has_deliveries
from m
left join locked l using (org_id, session_id)
left join s on s.member = m.member
order by m.member"
);
