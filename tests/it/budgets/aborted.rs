//! Model calls that end without a response: they are charged like others.

use serde_json::{Value, json};

use super::{agent, limits::a_micro_each, scene, start};
use crate::{
    fake::{Fake, Fault, Step, Used, anthropic::Anthropic},
    turns::{assert_sound, ends, of, session, steer},
};

const USED: Used = Used { input: 700, output: 90, cache_write: 60, cache_read: 5 };
/// Reported at the start of the stream; output tokens are counted at its end.
const PROMPT: u64 = 765;
/// Bytes of a stream that contain its head and a part of its text.
const SOME: usize = 1_500;

fn cut(fault: Fault) -> Step {
    Step { fault: Some(fault), ..Step::text(&"Many words. ".repeat(400)).using(USED) }
}

fn tokens(usage: &Value) -> u64 {
    let kinds = ["input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens"];
    kinds.iter().map(|kind| usage[kind].as_u64().expect("a count")).sum()
}

#[tokio::test]
async fn a_call_that_is_cut_off_by_its_deadline_costs_what_was_counted_and_heard() {
    let fake = Fake::script(Anthropic::default(), [cut(Fault::StallAfter(SOME))]).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    owner.patch("/budget", json!({ "spend_caps": { "days_1": 100_000 } })).await.ok();
    let id = start(owner, &agent(owner, json!({})).await, json!({ "limits": { "turn_seconds": 2 } })).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["deadline_exceeded"]);
    let cut = &of(&log, "step.aborted")[0]["body"];
    assert_eq!((&cut["reason"], &cut["estimated"]), (&json!("deadline"), &json!(true)));
    let usage = &cut["usage"];
    let (said, all) = (usage["output_tokens"].as_u64().expect("a count"), tokens(usage));
    assert!((1..1_000).contains(&said), "{usage}");
    assert_eq!(
        (all - said, usage["steps"].as_u64()),
        (PROMPT, Some(0)),
        "the prompt as counted by the provider"
    );
    assert_eq!(cut["cost_micros"], all);
    let session = session(owner, &id).await;
    assert_eq!((&session["usage"], &of(&log, "turn.completed")[0]["body"]["usage"]), (usage, usage));
    let budget = owner.get("/budget").await.ok();
    assert_eq!((&budget["spent"]["days_1"], &budget["reserved_micros"]), (&json!(all), &json!(0)));
    scene.close().await;
}

#[tokio::test]
async fn canceling_calls_again_and_again_escapes_no_limit() {
    let fake = Fake::decide(Anthropic::default(), |_| Step::fault(Fault::Stall)).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let more = json!({ "limits": { "cost_micros": 1 } });
    let id = start(owner, &agent(owner, json!({ "prompt": "A long prompt." })).await, more).await;
    fake.called(1).await;
    owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = owner.settled(&id, 1).await;
    let cut = &of(&log, "step.aborted")[0]["body"];
    assert_eq!((&cut["reason"], &cut["estimated"]), (&json!("canceled"), &json!(true)));
    assert!(cut["usage"]["input_tokens"].as_u64() > Some(0), "the prompt was sent: {cut}");
    steer(owner, &id, "Again.").await;
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log), fake.calls()), (vec!["canceled", "budget_exceeded"], 1));
    scene.close().await;
}

#[tokio::test]
async fn a_call_of_a_session_that_is_deleted_is_paid_and_counts_for_its_parent() {
    let fake = Fake::decide(Anthropic::default(), |_| Step::fault(Fault::Stall)).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({ "prompt": "A long prompt." })).await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let id = start(owner, &agent, json!({})).await;
    fake.called(1).await;
    let below = "update session c
                 set parent_session_id = p.session_id
                 from session p
                 where c.running_turn_id is not null and p.running_turn_id is null";
    scene.ground.sql(below).await;
    assert_eq!(owner.delete(&format!("/sessions/{id}")).await.status, 204);
    let is_paid = |budget: &Value| budget["spent"]["days_1"].as_u64() > Some(0);
    let budget = owner.until("/budget", is_paid).await;
    let spent = budget["spent"]["days_1"].as_i64().expect("a sum");
    assert_eq!(budget["reserved_micros"], 0);
    let above = "select deleted_cost_micros from session";
    assert_eq!(scene.ground.count(above).await, spent);
    scene.close().await;
}

