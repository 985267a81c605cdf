//! Wire name and visibility level of each event type.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Body, error_events, history_events, informational, mcp_events};
use crate::domain::{
    action::{Closed, ToolAnswer},
    content::Content,
    turn::YieldReason,
};

/// Visibility level of an event; a reader at one level also sees the levels before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Events for end users: messages and ends of turns.
    User,
    /// Events for a dashboard: tool calls, narration.
    Progress,
    /// All events, including the provider's raw blocks.
    Internal,
}

/// Ends a text whose rest is lost.
const REST_LOST: &str = "\n[The rest of this text is lost.]";

impl Body {
    /// Marks the body as the beginning of one whose rest is lost, for the model that reads it.
    pub fn mark_truncated(&mut self) {
        if let Self::UserMessage { text, .. }
        | Self::AgentMessage { text, .. }
        | Self::ToolResult { output: text, .. } = self
        {
            text.push_str(REST_LOST);
        }
        if let Self::UserCustomToolResult(ToolAnswer { content, .. }) = self
            && let Some(Content::Text { text }) = content.last_mut()
        {
            text.push_str(REST_LOST);
        }
        // A provider refuses its own blocks with cut signatures; the parsed ones remain.
        if let Self::StepCompleted(step) = self {
            step.raw.clear();
        }
    }

    /// Returns whether an event of a worker changes what a list of sessions shows.
    pub fn changes_status(&self) -> bool {
        matches!(
            self,
            Self::TurnStarted { .. }
                | Self::TurnWaiting { .. }
                | Self::TurnResumed { .. }
                | Self::TurnCompleted(_)
                | Self::SandboxRotationFailed { failed: true, .. }
        )
    }

    /// Returns whether a caller, or an expiry, ends an action with it.
    pub fn ends_action(&self) -> bool {
        match self {
            Self::ActionClosed { reason, .. } => *reason != Closed::Withdrawn,
            body => matches!(
                body,
                Self::UserCustomToolResult(_) | Self::UserToolConfirmation(_) | Self::UserAnswer(_)
            ),
        }
    }

    /// Returns whether an event of a turn depends on how its actions ended: it withdraws some, or waits for them.
    pub fn depends_on_actions(&self) -> bool {
        matches!(self, Self::TurnWaiting { .. } | Self::ActionClosed { .. })
    }

    /// Returns whether an event of a turn depends on what steers it: the turn ends as completed.
    pub fn depends_on_steers(&self) -> bool {
        matches!(self, Self::TurnCompleted(completed) if completed.yield_reason == YieldReason::Completed)
    }

