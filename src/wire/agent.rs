//! Request and response bodies of agents.

use garde::Validate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{
    environment::validate_environment_choice, limits::LimitsInput, settings_of, source::validate_sources,
    validate_numbers,
};
use crate::{
    base::{
        json,
        limit::{
            ACTION_EXPIRES_SECONDS, AGENT_TOOLS_MAX, COMPACTION_INSTRUCTIONS_BYTES_MAX, CONTEXT_TOKENS,
            CREDENTIAL_BYTES_MAX, FALLBACK_MODELS_MAX, LOOP_REPEATS, MCP_SERVERS_MAX,
            MODEL_MAX_TOKENS_DEFAULT, MODEL_THINKING_TOKENS_MIN, NAME_BYTES_MAX, OUTPUT_REPAIRS, RULES_MAX,
            SKILLS_MAX, TEXT_BYTES_MAX,
        },
    },
    domain::{
        AgentId, CredentialId, RevisionId,
        compaction::{CompactionSettings, THRESHOLD},
        conversation::ModelOptions,
        custom_tool::AgentTool,
        environment::EnvironmentChoice,
        fallback::FallbackModel,
        mcp::McpServer,
        permission::{Permissions, Rule},
        session::{AgentSnapshot, Limits},
        skill::{PinnedSkill, SkillChoice},
        source::Repository,
        spend::SpendCaps,
        turn_settings::{AskSettings, LoopSettings, SettingsChange, TurnSettings},
    },
};

/// Agent to create. Returns the existing agent if one with this name has the same configuration.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateAgent {
    /// Unique within the organization.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub name: String,
    /// System prompt.
    #[garde(length(bytes, max = TEXT_BYTES_MAX))]
    pub prompt: String,
    /// `provider/model`, for example `anthropic/claude-sonnet-4-5` or `scripted/demo`.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX))]
    pub model: String,
    #[garde(custom(validate_numbers), custom(validate_model_options))]
    #[serde(default, deserialize_with = "json::object")]
    pub model_options: ModelOptions,
    /// `builtin`, the only runtime, which is the default.
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub runtime: Option<String>,
    /// Provider key; stored sealed as a separate credential. Mutually exclusive with `credential`.
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub key: Option<String>,
    /// Id or name of a stored credential; `credential_id` is accepted too. Mutually exclusive with `key`.
    #[serde(alias = "credential_id")]
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub credential: Option<String>,
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object")]
    pub limits: LimitsInput,
    /// Turns start only while the agent is enabled.
    #[garde(skip)]
    #[serde(default = "super::yes")]
    #[schema(default = true)]
    pub enabled: bool,
    /// Spend caps over trailing windows of days, for all sessions of the agent together.
    #[garde(custom(validate_numbers))]
    #[serde(default, deserialize_with = "json::object")]
    pub spend_caps: SpendCaps,
    /// The allowed tools: names, and tools that a caller runs (`type`: `custom`), which follow the others. Absent
    /// allows all tools of the service.
    #[garde(inner(length(max = AGENT_TOOLS_MAX)))]
    pub tools: Option<Vec<AgentTool>>,
    /// Rules for which calls run, wait for a person, or are refused. The last one that matches decides.
    #[garde(length(max = RULES_MAX))]
    #[serde(default, deserialize_with = "json::objects")]
    pub permissions: Vec<Rule>,
    /// How the agent asks its caller.
    #[garde(inner(custom(validate_ask)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub ask: Option<AskSettings>,
    /// Consequence of making the same calls again and again.
    #[garde(inner(custom(validate_loops)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub doom_loop: Option<LoopSettings>,
    /// JSON Schema (2020-12) of the output of each turn; `type` is `object`.
    #[garde(skip)]
    pub output_schema: Option<Map<String, Value>>,
    /// Rejected outputs of a turn before it ends as `output_invalid` (default 2).
    #[garde(inner(range(max = OUTPUT_REPAIRS.1)))]
    pub output_repairs: Option<u32>,
    /// Shortening of a history that is almost too long.
    #[garde(inner(custom(validate_compaction)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub compaction: Option<CompactionSettings>,
    /// MCP servers whose tools the agent may call.
    #[garde(inner(length(max = MCP_SERVERS_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub mcp_servers: Option<Vec<McpServer>>,
    /// Models that are called, in this order, while the model is not available.
    #[garde(inner(length(max = FALLBACK_MODELS_MAX), inner(custom(validate_fallback))))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub fallback_models: Option<Vec<FallbackModel>>,
    /// Skills that the agent may read.
    #[garde(inner(length(max = SKILLS_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub skills: Option<Vec<SkillChoice>>,
    /// Environment of its sessions that name none: id, name, or an inline environment. Absent: the default one.
    #[garde(custom(validate_environment_choice))]
    pub environment: Option<EnvironmentChoice>,
    /// Repositories cloned for its sessions. They override repositories of the environment with the same
    /// name.
    #[garde(custom(validate_sources))]
    #[serde(default, deserialize_with = "json::objects")]
    pub sources: Vec<Repository>,
}

