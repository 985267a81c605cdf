//! The fold of a leased turn's events into the rows of its session and its turn.
//!
//! A member is one record with its differences. A statement has its members as `m`: one row of
//! parameters, or a row of `unnest` for each session of a batch. The fold is written once for both.

use super::Record;
use crate::{
    domain::{
        delta::{Delta, Wait},
        event::TurnCompleted,
        turn::TurnError,
    },
    store::column::storable,
};

/// A record and the differences that its events make.
pub(super) struct Member<'a> {
    pub record: &'a Record,
    pub delta: Delta,
}

impl<'a> Member<'a> {
    pub(super) fn of(record: &'a Record) -> Self {
        Self { record, delta: Delta::of(record.events.iter().map(|event| &event.draft)) }
    }

    /// Returns a value of the turn's end, if the turn ends.
    pub(super) fn end<T>(&self, pick: impl FnOnce(&TurnCompleted) -> T) -> Option<T> {
        self.delta.end.as_ref().map(pick)
    }

    /// Returns a value of the wait that begins, if one does.
    pub(super) fn wait<T>(&self, pick: impl FnOnce(&Wait) -> T) -> Option<T> {
        self.delta.wait.as_ref().map(pick)
    }

    /// Returns the sessions of the wait as an array in the text form of Postgres: a member of `unnest` cannot be an
    /// array itself.
    pub(super) fn waits_for(&self) -> Option<String> {
        let ids: Vec<_> = self.delta.wait.as_ref()?.sessions.iter().map(|id| id.uuid().to_string()).collect();
        Some(format!("{{{}}}", ids.join(",")))
    }

    /// Returns a text of the error with which the turn ends, if it does.
    pub(super) fn error(&self, pick: impl FnOnce(&TurnError) -> &str) -> Option<String> {
        self.delta.end.as_ref()?.error.as_ref().map(|error| storable(pick(error)))
    }
}

/// Returns a value of the only member.
pub(super) fn one<T>(member: &Member<'_>, pick: impl Fn(&Member<'_>) -> T) -> T {
    pick(member)
}

/// Returns a value of each member, for `unnest`.
pub(super) fn each<T>(members: &[Member<'_>], pick: impl Fn(&Member<'_>) -> T) -> Vec<T> {
    members.iter().map(pick).collect()
}

/// Columns of members whose events change only the log.
macro_rules! log_columns {
    ($rows:ident $($more:tt)*) => {
        $rows!(
            org_id uuid session_id uuid epoch bigint turn_id uuid ts timestamptz events bigint generation bigint $($more)*
        )
    };
}
pub(super) use log_columns;

/// Columns of members whose events change rows.
macro_rules! fold_columns {
    ($rows:ident) => {
        log_columns!(
            $rows worker_id uuid attempt integer window_to bigint status text state text yield_reason text
            result_event_id uuid error_code text error_message text active_seconds bigint uses boolean
            model text settles boolean input_tokens bigint output_tokens bigint cache_write_tokens bigint
            cache_read_tokens bigint steps bigint tool_calls bigint model_micros bigint
            sandbox_cpu_micros bigint sandbox_memory_micros bigint fee_micros bigint unpriced_steps bigint
            exec_ms bigint fails boolean wakes_at timestamptz wait_status text waits_for text
            waited_at_seconds bigint resumes boolean actions_to bigint steers_to bigint agent_seq bigint
        )
    };
}
pub(super) use fold_columns;

/// Binds `log_columns` of one or each member, further parameters, and events.
macro_rules! log_query {
    ($sql:ident, $of:ident($members:expr), { $($name:ident: $value:expr),* $(,)? }, $events:expr) => {
        named!(query_as($sql), {
            org_id: $of($members, |member| member.record.fence.org.uuid()),
            session_id: $of($members, |member| member.record.fence.session.uuid()),
            epoch: $of($members, |member| member.record.fence.epoch),
            turn_id: $of($members, |member| member.record.turn.map(Id::uuid)),
            ts: $of($members, |member| member.record.ts),
            events: $of($members, |member| member.record.events.len() as i64),
            generation: $of($members, |member| member.record.fence.generation),
            $($name: $value),*
        }, Columns = $events)
    };
}
pub(super) use log_query;

