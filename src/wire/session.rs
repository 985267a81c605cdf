//! Sessions and messages on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    budget::BudgetConsumed,
    context::ContextInput,
    environment::sound_choice,
    limits::LimitsInput,
    sandbox::SandboxView,
    small_object,
    source::{SourceView, sound_sources},
    webhook::{CreateDestination, DestinationView},
};
use crate::{
    base::{
        json,
        limit::{
            DESTINATIONS_MAX, IDEMPOTENCY_KEY_BYTES_MAX, NAME_BYTES_MAX, NET_URL_BYTES_MAX, TEXT_BYTES_MAX,
        },
    },
    domain::{
        Actor, AgentId, CredentialId, EventId, Level, Session, SessionId, Status, Usage,
        environment::{EnvironmentChoice, EnvironmentSnapshot},
        exit::ExitStatus,
        session::{AgentSnapshot, Hold, Limits, Source, Stopped},
        source::{PinnedSource, Repository},
        turn::LastTurn,
    },
};

/// A session to create.
#[derive(Clone, Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Id or name. Without one the session is a log without a reader.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub agent: Option<String>,
    /// Text, or an object whose `text` is it. Without input no turn starts.
    #[garde(custom(text_or_object))]
    #[schema(value_type = Option<InputSchema>)]
    pub input: Option<Value>,
    /// One session per key: the same one is returned for the same body.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub key: Option<String>,
    /// Overrides the agent's model for this session.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub model: Option<String>,
    /// Number or id of a revision of the agent; absent for the active one.
    #[garde(skip)]
    pub revision: Option<RevisionChoice>,
    /// In front of the agent's own; null leaves one of those out.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub limits: LimitsInput,
    /// For routing; returned verbatim, in webhooks too.
    #[garde(custom(searchable))]
    #[serde(default)]
    pub metadata: Map<String, Value>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    pub title: Option<String>,
    /// Short form of one destination.
    #[garde(inner(length(bytes, min = 1, max = NET_URL_BYTES_MAX)))]
    pub webhook: Option<String>,
    #[garde(length(max = DESTINATIONS_MAX), dive)]
    #[serde(default, deserialize_with = "json::objects")]
    pub destinations: Vec<CreateDestination>,
    /// Names the client that made it.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub client_id: Option<String>,
    /// A name for people, unique among the organization's open sessions: 1 to 63 lower-case
    /// letters, digits and hyphens. `GET /v3/sessions/:id` takes it in the place of the id.
    #[garde(inner(custom(sound_slug)))]
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    pub slug: Option<String>,
    /// What its sandbox is and may reach, pinned for good: id or name of an environment, or
    /// an object. Without one it reaches nothing.
    #[garde(custom(sound_choice))]
    pub environment: Option<EnvironmentChoice>,
    /// Repositories that are cloned into its sandbox, in front of those of the environment
    /// and the agent that have the same names.
    #[garde(custom(sound_sources))]
    #[serde(default, deserialize_with = "json::objects")]
    pub sources: Vec<Repository>,
    /// What its commands start with.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub context: ContextInput,
    /// The session under which it is started: what it uses counts against the limits
    /// `tokens`, `cost_micros` and `tool_calls` of that one and of those above it. It
    /// inherits nothing else.
    #[garde(skip)]
    pub parent_session_id: Option<SessionId>,
}

fn sound_slug(text: &str, _context: &()) -> garde::Result {
    let is_sound = (1..=63).contains(&text.len())
        && !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    match is_sound {
        true => Ok(()),
        false => {
            Err(garde::Error::new("is 1 to 63 lower-case letters, digits and hyphens, not first a hyphen"))
        }
    }
}

/// Text, or an object that carries it as `text` beside whatever else is of use.
#[derive(ToSchema)]
#[schema(as = Input)]
#[serde(untagged)]
#[allow(dead_code)] // says what `input` takes
pub(super) enum InputSchema {
    Text(String),
    Object(Map<String, Value>),
}

