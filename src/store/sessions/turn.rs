//! Turn rows: the folded state of their events.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Tx,
    column::{count, from_word, storable, uncount, word},
    parameter::named,
    usage::Counters,
};
use crate::{
    base::{Id, Timestamp},
    domain::{SessionId, Turn, TurnId, decide::QueuedMessage, turn::TurnError},
};

#[derive(FromRow)]
pub(in crate::store) struct Row {
    pub session_id: Uuid,
    pub turn_id: Uuid,
    state: String,
    attempt: i32,
    input_from_seq: i64,
    input_to_seq: i64,
    started_at: Option<Timestamp>,
    completed_at: Option<Timestamp>,
    yield_reason: Option<String>,
    result_event_id: Option<Uuid>,
    error_code: Option<String>,
    error_message: Option<String>,
    active_seconds: i64,
    #[sqlx(flatten)]
    counters: Counters,
}

impl Row {
    pub(in crate::store) fn turn(self) -> Result<Turn> {
        Ok(Turn {
            id: Id::from_uuid(self.turn_id),
            state: from_word(&self.state)?,
            attempt: self.attempt,
            input_from_seq: self.input_from_seq,
            input_to_seq: self.input_to_seq,
            started_at: self.started_at,
            completed_at: self.completed_at,
            yield_reason: self.yield_reason.as_deref().map(from_word).transpose()?,
            result_event_id: self.result_event_id.map(Id::from_uuid),
            error: self
                .error_code
                .map(|code| TurnError { code, message: self.error_message.unwrap_or_default() }),
            active_seconds: uncount(self.active_seconds),
            usage: self.counters.into(),
        })
    }
}

impl Tx {
    /// Reads one turn of a session.
    pub async fn turn(&mut self, session: SessionId, turn: TurnId) -> Result<Turn> {
        let org = self.org.uuid();
        let row: Row =
            sqlx::query_as("select * from turn where org_id = $1 and session_id = $2 and turn_id = $3")
                .bind(org)
                .bind(session.uuid())
                .bind(turn.uuid())
                .fetch_one(self.connection())
                .await?;
        row.turn()
    }

    /// Returns a session's turns, newest first; their ids are in order of creation.
    pub async fn turns(
        &mut self,
        session: SessionId,
        before: Option<TurnId>,
        limit: i64,
    ) -> Result<Vec<Turn>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(
            "select *
             from turn
             where org_id = $1
               and session_id = $2
               and ($3::uuid is null or turn_id < $3)
             order by turn_id desc
             limit $4",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(before.map(Id::uuid))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(Row::turn).collect()
    }

    /// Returns the messages of the queued turn of a locked session that no turn has read, in order.
    pub async fn queued_messages(&mut self, session: SessionId, queued: &Turn) -> Result<Vec<QueuedMessage>> {
        let query = named!(
            query_as(
                "select e.seq, coalesce((e.body ->> 'steers')::boolean, false)
                 from event e
                 where e.org_id = $org_id
                   and e.session_id = $session_id
                   and e.seq between $input_from_seq and $input_to_seq
                   and e.turn_id = $turn_id
                   and e.type = 'user.message'
                   and not exists (
                       select from steered_message s
                       where s.org_id = e.org_id and s.session_id = e.session_id and s.seq = e.seq
                   )
                 order by e.seq"
            ),
            {
                org_id: self.org.uuid(),
                session_id: session.uuid(),
                input_from_seq: queued.input_from_seq,
                input_to_seq: queued.input_to_seq,
                turn_id: queued.id.uuid(),
            }
        );
        let rows: Vec<(i64, bool)> = query.fetch_all(self.connection()).await?;
        Ok(rows.into_iter().map(|(seq, steers)| QueuedMessage { seq, steers }).collect())
    }

    /// Records that a turn read these messages, which had joined another one.
    pub async fn insert_steered(
        &mut self,
        session: SessionId,
        turn: TurnId,
        seqs: &[i64],
        ts: Timestamp,
    ) -> Result<()> {
        named!(
            query(
                "insert into steered_message (org_id, session_id, seq, turn_id, ts)
                 select $org_id, $session_id, seq, $turn_id, $ts
                 from unnest($seqs::bigint[]) as seq"
            ),
            { org_id: self.org.uuid(), session_id: session.uuid(), seqs: seqs, turn_id: turn.uuid(), ts: ts }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Removes a queued turn.
    pub async fn delete_turn(&mut self, session: SessionId, turn: TurnId) -> Result<()> {
        named!(
            query(
                "delete from turn
                 where org_id = $org_id and session_id = $session_id and turn_id = $turn_id and state = 'queued'"
            ),
            { org_id: self.org.uuid(), session_id: session.uuid(), turn_id: turn.uuid() }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Writes a turn in its folded state.
    pub(in crate::store) async fn put_turn(&mut self, session: SessionId, turn: &Turn) -> Result<()> {
        let (usage, error) = (&turn.usage, turn.error.as_ref());
        named!(
            query(
                "insert into turn (
                    org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq, started_at,
                    completed_at, yield_reason, result_event_id, error_code, error_message, active_seconds,
                    input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, steps, tool_calls
                 )
                 values (
                    $org_id, $session_id, $turn_id, $state, $attempt, $input_from_seq, $input_to_seq, $started_at,
                    $completed_at, $yield_reason, $result_event_id, $error_code, $error_message, $active_seconds,
                    $input_tokens, $output_tokens, $cache_write_tokens, $cache_read_tokens, $steps, $tool_calls
                 )
                 on conflict (org_id, session_id, turn_id) do update set
                    state = excluded.state,
                    attempt = excluded.attempt,
                    input_to_seq = excluded.input_to_seq,
                    started_at = excluded.started_at,
                    completed_at = excluded.completed_at,
                    yield_reason = excluded.yield_reason,
                    result_event_id = excluded.result_event_id,
                    error_code = excluded.error_code,
                    error_message = excluded.error_message,
                    active_seconds = excluded.active_seconds"
            ),
            {
                org_id: self.org.uuid(),
                session_id: session.uuid(),
                turn_id: turn.id.uuid(),
                state: word(&turn.state),
                attempt: turn.attempt,
                input_from_seq: turn.input_from_seq,
                input_to_seq: turn.input_to_seq,
                started_at: turn.started_at,
                completed_at: turn.completed_at,
                yield_reason: turn.yield_reason.as_ref().map(word),
                result_event_id: turn.result_event_id.map(Id::uuid),
                error_code: error.map(|error| storable(&error.code)),
                error_message: error.map(|error| storable(&error.message)),
                active_seconds: count(turn.active_seconds),
                input_tokens: count(usage.input_tokens),
                output_tokens: count(usage.output_tokens),
                cache_write_tokens: count(usage.cache_write_tokens),
                cache_read_tokens: count(usage.cache_read_tokens),
                steps: count(usage.steps),
                tool_calls: count(usage.tool_calls),
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
