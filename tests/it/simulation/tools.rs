//! The port `Tools` over simulated sandboxes, with the rules of `turn::tools`.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Map, json};
use sojourn::{
    base::limit::{SANDBOX_CALL_ATTEMPTS_MAX, SANDBOX_START_ATTEMPTS_MAX},
    domain::{
        Actor, Body, SandboxId, SessionId,
        custom_tool::{CustomTool, CustomToolType},
        elicitation::Elicitation,
        event::{Draft, Outcome},
        log_fold::{self, ReadTo},
        permission::{Grant, Policy, PolicyDecision, Rule},
        question::Question,
        tool::{ASK, MALFORMED_INPUT, Replay, SESSION_WAIT, SUBMIT_OUTPUT, ToolCall, ToolSpec},
    },
    harness::{Call, CallResult, ExecSummary, Fault, Tools},
};
use tokio::{sync::Mutex, time::sleep};
use uuid::Uuid;

use super::{
    database::{Fence, Recorded},
    sandboxes::Refused,
    world::{Away, World},
};

/// Tools, by the effect of a crash during each.
pub const TOOLS: [(&str, Replay); 5] = [
    ("read", Replay::ReadOnly),
    ("write", Replay::Idempotent),
    ("bash", Replay::Unsafe),
    (ASK, Replay::ReadOnly),
    (SESSION_WAIT, Replay::ReadOnly),
];

/// A tool that the caller runs.
pub const CALLER_TOOL: &str = "ask_weather";

/// A tool that runs at a server outside of the sandbox.
pub const REMOTE_TOOL: &str = "mcp__server__act";

/// Longest time until a session that a call waits for has nothing to do, in seconds.
const WORK_SECONDS_MAX: u64 = 90;

/// The same once faults have ended: what the check waits for then is this session, not the length of the other.
const WORK_SECONDS_CALM_MAX: u64 = 5;

/// Access to the session's sandbox for a turn under one lease.
pub struct LeasedTools {
    world: Arc<World>,
    fence: Fence,
    specs: Arc<[ToolSpec]>,
    custom: CustomTool,
    attached: Mutex<Option<SandboxId>>,
}

/// A rule for all calls of a tool.
fn rule(tool: &str, policy: Policy) -> Rule {
    Rule { tool: tool.to_owned(), prefix: None, path: None, host: None, policy, expires_seconds: None }
}

/// State of a call whose result cannot be read.
enum Open {
    NeverRan,
    Lost,
}

impl LeasedTools {
    pub fn new(world: Arc<World>, fence: Fence) -> Self {
        let spec = |(name, replay): (&str, Replay)| ToolSpec {
            name: name.to_owned(),
            description: format!("The tool {name}."),
            input_schema: json!({"type": "object", "properties": {}}),
            replay,
        };
        let custom = CustomTool {
            r#type: CustomToolType::Custom,
            name: CALLER_TOOL.to_owned(),
            description: "The weather.".to_owned(),
            input_schema: Map::new(),
            expires_seconds: world.plan.expires_seconds,
            on_expiry: world.plan.on_expiry,
        };
        let mut specs: Vec<_> = TOOLS.map(spec).into();
        specs.push(spec((CALLER_TOOL, Replay::Unsafe)));
        specs.push(spec((REMOTE_TOOL, Replay::Unsafe)));
        specs.extend(world.plan.output_repairs.map(|_| spec((SUBMIT_OUTPUT, Replay::ReadOnly))));
        Self { world, fence, specs: specs.into(), custom, attached: Mutex::new(None) }
    }

    async fn attached(&self) -> Result<SandboxId, Fault> {
        let mut attached = self.attached.lock().await;
        let id = match *attached {
            Some(id) => id,
            None => match self.greet().await? {
                Some(id) => id,
                None => self.make().await?,
            },
        };
        *attached = Some(id);
        Ok(id)
    }

