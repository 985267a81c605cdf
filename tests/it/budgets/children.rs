//! Child sessions: their usage counts once against the limits of their parents.

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::{agent, limits::a_micro_each, scene, start};
use crate::{
    fake::{Fake, Step, Used, anthropic::Anthropic},
    support::service::{Caller, send},
    turns::{Scene, assert_sound, ends, log, of, outputs, session, steer},
};

const CHILDREN: usize = 50;
const CAP: u64 = 40_000;
/// Tokens of the most expensive call, at one micro-dollar each.
const CALL_MAX: u64 = 2_000;

fn used(call: usize) -> Used {
    let number = call as u64;
    Used {
        input: 600 + number % 7 * 100,
        output: number % 90,
        cache_write: number % 500,
        cache_read: number % 200,
    }
}

fn tokens(used: Used) -> u64 {
    used.input + used.output + used.cache_write + used.cache_read
}

fn of_input(tokens: u64) -> Used {
    Used { input: tokens, output: 0, cache_write: 0, cache_read: 0 }
}

/// Creates a session without input; returns its id.
async fn open(owner: &Caller, body: Value) -> String {
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

async fn consumed(owner: &Caller, id: &str) -> Value {
    session(owner, id).await["budget_consumed"].clone()
}

#[tokio::test]
async fn fifty_children_that_race_for_one_limit_overstep_it_by_one_call_at_most() {
    let fake = Fake::decide(Anthropic::default(), |request| {
        let asked = request.body["messages"].as_array().map_or(0, Vec::len);
        let step = match asked {
            0..6 => Step::default().and_tool("no_such_tool", json!({})),
            _ => Step::text("Done."),
        };
        step.using(used(request.call))
    })
    .await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({ "model_options": { "max_tokens": 100 } })).await;
    let parent = open(owner, json!({ "agent": agent, "limits": { "cost_micros": CAP } })).await;
    let of_parent = json!({ "parent_session_id": parent });
    let ids = join_all((0..CHILDREN).map(|_| start(owner, &agent, of_parent.clone()))).await;
    let logs = join_all(ids.iter().map(|id| owner.settled(id, 1))).await;
    assert_eq!(fake.refusals(), Vec::<String>::new());

    let billed: u64 = (1..=fake.calls()).map(|call| tokens(used(call))).sum();
    let (mut spent, mut stopped, mut warned) = (0, 0, 0);
    for (id, log) in ids.iter().zip(&logs) {
        assert_sound(log);
        let reason = ends(log)[0];
        assert!(["completed", "budget_exceeded"].contains(&reason), "{reason}");
        let exceeded = of(log, "limit.exceeded");
        assert_eq!(exceeded.len(), usize::from(reason == "budget_exceeded"));
        for event in &exceeded {
            let body = &event["body"];
            assert_eq!((&body["limit"], &body["session_id"]), (&json!("cost_micros"), &json!(parent)));
            assert_eq!(body["allowed"], CAP);
            assert!(body["used"].as_u64().is_some_and(|used| used >= CAP), "{body}");
        }
        stopped += exceeded.len();
        warned += of(log, "limit.warning").len();
        let child = session(owner, id).await;
        assert_eq!((&child["status"], &child["parent_session_id"]), (&json!("idle"), &json!(parent)));
        spent += child["usage"]["cost"]["total_micros"].as_u64().expect("a sum");
    }
    assert_eq!(spent, billed, "the sum is the provider's own count");
    assert!((CAP..CAP + CALL_MAX).contains(&spent), "{spent} of {CAP}");
    assert!(stopped > 0);
    assert_eq!(warned, 1, "only the first session to come close reports it");
    println!("{CHILDREN} children, {} calls, {spent} of {CAP} micro-USD, {stopped} stopped", fake.calls());

    // The parent includes the usage of its children, and the sums of the organization count it once.
    let of_parent = consumed(owner, &parent).await;
    assert_eq!((&of_parent["cost_micros"], &of_parent["tokens"]), (&json!(spent), &json!(spent)));
    let children = &of_parent["children"];
    assert_eq!((&children["sessions"], &children["cost_micros"]), (&json!(CHILDREN), &json!(spent)));
    assert_eq!(session(owner, &parent).await["usage"]["cost"]["total_micros"], 0);
    let page = owner.get("/usage?by=agent").await.ok();
    assert_eq!(page["data"][0]["usage"]["cost"]["total_micros"], spent);
    assert_eq!(page["data"].as_array().map(Vec::len), Some(1));

    // The parent's own turn ends by the limit, too; after a raise the stopped sessions continue.
    steer(owner, &parent, "Go.").await;
    let own = owner.settled(&parent, 1).await;
    assert_eq!((ends(&own), of(&own, "turn.started").len()), (vec!["budget_exceeded"], 0));
    assert_eq!(of(&own, "limit.exceeded")[0]["body"].get("session_id"), None, "the limit is its own");
    let limits = json!({ "limits": { "cost_micros": CAP * 100 } });
    owner.patch(&format!("/sessions/{parent}"), limits).await.ok();
    let at = logs.iter().position(|log| ends(log)[0] == "budget_exceeded").expect("one was stopped");
    steer(owner, &ids[at], "Go on.").await;
    assert_eq!(ends(&owner.settled(&ids[at], 2).await)[1], "completed");
    scene.close().await;
}

