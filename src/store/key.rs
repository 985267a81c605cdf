//! API keys: looked up by their peppered hash.

use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store};
use crate::{
    base::{Id, Timestamp},
    domain::{KeyId, TenantId},
};

/// A key that may be used now.
#[derive(Clone, Debug)]
pub struct LiveKey {
    pub tenant: TenantId,
    pub key: KeyId,
    pub name: String,
    pub scopes: Vec<String>,
}

/// A key to store.
#[derive(Debug)]
pub struct NewKey<'a> {
    pub tenant: TenantId,
    pub key: KeyId,
    pub secret: &'a str,
    pub name: &'a str,
    pub scopes: &'a [String],
    pub expires_at: Option<Timestamp>,
}

#[derive(FromRow)]
struct Row {
    tenant_id: Uuid,
    key_id: Uuid,
    name: String,
    scopes: Vec<String>,
}

impl Store {
    /// Stores a key's hash. Idempotent: the same secret again changes nothing.
    pub async fn create_key(&self, new: NewKey<'_>) -> Result<()> {
        sqlx::query(
            "insert into api_key (tenant_id, key_id, hash, name, hint, scopes, expires_at)
             values ($1, $2, $3, $4, $5, $6, $7)
             on conflict (hash) do nothing",
        )
        .bind(new.tenant.uuid())
        .bind(new.key.uuid())
        .bind(self.master.fingerprint(new.secret).as_slice())
        .bind(new.name)
        .bind(crate::base::key::hint(new.secret))
        .bind(new.scopes)
        .bind(new.expires_at)
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// The live key behind a bearer secret; `None` when unknown, expired or revoked.
    ///
    /// Found by the unique index `api_key_hash`.
    pub async fn find_key(&self, secret: &str) -> Result<Option<LiveKey>> {
        let row: Option<Row> = sqlx::query_as(
            "select tenant_id, key_id, name, scopes
             from api_key
             where hash = $1
               and revoked_at is null
               and (expires_at is null or expires_at > now())",
        )
        .bind(self.master.fingerprint(secret).as_slice())
        .fetch_optional(&self.system)
        .await?;
        Ok(row.map(|row| LiveKey {
            tenant: Id::from_uuid(row.tenant_id),
            key: Id::from_uuid(row.key_id),
            name: row.name,
            scopes: row.scopes,
        }))
    }

    /// Ends a key at once; other processes notice within `KEY_CACHE_TTL`.
    pub async fn revoke_key(&self, tenant: TenantId, key: KeyId) -> Result<()> {
        sqlx::query("update api_key set revoked_at = coalesce(revoked_at, now()) where tenant_id = $1 and key_id = $2")
            .bind(tenant.uuid())
            .bind(key.uuid())
            .execute(&self.system)
            .await?;
        Ok(())
    }
}
