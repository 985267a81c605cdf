//! P13: the first command of a session's sandbox in each of its states, from the tool call in the log to its
//! result in the log; compared with the raw runtimes in the same run. Through the node agent, as `make run` serves.

use std::{fs, time::Duration};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sojourn::node::local::Config;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::{Instant, sleep};

use crate::{
    Bench, NotHere, NotNow,
    anchor::{Anchor, Way},
    http::{Caller, Reader},
    measure::{Measured, Metric, Target},
    plan::Goal,
    raw,
    stats::percentile_ms,
};

/// An idle sandbox is frozen, then checkpointed and removed, very soon. It is never idle between the calls of
/// a turn.
const HASTY: [&str; 2] = ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=1.5"];
/// The service is an ordinary user, and its node agent is root.
const SEPARATE: &str = "--user=sojourn";
/// Timeout for the removal of archived sessions' sandboxes.
const PATIENCE: Duration = Duration::from_secs(60);
/// 20 MB of incompressible files.
const FILL: &str = "for at in $(seq 200); do head -c 100000 /dev/urandom > f$at; done";

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    if !rustix::process::geteuid().is_root() {
        return Err(NotHere("sandboxes need root".to_owned()).into());
    }
    let (span, count) = (bench.plan.span(), bench.plan.size(20, 2));
    let anchor = Anchor::open(bench).await?;
    let service = bench
        .ground
        .serve(&[["--role=all", "--max-concurrent-turns=4", SEPARATE].as_slice(), &HASTY].concat())
        .await?;
    let place = Place { caller: Caller::of(service.address)?, config: Config::new(&bench.ground.data_dir) };
    let agent = place.caller.agent().await?;
    let mut metrics = vec![
        Metric::new(Goal::P13, "cold, p50", "ms", Target::AtMost(60.0)),
        Metric::new(Goal::P13, "cold, p99", "ms", Target::AtMost(150.0)),
        Metric::new(Goal::P13, "warm, p50", "ms", Target::AtMost(5.0)),
        Metric::new(Goal::P13, "frozen, p50", "ms", Target::AtMost(15.0)),
        Metric::new(Goal::P13, "restored from 20 MB, p50", "ms", Target::AtMost(200.0)),
        Metric::new(Goal::P13, "for comparison: `true` with runc alone, p50", "ms", Target::Told),
    ];
    let (session, config) = place.live(&agent).await?;
    let gvisor = place.raw("runsc", &config).await;
    place.archive(&session).await?;
    if gvisor?.is_some() {
        let what = "for comparison: `true` with gVisor's runsc alone, p50";
        metrics.push(Metric::new(Goal::P13, what, "ms", Target::Told));
    }
    let runtimes = &["runc", "runsc"][..metrics.len() - 5];
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || place.times(&agent, count, runtimes).await,
        )
        .await;
    // Also without figures: mounted sandboxes would keep the directory of the run.
    place.cleared().await?;
    service.stop().await?;
    anchor.close().await;
    measured
}

struct Place {
    caller: Caller,
    config: Config,
}

