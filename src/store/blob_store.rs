//! The id of the deployment's blob store.

use uuid::Uuid;

use crate::store::{Result, Store};

impl Store {
    /// Returns the id of the blob store that the deployment uses; `None` before its first start.
    pub async fn blob_store_id(&self) -> Result<Option<Uuid>> {
        Ok(sqlx::query_scalar("select blob_store_id from blob_store").fetch_optional(&self.system).await?)
    }

    /// Makes this the deployment's blob store, if it has none. Returns the id of the one that it has.
    pub async fn claim_blob_store(&self, id: Uuid) -> Result<Uuid> {
        sqlx::query("insert into blob_store (blob_store_id) values ($1) on conflict do nothing")
            .bind(id)
            .execute(&self.system)
            .await?;
        Ok(sqlx::query_scalar("select blob_store_id from blob_store").fetch_one(&self.system).await?)
    }
}
