//! Request and response bodies of sessions.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    agent::{validate_ask, validate_compaction, validate_fallback, validate_loops},
    budget::BudgetConsumed,
    content::ContentInput,
    context::{ContextInput, ContextView},
    environment::validate_environment_choice,
    limits::LimitsInput,
    metadata::validate_metadata,
    sandbox::{SandboxView, SandboxWaitView},
    settings_of,
    source::{SourceView, validate_sources},
    webhook::{CreateDestination, DestinationView},
};
use crate::{
    base::{
        json,
        limit::{
            AGENT_TOOLS_MAX, DESTINATIONS_MAX, FALLBACK_MODELS_MAX, MCP_SERVERS_MAX, MESSAGE_CONTENT_MAX,
            NAME_BYTES_MAX, NET_URL_BYTES_MAX, OUTPUT_REPAIRS, RULES_MAX, SKILLS_MAX, TEXT_BYTES_MAX,
        },
    },
    domain::{
        Actor, AgentId, CredentialId, Session, SessionId, Status, Usage,
        compaction::CompactionSettings,
        custom_tool::AgentTool,
        environment::{EnvironmentChoice, EnvironmentSnapshot},
        exit::ExitStatus,
        fallback::FallbackModel,
        mcp::McpServer,
        permission::Rule,
        session::{AgentSnapshot, Hold, Limits, Source, Stopped},
        skill::SkillChoice,
        source::{PinnedSource, Repository},
        turn::LastTurn,
        turn_settings::{AskSettings, LoopSettings, SettingsChange, TurnSettings},
    },
};

/// Session to create.
#[derive(Clone, Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    /// Id or name of an agent; `agent_id` is accepted too. A session without an agent is a log only: no turn
    /// runs.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    #[serde(alias = "agent_id")]
    pub agent: Option<String>,
    /// First input: a string, or an object with a `text` field. Without input no turn starts.
    #[garde(custom(text_or_object))]
    #[schema(value_type = Option<InputSchema>)]
    pub input: Option<Value>,
    /// Parts of the first input behind `input`: texts, images and documents.
    #[garde(length(max = MESSAGE_CONTENT_MAX), dive)]
    #[serde(default, deserialize_with = "json::objects")]
    pub content: Vec<ContentInput>,
    /// Unique key of the session: creating it again with the same body returns the existing session.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub key: Option<String>,
    /// Overrides the agent's model for this session.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub model: Option<String>,
    /// Replaces the agent's tools for this session: names, and tools that a caller runs.
    #[garde(inner(length(max = AGENT_TOOLS_MAX)))]
    pub tools: Option<Vec<AgentTool>>,
    /// Rules for the calls of the session. With those of the agent, the strictest counts.
    #[garde(length(max = RULES_MAX))]
    #[serde(default, deserialize_with = "json::objects")]
    pub permissions: Vec<Rule>,
    /// How the agent asks its caller; overrides the agent's.
    #[garde(inner(custom(validate_ask)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub ask: Option<AskSettings>,
    /// Consequence of making the same calls again and again; overrides the agent's.
    #[garde(inner(custom(validate_loops)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub doom_loop: Option<LoopSettings>,
    /// JSON Schema (2020-12) of the output of each turn; `type` is `object`. Overrides the agent's.
    #[garde(skip)]
    pub output_schema: Option<Map<String, Value>>,
    /// Rejected outputs of a turn before it ends as `output_invalid` (default 2).
    #[garde(inner(range(max = OUTPUT_REPAIRS.1)))]
    pub output_repairs: Option<u32>,
    /// Shortening of a history that is almost too long; overrides the agent's.
    #[garde(inner(custom(validate_compaction)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub compaction: Option<CompactionSettings>,
    /// MCP servers whose tools the agent may call; replaces the agent's.
    #[garde(inner(length(max = MCP_SERVERS_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub mcp_servers: Option<Vec<McpServer>>,
    /// Models that are called, in this order, while the model is not available; replaces the agent's.
    #[garde(inner(length(max = FALLBACK_MODELS_MAX), inner(custom(validate_fallback))))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub fallback_models: Option<Vec<FallbackModel>>,
    /// Skills that the agent may read.
    #[garde(inner(length(max = SKILLS_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub skills: Option<Vec<SkillChoice>>,
    /// Number or id of a revision of the agent; the active revision when absent.
    #[garde(skip)]
    pub revision: Option<RevisionChoice>,
    /// Override the agent's limits; null removes one of them.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub limits: LimitsInput,
    /// Caller-defined metadata; returned unchanged, in webhooks too.
    #[garde(custom(validate_metadata))]
    #[serde(default)]
    pub metadata: Map<String, Value>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    /// URL of a webhook destination; short form of one entry in `destinations`.
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub webhook: Option<String>,
    #[garde(length(max = DESTINATIONS_MAX), dive)]
    #[serde(default, deserialize_with = "json::objects")]
    pub destinations: Vec<CreateDestination>,
    /// Identifies the client that created the session; see `POST /v3/sessions/reattach`.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub client_id: Option<String>,
    /// Human-readable name, unique among the organization's sessions that are not archived: 1 to 63
    /// lower-case letters, digits and hyphens. Every `/v3/sessions/:id` path accepts it in place of the id.
    #[garde(inner(custom(validate_slug)))]
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    pub slug: Option<String>,
    /// Environment of the sandbox, pinned at creation: id or name of an environment, or an inline object.
    /// Without one the sandbox has no network access.
    #[garde(custom(validate_environment_choice))]
    pub environment: Option<EnvironmentChoice>,
    /// Repositories cloned into the sandbox. They override repositories of the environment and the agent
    /// with the same name.
    #[garde(custom(validate_sources))]
    #[serde(default, deserialize_with = "json::objects")]
    pub sources: Vec<Repository>,
    /// Initial context of the session's commands.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub context: ContextInput,
    /// Id or slug of the parent session. The usage of this session counts against the limits `tokens`,
    /// `cost_micros` and `tool_calls` of the parent and its ancestors. Nothing else is inherited.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub parent_session_id: Option<String>,
}

