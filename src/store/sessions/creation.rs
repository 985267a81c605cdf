//! Inserts new sessions of one organization with all their rows in one statement.
//!
//! Each statement is a round trip, and a creation is mostly round trips. Foreign keys are checked
//! at the end of the statement, so its parts may come in any order.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Tx,
    column::{json, threshold, word},
    event::{Columns, Packed, appended, members, outbox},
    idempotency::StoredResponse,
    parameter::{many_rows, named},
    token::NewToken,
};
use crate::{
    base::{Id, seal::sha256},
    domain::{Session, Turn},
};

/// A decided session: the row, its first queued turn, its first events, and what is written with it.
pub struct Creation {
    pub session: Session,
    /// Its log from the first event on; empty if the events are appended later.
    pub events: Vec<Packed>,
    pub token: Option<NewToken>,
    /// The response to its request. If the slot of that request already has a response, the session
    /// is not created.
    pub kept: Option<StoredResponse>,
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
    pub async fn insert_sessions(&mut self, new: &[Creation]) -> Result<Vec<Inserted>> {
        let (members, places) = members(new.iter().map(|new| new.events.as_slice()));
        let snapshots = each(new, |session| session.created.agent_snapshot.as_ref().map(json));
        let ids: Vec<_> = snapshots.iter().map(|snapshot| snapshot.as_deref().map(name_of)).collect();
        let query = named!(
            query_as(CREATION),
            {
                org_id: self.org.uuid(),
                session_id: each(new, |session| session.id.uuid()),
                created_at: each(new, |session| session.created_at),
                agent_id: each(new, |session| session.created.agent_id.map(Id::uuid)),
                credential_id: each(new, |session| session.created.credential_id.map(Id::uuid)),
                snapshot_id: ids,
                snapshot: snapshots,
                title: each(new, |session| session.created.title.clone()),
                key: each(new, |session| session.created.key.clone()),
                client_id: each(new, |session| session.created.client_id.clone()),
                slug: each(new, |session| session.created.slug.clone()),
                parent_session_id: each(new, |session| session.created.parent_session_id.map(Id::uuid)),
                metadata: each(new, |session| json(&session.created.metadata)),
                limits: each(new, |session| json(&session.created.limits)),
                source: each(new, |session| word(&session.created.source)),
                environment: each(new, |session| session.created.environment.as_ref().map(json)),
                sources: each(new, |session| {
                    (!session.created.sources.is_empty()).then(|| json(&session.created.sources))
                }),
                context: each(new, |session| (!session.context.is_empty()).then(|| json(&session.context))),
                actor: each(new, |session| json(&session.actor)),
                status: each(new, |session| word(&session.status)),
                head: each(new, |session| session.head),
                input_head: each(new, |session| session.input_head),
                input_cursor: each(new, |session| session.input_cursor),
                updated_at: each(new, |session| session.updated_at),
                turn_id: turns(new, |turn| turn.id.uuid()),
                state: turns(new, |turn| word(&turn.state)),
                attempt: turns(new, |turn| turn.attempt),
                input_from_seq: turns(new, |turn| turn.input_from_seq),
                input_to_seq: turns(new, |turn| turn.input_to_seq),
                hash: tokens(new, |token| token.hash.clone()),
                scopes: tokens(new, |token| token.scopes.join(" ")),
                level: tokens(new, |token| threshold(token.level)),
                expires_at: tokens(new, |token| token.expires_at),
                scope: responses(new, |kept| kept.slot.scope.clone()),
                slot: responses(new, |kept| kept.slot.key.clone()),
                fingerprint: responses(new, |kept| kept.slot.fingerprint.to_vec()),
                answer_status: responses(new, |kept| kept.status),
                answer: responses(new, |kept| kept.sealed.clone()),
                members: members,
                places: places,
            },
            Columns = Columns::of(new.iter().flat_map(|new| &new.events))
        );
        let inserted: Vec<Inserted> = query.fetch_all(self.connection()).await?;
        self.use_skills(new.iter().map(|new| &new.session)).await?;
        Ok(inserted)
    }
}

/// Collects one column of all sessions, for `unnest`.
fn each<T>(new: &[Creation], pick: impl Fn(&Session) -> T) -> Vec<T> {
    new.iter().map(|new| pick(&new.session)).collect()
}

fn turns<T>(new: &[Creation], pick: impl Fn(&Turn) -> T) -> Vec<Option<T>> {
    each(new, |session| session.queued.as_ref().map(&pick))
}

fn tokens<T>(new: &[Creation], pick: impl Fn(&NewToken) -> T) -> Vec<Option<T>> {
    new.iter().map(|new| new.token.as_ref().map(&pick)).collect()
}

fn responses<T>(new: &[Creation], pick: impl Fn(&StoredResponse) -> T) -> Vec<Option<T>> {
    new.iter().map(|new| new.kept.as_ref().map(&pick)).collect()
}

/// Id of a pinned agent within its organization: the first half of a SHA-256.
pub(super) fn name_of(content: &str) -> Uuid {
    let digest = sha256(content.as_bytes());
    let (half, _) = digest.split_first_chunk().expect("32 bytes have 16");
    Uuid::from_bytes(*half)
}

/// `m` has a row for each session, with its turn, its token and the response to its request.
const CREATION: &str = concat!(
    "with ",
    many_rows!(
        session_id uuid created_at timestamptz agent_id uuid credential_id uuid snapshot_id uuid
        snapshot text title text key text client_id text slug text parent_session_id uuid metadata text
        limits text source text environment text sources text context text actor text status text
        head bigint input_head bigint input_cursor bigint updated_at timestamptz turn_id uuid state text
        attempt integer input_from_seq bigint input_to_seq bigint hash bytea scopes text level smallint
        expires_at timestamptz scope text slot text fingerprint bytea answer_status smallint answer bytea
    ),
    ", answered as (
    insert into idempotency (org_id, scope, key, fingerprint, status, answer)
    select $org_id, scope, slot, fingerprint, answer_status, answer
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
    select distinct on (n.snapshot_id) $org_id, n.snapshot_id, n.snapshot::json
    from n
    where n.snapshot_id is not null
      and not exists (select from agent_snapshot a where a.org_id = $org_id and a.snapshot_id = n.snapshot_id)
    on conflict do nothing
), made as (
    insert into session (
        org_id, session_id, created_at, agent_id, credential_id, snapshot_id, title, key, client_id,
        slug, parent_session_id, metadata, limits, source, environment, sources, context, actor, status, head,
        input_head, input_cursor, updated_at, queued_turn_id
    )
    select $org_id, session_id, created_at, agent_id, credential_id, snapshot_id, title, key, client_id, slug,
           parent_session_id, metadata::json, limits::json, source, environment::json, sources::json,
           context::json, actor::json, status, head, input_head, input_cursor, updated_at, turn_id
    from n
), queued as (
    insert into turn (org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq)
    select $org_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq
    from n
    where turn_id is not null
), job_of_turn as (
    insert into job (org_id, session_id, kind, ready_at)
    select $org_id, session_id, 'turn', now()
    from n
    where turn_id is not null
), token as (
    insert into client_token (org_id, session_id, hash, scopes, level, expires_at)
    select $org_id, session_id, hash, string_to_array(scopes, ' '), level, expires_at
    from n
    where hash is not null
), s as (
    select $org_id::uuid as org_id, session_id, created_at as ts, 0::bigint as base, member
    from n
), appended as (
    ",
    appended!(of_members),
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
