//! The facts of a log: what may happen to a session, and how far each is seen.
//!
//! The doc comment of each [`Body`] variant says what it does to the session;
//! `apply` is that sentence in code. An event is immutable once it has a `seq`.

mod kind;
mod whole;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    context::ContextChange,
    ids::*,
    registry::Tool,
    rootfs::Packages,
    session::{Created, Limits, Status},
    tool::Replay,
};
use crate::base::Timestamp;

pub use super::step::{Aborted, StepAborted, StepCompleted};
pub use whole::{Failure, Outcome, TurnCompleted};

/// A fact, with the place and time that the log gave it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Gapless from 1 within the session.
    pub seq: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub ts: Timestamp,
    #[serde(flatten)]
    pub draft: Draft,
}

/// A fact that the log has not taken yet: everything but `seq` and `ts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    pub id: EventId,
    pub actor: Actor,
    pub level: Level,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub turn_id: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step_id: Option<StepId>,
    /// What the fact refers to outside the log, verbatim from the caller.
    #[serde(default)]
    pub refs: Map<String, Value>,
    #[serde(flatten)]
    pub body: Body,
}

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Actor {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub display: Option<String>,
    #[serde(rename = "type")]
    pub kind: ActorKind,
}

/// What kind of party acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    /// A person or program with a key or token.
    Human,
    /// The agent of the session.
    Agent,
    /// The service itself.
    System,
    /// A schedule or an inbound trigger.
    Trigger,
}

impl Actor {
    /// The agent of the session.
    pub fn agent() -> Self {
        Self { id: None, display: None, kind: ActorKind::Agent }
    }

    /// The service itself.
    pub fn system() -> Self {
        Self { id: None, display: None, kind: ActorKind::System }
    }
}

/// How far an event is seen. A reader of one level sees those before it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// What a person follows: messages and ends of turns.
    User,
    /// What a dashboard shows: tool calls, narration.
    Progress,
    /// Everything, the provider's raw blocks included.
    Internal,
}

/// How a caller wants a running turn to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelMode {
    /// Stop.
    Cancel,
    /// Stop, and go on with the input that asked for it.
    Interrupt,
}

