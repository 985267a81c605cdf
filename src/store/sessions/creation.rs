//! Inserts new sessions of one organization with all their rows in one statement.
//!
//! Each statement is a round trip, and a creation is mostly round trips. Foreign keys are checked
//! at the end of the statement, so its parts may come in any order.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Tx,
    column::{json, threshold, word},
    event::{Columns, Packed, QueryAs, appended, outbox},
    idempotency::StoredResponse,
    token::NewToken,
};
use crate::{
    base::{Id, seal::sha256},
    domain::{Session, Turn},
};

/// A new session with its first queued turn and the rows written with it.
pub struct Creation<'a> {
    pub session: &'a Session,
    /// Its log from the first event on; empty if the events are appended later.
    pub events: &'a [Packed],
    pub token: Option<&'a NewToken>,
    /// The response to its request. If the slot of that request already has a response, the session
    /// is not created.
    pub kept: Option<&'a StoredResponse>,
}

/// Result of one creation.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Inserted {
    /// Whether the session was created.
    pub is_new: bool,
    /// Whether some of its events created deliveries.
    pub has_deliveries: bool,
}

impl Tx {
    /// Stores new sessions, each with the job for its queued turn.
    ///
    /// # Errors
    /// `Conflict("session_key")` when another session has the key of one of them. `Busy` when an
    /// equal request to one of theirs is still in progress.
    pub async fn insert_sessions(&mut self, new: &[Creation<'_>]) -> Result<Vec<Inserted>> {
        let query = sqlx::query_as(CREATION).bind(self.org.uuid());
        let events = || new.iter().flat_map(|new| new.events);
        let place = |new: &Creation<'_>| (1..).take(new.events.len()).collect::<Vec<i64>>();
        let query = Columns::of(events())
            .bound(bound_requests(bound_turns(bound_rows(query, new), new), new))
            .bind(
                (1..).zip(new).flat_map(|(member, new)| vec![member; new.events.len()]).collect::<Vec<i64>>(),
            )
            .bind(new.iter().flat_map(place).collect::<Vec<_>>());
        Ok(query.fetch_all(self.connection()).await?)
    }
}

/// Collects one column of all sessions, for `unnest`.
fn each<'a, T>(new: &'a [Creation<'a>], pick: impl Fn(&'a Session) -> T) -> Vec<T> {
    new.iter().map(|new| pick(new.session)).collect()
}

