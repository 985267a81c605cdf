//! Commands that callers run: rejected, reserved, warned about, charged.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sojourn::node::local::Local;
use sojourn::sandbox::Sandbox;

use super::Operator;
use crate::{
    support::service::{Answer, Caller, send},
    turns::{Scene, assert_sound, log, of, processes, run, session, wait_until},
};

/// Sandboxes at one micro-dollar a millisecond: two CPUs, and memory at no cost.
fn a_micro_a_millisecond() -> Value {
    json!({ "version": "sandboxes", "sandbox": { "cpu_hour": 1_800_000, "gib_hour": 0 } })
}

async fn exec(caller: &Caller, session: &str, body: &Value, key: Option<&str>) -> Answer {
    let request = caller.request(Method::POST, &format!("/sessions/{session}/exec"));
    let request = key.iter().fold(request, |request, key| request.header("Idempotency-Key", *key));
    send(request.json(body)).await
}

async fn priced() -> (Scene, Operator) {
    let scene = Scene::open(&[]).await;
    let operator = Operator::of(&scene.ground, &scene.owner).await;
    operator.price(a_micro_a_millisecond()).await;
    (scene, operator)
}

/// Creates a session with or without an agent; returns its id.
async fn open(owner: &Caller, body: Value) -> String {
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

fn told<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    of(log, kind).into_iter().map(|event| &event["body"]).collect()
}

#[tokio::test]
async fn a_command_that_nobody_can_pay_for_leaves_nothing() {
    let (scene, operator) = priced().await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = open(owner, json!({ "agent": agent })).await;
    let sleep = json!({ "command": "sleep 0.1", "timeout_seconds": 1 });
    operator.store.set_balance(operator.org, Some(0)).await.expect("a balance");
    let before = log(owner, &id).await.len();
    let refused = exec(owner, &id, &sleep, Some("one")).await.error(402);
    assert_eq!(
        (&refused["type"], &refused["code"]),
        (&json!("payment_required"), &json!("payment_required"))
    );
    assert_eq!(log(owner, &id).await.len(), before);
    operator.store.top_up(operator.org, 1_000_000).await.expect("a balance");
    let ran = exec(owner, &id, &sleep, Some("one")).await;
    assert_eq!((ran.status, ran.headers.get("idempotency-replayed")), (StatusCode::OK, None));
    let cost = session(owner, &id).await["usage"]["cost"]["total_micros"].as_u64().expect("a sum");
    assert!(cost >= 100, "{cost}");

    // The same with a spend cap of the organization and of the agent.
    for (path, limit) in
        [("/budget".to_owned(), "organization_spend_1d"), (format!("/agents/{agent}"), "agent_spend_1d")]
    {
        owner.patch(&path, json!({ "spend_caps": { "days_1": cost } })).await.ok();
        let refused = exec(owner, &id, &sleep, Some(limit)).await.error(402);
        assert_eq!(refused["code"], "budget_exceeded");
        assert!(refused["message"].as_str().is_some_and(|words| words.contains(limit)), "{refused}");
        owner.patch(&path, json!({ "spend_caps": {} })).await.ok();
        let ran = exec(owner, &id, &sleep, Some(limit)).await;
        assert_eq!((ran.status, ran.headers.get("idempotency-replayed")), (StatusCode::OK, None));
    }
    let log = log(owner, &id).await;
    assert_sound(&log);
    assert_eq!((of(&log, "exec.started").len(), of(&log, "exec.completed").len()), (3, 3));
    scene.close().await;
}

#[tokio::test]
async fn limits_of_a_session_are_reported_once_by_commands_too() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = open(owner, json!({ "limits": { "tool_calls": 5 } })).await;
    let run = json!({ "command": "true" });
    for _ in 0..3 {
        exec(owner, &id, &run, None).await.ok();
    }
    assert!(told(&log(owner, &id).await, "limit.warning").is_empty());
    for _ in 0..2 {
        exec(owner, &id, &run, None).await.ok();
    }
    exec(owner, &id, &run, None).await.error(402);
    let all = log(owner, &id).await;
    assert_eq!(told(&all, "limit.warning"), [&json!({ "limit": "tool_calls", "used": 4, "allowed": 5 })]);
    assert_eq!(told(&all, "limit.exceeded"), [&json!({ "limit": "tool_calls", "used": 5, "allowed": 5 })]);
    assert_eq!(of(&all, "exec.completed").len(), 5);
    // A changed limit is reported again.
    owner.patch(&format!("/sessions/{id}"), json!({ "limits": { "tool_calls": 6 } })).await.ok();
    exec(owner, &id, &run, None).await.ok();
    let all = log(owner, &id).await;
    assert_eq!((told(&all, "limit.warning").len(), told(&all, "limit.exceeded").len()), (2, 2));
    assert_sound(&all);
    scene.close().await;
}

