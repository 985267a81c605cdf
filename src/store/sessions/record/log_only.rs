//! Fenced append of events that change only the log: no turn start, no turn end, no usage.
//!
//! Most events of a turn are of this kind. A statement without sums and jobs is faster to plan and
//! to start.

use uuid::Uuid;

use super::{
    Record, Recorded, Row,
    batch::{MemberRow, members_of_events, places_of_events},
};
use crate::{
    base::{Id, Timestamp},
    store::{
        Result, Store,
        event::{Columns, appended, outbox},
    },
};

impl Store {
    /// As [`Store::record`].
    pub(in crate::store) async fn record_plain(&self, record: &Record) -> Result<Recorded> {
        let Record { fence, turn, ts, events } = record;
        let columns = Columns::of(events);
        let query = sqlx::query_as(PLAIN)
            .bind(fence.org.uuid())
            .bind(fence.session.uuid())
            .bind(fence.epoch)
            .bind(turn.map(Id::uuid))
            .bind(ts);
        let row: Row = columns.bound(query).fetch_one(&self.append).await?;
        Ok(row.recorded())
    }

    /// As [`Store::record_batch`].
    pub(in crate::store) async fn record_plain_batch(&self, records: &[Record]) -> Result<Vec<MemberRow>> {
        let of = |pick: fn(&Record) -> Uuid| records.iter().map(pick).collect::<Vec<_>>();
        let columns = Columns::of(records.iter().flat_map(|record| &record.events));
        let query = sqlx::query_as(PLAIN_TOGETHER)
            .bind(of(|record| record.fence.org.uuid()))
            .bind(of(|record| record.fence.session.uuid()))
            .bind(records.iter().map(|record| record.fence.epoch).collect::<Vec<_>>())
            .bind(records.iter().map(|record| record.turn.map(Id::uuid)).collect::<Vec<_>>())
            .bind(records.iter().map(|record| record.ts).collect::<Vec<Timestamp>>())
            .bind(records.iter().map(|record| record.events.len() as i64).collect::<Vec<_>>())
            .bind(members_of_events(records))
            .bind(places_of_events(records));
        let rows = columns.bound(query).fetch_all(&self.append).await?;
        Ok(rows)
    }
}

/// $1 organization, $2 session, $3 epoch, $4 turn or null, $5 time, $6-$15 events.
const PLAIN: &str = concat!(
    "
with s as (
    update session
    set head = head + cardinality($6::uuid[]), updated_at = $5
    where org_id = $1
      and session_id = $2
      and epoch = $3
      and status <> 'archived'
      -- Nothing is written for a turn that is over, by whoever comes late.
      and ($4::uuid is null or running_turn_id = $4 or (queued_turn_id = $4 and running_turn_id is null))
    returning org_id, session_id, updated_at as ts, head - cardinality($6::uuid[]) as base
), appended as (
    ",
    appended!(
        "cross join unnest($6::uuid[], $7::text[], $8::smallint[], $9::text[], $10::uuid[], $11::uuid[], $12::text[],
                      $13::text[], $14::text[], $15::integer[]) with ordinality
        as e (event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes, place)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
)
select (select base from s) as base,
       exists (select from s)
           or exists (select from session
                      where org_id = $1 and session_id = $2 and epoch = $3 and status <> 'archived') as held,
       exists (select from outbox) as has_deliveries"
);

/// $1-$6 the members, $7-$18 their events.
const PLAIN_TOGETHER: &str = concat!(
    "
with m as (
    select *
    from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::timestamptz[], $6::bigint[]) with ordinality
        as m (org_id, session_id, epoch, turn_id, ts, events, member)
), locked as (
    select s.org_id, s.session_id, s.epoch, s.status, s.running_turn_id, s.queued_turn_id
    from m
    join session s using (org_id, session_id)
    order by s.org_id, s.session_id
    for update of s skip locked
), s as (
    update session u
    set head = u.head + m.events, updated_at = m.ts
    from m
    join locked l using (org_id, session_id)
    where u.org_id = m.org_id
      and u.session_id = m.session_id
      and l.epoch = m.epoch
      and l.status <> 'archived'
      -- Nothing is written for a turn that is over, by whoever comes late.
      and (m.turn_id is null or l.running_turn_id = m.turn_id
           or (l.queued_turn_id = m.turn_id and l.running_turn_id is null))
    returning m.member, m.ts, u.org_id, u.session_id, u.head - m.events as base
), appended as (
    ",
    appended!(
        "join unnest($7::bigint[], $8::bigint[], $9::uuid[], $10::text[], $11::smallint[], $12::text[], $13::uuid[],
                $14::uuid[], $15::text[], $16::text[], $17::text[], $18::integer[])
        as e (member, place, event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes)
        using (member)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
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
