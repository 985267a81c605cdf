//! Shortening of the history before a model call: old results are left out, or a summary takes the place of its
//! beginning.
//!
//! The model itself writes the summary. Its request repeats the history, which the provider has cached, and asks at the
//! end. Everything that changes the history is an event first.

use super::{
    Halt,
    step::{Asked, CONTEXT_EXHAUSTED},
    turn::Run,
};
use crate::{
    base::limit::{
        COMPACTION_BYTES, COMPACTION_TAIL_PART, COMPACTION_TAIL_TOKENS, COMPACTIONS_PER_TURN_MAX,
        CONTEXT_REFUSALS_MAX, MODEL_CACHE_TTL,
    },
    domain::{
        Actor, Answer, Block, Message, StepId, StopReason,
        compaction::{Compacted, CompactionFailed, CompactionTrigger, Pruned},
        conversation::ModelRequest,
        event::{Body, Draft, StepPurpose},
        log_fold::HistoryCut,
        shown_files,
    },
    model,
};

/// Asks for a summary.
const ASK: &str = "The conversation above is almost too long for you, so it is replaced by a summary that you write now. Write \
    everything that is needed to continue without it: the task and all instructions and constraints of the user, decisions \
    and their reasons, what was done with its results, files that were read or changed with their paths, facts and values \
    that are still needed, errors and how they were solved, and the next steps. Do not call tools and do not answer the \
    user. Write only the summary, in at most 1,500 words.";

