//! State of a session, folded from its log; commands are decided on it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    actor::Actor,
    context::Context,
    conversation::ModelOptions,
    custom_tool::AgentTool,
    environment::EnvironmentSnapshot,
    ids::*,
    permission::Permissions,
    skill::PinnedSkill,
    source::PinnedSource,
    turn::{LastTurn, Turn, TurnState},
    turn_settings::TurnSettings,
    usage::Usage,
};
use crate::base::Timestamp;

/// Status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A turn is queued for a worker.
    Queued,
    /// A turn is running.
    Running,
    /// The last turn ended with a question, or the running one waits for an action; accepts input.
    AwaitingInput,
    /// No turn is open; accepts input.
    Idle,
    /// The last turn failed before it did anything, or the sandbox of a session without an agent
    /// could not be replaced.
    Failed,
    /// Closed; read-only.
    Archived,
}

/// Origin of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Api,
    /// The command line.
    Cli,
    Dashboard,
    Manual,
    Cron,
    Mention,
    React,
    /// An inbound trigger.
    Trigger,
    /// The invoke URL of an agent.
    Invoke,
    /// An import of an exported file.
    Import,
    /// An agent, with a tool.
    Agent,
}

/// Limits of a session; an absent field is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Tokens of the whole session: input, cache and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Wall-clock time of one turn, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_seconds: Option<u64>,
    /// Turns of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Model calls of one turn (default 200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Cost of the whole session, in micro-USD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Time of turns and of callers' commands, in seconds, over the whole session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    /// Tool calls of the whole session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
}

impl Limits {
    /// Returns these limits, overridden by those that `over` sets.
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

/// The agent of a session, as it was when the session was created, with what callers changed for the session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentSnapshot {
    #[schema(value_type = String)]
    pub revision_id: RevisionId,
    /// Revision number, starting at 1 for each agent.
    pub revision: i32,
    pub name: String,
    /// SHA-256 of the prompt, in hexadecimal; the revision contains the prompt.
    pub prompt_hash: String,
    /// `provider/model`.
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    /// The tools that the agent may use: names, and tools that a caller runs. `None` allows all of the service.
    pub tools: Option<Vec<AgentTool>>,
    /// Rules for its calls.
    #[serde(default, skip_serializing_if = "Permissions::is_empty")]
    #[schema(required = false)]
    pub permissions: Permissions,
    #[serde(flatten)]
    pub settings: TurnSettings,
    /// The versions of `skills` that the session has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned_skills: Vec<PinnedSkill>,
}

/// Agent, credential and settings that a session pins when it is created.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    pub agent_id: AgentId,
    /// `None` for a model that needs none.
    pub credential_id: Option<CredentialId>,
    pub agent_snapshot: AgentSnapshot,
}

/// Initial data of a session; the body of `session.created`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = SessionCreated)]
pub struct Created {
    #[schema(required)]
    pub agent_id: Option<AgentId>,
    #[schema(required)]
    pub credential_id: Option<CredentialId>,
    pub agent_snapshot: Option<AgentSnapshot>,
    /// Its sandbox's environment; `None` for default size and no network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSnapshot>,
    /// Repositories that are cloned into its sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PinnedSource>,
    #[schema(required)]
    pub title: Option<String>,
    #[schema(required)]
    pub key: Option<String>,
    #[schema(required)]
    pub client_id: Option<String>,
    /// Human-readable name, unique among the organization's open sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    // Dropped when the body is truncated and it is large.
    #[schema(required = false)]
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    pub source: Source,
    /// The session that started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session_id: Option<SessionId>,
}

impl Created {
    pub(crate) fn pin(&mut self, pins: Pins) {
        let Pins { agent_id, credential_id, agent_snapshot } = pins;
        self.agent_id = Some(agent_id);
        self.credential_id = credential_id;
        self.agent_snapshot = Some(agent_snapshot);
    }
}

/// State of a session: the fold of its log.
///
/// Lease, epoch, heartbeat and the state of the sandbox are not part of the fold and not in this
/// type.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub id: SessionId,
    pub created: Created,
    pub status: Status,
    /// `seq` of the newest event.
    pub head: i64,
    /// `seq` of the newest input that a turn has consumed.
    pub input_cursor: i64,
    /// `seq` of the newest input; greater than `input_cursor` while input is pending.
    pub input_head: i64,
    /// The running turn.
    pub running: Option<Turn>,
    /// The queued turn, with the input that has joined it.
    pub queued: Option<Turn>,
    /// `seq` of the newest event with which a caller, or an expiry, ended an action.
    pub action_head: i64,
    /// `seq` of the newest message that steers the running turn.
    pub steer_head: i64,
    /// `seq` of the event that last changed the pinned agent; 0 while it is as it was created.
    pub agent_head: i64,
    /// The child sessions that the running turn waits for.
    pub waits_for: Vec<SessionId>,
    /// The turn whose cancellation a caller requested.
    pub cancel_turn_id: Option<TurnId>,
    /// The most recent turn that ended.
    pub ended: Option<Turn>,
    /// The actor who created the session.
    pub actor: Actor,
    /// The last time that a caller canceled, stopped or archived it.
    pub stopped: Option<Stopped>,
    /// Whether a caller paused, stopped or canceled it.
    pub hold: Option<Hold>,
    /// Context that its commands start with.
    pub context: Context,
    /// Number of turns that have started.
    pub turns: i64,
    /// Seconds that workers spent on ended turns.
    pub active_seconds: u64,
    /// Run time of callers' commands that ended, in milliseconds.
    pub exec_ms: u64,
    pub usage: Usage,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A caller's hold on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// No new work starts until it is resumed.
    Paused,
    /// Its sandbox is hibernated; a message or a start releases the hold.
    Stopped,
    /// Canceled before its first turn. Refuses nothing; a message, a start or a command releases it.
    Canceled,
}

/// The actor who stopped a session, and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stopped {
    pub by: Actor,
    #[serde(with = "time::serde::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Reason that the caller gave.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

impl Session {
    /// Returns whether input waits for a turn.
    pub fn is_pending(&self) -> bool {
        self.input_head > self.input_cursor
    }

    /// Returns whether the running turn waits for actions or sessions.
    pub fn is_waiting(&self) -> bool {
        self.running.as_ref().is_some_and(|turn| turn.state == TurnState::Waiting)
    }

    /// Returns whether it never had input and is open.
    pub fn is_unused(&self) -> bool {
        self.status == Status::Idle && self.input_head == 0
    }

    /// Returns the seconds that count against `duration_seconds`.
    pub fn duration_seconds(&self) -> u64 {
        self.active_seconds + self.exec_ms / 1_000
    }

    /// Returns whether it is a sandbox without an agent whose sandbox could not be replaced.
    pub fn has_lost_sandbox(&self) -> bool {
        self.status == Status::Failed && self.created.agent_snapshot.is_none()
    }

    /// Returns the turn to show: the running one, else the queued one, else the last ended one.
    pub fn last_turn(&self) -> Option<LastTurn> {
        self.running.as_ref().or(self.queued.as_ref()).or(self.ended.as_ref()).map(LastTurn::from)
    }
}
