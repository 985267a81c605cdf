//! Events of a session's log, their actors and visibility levels.
//!
//! The doc comment of each [`Body`] variant states its effect on the session; `apply` implements
//! it. An event is immutable once it has a `seq`.

mod draft;
mod groups;
mod kind;
mod whole;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    action::{Action, Closed, Confirmation, ToolAnswer},
    compaction::{Compacted, CompactionFailed, CompactionRequest, Pruned},
    content::Content,
    context::ContextChange,
    ids::*,
    mcp::{McpFailed, McpListed},
    permission::{Grant, Policy, Rule},
    question::Answers,
    registry::Tool,
    repetition::Repetition,
    rootfs::Packages,
    session::{AgentSnapshot, Created, Limits, Status},
    tool::Replay,
};
use crate::base::Timestamp;

pub use super::actor::{Actor, ActorKind};
pub use super::step::{Aborted, StepAborted, StepCompleted, StepPurpose};
pub use draft::{Draft, Event};
pub(crate) use groups::{
    action_events, caller_events, error_events, history_events, informational, mcp_events,
};
pub use kind::Level;
use whole::is_zero;
pub use whole::{CancelMode, Failure, Outcome, RejectedOutput, TurnCompleted};

/// Type and data of an event; serialized as `type` and `body`.
///
/// Its schema is that of the API: each variant is a type of event there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", content = "body")]
#[schema(as = EventBody)]
pub enum Body {
    /// The session was created; its status is `idle` until it has input.
    #[serde(rename = "session.created")]
    SessionCreated(Box<Created>),
    /// Title, slug, metadata, limits or the pinned agent changed; absent fields are unchanged.
    #[serde(rename = "session.updated")]
    SessionUpdated {
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "present")]
        #[schema(value_type = Option<String>)]
        title: Option<Option<String>>,
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "present")]
        #[schema(value_type = Option<String>)]
        slug: Option<Option<String>>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        metadata: Option<Map<String, Value>>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        limits: Option<Limits>,
        /// The whole pinned agent, for the turns that start from now on.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        agent_snapshot: Option<Box<AgentSnapshot>>,
    },
    /// A caller started the sandbox; releases a stop and a cancel, and makes a session whose sandbox
    /// could not be replaced `idle`.
    #[serde(rename = "session.started")]
    SessionStarted {},
    /// A caller paused the session. No new work starts until it is resumed: messages are queued, a
    /// running turn is suspended, and the sandbox's lifetime stops counting.
    #[serde(rename = "session.paused")]
    SessionPaused {},
    /// A caller resumed the session; suspended work continues.
    #[serde(rename = "session.resumed")]
    SessionResumed {},
    /// A caller stopped the session. Running work was asked to end and the sandbox is hibernated.
    /// The next message or start releases the stop.
    #[serde(rename = "session.stopped")]
    SessionStopped {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        reason: Option<String>,
    },
    /// A caller canceled the session before it had a turn. The next message, start or command
    /// releases it.
    #[serde(rename = "session.canceled")]
    SessionCanceled {},
    /// The context of the session's commands changed; absent keys are unchanged, null removes a
    /// key.
    #[serde(rename = "session.context_updated")]
    SessionContextUpdated(ContextChange),
    /// A caller registered a tool with the session.
    #[serde(rename = "tool.registered")]
    ToolRegistered(Tool),
    /// A caller changed the status (archive); turn events imply their status changes.
    #[serde(rename = "session.status_changed")]
    SessionStatusChanged { from: Status, to: Status },
    /// A check before a turn failed: the turn is canceled before any resource is created.
    #[serde(rename = "session.rejected")]
    SessionRejected { reason: String, message: String },
    /// Input. Creates a queued turn, or joins the queued turn named by `turn_id`. The status of an
    /// idle session becomes `queued`.
    #[serde(rename = "user.message")]
    UserMessage {
        text: String,
        /// The input as an object, if the caller sent an object.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        input: Option<Value>,
        /// The caller's envelope (`id`, `source`, `conversation`, `raw`).
        #[serde(skip_serializing_if = "Option::is_none", default)]
        envelope: Option<Map<String, Value>>,
        /// Whether the running turn, if there is one, reads it before its next model call.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        steers: bool,
        /// JSON Schema of the output of the turn that starts with the message.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        output_schema: Option<Map<String, Value>>,
        /// The parts of the message in order, if it has files.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        content: Vec<Content>,
    },
    /// A caller requested that the running turn end; it ends at its next checkpoint.
    #[serde(rename = "turn.cancel_requested")]
    TurnCancelRequested { turn_id: TurnId, mode: CancelMode },
    /// The turn runs: its input window is fixed, `input_cursor` moves to the window's end, and the
    /// status is `running`. Appended again, with the next `attempt`, after a crash or a retry.
    #[serde(rename = "turn.started")]
    TurnStarted {
        turn_id: TurnId,
        input_from_seq: i64,
        input_to_seq: i64,
        attempt: i32,
        /// The operator's fee in micro-USD; adds to the cost.
        #[serde(default)]
        fee_micros: u64,
        /// Whether a retry queued it, so that it had started and ended before.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        is_retry: bool,
        /// `seq` of the `session.updated` whose agent it runs. Absent, it runs that of `session.created`.
        #[serde(skip_serializing_if = "is_zero", default)]
        agent_seq: i64,
    },
    /// A message of the agent.
    #[serde(rename = "agent.message")]
    AgentMessage {
        text: String,
        /// Whether the message is a question; the session then waits for the answer.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        awaiting_input: bool,
        /// Answers that the agent suggests.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        options: Vec<String>,
        /// The submitted output, whose JSON is `text`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        output: Option<Value>,
        /// Outputs of the turn that were rejected before, if there is an output.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        output_repairs: Option<u32>,
    },
    /// The agent submitted an output that does not fit the schema, or wanted to end the turn without one.
    #[serde(rename = "output.rejected")]
    OutputRejected(RejectedOutput),
    /// A caller wants the history summarized. Creates a queued turn if there is none: the status of an idle session
    /// becomes `queued`. Otherwise the next model call of the session is preceded by it.
    #[serde(rename = "history.compaction_requested")]
    HistoryCompactionRequested(CompactionRequest),
    /// A summary takes the place of the beginning of the history. In the append of the model call that wrote it.
    #[serde(rename = "history.compacted")]
    HistoryCompacted(Box<Compacted>),
    /// A summary would not have made the history shorter. In the append of the model call that wrote it.
    #[serde(rename = "history.compaction_failed")]
    HistoryCompactionFailed(CompactionFailed),
    /// The results of these calls are left out of the history from now on.
    #[serde(rename = "history.pruned")]
    HistoryPruned(Pruned),
    /// An MCP server listed its tools, which the model is offered from its next call on. Grants of tools whose schema
    /// changed end.
    #[serde(rename = "mcp.listed")]
    McpListed(Box<McpListed>),
    /// An MCP server did not list its tools. The model keeps those that it listed last.
    #[serde(rename = "mcp.failed")]
    McpFailed(McpFailed),
    /// Reasoning that the provider shows.
    #[serde(rename = "agent.thinking")]
    AgentThinking { text: String },
    /// A model call completed. The next request is built from it; adds to usage.
    #[serde(rename = "step.completed")]
    StepCompleted(Box<StepCompleted>),
    /// A model call ended without a response; what it used still adds to usage.
    #[serde(rename = "step.aborted")]
    StepAborted(Box<StepAborted>),
    /// A tool is about to run; appended before it runs.
    #[serde(rename = "tool.call")]
    ToolCall {
        call_id: String,
        tool: String,
        // Dropped when the body is truncated and it is large.
        #[schema(required = false)]
        input: Value,
        args_summary: String,
        replay: Replay,
        /// What the permissions of the session say of it. Absent, they have no rule for it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        policy: Option<Policy>,
        /// The rule that decided.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        rule: Option<Box<Rule>>,
        /// The calls that it makes a loop of, itself included.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        repeats: Option<Repetition>,
    },
    /// A confirmed call, or one of an `unsafe` tool of an MCP server, is about to run; appended before it runs.
    #[serde(rename = "tool.started")]
    ToolStarted { call_id: String },
    /// A command of the sandbox ended.
    #[serde(rename = "exec.completed")]
    ExecCompleted {
        /// Id of the tool call, or `exec_id` for a caller's command.
        call_id: String,
        /// Set for a caller's command, which counts as a tool call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        exec_id: Option<OperationId>,
        command: String,
        exit_code: i32,
        /// The end of its output.
        summary: String,
        /// Total bytes of its output.
        bytes: u64,
        /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
        cause: String,
        duration_ms: u64,
        /// Cost of the sandbox's CPU and memory during the command; adds to the cost.
        #[serde(default)]
        cpu_micros: u64,
        #[serde(default)]
        memory_micros: u64,
    },
    /// The result of a tool call that the model receives; exactly one for each call.
    #[serde(rename = "tool.result")]
    ToolResult {
        call_id: String,
        tool: String,
        output: String,
        is_error: bool,
        /// Origin of the result.
        outcome: Outcome,
        duration_ms: u64,
        /// Files of the result.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        content: Vec<Content>,
    },
    /// The turn needs this from a caller. In the append of its step, after the `tool.call`.
    #[serde(rename = "action.required")]
    ActionRequired(Box<Action>),
    /// A caller's result of a call of a custom tool; ends its action.
    #[serde(rename = "user.custom_tool_result")]
    UserCustomToolResult(ToolAnswer),
    /// A person's decision on a call; ends its action.
    #[serde(rename = "user.tool_confirmation")]
    UserToolConfirmation(Box<Confirmation>),
    /// A caller's answers to the agent's questions; ends their action.
    #[serde(rename = "user.answer")]
    UserAnswer(Answers),
    /// A rule allows calls for the rest of the session that would have to be confirmed.
    #[serde(rename = "permission.granted")]
    PermissionGranted(Box<Grant>),
    /// A granted rule ended.
    #[serde(rename = "permission.revoked")]
    PermissionRevoked {
        /// The event `permission.granted`.
        #[schema(value_type = String)]
        grant_event_id: EventId,
    },
    /// An action ended without an answer.
    #[serde(rename = "action.closed")]
    ActionClosed { action_id: ActionId, reason: Closed },
    /// The turn waits for these actions and sessions, and no worker has it until one of them has ended, or until
    /// `expires_at`. With actions, the status becomes `awaiting_input`; otherwise it stays `running`.
    #[serde(rename = "turn.waiting")]
    TurnWaiting {
        turn_id: TurnId,
        action_ids: Vec<ActionId>,
        /// Child sessions that still work.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        #[schema(value_type = Vec<String>, required = false)]
        session_ids: Vec<SessionId>,
        /// `seq` of the newest ended action that the turn has read.
        read_to_seq: i64,
        #[serde(with = "time::serde::rfc3339")]
        #[schema(value_type = String, format = DateTime)]
        expires_at: Timestamp,
        /// Time that workers spent on the turn so far, in whole seconds.
        active_seconds: u64,
    },
    /// A worker continues the turn. The status becomes `running`.
    #[serde(rename = "turn.resumed")]
    TurnResumed {
        turn_id: TurnId,
        /// Time from `turn.waiting` to what ended the wait; 0 if no action was open, because only the time that callers
        /// take does not count in the limits of time.
        waited_ms: u64,
    },
    /// The turn reads messages of the queued turn. If that has no other, it is gone.
    #[serde(rename = "turn.steered")]
    TurnSteered {
        turn_id: TurnId,
        /// The queued turn that they had joined.
        #[schema(value_type = String)]
        from_turn_id: TurnId,
        /// `seq` of each `user.message`.
        seqs: Vec<i64>,
        /// Whether the queued turn has no other message.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        from_is_empty: bool,
    },
    /// A caller retries the last turn, which had ended with an error. It is queued again, with its usage and its
    /// input, and is no longer an ended one; the status becomes `queued`.
    #[serde(rename = "turn.retried")]
    TurnRetried {
        turn_id: TurnId,
        /// The attempt that the next `turn.started` has.
        attempt: i32,
    },
    /// A model call failed; includes the time of the retry, if there is one.
    #[serde(rename = "error.model")]
    ErrorModel(Failure),
    /// The service or the sandbox failed.
    #[serde(rename = "error.runtime")]
    ErrorRuntime(Failure),
    /// The task cannot be done as requested.
    #[serde(rename = "error.task")]
    ErrorTask(Failure),
    /// The turn ended. The status becomes `queued` if input waits; otherwise `yield_reason`
    /// decides: `awaiting_input`, `failed` or `idle`.
    #[serde(rename = "turn.completed")]
    TurnCompleted(Box<TurnCompleted>),
    /// A sandbox was attached.
    #[serde(rename = "sandbox.created")]
    SandboxCreated { sandbox_id: SandboxId, duration_ms: u64 },
    /// The sandbox was found dead or unreachable.
    #[serde(rename = "sandbox.lost")]
    SandboxLost { sandbox_id: SandboxId, reason: String },
    /// The service terminated the sandbox.
    #[serde(rename = "sandbox.terminated")]
    SandboxTerminated { sandbox_id: SandboxId, reason: String },
    /// The agent scheduled a wake: at that time, a message wakes the session.
    #[serde(rename = "wake.scheduled")]
    WakeScheduled {
        call_id: String,
        #[serde(with = "time::serde::rfc3339")]
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
        note: String,
    },
    /// The sandbox, or a tool for it, was allowed to connect to a host. The first of equal
    /// decisions is appended before any data leaves; `count` of a later one is the number that
    /// followed.
    #[serde(rename = "egress.allowed")]
    EgressAllowed {
        host: String,
        port: u16,
        method: String,
        /// `tunnel`, `inspected` or `plain`.
        manner: String,
        /// Names of the secrets that were inserted.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        secrets: Vec<String>,
        count: u64,
    },
    /// The sandbox, or a tool for it, was denied a connection to a host.
    #[serde(rename = "egress.denied")]
    EgressDenied { host: String, port: u16, method: String, reason: String, count: u64 },
    /// There is no capacity for a new sandbox. The session waits; `queue_position` is 1 for the next one.
    #[serde(rename = "sandbox.waiting")]
    SandboxWaiting { sandbox_id: SandboxId, shortage: String, queue_position: u32 },
    /// The sandbox was idle and is now frozen: its processes are suspended.
    #[serde(rename = "sandbox.frozen")]
    SandboxFrozen { sandbox_id: SandboxId, memory_bytes: u64 },
    /// The sandbox is needed again and was thawed.
    #[serde(rename = "sandbox.thawed")]
    SandboxThawed { sandbox_id: SandboxId },
    /// The session's files were saved from this sandbox to the blob store.
    #[serde(rename = "sandbox.checkpoint_created")]
    SandboxCheckpointCreated {
        sandbox_id: SandboxId,
        checkpoint_id: CheckpointId,
        bytes: u64,
        duration_ms: u64,
    },
    /// The sandbox's files were restored from a checkpoint.
    #[serde(rename = "sandbox.checkpoint_restored")]
    SandboxCheckpointRestored { sandbox_id: SandboxId, checkpoint_id: CheckpointId, duration_ms: u64 },
    /// Files written since that time were lost with an earlier sandbox's disk. Without a time, all
    /// files were lost.
    #[serde(rename = "sandbox.files_lost")]
    SandboxFilesLost {
        sandbox_id: SandboxId,
        #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
        #[schema(value_type = Option<String>, format = DateTime)]
        since: Option<Timestamp>,
    },
    /// The sandbox's lifetime is about to end; it is being replaced.
    #[serde(rename = "sandbox.rotation_started")]
    SandboxRotationStarted { sandbox_id: SandboxId },
    /// Another sandbox has replaced it.
    #[serde(rename = "sandbox.rotation_completed")]
    SandboxRotationCompleted { from_sandbox_id: SandboxId, sandbox_id: SandboxId, duration_ms: u64 },
    /// The replacement failed; the next use creates a sandbox. With `failed`, the status becomes
    /// `failed`.
    #[serde(rename = "sandbox.rotation_failed")]
    SandboxRotationFailed {
        sandbox_id: SandboxId,
        reason: String,
        /// No sandbox could be created for a session without an agent.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        failed: bool,
    },
    /// A caller extended the sandbox's life; appended at most once in 5 minutes.
    #[serde(rename = "sandbox.heartbeat")]
    SandboxHeartbeat { sandbox_id: SandboxId },
    /// A caller started a command; `exec.completed` follows. Releases a cancel.
    #[serde(rename = "exec.started")]
    ExecStarted { exec_id: OperationId, command: String, working_dir: String },
    /// A caller wrote a file in the sandbox, or unpacked an archive below a directory.
    #[serde(rename = "file.written")]
    FileWritten {
        write_id: OperationId,
        path: String,
        bytes: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        is_archive: bool,
    },
    /// A source is about to be cloned into the sandbox.
    #[serde(rename = "source.cloning")]
    SourceCloning { name: String, sandbox_id: SandboxId, clone_id: String },
    /// The source was cloned into the sandbox, at this commit.
    #[serde(rename = "source.cloned")]
    SourceCloned {
        name: String,
        sandbox_id: SandboxId,
        #[schema(required)]
        sha: Option<String>,
        bytes: u64,
        duration_ms: u64,
    },
    /// The source could not be cloned.
    #[serde(rename = "source.failed")]
    SourceFailed { name: String, sandbox_id: SandboxId, code: String, message: String, retryable: bool },
    /// The environment's `post_clone` ran after the session's sources were cloned.
    #[serde(rename = "source.prepared")]
    SourcePrepared { sandbox_id: SandboxId, duration_ms: u64 },
    /// The root file system of the session's sandboxes is being built; the session waits.
    #[serde(rename = "environment.build_started")]
    EnvironmentBuildStarted {
        image: String,
        #[serde(skip_serializing_if = "Packages::is_empty", default)]
        packages: Packages,
    },
    /// The build started another step.
    #[serde(rename = "environment.build_progress")]
    EnvironmentBuildProgress { step: String },
    /// The build completed; the session continues.
    #[serde(rename = "environment.build_completed")]
    EnvironmentBuildCompleted { duration_ms: u64 },
    /// The build failed; the turn ends.
    #[serde(rename = "environment.build_failed")]
    EnvironmentBuildFailed { message: String },
    /// 80 % of a limit are used. Appended once per limit.
    #[serde(rename = "limit.warning")]
    LimitWarning {
        limit: String,
        used: u64,
        allowed: u64,
        /// The session that the limit belongs to, if it is an ancestor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
    /// A limit is reached; the turn ends.
    #[serde(rename = "limit.exceeded")]
    LimitExceeded {
        limit: String,
        used: u64,
        allowed: u64,
        /// The session that the limit belongs to, if it is an ancestor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
}

/// Distinguishes a field that is `null` from an absent one.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