/// Changes to an agent; absent fields are unchanged.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchAgent {
    #[garde(inner(length(bytes, max = TEXT_BYTES_MAX)))]
    pub prompt: Option<String>,
    #[garde(inner(length(bytes, min = 1, max = NAME_BYTES_MAX)))]
    pub model: Option<String>,
    #[garde(custom(validate_numbers), inner(custom(validate_model_options)))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub model_options: Option<ModelOptions>,
    #[garde(inner(length(bytes, min = 1, max = CREDENTIAL_BYTES_MAX)))]
    pub key: Option<String>,
    /// Id or name. Null falls back to the organization's default credential; `credential_id` is accepted too.
    #[garde(inner(inner(length(bytes, min = 1, max = NAME_BYTES_MAX))))]
    #[serde(default, alias = "credential_id", deserialize_with = "super::present")]
    #[schema(value_type = Option<String>)]
    pub credential: Option<Option<String>>,
    #[garde(dive)]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub limits: Option<LimitsInput>,
    #[garde(skip)]
    pub enabled: Option<bool>,
    /// Replaces all three caps; an omitted cap is removed.
    #[garde(custom(validate_numbers))]
    #[serde(default, deserialize_with = "json::object_or_null")]
    pub spend_caps: Option<SpendCaps>,
    #[garde(inner(inner(length(max = AGENT_TOOLS_MAX))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Vec<AgentTool>>)]
    pub tools: Option<Option<Vec<AgentTool>>>,
    /// Replaces the whole list.
    #[garde(inner(length(max = RULES_MAX)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub permissions: Option<Vec<Rule>>,
    /// Null restores the default.
    #[garde(inner(inner(custom(validate_ask))))]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<AskSettings>)]
    pub ask: Option<Option<AskSettings>>,
    /// Null restores the default.
    #[garde(inner(inner(custom(validate_loops))))]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<LoopSettings>)]
    pub doom_loop: Option<Option<LoopSettings>>,
    /// Null removes it.
    #[garde(skip)]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<Map<String, Value>>)]
    pub output_schema: Option<Option<Map<String, Value>>>,
    /// Null restores the default.
    #[garde(inner(inner(range(max = OUTPUT_REPAIRS.1))))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<u32>)]
    pub output_repairs: Option<Option<u32>>,
    /// Null restores the default.
    #[garde(inner(inner(custom(validate_compaction))))]
    #[serde(default, deserialize_with = "json::present_object_or_null")]
    #[schema(value_type = Option<CompactionSettings>)]
    pub compaction: Option<Option<CompactionSettings>>,
    /// Replaces the whole list; null removes it.
    #[garde(inner(inner(length(max = MCP_SERVERS_MAX))))]
    #[serde(default, deserialize_with = "json::present_objects_or_null")]
    #[schema(value_type = Option<Vec<McpServer>>)]
    pub mcp_servers: Option<Option<Vec<McpServer>>>,
    /// Replaces the whole list; null removes it.
    #[garde(inner(inner(length(max = FALLBACK_MODELS_MAX), inner(custom(validate_fallback)))))]
    #[serde(default, deserialize_with = "json::present_objects_or_null")]
    #[schema(value_type = Option<Vec<FallbackModel>>)]
    pub fallback_models: Option<Option<Vec<FallbackModel>>>,
    /// Replaces the whole list; null removes it.
    #[garde(inner(inner(length(max = SKILLS_MAX))))]
    #[serde(default, deserialize_with = "json::present_objects_or_null")]
    #[schema(value_type = Option<Vec<SkillChoice>>)]
    pub skills: Option<Option<Vec<SkillChoice>>>,
    /// Null restores the default.
    #[garde(inner(custom(validate_environment_choice)))]
    #[serde(default, deserialize_with = "super::present")]
    #[schema(value_type = Option<EnvironmentChoice>)]
    pub environment: Option<Option<EnvironmentChoice>>,
    /// Replaces the whole list.
    #[garde(inner(custom(validate_sources)))]
    #[serde(default, deserialize_with = "json::objects_or_null")]
    pub sources: Option<Vec<Repository>>,
}