/// A revision by its number or its id.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RevisionChoice {
    Number(i32),
    Id(String),
}

/// What may change of a session; absent fields stay.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSession {
    /// Null removes it.
    #[garde(inner(inner(length(bytes, max = NAME_BYTES_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    /// Null removes it.
    #[garde(inner(inner(custom(sound_slug))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    pub slug: Option<Option<String>>,
    /// Replaces the whole object.
    #[garde(inner(custom(searchable)))]
    pub metadata: Option<Map<String, Value>>,
    /// Only the limits that are named change, also while a turn runs; null removes one.
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
}

/// A message to the agent: `text`, or an `envelope` that carries it.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Steer {
    #[garde(inner(length(bytes, min = 1, max = TEXT_BYTES_MAX)))]
    pub text: Option<String>,
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub envelope: Option<Envelope>,
    /// The same key again is the same message.
    #[garde(inner(length(bytes, min = 1, max = IDEMPOTENCY_KEY_BYTES_MAX)))]
    pub idempotency_key: Option<String>,
    /// What happens to a turn that runs.
    #[garde(skip)]
    #[serde(default)]
    pub mode: SteerMode,
}

/// What a message does to a running turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SteerMode {
    /// Waits for the next turn.
    #[default]
    Queue,
    /// Ends the running turn at its next checkpoint first.
    Interrupt,
}

/// A message as another system delivered it.
#[derive(Debug, Deserialize, Serialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The source's own id; with `source`, the same one again is the same message.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    #[garde(length(bytes, min = 1, max = TEXT_BYTES_MAX))]
    pub text: String,
    /// What the message refers to, verbatim.
    #[garde(custom(small_object))]
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub refs: Map<String, Value>,
    /// The source's own form of it, verbatim.
    #[garde(custom(small_value))]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    pub raw: Option<Value>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    pub id: SessionId,
    pub status: Status,
    /// The finer word while one is true, as in `pending` or `retrying`.
    #[schema(required)]
    pub phase: Option<&'static str>,
    /// While `phase` is `retrying`: when the turn goes on.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// Place among the organization's sessions that wait for a worker, from 1; only
    /// while this one is queued, and only when it is read by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<i64>,
    /// `seq` of the newest event.
    pub head: i64,
    /// `seq` of the newest input that a turn has taken.
    pub input_cursor: i64,
    #[schema(required)]
    pub agent_id: Option<AgentId>,
    #[schema(required)]
    pub credential_id: Option<CredentialId>,
    #[schema(required)]
    pub agent_snapshot: Option<AgentSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSnapshot>,
    /// The repositories that are cloned into its sandbox, pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PinnedSource>,
    #[schema(required)]
    pub last_turn: Option<LastTurn>,
    /// Null until a command needs one, and once the session is archived.
    #[schema(required)]
    pub sandbox: Option<SandboxView>,
    pub usage: Usage,
    pub limits: Limits,
    /// What counts against them so far.
    pub budget_consumed: BudgetConsumed,
    pub metadata: Map<String, Value>,
    #[schema(required)]
    pub key: Option<String>,
    #[schema(required)]
    pub title: Option<String>,
    pub source: Source,
    /// The session under which it was started; that one may be deleted.
    #[schema(required)]
    pub parent_session_id: Option<SessionId>,
    /// Who made it.
    pub actor: Actor,
    /// What became of it, in one word; null while it goes on.
    #[schema(required)]
    pub exit_status: Option<ExitStatus>,
    /// The last time that a caller canceled, stopped or closed it.
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
        let never_ran = session.status == Status::Idle && session.input_head == 0;
        let last_turn = session.last_turn();
        let budget_consumed = BudgetConsumed::of(&session);
        let exit_status = session.exit_status();
        let created = session.created;
        Self {
            id: session.id,
            status: session.status,
            phase: match session.hold {
                Some(Hold::Paused) => Some("paused"),
                Some(Hold::Stopped) | None => never_ran.then_some("pending"),
            },
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
    /// The same while its turn waits for a provider or a sandbox and holds no worker.
    pub fn waiting(self, until: Option<OffsetDateTime>) -> Self {
        let phase = until.map(|_| "retrying").or(self.phase);
        Self { phase, next_attempt_at: until, ..self }
    }
}