#[tokio::test]
async fn tokens_and_calls_count_up_to_the_top_and_a_deleted_child_gives_nothing_back() {
    let ask = || Step::default().and_tool("no_such_tool", json!({})).using(of_input(100));
    let steps = [ask(), Step::text("One.").using(of_input(100)), ask(), ask()];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({})).await;
    let limits = json!({ "limits": { "tool_calls": 2, "tokens": 1_000_000 } });
    let top = open(owner, json!({ "agent": agent, "limits": limits["limits"] })).await;
    let middle = open(owner, json!({ "agent": agent, "parent_session_id": top })).await;
    let low = start(owner, &agent, json!({ "parent_session_id": middle })).await;
    assert_eq!(ends(&owner.settled(&low, 1).await), ["completed"]);
    let of_low = json!({ "sessions": 1, "tokens": 200, "cost_micros": 200, "tool_calls": 1 });
    assert_eq!(consumed(owner, &middle).await["children"], of_low);
    let both = json!({ "sessions": 2, "tokens": 200, "cost_micros": 200, "tool_calls": 1 });
    assert_eq!(consumed(owner, &top).await["children"], both);

    // Usage of a deleted child remains with its parents.
    let open_below = owner.delete(&format!("/sessions/{middle}")).await.error(409);
    assert_eq!(open_below["code"], "open_sessions_below");
    assert_eq!(owner.delete(&format!("/sessions/{low}")).await.status, 204);
    for (id, sessions) in [(&middle, 0), (&top, 1)] {
        let children = consumed(owner, id).await["children"].clone();
        assert_eq!((&children["sessions"], &children["tokens"]), (&json!(sessions), &json!(200)));
    }
    assert_eq!(owner.delete(&format!("/sessions/{middle}")).await.status, 204);
    let gone = json!({ "sessions": 0, "tokens": 200, "cost_micros": 200, "tool_calls": 1 });
    assert_eq!(consumed(owner, &top).await["children"], gone);

    // One call is left. It runs; a further one does not.
    let next = start(owner, &agent, json!({ "parent_session_id": top })).await;
    let log = owner.settled(&next, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), fake.calls()), (vec!["budget_exceeded"], 4));
    let exceeded = json!({ "limit": "tool_calls", "used": 3, "allowed": 2, "session_id": top });
    assert_eq!(of(&log, "limit.exceeded")[0]["body"], exceeded);
    assert_eq!(of(&log, "turn.completed")[0]["body"]["limit"], "tool_calls");
    let words = of(&log, "tool.result")[1]["body"]["output"].as_str().expect("words").to_owned();
    assert!(words.contains("did not run"), "{words}");
    scene.close().await;
}

