//! Organizations and their data keys.

use super::{Error, Result, Store, Tx};
use crate::{
    base::{
        Id, Origin,
        seal::{DataKey, MasterKey},
    },
    domain::TenantId,
};

impl Store {
    /// Makes an organization with a data key of its own.
    pub async fn create_tenant(&self, tenant: TenantId, name: &str, origin: &Origin) -> Result<()> {
        let wrapped = self.master.wrap(&DataKey::generate(origin), &tenant.to_string(), origin);
        sqlx::query("insert into tenant (tenant_id, name, data_key) values ($1, $2, $3)")
            .bind(tenant.uuid())
            .bind(name)
            .bind(wrapped)
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// The oldest organization: the one that the first start makes.
    pub async fn first_tenant(&self) -> Result<Option<TenantId>> {
        // A handful of rows, once per start: no index.
        let row: Option<(uuid::Uuid,)> =
            sqlx::query_as("select tenant_id from tenant order by created_at, tenant_id limit 1")
                .fetch_optional(&self.system)
                .await?;
        Ok(row.map(|(tenant,)| Id::from_uuid(tenant)))
    }

    /// The key that opens a tenant's secrets, for the service's own work.
    pub async fn data_key(&self, tenant: TenantId) -> Result<DataKey> {
        let (wrapped,): (Vec<u8>,) = sqlx::query_as("select data_key from tenant where tenant_id = $1")
            .bind(tenant.uuid())
            .fetch_one(&self.system)
            .await?;
        unwrap(&self.master, &wrapped, tenant)
    }
}

impl Tx {
    /// The key that opens this tenant's secrets.
    pub async fn data_key(&mut self, master: &MasterKey) -> Result<DataKey> {
        let tenant = self.tenant;
        let (wrapped,): (Vec<u8>,) = sqlx::query_as("select data_key from tenant where tenant_id = $1")
            .bind(tenant.uuid())
            .fetch_one(self.connection())
            .await?;
        unwrap(master, &wrapped, tenant)
    }
}

fn unwrap(master: &MasterKey, wrapped: &[u8], tenant: TenantId) -> Result<DataKey> {
    master
        .unwrap(wrapped, &tenant.to_string())
        .map_err(|error| Error::Corrupt(format!("data key of {tenant}: {error}")))
}
