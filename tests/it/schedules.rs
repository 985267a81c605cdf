//! Schedules of an agent. A slot is a minute: the tests move a schedule's next time, not the clock.

use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    fake::receiver::Receiver,
    support::service::{Caller, Ground, Service},
};

/// A service, its owner, and an agent that needs no key.
struct Scene {
    ground: Ground,
    service: Service,
    owner: Caller,
    agent: String,
}

impl Scene {
    async fn open(more: &[&str]) -> Self {
        let ground = Ground::new().await;
        let service = ground.serve(more).await;
        let owner = service.owner();
        let agent = agent(&owner).await;
        Self { ground, service, owner, agent }
    }

    /// A service that starts no turns.
    async fn still() -> Self {
        Self::open(&["--role=api"]).await
    }

    fn path(&self) -> String {
        format!("/agents/{}/schedules", self.agent)
    }

    /// Creates a schedule of the agent; returns its path.
    async fn schedule(&self, more: Value) -> String {
        let made = self.owner.post(&self.path(), daily(more)).await.ok();
        format!("{}/{}", self.path(), text(&made["id"]))
    }

    /// Makes a slot due: the last midnight, for schedules whose next time is days ago. Earlier runs are moved
    /// to other times, or that midnight would count as fired.
    async fn slot(&self) {
        self.ground.sql("update schedule_run set slot = slot - random() * interval '300 days'").await;
        self.ground
            .sql(
                "update schedule set next_fire_at = now() - interval '3 days' where next_fire_at is not null",
            )
            .await;
    }

    /// Runs of a schedule, newest first, once there are `count`.
    async fn runs(&self, schedule: &str, count: usize) -> Vec<Value> {
        let runs = |page: &Value| page["data"].as_array().is_some_and(|runs| runs.len() == count);
        let page = self.owner.until(&format!("{schedule}/runs"), runs).await;
        page["data"].as_array().expect("a page").clone()
    }

    async fn close(self) {
        self.service.stop().await;
    }
}

async fn agent(owner: &Caller) -> String {
    let agent = json!({ "name": "noop", "prompt": "", "model": "scripted/noop" });
    text(&owner.post("/agents", agent).await.ok()["id"])
}

