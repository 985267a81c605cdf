//! The audit log: every documented action is recorded, and no secret.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{World, data, id, noop};
use crate::support::{pages, service::send};

async fn act_of_each_kind(world: &World) {
    let owner = &world.owner;
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    let agent = format!("/agents/{agent}");
    owner.patch(&agent, json!({ "prompt": "Another.", "limits": { "turns": 3 } })).await.ok();
    owner.post(&format!("{agent}/revisions/1/activate"), json!({})).await.ok();
    let keyed = json!({ "name": "b", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-first-secret" });
    owner.post("/agents", keyed).await.ok();
    let stored = json!({ "provider": "openai", "key": "sk-a-second-secret" });
    let credential = id(&owner.post("/credentials", stored).await.ok());
    owner.patch(&format!("/credentials/{credential}"), json!({ "key": "sk-a-third-secret" })).await.ok();
    let default =
        owner.request(Method::PUT, "/credentials/default").json(&json!({ "credential": credential }));
    send(default).await.ok();
    owner.delete(&format!("/credentials/{credential}")).await;
    let environment = json!({
        "name": "e", "config": { "network": { "allow": [{ "host": "api.example.com" }] } },
        "secrets": [{ "name": "TOKEN", "value": "a-fourth-secret", "hosts": ["api.example.com"] }],
    });
    let environment = format!("/environments/{}", id(&owner.post("/environments", environment).await.ok()));
    owner.patch(&environment, json!({ "name": "f" })).await.ok();
    owner.delete(&environment).await;
    owner.patch("/budget", json!({ "spend_caps": { "days_1": 5 } })).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    owner.post(&format!("/sessions/{session}/client-tokens"), json!({ "ttl": 1 })).await.ok();
    owner.delete(&agent).await;
}

#[tokio::test]
async fn every_change_of_an_organization_is_audited() {
    let world = World::still().await;
    act_of_each_kind(&world).await;
    let all = world.owner.get("/audit?limit=500").await.ok();
    let actions: Vec<_> =
        data(&all).iter().rev().map(|row| row["action"].as_str().expect("a word")).collect();
    assert_eq!(
        actions,
        [
            // Made by the operator: the organization, its first key, the key of the test.
            "organization.created",
            "key.created",
            "key.created",
            "agent.created",
            "agent.updated",
            "agent.revision_activated",
            "credential.created",
            "agent.created",
            "credential.created",
            "credential.rotated",
            "credential.made_default",
            "credential.deleted",
            "environment.created",
            "environment.updated",
            "environment.deleted",
            "budget.updated",
            "client_token.minted",
            "agent.deleted",
        ]
    );
    let written = all.to_string();
    assert!(!written.contains("secret\"") && !written.contains("sjc_"), "{written}");
    let of = |action: &str| -> &Value {
        data(&all).iter().find(|row| row["action"] == action).map(|row| &row["details"]).expect(action)
    };
    assert_eq!(of("agent.updated")["limits"], json!({ "turns": 3 }));
    assert_eq!(of("budget.updated")["spend_caps"]["days_1"], 5);
    assert_eq!(of("client_token.minted")["ttl_seconds"], 60, "as it was clamped");
    assert_eq!(of("environment.created")["secrets"][0]["name"], "TOKEN");
    // A rejected change leaves no record.
    world.owner.patch("/budget", json!({ "spend_caps": { "days_1": "much" } })).await.error(400);
    assert_eq!(data(&world.owner.get("/audit?action=budget.*").await.ok()).len(), 1);
    world.end().await;
}

#[test]
fn the_table_of_actions_is_that_of_the_code() {
    let told = pages::page("docs/organizations.md");
    let told = told.words("action");
    let code = [
        "agents/mod",
        "agents/credentials",
        "agents/environments",
        "organization/keys",
        "organization/mod",
        "organization/usage",
        "sessions/create",
        "sessions/tokens",
        "triggers/invoke",
        "triggers/mod",
        "triggers/schedules",
        "webhooks/mod",
    ]
    .map(|name| pages::text(&format!("src/http/{name}.rs")))
    .into_iter()
    .chain(
        [
            "src/http/organization/admin.rs",
            "src/journal/export.rs",
            "src/store/organizations/operator.rs",
            "src/store/deliveries/outbox.rs",
            "src/trigger/fire.rs",
        ]
        .map(pages::text),
    )
    .collect::<String>();
    let unknown: Vec<_> = told.iter().filter(|action| !code.contains(&format!("\"{action}\""))).collect();
    assert!(unknown.is_empty(), "docs/organizations.md names {unknown:?}");
    // What `act` and `record_audit` are called with: two words and a point, in quotes.
    let calls = code.split(".act(").chain(code.split("record_audit(")).skip(1);
    let named = calls.filter_map(|rest| rest.split(';').next()?.split('"').nth(1));
    let is_action = |word: &&str| {
        word.split('.').count() == 2 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'.' || b == b'_')
    };
    let missing: BTreeSet<_> = named.filter(is_action).filter(|word| !told.contains(*word)).collect();
    assert!(missing.is_empty(), "docs/organizations.md does not document {missing:?}");
}
