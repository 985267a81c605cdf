//! Bounds of actions and of the tools that callers run.

/// Time in which a caller must answer an action, in seconds: min, default and max.
pub const ACTION_EXPIRES_SECONDS: (u64, u64, u64) = (10, 86_400, 2_592_000);
/// Time for which one caller may claim an action, in seconds: default and max.
pub const ACTION_CLAIM_SECONDS: (u64, u64) = (60, 600);
/// Events of one request to `POST /v3/sessions/:id/events`.
pub const EVENTS_SENT_MAX: usize = 64;
/// Parts of one result of a caller.
pub const RESULT_CONTENT_MAX: usize = 64;
/// Tools of an agent that callers run.
pub const CUSTOM_TOOLS_MAX: usize = 64;
/// Tools of an agent.
pub const AGENT_TOOLS_MAX: usize = 256;
/// Max size of the JSON Schema of such a tool, in bytes.
pub const TOOL_SCHEMA_BYTES_MAX: usize = 16 << 10;
/// Max depth of that schema, with its references followed.
pub const TOOL_SCHEMA_DEPTH_MAX: usize = 32;
/// Max number of subschemas and values that a schema has, with its references followed: references to references
/// multiply.
pub const TOOL_SCHEMA_NODES_MAX: usize = 10_000;
/// Parts of a schema times values of what is validated against it: about a second.
pub const TOOL_SCHEMA_WORK_MAX: usize = 20_000_000;
/// Max size of one compiled pattern of a schema, in bytes.
pub const TOOL_PATTERN_BYTES_MAX: usize = 2 << 20;
/// Max size of the compiled patterns of all such tools of an agent, in bytes. Time and memory of a check grow with it.
pub const TOOL_PATTERNS_BYTES_MAX: usize = 4 << 20;
/// Max length of such a tool's description, in bytes.
pub const CUSTOM_TOOL_DESCRIPTION_BYTES_MAX: usize = 8 << 10;
/// Rules of an agent, or of a session.
pub const RULES_MAX: usize = 64;
/// Max length of a prefix, path or host of a rule, in bytes.
pub const RULE_TEXT_BYTES_MAX: usize = 1 << 10;
/// Rules that are offered for one confirmation.
pub const GRANTABLE_MAX: usize = 16;
/// Rules that are granted for a session.
pub const GRANTS_MAX: usize = 64;
/// Max length of the words with which a person rejects a call, as JSON, in bytes.
pub const CONFIRMATION_MESSAGE_BYTES_MAX: usize = 8 << 10;