#[tokio::test]
async fn the_run_time_of_commands_counts_against_the_duration_limit() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = open(owner, json!({ "agent": agent, "limits": { "duration_seconds": 1 } })).await;
    let run = json!({ "command": "sleep 0.6" });
    let used = async || {
        owner.get(&format!("/sessions/{id}")).await.ok()["budget_consumed"]["duration_seconds"].clone()
    };
    exec(owner, &id, &run, None).await.ok();
    assert_eq!(used().await, 0);
    exec(owner, &id, &run, None).await.ok();
    assert_eq!(used().await, 1, "1.2 s together");
    assert_eq!(exec(owner, &id, &run, None).await.error(402)["code"], "budget_exceeded");
    let exceeded = json!({ "limit": "duration_seconds", "used": 1, "allowed": 1 });
    assert_eq!(told(&log(owner, &id).await, "limit.exceeded"), [&exceeded]);
    // No turn starts either.
    owner.post(&format!("/sessions/{id}/messages"), json!({ "text": "Go." })).await.ok();
    let all = owner.settled(&id, 1).await;
    assert_eq!(crate::turns::ends(&all), ["budget_exceeded"]);
    assert_eq!(of(&all, "turn.started").len(), 0);
    // It survives an export.
    let path = format!("/sessions/{id}/export");
    let file = owner.request(reqwest::Method::GET, &path).send().await.expect("an answer");
    let file = file.text().await.expect("lines");
    let request = owner.request(reqwest::Method::POST, "/sessions/import");
    let request = request.header("Content-Type", "application/x-ndjson").body(file);
    let imported = crate::support::service::send(request).await.ok()["session"].clone();
    let imported = owner.get(&format!("/sessions/{}", imported["id"].as_str().expect("an id"))).await.ok();
    assert_eq!(imported["budget_consumed"]["duration_seconds"], 1);
    scene.close().await;
}

#[tokio::test]
async fn commands_that_race_for_a_cap_overstep_it_by_one_at_most() {
    const CAP: u64 = 2_500;
    let (scene, _operator) = priced().await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    owner.patch("/budget", json!({ "spend_caps": { "days_7": CAP } })).await.ok();
    // Two sessions, each with more commands than the cap pays for. Each command may run for one second, and
    // does.
    let ids = [open(owner, json!({ "agent": agent })).await, open(owner, json!({ "agent": agent })).await];
    let second = json!({ "command": "sleep 1", "timeout_seconds": 1 });
    let all = ids.iter().flat_map(|id| (0..4).map(|_| exec(owner, id, &second, None)));
    let answers = futures::future::join_all(all).await;
    let refused = answers.iter().filter(|answer| answer.status == StatusCode::PAYMENT_REQUIRED).count();
    let ran = answers.iter().filter(|answer| answer.status == StatusCode::OK).count();
    assert_eq!((ran, refused), (3, 5), "{answers:#?}");
    let budget = owner.get("/budget").await.ok();
    let spent = budget["spent"]["days_7"].as_u64().expect("a sum");
    println!("8 commands, {ran} ran, {spent} of {CAP} micro-USD");
    // A command costs slightly more than its timeout: it is killed after it.
    assert!((CAP..CAP + 1_500).contains(&spent), "{spent} of {CAP}");
    assert_eq!(budget["reserved_micros"], 0);
    // One of the two sessions reported the cap.
    let logs = [log(owner, &ids[0]).await, log(owner, &ids[1]).await];
    let of_all = |kind: &str| logs.iter().map(|log| told(log, kind).len()).sum::<usize>();
    assert_eq!((of_all("limit.exceeded"), of_all("limit.warning") <= 1), (1, true));
    logs.iter().for_each(|log| assert_sound(log));
    scene.close().await;
}