/// What happened. Serialised as `type` and `body`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "body")]
pub enum Body {
    /// The session exists; `idle` until it has input.
    #[serde(rename = "session.created")]
    SessionCreated(Box<Created>),
    /// Title, slug, metadata or limits changed; absent fields did not.
    #[serde(rename = "session.updated")]
    SessionUpdated {
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "present")]
        title: Option<Option<String>>,
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "present")]
        slug: Option<Option<String>>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        metadata: Option<Map<String, Value>>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        limits: Option<Limits>,
    },
    /// A caller asked for the sandbox to be there; what a stop held is let go.
    #[serde(rename = "session.started")]
    SessionStarted {},
    /// Nothing begins until it is resumed: messages wait, a turn stands still where it
    /// is, and so does the time of the sandbox.
    #[serde(rename = "session.paused")]
    SessionPaused {},
    /// It goes on where it stood.
    #[serde(rename = "session.resumed")]
    SessionResumed {},
    /// A caller is done: what ran has been asked to end, the sandbox is put away. The next
    /// message or start goes on.
    #[serde(rename = "session.completed")]
    SessionCompleted {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        reason: Option<String>,
    },
    /// What commands start with changed; absent keys did not, null removed one.
    #[serde(rename = "session.context_updated")]
    SessionContextUpdated(ContextChange),
    /// A caller said that the session has a tool.
    #[serde(rename = "tool.registered")]
    ToolRegistered(Tool),
    /// The status changed by a caller's hand (archive); turns say theirs themselves.
    #[serde(rename = "session.status_changed")]
    SessionStatusChanged { from: Status, to: Status },
    /// A check before a turn failed: the turn ends, and nothing was made for it.
    #[serde(rename = "session.rejected")]
    SessionRejected { reason: String, message: String },
    /// Input. Makes a queued turn, or joins the queued one that `turn_id` names;
    /// a session at rest becomes `queued`.
    #[serde(rename = "user.message")]
    UserMessage {
        text: String,
        /// The input as an object, where the caller sent one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        input: Option<Value>,
        /// The caller's envelope (`id`, `source`, `conversation`, `raw`).
        #[serde(skip_serializing_if = "Option::is_none", default)]
        envelope: Option<Map<String, Value>>,
    },
    /// A caller asked the running turn to end; it ends at its next checkpoint.
    #[serde(rename = "turn.cancel_requested")]
    TurnCancelRequested { turn_id: TurnId, mode: CancelMode },
    /// The turn runs: its window is fixed, `input_cursor` moves to its end, the
    /// status is `running`. Written again, with the next `attempt`, after a crash.
    #[serde(rename = "turn.started")]
    TurnStarted {
        turn_id: TurnId,
        input_from_seq: i64,
        input_to_seq: i64,
        attempt: i32,
        /// The operator's fee; adds to the cost.
        #[serde(default)]
        fee_micros: u64,
    },
    /// The agent said something.
    #[serde(rename = "agent.message")]
    AgentMessage {
        text: String,
        /// A question: the session waits for the answer.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        awaiting_input: bool,
        /// Answers that the agent suggests.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        options: Vec<String>,
    },
    /// Reasoning that the provider shows.
    #[serde(rename = "agent.thinking")]
    AgentThinking { text: String },
    /// A model call was answered. What the next request is built from; adds to usage.
    #[serde(rename = "step.completed")]
    StepCompleted(Box<StepCompleted>),
    /// A model call ended without an answer; what it used adds to usage all the same.
    #[serde(rename = "step.aborted")]
    StepAborted(Box<StepAborted>),
    /// A tool is about to run. Written before it does.
    #[serde(rename = "tool.call")]
    ToolCall { call_id: String, tool: String, input: Value, args_summary: String, replay: Replay },
    /// A command of the sandbox ended.
    #[serde(rename = "exec.completed")]
    ExecCompleted {
        /// The tool call, or `exec_id` for a caller's own command.
        call_id: String,
        /// The caller's own command, which counts as a call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        exec_id: Option<OperationId>,
        command: String,
        exit_code: i32,
        /// The end of its output.
        summary: String,
        /// Bytes that it wrote in all.
        bytes: u64,
        /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
        cause: String,
        duration_ms: u64,
        /// What the sandbox's processors and memory cost meanwhile; adds to the cost.
        #[serde(default)]
        cpu_micros: u64,
        #[serde(default)]
        memory_micros: u64,
    },
    /// What the model is told of a call. Exactly one for each call.
    #[serde(rename = "tool.result")]
    ToolResult {
        call_id: String,
        tool: String,
        output: String,
        is_error: bool,
        /// Where the result comes from.
        outcome: Outcome,
        duration_ms: u64,
    },
    /// A model call failed; says when it is tried again, if it is.
    #[serde(rename = "error.model")]
    ErrorModel(Failure),
    /// The service or the sandbox failed.
    #[serde(rename = "error.runtime")]
    ErrorRuntime(Failure),
    /// The task itself cannot be done as asked.
    #[serde(rename = "error.task")]
    ErrorTask(Failure),
    /// The turn is over. The status becomes `queued` when input waits, else what
    /// the reason says: `awaiting_input`, `failed` or `idle`.
    #[serde(rename = "turn.completed")]
    TurnCompleted(Box<TurnCompleted>),
    /// A sandbox is attached.
    #[serde(rename = "sandbox.created")]
    SandboxCreated { sandbox_id: SandboxId, duration_ms: u64 },
    /// The sandbox was found dead or unreachable.
    #[serde(rename = "sandbox.lost")]
    SandboxLost { sandbox_id: SandboxId, reason: String },
    /// The sandbox was ended by the service.
    #[serde(rename = "sandbox.terminated")]
    SandboxTerminated { sandbox_id: SandboxId, reason: String },
    /// The agent set a timer for itself: at that time a message wakes the session.
    #[serde(rename = "wake.scheduled")]
    WakeScheduled {
        call_id: String,
        #[serde(with = "time::serde::rfc3339")]
        at: Timestamp,
        note: String,
    },
    /// The sandbox, or a tool for it, was let through to a host. The first of equal ones is
    /// written before anything leaves; `count` of a later one says how many followed.
    #[serde(rename = "egress.allowed")]
    EgressAllowed {
        host: String,
        port: u16,
        method: String,
        /// `tunnel`, `inspected` or `plain`.
        manner: String,
        /// Names of the secrets that were put in.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        secrets: Vec<String>,
        count: u64,
    },
    /// The sandbox, or a tool for it, was kept from a host.
    #[serde(rename = "egress.denied")]
    EgressDenied { host: String, port: u16, method: String, reason: String, count: u64 },
    /// Nobody needed the sandbox: its processes stand still where they are.
    #[serde(rename = "sandbox.frozen")]
    SandboxFrozen { sandbox_id: SandboxId, memory_bytes: u64 },
    /// The sandbox is needed again and goes on where it was.
    #[serde(rename = "sandbox.thawed")]
    SandboxThawed { sandbox_id: SandboxId },
    /// The session's files are in the blob store as they are in this sandbox.
    #[serde(rename = "sandbox.checkpoint_created")]
    SandboxCheckpointCreated {
        sandbox_id: SandboxId,
        checkpoint_id: CheckpointId,
        bytes: u64,
        duration_ms: u64,
    },
    /// The sandbox has its files from a checkpoint.
    #[serde(rename = "sandbox.checkpoint_restored")]
    SandboxCheckpointRestored { sandbox_id: SandboxId, checkpoint_id: CheckpointId, duration_ms: u64 },
    /// What was written since that time is gone with an earlier sandbox's disk; all of
    /// it, when there is no time.
    #[serde(rename = "sandbox.files_lost")]
    SandboxFilesLost {
        sandbox_id: SandboxId,
        #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
        since: Option<Timestamp>,
    },
    /// The sandbox's time is almost over: another one takes its place.
    #[serde(rename = "sandbox.rotation_started")]
    SandboxRotationStarted { sandbox_id: SandboxId },
    /// The other one has taken its place.
    #[serde(rename = "sandbox.rotation_completed")]
    SandboxRotationCompleted { from_sandbox_id: SandboxId, sandbox_id: SandboxId, duration_ms: u64 },
    /// It could not take its place; the next need makes one.
    #[serde(rename = "sandbox.rotation_failed")]
    SandboxRotationFailed { sandbox_id: SandboxId, reason: String },
    /// A caller asked for the sandbox to be kept; said once in five minutes.
    #[serde(rename = "sandbox.heartbeat")]
    SandboxHeartbeat { sandbox_id: SandboxId },
    /// A caller asked for a command of their own; `exec.completed` follows.
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
    /// Its files are in the sandbox, at this commit.
    #[serde(rename = "source.cloned")]
    SourceCloned { name: String, sandbox_id: SandboxId, sha: Option<String>, bytes: u64, duration_ms: u64 },
    /// It could not be cloned.
    #[serde(rename = "source.failed")]
    SourceFailed { name: String, sandbox_id: SandboxId, code: String, message: String, retryable: bool },
    /// The environment's `post_clone` ran after the session's sources were cloned.
    #[serde(rename = "source.prepared")]
    SourcePrepared { sandbox_id: SandboxId, duration_ms: u64 },
    /// What the session's sandboxes are made on is not there yet: it is made, and the session waits.
    #[serde(rename = "environment.build_started")]
    EnvironmentBuildStarted {
        image: String,
        #[serde(skip_serializing_if = "Packages::is_empty", default)]
        packages: Packages,
    },
    /// Another step of that has begun.
    #[serde(rename = "environment.build_progress")]
    EnvironmentBuildProgress { step: String },
    /// It is there: the session goes on.
    #[serde(rename = "environment.build_completed")]
    EnvironmentBuildCompleted { duration_ms: u64 },
    /// It could not be made: the turn ends.
    #[serde(rename = "environment.build_failed")]
    EnvironmentBuildFailed { message: String },
    /// A limit is close: 80 % are used. Once per limit.
    #[serde(rename = "limit.warning")]
    LimitWarning {
        limit: String,
        used: u64,
        allowed: u64,
        /// Whose limit it is, where it is that of a session above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
    /// A limit is reached; the turn ends.
    #[serde(rename = "limit.exceeded")]
    LimitExceeded {
        limit: String,
        used: u64,
        allowed: u64,
        /// Whose limit it is, where it is that of a session above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
}

/// Tells a field that is `null` from one that is absent.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The events that tell what happened and change neither the session nor the conversation:
/// one pattern for all who fold a log.
macro_rules! only_told {
    () => {
        $crate::domain::event::Body::SandboxCreated { .. }
            | $crate::domain::event::Body::SandboxLost { .. }
            | $crate::domain::event::Body::SandboxTerminated { .. }
            | $crate::domain::event::Body::SandboxFrozen { .. }
            | $crate::domain::event::Body::SandboxThawed { .. }
            | $crate::domain::event::Body::SandboxCheckpointCreated { .. }
            | $crate::domain::event::Body::SandboxCheckpointRestored { .. }
            | $crate::domain::event::Body::SandboxFilesLost { .. }
            | $crate::domain::event::Body::SandboxRotationStarted { .. }
            | $crate::domain::event::Body::SandboxRotationCompleted { .. }
            | $crate::domain::event::Body::SandboxRotationFailed { .. }
            | $crate::domain::event::Body::SandboxHeartbeat { .. }
            | $crate::domain::event::Body::EgressAllowed { .. }
            | $crate::domain::event::Body::EgressDenied { .. }
            | $crate::domain::event::Body::ExecStarted { .. }
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
pub(crate) use only_told;

/// What callers do to a session beside its turns: it uses nothing, and no model reads it.
macro_rules! of_callers {
    () => {
        $crate::domain::event::Body::SessionUpdated { .. }
            | $crate::domain::event::Body::SessionStatusChanged { .. }
            | $crate::domain::event::Body::SessionStarted {}
            | $crate::domain::event::Body::SessionPaused {}
            | $crate::domain::event::Body::SessionResumed {}
            | $crate::domain::event::Body::SessionCompleted { .. }
            | $crate::domain::event::Body::SessionContextUpdated(_)
    };
}
pub(crate) use of_callers;
