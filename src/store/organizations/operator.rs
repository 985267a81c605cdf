//! Actions of the operator on organizations, each with an audit entry.
//!
//! Called by `sojourn admin` and by the API for operators. Actions within an organization's own
//! transaction are in `org` and `spend`.

use serde_json::{Value, json};

use crate::store::{
    Result, Store,
    audit::Act,
    key::NewKey,
    org::{Organization, Share},
};
use crate::{
    base::{Origin, key},
    domain::{Actor, ActorKind, KeyId, OrgId, price::PriceList, session::Source},
};

/// Performs the operator's actions.
pub struct Operator<'a> {
    store: &'a Store,
    origin: &'a Origin,
}

/// Returns the actor that the audit log shows for the operator.
pub(crate) fn actor() -> Actor {
    Actor { id: None, display: Some("operator".to_owned()), kind: ActorKind::Human }
}

impl Store {
    /// Returns the operator's actions; they apply to any organization.
    pub fn operator<'a>(&'a self, origin: &'a Origin) -> Operator<'a> {
        Operator { store: self, origin }
    }
}

impl Operator<'_> {
    /// Creates an organization with one key for all scopes; returns the key, which is not readable
    /// again.
    pub async fn create(&self, org: OrgId, name: &str) -> Result<String> {
        self.found(org, name).await?;
        let secret = key::generate(self.origin);
        self.grant(org, "first key", &secret).await?;
        Ok(secret)
    }

    /// Creates an organization without a key, unless one with that id exists.
    pub async fn found(&self, org: OrgId, name: &str) -> Result<()> {
        if self.store.create_org(org, name, self.origin).await? {
            self.record_audit(org, "organization.created", json!({ "name": name })).await?;
        }
        Ok(())
    }

    /// Stores a secret as a key for all scopes of an organization.
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

    /// Suspends or resumes an organization.
    pub async fn suspend(&self, org: OrgId, is_suspended: bool) -> Result<()> {
        self.store.suspend_org(org, is_suspended).await?;
        let action = if is_suspended { "organization.suspended" } else { "organization.resumed" };
        self.record_audit(org, action, json!({})).await
    }

    /// Deletes all data of an organization except its audit log.
    pub async fn delete(&self, org: OrgId) -> Result<()> {
        self.store.delete_org(org).await?;
        self.record_audit(org, "organization.deleted", json!({})).await
    }

    /// Sets an organization's concurrency and its weight against other organizations.
    pub async fn share(&self, org: OrgId, share: Share) -> Result<Organization> {
        let changed = self.store.set_share(org, share).await?;
        let details = json!({ "concurrency": changed.concurrency, "weight": changed.weight });
        self.record_audit(org, "organization.limits_changed", details).await?;
        Ok(changed)
    }

    /// Adds to the balance of an organization; returns the new balance.
    pub async fn top_up(&self, org: OrgId, micros: i64) -> Result<i64> {
        let left = self.store.top_up(org, micros).await?;
        let details = json!({ "added_micros": micros, "balance_micros": left });
        self.record_audit(org, "balance.changed", details).await?;
        Ok(left)
    }

    /// Sets the balance of an organization; `None` removes the limit.
    pub async fn set_balance(&self, org: OrgId, micros: Option<i64>) -> Result<()> {
        self.store.set_balance(org, micros).await?;
        self.record_audit(org, "balance.changed", json!({ "balance_micros": micros })).await
    }

    /// Sets or removes the price list that overrides the bundled one.
    pub async fn set_prices(&self, org: OrgId, prices: Option<&PriceList>) -> Result<()> {
        self.store.set_prices(org, prices).await?;
        let version = prices.map(|list| &list.version);
        self.record_audit(org, "prices.changed", json!({ "version": version })).await
    }

    /// Rewraps every data key with the current master key.
    ///
    /// Returns the number of organizations whose key used the previous one.
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
