//! Fenced append of events that change only the log: no turn start, no turn end, no usage.
//!
//! Most events of a turn are of this kind. A statement without sums and jobs is faster to plan and
//! to start.

use super::{
    MemberRow, Recorded, Row,
    fence::{destinations_seen, fence, is_current, turn_open},
    fold::{Member, each, log_columns, log_query, member_rows, one},
};
use crate::{
    base::Id,
    store::{
        Result, Store,
        event::{Columns, appended, members, outbox},
        parameter::{many_rows, named, one_row},
    },
};

impl Store {
    /// As [`Store::record`].
    pub(super) async fn record_log(&self, member: &Member<'_>) -> Result<Recorded> {
        let query = log_query!(LOG, one(member), {}, Columns::of(&member.record.events));
        let row: Row = query.fetch_one(&self.append).await?;
        Ok(row.recorded())
    }

    /// As [`Store::record_batch`].
    pub(super) async fn record_log_batch(&self, batch: &[Member<'_>]) -> Result<Vec<MemberRow>> {
        let (members, places) = members(batch.iter().map(|member| member.record.events.as_slice()));
        let columns = Columns::of(batch.iter().flat_map(|member| &member.record.events));
        let query = log_query!(LOG_BATCH, each(batch), { members: members, places: places }, columns);
        Ok(query.fetch_all(&self.append).await?)
    }
}

const LOG: &str = concat!(
    "with ",
    log_columns!(one_row),
    ", s as (
    update session u
    set head = u.head + m.events, updated_at = m.ts
    from m
    where ",
    fence!(),
    " and ",
    is_current!(),
    " and ",
    turn_open!(),
    " and ",
    destinations_seen!("u"),
    "
    returning u.org_id, u.session_id, u.updated_at as ts, u.head - m.events as base
), appended as (
    ",
    appended!(of_session),
    "
), outbox as (
    ",
    outbox!(),
    "
)
select (select base from s) as base,
       exists (select from s) or exists (select from session u cross join m where ",
    fence!(),
    ") as held,
       exists (select from s) or exists (select from m where ",
    is_current!(),
    ") as is_current,
       exists (select from outbox) as has_deliveries"
);

const LOG_BATCH: &str = concat!(
    "with ",
    log_columns!(many_rows),
    ", locked as (
    select s.org_id, s.session_id, s.epoch, s.status, s.running_turn_id, s.queued_turn_id
    from m
    join session s using (org_id, session_id)
    where ",
    destinations_seen!("s"),
    "
    order by s.org_id, s.session_id
    for update of s skip locked
), s as (
    update session w
    set head = w.head + m.events, updated_at = m.ts
    from m
    cross join locked u
    where w.org_id = m.org_id
      and w.session_id = m.session_id
      and ",
    fence!(),
    " and ",
    is_current!(),
    " and ",
    turn_open!(),
    "
    returning m.member, m.ts, w.org_id, w.session_id, w.head - m.events as base
), appended as (
    ",
    appended!(of_members),
    "
), outbox as (
    ",
    outbox!(),
    "
)
",
    member_rows!()
);
