//! Repeated requests: one effect, one response.

use futures::future::join_all;
use serde_json::{Value, json};

use super::{
    World, data, id,
    matrix::{OPEN, Things, Try, is_operators, never, table, things},
    noop,
};
use crate::support::{
    contract::{Operation, operations},
    service::{Answer, Caller, send},
};

async fn post_once(caller: &Caller, path: &str, key: &str, body: &Value) -> Answer {
    let request = caller.request(reqwest::Method::POST, path).header("Idempotency-Key", key).json(body);
    send(request).await
}

fn is_replayed(answer: &Answer) -> bool {
    answer.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
}

#[tokio::test]
async fn fifty_equal_creates_at_once_make_one_session() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let by_header = json!({ "agent": "a", "input": "hi" });
    let answers = join_all((0..50).map(|_| post_once(owner, "/sessions", "once", &by_header))).await;
    one_session(&answers);
    assert_eq!(answers.iter().filter(|answer| is_replayed(answer)).count(), 49);
    let by_key = json!({ "agent": "a", "input": "hi", "key": "the one" });
    let answers = join_all((0..50).map(|_| owner.post("/sessions", by_key.clone()))).await;
    one_session(&answers);
    assert_eq!(data(&owner.get("/sessions").await.ok()).len(), 2);
    world.end().await;
}

#[track_caller]
fn one_session(answers: &[Answer]) {
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((count(201), count(200)), (1, answers.len() - 1), "{answers:#?}");
    assert!(answers.iter().all(|answer| id(&answer.body) == id(&answers[0].body)));
    let mut tokens: Vec<_> = answers.iter().map(|answer| answer.body["client_token"].to_string()).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), answers.len(), "each response has its own token");
}

#[tokio::test]
async fn a_replay_says_so_and_another_request_is_refused() {
    let world = World::still().await;
    let owner = &world.owner;
    let first = post_once(owner, "/agents", "k", &noop("a")).await;
    assert!(first.status == 201 && !is_replayed(&first));
    owner.patch(&format!("/agents/{}", id(&first.body)), json!({ "prompt": "changed" })).await.ok();
    let again = post_once(owner, "/agents", "k", &noop("a")).await;
    assert!(again.status == 200 && is_replayed(&again));
    assert_eq!(again.body, first.body, "the stored response, not the current agent");
    for (path, body) in [("/agents", noop("b")), ("/credentials", json!({ "key": "x" }))] {
        let error = post_once(owner, path, "k", &body).await.error(422);
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("idempotency_mismatch"), &json!("Idempotency-Key"))
        );
    }
    // The same key in another organization is another key.
    assert_eq!(post_once(&world.stranger, "/agents", "k", &noop("x")).await.status, 201);
    for bad in ["", &"k".repeat(256)] {
        let error = post_once(owner, "/agents", bad, &noop("c")).await.error(400);
        assert_eq!(error["param"], "Idempotency-Key");
    }
    world.end().await;
}

