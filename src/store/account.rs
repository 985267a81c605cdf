//! What the operator agreed with an organization: its own prices.

use super::{
    Result, Store, Tx,
    column::{from_json, json},
};
use crate::domain::{TenantId, price::PriceList};

const PRICES: &str = "select prices::text from account where tenant_id = $1";

impl Tx {
    /// The organization's own price list, if it has one.
    pub async fn prices(&mut self) -> Result<Option<PriceList>> {
        let tenant = self.tenant.uuid();
        let row: Option<(Option<String>,)> =
            sqlx::query_as(PRICES).bind(tenant).fetch_optional(self.connection()).await?;
        row.and_then(|(prices,)| prices).as_deref().map(from_json).transpose()
    }
}

impl Store {
    /// The organization's own price list, for the service's own work.
    pub async fn prices_of(&self, tenant: TenantId) -> Result<Option<PriceList>> {
        let row: Option<(Option<String>,)> =
            sqlx::query_as(PRICES).bind(tenant.uuid()).fetch_optional(&self.system).await?;
        row.and_then(|(prices,)| prices).as_deref().map(from_json).transpose()
    }

    /// Puts a price list in front of the bundled one, or takes it away.
    ///
    /// # Errors
    /// `Conflict` when there is no such organization.
    pub async fn set_prices(&self, tenant: TenantId, prices: Option<&PriceList>) -> Result<()> {
        sqlx::query(
            "insert into account (tenant_id, prices)
             values ($1, $2::json)
             on conflict (tenant_id) do update set prices = excluded.prices, updated_at = now()",
        )
        .bind(tenant.uuid())
        .bind(prices.map(json))
        .execute(&self.system)
        .await?;
        Ok(())
    }
}
