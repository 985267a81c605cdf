//! One step: a model call, and the append that records its response.

use std::{collections::HashMap, time::Duration};

use super::{
    Halt,
    aborted::{Cut, Received},
    interrupt::Interrupt,
    limits,
    loops::Loops,
    next::finish_of,
    spend::PRICE_UNKNOWN,
    turn::{Run, millis},
};
use crate::{
    base::{Timestamp, limit},
    domain::{
        Actor, Cost, Level, StepId, Usage,
        conversation::{Answer, Block, ModelRequest},
        event::{Aborted, Body, Draft, Failure, StepCompleted, StepPurpose},
        log_fold::CONTEXT_TOO_LONG,
        piece::ResponseDelta,
        shown_files,
        tool::ToolCall,
    },
    model::{Delta, Fault},
};

/// Error code of a turn whose conversation is too long for its model.
pub(super) const CONTEXT_EXHAUSTED: &str = "context_exhausted";

/// Result of a model call.
pub(super) enum Asked {
    /// The response, and the time of the request.
    Answered(Answer, Timestamp),
    /// It was refused, interrupted or failed, which is recorded; the value is whether the turn ended.
    Cut(bool),
}

impl<'a> Run<'a> {
    /// Calls the model once. Returns whether the turn ended.
    pub(super) async fn step(&mut self, failures: u32) -> Result<bool, Halt> {
        if self.wait_for_retry().await? {
            // A signal ended the wait; the loop handles it first.
            return Ok(false);
        }
        let steps = self.usage().steps;
        if !std::mem::take(&mut self.is_row_new) || failures > 0 {
            // Limits may have changed; re-read the row.
            self.session = self.ports.journal.session().await?;
            // Callers' commands count too; they are not among the turn's own events.
            self.tally.session = self.session.usage;
        }
        self.read_steers().await?;
        self.refresh_budgets().await?;
        let limits = self.session.created.limits;
        let own = limits::forbids_step(limits, &self.tally);
        if let Some(trip) = own.or_else(|| self.shared_limit_used_up()) {
            return self.end_by(trip, Vec::new()).await;
        }
        if limits.cost_micros.is_some() && self.model().tariff.model.is_none() {
            return self.fail(PRICE_UNKNOWN, self.no_price("`cost_micros`"), Vec::new()).await;
        }
        if self.fold.conversation().is_exhausted() {
            let words =
                format!("the conversation is larger than {} MiB", limit::CONVERSATION_BYTES_MAX >> 20);
            return self.fail(CONTEXT_EXHAUSTED, words, Vec::new()).await;
        }
        if let Some(ended) = self.list_mcp_tools().await? {
            return Ok(ended);
        }
        if let Some(ended) = self.shorten(steps, failures).await? {
            return Ok(ended);
        }
        let request = self.request();
        let step: StepId = self.ports.origin.id();
        let (answer, started) = match self.ask_model(request, step, true, failures).await? {
            Asked::Answered(answer, started) => (answer, started),
            Asked::Cut(ended) => return Ok(ended),
        };
        let asked_for: Vec<_> = answer.tool_calls().cloned().collect();
        let drafts = self.answer_events(answer, step, steps + 1, started);
        if let Some(finish) = finish_of(&drafts, self.turn.output_repairs)
            && !self.is_to_end()
            && !self.continues(finish)
        {
            // The last response and the end of the turn are one append.
            return self.finish(finish, drafts).await;
        }
        self.record(drafts).await?;
        self.stop_over_budget(asked_for).await
    }

