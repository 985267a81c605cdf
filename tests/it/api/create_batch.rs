//! Concurrent session creations share a transaction, and nothing else.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use super::{World, data, id, noop};
use crate::support::service::{Answer, send};

/// Concurrent requests of one organization; far more than one process has transactions for.
const AT_ONCE: usize = 64;

async fn create(world: &World, key: impl ToString, body: Value) -> Answer {
    let request = world.owner.request(reqwest::Method::POST, "/sessions");
    send(request.header("Idempotency-Key", key.to_string()).json(&body)).await
}

/// Blocks transactions that store an idempotent response.
async fn block_responses(world: &World) -> PgConnection {
    let mut holder = world.ground.database.superuser().await;
    sqlx::raw_sql("begin; lock table idempotency in exclusive mode")
        .execute(&mut holder)
        .await
        .expect("a lock");
    holder
}

/// Releases them after several transactions wait: by then the other requests have arrived, too.
async fn release_responses(world: &World, mut holder: PgConnection) {
    let waiting = "select count(*) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock'";
    // On one connection: a transaction that waits for five seconds is given up.
    let mut looks = world.ground.database.superuser().await;
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut looks).await.expect("a count") < 4 {}
    looks.close().await.expect("a clean end");
    sqlx::raw_sql("rollback").execute(&mut holder).await.expect("an end");
}

#[tokio::test]
async fn sessions_made_at_once_share_transactions_and_each_is_whole() {
    let world = World::still().await;
    world.owner.post("/agents", noop("a")).await.ok();
    let wanted = |at: usize| json!({ "agent": "a", "title": format!("t{at}"), "input": format!("do {at}") });
    let keyed = |at: usize| format!("key {at}");
    let made = join_all((0..AT_ONCE).map(|at| create(&world, keyed(at), wanted(at))));
    let others = join_all((0..8).map(|_| world.stranger.post("/sessions", json!({ "title": "another's" }))));
    let holder = block_responses(&world).await;
    let (made, others, ()) = tokio::join!(made, others, release_responses(&world, holder));
    assert!(others.iter().all(|answer| answer.status == 201), "{others:#?}");
    let mut ids = BTreeSet::new();
    for (at, answer) in made.iter().enumerate() {
        assert_eq!(answer.status, 201, "{answer:#?}");
        assert_eq!(answer.body["session"]["title"], format!("t{at}"));
        let session = id(&answer.body);
        let log = world.owner.get(&format!("/sessions/{session}/events")).await.ok();
        let kinds: Vec<_> = data(&log).iter().map(|event| event["type"].clone()).collect();
        assert_eq!(kinds, ["session.created", "user.message"], "{log:#}");
        assert_eq!(data(&log)[1]["body"]["text"], format!("do {at}"));
        // Its token opens it, and only it.
        let bearer = world.service.caller(answer.body["client_token"].as_str().expect("a token"));
        assert_eq!(bearer.get(&format!("/sessions/{session}/events")).await.status, 200);
        ids.insert(session);
    }
    assert_eq!(ids.len(), AT_ONCE);
    let ground = &world.ground;
    let of_owner = "from session where title like 't%'";
    assert_eq!(
        ground.count(&format!("select count(*) {of_owner} and status = 'queued'")).await,
        AT_ONCE as i64
    );
    let jobs =
        ground.count("select count(*) from job join session using (session_id) where kind = 'turn'").await;
    assert_eq!(jobs, AT_ONCE as i64);
    let transactions = ground.count(&format!("select count(distinct xmin::text) {of_owner}")).await;
    assert!(transactions < AT_ONCE as i64 / 2, "{transactions} transactions");
    // Each response is stored for its own request.
    for at in [0, AT_ONCE - 1] {
        let again = create(&world, keyed(at), wanted(at)).await;
        assert_eq!((again.status.as_u16(), id(&again.body)), (200, id(&made[at].body)));
        let error = create(&world, keyed(at), wanted(at + 1)).await.error(422);
        assert_eq!(error["code"], "idempotency_mismatch");
    }
    world.end().await;
}

#[tokio::test]
async fn one_that_is_refused_keeps_nobody_from_a_session() {
    let world = World::still().await;
    world.owner.post("/agents", noop("a")).await.ok();
    // Rejected by the handler, rejected by the database, and accepted.
    let wanted = |at: usize| match at % 8 {
        0 => json!({ "agent": "nobody", "input": "hi" }),
        1 => json!({ "agent": "a", "title": "no text has \u{0}" }),
        _ => json!({ "agent": "a", "input": "hi" }),
    };
    let answers = join_all((0..AT_ONCE).map(|at| create(&world, format!("key {at}"), wanted(at)))).await;
    for (at, answer) in answers.into_iter().enumerate() {
        match at % 8 {
            0 => assert_eq!(answer.error(404)["param"], "agent"),
            1 => assert_eq!(answer.error(400)["type"], "invalid"),
            _ => assert_eq!(answer.status, 201, "{answer:#?}"),
        }
    }
    let made = AT_ONCE as i64 / 8 * 6;
    assert_eq!(world.ground.count("select count(*) from session").await, made);
    assert_eq!(world.ground.count("select count(*) from idempotency where scope = 'header'").await, made);
    // A rejection is not stored: once the agent exists, the same key creates a session.
    world.owner.post("/agents", noop("nobody")).await.ok();
    assert_eq!(create(&world, "key 0", wanted(0)).await.status, 201);
    world.end().await;
}

#[tokio::test]
async fn equal_requests_among_others_make_one_session() {
    let world = World::still().await;
    world.owner.post("/agents", noop("a")).await.ok();
    let answers = join_all((0..AT_ONCE).map(|at| {
        let key = format!("key {}", at % 16);
        let world = &world;
        async move { create(world, key, json!({ "agent": "a", "input": "hi" })).await }
    }))
    .await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!((created, answers.iter().filter(|answer| answer.status == 200).count()), (16, AT_ONCE - 16));
    let ids: BTreeSet<_> = answers.iter().map(|answer| id(&answer.body)).collect();
    assert_eq!(ids.len(), 16);
    assert_eq!(world.ground.count("select count(*) from session").await, 16);
    world.end().await;
}
