//! Cost: what a session costs, and the limits that bound it.

mod aborted;
mod all_costs;
mod children;
mod cost;
mod direct;
mod exit;
mod limits;
mod operator;
mod reservations;
mod spend;

use serde_json::{Value, json};
use sojourn::{
    domain::{OrgId, price::PriceList},
    store::Store,
};
use uuid::Uuid;

use crate::{
    support::{
        service::{Caller, Ground},
        wait::wait_for,
    },
    turns::Scene,
};

/// Operator access to a scene.
pub struct Operator {
    pub store: Store,
    pub org: OrgId,
}

impl Operator {
    pub async fn of(ground: &Ground, owner: &Caller) -> Self {
        let store = ground.store(2);
        let org = store.find_key(&owner.key).await.expect("a store").expect("a key").org;
        Self { store, org }
    }

    /// Adds prices that override the bundled ones.
    pub async fn price(&self, list: Value) {
        let list: PriceList = serde_json::from_value(list).expect("a list");
        self.store.set_prices(self.org, Some(&list)).await.expect("prices");
    }
}

/// A scene whose agents call a fake at `base_url`, and its operator.
pub async fn scene(base_url: &str) -> (Scene, Operator) {
    let scene = Scene::open(&[&format!("--anthropic-base-url={base_url}")]).await;
    let operator = Operator::of(&scene.ground, &scene.owner).await;
    (scene, operator)
}

/// Creates an agent on `anthropic/m-1`; returns its id.
pub async fn agent(owner: &Caller, more: Value) -> String {
    let mut agent =
        json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test" });
    let fields = agent.as_object_mut().expect("an object");
    fields.extend(more.as_object().cloned().unwrap_or_default());
    owner.post("/agents", agent).await.ok()["id"].as_str().expect("an id").to_owned()
}

/// Creates a session with one message, again while the service has no answer or is at work on it; returns its id.
pub async fn start(owner: &Caller, agent: &str, more: Value) -> String {
    let mut session = json!({ "agent": agent, "input": "Go.", "key": Uuid::new_v4() });
    let fields = session.as_object_mut().expect("an object");
    fields.extend(more.as_object().cloned().unwrap_or_default());
    let answer = wait_for("the session is created", async || {
        let answer = owner.post("/sessions", session.clone()).await;
        let is_early = answer.status == 503 || answer.body["error"]["code"] == "in_flight";
        (!is_early).then_some(answer)
    });
    answer.await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}