#[tokio::test]
async fn tools_that_race_for_a_cap_overstep_it_by_one_command_at_most() {
    const CAP: u64 = 2_500;
    let (scene, _operator) = priced().await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    owner.patch("/budget", json!({ "spend_caps": { "days_1": CAP } })).await.ok();
    let command = json!({ "tool": "bash", "input": { "command": "sleep 1", "timeout_seconds": 1 } });
    let input = json!({ "script": [{ "tools": [command] }, { "text": "Slept." }] });
    let starts = (0..6).map(|_| open(owner, json!({ "agent": agent, "input": input })));
    let ids = futures::future::join_all(starts).await;
    let logs = futures::future::join_all(ids.iter().map(|id| owner.settled(id, 1))).await;
    logs.iter().for_each(|log| assert_sound(log));
    let ran = logs.iter().filter(|log| !of(log, "exec.completed").is_empty()).count();
    let ends: Vec<_> = logs.iter().map(|log| crate::turns::ends(log)[0]).collect();
    let spent = owner.get("/budget").await.ok()["spent"]["days_1"].as_u64().expect("a sum");
    println!("6 sessions, {ran} commands ran, {spent} of {CAP} micro-USD, {ends:?}");
    assert_eq!(ran, 3, "{ends:?}");
    assert!((CAP..CAP + 1_500).contains(&spent), "{spent} of {CAP}");
    assert!(ends.iter().filter(|end| **end == "budget_exceeded").count() >= 3, "{ends:?}");
    scene.close().await;
}

#[tokio::test]
async fn what_a_session_without_an_agent_costs_counts_too() {
    let (scene, operator) = priced().await;
    let owner = &scene.owner;
    operator.store.set_balance(operator.org, Some(1_000_000)).await.expect("a balance");
    let id = open(owner, json!({})).await;
    exec(owner, &id, &json!({ "command": "sleep 0.1" }), None).await.ok();
    let usage = session(owner, &id).await["usage"].clone();
    let cost = usage["cost"]["total_micros"].as_u64().expect("a sum");
    assert!(cost >= 100, "{usage}");
    let budget = owner.get("/budget").await.ok();
    assert_eq!(
        (&budget["spent"]["days_1"], &budget["balance_micros"]),
        (&json!(cost), &json!(1_000_000 - cost))
    );
    let told = owner.get(&format!("/sessions/{id}/usage")).await.ok();
    assert_eq!(told["models"], json!([{ "model": null, "usage": usage }]));
    let rows = owner.get("/usage?by=agent,model").await.ok();
    assert_eq!(rows["data"], json!([{ "agent_id": null, "model": null, "usage": usage }]));
    // So a cap stops them.
    owner.patch("/budget", json!({ "spend_caps": { "days_1": cost } })).await.ok();
    let refused = exec(owner, &id, &json!({ "command": "true" }), None).await.error(402);
    assert_eq!(refused["code"], "budget_exceeded");
    scene.close().await;
}

/// Waits until the organization has spent more than `before`; returns the amount.
async fn spends_more_than(owner: &Caller, before: u64) -> u64 {
    let budget = owner.until("/budget", |budget| budget["spent"]["days_1"].as_u64() > Some(before)).await;
    budget["spent"]["days_1"].as_u64().expect("a sum")
}

#[tokio::test]
async fn a_command_that_is_canceled_or_archived_is_paid_for_the_time_that_it_ran() {
    let (scene, _operator) = priced().await;
    let owner = &scene.owner;
    let begins = async |words: &str| wait_until(words, || processes(words) > 0).await;
    let canceled = owner.play(json!([run("sleep 30.171"), { "text": "Never." }])).await;
    begins("30.171").await;
    owner.post(&format!("/sessions/{canceled}/cancel"), json!({})).await.ok();
    let all = owner.settled(&canceled, 1).await;
    assert_sound(&all);
    let ended = told(&all, "exec.completed");
    assert_eq!((ended.len(), &ended[0]["cause"]), (1, &json!("killed")), "{ended:?}");
    let cost = ended[0]["cpu_micros"].as_u64().expect("a cost");
    assert!(cost > 0 && ended[0]["duration_ms"].as_u64().is_some_and(|ms| ms <= cost), "{ended:?}");
    assert_eq!(session(owner, &canceled).await["usage"]["cost"]["total_micros"], cost);
    let first = spends_more_than(owner, 0).await;
    assert_eq!(first, cost);

    // The log of an archived session has no entry; the sums include it once.
    owner.post(&format!("/sessions/{canceled}/archive"), json!({})).await.ok();
    let archived = owner.play(json!([run("sleep 30.172"), { "text": "Never." }])).await;
    begins("30.172").await;
    owner.post(&format!("/sessions/{archived}/archive"), json!({})).await.ok();
    let second = spends_more_than(owner, first).await;
    let usage = owner.get(&format!("/sessions/{archived}/usage")).await.ok();
    assert_eq!(usage["models"][0]["usage"]["cost"]["total_micros"], second - first, "{usage}");
    assert!(told(&log(owner, &archived).await, "exec.completed").is_empty());

    let direct = open(owner, json!({})).await;
    let sleep = json!({ "command": "sleep 30.173" });
    let (answer, ()) = tokio::join!(exec(owner, &direct, &sleep, None), async {
        begins("30.173").await;
        owner.post(&format!("/sessions/{direct}/archive"), json!({})).await.ok();
    });
    assert_eq!(answer.body["error"]["code"], "canceled", "{answer:?}");
    let third = spends_more_than(owner, second).await;
    let usage = owner.get(&format!("/sessions/{direct}/usage")).await.ok();
    assert_eq!(usage["models"][0]["usage"]["cost"]["total_micros"], third - second, "{usage}");
    scene.close().await;
}