impl Place {
    async fn times(&self, agent: &str, count: usize, runtimes: &[&str]) -> anyhow::Result<Vec<f64>> {
        let (mut cold, mut warm, mut frozen, mut restored) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            let times = self.commands(agent).await?;
            cold.push(times[0]);
            warm.push(times[1]);
            frozen.extend(times.get(2));
            restored.push(self.restored(agent).await?);
        }
        if frozen.is_empty() {
            return Err(NotNow("no sandbox was found frozen".to_owned()).into());
        }
        let tail = percentile_ms(&mut cold.clone(), 99);
        let mut figures = vec![percentile_ms(&mut cold, 50), tail];
        figures.extend([warm, frozen, restored].map(|mut times| percentile_ms(&mut times, 50)));
        let (session, config) = self.live(agent).await?;
        let alone = self.alone(runtimes, &config, count).await;
        self.archive(&session).await?;
        figures.extend(alone?);
        Ok(figures)
    }

    /// The p50 of `true` with each runtime alone.
    async fn alone(&self, runtimes: &[&str], config: &str, count: usize) -> anyhow::Result<Vec<f64>> {
        let mut figures = Vec::new();
        for runtime in runtimes {
            let mut times = Vec::new();
            for _ in 0..count {
                times.push(self.raw(runtime, config).await?.context("the runtime was available before")?);
            }
            figures.push(percentile_ms(&mut times, 50));
        }
        Ok(figures)
    }

    /// Commands of a new session: the first one creates the sandbox, the second one uses it, and the third
    /// one, in another turn, finds it frozen.
    async fn commands(&self, agent: &str) -> anyhow::Result<Vec<Duration>> {
        let tools = bash("true");
        let script = json!({ "script": [{ "tools": tools }, { "tools": tools }, { "text": "Done." }] });
        let session = self.caller.session(agent, Some(&script)).await?;
        let mut reader = self.caller.follow(&session, 0).await?;
        let mut times = vec![command(&mut reader).await?, command(&mut reader).await?];
        let rests = reader.until_any(&["sandbox.frozen", "sandbox.terminated"]).await?;
        // On a busy machine the sandbox may already be hibernated; it is not counted then.
        if rests["type"] == "sandbox.frozen" {
            times.push(self.again(&session, &mut reader).await?);
        }
        self.archive(&session).await?;
        Ok(times)
    }

    /// The first command of a session whose sandbox was removed and has 20 MB of files.
    async fn restored(&self, agent: &str) -> anyhow::Result<Duration> {
        let script = json!({ "script": [{ "tools": bash(FILL) }, { "text": "Done." }] });
        let session = self.caller.session(agent, Some(&script)).await?;
        let mut reader = self.caller.follow(&session, 0).await?;
        command(&mut reader).await?;
        reader.until("sandbox.terminated").await?;
        let took = self.again(&session, &mut reader).await?;
        self.archive(&session).await?;
        Ok(took)
    }

    /// One more command, in its own turn.
    async fn again(&self, session: &str, reader: &mut Reader) -> anyhow::Result<Duration> {
        let script = json!({ "script": [{ "tools": bash("true") }, { "text": "Done." }] });
        self.caller.steer(session, &script.to_string()).await?;
        let took = command(reader).await?;
        reader.until("turn.completed").await?;
        Ok(took)
    }

    async fn archive(&self, session: &str) -> anyhow::Result<()> {
        self.caller.post(&format!("/sessions/{session}/archive"), &json!({})).await.map(drop)
    }

    /// Waits until the service has removed the mounts of the archived sessions.
    async fn cleared(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        let data_dir = self.config.data_dir.to_string_lossy();
        while fs::read_to_string("/proc/self/mounts")?.contains(&*data_dir) {
            ensure!(began.elapsed() < PATIENCE, "sandboxes of archived sessions are still there");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// A session with a live sandbox, and its configuration; it is paused, so that the sandbox stays.
    async fn live(&self, agent: &str) -> anyhow::Result<(String, String)> {
        let script = json!({ "script": [{ "tools": bash("true") }, { "text": "Done." }] });
        let session = self.caller.session(agent, Some(&script)).await?;
        let mut reader = self.caller.follow(&session, 0).await?;
        let created = reader.until("sandbox.created").await?;
        reader.until("turn.completed").await?;
        self.caller.post(&format!("/sessions/{session}/pause"), &json!({})).await?;
        let id = created["body"]["sandbox_id"].as_str().context("an id")?;
        let config = fs::read_to_string(self.config.run_dir.join("sandboxes").join(id).join("config.json"))?;
        Ok((session, config))
    }

    async fn raw(&self, runtime: &str, config: &str) -> anyhow::Result<Option<Duration>> {
        raw::run(runtime, config, &self.config.run_dir).await
    }
}

fn bash(command: &str) -> Value {
    json!([{ "tool": "bash", "input": { "command": command } }])
}

/// Duration of the next command.
async fn command(reader: &mut Reader) -> anyhow::Result<Duration> {
    let called = at(&reader.until("tool.call").await?)?;
    let result = reader.until("tool.result").await?;
    if result["body"]["outcome"] != "ran" {
        return Err(NotHere(result["body"]["output"].to_string()).into());
    }
    Ok((at(&result)? - called).try_into().unwrap_or_default())
}

fn at(event: &Value) -> anyhow::Result<OffsetDateTime> {
    Ok(OffsetDateTime::parse(event["ts"].as_str().unwrap_or_default(), &Rfc3339)?)
}