    async fn greet(&self) -> Result<Option<SandboxId>, Fault> {
        let Some(id) = self.world.ask(|database, _| database.sandbox).await.map_err(away)? else {
            return Ok(None);
        };
        self.world.latency().await;
        if self.world.mishap(self.world.plan.sandboxes_die_one_in) {
            // It does not respond, and could not be killed either.
            return Err(unavailable("the sandbox does not answer"));
        }
        match self.world.sandboxes.attach(id, self.fence.epoch) {
            Ok(()) => Ok(Some(id)),
            Err(Refused::Stale) => Err(Fault::Stale),
            Err(Refused::Gone) => {
                self.write_off(id).await?;
                Ok(None)
            }
        }
    }

    async fn make(&self) -> Result<SandboxId, Fault> {
        let epoch = self.fence.epoch;
        for _ in 0..SANDBOX_START_ATTEMPTS_MAX {
            let id: SandboxId = self.world.origin.id();
            let begun = self.world.ask(move |database, _| database.begin_sandbox(id, epoch)).await;
            if !begun.map_err(away)? {
                return Err(Fault::Stale);
            }
            self.world.latency().await;
            if self.world.mishap(self.world.plan.sandboxes_die_one_in) {
                self.end_row(id).await?;
                sleep(Duration::from_millis(200)).await;
                continue;
            }
            self.world.sandboxes.create(id, epoch);
            self.world.latency().await;
            self.say(Body::SandboxCreated { sandbox_id: id, duration_ms: 1 }).await?;
            return Ok(id);
        }
        Err(unavailable("no sandbox started"))
    }

    /// Whether the sandbox of an earlier worker still exists.
    async fn survived(&self) -> Result<bool, Fault> {
        let mut attached = self.attached.lock().await;
        if attached.is_none() {
            *attached = self.greet().await?;
        }
        Ok(attached.is_some())
    }

    /// Whether the command of this call may ever have been started, according to the log.
    async fn may_have_run(&self, call_id: &str) -> Result<bool, Fault> {
        let log = self.world.ask(|database, _| database.log.clone()).await.map_err(away)?;
        Ok(log_fold::may_have_run(&log, call_id))
    }

    async fn gone(&self, id: SandboxId) -> Result<Result<CallResult, Open>, Fault> {
        let mut attached = self.attached.lock().await;
        if attached.take_if(|attached| *attached == id).is_some() {
            self.write_off(id).await?;
        }
        Ok(Err(Open::Lost))
    }

    async fn write_off(&self, id: SandboxId) -> Result<(), Fault> {
        self.say(Body::SandboxLost { sandbox_id: id, reason: "it is gone".to_owned() }).await?;
        self.end_row(id).await
    }

    async fn end_row(&self, id: SandboxId) -> Result<(), Fault> {
        let end = self.world.ask(move |database, _| {
            database.sandbox.take_if(|live| *live == id);
        });
        end.await.map_err(away)
    }

    async fn say(&self, body: Body) -> Result<(), Fault> {
        let draft = Draft {
            id: self.world.origin.id(),
            actor: Actor::system(),
            level: body.level(),
            turn_id: Some(self.fence.turn),
            step_id: None,
            refs: Map::new(),
            body,
        };
        let (fence, ts) = (self.fence, self.world.origin.now());
        let said = self
            .world
            .ask(move |database, now| database.record(fence, (vec![draft], ReadTo::default()), ts, now))
            .await;
        match said.map_err(away)? {
            Recorded::Appended(_) => Ok(()),
            Recorded::Stale | Recorded::Moved => Err(Fault::Stale),
        }
    }

    /// Waits until another session has nothing to do, at a time that the id of the call determines.
    async fn wait(&self, call: &Call) -> Result<CallResult, Fault> {
        let id = call.id().to_owned();
        let called_at = self.world.ask(move |database, _| {
            database.log.iter().find_map(|event| match &event.draft.body {
                Body::ToolCall { call_id, .. } if *call_id == id => Some(event.ts),
                _ => None,
            })
        });
        let called_at = called_at.await.map_err(away)?.expect("a call is in the log before it runs");
        let seconds_max = if self.world.is_calm() { WORK_SECONDS_CALM_MAX } else { WORK_SECONDS_MAX };
        let seconds = call.id().bytes().map(u64::from).sum::<u64>() % seconds_max;
        let until = called_at + Duration::from_secs(seconds);
        if self.world.origin.now() < until {
            return Err(Fault::Waits { sessions: vec![SessionId::from_uuid(Uuid::from_u128(1))], until });
        }
        Ok(done(call, Outcome::Ran))
    }

