//! Access tokens of OAuth clients: requested, refreshed once for all, and refused.

use futures::future::join_all;

use super::*;
use crate::{
    fake::{
        receiver::{Receiver, Reply},
        token_endpoint::TokenEndpoint,
    },
    support::service::Ground,
};

fn steps() -> Value {
    json!([{ "tools": [call("echo", "a")] }, { "text": "Done." }])
}

/// Stores the credential of a server with an OAuth client; returns its id.
async fn store(owner: &Caller, fake: &McpFake, client: Value) -> String {
    let credential = json!({ "provider": "mcp", "base_url": fake.url, "oauth": client });
    let stored = owner.post("/credentials", credential).await.ok();
    assert!(!stored.to_string().contains("secret of the test"), "{stored}");
    stored["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn an_access_token_is_requested_and_refreshed_when_the_server_refuses_it() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let endpoint = TokenEndpoint::start(Some(3_600)).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.accept(&["access-1"]);
    let id = store(owner, &fake, endpoint.client(Some("first"))).await;
    let path = format!("/credentials/{id}");
    let shown = owner.get(&path).await.ok()["oauth"].clone();
    assert_eq!((&shown["client_id"], &shown["needs_auth"]), (&json!("sojourn"), &json!(false)));
    assert_eq!(shown["expires_at"], Value::Null);

    let servers = json!([server(&fake, json!({ "credential": id }))]);
    let session = play(owner, servers, steps()).await;
    assert_eq!(outputs(&owner.settled(&session, 1).await), ["echo: a"]);
    assert!(owner.get(&path).await.ok()["oauth"]["expires_at"].is_string());
    // The refresh token was replaced with the first access token; the second refresh needs that one.
    fake.accept(&["access-2"]);
    steer(owner, &session, &script(steps())).await;
    assert_eq!(outputs(&owner.settled(&session, 2).await), ["echo: a", "echo: a"]);
    assert_eq!(endpoint.given(), ["access-1", "access-2"]);
    scene.close().await;
}

#[tokio::test]
async fn a_token_without_a_refresh_token_is_requested_by_the_client_and_again_before_its_end() {
    let scene = Scene::open(&[PRIVATE]).await;
    // Each token ends so soon that it is never used twice.
    let endpoint = TokenEndpoint::start(Some(61)).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    let id = store(&scene.owner, &fake, endpoint.client(None)).await;
    let servers = json!([server(&fake, json!({ "credential": id }))]);
    let session = play(&scene.owner, servers, steps()).await;
    assert_eq!(outputs(&scene.owner.settled(&session, 1).await), ["echo: a"]);
    let before = endpoint.given().len();
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    steer(&scene.owner, &session, &script(steps())).await;
    assert_eq!(outputs(&scene.owner.settled(&session, 2).await).len(), 2);
    assert_eq!(endpoint.given().len(), before + 1);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_turns_in_several_processes_one_refreshes_the_token() {
    let ground = Ground::new().await;
    let (first, second) = (ground.serve(&[PRIVATE]).await, ground.serve(&[PRIVATE]).await);
    let owner = first.owner();
    let endpoint = TokenEndpoint::start(Some(3_600)).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.accept(&["access-1"]);
    let id = store(&owner, &fake, endpoint.client(Some("first"))).await;
    let servers = json!([server(&fake, json!({ "credential": id }))]);
    let sessions = join_all((0..8).map(|_| play(&owner, servers.clone(), steps()))).await;
    for session in &sessions {
        assert_eq!(outputs(&owner.settled(session, 1).await), ["echo: a"]);
    }
    assert_eq!(endpoint.requests(), 1);
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_refused_client_is_told_to_the_webhooks_and_replaced_by_a_caller() {
    let scene = Scene::open(&[PRIVATE, "--allow-private-webhooks=on"]).await;
    let owner = &scene.owner;
    let mut receiver = Receiver::start(vec![Reply::Status(200); 8]).await;
    let webhook = json!({ "url": receiver.url().as_str(), "types": ["credential.*"] });
    owner.post("/webhooks", webhook).await.ok();
    let endpoint = TokenEndpoint::start(None).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.accept(&["access-1"]);
    let id = store(owner, &fake, endpoint.client(Some("stolen"))).await;
    let path = format!("/credentials/{id}");
    let servers = json!([server(&fake, json!({ "credential": id }))]);
    let session = play(owner, servers.clone(), json!([{ "text": "Done." }])).await;
    let log = owner.settled(&session, 1).await;
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert_eq!(failed["code"], "unauthorized");
    assert!(failed["message"].as_str().expect("words").contains("needs a new authorization"), "{failed}");
    assert_eq!(owner.get(&path).await.ok()["oauth"]["needs_auth"], true);
    let told: Value = serde_json::from_slice(&receiver.next().await.body).expect("JSON");
    assert!(
        told.to_string().contains("credential.refresh_failed") && told.to_string().contains(&id),
        "{told}"
    );
    assert!(told.to_string().contains("invalid_grant"), "{told}");

    // It is not tried again before it is replaced.
    let again = play(owner, servers.clone(), json!([{ "text": "Done." }])).await;
    owner.settled(&again, 1).await;
    assert_eq!(endpoint.requests(), 1);
    let error = owner.patch(&path, json!({ "key": "a-key-of-the-test" })).await.error(400);
    assert_eq!(error["param"], "oauth");
    owner.patch(&path, json!({ "oauth": endpoint.client(Some("first")) })).await.ok();
    assert_eq!(owner.get(&path).await.ok()["oauth"]["needs_auth"], false);
    let good = play(owner, servers, steps()).await;
    assert_eq!(outputs(&owner.settled(&good, 1).await), ["echo: a"]);
    scene.close().await;
}

#[tokio::test]
async fn a_token_endpoint_that_is_away_is_tried_again_and_counts_for_nothing() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let endpoint = TokenEndpoint::start(None).await;
    endpoint.fail(Some(503));
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.accept(&["access-1"]);
    let id = store(owner, &fake, endpoint.client(Some("first"))).await;
    let servers = json!([server(&fake, json!({ "credential": id }))]);
    let session = play(owner, servers, json!([{ "text": "Done." }])).await;
    let log = owner.settled(&session, 1).await;
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert!(failed["message"].as_str().expect("words").contains("gave no token: HTTP 503"), "{failed}");
    assert_eq!(owner.get(&format!("/credentials/{id}")).await.ok()["oauth"]["needs_auth"], false);
    endpoint.fail(None);
    endpoint.set_refresh_token("first");
    steer(owner, &session, &script(steps())).await;
    assert_eq!(outputs(&owner.settled(&session, 2).await), ["echo: a"]);
    scene.close().await;
}

#[tokio::test]
async fn clients_that_cannot_be_used_are_refused() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let good =
        json!({ "token_url": "https://auth.example.com/token", "client_id": "c", "client_secret": "s" });
    let base = "https://mcp.example.com";
    for (credential, param) in [
        (json!({ "provider": "mcp", "base_url": base }), "key"),
        (json!({ "provider": "mcp", "base_url": base, "key": "k", "oauth": good }), "oauth"),
        (json!({ "provider": "openai", "oauth": good }), "oauth"),
        (
            json!({ "provider": "mcp", "base_url": base, "oauth": { "token_url": "https://auth.example.com", "client_id": "c" } }),
            "oauth",
        ),
        (
            json!({ "provider": "mcp", "base_url": base, "oauth": { "token_url": "http://8.8.8.8/", "client_id": "c", "client_secret": "s" } }),
            "oauth.token_url",
        ),
        (json!({ "provider": "anthropic" }), "key"),
    ] {
        let error = owner.post("/credentials", credential.clone()).await.error(400);
        assert_eq!(error["param"], param, "{credential}: {error}");
    }
    scene.close().await;
}

#[tokio::test]
async fn a_token_that_ends_at_once_or_is_refused_again_causes_one_request() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let short = TokenEndpoint::start(Some(5)).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    let id = store(owner, &fake, short.client(Some("first"))).await;
    let session = play(owner, json!([server(&fake, json!({ "credential": id }))]), steps()).await;
    assert_eq!(outputs(&owner.settled(&session, 1).await), ["echo: a"]);
    assert_eq!(short.requests(), 1);

    let fixed = TokenEndpoint::start(Some(3_600)).await;
    fixed.fix_token();
    fake.accept(&["another"]);
    let id = store(owner, &fake, fixed.client(None)).await;
    let session =
        play(owner, json!([server(&fake, json!({ "credential": id }))]), json!([{ "text": "x" }])).await;
    let log = owner.settled(&session, 1).await;
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert_eq!(failed["code"], "unauthorized");
    assert!(failed["message"].as_str().expect("words").contains("refuses each access token"), "{failed}");
    assert_eq!(fixed.requests(), 2, "the first token, and another one when it was refused");
    scene.close().await;
}