    /// Makes a model call; `streams` tells its deltas to readers.
    pub(super) async fn ask_model(
        &mut self,
        mut request: ModelRequest,
        step: StepId,
        streams: bool,
        failures: u32,
    ) -> Result<Asked, Halt> {
        self.read_files(&mut request).await?;
        let request = &request;
        if let Some(ended) = self.reserve(request).await? {
            return Ok(Asked::Cut(ended));
        }
        if self.is_fallback() {
            metrics::counter!("sojourn_model_fallbacks_total").increment(1);
        }
        let started = self.ports.origin.now();
        let mut received = Received::default();
        let mut tell = self.delta_sender(step);
        let mut hear = |delta: Delta| {
            received.take(&delta);
            if streams {
                tell(delta);
            }
        };
        let answered = tokio::select! {
            biased; // a completed response is already paid for
            answered = self.model().model.answer(request, &mut hear) => Ok(answered),
            // Dropping the call closes the connection, so the provider stops.
            interrupt = self.interrupted(limit::DRAIN_MODEL_GRACE) => Err(interrupt),
        };
        match answered {
            Ok(Ok(answer)) => Ok(Asked::Answered(answer, started)),
            Ok(Err(fault)) => {
                let received = Some(received).filter(Received::is_anything);
                let cut = received.map(|received| Cut { reason: Aborted::Failed, received, started });
                let cut = cut.map(|cut| self.aborted(cut, self.turn.attempt, request));
                self.model_failed(fault, failures + 1, cut, request).await.map(Asked::Cut)
            }
            Err(interrupt) => {
                let cut = Cut { reason: interrupt.cuts().unwrap_or(Aborted::WorkerLost), received, started };
                self.record_aborted(interrupt, cut, request).await.map(Asked::Cut)
            }
        }
    }

    /// Records a call that an interrupt aborted.
    async fn record_aborted(
        &mut self,
        interrupt: Interrupt,
        cut: Cut,
        request: &ModelRequest,
    ) -> Result<bool, Halt> {
        let cut = vec![self.aborted(cut, self.turn.attempt, request)];
        if interrupt == Interrupt::Lost {
            self.ports.journal.bill_late(cut).await?;
            return Err(Halt::Stale);
        }
        self.give_up(interrupt, cut).await
    }

    /// Ends the turn if its last response used up a limit of the session; the calls that it
    /// requested are not run. A response without calls ends the turn anyway.
    async fn stop_over_budget(&mut self, asked_for: Vec<ToolCall>) -> Result<bool, Halt> {
        let trips = |run: &Self| limits::used_up(run.session.created.limits, run.session_usage());
        if asked_for.is_empty() || (trips(self).is_none() && self.budgets.is_empty()) {
            return Ok(false);
        }
        self.session = self.ports.journal.session().await?;
        self.refresh_budgets().await?;
        let Some(trip) = trips(self).or_else(|| self.shared_limit_used_up()) else { return Ok(false) };
        let words = format!("This tool did not run: the session's limit `{}` is used up.", trip.limit);
        let results = |run: &Self| {
            let results = asked_for.iter().map(|call| run.result_events(call, run.not_run(call, &words)));
            results.flatten().collect()
        };
        self.end_with(trip.reason, Some(trip), results).await
    }

    /// Returns the output tokens that the agent asks for in each call.
    pub(super) fn wanted_tokens(&self) -> u64 {
        self.model().options.max_tokens.unwrap_or(limit::MODEL_MAX_TOKENS_DEFAULT)
    }

    pub(super) fn request(&self) -> ModelRequest {
        let wanted = self.wanted_tokens();
        let (limits, used) = (self.session.created.limits, self.session_usage());
        let tokens = limits::tokens_left(limits, used);
        let affordable = limits::micros_left(limits, used);
        let affordable = affordable.and_then(|micros| self.model().tariff.output_tokens_for(micros));
        let left = tokens.into_iter().chain(affordable).chain(self.shared_tokens_left()).min();
        let mut history = self.fold.conversation().messages();
        shown_files::limit_files(&mut history);
        ModelRequest {
            model: self.model().name.clone(),
            system: self.turn.prompt.clone(),
            tools: self.ports.tools.specs().to_vec(),
            history,
            // At least 1; that some budget is left was checked before.
            max_tokens: left.map_or(wanted, |left| wanted.min(left.max(1))),
            options: self.model().options.clone(),
            files: HashMap::new(),
        }
    }