    async fn run_here(&self, call: &Call) -> Result<Result<CallResult, Open>, Fault> {
        let id = self.attached().await?;
        self.world.latency().await;
        let epoch = self.fence.epoch;
        let started = match call.replay {
            Replay::Unsafe => {
                let ends = self.world.now() + self.world.duration();
                self.world.look(|log| self.world.sandboxes.start(id, epoch, call.id(), ends, log))
            }
            Replay::ReadOnly | Replay::Idempotent => {
                self.world.look(|log| self.world.sandboxes.touch(id, epoch, call.id(), log))
            }
        };
        match started {
            Ok(()) => self.follow(id, call).await,
            Err(Refused::Stale) => Err(Fault::Stale),
            Err(Refused::Gone) => self.gone(id).await,
        }
    }

    /// Waits for the command of a call, and checks periodically that its sandbox lives.
    async fn follow(&self, id: SandboxId, call: &Call) -> Result<Result<CallResult, Open>, Fault> {
        if call.replay != Replay::Unsafe {
            self.world.latency().await;
            return Ok(Ok(done(call, Outcome::Ran)));
        }
        loop {
            let now = self.world.now();
            match self.world.sandboxes.ends(id, self.fence.epoch, call.id()) {
                Ok(None) => return Ok(Err(Open::NeverRan)),
                Ok(Some(ends)) if ends <= now => return Ok(Ok(done(call, Outcome::Ran))),
                Ok(Some(ends)) => sleep((ends - now).min(Duration::from_secs(1))).await,
                Err(Refused::Stale) => return Err(Fault::Stale),
                Err(Refused::Gone) => return self.gone(id).await,
            }
            self.world.latency().await;
        }
    }
}