    /// Returns the type on the wire, such as `turn.completed`.
    #[expect(clippy::too_many_lines, reason = "one line for each type")]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::SessionCreated(_) => "session.created",
            Self::SessionUpdated { .. } => "session.updated",
            Self::SessionStatusChanged { .. } => "session.status_changed",
            Self::SessionStarted {} => "session.started",
            Self::SessionPaused {} => "session.paused",
            Self::SessionResumed {} => "session.resumed",
            Self::SessionStopped { .. } => "session.stopped",
            Self::SessionCanceled {} => "session.canceled",
            Self::SessionContextUpdated(_) => "session.context_updated",
            Self::ToolRegistered(_) => "tool.registered",
            Self::SessionRejected { .. } => "session.rejected",
            Self::UserMessage { .. } => "user.message",
            Self::TurnCancelRequested { .. } => "turn.cancel_requested",
            Self::TurnStarted { .. } => "turn.started",
            Self::AgentMessage { .. } => "agent.message",
            Self::AgentThinking { .. } => "agent.thinking",
            Self::OutputRejected(_) => "output.rejected",
            Self::HistoryCompactionRequested(_) => "history.compaction_requested",
            Self::HistoryCompacted(_) => "history.compacted",
            Self::HistoryCompactionFailed(_) => "history.compaction_failed",
            Self::HistoryPruned(_) => "history.pruned",
            Self::McpListed(_) => "mcp.listed",
            Self::McpFailed(_) => "mcp.failed",
            Self::StepCompleted(_) => "step.completed",
            Self::StepAborted(_) => "step.aborted",
            Self::ToolCall { .. } => "tool.call",
            Self::ExecCompleted { .. } => "exec.completed",
            Self::ToolResult { .. } => "tool.result",
            Self::ActionRequired(_) => "action.required",
            Self::ToolStarted { .. } => "tool.started",
            Self::UserCustomToolResult(_) => "user.custom_tool_result",
            Self::UserToolConfirmation(_) => "user.tool_confirmation",
            Self::UserAnswer(_) => "user.answer",
            Self::PermissionGranted(_) => "permission.granted",
            Self::PermissionRevoked { .. } => "permission.revoked",
            Self::ActionClosed { .. } => "action.closed",
            Self::TurnWaiting { .. } => "turn.waiting",
            Self::TurnResumed { .. } => "turn.resumed",
            Self::TurnSteered { .. } => "turn.steered",
            Self::TurnRetried { .. } => "turn.retried",
            Self::ErrorModel(_) => "error.model",
            Self::ErrorRuntime(_) => "error.runtime",
            Self::ErrorTask(_) => "error.task",
            Self::TurnCompleted(_) => "turn.completed",
            Self::SandboxCreated { .. } => "sandbox.created",
            Self::SandboxLost { .. } => "sandbox.lost",
            Self::SandboxTerminated { .. } => "sandbox.terminated",
            Self::WakeScheduled { .. } => "wake.scheduled",
            Self::EgressAllowed { .. } => "egress.allowed",
            Self::EgressDenied { .. } => "egress.denied",
            Self::SandboxWaiting { .. } => "sandbox.waiting",
            Self::SandboxFrozen { .. } => "sandbox.frozen",
            Self::SandboxThawed { .. } => "sandbox.thawed",
            Self::SandboxCheckpointCreated { .. } => "sandbox.checkpoint_created",
            Self::SandboxCheckpointRestored { .. } => "sandbox.checkpoint_restored",
            Self::SandboxFilesLost { .. } => "sandbox.files_lost",
            Self::SandboxRotationStarted { .. } => "sandbox.rotation_started",
            Self::SandboxRotationCompleted { .. } => "sandbox.rotation_completed",
            Self::SandboxRotationFailed { .. } => "sandbox.rotation_failed",
            Self::SandboxHeartbeat { .. } => "sandbox.heartbeat",
            Self::ExecStarted { .. } => "exec.started",
            Self::FileWritten { .. } => "file.written",
            Self::SourceCloning { .. } => "source.cloning",
            Self::SourceCloned { .. } => "source.cloned",
            Self::SourceFailed { .. } => "source.failed",
            Self::SourcePrepared { .. } => "source.prepared",
            Self::EnvironmentBuildStarted { .. } => "environment.build_started",
            Self::EnvironmentBuildProgress { .. } => "environment.build_progress",
            Self::EnvironmentBuildCompleted { .. } => "environment.build_completed",
            Self::EnvironmentBuildFailed { .. } => "environment.build_failed",
            Self::LimitWarning { .. } => "limit.warning",
            Self::LimitExceeded { .. } => "limit.exceeded",
        }
    }

    /// Returns the default visibility level of this event type.
    pub fn level(&self) -> Level {
        match self {
            Self::UserMessage { .. } | Self::ActionRequired(_) | Self::TurnCompleted(_) => Level::User,
            // Environment variables must not be shown to users of a web page.
            Self::SessionContextUpdated(_)
            | mcp_events!()
            | Self::StepCompleted(_)
            | Self::StepAborted(_)
            | error_events!() => Level::Internal,
            Self::AgentMessage { .. }
            | Self::SessionCreated(_)
            | Self::SessionUpdated { .. }
            | Self::SessionStatusChanged { .. }
            | Self::SessionStarted {}
            | Self::SessionPaused {}
            | Self::SessionResumed {}
            | Self::SessionStopped { .. }
            | Self::SessionCanceled {}
            | Self::SandboxRotationFailed { .. }
            | Self::ExecStarted { .. }
            | Self::SessionRejected { .. }
            | Self::TurnCancelRequested { .. }
            | Self::TurnStarted { .. }
            | Self::AgentThinking { .. }
            | history_events!()
            | Self::ToolCall { .. }
            | Self::ExecCompleted { .. }
            | Self::ToolResult { .. }
            | Self::ToolStarted { .. }
            | Self::UserCustomToolResult(_)
            | Self::UserToolConfirmation(_)
            | Self::UserAnswer(_)
            | Self::PermissionGranted(_)
            | Self::PermissionRevoked { .. }
            | Self::ActionClosed { .. }
            | Self::TurnWaiting { .. }
            | Self::TurnResumed { .. }
            | Self::TurnSteered { .. }
            | Self::TurnRetried { .. }
            | informational!() => Level::Progress,
        }
    }
}
