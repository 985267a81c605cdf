//! The row of a session is the fold of its log, for all writers: callers through `Unit`, leased turns through
//! `Writer`, one after the other or concurrently.

mod concurrent;
mod group_commit;
mod world;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Map, json};
use sojourn::{
    domain::{
        Actor, Block, Body, Cost, Event, OperationId, Session, SessionId, StopReason, TurnId, Usage,
        context::ContextChange,
        decide::{Change, Command, Input, InputMode, Rejection},
        event::{Draft, Failure, Outcome, StepCompleted, TurnCompleted},
        log_fold::open_calls,
        session::{Limits, Status},
        tool::{Replay, ToolCall},
        turn::{TurnError, YieldReason},
    },
    journal::{Error, Halted, Writer},
    queue::Lease,
};

pub use self::world::World;

/// One action on a session.
#[derive(Clone, Debug)]
enum Act {
    Steer(InputMode),
    /// The running turn reads what steers it.
    ReadSteers,
    Cancel,
    /// A caller retries the last turn.
    Retry,
    Patch {
        tokens: u64,
    },
    Archive,
    /// A caller's start, stop, pause or resume.
    Hold(CallerAction),
    /// Another worker takes over the session, even from a live holder.
    TakeOver,
    Start,
    Step {
        calls: usize,
    },
    Fail,
    Result,
    End(YieldReason),
    /// The end of a caller's command, of this run time in milliseconds.
    Exec(u64),
    /// The sandbox of an idle session cannot be replaced.
    LoseSandbox,
    /// A worker that lost the session writes.
    Stale,
}

/// Start, stop, pause and resume by a caller.
#[derive(Clone, Copy, Debug)]
enum CallerAction {
    Start,
    Stop,
    Pause,
    Resume,
    Context,
}

impl CallerAction {
    fn command(self) -> Command {
        match self {
            Self::Start => Command::Start { has_sandbox: true },
            Self::Stop => Command::Stop { reason: Some("done".to_owned()) },
            Self::Pause => Command::Pause,
            Self::Resume => Command::Resume,
            Self::Context => Command::ChangeContext(ContextChange {
                working_dir: Some(Some("/tmp".to_owned())),
                env_vars: [("A".to_owned(), Some("1".to_owned())), ("B".to_owned(), None)].into(),
                custom_state: Map::new(),
            }),
        }
    }
}

fn act() -> impl Strategy<Value = Act> {
    let reason = prop::sample::select(vec![
        YieldReason::Completed,
        YieldReason::NeedsInput,
        YieldReason::BudgetExceeded,
        YieldReason::DeadlineExceeded,
        YieldReason::MaxTurns,
        YieldReason::Canceled,
        YieldReason::Error,
    ]);
    let mode = prop::sample::select(vec![InputMode::Queue, InputMode::Steer, InputMode::Interrupt]);
    prop_oneof![
        6 => mode.prop_map(Act::Steer),
        2 => Just(Act::ReadSteers),
        2 => Just(Act::Cancel),
        4 => Just(Act::Retry),
        1 => (1..3u64).prop_map(|tokens| Act::Patch { tokens }),
        1 => Just(Act::Archive),
        2 => prop::sample::select(vec![CallerAction::Start, CallerAction::Stop, CallerAction::Pause, CallerAction::Resume, CallerAction::Context])
            .prop_map(Act::Hold),
        3 => Just(Act::TakeOver),
        8 => Just(Act::Start),
        6 => (0..4usize).prop_map(|calls| Act::Step { calls }),
        1 => Just(Act::Fail),
        5 => Just(Act::Result),
        4 => reason.prop_map(Act::End),
        2 => (1..3_000u64).prop_map(Act::Exec),
        1 => Just(Act::LoseSandbox),
        2 => Just(Act::Stale),
    ]
}

/// A worker that makes only writes that the log allows.
#[derive(Default)]
struct FakeWorker {
    lease: Option<Lease>,
    taken_over: bool,
    /// The writer of an earlier lease.
    old: Option<Writer>,
}

impl FakeWorker {
    async fn take_over(&mut self, world: &World) {
        let held = self.lease.take();
        let mut leases = world.claim(1).await;
        self.taken_over = leases.first().is_some_and(|lease| lease.claimed().taken_over);
        self.lease = leases.pop().or(held);
    }

    /// The turn to write for, and its attempt.
    fn turn(&self, session: &Session) -> Option<(TurnId, i32)> {
        let running =
            session.running.as_ref().map(|turn| (turn.id, turn.attempt + i32::from(self.taken_over)));
        running.or_else(|| session.queued.as_ref().map(|turn| (turn.id, turn.attempt + 1)))
    }

