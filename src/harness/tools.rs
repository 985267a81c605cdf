//! Tool calls of a response: read-only calls run concurrently, all others alone.

use futures::future::join_all;
use serde_json::Value;

use super::{
    Halt,
    interrupt::Interrupt,
    spend::Reserved,
    turn::{NO_SANDBOX, Run},
};
use crate::{
    base::{Timestamp, backoff::Backoff, limit},
    domain::{
        Actor, Level, SessionId,
        event::{Body, Draft, Failure, Outcome},
        tool::{ASK, Replay, SUBMIT_OUTPUT, ToolCall},
    },
    tool::{Call, CallResult, ExecSummary, Fault},
};

const BACKOFF: Backoff =
    Backoff { first: limit::INFRASTRUCTURE_BACKOFF.0, longest: limit::INFRASTRUCTURE_BACKOFF.1 };

impl Run<'_> {
    /// Runs the next calls and appends their results. Returns whether the turn ended.
    pub(super) async fn run_tools(&mut self, calls: Vec<ToolCall>) -> Result<bool, Halt> {
        if self.wait_for_retry().await? {
            // A signal ended the wait; the loop handles it first.
            return Ok(false);
        }
        let Some(first) = calls.first() else { return Ok(false) };
        let asked_for = self.calls_of_step();
        if asked_for > limit::TOOL_CALLS_PER_STEP_MAX {
            let max = limit::TOOL_CALLS_PER_STEP_MAX;
            let done = CallResult::not_run(format!(
                "One answer may ask for {max} calls; this one asked for {asked_for}."
            ));
            let result = self.result_events(first, done);
            self.record(result).await?;
            return Ok(false);
        }
        if let Some(rule) = self.own().and_then(|turn| turn.denied_by(&first.call_id)) {
            let words = format!("The permissions of this session do not allow this call: {}.", rule.words());
            let result = self.result_events(first, CallResult::not_run(words));
            self.record(result).await?;
            return Ok(false);
        }
        if let Some(faults) = self.ports.tools.output_faults(first) {
            let drafts = self.submit(first, faults);
            self.record(drafts).await?;
            return Ok(false);
        }
        let checked = match self.ports.tools.check(first) {
            Ok(checked) => self.with_response(checked),
            Err(words) => {
                let result = self.result_events(first, CallResult::not_run(words));
                self.record(result).await?;
                return Ok(false);
            }
        };
        if let Some(words) = self.start_confirmed(first).await? {
            let result = self.result_events(first, CallResult::not_run(words));
            self.record(result).await?;
            return Ok(false);
        }
        // Before the start is in the log: nothing is sent if this fails.
        self.ports.tools.open_response(&checked).await?;
        if checked.is_remote && checked.replay == Replay::Unsafe {
            self.start_remote(first).await?;
        }
        if first.tool == ASK {
            let drafts = self.ask(first);
            self.record(drafts).await?;
            return Ok(false);
        }
        let batch = self.batch(checked, &calls[1..]);
        self.is_row_new = false;
        let batch = match self.reserve_execs(&batch).await? {
            Reserved::Ended(ended) => return Ok(ended),
            Reserved::First(count) => &batch[..count],
        };
        self.ports.tools.want_files(self.fold.files());
        let settled = tokio::select! {
            biased; // completed calls are recorded even if the turn ends now
            settled = join_all(batch.iter().map(|call| self.settle(call))) => settled,
            interrupt = self.interrupted(limit::DRAIN_TOOL_GRACE) => {
                if interrupt == Interrupt::Lost {
                    self.record_late_exec_cost(batch).await?;
                }
                return self.give_up(interrupt, Vec::new()).await;
            }
        };
        self.take_results(batch, settled).await
    }

    /// A call with the response for its server, if that has asked a person.
    fn with_response(&self, mut call: Call) -> Call {
        call.elicited = self.own().and_then(|turn| turn.elicited(call.id()));
        call
    }

    /// The calls that run together: read-only ones in parallel; whatever changes something runs alone.
    fn batch(&self, first: Call, others: &[ToolCall]) -> Vec<Call> {
        let mut batch = vec![first];
        if batch[0].replay != Replay::ReadOnly {
            return batch;
        }
        let has_decision = |call: &ToolCall| {
            let turn = self.own();
            turn.is_some_and(|turn| {
                turn.denied_by(&call.call_id).is_some() || turn.confirmed(&call.call_id).is_some()
            })
        };
        let read_only = |call: &ToolCall| {
            if has_decision(call) {
                return None;
            }
            let is_run_here = call.tool != ASK && call.tool != SUBMIT_OUTPUT;
            let checked = is_run_here.then(|| self.ports.tools.check(call).ok())??;
            (checked.replay == Replay::ReadOnly).then(|| self.with_response(checked))
        };
        batch.extend(others.iter().map_while(read_only).take(limit::PARALLEL_TOOLS_MAX - 1));
        batch
    }

    async fn take_results(
        &mut self,
        batch: &[Call],
        settled: Vec<Result<CallResult, Fault>>,
    ) -> Result<bool, Halt> {
        let mut drafts = Vec::new();
        let mut unavailable = None;
        let mut waits = None;
        let mut working: Option<(Vec<SessionId>, Timestamp)> = None;
        for (call, settled) in batch.iter().zip(settled) {
            match settled {
                Ok(result) => drafts.extend(self.result_events(&call.origin, result)),
                Err(Fault::Stale) => {
                    // The sandbox of a closed session is removed: a call can fail before the lease
                    // watcher reports the loss.
                    self.record_late_exec_cost(batch).await?;
                    return Err(Halt::Stale);
                }
                Err(Fault::LogUnavailable(reason)) => waits = Some(Halt::Unavailable(reason)),
                Err(Fault::NotYet(retry)) => waits = Some(Halt::Wait(retry)),
                Err(Fault::Asks(elicitation)) => drafts.extend(self.elicitation(&call.origin, *elicitation)),
                Err(Fault::Waits { sessions, until }) => {
                    let (ids, earliest) = working.get_or_insert_with(|| (Vec::new(), until));
                    ids.extend(sessions);
                    *earliest = until.min(*earliest);
                }
                Err(Fault::EndTurn { code, reason, is_final }) => {
                    unavailable = Some((code, reason, is_final))
                }
                // The port retries these itself; what is left of them ends the turn too.
                Err(fault @ (Fault::SandboxGone | Fault::SandboxUnreachable(_) | Fault::TellModel(_))) => {
                    unavailable = Some((NO_SANDBOX, fault.to_string(), false));
                }
            }
        }
        // What no retry can help ends the turn, whatever the others wait for.
        let is_over = unavailable.as_ref().is_some_and(|(_, _, is_final)| *is_final);
        if let Some(halt) = waits.filter(|_| !is_over) {
            // The other calls have run.
            if !drafts.is_empty() {
                self.record(drafts).await?;
            }
            return Err(halt);
        }
        match (unavailable, working) {
            (None, Some((mut sessions, until))) if drafts.is_empty() => {
                sessions.sort_unstable();
                sessions.dedup();
                self.wait(sessions, Some(until)).await
            }
            // The calls that wait are made again: the results may have changed what they wait for.
            (None, _) => {
                self.record(drafts).await?;
                self.release_execs(batch).await?;
                Ok(false)
            }
            (Some(failed), _) => self.no_sandbox(batch, drafts, failed).await,
        }
    }

    /// Retries as long as the agent has not done anything and another try may help; otherwise, or after
    /// the max number of tries, ends the turn.
    async fn no_sandbox(
        &mut self,
        batch: &[Call],
        mut drafts: Vec<Draft>,
        (code, reason, is_final): (&'static str, String, bool),
    ) -> Result<bool, Halt> {
        let acts = |draft: &Draft| matches!(&draft.body, Body::ToolResult { outcome, .. } if *outcome != Outcome::NotRun);
        let has_acted = drafts.iter().any(acts) || self.own().is_some_and(|turn| turn.has_acted);
        let never_began = batch.iter().all(|call| self.never_began(&call.origin));
        let failures = 1 + self.own().map_or(0, |turn| turn.runtime_failures);
        let may_help = !is_final && !has_acted && never_began;
        if may_help && failures < limit::INFRASTRUCTURE_ATTEMPTS_MAX {
            let retry_at = self.ports.origin.now() + BACKOFF.delay(failures, self.ports.origin);
            let code = NO_SANDBOX.to_owned();
            let failure = Failure { code, message: reason, model: None, retry_at: Some(retry_at) };
            drafts.push(self.draft(Body::ErrorRuntime(failure), Actor::system()));
            self.record(drafts).await?;
            return Ok(false);
        }
        // The turn ends here, so every call of the response needs a result, including those that
        // did not run. That requires the events that the tools appended.
        self.ports.journal.catch_up(&mut self.fold).await?;
        for call in self.fold.open_calls(self.turn.id) {
            if !answered(&drafts, &call) {
                let done = self.without_sandbox(&call);
                drafts.extend(self.result_events(&call, done));
            }
        }
        self.fail(code, reason, drafts).await
    }

    /// Returns whether a call that got no sandbox has not begun at all.
    fn never_began(&self, call: &ToolCall) -> bool {
        !self.has_elicited(call)
            && (self.fresh.contains(&call.call_id) || !self.fold.may_have_run(self.turn.id, &call.call_id))
    }

    /// Returns whether the server of a call has asked a person, so it has begun the call.
    pub(super) fn has_elicited(&self, call: &ToolCall) -> bool {
        self.own().is_some_and(|turn| turn.elicitations(&call.call_id) > 0)
    }

    /// Returns the result of a call that got no sandbox.
    fn without_sandbox(&self, call: &ToolCall) -> CallResult {
        if let Some(done) = self.unanswered(call, "ended") {
            return done;
        }
        if self.never_began(call) {
            return CallResult::not_run("No sandbox could be started, so this tool did not run.");
        }
        let words = "The sandbox could not be reached for this tool's result; its outcome is unknown.";
        CallResult::unknown(words)
    }

    /// Runs a call, or queries its outcome if another worker announced it.
    async fn settle(&self, call: &Call) -> Result<CallResult, Fault> {
        if self.fresh.contains(call.id()) {
            self.ports.tools.run(call).await
        } else {
            self.ports.tools.recover(call).await
        }
    }

    /// Returns the events of a question: a message for the caller, a result for the model.
    fn ask(&self, call: &ToolCall) -> Vec<Draft> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let options = call.input.get("options").and_then(Value::as_array).into_iter().flatten();
        let body = Body::AgentMessage {
            text: call.input.get("question").and_then(text).unwrap_or_default(),
            awaiting_input: true,
            options: options.filter_map(text).collect(),
            output: None,
            output_repairs: None,
        };
        let mut message = self.draft(body, Actor::agent());
        message.level = Level::User;
        let done =
            CallResult::ok("The question was put to the caller. The answer comes as the next message.");
        [vec![message], self.result_events(call, done)].concat()
    }

    pub(super) fn result_events(&self, call: &ToolCall, mut done: CallResult) -> Vec<Draft> {
        let exec = done.exec.take().map(|exec| self.exec_event(call, exec));
        exec.into_iter().chain([self.draft(done.body(call), Actor::agent())]).collect()
    }

    /// Returns the event of an ended command, with its cost.
    pub(super) fn exec_event(&self, call: &ToolCall, exec: ExecSummary) -> Draft {
        let duration_ms = u64::try_from(exec.duration.as_millis()).unwrap_or(u64::MAX);
        let cost = self.model().tariff.exec(self.turn.size, duration_ms);
        let body = Body::ExecCompleted {
            call_id: call.call_id.clone(),
            exec_id: None,
            command: exec.command,
            exit_code: exec.exit_code,
            summary: exec.summary,
            bytes: exec.bytes,
            cause: exec.cause.to_owned(),
            duration_ms,
            cpu_micros: cost.sandbox_cpu_micros,
            memory_micros: cost.sandbox_memory_micros,
        };
        self.draft(body, Actor::agent())
    }

    /// Records the cost of commands that run when the session is archived; they end with their
    /// sandbox.
    async fn record_late_exec_cost(&self, batch: &[Call]) -> Result<(), Halt> {
        let exec = |call: &Call| {
            let duration = self.ports.tools.running(&call.origin)?;
            let exec = ExecSummary {
                command: String::new(),
                exit_code: -1,
                summary: String::new(),
                bytes: 0,
                cause: "killed",
                duration,
            };
            Some(self.exec_event(&call.origin, exec))
        };
        let ran: Vec<_> = batch.iter().filter_map(exec).collect();
        if ran.is_empty() { Ok(()) } else { self.ports.journal.bill_late(ran).await }
    }

    fn calls_of_step(&self) -> usize {
        self.own().and_then(|turn| turn.step.as_ref()).map_or(0, |step| step.calls.len())
    }
}

fn answered(drafts: &[Draft], call: &ToolCall) -> bool {
    drafts
        .iter()
        .any(|draft| matches!(&draft.body, Body::ToolResult { call_id, .. } if *call_id == call.call_id))
}
