//! Prometheus metrics of the events that turns append, for `/metrics`.
//!
//! Every label value comes from a fixed set: a label that an organization could choose could fill
//! the memory of the scraper. Session and organization ids are never labels.

use metrics::{counter, histogram};

use crate::{
    domain::{
        Usage,
        compaction::CompactionTrigger,
        event::{Body, Outcome},
        mcp::MCP_PREFIX,
        tool::BUILTIN_TOOLS,
        turn::YieldReason,
    },
    store::{column::word, event::Packed},
};

/// Counts events that were just appended.
pub(super) fn count(events: &[Packed]) {
    for event in events {
        match &event.draft.body {
            Body::StepCompleted(step) => {
                let provider = provider(&step.provider);
                histogram!("sojourn_model_seconds", "provider" => provider).record(seconds(step.duration_ms));
                count_step(provider, &step.usage, step.cost_micros);
            }
            Body::StepAborted(step) => count_step(provider(&step.provider), &step.usage, step.cost_micros),
            Body::ErrorModel(failure) => {
                counter!("sojourn_model_faults_total", "code" => failure.code.clone()).increment(1);
            }
            Body::ErrorRuntime(failure) => {
                counter!("sojourn_runtime_faults_total", "code" => failure.code.clone()).increment(1);
            }
            Body::ToolResult { tool, outcome, is_error, duration_ms, .. } => {
                tool_result(tool, *outcome, *is_error, *duration_ms);
            }
            Body::ExecCompleted { cpu_micros, memory_micros, .. } => {
                cost("sandbox", cpu_micros + memory_micros);
            }
            Body::SandboxCreated { duration_ms, .. } => {
                histogram!("sojourn_sandbox_start_seconds").record(seconds(*duration_ms));
            }
            Body::ToolCall { repeats: Some(repetition), .. } => {
                let outcome = if repetition.ends_turn { "ended" } else { "continued" };
                counter!("sojourn_loops_total", "outcome" => outcome).increment(1);
            }
            Body::HistoryCompacted(compacted) => compaction(compacted.trigger, "compacted"),
            Body::HistoryCompactionFailed(failed) => compaction(failed.trigger, "failed"),
            Body::HistoryPruned(pruned) => {
                counter!("sojourn_files_refused_total").increment(pruned.file_ids.len() as u64);
            }
            Body::McpListed(_) => mcp_list("listed"),
            Body::McpFailed(_) => mcp_list("failed"),
            Body::AgentMessage { output: Some(_), .. } => output("accepted"),
            Body::OutputRejected(_) => output("rejected"),
            Body::SandboxLost { .. } => counter!("sojourn_sandboxes_lost_total").increment(1),
            Body::TurnStarted { attempt, fee_micros, is_retry, .. } => {
                cost("fee", *fee_micros);
                if *is_retry {
                    counter!("sojourn_turns_retried_total").increment(1);
                } else if *attempt > 1 {
                    counter!("sojourn_turns_taken_over_total").increment(1);
                }
            }
            Body::TurnResumed { waited_ms, .. } if *waited_ms > 0 => {
                histogram!("sojourn_turn_wait_seconds").record(seconds(*waited_ms));
            }
            Body::TurnCompleted(end) => turn_completed(end.yield_reason, end.active_seconds),
            // Other events are callers' actions and do not measure the service.
            _ => {}
        }
    }
}

fn count_step(provider: &'static str, usage: &Usage, cost_micros: Option<u64>) {
    let kinds = [
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cache_read", usage.cache_read_tokens),
        ("cache_write", usage.cache_write_tokens),
    ];
    for (kind, tokens) in kinds {
        counter!("sojourn_model_tokens_total", "provider" => provider, "kind" => kind).increment(tokens);
    }
    match cost_micros {
        Some(micros) => cost("model", micros),
        None => counter!("sojourn_steps_unpriced_total").increment(1),
    }
}

/// Adds to the cost of all organizations, in micro-USD.
fn cost(part: &'static str, micros: u64) {
    counter!("sojourn_cost_micros_total", "part" => part).increment(micros);
}

fn tool_result(tool: &str, outcome: Outcome, is_error: bool, duration_ms: u64) {
    let tool = tool_label(tool);
    let said = match outcome {
        Outcome::Ran if is_error => "failed",
        Outcome::Ran => "ok",
        Outcome::NotRun => "not_run",
        Outcome::Unknown => "unknown",
    };
    if outcome == Outcome::Ran {
        histogram!("sojourn_tool_seconds", "tool" => tool).record(seconds(duration_ms));
    }
    counter!("sojourn_tool_calls_total", "tool" => tool, "outcome" => said).increment(1);
}

/// Organizations and servers choose the names of their tools, and a model may call any name.
fn tool_label(name: &str) -> &'static str {
    let other = if name.starts_with(MCP_PREFIX) { "mcp" } else { "other" };
    BUILTIN_TOOLS.into_iter().find(|known| *known == name).unwrap_or(other)
}

fn turn_completed(reason: YieldReason, active_seconds: u64) {
    counter!("sojourn_turns_ended_total", "reason" => word(&reason)).increment(1);
    histogram!("sojourn_turn_seconds").record(active_seconds as f64);
}

/// Organizations choose the names of their own endpoints, so unknown names become `other`.
fn provider(name: &str) -> &'static str {
    let known = ["anthropic", "openai", "openai/responses", "scripted"];
    known.into_iter().find(|known| *known == name).unwrap_or("other")
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}

fn mcp_list(outcome: &'static str) {
    counter!("sojourn_mcp_lists_total", "outcome" => outcome).increment(1);
}

fn output(outcome: &'static str) {
    counter!("sojourn_outputs_total", "outcome" => outcome).increment(1);
}

fn compaction(trigger: CompactionTrigger, outcome: &'static str) {
    let trigger = match trigger {
        CompactionTrigger::Auto => "auto",
        CompactionTrigger::Refused => "refused",
        CompactionTrigger::Manual => "manual",
    };
    counter!("sojourn_compactions_total", "trigger" => trigger, "outcome" => outcome).increment(1);
}
