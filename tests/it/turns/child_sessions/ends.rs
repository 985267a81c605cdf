//! Ends of a tree: a cancel, stop or archive of a session, alone or with all below it.

use serde_json::json;
use sojourn::domain::SessionId;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{asks, call, check, child, parent, release, wait, waits};
use crate::{
    support::{service::Ground, wait::wait_for},
    turns::{Scene, assert_sound, ends, of, outputs, script, session, steer},
};

#[tokio::test]
async fn a_canceled_turn_waits_no_more_and_its_children_go_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let one = child(owner, &top, json!([check(), { "text": "One." }])).await;
    steer(owner, &top, &script(json!([wait(&[&one], json!({})), { "text": "Never." }]))).await;
    waits(owner, &top).await;
    owner.post(&format!("/sessions/{top}/cancel"), json!({})).await.ok();
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    assert_eq!(
        (ends(&log), of(&log, "tool.result")[0]["body"]["outcome"].as_str()),
        (vec!["canceled"], Some("not_run"))
    );
    assert_eq!(session(owner, &top).await["phase"], json!(null));
    release(owner, &one).await;
    assert_eq!(ends(&owner.settled(&one, 1).await), ["completed"]);
    scene.close().await;
}

#[tokio::test]
async fn a_tree_is_canceled_stopped_and_archived_at_once() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let steps = json!([check(), { "text": "Never." }]);
    let middle = child(owner, &top, steps.clone()).await;
    let low = child(owner, &middle, steps).await;
    for id in [&middle, &low] {
        asks(owner, id).await;
    }
    steer(owner, &top, &script(json!([wait(&[&middle, &low], json!({})), { "text": "Never." }]))).await;
    waits(owner, &top).await;
    let error = owner.post(&format!("/sessions/{top}/cancel"), json!({ "children": 1 })).await.error(400);
    assert_eq!(error["param"], "children");
    owner.post(&format!("/sessions/{top}/cancel"), json!({ "children": true })).await.ok();
    for id in [&top, &middle, &low] {
        assert_eq!(ends(&owner.settled(id, 1).await), ["canceled"]);
    }
    let with_reason = json!({ "children": true, "reason": "Enough." });
    owner.post(&format!("/sessions/{top}/stop"), with_reason).await.ok();
    for id in [&top, &middle, &low] {
        assert_eq!(session(owner, id).await["stopped"]["reason"], "Enough.");
    }
    owner.post(&format!("/sessions/{middle}/archive"), json!({})).await.ok();
    assert_eq!(session(owner, &low).await["status"], "idle");
    owner.post(&format!("/sessions/{top}/archive"), json!({ "children": true })).await.ok();
    for id in [&top, &middle, &low] {
        assert_eq!(session(owner, id).await["status"], "archived");
    }
    scene.close().await;
}

/// Asserts that no transaction has locked the turn job of a session.
async fn assert_free(ground: &Ground, id: &str) {
    let id = id.parse::<SessionId>().expect("an id").uuid();
    let lock = "select from job where kind = 'turn' and session_id";
    assert_eq!(ground.count(&format!("select count(*) from ({lock} = '{id}' for update nowait) j")).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_tree_are_locked_from_the_top() {
    let scene = Scene::open(&[]).await;
    let (owner, ground) = (&scene.owner, &scene.ground);
    for canceled in [false, true] {
        let top = parent(owner, json!({})).await;
        let middle = parent(owner, json!({ "parent_session_id": top })).await;
        let low = child(owner, &middle, json!([check(), { "text": "Low." }])).await;
        for (id, below) in [(&middle, &low), (&top, &middle)] {
            steer(owner, id, &script(json!([wait(&[below], json!({})), { "text": "Done." }]))).await;
            waits(owner, id).await;
        }
        asks(owner, &low).await;
        let mut holder = PgConnection::connect(&ground.urls().system).await.expect("a connection");
        let id = top.parse::<SessionId>().expect("an id").uuid();
        let lock = format!("begin; select from job where session_id = '{id}' for update");
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut holder).await.expect("a lock");
        let end = async {
            match canceled {
                true => drop(owner.post(&format!("/sessions/{low}/cancel"), json!({})).await.ok()),
                false => release(owner, &low).await,
            }
        };
        let looked = async {
            // The end of the lowest turn waits for the topmost job, and has locked no other.
            let blocked = "select count(*) from pg_locks where not granted";
            wait_for("a lock", async || (ground.count(blocked).await > 0).then_some(())).await;
            assert_free(ground, &middle).await;
            assert_free(ground, &low).await;
            holder.close().await.expect("a clean end");
        };
        tokio::join!(end, looked);
        for id in [&low, &middle, &top] {
            assert_sound(&owner.settled(id, 1).await);
        }
    }
    scene.close().await;
}

#[tokio::test]
async fn an_agent_cancels_below_it_and_an_archived_child_ends_a_wait() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let steps = json!([check(), { "text": "Never." }]);
    let middle = child(owner, &top, steps.clone()).await;
    let low = child(owner, &middle, steps.clone()).await;
    let gone = child(owner, &top, steps).await;
    let steps = json!([
        call("session_cancel", json!({ "id": middle })),
        wait(&[&middle, &low], json!({})),
        wait(&[&gone], json!({})),
        call("session_message", json!({ "id": gone, "text": "Hello." })),
        { "text": "Done." },
    ]);
    for id in [&middle, &low, &gone] {
        asks(owner, id).await;
    }
    steer(owner, &top, &script(steps)).await;
    waits(owner, &top).await;
    owner.post(&format!("/sessions/{gone}/archive"), json!({})).await.ok();
    let log = owner.settled(&top, 1).await;
    assert_sound(&log);
    let outputs = outputs(&log);
    assert_eq!(outputs[0], "The session was canceled.");
    assert!(outputs[1].contains("\"canceled\"") && outputs[2].contains("archived"), "{outputs:?}");
    assert!(outputs[3].starts_with("The session did not take it: "), "{outputs:?}");
    for id in [&middle, &low] {
        let log = owner.settled(id, 1).await;
        assert_eq!(
            (ends(&log), of(&log, "turn.completed")[0]["actor"]["id"].as_str()),
            (vec!["canceled"], Some(&*top))
        );
    }
    scene.close().await;
}