impl CreateAgent {
    /// Returns the settings of its turns.
    pub(crate) fn settings(&self) -> TurnSettings {
        settings_of!(TurnSettings, self)
    }
}

impl PatchAgent {
    /// Returns the changes of settings.
    pub(crate) fn settings(&self) -> SettingsChange {
        settings_of!(SettingsChange, self)
    }
}

/// Rejects model options that the provider would reject on every call.
fn validate_model_options(options: &ModelOptions, _context: &()) -> garde::Result {
    let max_tokens = options.max_tokens.unwrap_or(MODEL_MAX_TOKENS_DEFAULT);
    if max_tokens == 0 {
        return Err(garde::Error::new("`max_tokens` must be 1 or more"));
    }
    let (min, max) = CONTEXT_TOKENS;
    if let Some(window) = options.context_tokens
        && (!(min..=max).contains(&window) || window <= max_tokens)
    {
        let message =
            format!("`context_tokens` must be {min} to {max}, and above `max_tokens` ({max_tokens})");
        return Err(garde::Error::new(message));
    }
    match options.thinking {
        Some(thinking) if !(MODEL_THINKING_TOKENS_MIN..max_tokens).contains(&thinking.budget_tokens) => {
            let message = format!(
                "`thinking.budget_tokens` must be {MODEL_THINKING_TOKENS_MIN} or more and below `max_tokens` ({max_tokens})"
            );
            Err(garde::Error::new(message))
        }
        Some(_) | None => Ok(()),
    }
}

/// Rejects options of a fallback model that its provider would reject on every call.
pub(super) fn validate_fallback(fallback: &FallbackModel, context: &()) -> garde::Result {
    validate_numbers(fallback, context)?;
    fallback.model_options.as_ref().map_or(Ok(()), |options| validate_model_options(options, context))
}

/// Rejects a time to answer that no action may have.
pub(super) fn validate_ask(ask: &AskSettings, _context: &()) -> garde::Result {
    let (min, _, max) = ACTION_EXPIRES_SECONDS;
    if (min..=max).contains(&ask.expires_seconds()) {
        return Ok(());
    }
    Err(garde::Error::new(format!("`expires_seconds` must be {min} to {max}")))
}