/// Binds `fold_columns` of one or each member, further parameters, and events.
macro_rules! fold_query {
    ($sql:ident, $of:ident($members:expr), { $($name:ident: $value:expr),* }, $events:expr) => {
        log_query!($sql, $of($members), {
            worker_id: $of($members, |member| member.record.fence.worker),
            attempt: $of($members, |member| member.delta.start.map(|start| start.attempt)),
            window_to: $of($members, |member| member.delta.start.map(|start| start.input_to_seq)),
            status: $of($members, |member| member.end(|end| word(&end.idle_status()))),
            state: $of($members, |member| member.end(|end| word(&end.yield_reason.state()))),
            yield_reason: $of($members, |member| member.end(|end| word(&end.yield_reason))),
            result_event_id:
                $of($members, |member| member.end(|end| end.result_event_id.map(Id::uuid)).flatten()),
            error_code: $of($members, |member| member.error(|error| &error.code)),
            error_message: $of($members, |member| member.error(|error| &error.message)),
            active_seconds: $of($members, |member| member.end(|end| count(end.active_seconds))),
            uses: $of($members, |member| !member.delta.usage.is_none()),
            model: $of($members, |member| member.delta.model.clone()),
            settles: $of($members, |member| member.delta.settles),
            input_tokens: $of($members, |member| count(member.delta.usage.input_tokens)),
            output_tokens: $of($members, |member| count(member.delta.usage.output_tokens)),
            cache_write_tokens: $of($members, |member| count(member.delta.usage.cache_write_tokens)),
            cache_read_tokens: $of($members, |member| count(member.delta.usage.cache_read_tokens)),
            steps: $of($members, |member| count(member.delta.usage.steps)),
            tool_calls: $of($members, |member| count(member.delta.usage.tool_calls)),
            model_micros: $of($members, |member| count(member.delta.usage.cost.model_micros)),
            sandbox_cpu_micros: $of($members, |member| count(member.delta.usage.cost.sandbox_cpu_micros)),
            sandbox_memory_micros:
                $of($members, |member| count(member.delta.usage.cost.sandbox_memory_micros)),
            fee_micros: $of($members, |member| count(member.delta.usage.cost.fee_micros)),
            unpriced_steps: $of($members, |member| count(member.delta.usage.cost.unpriced_steps)),
            exec_ms: $of($members, |member| count(member.delta.exec_ms)),
            fails: $of($members, |member| member.delta.fails),
            wakes_at: $of($members, |member| member.wait(|wait| wait.expires_at)),
            wait_status: $of($members, |member| member.wait(|wait| word(&wait.status))),
            waits_for: $of($members, |member| member.waits_for()),
            waited_at_seconds: $of($members, |member| member.wait(|wait| count(wait.active_seconds))),
            resumes: $of($members, |member| member.delta.resumes),
            actions_to: $of($members, |member| member.record.actions_to),
            steers_to: $of($members, |member| member.record.steers_to),
            agent_seq: $of($members, |member| member.delta.start.map(|start| start.agent_seq)),
            $($name: $value),*
        }, $events)
    };
}
pub(super) use fold_query;

/// Whether the session `u` is in the state that the start of the turn of `m` assumes, if it starts.
macro_rules! start_fits {
    () => {
        "(m.attempt is null
           or (u.queued_turn_id = m.turn_id and u.running_turn_id is null
               and u.input_head = m.window_to and u.agent_head = m.agent_seq)
           or (m.attempt > 1 and u.running_turn_id = m.turn_id))"
    };
}
pub(super) use start_fits;

/// Whether the turn of `m` has read how the actions of the session `u` ended, and what steers it, if its events depend on
/// that. A turn does not wait when a caller has canceled it.
macro_rules! callers_read {
    () => {
        "(m.actions_to is null or u.action_head <= m.actions_to)
      and (m.steers_to is null or u.steer_head <= m.steers_to)
      and (m.wakes_at is null or u.cancel_turn_id is distinct from m.turn_id)"
    };
}
pub(super) use callers_read;

