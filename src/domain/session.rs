//! A session as its log leaves it: the state that commands are decided on.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    context::Context,
    conversation::ModelOptions,
    environment::EnvironmentSnapshot,
    event::{Actor, Event},
    ids::*,
    source::PinnedSource,
    turn::{LastTurn, Turn},
    usage::Usage,
};
use crate::base::Timestamp;

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A turn waits for a worker.
    Queued,
    /// A turn is executing.
    Running,
    /// The last turn ended with a question; steerable.
    AwaitingInput,
    /// Done for now; steerable.
    Idle,
    /// The last turn ended before it could do anything; steerable.
    Failed,
    /// Closed; read-only.
    Archived,
}

/// Who or what started a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Api,
    Cli,
    Manual,
    Cron,
    Mention,
    React,
    /// A message to an inbound trigger.
    Trigger,
    /// Read from a file of an export.
    Import,
    /// An agent, by a tool.
    Agent,
}

/// Caps of a session; an absent one does not bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Tokens of the whole session: input, cache and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Wall clock of one turn, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_seconds: Option<u64>,
    /// Turns that the session may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Model calls within one turn (default 200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Cost of the whole session, in micro-USD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Seconds in which turns are worked on, in the whole session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    /// Tool calls of the whole session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
}

impl Limits {
    /// These limits with those of `over` in front.
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            tokens: over.tokens.or(self.tokens),
            turn_seconds: over.turn_seconds.or(self.turn_seconds),
            turns: over.turns.or(self.turns),
            steps: over.steps.or(self.steps),
            cost_micros: over.cost_micros.or(self.cost_micros),
            duration_seconds: over.duration_seconds.or(self.duration_seconds),
            tool_calls: over.tool_calls.or(self.tool_calls),
        }
    }
}

/// The agent as it was when the session was made; never changes after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentSnapshot {
    #[schema(value_type = String)]
    pub revision_id: RevisionId,
    /// From 1 within the agent.
    pub revision: i32,
    pub name: String,
    /// SHA-256 of the prompt, in hexadecimal; the prompt is in the revision.
    pub prompt_hash: String,
    /// `provider/model`.
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    /// Names of the tools that the agent may use; `None` for all.
    pub tools: Option<Vec<String>>,
}

/// What a session starts with; the body of `session.created`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Created {
    pub agent_id: Option<AgentId>,
    pub credential_id: Option<CredentialId>,
    pub agent_snapshot: Option<AgentSnapshot>,
    /// What its sandbox is; none for one of the default size that reaches nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSnapshot>,
    /// Repositories that are cloned into its sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PinnedSource>,
    pub title: Option<String>,
    pub key: Option<String>,
    pub client_id: Option<String>,
    /// A name for people, unique among the organization's open sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    pub source: Source,
    /// The session under which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session_id: Option<SessionId>,
}

/// The state of a session: the fold of its log.
///
/// Outside the fold, and so outside this type: lease, epoch, heartbeat and the
/// state of the sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub id: SessionId,
    pub created: Created,
    pub status: Status,
    /// `seq` of the newest event.
    pub head: i64,
    /// `seq` of the newest input that a turn has taken.
    pub input_cursor: i64,
    /// `seq` of the newest input; beyond `input_cursor` while some is pending.
    pub input_head: i64,
    /// The turn that runs.
    pub running: Option<Turn>,
    /// The turn that waits, with the input that has joined it.
    pub queued: Option<Turn>,
    /// The turn that a caller asked to end.
    pub cancel_turn_id: Option<TurnId>,
    /// The newest turn that has ended.
    pub ended: Option<LastTurn>,
    /// Who made it.
    pub actor: Actor,
    /// The last time that a caller canceled, stopped or closed it.
    pub stopped: Option<Stopped>,
    /// What a caller's hand holds it by.
    pub hold: Option<Hold>,
    /// What its commands start with.
    pub context: Context,
    /// Turns that have started.
    pub turns: i64,
    /// Seconds in which turns that ended were worked on.
    pub active_seconds: u64,
    pub usage: Usage,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// How a caller holds a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Nothing begins until it is resumed.
    Paused,
    /// Its sandbox is put away; a message or a start goes on.
    Stopped,
}

/// Who stopped a session, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stopped {
    pub by: Actor,
    #[serde(with = "time::serde::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What the caller said of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

impl Stopped {
    pub(super) fn by(event: &Event) -> Self {
        Self { by: event.draft.actor.clone(), at: event.ts, reason: None }
    }
}

impl Session {
    /// Whether input waits for a turn.
    pub fn is_pending(&self) -> bool {
        self.input_head > self.input_cursor
    }

    /// The turn to show: the running one, else the queued one, else the last.
    pub fn last_turn(&self) -> Option<LastTurn> {
        let live = self.running.as_ref().or(self.queued.as_ref());
        live.map(|turn| LastTurn {
            id: turn.id,
            state: turn.state,
            yield_reason: None,
            result_event_id: None,
            error_code: None,
        })
        .or_else(|| self.ended.clone())
    }
}