#[tokio::test]
async fn a_response_is_for_who_sent_the_request() {
    let world = World::still().await;
    let owner = &world.owner;
    let made = owner.post("/keys", json!({ "name": "k", "scopes": ["keys:write", "sessions:*"] })).await.ok();
    let other = world.service.caller(made["key"].as_str().expect("a key"));
    // The response has a key that the other one could not make.
    let all = owner.post("/keys", json!({ "name": "all", "scopes": ["*"] })).await.ok();
    let (path, body) = (format!("/keys/{}/rotate", id(&all)), json!({}));
    assert_eq!(post_once(owner, &path, "one", &body).await.status, 201);
    let error = post_once(&other, &path, "one", &body).await.error(422);
    assert_eq!(error["code"], "idempotency_mismatch");
    assert!(is_replayed(&post_once(owner, &path, "one", &body).await));

    // A client token takes no key of its organization, and the organization none of a token, a trigger or an invoke URL.
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok()["session"]);
    let minted = owner.post(&format!("/sessions/{session}/client-tokens"), json!({})).await.ok();
    let token = world.service.caller(minted["token"].as_str().expect("a token"));
    let messages = format!("/sessions/{session}/messages");
    let text = json!({ "text": "Hello." });
    assert_eq!(post_once(&token, &messages, "two", &text).await.status, 202);
    assert_eq!(post_once(&token, &messages, "two", &text).await.status, 200);
    for key in ["two", "token/x", "hook/x", "invoke/x", "key/two"] {
        assert_eq!(post_once(owner, "/sessions", key, &json!({})).await.status, 201, "{key}");
        assert_eq!(post_once(owner, "/sessions", key, &json!({})).await.status, 200, "{key}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_rejected_request_is_not_stored() {
    let world = World::still().await;
    let owner = &world.owner;
    let body = json!({ "agent": "late" });
    post_once(owner, "/sessions", "k", &body).await.error(404);
    owner.post("/agents", noop("late")).await.ok();
    let created = post_once(owner, "/sessions", "k", &body).await;
    assert!(created.status == 201 && !is_replayed(&created));
    world.end().await;
}

#[tokio::test]
async fn a_sessions_key_names_it_for_good() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let body = json!({ "agent": "a", "key": "daily" });
    let created = owner.post("/sessions", body.clone()).await.ok();
    let again = owner.post("/sessions", body.clone()).await;
    assert_eq!((again.status.as_u16(), id(&again.body)), (200, id(&created)));
    assert_ne!(again.body["client_token"], created["client_token"]);
    let other = json!({ "agent": "a", "key": "daily", "input": "other" });
    let error = owner.post("/sessions", other).await.error(409);
    assert_eq!((&error["code"], &error["param"]), (&json!("key_taken"), &json!("key")));
    // An `Idempotency-Key` expires after a day; a session's `key` does not.
    let mut superuser = world.ground.database.superuser().await;
    post_once(owner, "/sessions", "header", &json!({ "agent": "a" })).await.ok();
    sqlx::query("update idempotency set created_at = now() - interval '3 days'")
        .execute(&mut superuser)
        .await
        .expect("older rows");
    assert_eq!(world.store.delete_expired_responses(1_000).await.expect("housekeeping"), 1);
    assert_eq!(id(&owner.post("/sessions", body).await.ok()), id(&created));
    drop(superuser);
    world.end().await;
}

#[tokio::test]
async fn a_message_that_is_sent_twice_is_one() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let path = format!("/sessions/{session}/messages");
    let keyed = json!({ "text": "one", "idempotency_key": "m1" });
    let enveloped = json!({ "envelope": { "id": "m2", "source": "chat", "text": "two", "raw": [1, null] } });
    for (message, other) in [
        (&keyed, json!({ "text": "other", "idempotency_key": "m1" })),
        (&enveloped, json!({ "envelope": { "id": "m2", "source": "chat", "text": "other" } })),
    ] {
        let first = owner.post(&path, message.clone()).await;
        let again = owner.post(&path, message.clone()).await;
        assert_eq!((first.status.as_u16(), again.status.as_u16()), (202, 200));
        assert_eq!(first.body, again.body);
        assert_eq!(owner.post(&path, other).await.error(409)["code"], "idempotency_mismatch");
    }
    // The same id from another source is another message.
    let elsewhere = json!({ "envelope": { "id": "m2", "source": "mail", "text": "three" } });
    assert_eq!(owner.post(&path, elsewhere).await.status, 202);
    let answers =
        join_all((0..20).map(|_| owner.post(&path, json!({ "text": "4", "idempotency_key": "m4" })))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 1, "{answers:#?}");
    let first = post_once(owner, &path, "h", &json!({ "text": "five" })).await;
    let again = post_once(owner, &path, "h", &json!({ "text": "five" })).await;
    assert!(first.status == 202 && again.status == 200 && is_replayed(&again));
    let messages = owner.get(&path).await.ok();
    let texts: Vec<_> = data(&messages).iter().map(|event| event["body"]["text"].clone()).collect();
    assert_eq!(texts, ["one", "two", "three", "4", "five"]);
    assert_eq!(data(&messages)[1]["body"]["envelope"]["raw"], json!([1, null]));
    world.end().await;
}

