//! Client tokens: a browser's access to one session, and to nothing else.

use reqwest::Method;
use serde_json::{Value, json};

use super::{World, data, id, noop};
use crate::support::service::{Answer, Caller, send};

/// Creates two sessions of the owner.
async fn sessions(world: &World) -> (String, String) {
    world.owner.post("/agents", noop("a")).await.ok();
    let body = json!({ "agent": "a", "input": "x" });
    let (one, other) = (world.owner.post("/sessions", body.clone()), world.owner.post("/sessions", body));
    (id(&one.await.ok()), id(&other.await.ok()))
}

async fn mint(world: &World, session: &str, body: Value) -> Caller {
    let minted = world.owner.post(&format!("/sessions/{session}/client-tokens"), body).await;
    assert_eq!(minted.status, 201);
    assert_eq!(minted.body["token"], minted.body["client_token"]);
    world.service.caller(minted.body["token"].as_str().expect("a token"))
}

async fn by_url(base: &str, path: &str, token: &str) -> Answer {
    let glue = if path.contains('?') { '&' } else { '?' };
    send(reqwest::Client::new().get(format!("{base}{path}{glue}token={token}"))).await
}

#[tokio::test]
async fn a_token_reads_and_steers_its_own_session_only() {
    let world = World::still().await;
    let (mine, other) = sessions(&world).await;
    let token = mint(&world, &mine, json!({})).await;
    token.get(&format!("/sessions/{mine}/events")).await.ok();
    token.get(&format!("/sessions/{mine}/messages")).await.ok();
    assert_eq!(token.post(&format!("/sessions/{mine}/messages"), json!({ "text": "hi" })).await.status, 202);
    for path in ["events", "messages", "stream"] {
        token.get(&format!("/sessions/{other}/{path}")).await.error(404);
    }
    token.post(&format!("/sessions/{other}/messages"), json!({ "text": "hi" })).await.error(404);
    for path in
        [format!("/sessions/{mine}"), format!("/sessions/{mine}/turns"), "/sessions".into(), "/agents".into()]
    {
        token.get(&path).await.error(401);
    }
    for path in ["archive", "cancel", "client-tokens", "destinations"] {
        token.post(&format!("/sessions/{mine}/{path}"), json!({})).await.error(401);
    }
    // What refused it there does not refuse it here.
    token.get(&format!("/sessions/{mine}/events")).await.ok();
    world.end().await;
}

#[tokio::test]
async fn a_token_does_what_its_scopes_say() {
    let world = World::still().await;
    let (session, _) = sessions(&world).await;
    let (events, messages) = (format!("/sessions/{session}/events"), format!("/sessions/{session}/messages"));
    let reader = mint(&world, &session, json!({ "scopes": ["read"] })).await;
    reader.get(&events).await.ok();
    reader.post(&messages, json!({ "text": "hi" })).await.error(403);
    let writer = mint(&world, &session, json!({ "scopes": ["steer"] })).await;
    writer.get(&events).await.error(403);
    writer.post(&messages, json!({ "text": "hi" })).await.ok();
    for scopes in [json!([]), json!(["admin"]), json!("read")] {
        let path = format!("/sessions/{session}/client-tokens");
        world.owner.post(&path, json!({ "scopes": scopes })).await.error(400);
    }
    world.end().await;
}

#[tokio::test]
async fn a_token_may_stand_in_a_url_and_a_key_may_not() {
    let world = World::still().await;
    let (session, _) = sessions(&world).await;
    let path = format!("/sessions/{session}/events?limit=1");
    let token = mint(&world, &session, json!({})).await;
    assert_eq!(data(&by_url(&token.base, &path, &token.key).await.ok()).len(), 1);
    let pending = format!("/sessions/{session}/pending");
    assert!(data(&by_url(&token.base, &format!("{pending}?limit=1"), &token.key).await.ok()).is_empty());
    by_url(&token.base, &path, &world.owner.key).await.error(401);
    by_url(&token.base, &path, "sjc_unknown").await.error(401);
    by_url(&token.base, &path, "").await.error(401);
    // The header takes precedence: a valid token in the URL does not replace an invalid key.
    let request =
        world.service.caller("wrong key").request(Method::GET, &format!("{path}&token={}", token.key));
    send(request).await.error(401);
    world.end().await;
}