    async fn write(&mut self, world: &World, id: SessionId, act: &Act) {
        let session = world.store.load_session(world.org, id).await.expect("a row");
        let Some(lease) = &self.lease else { return };
        let Some((turn, attempt)) = self.turn(&session) else { return };
        let writer = world.journal.writer(lease.fence(), Some(turn));
        let log = world.log(id).await;
        let drafts = drafts(world, &session, &log, (turn, attempt), act);
        if drafts.is_empty() {
            return;
        }
        match writer.record(drafts).await {
            Ok(events) => {
                assert_eq!(events.last().map(|event| event.seq), Some(world.log(id).await.len() as i64))
            }
            Err(halted) => panic!("a holder could not write: {halted}"),
        }
        self.taken_over &= !matches!(act, Act::Start);
        if matches!(act, Act::End(_)) {
            // The end of the turn released the job.
            self.lease = None;
            self.taken_over = false;
        }
        self.old = Some(writer);
    }

    async fn read_steers(&self, world: &World, id: SessionId) {
        let session = world.store.load_session(world.org, id).await.expect("a row");
        let (Some(lease), Some(running)) = (&self.lease, &session.running) else { return };
        let writer = world.journal.writer(lease.fence(), Some(running.id));
        writer.read_steers().await.expect("a holder reads");
    }

    /// Writes an event of the session alone, as the server of callers' operations does.
    async fn write_beside(&self, world: &World, body: Body) {
        let Some(lease) = &self.lease else { return };
        let writer = world.journal.writer(lease.fence(), None);
        let beside = Draft { turn_id: None, ..draft(world, world.origin.id(), body) };
        writer.record(vec![beside]).await.expect("a holder writes");
    }

    /// A write of an old writer is refused, unless its lease is still the current one.
    async fn write_stale(&self, world: &World, id: SessionId) {
        let Some(old) = &self.old else { return };
        if self.lease.as_ref().is_some_and(|lease| lease.fence() == old.fence()) {
            return;
        }
        let before = world.log(id).await;
        let body = Body::AgentThinking { text: "I was asleep.".to_owned() };
        let session = world.store.load_session(world.org, id).await.expect("a row");
        let written = old.record(vec![draft(world, old.turn().expect("a turn"), body)]).await;
        // No worker claimed the job after the end of its turn: the epoch is still valid.
        if self.lease.is_some() || session.status == Status::Archived {
            assert!(matches!(written, Err(Halted::Stale)), "{written:?}");
            assert_eq!(world.log(id).await, before);
        }
    }
}

fn draft(world: &World, turn: TurnId, body: Body) -> Draft {
    Draft {
        id: world.origin.id(),
        actor: Actor::agent(),
        level: body.level(),
        turn_id: Some(turn),
        step_id: None,
        refs: Map::new(),
        body,
    }
}

fn result(call: &ToolCall) -> Body {
    Body::ToolResult {
        call_id: call.call_id.clone(),
        tool: call.tool.clone(),
        output: "done".to_owned(),
        is_error: false,
        outcome: Outcome::Ran,
        duration_ms: 1,
        content: Vec::new(),
    }
}

fn exec(call: &ToolCall, exec_id: Option<OperationId>, duration_ms: u64) -> Body {
    Body::ExecCompleted {
        call_id: call.call_id.clone(),
        exec_id,
        command: "true".to_owned(),
        exit_code: 0,
        summary: String::new(),
        bytes: 0,
        cause: "exited".to_owned(),
        duration_ms,
        cpu_micros: 5,
        memory_micros: 2,
    }
}

/// Events that a worker may write now, if `act` is allowed.
fn drafts(world: &World, session: &Session, log: &[Event], at: (TurnId, i32), act: &Act) -> Vec<Draft> {
    let (turn, attempt) = at;
    let window = session.running.as_ref().or(session.queued.as_ref()).expect("a turn");
    let is_started = session.running.as_ref().is_some_and(|running| running.attempt == attempt);
    let open = open_calls(log, turn);
    let bodies = match act {
        Act::Start if !is_started => vec![Body::TurnStarted {
            turn_id: turn,
            input_from_seq: window.input_from_seq,
            input_to_seq: window.input_to_seq,
            attempt,
            fee_micros: if window.attempt == 0 { 3 } else { 0 },
            is_retry: session.running.is_none() && window.attempt > 0,
            agent_seq: 0,
        }],
        Act::Step { calls } if is_started && open.is_empty() => step(log.len(), *calls, attempt),
        Act::Fail if is_started => {
            let code = "model_unavailable".to_owned();
            vec![Body::ErrorModel(Failure { code, message: String::new(), model: None, retry_at: None })]
        }
        Act::Result if is_started => {
            open.iter().take(1).flat_map(|call| [exec(call, None, 1), result(call)]).collect()
        }
        // A limit may end a turn before it starts.
        Act::End(reason) if is_started || session.running.is_none() => {
            let ends = open.iter().map(result).chain([end(turn, *reason, log)]);
            ends.collect()
        }
        _ => Vec::new(),
    };
    bodies.into_iter().map(|body| draft(world, turn, body)).collect()
}

