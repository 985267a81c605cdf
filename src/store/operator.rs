//! What the operator does to organizations, and that it is remembered.
//!
//! Called by `sojourn admin` and by the API for operators; what an organization's own transaction
//! may do, `organization` and `spend` have.

use serde_json::{Value, json};

use super::{
    Result, Store,
    audit::Act,
    key::NewKey,
    org::{Organization, Share},
};
use crate::{
    base::{Origin, key},
    domain::{Actor, ActorKind, KeyId, OrgId, price::PriceList, session::Source},
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
    pub async fn create(&self, org: OrgId, name: &str) -> Result<String> {
        self.found(org, name).await?;
        let secret = key::generate(self.origin);
        self.grant(org, "first key", &secret).await?;
        Ok(secret)
    }

    /// Makes an organization without a key, where there is none of that id.
    pub async fn found(&self, org: OrgId, name: &str) -> Result<()> {
        if self.store.create_org(org, name, self.origin).await? {
            self.record_audit(org, "organization.created", json!({ "name": name })).await?;
        }
        Ok(())
    }

    /// Lets a secret open everything of an organization.
    pub async fn grant(&self, org: OrgId, name: &str, secret: &str) -> Result<()> {
        let (id, scopes): (KeyId, _) = (self.origin.id(), ["*".to_owned()]);
        let (key, source) = (id, Source::Api);
        let new = NewKey { org, key, secret, name, scopes: &scopes, source, expires_at: None };
        if self.store.create_key(new).await? {
            let details = json!({ "key_id": id, "name": name, "scopes": scopes });
            self.record_audit(org, "key.created", details).await?;
        }
        Ok(())
    }

    /// Suspends an organization or lets it go on.
    pub async fn suspend(&self, org: OrgId, is_suspended: bool) -> Result<()> {
        self.store.suspend_org(org, is_suspended).await?;
        let action = if is_suspended { "organization.suspended" } else { "organization.resumed" };
        self.record_audit(org, action, json!({})).await
    }

    /// Destroys everything that an organization has; only its audit log stays.
    pub async fn delete(&self, org: OrgId) -> Result<()> {
        self.store.delete_org(org).await?;
        self.record_audit(org, "organization.deleted", json!({})).await
    }

    /// Says how many turns of an organization run at once, and which share of the workers
    /// it has beside others.
    pub async fn share(&self, org: OrgId, share: Share) -> Result<Organization> {
        let changed = self.store.set_share(org, share).await?;
        let details = json!({ "concurrency": changed.concurrency, "weight": changed.weight });
        self.record_audit(org, "organization.limits_changed", details).await?;
        Ok(changed)
    }

    /// Adds to what is left to an organization; returns the sum.
    pub async fn top_up(&self, org: OrgId, micros: i64) -> Result<i64> {
        let left = self.store.top_up(org, micros).await?;
        let details = json!({ "added_micros": micros, "balance_micros": left });
        self.record_audit(org, "balance.changed", details).await?;
        Ok(left)
    }

    /// Sets what is left to an organization; `None` is without a bound.
    pub async fn set_balance(&self, org: OrgId, micros: Option<i64>) -> Result<()> {
        self.store.set_balance(org, micros).await?;
        self.record_audit(org, "balance.changed", json!({ "balance_micros": micros })).await
    }

    /// Puts a price list in front of the bundled one, or takes it away.
    pub async fn set_prices(&self, org: OrgId, prices: Option<&PriceList>) -> Result<()> {
        self.store.set_prices(org, prices).await?;
        let version = prices.map(|list| &list.version);
        self.record_audit(org, "prices.changed", json!({ "version": version })).await
    }

    /// Seals every data key under the present master key; returns how many organizations
    /// were under the one before.
    pub async fn rewrap(&self) -> Result<usize> {
        let rewrapped = self.store.rewrap_data_keys(self.origin).await?;
        for org in &rewrapped {
            self.record_audit(*org, "master_key.replaced", json!({})).await?;
        }
        Ok(rewrapped.len())
    }

    async fn record_audit(&self, org: OrgId, action: &'static str, details: Value) -> Result<()> {
        let (id, target) = (self.origin.id(), Some(org.to_string()));
        self.store.record_audit(org, &Act { id, actor: &actor(), action, target, details }).await
    }
}