impl Run<'_> {
    /// Shortens the history if it has to be before the next model call. Returns whether the turn ended; `None` if
    /// nothing had to be done.
    pub(super) async fn shorten(&mut self, steps: u64, failures: u32) -> Result<Option<bool>, Halt> {
        let is_cold = self.is_cache_cold();
        let trigger = self.needs_summary();
        if (is_cold || trigger.is_some())
            && let Some(pruned) = self.prunable()
        {
            return self.prune(pruned).await.map(Some);
        }
        let Some(trigger) = trigger else { return Ok(None) };
        let words = match (self.cut(), trigger) {
            (Some(cut), _)
                if trigger == CompactionTrigger::Manual || self.compactions() < COMPACTIONS_PER_TURN_MAX =>
            {
                return self.compact(trigger, cut, steps, failures).await.map(Some);
            }
            // The provider has the last word.
            (None, CompactionTrigger::Auto) => return Ok(None),
            (None, CompactionTrigger::Manual) => return self.give_up_request().await.map(Some),
            (None, CompactionTrigger::Refused) => match self.fold.conversation().prunable_inputs() {
                Some(pruned) => return self.prune(pruned).await.map(Some),
                None => "the provider refuses the newest messages as too long".to_owned(),
            },
            (Some(_), _) => {
                format!(
                    "the conversation was summarized {COMPACTIONS_PER_TURN_MAX} times in this turn and is too long again"
                )
            }
        };
        self.fail(CONTEXT_EXHAUSTED, words, Vec::new()).await.map(Some)
    }

    /// Returns whether a summary may help after the provider refused a history as too long.
    pub(super) fn may_shorten(&self) -> bool {
        let refusals = self.own().map_or(0, |turn| turn.context_refusals);
        let is_allowed = self.fold.compaction_request().is_some()
            || (self.turn.compaction.is_auto() && self.compactions() < COMPACTIONS_PER_TURN_MAX);
        is_allowed
            && refusals + 1 < CONTEXT_REFUSALS_MAX
            && (self.cut().is_some()
                || self.prunable().is_some()
                || self.fold.conversation().prunable_inputs().is_some())
    }

    /// Returns where the history is cut for a summary; `None` where that could not make it much shorter.
    fn cut(&self) -> Option<HistoryCut> {
        let conversation = self.fold.conversation();
        let (least, most) = COMPACTION_TAIL_TOKENS;
        let before = conversation.tokens();
        let cut = conversation.cut((before / COMPACTION_TAIL_PART).clamp(least, most))?;
        is_progress(before, before.saturating_sub(cut.tokens)).then_some(cut)
    }

    fn prunable(&self) -> Option<Pruned> {
        self.turn.compaction.prunes().then(|| self.fold.conversation().prunable()).flatten()
    }

    fn compactions(&self) -> u32 {
        self.own().map_or(0, |turn| turn.compactions)
    }

    /// Whether a change of the history costs nothing, because the provider has dropped its cache.
    fn is_cache_cold(&self) -> bool {
        let last = self.fold.conversation().last_step_at();
        last.is_some_and(|at| self.ports.origin.now() - at > MODEL_CACHE_TTL)
    }

    fn needs_summary(&self) -> Option<CompactionTrigger> {
        let settings = &self.turn.compaction;
        if self.fold.compaction_request().is_some() {
            return Some(CompactionTrigger::Manual);
        }
        if self.own().is_some_and(|turn| turn.context_refusals > 0) {
            return Some(CompactionTrigger::Refused);
        }
        let conversation = self.fold.conversation();
        let wanted = self.wanted_tokens();
        let is_over = self.turn.models[0].window.is_some_and(|window| {
            let allowed = window.saturating_sub(wanted).max(window / 4) as f64 * settings.threshold();
            conversation.tokens() as f64 > allowed
        });
        let is_due = is_over || conversation.bytes() > COMPACTION_BYTES;
        (is_due && settings.is_auto()).then_some(CompactionTrigger::Auto)
    }

    fn failed(&self, trigger: CompactionTrigger, before_tokens: u64, after_tokens: u64) -> Draft {
        let failed = CompactionFailed { trigger, before_tokens, after_tokens };
        self.draft(Body::HistoryCompactionFailed(failed), Actor::system())
    }

    /// Records that a caller's request for a summary cannot be met. The turn goes on.
    async fn give_up_request(&mut self) -> Result<bool, Halt> {
        let tokens = self.fold.conversation().tokens();
        let failed = self.failed(CompactionTrigger::Manual, tokens, tokens);
        self.record(vec![failed]).await?;
        Ok(false)
    }

    async fn prune(&mut self, pruned: Pruned) -> Result<bool, Halt> {
        let event = self.draft(Body::HistoryPruned(pruned), Actor::system());
        self.record(vec![event]).await?;
        Ok(false)
    }

    /// Lets the model summarize what is before the cut. Returns whether the turn ended.
    async fn compact(
        &mut self,
        trigger: CompactionTrigger,
        cut: HistoryCut,
        steps: u64,
        failures: u32,
    ) -> Result<bool, Halt> {
        let Some(request) = self.summary_request(cut) else {
            if let Some(pruned) = self.fold.conversation().prunable_inputs() {
                return self.prune(pruned).await;
            }
            if trigger == CompactionTrigger::Manual {
                return self.give_up_request().await;
            }
            let words = "the provider refuses even a part of the conversation as too long".to_owned();
            return self.fail(CONTEXT_EXHAUSTED, words, Vec::new()).await;
        };
        let step: StepId = self.ports.origin.id();
        let (answer, started) = match self.ask_model(request, step, false, failures).await? {
            Asked::Answered(answer, started) => (answer, started),
            Asked::Cut(ended) => return Ok(ended),
        };
        let summary = summary_of(&answer);
        let before_tokens = self.fold.conversation().tokens();
        let after_tokens = before_tokens.saturating_sub(cut.tokens) + model::tokens(summary.len());
        let purpose = Some(StepPurpose::Compaction);
        let mut completed = self.completed_step(answer, steps + 1, started, purpose);
        completed.step_id = Some(step);
        let has_failed = self.own().is_some_and(|turn| turn.summaries_asked > 0);
        if summary.is_empty() && !has_failed {
            // It called a tool, or was cut: once more.
            self.record(vec![completed]).await?;
            return Ok(false);
        }
        if summary.is_empty() || !is_progress(before_tokens, after_tokens) {
            let failed = self.failed(trigger, before_tokens, after_tokens);
            if trigger == CompactionTrigger::Manual {
                self.record(vec![completed, failed]).await?;
                return Ok(false);
            }
            let words =
                "the conversation is too long, and a summary would not have made it shorter".to_owned();
            return self.fail(CONTEXT_EXHAUSTED, words, vec![completed, failed]).await;
        }
        let to_seq = cut.to_seq;
        let compacted = Compacted { trigger, before_tokens, after_tokens, to_seq, summary };
        let compacted = self.draft(Body::HistoryCompacted(Box::new(compacted)), Actor::system());
        self.record(vec![completed, compacted]).await?;
        Ok(false)
    }

    /// Returns the request for a summary: the history, or after a refusal a part of what the summary stands for, and the
    /// question at its end; `None` if no step of it is short enough.
    fn summary_request(&self, cut: HistoryCut) -> Option<ModelRequest> {
        let refusals = self.own().map_or(0, |turn| turn.context_refusals);
        let conversation = self.fold.conversation();
        let mut request = self.request();
        if refusals > 0 {
            // What stays behind the summary is left out first.
            request.history = conversation.before(cut, conversation.tokens() >> refusals)?;
            shown_files::limit_files(&mut request.history);
        }
        let of_request = self.fold.compaction_request().and_then(|request| request.instructions.as_deref());
        let more = of_request.or(self.turn.compaction.instructions.as_deref()).unwrap_or_default();
        request.history.push(Message::user(format!("{ASK}\n\n{more}").trim_end()));
        Some(request)
    }
}

/// Returns whether a history becomes shorter by more than a tenth.
fn is_progress(before_tokens: u64, after_tokens: u64) -> bool {
    after_tokens.saturating_mul(10) < before_tokens.saturating_mul(9)
}

/// Returns the summary of a response; nothing if the model did something else, or was cut.
fn summary_of(answer: &Answer) -> String {
    if answer.stop != StopReason::EndTurn || answer.tool_calls().next().is_some() {
        return String::new();
    }
    let text = answer.blocks.iter().filter_map(|block| match block {
        Block::Text { text } => Some(text.as_str()),
        Block::Thinking { .. } | Block::ToolCall(_) => None,
    });
    text.collect::<Vec<_>>().join("\n").trim().to_owned()
}