#[tokio::test]
async fn commands_of_callers_are_refused_where_a_limit_above_is_used_up() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let parent = open(owner, json!({ "limits": { "tool_calls": 1 } })).await;
    let [one, two] = [(); 2].map(|()| json!({ "parent_session_id": parent }));
    let (one, two) = (open(owner, one).await, open(owner, two).await);
    let exec = async |id: &str| {
        let request = owner.request(Method::POST, &format!("/sessions/{id}/exec"));
        send(request.json(&json!({ "command": "true" }))).await
    };
    exec(&one).await.ok();
    let refused = exec(&two).await.error(402);
    assert_eq!(refused["code"], "budget_exceeded");
    assert!(refused["message"].as_str().is_some_and(|words| words.contains(&parent)), "{refused}");
    assert_eq!(exec(&parent).await.error(402)["code"], "budget_exceeded");
    let (first, second) = (log(owner, &one).await, log(owner, &two).await);
    let exceeded = json!({ "limit": "tool_calls", "used": 1, "allowed": 1, "session_id": parent });
    assert_eq!(of(&first, "limit.exceeded")[0]["body"], exceeded);
    assert_eq!(of(&second, "exec.started").len(), 0);
    owner.patch(&format!("/sessions/{parent}"), json!({ "limits": { "tool_calls": 3 } })).await.ok();
    exec(&two).await.ok();
    scene.close().await;
}

#[tokio::test]
async fn an_agent_that_names_the_tool_starts_children_and_another_cannot() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let noop = json!({ "name": "noop", "prompt": "", "model": "scripted/noop" });
    owner.post("/agents", noop).await.ok();
    let boss =
        json!({ "name": "boss", "prompt": "", "model": "scripted/inline", "tools": ["start_session"] });
    owner.post("/agents", boss).await.ok();
    let call = |agent: &str| {
        let input = json!({ "agent": agent, "input": "Look around.", "title": "Below" });
        json!({ "tools": [{ "tool": "start_session", "input": input }] })
    };
    let script = json!([call("noop"), call("nobody"), { "text": "Started." }]);
    let environment = json!({
        "name": "small",
        "config": { "memory": "512Mi", "network": { "allow": [{ "host": "api.example" }] } },
        "secrets": [{ "name": "TOKEN", "value": "a-very-secret-value", "hosts": ["api.example"] }],
    });
    owner.post("/environments", environment).await.ok();
    let body = json!({ "agent": "boss", "input": { "script": script }, "environment": "small" });
    let created = owner.post("/sessions", body).await.ok()["session"].clone();
    let parent = created["id"].as_str().expect("an id").to_owned();
    let log = owner.settled(&parent, 1).await;
    assert_sound(&log);
    let said = outputs(&log);
    assert_eq!(said[1], "There is no agent `nobody`.");
    let page = owner.get(&format!("/sessions?parent_session_id={parent}")).await.ok();
    let children = page["data"].as_array().expect("a page");
    assert_eq!(children.len(), 1);
    let child = &children[0];
    assert_eq!(said[0], format!("The session {} was started.", child["id"].as_str().expect("an id")));
    assert_eq!((&child["source"], &child["title"]), (&json!("agent"), &json!("Below")));
    // The environment of the parent, with placeholders of its own.
    let (mut inherited, mut own) = (child["environment"].clone(), created["environment"].clone());
    let placeholder = |environment: &mut Value| environment["secrets"][0]["placeholder"].take();
    assert_ne!(placeholder(&mut inherited), placeholder(&mut own));
    assert_eq!((&inherited, &own["name"]), (&own, &json!("small")));
    assert_eq!(child["actor"], json!({ "id": parent, "display": "boss", "type": "agent" }));
    assert_eq!(ends(&owner.settled(child["id"].as_str().expect("an id"), 1).await), ["completed"]);

    let other = owner.play(json!([call("noop"), { "text": "No." }])).await;
    let log = owner.settled(&other, 1).await;
    assert!(outputs(&log)[0].starts_with("There is no tool `start_session`."), "{:?}", outputs(&log));
    scene.close().await;
}
