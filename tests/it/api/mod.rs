//! The HTTP API without the work of agents in turns.
//!
//! Three personas: the owner, a stranger (another organization) and an anonymous caller. The fixture checks
//! every response against openapi.yaml.

mod agents;
mod audit;
mod children;
mod create_batch;
mod credentials;
mod document;
mod environments;
mod errors;
mod events;
mod examples;
mod export;
mod hostile_import;
mod idempotency;
mod invoke;
mod keys;
mod listing;
mod live;
mod matrix;
mod operator;
mod outage;
mod paging;
mod schema;
mod sessions;
pub mod stream;
mod tokens;
mod webhooks;

use serde_json::{Value, json};
use sojourn::{
    base::Origin,
    domain::session::Source,
    store::{Store, key::NewKey},
};

use crate::support::service::{Caller, Ground, Service};

/// A service with two organizations.
struct World {
    ground: Ground,
    service: Service,
    owner: Caller,
    stranger: Caller,
    anonymous: Caller,
    store: Store,
}

impl World {
    /// A service that runs turns.
    async fn new() -> Self {
        Self::with(&[]).await
    }

    /// A service that never starts a turn.
    async fn still() -> Self {
        Self::with(&["--role=api"]).await
    }

    async fn with(more: &[&str]) -> Self {
        let ground = Ground::new().await;
        let service = ground.serve(more).await;
        let stranger = service.caller(&ground.organization("strangers").await);
        let (owner, anonymous) = (service.owner(), service.caller(""));
        let store = ground.store(2);
        Self { ground, service, owner, stranger, anonymous, store }
    }

    /// Creates another key of the owner's organization.
    async fn key(&self, scopes: &[&str], life_seconds: Option<i64>) -> Caller {
        let origin = Origin::system();
        let org = self.store.find_key(&self.owner.key).await.expect("the owner's key").expect("a key").org;
        let secret = sojourn::base::key::generate(&origin);
        let scopes: Vec<_> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        let expires_at = life_seconds.map(|seconds| origin.now() + time::Duration::seconds(seconds));
        let new = NewKey {
            org,
            key: origin.id(),
            secret: &secret,
            name: "test",
            scopes: &scopes,
            source: Source::Api,
            expires_at,
        };
        self.store.create_key(new).await.expect("a key");
        self.service.caller(&secret)
    }

    /// Revokes the caller's key, as another process does.
    async fn revoke(&self, caller: &Caller) {
        let key = self.store.find_key(&caller.key).await.expect("a store").expect("a live key");
        let mut tx = self.store.begin(key.org).await.expect("a transaction");
        tx.revoke_key(key.key).await.expect("revoked");
        tx.commit().await.expect("a commit");
    }

    async fn end(self) {
        self.store.close().await;
        self.service.stop().await;
        drop(self.ground);
    }
}

/// Id at the top of a response body, or of its session.
#[track_caller]
fn id(body: &Value) -> String {
    let id = body["id"].as_str().or_else(|| body["session"]["id"].as_str());
    id.unwrap_or_else(|| panic!("no id in {body}")).to_owned()
}

/// `data` of a page.
#[track_caller]
fn data(page: &Value) -> &Vec<Value> {
    page["data"].as_array().unwrap_or_else(|| panic!("no page: {page}"))
}

/// An agent that needs no credential.
fn noop(name: &str) -> Value {
    json!({ "name": name, "prompt": "Do nothing.", "model": "scripted/noop" })
}
