//! The event log. Only this file writes events, and it only appends.

use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{json, threshold},
    parameter::{group, named},
};
use crate::{
    base::{Id, Timestamp},
    domain::{Entry, EventId, OrgId, SessionId, TurnId, event::Draft, open_work::OpenWork},
};

/// An event ready for its row, with the body truncated if the complete body is in a blob.
#[derive(Clone, Debug)]
pub struct Packed {
    pub draft: Draft,
    /// JSON of the body, at most `EVENT_BODY_BYTES_MAX`.
    pub body: String,
    /// Blob key of the complete body, when `body` was truncated.
    pub content_ref: Option<String>,
    /// The complete body, when `body` was truncated and it is not stored yet.
    pub whole: Option<String>,
    /// Size of the complete body in bytes.
    pub body_bytes: i32,
}

impl Packed {
    /// Returns the event as it reads back from its row directly after the append.
    pub fn entry(&self, session: SessionId, seq: i64, ts: Timestamp) -> Entry {
        let draft = &self.draft;
        Entry {
            session,
            seq,
            id: draft.id,
            ts,
            kind: draft.body.type_name().to_owned(),
            level: draft.level,
            actor: json(&draft.actor),
            turn_id: draft.turn_id,
            step_id: draft.step_id,
            refs: (!draft.refs.is_empty()).then(|| json(&draft.refs)),
            body: self.body.clone(),
            content_ref: self.content_ref.clone(),
            body_bytes: self.body_bytes,
            processed_at: None,
        }
    }
}

/// Columns of several events, one vector each, for `unnest`.
#[derive(Default)]
pub(in crate::store) struct Columns {
    event_ids: Vec<Uuid>,
    types: Vec<&'static str>,
    levels: Vec<i16>,
    actors: Vec<String>,
    turn_ids: Vec<Option<Uuid>>,
    step_ids: Vec<Option<Uuid>>,
    refs: Vec<Option<String>>,
    bodies: Vec<String>,
    contents: Vec<Option<String>>,
    sizes: Vec<i32>,
}

group!(Columns: event_ids types levels actors turn_ids step_ids refs bodies contents sizes);

impl Columns {
    pub(in crate::store) fn of<'a>(events: impl IntoIterator<Item = &'a Packed>) -> Self {
        let mut columns = Self::default();
        for event in events {
            let draft = &event.draft;
            columns.event_ids.push(draft.id.uuid());
            columns.types.push(draft.body.type_name());
            columns.levels.push(threshold(draft.level));
            columns.actors.push(json(&draft.actor));
            columns.turn_ids.push(draft.turn_id.map(Id::uuid));
            columns.step_ids.push(draft.step_id.map(Id::uuid));
            columns.refs.push((!draft.refs.is_empty()).then(|| json(&draft.refs)));
            columns.bodies.push(event.body.clone());
            columns.contents.push(event.content_ref.clone());
            columns.sizes.push(event.body_bytes);
        }
        columns
    }
}

/// Returns, for each event of several lists, the number of its list and its place there, from 1.
pub(in crate::store) fn members<'a>(lists: impl Iterator<Item = &'a [Packed]>) -> (Vec<i64>, Vec<i64>) {
    (1..)
        .zip(lists)
        .flat_map(|(member, events)| (1..).take(events.len()).map(move |place| (member, place)))
        .unzip()
}

/// The parameters of [`Columns`] as rows `e` that join the changed sessions `s`.
///
/// `of_session` joins all to the only session, `of_members` each to the one of its `$members`, with
/// its `$places`.
macro_rules! event_rows {
    (of_session) => {
        "cross join unnest($event_ids::uuid[], $types::text[], $levels::smallint[], $actors::text[], $turn_ids::uuid[],
                      $step_ids::uuid[], $refs::text[], $bodies::text[], $contents::text[], $sizes::integer[])
        with ordinality
        as e (event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes, place)"
    };
    (of_members) => {
        "join unnest($members::bigint[], $places::bigint[], $event_ids::uuid[], $types::text[], $levels::smallint[],
                $actors::text[], $turn_ids::uuid[], $step_ids::uuid[], $refs::text[], $bodies::text[],
                $contents::text[], $sizes::integer[])
        as e (member, place, event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes)
        using (member)"
    };
}
pub(in crate::store) use event_rows;

/// Appends the events of the sessions that a statement changed.
///
/// `s` has `org_id`, `session_id`, `ts` and the `base` that the events follow; for `of_members`
/// also its `member`.
macro_rules! appended {
    ($of:ident) => {
        concat!(
            "insert into event (
        org_id, session_id, seq, ts, event_id, type, level, actor, turn_id, step_id, refs, body, content_ref,
        body_bytes
    )
    select s.org_id, s.session_id, s.base + e.place, s.ts, e.event_id, e.type, e.level, e.actor::json, e.turn_id,
           e.step_id, e.refs::json, e.body::json, e.content_ref, e.body_bytes
    from s
    ",
            $crate::store::event::event_rows!($of),
            "
    returning org_id, session_id, seq, event_id, type, level"
        )
    };
}
pub(in crate::store) use appended;

