//! Limits of sessions, as options of commands.

use clap::Args;
use serde::Serialize;

/// Limits; omitted ones stay unchanged.
#[derive(Debug, Args, Serialize)]
pub(super) struct Limits {
    /// Maximum tokens per session
    #[arg(long = "limit-tokens", value_name = "LIMIT_TOKENS")]
    tokens: Option<u64>,
    /// Maximum turns per session
    #[arg(long = "limit-turns", value_name = "LIMIT_TURNS")]
    turns: Option<u64>,
    /// Maximum model calls per turn
    #[arg(long = "limit-steps", value_name = "LIMIT_STEPS")]
    steps: Option<u64>,
    /// Maximum wall-clock time per turn, in seconds
    #[arg(long = "limit-turn-seconds", value_name = "LIMIT_TURN_SECONDS")]
    turn_seconds: Option<u64>,
    /// Maximum tool calls per session
    #[arg(long = "limit-tool-calls", value_name = "N")]
    tool_calls: Option<u64>,
    /// Maximum cost per session, in US cents
    #[arg(long = "limit-cost-cents", value_name = "CENTS")]
    cost_cap_cents: Option<u64>,
    /// Maximum time of turns and callers' commands per session, in seconds
    #[arg(long = "limit-duration-seconds", value_name = "SECONDS")]
    duration_seconds: Option<u64>,
}