/// A schedule for every midnight, with changed or further fields.
fn daily(more: Value) -> Value {
    let mut body = json!({ "cron": "0 0 * * *", "input": "Look around." });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

#[track_caller]
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

#[track_caller]
fn at(value: &Value) -> OffsetDateTime {
    OffsetDateTime::parse(&text(value), &Rfc3339).expect("a time")
}

#[tokio::test]
async fn after_downtime_the_latest_slot_gets_one_session() {
    let scene = Scene::still().await;
    let session_template = json!({
        "title": "Nightly", "metadata": { "team": "a" }, "limits": { "turns": 3 },
        "environment": { "cpus": 1.0 }, "input": { "text": "Look.", "more": 1 },
    });
    let schedule = scene.schedule(session_template).await;
    let before = scene.owner.get(&schedule).await.ok();
    assert!(at(&before["next_fire_at"]) > OffsetDateTime::now_utc());
    scene.slot().await;
    let runs = scene.runs(&schedule, 1).await;
    let run = &runs[0];
    let midnight = OffsetDateTime::now_utc().replace_time(time::Time::MIDNIGHT);
    assert_eq!(
        (at(&run["slot"]), &run["manual"], &run["state"]),
        (midnight, &json!(false), &json!("started"))
    );
    let session = scene.owner.get(&format!("/sessions/{}", text(&run["session_id"]))).await.ok();
    assert_eq!((&session["source"], &session["title"]), (&json!("cron"), &json!("Nightly")));
    assert_eq!(session["actor"], json!({ "id": before["id"], "type": "trigger" }));
    assert_eq!((&session["metadata"], &session["limits"]), (&json!({ "team": "a" }), &json!({ "turns": 3 })));
    assert_eq!(session["environment"]["config"]["cpus"], 1.0);
    assert_eq!((&session["agent_id"], &session["last_turn"]["id"]), (&json!(scene.agent), &run["turn_id"]));
    let messages = scene.owner.get(&format!("/sessions/{}/messages", text(&run["session_id"]))).await.ok();
    let message = &messages["data"][0];
    assert_eq!((&message["body"]["text"], &message["body"]["input"]["more"]), (&json!("Look."), &json!(1)));
    assert_eq!(message["refs"]["schedule"]["run"], run["id"]);
    let after = scene.owner.get(&schedule).await.ok();
    assert_eq!(after["next_fire_at"], before["next_fire_at"], "two missed nights are not repeated");
    assert_eq!(scene.ground.count("select count(*) from session").await, 1);
    scene.close().await;
}

#[tokio::test]
async fn a_slot_fires_once_with_several_processes() {
    let scene = Scene::still().await;
    let (other, third) =
        (scene.ground.serve(&["--role=api"]).await, scene.ground.serve(&["--role=api"]).await);
    for _ in 0..40 {
        scene.schedule(json!({})).await;
    }
    for round in 1..=3 {
        scene.slot().await;
        let fired = format!("/sessions?limit=500&agent={}", scene.agent);
        let all = |page: &Value| page["data"].as_array().is_some_and(|rows| rows.len() >= 40 * round);
        scene.owner.until(&fired, all).await;
        // No schedule is due any more, so no further run can follow.
        assert_eq!(scene.ground.count("select count(*) from schedule where next_fire_at <= now()").await, 0);
        assert_eq!(scene.ground.count("select count(*) from session").await, 40 * round as i64);
        let double = "select count(*) from (select from schedule_run group by schedule_id, slot having count(*) > 1) d";
        assert_eq!(scene.ground.count(double).await, 0);
        // The runs are finished, or the next slot would be skipped.
        scene.ground.sql("update schedule_run set state = 'completed'").await;
    }
    other.stop().await;
    third.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_slot_that_comes_during_a_run_is_skipped_or_not() {
    let scene = Scene::still().await;
    let skips = scene.schedule(json!({})).await;
    let allows = scene.schedule(json!({ "overlap": "allow" })).await;
    for count in 1..=2 {
        scene.slot().await;
        scene.runs(&skips, count).await;
        scene.runs(&allows, count).await;
    }
    let states = |runs: Vec<Value>| runs.iter().map(|run| text(&run["state"])).collect::<Vec<_>>();
    assert_eq!(states(scene.runs(&skips, 2).await), ["skipped", "started"]);
    assert_eq!(states(scene.runs(&allows, 2).await), ["started", "started"]);
    let skipped = &scene.runs(&skips, 2).await[0];
    assert!(skipped.get("session_id").is_none() && skipped.get("error").is_none(), "{skipped}");
    assert_eq!(scene.owner.get(&skips).await.ok()["consecutive_failures"], 0);
    scene.close().await;
}

#[tokio::test]
async fn a_schedule_whose_runs_fail_is_paused_and_webhooks_are_notified() {
    let mut receiver = Receiver::start([]).await;
    let scene = Scene::still().await;
    let webhook = json!({ "url": receiver.url().as_str(), "types": ["schedule.*"] });
    scene.owner.post("/webhooks", webhook).await.ok();
    let environment = scene.owner.post("/environments", json!({ "name": "gone" })).await.ok();
    let schedule = scene.schedule(json!({ "environment": "gone" })).await;
    scene.owner.delete(&format!("/environments/{}", text(&environment["id"]))).await.ok();
    for failures in 1..=5 {
        scene.slot().await;
        let runs = scene.runs(&schedule, failures).await;
        assert_eq!(
            (&runs[0]["state"], &runs[0]["error"]["code"]),
            (&json!("failed"), &json!("unknown_environment"))
        );
        let now = scene.owner.get(&schedule).await.ok();
        assert_eq!(now["consecutive_failures"], failures);
        assert_eq!(now["enabled"], failures < 5);
    }
    let now = scene.owner.get(&schedule).await.ok();
    assert_eq!((&now["paused_reason"], &now["next_fire_at"]), (&json!("failing"), &Value::Null));
    let character: Value = serde_json::from_slice(&receiver.next().await.body).expect("JSON");
    assert_eq!((&character["type"], &character["sessionId"]), (&json!("schedule.paused"), &Value::Null));
    let told = json!({ "schedule_id": now["id"], "agent_id": scene.agent, "reason": "failing", "consecutive_failures": 5 });
    assert_eq!(character["event"]["body"], told);
    let audit = scene.owner.get("/audit?action=schedule.paused").await.ok();
    assert_eq!(
        (&audit["data"][0]["target"], &audit["data"][0]["actor"]["type"]),
        (&now["id"], &json!("system"))
    );
    let again = scene.owner.patch(&schedule, json!({ "enabled": true, "environment": null })).await.ok();
    assert_eq!((&again["consecutive_failures"], &again["paused_reason"]), (&json!(0), &Value::Null));
    scene.slot().await;
    assert_eq!(scene.runs(&schedule, 6).await[0]["state"], "started");
    assert_eq!(
        scene.ground.count("select count(*) from session").await,
        1,
        "no session was created for the failed runs"
    );
    scene.close().await;
}

#[tokio::test]
async fn a_turn_that_is_refused_before_it_starts_is_a_failure_of_its_run() {
    let scene = Scene::open(&[]).await;
    let schedule = scene.schedule(json!({})).await;
    let agent = format!("/agents/{}", scene.agent);
    scene.owner.patch(&agent, json!({ "enabled": false })).await.ok();
    // A run that a caller fired does not count as a failure of the schedule.
    let fired = scene.owner.post(&format!("{schedule}/fire"), json!({})).await;
    assert_eq!(fired.status, 202);
    let over = |state: &'static str| move |page: &Value| page["data"][0]["state"] == state;
    let page = scene.owner.until(&format!("{schedule}/runs"), over("failed")).await;
    assert_eq!(
        (&page["data"][0]["manual"], &page["data"][0]["error"]["code"]),
        (&json!(true), &json!("agent_disabled"))
    );
    assert_eq!(scene.owner.get(&schedule).await.ok()["consecutive_failures"], 0);
    scene.slot().await;
    scene.owner.until(&schedule, |now| now["consecutive_failures"] == 1).await;
    let runs = scene.runs(&schedule, 2).await;
    assert_eq!((&runs[0]["state"], &runs[0]["manual"]), (&json!("failed"), &json!(false)));
    scene.owner.patch(&agent, json!({ "enabled": true })).await.ok();
    scene.slot().await;
    scene.runs(&schedule, 3).await;
    scene.owner.until(&schedule, |now| now["consecutive_failures"] == 0).await;
    let page = scene.owner.until(&format!("{schedule}/runs"), over("completed")).await;
    let session = text(&page["data"][0]["session_id"]);
    assert_eq!(scene.owner.get(&format!("/sessions/{session}")).await.ok()["exit_status"], "completed");
    scene.close().await;
}

#[tokio::test]
async fn a_schedule_wakes_a_session_that_is_there() {
    let scene = Scene::still().await;
    let made = scene.owner.post("/sessions", json!({ "agent": scene.agent })).await.ok();
    let session = text(&made["session"]["id"]);
    let schedule = scene.schedule(json!({ "session_id": session })).await;
    scene.slot().await;
    let run = scene.runs(&schedule, 1).await.remove(0);
    assert_eq!(run["session_id"], json!(session));
    let woken = scene.owner.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!((&woken["status"], &woken["source"]), (&json!("queued"), &json!("api")));
    let message = scene.owner.get(&format!("/sessions/{session}/messages")).await.ok()["data"][0].clone();
    let now = scene.owner.get(&schedule).await.ok();
    assert_eq!(message["actor"], json!({ "id": now["id"], "type": "trigger" }));
    assert_eq!((&message["turn_id"], &message["body"]["text"]), (&run["turn_id"], &json!("Look around.")));
    // The session is busy, whoever sent the message.
    scene.ground.sql("update schedule_run set state = 'completed'").await;
    scene.slot().await;
    assert_eq!(scene.runs(&schedule, 2).await[0]["state"], "skipped");
    scene.owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    scene.slot().await;
    assert_eq!(scene.runs(&schedule, 3).await[0]["error"]["code"], "archived");
    // The schedule outlives the session.
    scene.owner.delete(&format!("/sessions/{session}")).await;
    scene.slot().await;
    assert_eq!(scene.runs(&schedule, 4).await[0]["error"]["code"], "unknown_session");
    scene.close().await;
}

#[tokio::test]
async fn nothing_of_a_suspended_organization_fires() {
    let scene = Scene::still().await;
    let schedule = scene.schedule(json!({})).await;
    let stranger = scene.service.caller(&scene.ground.organization("strangers").await);
    let path = format!("/agents/{}/schedules", agent(&stranger).await);
    let theirs = stranger.post(&path, daily(json!({}))).await.ok();
    scene.ground.sql("update org set suspended_at = now() where name = 'default'").await;
    scene.slot().await;
    // The same poll would have fired both.
    let fired = |page: &Value| page["data"].as_array().is_some_and(|runs| runs.len() == 1);
    stranger.until(&format!("{path}/{}/runs", text(&theirs["id"])), fired).await;
    assert_eq!(scene.ground.count("select count(*) from schedule_run").await, 1);
    scene.ground.sql("update org set suspended_at = null").await;
    assert_eq!(scene.ground.count("select count(*) from schedule where next_fire_at <= now()").await, 1);
    // This process may cache the suspension for a moment longer.
    let runs = async || scene.owner.get(&format!("{schedule}/runs")).await;
    while runs().await.status == 403 {
        tokio::task::yield_now().await;
    }
    scene.runs(&schedule, 1).await;
    scene.close().await;
}

#[tokio::test]
async fn a_schedule_is_changed_fired_and_removed() {
    let scene = Scene::still().await;
    let schedule = scene.schedule(json!({ "time_zone": "Europe/Zurich", "title": "a" })).await;
    let made = scene.owner.get(&schedule).await.ok();
    assert_eq!(
        (&made["overlap"], &made["enabled"], &made["session_id"]),
        (&json!("skip"), &json!(true), &Value::Null)
    );
    let off = scene.owner.patch(&schedule, json!({ "enabled": false })).await.ok();
    assert_eq!((&off["enabled"], &off["next_fire_at"]), (&json!(false), &Value::Null));
    let moved = scene.owner.patch(&schedule, json!({ "cron": "30 4 1 1 *", "title": null })).await.ok();
    assert!(moved["next_fire_at"].is_null() && moved.get("title").is_none(), "{moved}");
    let on = scene.owner.patch(&schedule, json!({ "enabled": true, "time_zone": "UTC" })).await.ok();
    assert!(text(&on["next_fire_at"]).ends_with("-01-01T04:30:00Z"), "{on}");
    // Manual runs: once for each idempotency key, regardless of overlaps.
    let fire = || {
        let request = scene.owner.request(reqwest::Method::POST, &format!("{schedule}/fire"));
        crate::support::service::send(request.header("idempotency-key", "once"))
    };
    let run = fire().await.ok();
    assert_eq!((fire().await.ok()["id"].clone(), &run["manual"]), (run["id"].clone(), &json!(true)));
    scene.owner.post(&format!("{schedule}/fire"), json!({})).await.ok();
    assert_eq!(scene.runs(&schedule, 2).await[1]["id"], run["id"]);
    let session = scene.owner.get(&format!("/sessions/{}", text(&run["session_id"]))).await.ok();
    assert_eq!((&session["source"], &session["actor"]["type"]), (&json!("manual"), &json!("human")));
    let page = scene.owner.get(&format!("{schedule}/runs?limit=1")).await.ok();
    let rest = format!("{schedule}/runs?limit=1&cursor={}", text(&page["next_cursor"]));
    assert_eq!(scene.owner.get(&rest).await.ok()["data"][0]["id"], run["id"]);
    assert_eq!(scene.owner.delete(&schedule).await.status, 204);
    scene.owner.get(&schedule).await.error(404);
    assert_eq!(scene.ground.count("select count(*) from schedule_run").await, 0);
    let acts = scene.owner.get("/audit?action=schedule.*").await.ok();
    let acts: Vec<_> =
        acts["data"].as_array().expect("a page").iter().map(|act| text(&act["action"])).collect();
    let updated = "schedule.updated".to_owned();
    assert_eq!(
        acts,
        ["schedule.deleted".into(), updated.clone(), updated.clone(), updated, "schedule.created".to_owned()]
    );
    // Schedules are deleted with their agent.
    let one = scene.schedule(json!({})).await;
    scene.owner.delete(&format!("/agents/{}", scene.agent)).await.ok();
    scene.owner.get(&one).await.error(404);
    scene.owner.post(&scene.path(), daily(json!({}))).await.error(404);
    assert_eq!(scene.ground.count("select count(*) from schedule").await, 0);
    scene.close().await;
}

#[tokio::test]
async fn a_schedule_that_could_never_run_is_refused() {
    let scene = Scene::still().await;
    let other = json!({ "name": "other", "prompt": "", "model": "scripted/noop" });
    let other = text(&scene.owner.post("/agents", other).await.ok()["id"]);
    let made = scene.owner.post("/sessions", json!({ "agent": other })).await.ok();
    let session = text(&made["session"]["id"]);
    for (body, status, param) in [
        (json!({ "cron": "0 0 * * * *" }), 400, "cron"),
        (json!({ "cron": "0 25 * * *" }), 400, "cron"),
        (json!({ "cron": "0 0 30 2 *" }), 400, "cron"),
        (json!({ "time_zone": "Mars/Olympus" }), 400, "time_zone"),
        (json!({ "input": 7 }), 400, "input"),
        (json!({ "input": null }), 400, "input"),
        (json!({ "source": "api" }), 400, "source"),
        (json!({ "overlap": "cancel" }), 400, "overlap"),
        (json!({ "limits": { "steps": 1, "dollars": 1 } }), 400, "limits"),
        (json!({ "environment": "nowhere" }), 404, "environment"),
        (json!({ "session_id": session }), 404, "session_id"),
        (json!({ "session_id": "ses_01jd0000000000000000000000" }), 404, "session_id"),
        (json!({ "session_id": session, "title": "x" }), 400, "title"),
    ] {
        let error = scene.owner.post(&scene.path(), daily(body.clone())).await.error(status);
        assert!(text(&error["param"]).starts_with(param), "{body}: {error}");
    }
    let schedule = scene.schedule(json!({})).await;
    for body in [json!({ "cron": "0 0 30 2 *" }), json!({ "session_id": session }), json!({ "input": "" })] {
        scene.owner.patch(&schedule, body).await.error(400);
    }
    for _ in 1..100 {
        scene.schedule(json!({ "enabled": false })).await;
    }
    let error = scene.owner.post(&scene.path(), daily(json!({}))).await.error(409);
    assert_eq!(error["code"], "too_many_schedules");
    scene.close().await;
}
