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
    parameter::named,
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
        let names: Vec<_> = snapshots.iter().map(|snapshot| snapshot.as_deref().map(name_of)).collect();
        let query = named!(
            query_as(CREATION),
            {
                org_id: self.org.uuid(),
                session_ids: each(new, |session| session.id.uuid()),
                created_ats: each(new, |session| session.created_at),
                agent_ids: each(new, |session| session.created.agent_id.map(Id::uuid)),
                credential_ids: each(new, |session| session.created.credential_id.map(Id::uuid)),
                snapshot_ids: names,
                snapshots: snapshots,
                titles: each(new, |session| session.created.title.clone()),
                keys: each(new, |session| session.created.key.clone()),
                client_ids: each(new, |session| session.created.client_id.clone()),
                slugs: each(new, |session| session.created.slug.clone()),
                parent_ids: each(new, |session| session.created.parent_session_id.map(Id::uuid)),
                metadatas: each(new, |session| json(&session.created.metadata)),
                limits: each(new, |session| json(&session.created.limits)),
                origins: each(new, |session| word(&session.created.source)),
                environments: each(new, |session| session.created.environment.as_ref().map(json)),
                sources: each(new, |session| {
                    (!session.created.sources.is_empty()).then(|| json(&session.created.sources))
                }),
                contexts: each(new, |session| (!session.context.is_empty()).then(|| json(&session.context))),
                actors_of_sessions: each(new, |session| json(&session.actor)),
                statuses: each(new, |session| word(&session.status)),
                heads: each(new, |session| session.head),
                input_heads: each(new, |session| session.input_head),
                input_cursors: each(new, |session| session.input_cursor),
                updated_ats: each(new, |session| session.updated_at),
                queued_turn_ids: turns(new, |turn| turn.id.uuid()),
                states: turns(new, |turn| word(&turn.state)),
                attempts: turns(new, |turn| turn.attempt),
                input_from_seqs: turns(new, |turn| turn.input_from_seq),
                input_to_seqs: turns(new, |turn| turn.input_to_seq),
                hashes: tokens(new, |token| token.hash.clone()),
                scopes: tokens(new, |token| token.scopes.join(" ")),
                token_levels: tokens(new, |token| threshold(token.level)),
                expire_ats: tokens(new, |token| token.expires_at),
                slot_scopes: responses(new, |kept| kept.slot.scope.clone()),
                slot_keys: responses(new, |kept| kept.slot.key.clone()),
                fingerprints: responses(new, |kept| kept.slot.fingerprint.to_vec()),
                answer_statuses: responses(new, |kept| kept.status),
                answers: responses(new, |kept| kept.sealed.clone()),
                members: members,
                places: places,
            },
            Columns = Columns::of(new.iter().flat_map(|new| &new.events))
        );
        Ok(query.fetch_all(self.connection()).await?)
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
fn name_of(content: &str) -> Uuid {
    let digest = sha256(content.as_bytes());
    let (half, _) = digest.split_first_chunk().expect("32 bytes have 16");
    Uuid::from_bytes(*half)
}

/// `m` has a row for each session, with its turn, its token and the response to its request.
const CREATION: &str = concat!(
    "
with m as (
    select *
    from unnest(
        $session_ids::uuid[], $created_ats::timestamptz[], $agent_ids::uuid[], $credential_ids::uuid[],
        $snapshot_ids::uuid[], $snapshots::text[], $titles::text[], $keys::text[], $client_ids::text[], $slugs::text[],
        $parent_ids::uuid[], $metadatas::text[], $limits::text[], $origins::text[], $environments::text[],
        $sources::text[], $contexts::text[], $actors_of_sessions::text[], $statuses::text[], $heads::bigint[],
        $input_heads::bigint[], $input_cursors::bigint[], $updated_ats::timestamptz[], $queued_turn_ids::uuid[],
        $states::text[], $attempts::integer[], $input_from_seqs::bigint[], $input_to_seqs::bigint[], $hashes::bytea[],
        $scopes::text[], $token_levels::smallint[], $expire_ats::timestamptz[], $slot_scopes::text[],
        $slot_keys::text[], $fingerprints::bytea[], $answer_statuses::smallint[], $answers::bytea[]
    ) with ordinality as m (
        session_id, created_at, agent_id, credential_id, snapshot_id, snapshot, title, key, client_id,
        slug, parent_session_id, metadata, limits, source, environment, sources, context,
        actor, status, head, input_head, input_cursor, updated_at, turn_id,
        state, attempt, input_from_seq, input_to_seq, hash, scopes, level,
        expires_at, scope, slot, fingerprint, answer_status, answer, member
    )
), answered as (
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