#[tokio::test]
async fn work_of_a_session_that_is_deleted_is_paid() {
    let (scene, _operator) = priced().await;
    let owner = &scene.owner;
    let begins = async |words: &str| wait_until(words, || processes(words) > 0).await;
    let delete = async |id: &str| {
        assert_eq!(owner.delete(&format!("/sessions/{id}")).await.status, 204);
    };
    let played = owner.play(json!([run("sleep 30.176"), { "text": "Never." }])).await;
    begins("30.176").await;
    delete(&played).await;
    let first = spends_more_than(owner, 0).await;

    // Also if it was archived before, and the worker has not noticed.
    let direct = open(owner, json!({})).await;
    let sleep = json!({ "command": "sleep 30.177" });
    let (_, second) = tokio::join!(exec(owner, &direct, &sleep, None), async {
        begins("30.177").await;
        scene.ground.sql(CLOSE).await;
        delete(&direct).await;
        spends_more_than(owner, first).await
    });
    let rows = owner.get("/usage?by=agent").await.ok();
    let spent = |row: &Value| row["usage"]["cost"]["total_micros"].as_u64().expect("a cost");
    let sums: Vec<_> = rows["data"].as_array().expect("rows").iter().map(spent).collect();
    assert_eq!((sums.len(), sums.iter().sum::<u64>()), (2, second), "{rows}");
    scene.close().await;
}

/// Archives the only open session, without a notification to its worker.
const CLOSE: &str =
    "update session set status = 'archived', closed_epoch = epoch, epoch = epoch + 1, running_turn_id = null
                     where status <> 'archived'";

/// Archives a session as if the worker missed the notification, and destroys its sandbox before the worker's
/// next check.
async fn close_and_clean_up(scene: &Scene, id: &str) {
    let sandbox = session(&scene.owner, id).await["sandbox"]["id"].as_str().expect("a sandbox").parse();
    scene.ground.sql(CLOSE).await;
    let sandboxes = Local::new(scene.ground.sandboxes()).expect("sandboxes can be made here");
    sandboxes.destroy(sandbox.expect("an id")).await.expect("the sandbox is destroyed");
}

#[tokio::test]
async fn a_command_whose_sandbox_is_gone_before_its_session_is_known_to_be_closed_is_paid() {
    let (scene, _operator) = priced().await;
    let owner = &scene.owner;
    let begins = async |words: &str| wait_until(words, || processes(words) > 0).await;
    let played = owner.play(json!([run("sleep 30.174"), { "text": "Never." }])).await;
    begins("30.174").await;
    close_and_clean_up(&scene, &played).await;
    let first = spends_more_than(owner, 0).await;
    let usage = owner.get(&format!("/sessions/{played}/usage")).await.ok();
    assert_eq!(usage["models"][0]["usage"]["cost"]["total_micros"], first, "{usage}");

    let direct = open(owner, json!({})).await;
    let sleep = json!({ "command": "sleep 30.175" });
    let (_, second) = tokio::join!(exec(owner, &direct, &sleep, None), async {
        begins("30.175").await;
        close_and_clean_up(&scene, &direct).await;
        spends_more_than(owner, first).await
    });
    let usage = owner.get(&format!("/sessions/{direct}/usage")).await.ok();
    assert_eq!(usage["models"][0]["usage"]["cost"]["total_micros"], second - first, "{usage}");
    scene.close().await;
}
