//! Rows of the table `event`.

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{Id, Timestamp},
    domain::Entry,
    store::{Result, column::level},
};

#[derive(FromRow)]
pub(super) struct Row {
    session_id: Uuid,
    seq: i64,
    event_id: Uuid,
    ts: Timestamp,
    r#type: String,
    level: i16,
    actor: String,
    turn_id: Option<Uuid>,
    step_id: Option<Uuid>,
    refs: Option<String>,
    body: String,
    content_ref: Option<String>,
    body_bytes: i32,
    processed_at: Option<Timestamp>,
    /// Whether the log has segments. A column of each row, because another statement would cost a round trip.
    pub(super) has_segments: bool,
}

impl Row {
    pub(super) fn entry(self) -> Result<Entry> {
        Ok(Entry {
            session: Id::from_uuid(self.session_id),
            seq: self.seq,
            id: Id::from_uuid(self.event_id),
            ts: self.ts,
            kind: self.r#type,
            level: level(self.level)?,
            actor: self.actor,
            turn_id: self.turn_id.map(Id::from_uuid),
            step_id: self.step_id.map(Id::from_uuid),
            refs: self.refs,
            body: self.body,
            content_ref: self.content_ref,
            body_bytes: self.body_bytes,
            processed_at: self.processed_at,
        })
    }
}

/// Statement for rows of the log of `$1`, `$2`.
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "select session_id, seq, event_id, ts, type, level, actor::text, turn_id, step_id, refs::text, body::text,
                    content_ref, body_bytes, case when type = 'user.message' then coalesce((
                        select m.ts
                        from steered_message m
                        where m.org_id = event.org_id and m.session_id = event.session_id and m.seq = event.seq
                    ), (
                        -- A turn that ended before it started has consumed its input too. What joined a retried turn
                        -- was consumed by a later start than the first.
                        select case
                            when t.started_at < event.ts then coalesce((
                                select e.ts
                                from event e
                                where e.org_id = event.org_id
                                  and e.session_id = event.session_id
                                  and e.seq > event.seq
                                  and e.turn_id = event.turn_id
                                  and e.type in ('turn.started', 'turn.completed')
                                order by e.seq
                                limit 1
                            ), t.completed_at)
                            else coalesce(t.started_at, t.completed_at)
                        end
                        from turn t
                        where t.org_id = event.org_id and t.session_id = event.session_id and t.turn_id = event.turn_id
                    )) end as processed_at,
                    exists (select from log_segment s where s.org_id = $1 and s.session_id = $2) as has_segments
             from event ",
            $rest
        )
    };
}

pub(super) use columns;
