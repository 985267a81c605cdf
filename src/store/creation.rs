//! A session's creation: its row and all that is written with it, in one statement.
//!
//! Each statement is a round trip, and a creation is mostly round trips. Foreign keys are
//! looked at when the statement ends, so its parts may come in any order.

use uuid::Uuid;

use super::{
    Result, Tx,
    column::{json, threshold, word},
    event::{Columns, Packed, appended, outbox},
    idempotency::Kept,
    token::NewToken,
};
use crate::{
    base::{Id, seal::sha256},
    domain::Session,
};

/// What is written with the row of a new session.
#[derive(Default)]
pub struct Beside<'a> {
    /// Its log from the first event on; empty where that is appended later.
    pub events: &'a [Packed],
    pub token: Option<&'a NewToken>,
    /// The answer to the request that makes it.
    pub kept: Option<&'a Kept>,
}

impl Tx {
    /// Stores a new session with the turn that its first events made, the job that has
    /// that turn begun, and what comes `beside` it. Returns whether some of its events are now in the outbox.
    ///
    /// # Errors
    /// `Conflict("session_key")` when another session holds the key.
    pub async fn insert_session(&mut self, session: &Session, beside: Beside<'_>) -> Result<bool> {
        let tenant = self.tenant.uuid();
        let created = &session.created;
        let turn = session.queued.as_ref();
        let snapshot = created.agent_snapshot.as_ref().map(json);
        let Beside { events, token, kept } = beside;
        let query = sqlx::query_as(CREATION).bind(tenant).bind(session.id.uuid()).bind(session.created_at);
        let (letters,) = Columns::of(events)
            .bound(query)
            .bind(created.agent_id.map(Id::uuid))
            .bind(created.credential_id.map(Id::uuid))
            .bind(&snapshot)
            .bind(&created.title)
            .bind(&created.key)
            .bind(&created.client_id)
            .bind(&created.slug)
            .bind(created.parent_session_id.map(Id::uuid))
            .bind(json(&created.metadata))
            .bind(json(&created.limits))
            .bind(word(&created.source))
            .bind(created.environment.as_ref().map(json))
            .bind((!created.sources.is_empty()).then(|| json(&created.sources)))
            .bind((!session.context.is_empty()).then(|| json(&session.context)))
            .bind(json(&session.actor))
            .bind(word(&session.status))
            .bind(session.head)
            .bind(session.input_head)
            .bind(session.input_cursor)
            .bind(session.updated_at)
            .bind(turn.map(|turn| turn.id.uuid()))
            .bind(turn.map(|turn| word(&turn.state)))
            .bind(turn.map(|turn| turn.attempt))
            .bind(turn.map(|turn| turn.input_from_seq))
            .bind(turn.map(|turn| turn.input_to_seq))
            .bind(token.map(|token| token.hash.as_slice()))
            .bind(token.map(|token| token.scopes.as_slice()))
            .bind(token.map(|token| threshold(token.level)))
            .bind(token.map(|token| token.expires_at))
            .bind(kept.map(|kept| kept.scope()))
            .bind(kept.map(|kept| kept.key()))
            .bind(kept.map(|kept| kept.status))
            .bind(kept.map(|kept| kept.sealed.as_slice()))
            .bind(snapshot.as_deref().map(name_of))
            .fetch_one(self.connection())
            .await?;
        Ok(letters)
    }
}

/// The name of a snapshot among those of its organization: half a SHA-256.
fn name_of(content: &str) -> Uuid {
    let digest = sha256(content.as_bytes());
    let (half, _) = digest.split_first_chunk().expect("32 bytes have 16");
    Uuid::from_bytes(*half)
}

/// $1 tenant, $2 session, $3 its time, $4-$13 events, $14-$33 the row, $34-$38 its turn,
/// $39-$42 a token, $43-$46 a kept answer, $47 the name of the snapshot in $16.
const CREATION: &str = concat!(
    "
with shared as (
    select $47::uuid as snapshot_id
    from deployment
    where shares_snapshots and $47 is not null
), snapshot as (
    insert into agent_snapshot (tenant_id, snapshot_id, content)
    select $1, s.snapshot_id, $16::json
    from shared s
    where not exists (select from agent_snapshot a where a.tenant_id = $1 and a.snapshot_id = $47)
    on conflict do nothing
), made as (
    insert into session (
        tenant_id, session_id, created_at, agent_id, credential_id, snapshot_id, agent_snapshot, title, key, client_id,
        slug, parent_session_id, metadata, limits, source, environment, sources, context, actor, status, head,
        input_head, input_cursor, updated_at, queued_turn_id
    )
    values ($1, $2, $3, $14, $15, (select snapshot_id from shared),
            case when not exists (select from shared) then $16::json end, $17, $18, $19, $20, $21, $22::json, $23::json,
            $24, $25::json, $26::json, $27::json, $28::json, $29, $30, $31, $32, $33, $34)
), queued as (
    insert into turn (tenant_id, session_id, turn_id, state, attempt, input_from_seq, input_to_seq)
    select $1, $2, $34, $35, $36, $37, $38
    where $34::uuid is not null
), job_of_turn as (
    insert into job (tenant_id, session_id, kind, ready_at)
    select $1, $2, 'turn', now()
    where $34 is not null
), token as (
    insert into client_token (tenant_id, session_id, hash, scopes, level, expires_at)
    select $1, $2, $39, $40, $41, $42
    where $39::bytea is not null
), answered as (
    update idempotency
    set status = $45, answer = $46
    where tenant_id = $1 and scope = $43 and key = $44
), s as (
    select $1::uuid as tenant_id, $2::uuid as session_id, $3::timestamptz as ts, 0::bigint as base
), appended as (
    ",
    appended!(
        "cross join unnest($4::uuid[], $5::text[], $6::smallint[], $7::text[], $8::uuid[], $9::uuid[], $10::text[],
                      $11::text[], $12::text[], $13::integer[]) with ordinality
        as e (event_id, type, level, actor, turn_id, step_id, refs, body, content_ref, body_bytes, place)"
    ),
    "
), outbox as (
    ",
    outbox!(),
    "
)
select exists (select from outbox)"
);
