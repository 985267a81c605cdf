//! P13: the first command of a cold session and of a warm one, from the tool call in
//! the log to its result in the log.

use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    Bench, NotHere,
    anchor::{Anchor, Way},
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
    stats::percentile_ms,
};

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    if !rustix::process::geteuid().is_root() {
        return Err(NotHere("sandboxes need root".to_owned()).into());
    }
    let (span, count) = (bench.plan.span(), bench.plan.size(20, 2));
    let anchor = Anchor::open(bench).await?;
    let service = bench.ground.serve(&["--role=all", "--workers=4"]).await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    let metrics = vec![
        Metric::new(Goal::P13, "cold, p50", "ms", Target::AtMost(60.0)),
        Metric::new(Goal::P13, "cold, p99", "ms", Target::AtMost(150.0)),
        Metric::new(Goal::P13, "warm, p50", "ms", Target::AtMost(5.0)),
    ];
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let (mut cold, mut warm) = (Vec::new(), Vec::new());
                for _ in 0..count {
                    let times = commands(&caller, &agent).await?;
                    cold.push(times[0]);
                    warm.push(times[1]);
                }
                let tail = percentile_ms(&mut cold.clone(), 99);
                Ok(vec![percentile_ms(&mut cold, 50), tail, percentile_ms(&mut warm, 50)])
            },
        )
        .await?;
    service.stop().await?;
    anchor.close().await;
    Ok(measured)
}

/// Two commands of a new session: the first makes the box, the second finds it.
async fn commands(caller: &Caller, agent: &str) -> anyhow::Result<Vec<std::time::Duration>> {
    let tools = json!([{ "tool": "bash", "input": { "command": "true" } }]);
    let script = json!({ "script": [{ "tools": tools }, { "tools": tools }, { "text": "Done." }] });
    let session = caller.session(agent, Some(&script)).await?;
    let mut reader = caller.follow(&session, 0).await?;
    let mut times = Vec::new();
    for _ in 0..2 {
        let called = at(&reader.until("tool.call").await?)?;
        let result = reader.until("tool.result").await?;
        if result["body"]["outcome"] != "ran" {
            return Err(NotHere(result["body"]["output"].to_string()).into());
        }
        times.push((at(&result)? - called).try_into().unwrap_or_default());
    }
    reader.until("turn.completed").await?;
    caller.post(&format!("/sessions/{session}/archive"), &json!({})).await?;
    Ok(times)
}

fn at(event: &serde_json::Value) -> anyhow::Result<OffsetDateTime> {
    Ok(OffsetDateTime::parse(event["ts"].as_str().unwrap_or_default(), &Rfc3339)?)
}
