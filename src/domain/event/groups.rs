//! Groups of events that a match handles alike.

/// Informational events, which change neither the session nor the conversation; one shared pattern
/// for all code that folds a log.
macro_rules! informational {
    () => {
        $crate::domain::event::Body::SandboxCreated { .. }
            | $crate::domain::event::Body::SandboxWaiting { .. }
            | $crate::domain::event::Body::SandboxLost { .. }
            | $crate::domain::event::Body::SandboxTerminated { .. }
            | $crate::domain::event::Body::SandboxFrozen { .. }
            | $crate::domain::event::Body::SandboxThawed { .. }
            | $crate::domain::event::Body::SandboxCheckpointCreated { .. }
            | $crate::domain::event::Body::SandboxCheckpointRestored { .. }
            | $crate::domain::event::Body::SandboxFilesLost { .. }
            | $crate::domain::event::Body::SandboxRotationStarted { .. }
            | $crate::domain::event::Body::SandboxRotationCompleted { .. }
            | $crate::domain::event::Body::SandboxHeartbeat { .. }
            | $crate::domain::event::Body::EgressAllowed { .. }
            | $crate::domain::event::Body::EgressDenied { .. }
            | $crate::domain::event::Body::FileWritten { .. }
            | $crate::domain::event::Body::ToolRegistered(_)
            | $crate::domain::event::Body::WakeScheduled { .. }
            | $crate::domain::event::Body::SourceCloning { .. }
            | $crate::domain::event::Body::SourceCloned { .. }
            | $crate::domain::event::Body::SourceFailed { .. }
            | $crate::domain::event::Body::SourcePrepared { .. }
            | $crate::domain::event::Body::EnvironmentBuildStarted { .. }
            | $crate::domain::event::Body::EnvironmentBuildProgress { .. }
            | $crate::domain::event::Body::EnvironmentBuildCompleted { .. }
            | $crate::domain::event::Body::EnvironmentBuildFailed { .. }
            | $crate::domain::event::Body::LimitWarning { .. }
            | $crate::domain::event::Body::LimitExceeded { .. }
    };
}
pub(crate) use informational;

/// Lists of the tools of MCP servers; they use nothing, and only what a model is offered depends on them.
macro_rules! mcp_events {
    () => {
        $crate::domain::event::Body::McpListed(_) | $crate::domain::event::Body::McpFailed(_)
    };
}
pub(crate) use mcp_events;

/// Changes of the history; they use nothing, and only the conversation depends on them.
macro_rules! history_events {
    () => {
        $crate::domain::event::Body::OutputRejected(_)
            | $crate::domain::event::Body::HistoryCompactionRequested(_)
            | $crate::domain::event::Body::HistoryCompacted(_)
            | $crate::domain::event::Body::HistoryCompactionFailed(_)
            | $crate::domain::event::Body::HistoryPruned(_)
    };
}
pub(crate) use history_events;

/// Actions of a turn, and what ends or follows them; they use nothing.
macro_rules! action_events {
    () => {
        $crate::domain::event::Body::ActionRequired(_)
            | $crate::domain::event::Body::UserCustomToolResult(_)
            | $crate::domain::event::Body::UserToolConfirmation(_)
            | $crate::domain::event::Body::UserAnswer(_)
            | $crate::domain::event::Body::PermissionGranted(_)
            | $crate::domain::event::Body::PermissionRevoked { .. }
            | $crate::domain::event::Body::ToolStarted { .. }
            | $crate::domain::event::Body::ActionClosed { .. }
    };
}
pub(crate) use action_events;

/// Failures; they use nothing and no model reads them.
macro_rules! error_events {
    () => {
        $crate::domain::event::Body::ErrorModel(_)
            | $crate::domain::event::Body::ErrorRuntime(_)
            | $crate::domain::event::Body::ErrorTask(_)
    };
}
pub(crate) use error_events;

/// Events of callers outside turns; they use nothing and no model reads them.
macro_rules! caller_events {
    () => {
        $crate::domain::event::Body::SessionUpdated { .. }
            | $crate::domain::event::Body::SessionStatusChanged { .. }
            | $crate::domain::event::Body::SessionStarted {}
            | $crate::domain::event::Body::SessionPaused {}
            | $crate::domain::event::Body::SessionResumed {}
            | $crate::domain::event::Body::SessionStopped { .. }
            | $crate::domain::event::Body::SessionCanceled {}
            | $crate::domain::event::Body::SessionContextUpdated(_)
    };
}
pub(crate) use caller_events;