/// Rejects a threshold that no history can be kept below, and long instructions.
pub(super) fn validate_compaction(settings: &CompactionSettings, _context: &()) -> garde::Result {
    let (min, _, max) = THRESHOLD;
    if !(min..=max).contains(&settings.threshold()) {
        return Err(garde::Error::new(format!("`threshold` must be {min} to {max}")));
    }
    if settings.instructions.as_ref().is_some_and(|words| words.len() > COMPACTION_INSTRUCTIONS_BYTES_MAX) {
        let message = format!("`instructions` has more than {COMPACTION_INSTRUCTIONS_BYTES_MAX} bytes");
        return Err(garde::Error::new(message));
    }
    Ok(())
}

/// Rejects a number of repetitions that is none, or is never reached.
pub(super) fn validate_loops(loops: &LoopSettings, _context: &()) -> garde::Result {
    let (min, _, max) = LOOP_REPEATS;
    if (min..=max).contains(&loops.repeats()) {
        return Ok(());
    }
    Err(garde::Error::new(format!("`repeats` must be {min} to {max}")))
}

/// An agent with its active revision.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Agent)]
pub(crate) struct AgentView {
    pub id: AgentId,
    pub name: String,
    pub prompt: String,
    /// SHA-256 of the prompt, hex-encoded.
    pub prompt_hash: String,
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    /// Number of the active revision.
    pub revision: i32,
    pub active_revision: RevisionRef,
    #[schema(required)]
    pub credential_id: Option<CredentialId>,
    pub limits: Limits,
    pub enabled: bool,
    pub spend_caps: SpendCaps,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Repository>,
    #[schema(required)]
    pub tools: Option<Vec<AgentTool>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Rule>,
    #[serde(flatten)]
    pub settings: TurnSettings,
    /// Environment of its sessions that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentChoice>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// The active revision.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RevisionRef {
    pub id: RevisionId,
    pub number: i32,
    pub digest: String,
}

/// An immutable revision of an agent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Revision)]
pub(crate) struct RevisionView {
    pub id: RevisionId,
    pub agent_id: AgentId,
    /// Number within the agent, starting at 1.
    pub number: i32,
    pub prompt: String,
    pub prompt_hash: String,
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    #[schema(required)]
    pub tools: Option<Vec<AgentTool>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Rule>,
    #[serde(flatten)]
    pub settings: TurnSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentChoice>,
    /// SHA-256 of the configuration, hex-encoded.
    pub digest: String,
    /// Whether new sessions use this revision.
    pub active: bool,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// The agent that a session pinned at its creation. It stays readable after the agent was changed or deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PinnedAgent)]
pub(crate) struct PinnedAgentView {
    pub agent_id: AgentId,
    pub revision_id: RevisionId,
    /// Number of the revision within the agent.
    pub revision: i32,
    /// Name of the agent when the session was created.
    pub name: String,
    pub prompt: String,
    /// SHA-256 of the prompt, hex-encoded.
    pub prompt_hash: String,
    /// Model of the session, which may override that of the revision.
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    #[schema(required)]
    pub tools: Option<Vec<AgentTool>>,
    /// Those of the agent, of the session, and of the sessions above it.
    #[serde(skip_serializing_if = "Permissions::is_empty")]
    #[schema(required = false)]
    pub permissions: Permissions,
    #[serde(flatten)]
    pub settings: TurnSettings,
    /// The versions of `skills` that the session has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub pinned_skills: Vec<PinnedSkill>,
}

impl PinnedAgentView {
    /// Combines the snapshot of a session with the prompt of its revision.
    pub(crate) fn of(agent_id: AgentId, snapshot: AgentSnapshot, prompt: String) -> Self {
        let AgentSnapshot {
            revision_id,
            revision,
            name,
            prompt_hash,
            model,
            model_options,
            runtime,
            tools,
            permissions,
            settings,
            pinned_skills,
        } = snapshot;
        Self {
            agent_id,
            revision_id,
            revision,
            name,
            prompt,
            prompt_hash,
            model,
            model_options,
            runtime,
            tools,
            permissions,
            settings,
            pinned_skills,
        }
    }
}
