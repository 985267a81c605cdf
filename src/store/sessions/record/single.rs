//! Fenced append of one record that changes rows of its session.

use sqlx::PgExecutor;

use super::{
    Record, Recorded, Row,
    fence::{destinations_seen, fence, is_current, turn_open},
    fold::{
        Member, callers_read, fold_actions, fold_columns, fold_query, fold_session, fold_turn, fold_usage,
        log_columns, log_query, one, start_fits, unqueued,
    },
};
use crate::{
    base::Id,
    store::{
        Result, Store,
        agent::snapshot,
        column::{count, word},
        event::{Columns, appended, outbox},
        parameter::{named, one_row},
        usage::ledger,
    },
};

impl Store {
    /// Appends the events of one turn and applies their changes, if the fence holds.
    ///
    /// At the end of the turn the same statement removes the job, or makes it ready again when more
    /// input waits, so no wake is lost. When the turn waits, it gives the job back until the time of the wait. Without a turn the events belong to the session alone, for
    /// example events of its sandbox.
    pub async fn record(&self, record: &Record) -> Result<Recorded> {
        match self.try_record(record).await? {
            // It waited for the row while a destination was created: once more, with a current view.
            Recorded::Moved => self.try_record(record).await,
            recorded => Ok(recorded),
        }
    }

    async fn try_record(&self, record: &Record) -> Result<Recorded> {
        let member = &Member::of(record);
        if record.is_apart() {
            return self.record_apart(member).await;
        }
        if member.delta.is_none() {
            return self.record_log(member).await;
        }
        Ok(member.write_events(&self.append).await?.recorded())
    }
}

impl Member<'_> {
    /// Writes the record without its snapshot, on a connection or a pool.
    pub(super) async fn write_events<'c>(&self, executor: impl PgExecutor<'c>) -> Result<Row> {
        let actions = &self.delta.actions;
        let query = fold_query!(RECORD, one(self), {
            opening: actions.iter().map(|(event, ..)| event.uuid()).collect::<Vec<_>>(),
            action_kinds: actions.iter().map(|(_, kind, _)| word(kind)).collect::<Vec<_>>(),
            expiries: actions.iter().map(|(.., expires_at)| *expires_at).collect::<Vec<_>>()
        }, Columns::of(&self.record.events));
        Ok(query.fetch_one(executor).await?)
    }
}

const RECORD: &str = concat!(
    "with ",
    fold_columns!(one_row),
    ", s as (
    ",
    fold_session!(
        "m",
        concat!(
            fence!(),
            " and ",
            is_current!(),
            " and ",
            start_fits!(),
            " and ",
            callers_read!(),
            " and ",
            turn_open!(),
            " and ",
            destinations_seen!("u")
        )
    ),
    "
), appended as (
    ",
    appended!(of_session),
    "
), outbox as (
    ",
    outbox!(),
    "
), folded as (
    ",
    fold_turn!("s join m using (member)"),
    "
), ",
    fold_actions!(),
    ", ",
    fold_usage!(),
    ", unqueued as (
    ",
    unqueued!(
        "select m.org_id, m.session_id from s cross join m where m.status is not null or m.wakes_at is not null"
    ),
    "
), done as (
    delete from job j
    using s
    cross join m
    where m.status is not null
      and not s.more
      and j.org_id = m.org_id
      and j.session_id = m.session_id
      and j.kind = 'turn'
      and j.worker_id = m.worker_id
), again as (
    update job j
    set worker_id = null,
        ready_at = greatest(m.wakes_at, now()),
        is_scheduled = m.wakes_at is not null and m.wakes_at > now(),
        takeovers = 0
    from s
    cross join m
    where (m.status is not null and s.more or m.wakes_at is not null)
      and j.org_id = m.org_id
      and j.session_id = m.session_id
      and j.kind = 'turn'
      and j.worker_id = m.worker_id
)
select (select base from s) as base,
       exists (select from session u cross join m where ",
    fence!(),
    ") as held,
       exists (select from s) or exists (select from m where ",
    is_current!(),
    ") as is_current,
       exists (select from outbox) as has_deliveries"
);