fn bound_rows<'q, O>(query: QueryAs<'q, O>, new: &[Creation<'_>]) -> QueryAs<'q, O> {
    let snapshots = each(new, |session| session.created.agent_snapshot.as_ref().map(json));
    let names: Vec<_> = snapshots.iter().map(|snapshot| snapshot.as_deref().map(name_of)).collect();
    query
        .bind(each(new, |session| session.id.uuid()))
        .bind(each(new, |session| session.created_at))
        .bind(each(new, |session| session.created.agent_id.map(Id::uuid)))
        .bind(each(new, |session| session.created.credential_id.map(Id::uuid)))
        .bind(names)
        .bind(snapshots)
        .bind(each(new, |session| session.created.title.clone()))
        .bind(each(new, |session| session.created.key.clone()))
        .bind(each(new, |session| session.created.client_id.clone()))
        .bind(each(new, |session| session.created.slug.clone()))
        .bind(each(new, |session| session.created.parent_session_id.map(Id::uuid)))
        .bind(each(new, |session| json(&session.created.metadata)))
        .bind(each(new, |session| json(&session.created.limits)))
        .bind(each(new, |session| word(&session.created.source)))
        .bind(each(new, |session| session.created.environment.as_ref().map(json)))
        .bind(each(new, |session| {
            (!session.created.sources.is_empty()).then(|| json(&session.created.sources))
        }))
        .bind(each(new, |session| (!session.context.is_empty()).then(|| json(&session.context))))
        .bind(each(new, |session| json(&session.actor)))
        .bind(each(new, |session| word(&session.status)))
        .bind(each(new, |session| session.head))
        .bind(each(new, |session| session.input_head))
        .bind(each(new, |session| session.input_cursor))
        .bind(each(new, |session| session.updated_at))
}

fn bound_turns<'q, O>(query: QueryAs<'q, O>, new: &[Creation<'_>]) -> QueryAs<'q, O> {
    fn each<T>(new: &[Creation<'_>], pick: impl Fn(&Turn) -> T) -> Vec<Option<T>> {
        new.iter().map(|new| new.session.queued.as_ref().map(&pick)).collect()
    }
    query
        .bind(each(new, |turn| turn.id.uuid()))
        .bind(each(new, |turn| word(&turn.state)))
        .bind(each(new, |turn| turn.attempt))
        .bind(each(new, |turn| turn.input_from_seq))
        .bind(each(new, |turn| turn.input_to_seq))
}

/// Binds the tokens and the responses to the requests.
fn bound_requests<'q, O>(query: QueryAs<'q, O>, new: &[Creation<'_>]) -> QueryAs<'q, O> {
    fn token<T>(new: &[Creation<'_>], pick: impl Fn(&NewToken) -> T) -> Vec<Option<T>> {
        new.iter().map(|new| new.token.map(&pick)).collect()
    }
    fn kept<T>(new: &[Creation<'_>], pick: impl Fn(&StoredResponse) -> T) -> Vec<Option<T>> {
        new.iter().map(|new| new.kept.map(&pick)).collect()
    }
    query
        .bind(token(new, |token| token.hash.clone()))
        .bind(token(new, |token| token.scopes.join(" ")))
        .bind(token(new, |token| threshold(token.level)))
        .bind(token(new, |token| token.expires_at))
        .bind(kept(new, |kept| kept.slot.scope.clone()))
        .bind(kept(new, |kept| kept.slot.key.clone()))
        .bind(kept(new, |kept| kept.slot.fingerprint.to_vec()))
        .bind(kept(new, |kept| kept.status))
        .bind(kept(new, |kept| kept.sealed.clone()))
}

/// Id of a pinned agent within its organization: the first half of a SHA-256.
fn name_of(content: &str) -> Uuid {
    let digest = sha256(content.as_bytes());
    let (half, _) = digest.split_first_chunk().expect("32 bytes have 16");
    Uuid::from_bytes(*half)
}

/// $1 organization, $2-$24 the rows, $25-$29 their turns, $30-$33 their tokens, $34-$38 the
/// responses, $39-$48 events, $49 the number of each event's session, from 1, and $50 the event's
/// position in it.
const CREATION: &str = concat!(
    "
with m as (
    select *
    from unnest(
        $2::uuid[], $3::timestamptz[], $4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::text[], $9::text[], $10::text[],
        $11::text[], $12::uuid[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[],
        $19::text[], $20::text[], $21::bigint[], $22::bigint[], $23::bigint[], $24::timestamptz[], $25::uuid[],
        $26::text[], $27::integer[], $28::bigint[], $29::bigint[], $30::bytea[], $31::text[], $32::smallint[],
        $33::timestamptz[], $34::text[], $35::text[], $36::bytea[], $37::smallint[], $38::bytea[]
    ) with ordinality as m (
        session_id, created_at, agent_id, credential_id, snapshot_id, snapshot, title, key, client_id,
        slug, parent_session_id, metadata, limits, source, environment, sources, context,
        actor, status, head, input_head, input_cursor, updated_at, turn_id,
        state, attempt, input_from_seq, input_to_seq, hash, scopes, level,
        expires_at, scope, slot, fingerprint, answer_status, answer, member
    )
), answered as (
    insert into idempotency (org_id, scope, key, fingerprint, status, answer)
    select $1, scope, slot, fingerprint, answer_status, answer
    from m
    where slot is not null
    order by scope, slot
    on conflict do nothing
    returning scope, key
), n as (
    select *
    from m
    where slot is null or (scope, slot) in (select scope, key from answered)
), snapshot as (
    insert into agent_snapshot (org_id, snapshot_id, content)
    select distinct on (n.snapshot_id) $1, n.snapshot_id, n.snapshot::json
    from n
    where n.snapshot_id is not null
      and not exists (select from agent_snapshot a where a.org_id = $1 and a.snapshot_id = n.snapshot_id)
    on conflict do nothing
), made as (
    insert into session (
        org_id, session_id, created_at, agent_id, credential_id, snapshot_id, title, key, client_id,
        slug, parent_session_id, metadata, limits, source, environment, sources, context, actor, status, head,
        input_head, input_cursor, updated_at, queued_turn_id
    )
    select $1, session_id, created_at, agent_id, credential_id, snapshot_id, title, key, client_id, slug,
           parent_session_id, metadata::json, limits::json, source, environment::json, sources::json,
           context::json, actor::json, status, head, input_head, input_cursor, updated_at, turn_id
    from n
), queued as (
    insert into turn (org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq)
    select $1, session_id, turn_id, state, attempt, input_from_seq, input_to_seq
    from n
    where turn_id is not null
), job_of_turn as (
    insert into job (org_id, session_id, kind, ready_at)
    select $1, session_id, 'turn', now()
    from n
    where turn_id is not null
), token as (
    insert into client_token (org_id, session_id, hash, scopes, level, expires_at)
    select $1, session_id, hash, string_to_array(scopes, ' '), level, expires_at
    from n
    where hash is not null
), s as (
    select $1::uuid as org_id, session_id, created_at as ts, 0::bigint as base, member
    from n
), appended as (
    ",
    appended!(
        "join unnest($39::uuid[], $40::text[], $41::smallint[], $42::text[], $43::uuid[], $44::uuid[], $45::text[],
                $46::text[], $47::text[], $48::integer[], $49::bigint[], $50::bigint[])
        as e (event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes, member, place)
        using (member)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
)
select n.member is not null as is_new,
       exists (select from outbox o where o.session_id = m.session_id) as has_deliveries
from m
left join n using (member)
order by m.member"
);
