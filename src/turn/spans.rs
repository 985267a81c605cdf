//! The ports of a turn with a span around each call, named after OpenTelemetry's
//! conventions for generative AI: `invoke_agent`, `chat`, `execute_tool`.
//!
//! The harness does not know of the spans. Prompts, answers, arguments and outputs never become
//! attributes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tracing::{Instrument, Span, field::Empty, info_span};

use crate::{
    base::{Timestamp, trace::EXPORTED},
    domain::{
        Answer, Session,
        content::FileRef,
        conversation::ModelRequest,
        custom_tool::CustomTool,
        event::Body,
        log_fold::McpLists,
        permission::{Grant, PolicyDecision},
        question::Question,
        tool::{ToolCall, ToolSpec},
    },
    harness::{self, Delta, Halt, Model},
    model,
    store::column::word,
    tool::{Call, CallResult, ExecSummary, Fault},
};

/// The span of one turn, or of the part of it that this worker runs.
pub(super) fn turn(session: &Session, turn: &harness::Turn) -> Span {
    let agent = session.created.agent_snapshot.as_ref().map_or("", |agent| agent.name.as_str());
    info_span!(
        target: EXPORTED,
        "invoke_agent",
        otel.name = format!("invoke_agent {agent}"),
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = agent,
        gen_ai.provider.name = turn.models[0].model.provider(),
        gen_ai.request.model = turn.models[0].name,
        gen_ai.conversation.id = %session.id,
        sojourn.turn.id = %turn.id,
        sojourn.turn.attempt = turn.attempt,
    )
}

/// A model with a span around each call.
pub(super) struct TracedModel(pub Arc<dyn Model>);

#[async_trait]
impl Model for TracedModel {
    fn provider(&self) -> &str {
        self.0.provider()
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, model::Fault> {
        let span = info_span!(
            target: EXPORTED,
            "chat",
            otel.name = format!("chat {}", request.model),
            otel.kind = "client",
            otel.status_code = Empty,
            gen_ai.operation.name = "chat",
            gen_ai.provider.name = self.0.provider(),
            gen_ai.request.model = request.model,
            gen_ai.request.max_tokens = request.max_tokens,
            gen_ai.response.finish_reasons = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            error.type = Empty,
        );
        let answered = self.0.answer(request, deltas).instrument(span.clone()).await;
        match &answered {
            Ok(answer) => {
                let usage = answer.usage;
                // The convention counts tokens served from a cache as input.
                let input = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
                span.record("gen_ai.usage.input_tokens", input);
                span.record("gen_ai.usage.output_tokens", usage.output_tokens);
                span.record("gen_ai.response.finish_reasons", word(&answer.stop));
            }
            Err(fault) => {
                span.record("otel.status_code", "ERROR");
                span.record("error.type", kind(fault));
            }
        }
        answered
    }
}

fn kind(fault: &model::Fault) -> &'static str {
    match fault {
        model::Fault::Unavailable { .. } => "unavailable",
        model::Fault::ContextTooLong { .. } => "context_too_long",
        model::Fault::Unauthorized { .. } => "unauthorized",
        model::Fault::PaymentRequired { .. } => "payment_required",
        model::Fault::Refused { .. } | model::Fault::FilesRefused { .. } => "refused",
    }
}

/// Tools with a span around each call.
pub(super) struct TracedTools<'a>(pub &'a dyn harness::Tools);

impl TracedTools<'_> {
    fn span(&self, call: &Call) -> Span {
        let call = &call.origin;
        info_span!(
            target: EXPORTED,
            "execute_tool",
            otel.name = format!("execute_tool {}", call.tool),
            otel.status_code = Empty,
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = call.tool,
            gen_ai.tool.call.id = call.call_id,
            error.type = Empty,
        )
    }
}

fn record_outcome(span: &Span, result: Result<CallResult, Fault>) -> Result<CallResult, Fault> {
    let is_error = result.as_ref().map_or(true, |result| result.is_error);
    if is_error {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", if result.is_ok() { "tool_error" } else { "sandbox" });
    }
    result
}

#[async_trait]
impl harness::Tools for TracedTools<'_> {
    fn specs(&self) -> Arc<[ToolSpec]> {
        self.0.specs()
    }

    async fn list_mcp(&self, known: &McpLists, since: Timestamp) -> (Vec<Body>, Option<Halt>) {
        self.0.list_mcp(known, since).await
    }

    async fn open_response(&self, call: &Call) -> Result<(), Halt> {
        self.0.open_response(call).await
    }

    fn offer_mcp(&self, known: &McpLists) {
        self.0.offer_mcp(known);
    }

    fn missing_mcp(&self, known: &McpLists, since: Timestamp) -> Option<String> {
        self.0.missing_mcp(known, since)
    }

    fn check(&self, call: &ToolCall) -> Result<Call, String> {
        self.0.check(call)
    }

    fn caller_tool(&self, call: &ToolCall) -> Option<&CustomTool> {
        self.0.caller_tool(call)
    }

    fn questions(&self, call: &ToolCall) -> Option<(Vec<Question>, u64)> {
        self.0.questions(call)
    }

    fn output_faults(&self, call: &ToolCall) -> Option<Vec<String>> {
        self.0.output_faults(call)
    }

    fn decision(&self, call: &ToolCall, granted: &[Grant]) -> PolicyDecision {
        self.0.decision(call, granted)
    }

    fn want_files(&self, files: &[FileRef]) {
        self.0.want_files(files);
    }

    fn args_hash(&self, call: &ToolCall) -> String {
        self.0.args_hash(call)
    }

    async fn run(&self, call: &Call) -> Result<CallResult, Fault> {
        let span = self.span(call);
        record_outcome(&span, self.0.run(call).instrument(span.clone()).await)
    }

    async fn recover(&self, call: &Call) -> Result<CallResult, Fault> {
        let span = self.span(call);
        record_outcome(&span, self.0.recover(call).instrument(span.clone()).await)
    }

    async fn cancel(&self, call: &ToolCall) -> Option<ExecSummary> {
        self.0.cancel(call).await
    }

    fn running(&self, call: &ToolCall) -> Option<Duration> {
        self.0.running(call)
    }
}
