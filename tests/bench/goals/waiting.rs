//! P14: turns that wait for their caller.
//!
//! Thousands of turns wait for the result of a custom tool. The service holds nothing for them: its memory, its
//! connections and its slots are those from before. Then one turn after the other is answered, from before the
//! request until the provider has the next one: HTTP, the transaction, the wake, the claim, the log and the context
//! are included. The anchor is that of P5.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use super::steer::Provider;
use crate::{
    Bench,
    anchor::Anchor,
    cpu, http,
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
    stats::p50_p99,
};

/// Sessions that are created at once.
const AT_ONCE: usize = 16;
/// The tool with its call, and the answer of a model that calls it.
const CALLS: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\
\"type\":\"function\",\"function\":{\"name\":\"ask_weather\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n\
data: [DONE]\n\n";

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let anchor = Anchor::open(bench).await?;
    let mut provider = Provider::start(CALLS).await?;
    let service = bench.ground.serve(&["--role=all", "--max-concurrent-turns=16"]).await?;
    let caller = Caller::of(service.address)?;
    provider.register(&caller).await?;
    let tool = json!({
        "type": "custom", "name": "ask_weather", "description": "The weather.", "input_schema": { "type": "object" },
    });
    let agent = json!({ "name": "waiting", "prompt": "Ask.", "model": "openai/m", "tools": [tool] });
    let agent = http::id(&caller.post("/agents", &agent).await?)?;
    // From the first of them on, the bounded caches of the service are full.
    let (few, many) = (bench.plan.size(5_000, 50), bench.plan.size(10_000, 200));
    let count = bench.plan.size(400, 20);
    let mut connection = bench.ground.connection().await?;
    let metrics = vec![
        Metric::new(Goal::P14, "from an answer to the next model request, p50", "ms", Target::AtMost(10.0)),
        Metric::new(Goal::P14, "from an answer to the next model request, p99", "ms", Target::Told),
        Metric::new(
            Goal::P14,
            format!("memory of the service, {few} to {many} waiting turns"),
            "x",
            Target::AtMost(1.05),
        ),
        Metric::new(Goal::P14, "additional connections", "", Target::AtMost(0.0)),
        Metric::new(Goal::P14, "slots that waiting turns hold", "", Target::AtMost(0.0)),
    ];
    let measured = bench
        .measure_once(
            metrics,
            async || Ok(p50_p99(anchor.wakes(count).await?)),
            async || {
                wait(&caller, &agent, few).await?;
                super::idle::settle(&caller, &mut connection).await?;
                let memory = cpu::memory(service.pid)?;
                let connections = super::idle::connections(&mut connection).await?;
                wait(&caller, &agent, many - few).await?;
                super::idle::settle(&caller, &mut connection).await?;
                let grown = cpu::memory(service.pid)? / memory;
                let more = (super::idle::connections(&mut connection).await? - connections).max(0.0);
                let held = "select count(*) from job where worker_id is not null and kind = 'turn'";
                let (slots,): (i64,) = sqlx::query_as(held).fetch_one(&mut connection).await?;
                let page = caller.get(&format!("/pending?limit={}", count.min(500))).await?;
                let mut times = Vec::with_capacity(count);
                for action in page["data"].as_array().into_iter().flatten().take(count) {
                    times.push(answer(&mut provider, &caller, action).await?);
                }
                let latency = p50_p99(times);
                Ok(vec![latency[0], latency[1], grown, more, slots as f64])
            },
        )
        .await?;
    service.stop().await?;
    provider.stop();
    anchor.close().await;
    Ok(measured)
}

/// Creates sessions until `count` more turns wait.
async fn wait(caller: &Caller, agent: &str, count: usize) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for task in 0..AT_ONCE {
        let (caller, agent) = (caller.clone(), agent.to_owned());
        let own = count / AT_ONCE + usize::from(task < count % AT_ONCE);
        tasks.spawn(async move {
            for _ in 0..own {
                caller.session(&agent, Some(&json!("Well?"))).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    // The turns follow their sessions.
    loop {
        let left = caller.get("/sessions?status=queued&limit=1").await?;
        let runs = caller.get("/sessions?status=running&limit=1").await?;
        if [left, runs].iter().all(|page| page["data"].as_array().is_some_and(Vec::is_empty)) {
            return Ok(());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Answers an action; returns the time until the provider has the next request.
async fn answer(provider: &mut Provider, caller: &Caller, action: &Value) -> anyhow::Result<Duration> {
    let content = json!([{ "type": "text", "text": "Rain." }]);
    let event = json!({ "type": "user.custom_tool_result", "action_id": action["id"], "content": content });
    let path = format!("/sessions/{}/events", action["session_id"].as_str().unwrap_or_default());
    // The model calls the tool again, so the turn waits again.
    provider.next_after(async { caller.post(&path, &json!({ "events": [event] })).await.map(drop) }).await
}