/// Inserts a delivery of each event in `appended` for every destination that matches it.
///
/// This is part of the statement that writes the event, so both are committed or neither. A webhook
/// of the organization also gets the events that concern the organization, whatever its level.
/// Destinations are found by the index `destination_present`, once for each session: those of
/// the session and those of the organization, each by the complete key.
macro_rules! outbox {
    () => {
        "insert into delivery (
            org_id, delivery_id, session_id, destination_id, event_id, event_seq, type, status, ready_at
         )
         select a.org_id, gen_random_uuid(), a.session_id, d.destination_id, a.event_id, a.seq, a.type, 'pending', now()
         from (
             select l.session_id as of_session, d.*
             from (select distinct org_id, session_id from appended) l
             cross join lateral (
                 select *
                 from destination
                 where org_id = l.org_id and session_id = l.session_id and deleted_at is null
                 union all
                 select * from destination where org_id = l.org_id and session_id is null and deleted_at is null
             ) d
             where d.enabled
         ) d
         join appended a on a.org_id = d.org_id and a.session_id = d.of_session
         where (a.level <= d.level
                or (d.session_id is null
                    and a.type in ('session.created', 'limit.warning', 'limit.exceeded')))
           and a.seq > d.created_after_seq
           and (d.types is null or exists (
               select from unnest(d.types) wanted
               where wanted = a.type or (right(wanted, 2) = '.*' and starts_with(a.type, left(wanted, -1)))
           ))
         returning session_id"
    };
}
pub(in crate::store) use outbox;

impl Tx {
    /// Appends events of an imported session, each with its own time.
    ///
    /// No deliveries are created for them, because they are old.
    pub async fn append_imported(
        &mut self,
        session: SessionId,
        head: i64,
        times: &[Timestamp],
        events: &[Packed],
    ) -> Result<()> {
        let columns = Columns::of(events);
        named!(
            query(
                "insert into event (
                    org_id, session_id, seq, ts, event_id, type, level, actor, turn_id, step_id, refs, body, content_ref,
                    body_bytes
                 )
                 select $org_id, $session_id, $head + e.place, e.ts, e.event_id, e.type, e.level, e.actor::json, e.turn_id,
                        e.step_id, e.refs::json, e.body::json, e.content_ref, e.body_bytes
                 from unnest($times::timestamptz[], $event_ids::uuid[], $types::text[], $levels::smallint[],
                             $actors::text[], $turn_ids::uuid[], $step_ids::uuid[], $refs::text[], $bodies::text[],
                             $contents::text[], $sizes::integer[]) with ordinality
                     as e (ts, event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes,
                           place)"
            ),
            {
                org_id: self.org.uuid(),
                session_id: session.uuid(),
                head: head,
                times: times,
                event_ids: columns.event_ids,
                types: columns.types,
                levels: columns.levels,
                actors: columns.actors,
                turn_ids: columns.turn_ids,
                step_ids: columns.step_ids,
                refs: columns.refs,
                bodies: columns.bodies,
                contents: columns.contents,
                sizes: columns.sizes,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns the calls of a turn that have no result yet, in order, with their actions.
    ///
    /// Only the turn's last step can have some. Bodies are parsed here, because Postgres cannot
    /// parse JSON with a NUL.
    pub async fn open_work(&mut self, session: SessionId, turn: TurnId) -> Result<OpenWork> {
        let org = self.org.uuid();
        let rows: Vec<(String, String)> = sqlx::query_as(
            "select type, body::text
             from event
             where org_id = $1
               and session_id = $2
               and turn_id = $3
               and type = any($4)
               and seq > (
                   select coalesce(max(seq), 0)
                   from event
                   where org_id = $1 and session_id = $2 and turn_id = $3 and type = 'step.completed'
               )
             order by seq",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(turn.uuid())
        .bind(OpenWork::TYPES.as_slice())
        .fetch_all(self.connection())
        .await?;
        let mut open = OpenWork::default();
        for (kind, body) in rows {
            open.take(&kind, &body).map_err(|error| Error::Corrupt(error.to_string()))?;
        }
        Ok(open)
    }
}

impl Store {
    /// Returns which of these events are in the log. Scans the session's part of the primary key, for a rare
    /// request.
    pub async fn known_events(
        &self,
        org: OrgId,
        session: SessionId,
        events: &[EventId],
    ) -> Result<Vec<EventId>> {
        let events: Vec<_> = events.iter().map(|event| event.uuid()).collect();
        let known: Vec<Uuid> = sqlx::query_scalar(
            "select event_id from event where org_id = $1 and session_id = $2 and event_id = any($3)",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(events)
        .fetch_all(&self.system)
        .await?;
        Ok(known.into_iter().map(Id::from_uuid).collect())
    }
}