impl CreateSession {
    /// Returns the settings that override those of the agent.
    pub(crate) fn settings(&self) -> TurnSettings {
        settings_of!(TurnSettings, self)
    }
}

/// Words that follow `/v3/sessions/` in a path of their own.
const RESERVED_SLUGS: [&str; 2] = ["import", "reattach"];

fn validate_slug(text: &str, _context: &()) -> garde::Result {
    if RESERVED_SLUGS.contains(&text) {
        return Err(garde::Error::new("is a reserved word"));
    }
    let is_sound = (1..=63).contains(&text.len())
        && !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    match is_sound {
        true => Ok(()),
        false => {
            Err(garde::Error::new("must have 1 to 63 characters of a-z, 0-9 and -, and not start with -"))
        }
    }
}

/// A string, or an object with a `text` field and any other fields.
#[derive(ToSchema)]
#[schema(as = Input)]
#[serde(untagged)]
#[expect(dead_code, reason = "schema of `input`")]
pub(super) enum InputSchema {
    Text(String),
    Object(Map<String, Value>),
}

/// Revision of an agent, by number or by id.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected the number or the id of a revision")]
pub(crate) enum RevisionChoice {
    Number(i32),
    Id(String),
}

/// Changes to a session; absent fields are unchanged.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchSession {
    /// Null removes it.
    #[garde(inner(inner(length(bytes, max = NAME_BYTES_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    /// Null removes it.
    #[garde(inner(inner(custom(validate_slug))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    pub slug: Option<Option<String>>,
    /// Replaces the whole object.
    #[garde(inner(custom(validate_metadata)))]
    pub metadata: Option<Map<String, Value>>,
    /// Only the named limits change, also while a turn runs; null removes a limit.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
    /// Replaces the tools, from the next turn on; null restores those of the agent. Refused while a turn runs or
    /// waits, as are the following fields.
    #[garde(inner(inner(length(max = AGENT_TOOLS_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Vec<AgentTool>>)]
    pub tools: Option<Option<Vec<AgentTool>>>,
    /// Replaces the rules of the session; those of its agent and of the sessions above it stay. Needs
    /// `sessions:approve`.
    #[garde(inner(length(max = RULES_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub permissions: Option<Vec<Rule>>,
    /// Null restores the agent's.
    #[garde(inner(inner(custom(validate_ask))))]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<AskSettings>)]
    pub ask: Option<Option<AskSettings>>,
    /// Null restores the agent's.
    #[garde(inner(inner(custom(validate_loops))))]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<LoopSettings>)]
    pub doom_loop: Option<Option<LoopSettings>>,
    /// Null restores the agent's.
    #[garde(skip)]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Map<String, Value>>)]
    pub output_schema: Option<Option<Map<String, Value>>>,
    /// Null restores the agent's.
    #[garde(inner(inner(range(max = OUTPUT_REPAIRS.1))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<u32>)]
    pub output_repairs: Option<Option<u32>>,
    /// Null restores the agent's.
    #[garde(inner(inner(custom(validate_compaction))))]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<CompactionSettings>)]
    pub compaction: Option<Option<CompactionSettings>>,
    /// Replaces the whole list; null restores the agent's.
    #[garde(inner(inner(length(max = MCP_SERVERS_MAX))))]
    #[serde(default, deserialize_with = "json::present_objects_or_null")]
    #[schema(value_type = Option<Vec<McpServer>>)]
    pub mcp_servers: Option<Option<Vec<McpServer>>>,
    /// Replaces the whole list; null restores the agent's.
    #[garde(inner(inner(length(max = FALLBACK_MODELS_MAX), inner(custom(validate_fallback)))))]
    #[serde(default, deserialize_with = "json::present_objects_or_null")]
    #[schema(value_type = Option<Vec<FallbackModel>>)]
    pub fallback_models: Option<Option<Vec<FallbackModel>>>,
    /// Replaces the whole list; null restores that of the agent. Pins the versions again.
    #[garde(inner(inner(length(max = SKILLS_MAX))))]
    #[serde(default, deserialize_with = "json::present_objects_or_null")]
    #[schema(value_type = Option<Vec<SkillChoice>>)]
    pub skills: Option<Option<Vec<SkillChoice>>>,
}

