//! API keys, looked up by their peppered hash.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_word, word},
};
use crate::{
    base::{Id, Timestamp, limit::KEY_USE_INTERVAL, seal::MasterKey},
    domain::{KeyId, OrgId, session::Source},
};

/// A key that is valid now.
#[derive(Clone, Debug)]
pub struct LiveKey {
    pub org: OrgId,
    pub key: KeyId,
    pub name: String,
    pub scopes: Vec<String>,
    /// The source of the sessions that it creates.
    pub source: Source,
    /// Its organization is suspended.
    pub is_suspended: bool,
}

/// The public part of a key, without its secret.
#[derive(Clone, Debug)]
pub struct Key {
    pub id: KeyId,
    pub name: String,
    /// Its last characters.
    pub hint: String,
    pub scopes: Vec<String>,
    pub source: Source,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// Accurate to `KEY_USE_INTERVAL`.
    pub last_used_at: Option<Timestamp>,
    pub created_at: Timestamp,
    /// Whether it is valid now.
    pub is_live: bool,
}

/// A key to store.
#[derive(Debug)]
pub struct NewKey<'a> {
    pub org: OrgId,
    pub key: KeyId,
    pub secret: &'a str,
    pub name: &'a str,
    pub scopes: &'a [String],
    pub source: Source,
    pub expires_at: Option<Timestamp>,
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    key_id: Uuid,
    name: String,
    scopes: Vec<String>,
    source: String,
    is_suspended: bool,
}

#[derive(FromRow)]
struct KeyRow {
    key_id: Uuid,
    name: String,
    hint: String,
    scopes: Vec<String>,
    source: String,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
    last_used_at: Option<Timestamp>,
    created_at: Timestamp,
    is_live: bool,
}

impl TryFrom<KeyRow> for Key {
    type Error = Error;

    fn try_from(row: KeyRow) -> Result<Self> {
        Ok(Self {
            id: Id::from_uuid(row.key_id),
            name: row.name,
            hint: row.hint,
            scopes: row.scopes,
            source: from_word(&row.source)?,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
            last_used_at: row.last_used_at,
            created_at: row.created_at,
            is_live: row.is_live,
        })
    }
}

macro_rules! keys {
    ($rest:literal) => {
        concat!(
            "select key_id, name, hint, scopes, source, expires_at, revoked_at, last_used_at, created_at,
                    revoked_at is null and coalesce(expires_at > now(), true) as is_live
             from api_key
             where org_id = $1 ",
            $rest
        )
    };
}

impl Tx {
    /// Stores a new key's hash.
    pub async fn insert_key(&mut self, master: &MasterKey, new: &NewKey<'_>) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into api_key (org_id, key_id, hash, name, hint, scopes, expires_at, source)
             values ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(org)
        .bind(new.key.uuid())
        .bind(master.fingerprint(new.secret).as_slice())
        .bind(new.name)
        .bind(crate::base::key::hint(new.secret))
        .bind(new.scopes)
        .bind(new.expires_at)
        .bind(word(&new.source))
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns a page of keys, newest first, by the primary key.
    pub async fn keys(&mut self, below: Option<KeyId>, limit: i64) -> Result<Vec<Key>> {
        let org = self.org.uuid();
        let rows: Vec<KeyRow> =
            sqlx::query_as(keys!("and ($2::uuid is null or key_id < $2) order by key_id desc limit $3"))
                .bind(org)
                .bind(below.map(Id::uuid))
                .bind(limit)
                .fetch_all(self.connection())
                .await?;
        rows.into_iter().map(Key::try_from).collect()
    }

    /// Reads one key.
    pub async fn key(&mut self, key: KeyId) -> Result<Key> {
        let org = self.org.uuid();
        let row: KeyRow = sqlx::query_as(keys!("and key_id = $2"))
            .bind(org)
            .bind(key.uuid())
            .fetch_one(self.connection())
            .await?;
        row.try_into()
    }

    /// Reads one key and locks it until the transaction ends.
    ///
    /// The lock ensures that a key is replaced or revoked only once.
    pub async fn lock_key(&mut self, key: KeyId) -> Result<Key> {
        let org = self.org.uuid();
        let row: KeyRow = sqlx::query_as(keys!("and key_id = $2 for update"))
            .bind(org)
            .bind(key.uuid())
            .fetch_one(self.connection())
            .await?;
        row.try_into()
    }

    /// Lets a key expire after `seconds`, or earlier if it already expires earlier.
    pub async fn expire_key(&mut self, key: KeyId, seconds: i64) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update api_key
             set expires_at = least(expires_at, now() + $3 * interval '1 second')
             where org_id = $1 and key_id = $2",
        )
        .bind(org)
        .bind(key.uuid())
        .bind(seconds as f64)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Revokes a key; other processes notice within `KEY_CACHE_TTL`.
    pub async fn revoke_key(&mut self, key: KeyId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("update api_key set revoked_at = now() where org_id = $1 and key_id = $2")
            .bind(org)
            .bind(key.uuid())
            .execute(self.connection())
            .await?;
        Ok(())
    }
}

impl Store {
    /// Stores a key's hash; returns whether it is new. Storing the same secret again changes
    /// nothing.
    pub async fn create_key(&self, new: NewKey<'_>) -> Result<bool> {
        let done = sqlx::query(
            "insert into api_key (org_id, key_id, hash, name, hint, scopes, expires_at, source)
             values ($1, $2, $3, $4, $5, $6, $7, $8)
             on conflict (hash) do nothing",
        )
        .bind(new.org.uuid())
        .bind(new.key.uuid())
        .bind(self.master.fingerprint(new.secret).as_slice())
        .bind(new.name)
        .bind(crate::base::key::hint(new.secret))
        .bind(new.scopes)
        .bind(new.expires_at)
        .bind(word(&new.source))
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Returns the live key of a bearer secret; `None` when unknown, expired or revoked.
    ///
    /// Found by the unique index `api_key_hash`. Its last use is recorded at most once per
    /// `KEY_USE_INTERVAL`: a write with every request would make a hot row of each busy caller.
    pub async fn find_key(&self, secret: &str) -> Result<Option<LiveKey>> {
        let row: Option<Row> = sqlx::query_as(
            "with found as (
                select k.org_id, k.key_id, k.name, k.scopes, k.source, k.last_used_at, t.suspended_at is not null as is_suspended
                from api_key k
                join org t using (org_id)
                where k.hash = $1
                  and k.revoked_at is null
                  and (k.expires_at is null or k.expires_at > now())
             ), used as (
                update api_key k
                set last_used_at = now()
                from found f
                where k.org_id = f.org_id
                  and k.key_id = f.key_id
                  and (f.last_used_at is null or f.last_used_at < now() - $2 * interval '1 second')
             )
             select org_id, key_id, name, scopes, source, is_suspended from found",
        )
        .bind(self.master.fingerprint(secret).as_slice())
        .bind(KEY_USE_INTERVAL.as_secs_f64())
        .fetch_optional(&self.system)
        .await?;
        let key = |row: Row| {
            Ok(LiveKey {
                org: Id::from_uuid(row.org_id),
                key: Id::from_uuid(row.key_id),
                name: row.name,
                scopes: row.scopes,
                source: from_word(&row.source)?,
                is_suspended: row.is_suspended,
            })
        };
        row.map(key).transpose()
    }
}