/// Advances the session `u` of each member by its differences.
macro_rules! fold_session {
    ($members:literal, $condition:expr) => {
        concat!(
            "update session u
    set head = u.head + m.events,
        updated_at = m.ts,
        status = case
            when m.attempt is not null then 'running'
            when m.fails and u.status = 'idle' then 'failed'
            when m.wakes_at is not null then m.wait_status
            when m.status is null and m.resumes then 'running'
            when m.status is null then u.status
            when u.running_turn_id = m.turn_id and u.queued_turn_id is not null then 'queued'
            else m.status
        end,
        input_cursor = case
            when m.attempt is not null and u.queued_turn_id = m.turn_id then m.window_to
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
            when (m.attempt is not null or m.status is not null) and u.queued_turn_id = m.turn_id then null
            else u.queued_turn_id
        end,
        cancel_turn_id = case
            when m.status is not null and u.cancel_turn_id = m.turn_id then null
            else u.cancel_turn_id
        end,
        waits_for = case
            when m.wakes_at is not null then nullif(m.waits_for, '{}')::uuid[]
            when m.resumes or m.status is not null and u.running_turn_id = m.turn_id then null
            else u.waits_for
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
            when m.attempt is not null or m.status is not null or m.fails or m.resumes or m.wakes_at is not null
            then pg_current_xact_id()
            else u.listed_in
        end
    from ",
            $members,
            " m
    where ",
            $condition,
            "
    returning m.member, m.ts, m.worker_id, m.status is not null as ends, m.wakes_at, u.org_id, u.session_id,
              u.head - m.events as base, u.queued_turn_id is not null as more, u.agent_id,
              case when m.uses then coalesce(m.model, ",
            snapshot!("u"),
            " ->> 'model', '') end as model"
        )
    };
}
pub(super) use fold_session;

/// Advances the turn of each member by its differences.
macro_rules! fold_turn {
    ($members:literal) => {
        concat!(
            "update turn t
    set state = case
            when m.attempt is not null then 'running'
            when m.state is not null then m.state
            when m.wakes_at is not null then 'waiting'
            when m.resumes then 'running'
            else t.state
        end,
        attempt = coalesce(m.attempt, t.attempt),
        started_at = case when m.attempt = 1 then m.ts else t.started_at end,
        completed_at = case when m.status is not null then m.ts else t.completed_at end,
        yield_reason = coalesce(m.yield_reason, t.yield_reason),
        result_event_id = coalesce(m.result_event_id, t.result_event_id),
        error_code = coalesce(m.error_code, t.error_code),
        error_message = coalesce(m.error_message, t.error_message),
        active_seconds = coalesce(m.active_seconds, m.waited_at_seconds, t.active_seconds),
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
    from ",
            $members,
            "
    where t.org_id = m.org_id
      and t.session_id = m.session_id
      and t.turn_id = m.turn_id
      and (m.attempt is not null or m.status is not null or m.uses or m.resumes or m.wakes_at is not null)"
        )
    };
}
pub(super) use fold_turn;

/// Stores the actions that the events in `appended` open, and ends those of turns that end.
///
/// The events `$opening` open actions of `$action_kinds` with `$expiries`.
macro_rules! fold_actions {
    () => {
        "opened as (
    insert into action (org_id, session_id, action_id, turn_id, kind, seq, expires_at)
    select a.org_id, a.session_id, a.event_id, m.turn_id, o.kind, a.seq, o.expires_at
    from unnest($opening::uuid[], $action_kinds::text[], $expiries::timestamptz[]) as o (event_id, kind, expires_at)
    join appended a using (event_id)
    join m using (org_id, session_id)
), withdrawn as (
    update action x
    set outcome = 'withdrawn', ended_at = now()
    from s
    join m using (member)
    where m.status is not null
      and x.org_id = s.org_id
      and x.session_id = s.session_id
      and x.turn_id = m.turn_id
      and x.outcome is null
)"
    };
}
pub(super) use fold_actions;

/// Deletes the waits for capacity of `turns` that end, or that wait for callers, unless an operation of the session waits.
macro_rules! unqueued {
    ($turns:expr) => {
        concat!(
            "delete from sandbox_wait w
    using (",
            $turns,
            ") t
    where w.org_id = t.org_id
      and w.session_id = t.session_id
      and not exists (
          select from job o
          where o.org_id = w.org_id and o.session_id = w.session_id and o.kind = 'operation'
      )"
        )
    };
}
pub(super) use unqueued;

/// Adds the usage of the members `m` whose sessions `s` were changed to the sums.
macro_rules! fold_usage {
    () => {
        ledger!(
            "select s.org_id, s.session_id, s.agent_id, s.model,
           m.input_tokens, m.output_tokens, m.cache_write_tokens, m.cache_read_tokens, m.steps, m.tool_calls,
           m.model_micros, m.sandbox_cpu_micros, m.sandbox_memory_micros, m.fee_micros, m.unpriced_steps
    from s
    join m using (member)
    where s.model is not null",
            "select s.org_id, s.session_id from s join m using (member) where m.settles"
        )
    };
}
pub(super) use fold_usage;

/// Results of the members `m`, from `locked`, `s` and `outbox`, in their order.
macro_rules! member_rows {
    () => {
        concat!(
            "select u.session_id is not null as seen,
       s.base,
       coalesce(",
            fence!(),
            ", false) as held,
       s.base is not null or ",
            is_current!(),
            " as is_current,
       exists (select from outbox o where o.session_id = m.session_id) as has_deliveries
from m
left join locked u using (org_id, session_id)
left join s on s.member = m.member
order by m.member"
        )
    };
}
pub(super) use member_rows;