impl PatchSession {
    /// Returns whether it changes the pinned agent.
    pub(crate) fn changes_agent(&self) -> bool {
        self.tools.is_some() || self.permissions.is_some() || !self.settings().is_none()
    }

    /// Returns the changes of settings.
    pub(crate) fn settings(&self) -> SettingsChange {
        settings_of!(SettingsChange, self)
    }
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    pub id: SessionId,
    pub status: Status,
    /// Refines `status` when one of these applies: `requires_action`, `waiting_for_sessions`, `pending`, `creating_sandbox`, `waiting_for_capacity`, `rotating`,
    /// `paused` or `retrying`; otherwise null.
    #[schema(required)]
    pub phase: Option<&'static str>,
    /// While `phase` is `retrying`: time at which the turn continues.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// Position in the organization's queue of sessions waiting for a worker, starting at 1. Only present
    /// while the session is queued, and only when a single session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<i64>,
    /// `seq` of the newest event.
    pub head: i64,
    /// `seq` of the newest input that a turn has consumed.
    pub input_cursor: i64,
    #[schema(required)]
    pub agent_id: Option<AgentId>,
    #[schema(required)]
    pub credential_id: Option<CredentialId>,
    #[schema(required)]
    pub agent_snapshot: Option<AgentSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSnapshot>,
    /// Repositories cloned into the sandbox, pinned at creation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PinnedSource>,
    #[schema(required)]
    pub last_turn: Option<LastTurn>,
    /// Null until a command needs a sandbox, and after the session is archived.
    #[schema(required)]
    pub sandbox: Option<SandboxView>,
    /// While `phase` is `waiting_for_capacity`: what its sandbox waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_wait: Option<SandboxWaitView>,
    /// Defaults of its commands, and the callers' state.
    pub context: ContextView,
    pub usage: Usage,
    pub limits: Limits,
    /// Usage that counts against the limits so far.
    pub budget_consumed: BudgetConsumed,
    pub metadata: Map<String, Value>,
    #[schema(required)]
    pub key: Option<String>,
    #[schema(required)]
    pub title: Option<String>,
    pub source: Source,
    /// Parent session; it may have been deleted.
    #[schema(required)]
    pub parent_session_id: Option<SessionId>,
    /// Creator of the session.
    pub actor: Actor,
    /// Outcome of the session; null while it continues.
    #[schema(required)]
    pub exit_status: Option<ExitStatus>,
    /// The last time that a caller canceled, stopped or archived it.
    #[schema(required)]
    pub stopped: Option<Stopped>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

impl From<Session> for SessionView {
    fn from(session: Session) -> Self {
        let last_turn = session.last_turn();
        let budget_consumed = BudgetConsumed::of(&session);
        let exit_status = session.exit_status();
        let phase = match session.hold {
            Some(Hold::Paused) => Some("paused"),
            Some(Hold::Stopped | Hold::Canceled) | None if session.is_waiting() => {
                let for_callers = session.status == Status::AwaitingInput;
                Some(if for_callers { "requires_action" } else { "waiting_for_sessions" })
            }
            Some(Hold::Stopped | Hold::Canceled) | None => session.is_unused().then_some("pending"),
        };
        let created = session.created;
        Self {
            id: session.id,
            status: session.status,
            phase,
            next_attempt_at: None,
            queue_position: None,
            head: session.head,
            input_cursor: session.input_cursor,
            agent_id: created.agent_id,
            credential_id: created.credential_id,
            agent_snapshot: created.agent_snapshot,
            environment: created.environment,
            sources: created.sources,
            last_turn,
            sandbox: None,
            sandbox_wait: None,
            context: session.context.into(),
            usage: session.usage,
            limits: created.limits,
            budget_consumed,
            metadata: created.metadata,
            key: created.key,
            title: created.title,
            source: created.source,
            parent_session_id: created.parent_session_id,
            actor: session.actor,
            exit_status,
            stopped: session.stopped,
            client_id: created.client_id,
            slug: created.slug,
            created_at: session.created_at,
            updated_at: session.updated_at,
        }
    }
}

impl SessionView {
    /// Sets the phase to `retrying` while the turn waits for a provider or a sandbox and holds no worker.
    pub fn waiting(self, until: Option<OffsetDateTime>) -> Self {
        let phase = until.map(|_| "retrying").or(self.phase);
        Self { phase, next_attempt_at: until, ..self }
    }
}

/// New session, with a client token for it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedSession {
    pub session: SessionView,
    /// Client token that can read and steer only this session; returned once. Null if a repeated create
    /// finds the session archived.
    #[schema(required)]
    pub client_token: Option<String>,
    /// Destinations created with the session; their generated secrets are returned once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationView>,
    /// Repositories that will be cloned for the session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceView>,
}

pub(super) fn text_or_object(input: &Option<Value>, _context: &()) -> garde::Result {
    let text = match input {
        None => return Ok(()),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(fields)) => {
            let bytes = object.to_string().len();
            if bytes > TEXT_BYTES_MAX {
                return Err(garde::Error::new(format!(
                    "is {bytes} bytes; at most {TEXT_BYTES_MAX} are allowed"
                )));
            }
            return match fields.get("text") {
                None | Some(Value::String(_)) => Ok(()),
                Some(_) => Err(garde::Error::new("has a `text` field that is not a string")),
            };
        }
        Some(_) => return Err(garde::Error::new("must be a string or an object")),
    };
    match text.len() {
        0 => Err(garde::Error::new("is empty")),
        bytes if bytes > TEXT_BYTES_MAX => {
            Err(garde::Error::new(format!("is {bytes} bytes; at most {TEXT_BYTES_MAX} are allowed")))
        }
        _ => Ok(()),
    }
}

/// Response to an import.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImportedSession {
    pub session: SessionView,
}