fn step(place: usize, calls: usize, attempt: i32) -> Vec<Body> {
    let call = |at: usize| ToolCall {
        call_id: format!("call_{place}_{at}"),
        tool: "bash".to_owned(),
        input: json!({}),
    };
    let calls: Vec<_> = (0..calls).map(call).collect();
    let cost_micros = (!place.is_multiple_of(5)).then_some(11 * place as u64);
    let usage = Usage {
        input_tokens: 100 + place as u64,
        output_tokens: 7,
        cache_write_tokens: 3,
        cache_read_tokens: 2,
        steps: 1,
        tool_calls: 0,
        // Some steps have no known price.
        cost: Cost::of_step(cost_micros),
    };
    let completed = Body::StepCompleted(Box::new(StepCompleted {
        index: place as u64,
        provider: "scripted".to_owned(),
        model: "noop".to_owned(),
        raw: Vec::new(),
        blocks: calls.iter().cloned().map(Block::ToolCall).collect(),
        stop: StopReason::ToolUse,
        usage,
        cost_micros,
        price_version: None,
        attempt,
        duration_ms: 1,
        purpose: None,
    }));
    let views = calls.into_iter().map(|call| Body::ToolCall {
        call_id: call.call_id,
        tool: call.tool,
        input: call.input,
        policy: None,
        rule: None,
        repeats: None,
        args_summary: String::new(),
        replay: Replay::Unsafe,
    });
    [completed].into_iter().chain(views).collect()
}

fn end(turn: TurnId, reason: YieldReason, log: &[Event]) -> Body {
    let is_error = reason == YieldReason::Error;
    let error = TurnError { code: "model_unavailable".to_owned(), message: "It is away.".to_owned() };
    Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id: turn,
        yield_reason: reason,
        result_event_id: log.last().map(|event| event.draft.id),
        usage: Usage::default(),
        active_seconds: log.len() as u64,
        error: is_error.then_some(error),
        output: None,
        output_repairs: 0,
        limit: None,
        failed: is_error && log.len().is_multiple_of(2),
    }))
}

fn said(text: &str, mode: InputMode) -> Input {
    Input { text: text.to_owned(), mode, ..Input::default() }
}

/// Retries the last turn, if it failed and nothing runs.
async fn retry(world: &World, id: SessionId) -> Result<(), Error> {
    let last = world.store.load_session(world.org, id).await.expect("a row").last_turn();
    let turn = last.map_or_else(|| world.origin.id(), |last| last.id);
    match world.command(id, Command::Retry(turn)).await {
        Err(Error::Rejected(Rejection::TurnRunning | Rejection::TurnNotFailed)) => Ok(()),
        done => done,
    }
}