#[tokio::test]
async fn a_token_sees_progress_unless_it_was_minted_for_more() {
    let world = World::new().await;
    let owner = &world.owner;
    let session = owner.play(json!([{ "text": "done" }])).await;
    owner.settled(&session, 1).await;
    let levels = async |caller: &Caller, query: &str| -> Vec<String> {
        let list = caller.get(&format!("/sessions/{session}/events?limit=500{query}")).await.ok();
        let mut levels: Vec<_> = data(&list).iter().map(|event| event["level"].to_string()).collect();
        levels.sort();
        levels.dedup();
        levels
    };
    let plain = mint(&world, &session, json!({})).await;
    assert_eq!(levels(&plain, "").await, [r#""progress""#, r#""user""#]);
    assert_eq!(levels(&plain, "&level=internal").await, [r#""progress""#, r#""user""#]);
    plain.get(&format!("/sessions/{session}/steps")).await.error(404);
    let internal = mint(&world, &session, json!({ "level": "internal" })).await;
    assert_eq!(levels(&internal, "").await, [r#""internal""#, r#""progress""#, r#""user""#]);
    assert_eq!(data(&internal.get(&format!("/sessions/{session}/steps")).await.ok()).len(), 1);
    let user = mint(&world, &session, json!({ "level": "user" })).await;
    assert_eq!(levels(&user, "").await, [r#""user""#]);
    // A single event above the token's level returns 404.
    let log = owner.get(&format!("/sessions/{session}/events?type=step.completed")).await.ok();
    let step = format!("/sessions/{session}/events/{}", id(&data(&log)[0]));
    plain.get(&step).await.error(404);
    plain.get(&format!("{step}/content")).await.error(404);
    internal.get(&step).await.ok();
    world.end().await;
}

#[tokio::test]
async fn a_token_lives_no_longer_than_its_time_or_its_session() {
    let world = World::still().await;
    let (session, _) = sessions(&world).await;
    let path = format!("/sessions/{session}/client-tokens");
    for (wanted, seconds) in
        [(json!(1), 60), (json!(1_000_000), 86_400), (json!(600), 600), (json!(null), 3_600)]
    {
        let before = time::OffsetDateTime::now_utc();
        let minted = world.owner.post(&path, json!({ "ttl": wanted })).await.ok();
        let text = minted["expires_at"].as_str().expect("a time");
        let expires = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
        let life = expires.expect("RFC 3339") - before;
        assert!((seconds..seconds + 30).contains(&life.whole_seconds()), "{wanted}: {life}");
    }
    let events = format!("/sessions/{session}/events");
    let (late, token) = (mint(&world, &session, json!({})).await, mint(&world, &session, json!({})).await);
    late.get(&events).await.ok();
    let mut superuser = world.ground.database.superuser().await;
    let hash = world.store.master().fingerprint(&late.key);
    sqlx::query("update client_token set expires_at = now() where hash = $1")
        .bind(hash.as_slice())
        .execute(&mut superuser)
        .await
        .expect("an expired token");
    late.get(&events).await.error(401);
    token.get(&events).await.ok();
    let held: i64 =
        sqlx::query_scalar("select count(*) from client_token where encode(hash, 'escape') like 'sjc%'")
            .fetch_one(&mut superuser)
            .await
            .expect("a count");
    assert_eq!(held, 0, "only hashes are stored");
    world.owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    token.get(&events).await.error(401);
    drop(superuser);
    world.end().await;
}

#[tokio::test]
async fn archive_and_mint_at_once_leave_no_token_alive() {
    let world = World::still().await;
    for _ in 0..5 {
        let session = id(&world.owner.post("/sessions", json!({})).await.ok());
        let path = format!("/sessions/{session}");
        let (mint, archive) = (format!("{path}/client-tokens"), format!("{path}/archive"));
        let mints = (0..4).map(|_| world.owner.post(&mint, json!({})));
        let (archived, minted) =
            tokio::join!(world.owner.post(&archive, json!({})), futures::future::join_all(mints),);
        archived.ok();
        for token in minted.iter().filter_map(|answer| answer.body["token"].as_str()) {
            world.service.caller(token).get(&format!("{path}/events")).await.error(401);
        }
    }
    world.end().await;
}

#[tokio::test]
async fn a_key_mints_no_token_that_reads_more_than_itself() {
    let world = World::still().await;
    let (session, _) = sessions(&world).await;
    let made = world.owner.post("/keys", json!({ "name": "w", "scopes": ["sessions:write"] })).await.ok();
    let writer = world.service.caller(made["key"].as_str().expect("a key"));
    let path = format!("/sessions/{session}/client-tokens");
    for body in [
        json!({}),
        json!({ "scopes": ["read"] }),
        json!({ "scopes": ["steer", "read"], "level": "internal" }),
    ] {
        writer.post(&path, body).await.error(403);
    }
    assert_eq!(writer.post(&path, json!({ "scopes": ["steer"] })).await.status, 201);
    // Nor does it get one with a session that it creates, by either way.
    let agent = world.owner.inline_agent().await;
    let input = json!({ "script": [{ "text": "Done." }] });
    for (path, body) in [
        ("/sessions".to_owned(), json!({ "agent": agent, "input": input })),
        (format!("/agents/{agent}/invoke"), json!({ "input": input })),
    ] {
        let created = writer.post(&path, body).await.ok();
        let (session, token) =
            (&created["session"]["id"], created["client_token"].as_str().expect("a token"));
        let events = format!("/sessions/{}/events", session.as_str().expect("an id"));
        world.service.caller(token).get(&events).await.error(403);
    }
    world.end().await;
}
