//! Cost of a session: by step, turn, session and model, with each organization's prices.

use serde_json::{Value, json};

use super::{agent, scene, start};
use crate::{
    fake::{Fake, Step, Used, anthropic::Anthropic},
    turns::{Scene, assert_sound, of, run, session, steer},
};

const USED: [Used; 3] = [
    Used { input: 1_001, output: 13, cache_write: 0, cache_read: 0 },
    Used { input: 7, output: 301, cache_write: 1_000, cache_read: 17 },
    Used { input: 1, output: 1, cache_write: 3, cache_read: 2_000 },
];

fn prices() -> Value {
    json!({
        "version": "ours-1",
        "models": { "anthropic/m-1":
            { "input": 3_000_000, "output": 15_000_000, "cache_write": 3_750_000, "cache_read": 300_001 } },
        "sandbox": { "cpu_hour": 36_000_000, "gib_hour": 3_600_000 },
        "fee": { "turn": 40 },
    })
}

/// Amount that the provider would bill for a call.
fn billed(used: Used) -> u64 {
    let parts = used.input * 3_000_000
        + used.output * 15_000_000
        + used.cache_write * 3_750_000
        + used.cache_read * 300_001;
    parts.div_ceil(1_000_000)
}

fn micros(usage: &Value, part: &str) -> u64 {
    usage["cost"][part].as_u64().unwrap_or_else(|| panic!("{part} of {usage}"))
}

#[tokio::test]
async fn steps_turns_and_sessions_cost_what_the_provider_bills() {
    let glob = |used| Step::default().and_tool("glob", json!({ "pattern": "*" })).using(used);
    let steps = [glob(USED[0]), Step::text("Done.").using(USED[1]), Step::text("Again.").using(USED[2])];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(prices()).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({})).await;
    let id = start(owner, &agent, json!({})).await;
    owner.settled(&id, 1).await;
    steer(owner, &id, "Again.").await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(fake.refusals(), Vec::<String>::new());

    let steps = owner.get(&format!("/sessions/{id}/steps")).await.ok();
    let costs: Vec<_> =
        steps["data"].as_array().expect("steps").iter().map(|step| step["cost_micros"].as_u64()).collect();
    assert_eq!(costs, USED.map(|used| Some(billed(used))));
    assert_eq!(steps["data"][0]["price_version"], "ours-1");
    assert_eq!(of(&log, "step.completed")[0]["body"]["cost_micros"], billed(USED[0]));

    let turns = owner.get(&format!("/sessions/{id}/turns")).await.ok();
    let first = &turns["data"][1]["usage"];
    assert_eq!(micros(first, "model_micros"), billed(USED[0]) + billed(USED[1]));
    assert_eq!(micros(first, "fee_micros"), 40);
    assert_eq!(of(&log, "turn.completed")[0]["body"]["usage"], *first);

    let session = session(owner, &id).await;
    let all = &session["usage"];
    assert_eq!(micros(all, "model_micros"), USED.map(billed).iter().sum::<u64>());
    assert_eq!(micros(all, "total_micros"), micros(all, "model_micros") + 80);
    let told = owner.get(&format!("/sessions/{id}/usage")).await.ok();
    assert_eq!(told, json!({ "usage": all, "models": [{ "model": "anthropic/m-1", "usage": all }] }));
    scene.close().await;
}

#[tokio::test]
async fn a_model_without_a_price_costs_null_and_not_zero() {
    let fake = Fake::script(Anthropic::default(), [Step::text("Done.")]).await;
    let (scene, _operator) = scene(&fake.base_url).await;
    let owner = &scene.owner;
    let id = start(owner, &agent(owner, json!({})).await, json!({})).await;
    let log = owner.settled(&id, 1).await;
    let step = &of(&log, "step.completed")[0]["body"];
    assert!(step["cost_micros"].is_null() && step["price_version"].is_null(), "{step}");
    let usage = &session(owner, &id).await["usage"];
    assert!(usage["cost"]["total_micros"].is_null(), "{usage}");
    assert_eq!((micros(usage, "unpriced_steps"), micros(usage, "model_micros")), (1, 0));
    scene.close().await;
}

#[tokio::test]
async fn a_command_costs_its_sandbox_for_as_long_as_it_ran() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let operator = super::Operator::of(&scene.ground, owner).await;
    operator.price(prices()).await;
    let id = owner.play(json!([run("sleep 0.2"), { "text": "Slept." }])).await;
    let log = owner.settled(&id, 1).await;
    let exec = &of(&log, "exec.completed")[0]["body"];
    let number = |name: &str| exec[name].as_u64().expect("a number");
    // 2 CPUs at 10 a millisecond, 2 GiB at 1.
    assert_eq!(
        (number("cpu_micros"), number("memory_micros")),
        (number("duration_ms") * 20, number("duration_ms") * 2)
    );
    assert!(number("duration_ms") >= 200, "{exec}");
    let usage = &session(owner, &id).await["usage"];
    assert_eq!(micros(usage, "sandbox_cpu_micros"), number("cpu_micros"));
    assert_eq!(micros(usage, "total_micros"), number("cpu_micros") + number("memory_micros") + 40);

    let told = owner.get("/prices").await.ok();
    assert_eq!((told["unit"].as_str(), told["own"]["version"].as_str()), (Some("micro_usd"), Some("ours-1")));
    assert!(told["bundled"]["models"]["anthropic/claude-opus-5-5"].is_object());
    scene.close().await;
}