#[async_trait]
impl Tools for LeasedTools {
    fn specs(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.specs)
    }

    fn check(&self, call: &ToolCall) -> Result<Call, String> {
        let spec = self.specs.iter().find(|spec| spec.name == call.tool);
        match spec.filter(|spec| spec.name != CALLER_TOOL && call.input.get("bad").is_none()) {
            Some(spec) if spec.name == REMOTE_TOOL => Ok(Call::remote(call.clone(), spec.replay)),
            Some(spec) => Ok(Call::external(call.clone(), spec.replay, None)),
            None => Err("It cannot run like this.".to_owned()),
        }
    }

    fn caller_tool(&self, call: &ToolCall) -> Option<&CustomTool> {
        (call.tool == CALLER_TOOL && call.input.get("bad").is_none()).then_some(&self.custom)
    }

    fn output_faults(&self, call: &ToolCall) -> Option<Vec<String>> {
        self.world.plan.output_repairs.filter(|_| call.tool == SUBMIT_OUTPUT)?;
        let is_bad = call.input.get("bad").or(call.input.get(MALFORMED_INPUT)).is_some();
        Some(is_bad.then(|| "is bad".to_owned()).into_iter().collect())
    }

    fn questions(&self, call: &ToolCall) -> Option<(Vec<Question>, u64)> {
        let questions = call.input.get("questions").filter(|_| call.tool == ASK)?;
        let questions = serde_json::from_value(questions.clone()).expect("the model asks well");
        Some((questions, self.custom.expires_seconds))
    }

    fn decision(&self, call: &ToolCall, granted: &[Grant]) -> PolicyDecision {
        let policy = match call.input.get("policy").and_then(|policy| policy.as_str()) {
            _ if call.tool == CALLER_TOOL || call.tool == SUBMIT_OUTPUT || self.check(call).is_err() => {
                return PolicyDecision::default();
            }
            None => return PolicyDecision::default(),
            Some("ask") => Policy::Ask,
            Some(_) => Policy::Deny,
        };
        let rule = rule(&call.tool, policy);
        let allowing = Rule { policy: Policy::Allow, ..rule.clone() };
        let is_granted = policy == Policy::Ask && granted.iter().any(|grant| grant.rule == allowing);
        PolicyDecision {
            policy: if is_granted { Policy::Allow } else { policy },
            rule: Some(rule),
            always: vec![allowing],
            schema_hash: None,
            expires_seconds: self.custom.expires_seconds,
        }
    }

    fn args_hash(&self, call: &ToolCall) -> String {
        call.input.to_string()
    }

    async fn run(&self, call: &Call) -> Result<CallResult, Fault> {
        if call.origin.tool == SESSION_WAIT {
            return self.wait(call).await;
        }
        if call.is_remote {
            self.world.latency().await;
            let round = call.elicited.as_ref().map_or(0, |elicited| elicited.round);
            self.world.look(|log| {
                assert_eq!(call.elicited, log.elicited(call.id()), "the server gets another response");
                self.world.sandboxes.run_outside(call.id(), round, log);
            });
            self.world.latency().await;
            if self.world.mishap(3) {
                let continuation = format!("{}/{round}", call.id());
                let questions =
                    serde_json::from_value(json!([{ "question": "Which?" }])).expect("a question");
                return Err(Fault::Asks(Box::new(Elicitation {
                    server: "server".to_owned(),
                    message: "It asks.".to_owned(),
                    questions,
                    continuation,
                    expires_seconds: self.custom.expires_seconds,
                })));
            }
            // The answer may get lost.
            let is_lost = self.world.mishap(8);
            return Ok(done(call, if is_lost { Outcome::Unknown } else { Outcome::Ran }));
        }
        for _ in 0..SANDBOX_CALL_ATTEMPTS_MAX {
            match self.run_here(call).await? {
                Ok(done) => return Ok(done),
                Err(Open::Lost) if call.replay == Replay::Unsafe => {
                    return Ok(done(call, Outcome::Unknown));
                }
                Err(Open::Lost | Open::NeverRan) => {}
            }
        }
        Err(unavailable("the sandbox was lost repeatedly"))
    }

    async fn recover(&self, call: &Call) -> Result<CallResult, Fault> {
        if call.replay != Replay::Unsafe {
            return self.run(call).await;
        }
        if call.is_remote {
            return Ok(done(call, Outcome::Unknown));
        }
        // Without the sandbox of its announcement, it is unknown whether it ran.
        if !self.survived().await? {
            if self.may_have_run(call.id()).await? {
                return Ok(done(call, Outcome::Unknown));
            }
            return self.run(call).await;
        }
        let id = self.attached().await?;
        self.world.latency().await;
        match self.follow(id, call).await? {
            Ok(done) => Ok(done),
            Err(Open::Lost) => Ok(done(call, Outcome::Unknown)),
            Err(Open::NeverRan) => self.run(call).await,
        }
    }

    async fn cancel(&self, call: &ToolCall) -> Option<ExecSummary> {
        let held = *self.attached.lock().await;
        let id = match held {
            Some(id) => Some(id),
            None => self.greet().await.ok().flatten(),
        };
        if let Some(id) = id {
            sleep(self.world.chance.millis(0, 1_000)).await;
            let _ = self.world.sandboxes.kill(id, self.fence.epoch, &call.call_id, self.world.now());
        }
        None
    }
}

fn done(call: &Call, outcome: Outcome) -> CallResult {
    let ran = outcome == Outcome::Ran;
    let exec = (ran && call.origin.tool == "bash").then(|| ExecSummary {
        command: "make".to_owned(),
        exit_code: 0,
        summary: String::new(),
        bytes: 0,
        cause: "exited",
        duration: Duration::ZERO,
    });
    let output = if ran { format!("{} is done.", call.id()) } else { "Nobody knows.".to_owned() };
    CallResult { output, is_error: !ran, outcome, duration: Duration::ZERO, exec, content: Vec::new() }
}

fn unavailable(reason: &str) -> Fault {
    Fault::EndTurn { code: "sandbox_unavailable", reason: reason.to_owned(), is_final: false }
}

fn away(_: Away) -> Fault {
    Fault::LogUnavailable("the database is away".to_owned())
}
