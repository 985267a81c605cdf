//! Fenced appends of several sessions in one commit.
//!
//! Each member is checked separately: a stale one changes nothing, the others are written. Rows are
//! locked in one order, sessions before sums before jobs, so two of these statements cannot
//! deadlock. A session that another transaction has locked is left out, so a slow caller delays
//! only its own turn; so is one whose destinations just changed.

use super::{
    MemberRow, Record, Recorded,
    fence::{destinations_seen, fence, is_current, turn_open},
    fold::{
        Member, callers_read, each, fold_actions, fold_columns, fold_query, fold_session, fold_turn,
        fold_usage, log_columns, log_query, member_rows, start_fits, unqueued,
    },
};
use crate::{
    base::Id,
    store::{
        Result, Store,
        agent::snapshot,
        column::{count, word},
        event::{Columns, appended, members, outbox},
        parameter::{many_rows, named},
        usage::ledger,
    },
};

impl Store {
    /// Writes the records of different sessions in one commit.
    ///
    /// Each is written as [`Store::record`] does, and none may be [apart](Record::is_apart). Returns
    /// `None` for a session whose row was locked. Write that record alone, which waits for the lock.
    ///
    /// # Errors
    /// Any error except `Unavailable` means that nothing was written: one member's text may be
    /// `Unstorable`, and all members fail with it.
    pub async fn record_batch(&self, records: &[Record]) -> Result<Vec<Option<Recorded>>> {
        debug_assert!(
            !records.iter().any(Record::is_apart),
            "a batch writes no snapshot and wakes no session"
        );
        let batch: Vec<_> = records.iter().map(Member::of).collect();
        let rows = match batch.iter().all(|member| member.delta.is_none()) {
            true => self.record_log_batch(&batch).await?,
            false => self.record_fold_batch(&batch).await?,
        };
        Ok(rows.into_iter().map(|member| member.seen.then(|| member.row.recorded())).collect())
    }

    async fn record_fold_batch(&self, batch: &[Member<'_>]) -> Result<Vec<MemberRow>> {
        let (members, places) = members(batch.iter().map(|member| member.record.events.as_slice()));
        let columns = Columns::of(batch.iter().flat_map(|member| &member.record.events));
        let opened = || batch.iter().flat_map(|member| &member.delta.actions);
        let query = fold_query!(RECORD_BATCH, each(batch), {
            members: members,
            places: places,
            opening: opened().map(|(event, ..)| event.uuid()).collect::<Vec<_>>(),
            action_kinds: opened().map(|(_, kind, _)| word(kind)).collect::<Vec<_>>(),
            expiries: opened().map(|(.., expires_at)| *expires_at).collect::<Vec<_>>()
        }, columns);
        Ok(query.fetch_all(&self.append).await?)
    }
}

/// Locked rows are read in their current state, not in the statement's snapshot, so the conditions
/// of `fit` stay true until the commit.
const RECORD_BATCH: &str = concat!(
    "with ",
    fold_columns!(many_rows),
    ", locked as (
    select s.org_id, s.session_id, s.epoch, s.status, s.running_turn_id, s.queued_turn_id, s.input_head,
           s.action_head, s.steer_head, s.agent_head, s.cancel_turn_id
    from m
    join session s using (org_id, session_id)
    where ",
    destinations_seen!("s"),
    "
    order by s.org_id, s.session_id
    for update of s skip locked
), fit as (
    select m.*
    from m
    cross join locked u
    where ",
    fence!(),
    " and ",
    is_current!(),
    " and ",
    start_fits!(),
    " and ",
    callers_read!(),
    " and ",
    turn_open!(),
    "
), s as (
    ",
    fold_session!("fit", "u.org_id = m.org_id and u.session_id = m.session_id"),
    "
), appended as (
    ",
    appended!(of_members),
    "
), outbox as (
    ",
    outbox!(),
    "
), folded as (
    ",
    fold_turn!("fit m"),
    "
), ",
    fold_actions!(),
    ", ",
    fold_usage!(),
    ", unqueued as (
    ",
    unqueued!("select s.org_id, s.session_id from s where s.ends or s.wakes_at is not null"),
    "
), jobs as (
    select j.org_id, j.session_id, s.more or s.wakes_at is not null as stays, s.wakes_at
    from s
    join job j using (org_id, session_id)
    where (s.ends or s.wakes_at is not null)
      and j.kind = 'turn'
      and j.worker_id = s.worker_id
    order by j.org_id, j.session_id
    for update of j
), done as (
    delete from job j
    using jobs d
    where not d.stays
      and j.org_id = d.org_id
      and j.session_id = d.session_id
      and j.kind = 'turn'
), again as (
    update job j
    set worker_id = null,
        ready_at = greatest(d.wakes_at, now()),
        is_scheduled = d.wakes_at is not null and d.wakes_at > now(),
        takeovers = 0
    from jobs d
    where d.stays
      and j.org_id = d.org_id
      and j.session_id = d.session_id
      and j.kind = 'turn'
)
",
    member_rows!()
);