/// Plays a session and compares its rows with the fold of its log after each action; returns the log.
async fn play(world: &World, acts: &[Act]) -> Vec<Event> {
    let id = world.create(acts.len().is_multiple_of(2).then(|| said("first", InputMode::Queue))).await;
    let mut hand = FakeWorker::default();
    for act in acts {
        let refused = match act {
            Act::Steer(mode) => world.command(id, Command::Steer(said("more", *mode))).await,
            Act::ReadSteers => {
                hand.read_steers(world, id).await;
                Ok(())
            }
            Act::Cancel => world.command(id, Command::Cancel).await,
            Act::Retry => retry(world, id).await,
            Act::Patch { tokens } => {
                let limits = Some(Limits { tokens: Some(*tokens), ..Limits::default() });
                let title = Some(Some(format!("{tokens}")));
                world.command(id, Command::Patch(Change { title, limits, ..Change::default() })).await
            }
            Act::Hold(fence) => match world.command(id, fence.command()).await {
                // The session is already in that state, or has no budget left to start.
                Err(Error::Rejected(
                    Rejection::Paused | Rejection::Stopped | Rejection::BudgetExceeded(_),
                )) => Ok(()),
                done => done,
            },
            Act::Archive => {
                let done = world.command(id, Command::Archive).await;
                hand.lease = None;
                done
            }
            Act::TakeOver => {
                hand.take_over(world).await;
                Ok(())
            }
            Act::Stale => {
                hand.write_stale(world, id).await;
                Ok(())
            }
            Act::Exec(duration_ms) => {
                let call = ToolCall { call_id: "x".to_owned(), tool: String::new(), input: json!({}) };
                hand.write_beside(world, exec(&call, Some(world.origin.id()), *duration_ms)).await;
                Ok(())
            }
            Act::LoseSandbox => {
                let (sandbox_id, reason) = (world.origin.id(), "no space".to_owned());
                let body = Body::SandboxRotationFailed { sandbox_id, reason, failed: true };
                hand.write_beside(world, body).await;
                Ok(())
            }
            Act::Start | Act::Step { .. } | Act::Fail | Act::Result | Act::End(_) => {
                hand.write(world, id, act).await;
                Ok(())
            }
        };
        let session = world.compare(id).await;
        match refused {
            Ok(()) => {}
            Err(Error::Rejected(Rejection::Archived)) => assert_eq!(session.status, Status::Archived),
            Err(error) => panic!("{act:?}: {error}"),
        }
    }
    // No job of this session may remain for the claims of the next case.
    world.command(id, Command::Archive).await.expect("an archive");
    let closed = world.compare(id).await;
    assert_eq!((closed.status, closed.running, closed.queued), (Status::Archived, None, None));
    let log = world.log(id).await;
    assert!(open_calls_anywhere(&log).is_empty());
    log
}

fn open_calls_anywhere(log: &[Event]) -> Vec<ToolCall> {
    let turns = log.iter().filter_map(|event| match &event.draft.body {
        Body::TurnStarted { turn_id, .. } => Some(*turn_id),
        _ => None,
    });
    turns.flat_map(|turn| open_calls(log, turn)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_turn_is_the_fold_of_its_log_at_each_of_its_ends() {
    let world = World::open().await;
    let fails =
        [Act::TakeOver, Act::Start, Act::Step { calls: 2 }, Act::Result, Act::End(YieldReason::Error)];
    let steer = || Act::Steer(InputMode::Queue);
    let again = |acts: Vec<Act>| [vec![Act::Retry], acts].concat();
    for (retries, rest) in [
        (
            1,
            again(
                [vec![Act::TakeOver, Act::Start, Act::Step { calls: 1 }, Act::End(YieldReason::Completed)]]
                    .concat(),
            ),
        ),
        // Fails again, is retried again, and taken over.
        (
            2,
            [again(fails.to_vec()), again(vec![Act::TakeOver, Act::Start, Act::TakeOver, Act::Start])]
                .concat(),
        ),
        // Ends before it starts again, by a caller or by a check.
        (1, again(vec![Act::Cancel, steer()])),
        (1, again(vec![Act::TakeOver, Act::End(YieldReason::Canceled), steer()])),
        // A message joins it; a stop is released.
        (1, again(vec![steer(), Act::TakeOver, Act::Start, Act::End(YieldReason::Completed)])),
        (1, [vec![Act::Hold(CallerAction::Stop)], again(vec![Act::TakeOver, Act::Start])].concat()),
        (1, [vec![Act::Hold(CallerAction::Pause)], again(vec![Act::Cancel])].concat()),
        // A session of which nothing is running is archived.
        (1, again(Vec::new())),
        // Another turn comes after it.
        (0, [vec![steer()], again(Vec::new())].concat()),
    ] {
        let acts = [vec![steer()], fails.to_vec(), rest.clone()].concat();
        let log = play(&world, &acts).await;
        let retried = log.iter().filter(|event| matches!(event.draft.body, Body::TurnRetried { .. })).count();
        assert_eq!(retried, retries, "{acts:?}");
    }
    world.store.close().await;
}

#[test]
fn whatever_happens_to_a_session_its_row_is_the_fold_of_its_log() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let world = runtime.block_on(World::open());
    let config = Config { cases: 48, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let outcome = TestRunner::new(config).run(&prop::collection::vec(act(), 1..40), |acts| {
        runtime.block_on(play(&world, &acts));
        Ok(())
    });
    runtime.block_on(world.store.close());
    outcome.unwrap_or_else(|failed| panic!("{failed}"));
}
