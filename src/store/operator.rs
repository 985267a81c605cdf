//! What the operator does to organizations, and that it is remembered.
//!
//! Called by `sojourn admin` and by the API for operators; what a tenant's own transaction
//! may do, `tenant` and `spend` have.

use serde_json::{Value, json};

use super::{
    Result, Store,
    audit::Act,
    key::NewKey,
    tenant::{Organization, Share},
};
use crate::{
    base::{Origin, key},
    domain::{Actor, ActorKind, KeyId, TenantId, price::PriceList, session::Source},
};

/// The operator at work.
pub struct Operator<'a> {
    store: &'a Store,
    origin: &'a Origin,
}

/// How the audit log names whoever runs the service.
pub fn actor() -> Actor {
    Actor { id: None, display: Some("operator".to_owned()), kind: ActorKind::Human }
}

impl Store {
    /// The operator, to whom every organization is open.
    pub fn operator<'a>(&'a self, origin: &'a Origin) -> Operator<'a> {
        Operator { store: self, origin }
    }
}

impl Operator<'_> {
    /// Makes an organization with one key for everything; returns the key, which nobody
    /// can read again.
    pub async fn create(&self, tenant: TenantId, name: &str) -> Result<String> {
        self.found(tenant, name).await?;
        let secret = key::generate(self.origin);
        self.grant(tenant, "first key", &secret).await?;
        Ok(secret)
    }

    /// Makes an organization without a key, where there is none of that id.
    pub async fn found(&self, tenant: TenantId, name: &str) -> Result<()> {
        if self.store.create_tenant(tenant, name, self.origin).await? {
            self.remember(tenant, "organization.created", json!({ "name": name })).await?;
        }
        Ok(())
    }

    /// Lets a secret open everything of an organization.
    pub async fn grant(&self, tenant: TenantId, name: &str, secret: &str) -> Result<()> {
        let (id, scopes): (KeyId, _) = (self.origin.id(), ["*".to_owned()]);
        let (key, source) = (id, Source::Api);
        let new = NewKey { tenant, key, secret, name, scopes: &scopes, source, expires_at: None };
        if self.store.create_key(new).await? {
            let details = json!({ "key_id": id, "name": name, "scopes": scopes });
            self.remember(tenant, "key.created", details).await?;
        }
        Ok(())
    }

    /// Suspends an organization or lets it go on.
    pub async fn suspend(&self, tenant: TenantId, is_suspended: bool) -> Result<()> {
        self.store.suspend_tenant(tenant, is_suspended).await?;
        let action = if is_suspended { "organization.suspended" } else { "organization.resumed" };
        self.remember(tenant, action, json!({})).await
    }

    /// Destroys everything that an organization has; only its audit log stays.
    pub async fn delete(&self, tenant: TenantId) -> Result<()> {
        self.store.delete_tenant(tenant).await?;
        self.remember(tenant, "organization.deleted", json!({})).await
    }

    /// Says how many turns of an organization run at once, and which share of the workers
    /// it has beside others.
    pub async fn share(&self, tenant: TenantId, share: Share) -> Result<Organization> {
        let changed = self.store.set_share(tenant, share).await?;
        let details = json!({ "concurrency": changed.concurrency, "weight": changed.weight });
        self.remember(tenant, "organization.limits_changed", details).await?;
        Ok(changed)
    }

    /// Adds to what is left to an organization; returns the sum.
    pub async fn top_up(&self, tenant: TenantId, micros: i64) -> Result<i64> {
        let left = self.store.top_up(tenant, micros).await?;
        let details = json!({ "added_micros": micros, "balance_micros": left });
        self.remember(tenant, "balance.changed", details).await?;
        Ok(left)
    }

    /// Sets what is left to an organization; `None` is without a bound.
    pub async fn set_balance(&self, tenant: TenantId, micros: Option<i64>) -> Result<()> {
        self.store.set_balance(tenant, micros).await?;
        self.remember(tenant, "balance.changed", json!({ "balance_micros": micros })).await
    }

    /// Puts a price list in front of the bundled one, or takes it away.
    pub async fn set_prices(&self, tenant: TenantId, prices: Option<&PriceList>) -> Result<()> {
        self.store.set_prices(tenant, prices).await?;
        let version = prices.map(|list| &list.version);
        self.remember(tenant, "prices.changed", json!({ "version": version })).await
    }

    /// Seals every data key under the present master key; returns how many organizations
    /// were under the one before.
    pub async fn rewrap(&self) -> Result<usize> {
        let rewrapped = self.store.rewrap_data_keys(self.origin).await?;
        for tenant in &rewrapped {
            self.remember(*tenant, "master_key.replaced", json!({})).await?;
        }
        Ok(rewrapped.len())
    }

    async fn remember(&self, tenant: TenantId, action: &'static str, details: Value) -> Result<()> {
        let (id, target) = (self.origin.id(), Some(tenant.to_string()));
        self.store.remember(tenant, &Act { id, actor: &actor(), action, target, details }).await
    }
}