#[tokio::test]
async fn a_call_that_fails_in_the_middle_is_paid_beside_the_one_that_is_made_again() {
    let steps = [
        cut(Fault::ErrorEvent { kind: "overloaded_error", message: "Too much." }),
        Step::text("Whole.").using(USED),
    ];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let id = start(owner, &agent(owner, json!({})).await, json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    let cut = &of(&log, "step.aborted")[0]["body"];
    assert_eq!(cut["reason"], "failed");
    let whole = tokens(&of(&log, "step.completed")[0]["body"]["usage"]);
    let usage = &session(owner, &id).await["usage"];
    assert_eq!(tokens(usage), tokens(&cut["usage"]) + whole);
    assert_eq!((&usage["cost"]["total_micros"], &usage["steps"]), (&json!(tokens(usage)), &json!(1)));
    scene.close().await;
}

#[tokio::test]
async fn a_call_lost_with_its_worker_is_logged_with_its_prompt() {
    let fake = Fake::script(Anthropic::default(), [Step::fault(Fault::Stall), Step::text("Back.")]).await;
    let (scene, _operator) = scene(&fake.base_url).await;
    let owner = &scene.owner;
    let id = start(owner, &agent(owner, json!({})).await, json!({})).await;
    fake.called(1).await;
    // As after a crash: another worker held the lease, and it has expired.
    let mut superuser = scene.ground.database.superuser().await;
    let sql = "with s as (update session set epoch = epoch + 1)
               update job set worker_id = gen_random_uuid(), ready_at = now() where kind = 'turn'";
    sqlx::query(sql).execute(&mut superuser).await.expect("an update");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), fake.calls()), (vec!["completed"], 2));
    let kinds: Vec<_> = log.iter().filter_map(|event| event["type"].as_str()).collect();
    let at = kinds.iter().position(|kind| *kind == "step.aborted").expect("it is reported");
    assert_eq!(kinds[at + 1], "turn.started");
    assert_eq!((&log[at]["body"]["reason"], &log[at]["body"]["attempt"]), (&json!("worker_lost"), &json!(1)));
    assert!(log[at]["body"]["usage"]["input_tokens"].as_u64() > Some(0));
    scene.close().await;
}

#[tokio::test]
async fn a_call_of_a_session_that_is_archived_in_its_middle_is_paid_all_the_same() {
    let fake = Fake::script(Anthropic::default(), [cut(Fault::StallAfter(SOME))]).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    operator.store.top_up(operator.org, 1_000_000).await.expect("a balance");
    let owner = &scene.owner;
    let id = start(owner, &agent(owner, json!({})).await, json!({})).await;
    fake.called(1).await;
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    let mut looks = tokio::time::interval(std::time::Duration::from_millis(20));
    let spent = loop {
        let budget = owner.get("/budget").await.ok();
        let spent = budget["spent"]["days_1"].as_i64().expect("a sum");
        if spent > 0 {
            assert_eq!(
                (&budget["balance_micros"], &budget["reserved_micros"]),
                (&json!(1_000_000 - spent), &json!(0))
            );
            break spent;
        }
        looks.tick().await;
    };
    // Its log has no entry for it; the usage sums do.
    let log = crate::turns::log(owner, &id).await;
    assert_sound(&log);
    assert_eq!((ends(&log), of(&log, "step.aborted").len()), (vec!["canceled"], 0));
    let usage = owner.get(&format!("/sessions/{id}/usage")).await.ok();
    assert_eq!(usage["models"][0]["usage"]["cost"]["total_micros"], spent);
    assert_eq!(usage["usage"]["cost"]["total_micros"], 0);
    let page = owner.get("/usage?by=day,agent,model").await.ok();
    assert_eq!((page["data"].as_array().map(Vec::len), fake.calls()), (Some(1), 1));
    assert_eq!(page["data"][0]["usage"]["cost"]["total_micros"], spent);
    scene.close().await;
}
