//! Ends of a tree: a cancel, stop or archive of a session, alone or with all below it.

use serde_json::json;

use super::{call, check, child, parent, release, wait, waits};
use crate::turns::{Scene, assert_sound, ends, log, of, outputs, script, session, steer};

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
        owner.until(&format!("/sessions/{id}"), |session| session["phase"] == "requires_action").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_a_tree_that_end_at_once_do_not_deadlock() {
    const ROUNDS: u64 = 15;
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let top = parent(owner, json!({})).await;
    let middle = parent(owner, json!({ "parent_session_id": top })).await;
    let low = parent(owner, json!({ "parent_session_id": middle })).await;
    let tree = [&top, &middle, &low];
    for round in 1..=ROUNDS as usize {
        let end = async |id: &str| {
            steer(owner, id, &script(json!([{ "text": "Done.", "delay_ms": 20 }]))).await;
            owner.settled(id, round).await;
        };
        tokio::join!(end(&top), end(&middle), end(&low), async {
            // A caller ends turns of the tree meanwhile.
            owner.post(&format!("/sessions/{middle}/cancel"), json!({ "children": true })).await.ok();
        });
    }
    for id in tree {
        assert_sound(&log(owner, id).await);
    }
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(scene.ground.count(deadlocks).await, 0);
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
        owner.until(&format!("/sessions/{id}"), |session| session["phase"] == "requires_action").await;
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