#[tokio::test]
async fn a_client_token_uses_up_no_key_of_a_message_of_the_server() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let path = format!("/sessions/{session}/messages");
    let mint = async || {
        let minted = owner.post(&format!("/sessions/{session}/client-tokens"), json!({})).await.ok();
        world.service.caller(minted["token"].as_str().expect("a token"))
    };
    let (page, reloaded) = (mint().await, mint().await);
    let keyed: fn(&str) -> Value = |text| json!({ "text": text, "idempotency_key": "k" });
    let enveloped: fn(&str) -> Value =
        |text| json!({ "envelope": { "id": "k", "source": "chat", "text": text } });
    for (message, of_page, of_server) in [(keyed, "page", "server"), (enveloped, "page 2", "server 2")] {
        let first = page.post(&path, message(of_page)).await;
        let other = owner.post(&path, message(of_server)).await;
        assert_eq!((first.status.as_u16(), other.status.as_u16()), (202, 202), "{}", other.body);
        assert_ne!(first.body["event"]["id"], other.body["event"]["id"]);
        // Each one's own repetition has its own response, also with the next token of the page.
        for (caller, text, wanted) in
            [(&page, of_page, &first), (&reloaded, of_page, &first), (owner, of_server, &other)]
        {
            let again = caller.post(&path, message(text)).await;
            assert_eq!((again.status.as_u16(), &again.body), (200, &wanted.body), "{text}");
        }
        for (caller, text) in [(&page, of_server), (&reloaded, of_server), (owner, of_page)] {
            let error = caller.post(&path, message(text)).await.error(409);
            assert_eq!(error["code"], "idempotency_mismatch");
        }
    }
    let messages = owner.get(&path).await.ok();
    let texts: Vec<_> = data(&messages).iter().map(|event| event["body"]["text"].clone()).collect();
    assert_eq!(texts, ["page", "server", "page 2", "server 2"]);
    for event in &data(&messages)[2..] {
        assert_eq!(event["body"]["envelope"], json!({ "id": "k", "source": "chat" }), "as it was sent");
    }
    // The keys of both end with the session.
    let keys = "select count(*) from idempotency where scope like 'steer/%'";
    assert_eq!(world.ground.count(keys).await, 4);
    owner.delete(&format!("/sessions/{session}")).await.ok();
    assert_eq!(world.ground.count(keys).await, 0);
    world.end().await;
}

#[tokio::test]
async fn every_post_is_done_once_for_a_key() {
    let world = World::still().await;
    let (owner, table) = (&world.owner, table());
    let posts: Vec<_> = operations().into_iter().filter(|operation| operation.method == "POST").collect();
    // One of them only reads, and reads again.
    let mine = |operation: &&Operation| {
        let id = operation.id.as_str();
        !is_operators(operation) && !OPEN.contains(&id) && id != "reattachSession"
    };
    let mut tried = 0;
    for operation in posts.iter().filter(mine) {
        let row = &table[operation.id.as_str()];
        let things = things(owner).await;
        let a_try = Try { operation, row, once: Some((&operation.id, row.body.map(|body| body()))) };
        let (first, again) = (a_try.by(owner, &things).await, a_try.by(owner, &things).await);
        let what = &operation.id;
        assert_eq!(
            (first.status.as_u16(), is_replayed(&first)),
            (row.status, false),
            "{what}: {}",
            first.body
        );
        // Some report with the status, too, that nothing was created.
        let is_known = [first.status.as_u16(), 200].contains(&again.status.as_u16());
        // A rejection stores nothing, and pending work is read again. For a command that is being killed, its
        // current state is returned.
        let is_replay = first.status.is_success() && operation.id != "killExec";
        assert_eq!(is_replayed(&again), is_replay, "{what}: {}", again.body);
        assert!(is_known, "{what}: {}", again.body);
        assert_eq!(lasting(&again), lasting(&first), "{what}");
        if operation.path.contains('{') && first.status.is_success() {
            // The same key for another resource is another request.
            let error = a_try.by(owner, &things_of_another(&things)).await.error(422);
            assert_eq!(error["code"], "idempotency_mismatch", "{what}");
        }
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
    world.end().await;
}

/// The response without values that are shown once, which a replay creates again.
fn lasting(answer: &Answer) -> Value {
    let mut body = answer.body.clone();
    if let Value::Object(fields) = &mut body {
        fields.remove("client_token");
        if let Some(Value::Object(error)) = fields.get_mut("error") {
            error.remove("request_id");
        }
    }
    body
}

/// The same parameters with ids that never existed.
fn things_of_another(things: &Things) -> Things {
    let never = |id: &String| never(id.split('_').next().expect("a prefix"));
    things.iter().map(|(name, id)| (*name, never(id))).collect()
}

#[tokio::test]
async fn a_replayed_create_answers_200_for_every_resource() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    for (path, body) in [
        ("/sessions", json!({ "agent": "a" })),
        ("/sessions", json!({ "agent": "a", "slug": "unbatched" })),
        ("/agents", noop("b")),
        ("/environments", json!({ "name": "e" })),
        ("/credentials", json!({ "key": "x" })),
        ("/keys", json!({ "name": "k", "scopes": ["*"] })),
        ("/sessions/unbatched/client-tokens", json!({})),
    ] {
        let key = format!("{path} {body}");
        let (first, again) =
            (post_once(owner, path, &key, &body).await, post_once(owner, path, &key, &body).await);
        assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200), "{path}");
        assert!(!is_replayed(&first) && is_replayed(&again), "{path}");
    }
    world.end().await;
}
