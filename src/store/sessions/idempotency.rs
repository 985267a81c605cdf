//! Stored responses to requests that may be retried.
//!
//! The row is inserted first and the response written last, in one transaction with the effect; or
//! both at once, by the statement that has the effect. An equal concurrent request blocks on the
//! row until the first one commits (then it reads the response) or until the lock timeout.

use sqlx::FromRow;

use crate::store::{Error, Result, Store, Tx, org::unwrap};
use crate::{
    base::{
        Origin, limit,
        seal::{DataKey, MasterKey},
    },
    domain::OrgId,
};

/// Identity of a request.
#[derive(Clone, Debug)]
pub struct Slot {
    /// `header`, `session` for a session's own key, `steer/<session>` for a message's key and
    /// `steer/<session>/token` if a client token sent it, `child/<session>` for the calls with which its agent
    /// reaches sessions below.
    pub scope: String,
    pub key: String,
    /// SHA-256 over everything that makes two requests equal.
    pub fingerprint: [u8; 32],
    /// The fingerprint that an earlier version stored for the same request, if its response may be given.
    pub earlier: Option<[u8; 32]>,
}

/// A slot claimed by this transaction. Execute the request, then call [`Tx::answer`].
#[must_use]
pub struct Claimed {
    slot: Slot,
    key: DataKey,
}

/// The response to a request, sealed for its slot.
pub struct StoredResponse {
    pub(in crate::store) slot: Slot,
    pub(in crate::store) status: i16,
    pub(in crate::store) sealed: Vec<u8>,
}

/// State of a request.
pub enum SlotState {
    /// It is new.
    Fresh(Claimed),
    /// It was executed before; this was the response.
    Replay { status: u16, body: Vec<u8> },
    /// The key was used for another request.
    Mismatch,
}

#[derive(FromRow)]
struct Row {
    fingerprint: Vec<u8>,
    status: Option<i16>,
    answer: Option<Vec<u8>>,
}

impl Claimed {
    /// Creates a slot that is claimed by the statement that also writes its response.
    pub fn with_answer(slot: Slot, key: DataKey) -> Self {
        Self { slot, key }
    }

    /// Seals the response for storage.
    pub fn answer(self, org: OrgId, status: u16, body: &[u8], origin: &Origin) -> StoredResponse {
        let sealed = self.key.seal(body, &context(org, &self.slot), origin);
        StoredResponse { slot: self.slot, status: i16::try_from(status).unwrap_or(i16::MAX), sealed }
    }
}

#[derive(FromRow)]
struct ClaimRow {
    is_fresh: bool,
    data_key: Vec<u8>,
}

impl Tx {
    /// Claims the slot, or returns the outcome of the request that has it.
    ///
    /// # Errors
    /// `Busy` when an equal request has been in progress for `IDEMPOTENCY_WAIT`.
    pub async fn claim_slot(&mut self, slot: Slot, master: &MasterKey) -> Result<SlotState> {
        let org = self.org;
        let row: ClaimRow = sqlx::query_as(
            "with claimed as (
                insert into idempotency (org_id, scope, key, fingerprint)
                values ($1, $2, $3, $4)
                on conflict do nothing
                returning key
             )
             select exists (select from claimed) as is_fresh, data_key from org where org_id = $1",
        )
        .bind(org.uuid())
        .bind(&slot.scope)
        .bind(&slot.key)
        .bind(slot.fingerprint.as_slice())
        .fetch_one(self.connection())
        .await?;
        let key = unwrap(master, &row.data_key, org)?;
        match row.is_fresh {
            true => Ok(SlotState::Fresh(Claimed { slot, key })),
            false => self.begun(slot, &key).await,
        }
    }

    /// Returns the outcome of the request that has the slot.
    async fn begun(&mut self, slot: Slot, key: &DataKey) -> Result<SlotState> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(
            "select fingerprint, status, answer
             from idempotency
             where org_id = $1 and scope = $2 and key = $3",
        )
        .bind(org)
        .bind(&slot.scope)
        .bind(&slot.key)
        .fetch_one(self.connection())
        .await?;
        let is_equal = |fingerprint: &[u8; 32]| row.fingerprint == fingerprint;
        if !is_equal(&slot.fingerprint) && !slot.earlier.as_ref().is_some_and(is_equal) {
            return Ok(SlotState::Mismatch);
        }
        let (Some(status), Some(sealed)) = (row.status, row.answer) else { return Err(Error::Busy) };
        let body = key
            .open(&sealed, &context(self.org, &slot))
            .map_err(|error| Error::Corrupt(error.to_string()))?;
        Ok(SlotState::Replay { status: status.unsigned_abs(), body: body.to_vec() })
    }

    /// Stores the response, sealed for its slot, in the transaction of the effect.
    pub async fn answer(
        &mut self,
        claimed: Claimed,
        status: u16,
        body: &[u8],
        origin: &Origin,
    ) -> Result<()> {
        self.keep(&claimed.answer(self.org, status, body, origin)).await
    }

    /// Stores a sealed response.
    pub async fn keep(&mut self, kept: &StoredResponse) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update idempotency
             set status = $4, answer = $5
             where org_id = $1 and scope = $2 and key = $3",
        )
        .bind(org)
        .bind(&kept.slot.scope)
        .bind(&kept.slot.key)
        .bind(kept.status)
        .bind(&kept.sealed)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes one response: its key can be used again.
    pub async fn delete_response(&mut self, scope: &str, key: &str) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("delete from idempotency where org_id = $1 and scope = $2 and key = $3")
            .bind(org)
            .bind(scope)
            .bind(key)
            .execute(self.connection())
            .await?;
        Ok(())
    }
}

impl Store {
    /// Deletes one batch of responses to an `Idempotency-Key` that are older than a day.
    ///
    /// Responses to a session's or a message's own key are never deleted. By the index
    /// `idempotency_header_age`.
    pub async fn delete_expired_responses(&self, batch: i64) -> Result<u64> {
        let done = sqlx::query(
            "delete from idempotency
             where (org_id, scope, key) in (
                 select org_id, scope, key
                 from idempotency
                 where scope = 'header'
                   and created_at < now() - make_interval(hours => $1)
                 order by created_at
                 limit $2
                 for update skip locked
             )",
        )
        .bind(limit::IDEMPOTENCY_HOURS)
        .bind(batch)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }
}

/// Associated data that binds a sealed response to its slot.
fn context(org: OrgId, slot: &Slot) -> String {
    format!("idempotency/{org}/{}/{}", slot.scope, slot.key)
}