/// What a session used: in all, and of each model.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionUsage {
    pub usage: Usage,
    pub models: Vec<ModelUsage>,
}

/// What was used of one model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelUsage {
    /// `provider/model`; null in a session without an agent.
    #[schema(required)]
    pub model: Option<String>,
    pub usage: Usage,
}

/// A new session and the browser's key to it.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedSession {
    pub session: SessionView,
    /// Reads and steers this session only; shown once. Null when a repeated create
    /// finds the session archived.
    #[schema(required)]
    pub client_token: Option<String>,
    /// The destinations that were made with it; their secrets are shown once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationView>,
    /// What will be cloned for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceView>,
}

/// What a message became.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Steered {
    pub event: EventRef,
    pub session: SessionRef,
}

/// An event by its id and place.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EventRef {
    pub id: EventId,
    pub seq: i64,
}

/// A session by its id, with what a caller needs to follow it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionRef {
    pub id: SessionId,
    pub status: Status,
    pub head: i64,
}

/// A client token to mint.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MintClientToken {
    /// `read` and `steer`; both when absent.
    #[garde(inner(length(min = 1, max = 2)))]
    pub scopes: Option<Vec<ClientScope>>,
    /// Life in seconds: 60 to 86400, clamped; 3600 when absent.
    #[garde(skip)]
    pub ttl: Option<i64>,
    /// How far it sees: `progress` when absent.
    #[garde(skip)]
    pub level: Option<Level>,
}

/// What a client token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientScope {
    Read,
    Steer,
}

/// A client token, shown once.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ClientToken)]
pub struct ClientTokenView {
    pub token: String,
    /// The same, under the name that creation uses.
    pub client_token: String,
    pub scopes: Vec<ClientScope>,
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

pub(super) fn text_or_object(input: &Option<Value>, _context: &()) -> garde::Result {
    let text = match input {
        None => return Ok(()),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(fields)) => {
            let bytes = object.to_string().len();
            if bytes > TEXT_BYTES_MAX {
                return Err(garde::Error::new(format!(
                    "is {bytes} bytes; at most {TEXT_BYTES_MAX} are taken"
                )));
            }
            return match fields.get("text") {
                None | Some(Value::String(_)) => Ok(()),
                Some(_) => Err(garde::Error::new("has a `text` that is not a string")),
            };
        }
        Some(_) => return Err(garde::Error::new("must be a string or an object")),
    };
    match text.len() {
        0 => Err(garde::Error::new("is empty")),
        bytes if bytes > TEXT_BYTES_MAX => {
            Err(garde::Error::new(format!("is {bytes} bytes; at most {TEXT_BYTES_MAX} are taken")))
        }
        _ => Ok(()),
    }
}

/// Small, and without the one character at which a search in it would fail.
pub(super) fn searchable(metadata: &Map<String, Value>, context: &()) -> garde::Result {
    fn has_nul(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(has_nul),
            Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    if metadata.iter().any(|(name, value)| name.contains('\0') || has_nul(value)) {
        return Err(garde::Error::new("has the character U+0000, which cannot be stored"));
    }
    small_object(metadata, context)
}

fn small_value(value: &Option<Value>, context: &()) -> garde::Result {
    match value {
        Some(value) => small_object(&Map::from_iter([("raw".to_owned(), value.clone())]), context),
        None => Ok(()),
    }
}

/// The answer to an import.
#[derive(Debug, Serialize, ToSchema)]
pub struct ImportedSession {
    pub session: SessionView,
}
