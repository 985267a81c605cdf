//! Results that are sent again, and results whose JSON is much longer than their text.

use serde_json::{Value, json};

use super::{answer, pending, play, result, weather};
use crate::{
    support::wait::wait_for,
    turns::{Scene, assert_sound, log, of, outputs},
};

/// The text of a part that has 29,997 bytes as JSON, of which 27 surround it.
fn long() -> String {
    "\u{1}".repeat(29_970 / 6)
}

#[tokio::test]
async fn a_long_result_is_whole_and_can_be_sent_again_wherever_its_turn_ends() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [weather("Paris"), weather("Rome")] }, { "text": "Done." }]);
    for way in ["cancel", "stop", "archive", "answer"] {
        let id = play(owner, json!({}), steps.clone()).await;
        let [first, second]: [Value; 2] = pending(owner, &id, 2).await.try_into().expect("two actions");
        let long = result(&first, &long());
        let sent = answer(owner, &id, json!([long])).await;
        assert_eq!(sent.status, 202, "{way}");
        let sent = sent.ok()["data"].clone();
        let more = answer(owner, &id, json!([result(&second, &format!("{}four", self::long()))])).await;
        assert_eq!(more.error(400)["param"], "events[0].content");
        if way == "answer" {
            answer(owner, &id, json!([result(&second, "rain")])).await.ok();
        } else {
            owner.post(&format!("/sessions/{id}/{way}"), json!({})).await.ok();
        }
        let again = answer(owner, &id, json!([long])).await;
        assert_eq!(again.status, 200, "{way}");
        assert_eq!(again.ok()["data"], sent, "{way}");
        owner.settled(&id, 1).await;
        let log = log(owner, &id).await;
        assert_sound(&log);
        assert_eq!(outputs(&log)[0], self::long(), "{way}");
        let outcomes: Vec<_> =
            of(&log, "tool.result").iter().map(|event| &event["body"]["outcome"]).collect();
        assert_eq!(outcomes[0], "ran", "{way}");
    }
    scene.close().await;
}

#[tokio::test]
async fn a_result_whose_events_have_moved_is_refused() {
    let scene = Scene::open(&[]).await;
    let (owner, ground) = (&scene.owner, &scene.ground);
    let id = play(owner, json!({}), json!([{ "tools": [weather("Paris")] }, { "text": "Done." }])).await;
    let [action]: [Value; 1] = pending(owner, &id, 1).await.try_into().expect("an action");
    let sunny = json!([result(&action, "sunny")]);
    answer(owner, &id, sunny.clone()).await.ok();
    owner.settled(&id, 1).await;
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    assert_eq!(answer(owner, &id, sunny.clone()).await.status, 200);
    ground.sql("update session set stopped_at = now() - interval '31 days'").await;
    let moved = "select count(*) from session where events_moved_at is not null";
    wait_for("the move", async || (ground.count(moved).await == 1).then_some(())).await;
    assert_eq!(answer(owner, &id, sunny).await.error(409)["code"], "archived");
    scene.close().await;
}