    /// Returns a function that sends response deltas to stream readers.
    fn delta_sender(&self, step: StepId) -> impl FnMut(Delta) + Send + use<'a> {
        let journal = self.ports.journal;
        let (session, turn, attempt) = (self.session.id, self.turn.id, self.turn.attempt);
        let seq = self.head;
        move |delta| {
            if !journal.has_readers() {
                return;
            }
            let (block, is_thinking, text) = match delta {
                Delta::Text { index, text } => (index, false, text),
                Delta::Thinking { index, text } => (index, true, text),
                Delta::Input { .. } | Delta::Used(_) => return,
            };
            journal.tell(ResponseDelta { session, turn, step, attempt, seq, block, is_thinking, text });
        }
    }

    /// Returns the events of a response: the raw blocks and, in the same append, their projections.
    fn answer_events(&mut self, answer: Answer, step: StepId, index: u64, started: Timestamp) -> Vec<Draft> {
        // The result of a turn with an output schema is its output.
        let is_final = answer.tool_calls().next().is_none() && self.turn.output_repairs.is_none();
        let mut loops = Loops::of(self.turn.loops, self.own());
        let mut view = |block| self.view(block, is_final, &mut loops);
        let mut views: Vec<_> = answer.blocks.iter().filter_map(&mut view).collect();
        if answer.tool_calls().count() <= limit::TOOL_CALLS_PER_STEP_MAX {
            self.open_actions(&answer, &mut views);
        }
        let mut drafts = vec![self.completed_step(answer, index, started, None)];
        drafts.extend(views);
        for draft in &mut drafts {
            draft.step_id = Some(step);
        }
        drafts
    }

    /// Returns the event of a response.
    pub(super) fn completed_step(
        &self,
        answer: Answer,
        index: u64,
        started: Timestamp,
        purpose: Option<StepPurpose>,
    ) -> Draft {
        let cost_micros = self.model().tariff.step_micros(&answer.usage);
        let cost = Cost::of_step(cost_micros);
        let usage = Usage { steps: 1, tool_calls: 0, cost, ..answer.usage };
        let completed = Body::StepCompleted(Box::new(StepCompleted {
            index,
            provider: self.model().model.provider().to_owned(),
            model: self.model().name.clone(),
            raw: answer.raw,
            blocks: answer.blocks,
            stop: answer.stop,
            cost_micros,
            price_version: self.model().tariff.model.as_ref().map(|(_, version)| version.clone()),
            usage,
            attempt: self.turn.attempt,
            duration_ms: millis(self.ports.origin.now() - started),
            purpose,
        }));
        self.draft(completed, Actor::agent())
    }

    /// Adds the actions of calls that callers run or confirm, each behind its call.
    fn open_actions(&self, answer: &Answer, views: &mut Vec<Draft>) {
        for call in answer.tool_calls() {
            let is_call = |draft: &Draft| matches!(&draft.body, Body::ToolCall { call_id, .. } if *call_id == call.call_id);
            let Some(place) = views.iter().position(is_call) else { continue };
            let Body::ToolCall { repeats, .. } = views[place].body else { continue };
            if let Some(action) = self.action(call, views[place].id, repeats) {
                views.insert(place + 1, action);
            }
        }
    }

    fn view(&mut self, block: &Block, is_final: bool, loops: &mut Loops) -> Option<Draft> {
        match block {
            Block::Text { text } if text.trim().is_empty() => None,
            Block::Text { text } => {
                let body = Body::AgentMessage {
                    text: text.clone(),
                    awaiting_input: false,
                    options: Vec::new(),
                    output: None,
                    output_repairs: None,
                };
                let mut draft = self.draft(body, Actor::agent());
                // Text beside tool calls is narration; the text of the last response is the result.
                draft.level = if is_final { Level::User } else { Level::Progress };
                Some(draft)
            }
            Block::Thinking { text } if text.is_empty() => None,
            Block::Thinking { text } => {
                Some(self.draft(Body::AgentThinking { text: text.clone() }, Actor::agent()))
            }
            Block::ToolCall(call) => {
                self.fresh.insert(call.call_id.clone());
                let decision = self.decision(call);
                let body = Body::ToolCall {
                    call_id: call.call_id.clone(),
                    tool: call.tool.clone(),
                    input: call.input.clone(),
                    args_summary: call.summary(),
                    replay: self.ports.tools.replay(&call.tool),
                    policy: decision.rule.as_ref().map(|_| decision.policy),
                    rule: decision.rule.map(Box::new),
                    repeats: loops.take(call),
                };
                Some(self.draft(body, Actor::agent()))
            }
        }
    }

    async fn model_failed(
        &mut self,
        fault: Fault,
        failures: u32,
        cut: Option<Draft>,
        request: &ModelRequest,
    ) -> Result<bool, Halt> {
        let message = fault.to_string();
        // What only a fallback model refuses changes nothing for the model of the agent.
        let is_fallback = self.is_fallback();
        let may_shorten = !is_fallback && matches!(fault, Fault::ContextTooLong { .. }) && self.may_shorten();
        if !may_shorten
            && !is_fallback
            && let Some(pruned) = self.refused_files(request, &fault)
        {
            return self.files_refused(message, pruned, cut).await;
        }
        let may_repeat = is_fallback || matches!(fault, Fault::Unavailable { .. });
        let code = match fault {
            Fault::Unavailable { retry_after, .. } => {
                retry_after.into_iter().for_each(|time| self.note_retry_after(time));
                "model_unavailable"
            }
            Fault::ContextTooLong { .. } if may_shorten => {
                return self.history_refused(message, cut).await;
            }
            Fault::ContextTooLong { .. } => CONTEXT_EXHAUSTED,
            Fault::Unauthorized { .. } => "model_unauthorized",
            Fault::PaymentRequired { .. } => "payment_required",
            Fault::Refused { .. } | Fault::FilesRefused { .. } => "model_refused_request",
        };
        let delay = if may_repeat { self.retry_delay(failures) } else { None };
        self.record_failure(code, message, delay, cut).await
    }

    /// Records that the call of a model failed, or was not made. Without a `delay` until the next one, the turn ends.
    pub(super) async fn record_failure(
        &mut self,
        code: &str,
        message: String,
        delay: Option<Duration>,
        cut: Option<Draft>,
    ) -> Result<bool, Halt> {
        let retry_at = delay.map(|delay| self.ports.origin.now() + delay);
        let model = Some(self.model().full_name());
        let failure = Failure { code: code.to_owned(), message: message.clone(), model, retry_at };
        let failed = self.draft(Body::ErrorModel(failure), Actor::system());
        let drafts = cut.into_iter().chain([failed]).collect();
        if retry_at.is_none() {
            return self.fail(code, message, drafts).await;
        }
        self.record(drafts).await?;
        Ok(false)
    }

    /// Records that the provider refused the history as too long. The turn continues with a summary.
    async fn history_refused(&mut self, message: String, cut: Option<Draft>) -> Result<bool, Halt> {
        let retry_at = Some(self.ports.origin.now());
        let model = Some(self.model().full_name());
        let failure = Failure { code: CONTEXT_TOO_LONG.to_owned(), message, model, retry_at };
        let failed = self.draft(Body::ErrorModel(failure), Actor::system());
        self.record(cut.into_iter().chain([failed]).collect()).await?;
        Ok(false)
    }

    /// Waits until the last failure may be retried: in the slot if the wait is short, else by
    /// releasing the slot. Returns whether a signal ended the wait.
    pub(super) async fn wait_for_retry(&mut self) -> Result<bool, Halt> {
        // Later events, such as the start of another attempt, do not shorten the wait.
        let Some(retry_at) = self.own().and_then(|turn| turn.retry_at) else { return Ok(false) };
        let left = |at: Timestamp| Duration::try_from(at - self.ports.origin.now()).unwrap_or_default();
        let wait = self.deadline().map_or(left(retry_at), |deadline| left(retry_at).min(left(deadline)));
        if wait > limit::MODEL_WAIT_IN_SLOT {
            return Err(Halt::Wait(wait));
        }
        tokio::select! {
            biased; // the loop checks the signals in any case
            () = tokio::time::sleep(wait) => Ok(false),
            _ = self.interrupted(Duration::ZERO) => Ok(true),
        }
    }
}
