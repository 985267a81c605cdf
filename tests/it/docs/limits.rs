//! docs/limits.md held against `base::limit`: each bound with its number.

use std::collections::BTreeSet;

use sojourn::base::limit;

use super::sources_of;
use crate::support::pages::text;

fn bytes(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        // Round only where it is no other number.
        bytes if bytes % 1_024 == 0 && bytes > 4_096 || bytes == 1_024 => format!("{} KiB", bytes >> 10),
        bytes => format!("{} bytes", grouped(bytes as u64)),
    }
}

fn count(count: u64) -> String {
    grouped(count)
}

fn seconds(time: std::time::Duration) -> String {
    format!("{} s", time.as_secs())
}

/// Every bound of docs/limits.md, as it stands there.
fn shown() -> Vec<(&'static str, String)> {
    [of_root_file_systems(), of_requests(), of_things(), of_actions(), of_mcp(), of_skills(), of_snapshots()]
        .concat()
}

fn of_snapshots() -> Vec<(&'static str, String)> {
    vec![
        ("SNAPSHOT_PATHS_MAX", count(limit::SNAPSHOT_PATHS_MAX)),
        ("SNAPSHOT_BYTES_MAX", bytes(limit::SNAPSHOT_BYTES_MAX as usize)),
        ("SNAPSHOT_CHANGED_BYTES_MAX", bytes(limit::SNAPSHOT_CHANGED_BYTES_MAX as usize)),
        ("SNAPSHOT_PACK_BYTES_MAX", bytes(limit::SNAPSHOT_PACK_BYTES_MAX as usize)),
        ("OBJECT_UNUSED_TTL", count(limit::OBJECT_UNUSED_TTL.as_secs() / 3_600)),
    ]
}

fn of_skills() -> Vec<(&'static str, String)> {
    vec![
        ("SKILLS_MAX", count(limit::SKILLS_MAX as u64)),
        ("SKILL_NAME_BYTES_MAX", bytes(limit::SKILL_NAME_BYTES_MAX)),
        ("SKILL_DESCRIPTION_CHARS_MAX", count(limit::SKILL_DESCRIPTION_CHARS_MAX as u64)),
        ("SKILL_HEADER_BYTES_MAX", bytes(limit::SKILL_HEADER_BYTES_MAX)),
        ("SKILL_BYTES_MAX", bytes(limit::SKILL_BYTES_MAX)),
        ("SKILL_FILES_MAX", count(limit::SKILL_FILES_MAX as u64)),
        ("SKILL_PATH_BYTES_MAX", bytes(limit::SKILL_PATH_BYTES_MAX)),
        ("SKILL_DEPTH_MAX", count(limit::SKILL_DEPTH_MAX as u64)),
        ("ORG_SKILLS_BYTES_MAX", bytes(limit::ORG_SKILLS_BYTES_MAX as usize)),
    ]
}

fn of_mcp() -> Vec<(&'static str, String)> {
    vec![
        ("MCP_SERVERS_MAX", count(limit::MCP_SERVERS_MAX as u64)),
        ("MCP_NAME_BYTES_MAX", bytes(limit::MCP_NAME_BYTES_MAX)),
        ("MCP_CALL_SECONDS", count(limit::MCP_CALL_SECONDS.1)),
        ("MCP_LIST_TIMEOUT", seconds(limit::MCP_LIST_TIMEOUT)),
        ("MCP_COMMAND_WORDS_MAX", count(limit::MCP_COMMAND_WORDS_MAX as u64)),
        ("MCP_COMMAND_BYTES_MAX", bytes(limit::MCP_COMMAND_BYTES_MAX)),
        ("MCP_PROCESS_LIST_TIMEOUT", seconds(limit::MCP_PROCESS_LIST_TIMEOUT)),
        ("MCP_PROCESSES_MAX", count(limit::MCP_PROCESSES_MAX.into())),
        ("MCP_PROCESS_BYTES_MAX", bytes(limit::MCP_PROCESS_BYTES_MAX as usize)),
        ("MCP_LIST_BYTES_MAX", bytes(limit::MCP_LIST_BYTES_MAX)),
        ("MCP_PAGES_MAX", count(limit::MCP_PAGES_MAX as u64)),
        ("MCP_TOOLS_MAX", count(limit::MCP_TOOLS_MAX as u64)),
        ("MCP_LISTS_PER_TURN_MAX", count(limit::MCP_LISTS_PER_TURN_MAX.into())),
        ("MCP_DESCRIPTION_BYTES_MAX", bytes(limit::MCP_DESCRIPTION_BYTES_MAX)),
        ("MCP_MESSAGE_BYTES_MAX", bytes(limit::MCP_MESSAGE_BYTES_MAX)),
        ("MCP_NOTICES_MAX", count(limit::MCP_NOTICES_MAX.into())),
        ("MCP_IMAGES_MAX", count(limit::MCP_IMAGES_MAX as u64)),
        ("MCP_STREAMS_MAX", count(limit::MCP_STREAMS_MAX.into())),
        ("MCP_SKIPPED_MAX", count(limit::MCP_SKIPPED_MAX as u64)),
        ("MCP_RESULT_FILE_TIMEOUT", seconds(limit::MCP_RESULT_FILE_TIMEOUT)),
        ("OAUTH_RESPONSE_BYTES_MAX", bytes(limit::OAUTH_RESPONSE_BYTES_MAX)),
        ("OAUTH_REQUEST_TIMEOUT", seconds(limit::OAUTH_REQUEST_TIMEOUT)),
        ("OAUTH_WAIT", seconds(limit::OAUTH_WAIT)),
        ("OAUTH_EXPIRY_MARGIN", seconds(limit::OAUTH_EXPIRY_MARGIN)),
        ("ELICITATIONS_MAX", count(limit::ELICITATIONS_MAX.into())),
        ("ELICITATION_QUESTIONS_MAX", count(limit::ELICITATION_QUESTIONS_MAX as u64)),
        ("ELICITATION_BYTES_MAX", bytes(limit::ELICITATION_BYTES_MAX)),
        ("ELICITATION_REQUEST_BYTES_MAX", bytes(limit::ELICITATION_REQUEST_BYTES_MAX)),
        ("ELICITATION_STATE_BYTES_MAX", bytes(limit::ELICITATION_STATE_BYTES_MAX)),
        ("MCP_REDIRECTS_MAX", count(limit::MCP_REDIRECTS_MAX as u64)),
        ("MCP_BREAKER_FAILURES", count(limit::MCP_BREAKER_FAILURES as u64)),
    ]
}

fn of_actions() -> Vec<(&'static str, String)> {
    vec![
        ("ACTION_EXPIRES_SECONDS", count(limit::ACTION_EXPIRES_SECONDS.1)),
        ("ACTION_CLAIM_SECONDS", count(limit::ACTION_CLAIM_SECONDS.1)),
        ("EVENTS_SENT_MAX", count(limit::EVENTS_SENT_MAX as u64)),
        ("RESULT_CONTENT_MAX", count(limit::RESULT_CONTENT_MAX as u64)),
        ("FALLBACK_MODELS_MAX", count(limit::FALLBACK_MODELS_MAX as u64)),
        ("AGENT_TOOLS_MAX", count(limit::AGENT_TOOLS_MAX as u64)),
        ("CUSTOM_TOOLS_MAX", count(limit::CUSTOM_TOOLS_MAX as u64)),
        ("TOOL_SCHEMA_BYTES_MAX", bytes(limit::TOOL_SCHEMA_BYTES_MAX)),
        ("TOOL_SCHEMA_DEPTH_MAX", count(limit::TOOL_SCHEMA_DEPTH_MAX as u64)),
        ("TOOL_SCHEMA_NODES_MAX", count(limit::TOOL_SCHEMA_NODES_MAX as u64)),
        ("TOOL_PATTERN_BYTES_MAX", bytes(limit::TOOL_PATTERN_BYTES_MAX)),
        ("TOOL_PATTERNS_BYTES_MAX", bytes(limit::TOOL_PATTERNS_BYTES_MAX)),
        ("RULES_MAX", count(limit::RULES_MAX as u64)),
        ("RULE_TEXT_BYTES_MAX", bytes(limit::RULE_TEXT_BYTES_MAX)),
        ("GRANTABLE_MAX", count(limit::GRANTABLE_MAX as u64)),
        ("GRANTS_MAX", count(limit::GRANTS_MAX as u64)),
        ("CONFIRMATION_MESSAGE_BYTES_MAX", bytes(limit::CONFIRMATION_MESSAGE_BYTES_MAX)),
        ("CONTEXT_TOKENS", count(limit::CONTEXT_TOKENS.1)),
        ("COMPACTION_INSTRUCTIONS_BYTES_MAX", bytes(limit::COMPACTION_INSTRUCTIONS_BYTES_MAX)),
        ("COMPACTIONS_PER_TURN_MAX", count(limit::COMPACTIONS_PER_TURN_MAX.into())),
        ("CONTENT_BODY_BYTES_MAX", bytes(limit::CONTENT_BODY_BYTES_MAX)),
        ("FILE_UPLOADS_MAX", count(limit::FILE_UPLOADS_MAX as u64)),
        ("FILE_BYTES_MAX", bytes(limit::FILE_BYTES_MAX)),
        ("MESSAGE_CONTENT_MAX", count(limit::MESSAGE_CONTENT_MAX as u64)),
        ("SESSION_FILES_MAX", count(limit::SESSION_FILES_MAX as u64)),
        ("ORG_FILES_BYTES_MAX", bytes(limit::ORG_FILES_BYTES_MAX as usize)),
        ("FILE_FETCH_TIMEOUT", seconds(limit::FILE_FETCH_TIMEOUT)),
        ("IMAGE_PIXELS_MAX", count(limit::IMAGE_PIXELS_MAX)),
        ("IMAGE_SIDE_MAX", count(limit::IMAGE_SIDE_MAX.into())),
        ("IMAGES_SENT_MAX", count(limit::IMAGES_SENT_MAX as u64)),
        ("FILES_SENT_BYTES_MAX", bytes(limit::FILES_SENT_BYTES_MAX as usize)),
        ("FILE_TEXT_SENT_BYTES_MAX", bytes(limit::FILE_TEXT_SENT_BYTES_MAX as usize)),
        ("OUTPUT_REPAIRS", count(limit::OUTPUT_REPAIRS.0.into())),
        ("OUTPUT_BYTES_MAX", bytes(limit::OUTPUT_BYTES_MAX)),
        ("OUTPUT_FAULTS_MAX", count(limit::OUTPUT_FAULTS_MAX as u64)),
        ("LOOP_REPEATS", count(limit::LOOP_REPEATS.1.into())),
        ("LOOP_CALLS_MAX", count(limit::LOOP_CALLS_MAX.into())),
        ("LOOP_EXPIRES_SECONDS", count(limit::LOOP_EXPIRES_SECONDS)),
        ("ASK_OPTIONS_MAX", count(limit::ASK_OPTIONS_MAX as u64)),
        ("QUESTIONS_MAX", count(limit::QUESTIONS_MAX as u64)),
        ("QUESTIONS_BYTES_MAX", bytes(limit::QUESTIONS_BYTES_MAX)),
        ("CUSTOM_TOOL_DESCRIPTION_BYTES_MAX", bytes(limit::CUSTOM_TOOL_DESCRIPTION_BYTES_MAX)),
    ]
}

fn of_root_file_systems() -> Vec<(&'static str, String)> {
    vec![
        ("PACKAGES_MAX", count(limit::PACKAGES_MAX as u64)),
        ("PACKAGE_BYTES_MAX", bytes(limit::PACKAGE_BYTES_MAX)),
        ("ROOTFS_TIMEOUT", seconds(limit::ROOTFS_TIMEOUT)),
        ("ROOTFS_BYTES_MAX", bytes(limit::ROOTFS_BYTES_MAX as usize)),
        ("ROOTFS_PER_ORGANIZATION_MAX", count(limit::ROOTFS_PER_ORGANIZATION_MAX.unsigned_abs())),
        ("ROOTFS_BUILDS_PER_HOUR_MAX", count(limit::ROOTFS_BUILDS_PER_HOUR_MAX.unsigned_abs())),
        ("ORG_IMAGES_BYTES_MAX", bytes(limit::ORG_IMAGES_BYTES_MAX as usize)),
        ("ROOTFS_LOG_BYTES_MAX", bytes(limit::ROOTFS_LOG_BYTES_MAX)),
        ("ROOTFS_FAILURE_TTL", seconds(limit::ROOTFS_FAILURE_TTL)),
    ]
}

fn of_requests() -> Vec<(&'static str, String)> {
    vec![
        ("REQUESTS_PER_SECOND", count(limit::REQUESTS_PER_SECOND.into())),
        ("REQUESTS_BURST_SECONDS", count(limit::REQUESTS_BURST_SECONDS.into())),
        ("ORGANIZATION_RATE_FACTOR", count(limit::ORGANIZATION_RATE_FACTOR.into())),
        ("BODY_BYTES_MAX", bytes(limit::BODY_BYTES_MAX)),
        ("IMPORT_BYTES_MAX", bytes(limit::IMPORT_BYTES_MAX)),
        ("BODY_DRAIN_BYTES_MAX", bytes(limit::BODY_DRAIN_BYTES_MAX as usize)),
        ("JSON_VALUES_MAX", count(limit::JSON_VALUES_MAX as u64)),
        ("LARGE_BODIES_MAX", count(limit::LARGE_BODIES_MAX as u64)),
        ("LARGE_BODIES_PER_ORG", count(limit::LARGE_BODIES_PER_ORG as u64)),
        ("HEADER_BYTES_MAX", bytes(limit::HEADER_BYTES_MAX)),
        ("HEADER_TIMEOUT", seconds(limit::HEADER_TIMEOUT)),
        ("REQUEST_TIMEOUT", seconds(limit::REQUEST_TIMEOUT)),
        ("CONNECTIONS_MAX", count(limit::CONNECTIONS_MAX as u64)),
        ("HTTP2_STREAMS_MAX", count(limit::HTTP2_STREAMS_MAX.into())),
        ("HTTP2_PING", seconds(limit::HTTP2_PING)),
        ("IMPORTS_MAX", count(limit::IMPORTS_MAX as u64)),
        ("IMPORTS_PER_ORG", count(limit::IMPORTS_PER_ORG as u64)),
        ("IMPORT_WAIT", seconds(limit::IMPORT_WAIT)),
        ("FILE_WRITE_BYTES_MAX", bytes(limit::FILE_WRITE_BYTES_MAX)),
        ("FILE_READ_BYTES_MAX", bytes(limit::FILE_READ_BYTES_MAX as usize)),
        ("ARCHIVE_BYTES_MAX", bytes(limit::ARCHIVE_BYTES_MAX as usize)),
        ("ARCHIVE_UPLOAD_TIMEOUT", seconds(limit::ARCHIVE_UPLOAD_TIMEOUT)),
        ("TOOLS_MAX", count(limit::TOOLS_MAX as u64)),
        ("MANUAL_CHECKPOINTS_MAX", count(limit::MANUAL_CHECKPOINTS_MAX as u64)),
        ("ARCHIVES_MAX", count(limit::ARCHIVES_MAX as u64)),
        ("ARCHIVES_PER_ORG", count(limit::ARCHIVES_PER_ORG as u64)),
        ("ARCHIVE_WAIT", seconds(limit::ARCHIVE_WAIT)),
        ("DIRECT_EXEC_BYTES_MAX", bytes(limit::DIRECT_EXEC_BYTES_MAX)),
        ("DIRECT_EXEC_SECONDS_MAX", count(limit::DIRECT_EXEC_SECONDS_MAX)),
        ("DIRECT_EXEC_SECONDS", count(limit::DIRECT_EXEC_SECONDS)),
        ("OPERATIONS_OPEN_MAX", count(limit::OPERATIONS_OPEN_MAX.unsigned_abs())),
        ("OPERATION_WAIT", seconds(limit::OPERATION_WAIT)),
        ("DIRECT_OUTPUT_BYTES_MAX", bytes(limit::DIRECT_OUTPUT_BYTES_MAX as usize)),
        ("EXEC_OUTPUT_CHUNK_BYTES", bytes(limit::EXEC_OUTPUT_CHUNK_BYTES)),
        ("OPERATION_HOURS", count(limit::OPERATION_HOURS.unsigned_abs().into())),
        ("DIRECTORY_ENTRIES_MAX", count(limit::DIRECTORY_ENTRIES_MAX as u64)),
        ("TEXT_BYTES_MAX", bytes(limit::TEXT_BYTES_MAX)),
        ("METADATA_BYTES_MAX", bytes(limit::METADATA_BYTES_MAX)),
        ("NAME_BYTES_MAX", bytes(limit::NAME_BYTES_MAX)),
        ("NET_URL_BYTES_MAX", bytes(limit::NET_URL_BYTES_MAX)),
        ("CREDENTIAL_BYTES_MAX", bytes(limit::CREDENTIAL_BYTES_MAX)),
        ("PROVIDER_HEADERS_MAX", count(limit::PROVIDER_HEADERS_MAX as u64)),
        ("PROVIDER_HEADER_NAME_BYTES_MAX", bytes(limit::PROVIDER_HEADER_NAME_BYTES_MAX)),
        ("PROVIDER_HEADER_VALUE_BYTES_MAX", bytes(limit::PROVIDER_HEADER_VALUE_BYTES_MAX)),
        ("WEBHOOK_SECRET_BYTES_MAX", bytes(limit::WEBHOOK_SECRET_BYTES_MAX)),
        ("IDEMPOTENCY_KEY_BYTES_MAX", bytes(limit::IDEMPOTENCY_KEY_BYTES_MAX)),
        ("LIST_ITEMS_MAX", count(limit::LIST_ITEMS_MAX as u64)),
        ("LIST_ITEM_BYTES_MAX", bytes(limit::LIST_ITEM_BYTES_MAX)),
        ("KEY_SCOPES_MAX", count(limit::KEY_SCOPES_MAX as u64)),
        ("DESTINATIONS_MAX", count(limit::DESTINATIONS_MAX as u64)),
        ("PAGE_ROWS_MAX", count(limit::PAGE_ROWS_MAX.into())),
        ("USAGE_DAYS_MAX", count(limit::USAGE_DAYS_MAX.unsigned_abs())),
        ("RETENTION_DAYS_MAX", count(limit::RETENTION_DAYS_MAX.unsigned_abs().into())),
        ("ORGANIZATION_TURNS_MAX", count(limit::ORGANIZATION_TURNS_MAX.unsigned_abs().into())),
        ("ORGANIZATION_WEIGHT_MAX", count(limit::ORGANIZATION_WEIGHT_MAX.unsigned_abs().into())),
        ("KEY_OVERLAP_SECONDS", count(limit::KEY_OVERLAP_SECONDS.1.unsigned_abs())),
        ("WEBHOOK_OVERLAP_SECONDS", count(limit::WEBHOOK_OVERLAP_SECONDS.1.unsigned_abs())),
        ("CONNECTIONS_PER_PEER_MAX", count(limit::CONNECTIONS_PER_PEER_MAX as u64)),
        ("HTTP2_IDLE", seconds(limit::HTTP2_IDLE)),
        ("UNKNOWN_SECRETS_PER_SECOND", count(limit::UNKNOWN_SECRETS_PER_SECOND.into())),
        ("UNKNOWN_SECRETS_PER_PEER_BURST", count(limit::UNKNOWN_SECRETS_PER_PEER_BURST.into())),
        ("UNKNOWN_SECRETS_BURST", count(limit::UNKNOWN_SECRETS_BURST.into())),
        ("UNKNOWN_SECRETS_CONCURRENT_MAX", count(limit::UNKNOWN_SECRETS_CONCURRENT_MAX as u64)),
        ("UNKNOWN_SECRETS_WAIT", seconds(limit::UNKNOWN_SECRETS_WAIT)),
        ("MODEL_THINKING_TOKENS_MIN", count(limit::MODEL_THINKING_TOKENS_MIN)),
    ]
}

fn of_things() -> Vec<(&'static str, String)> {
    vec![
        ("SCHEDULES_MAX", count(limit::SCHEDULES_MAX.unsigned_abs())),
        ("SCHEDULE_FAILURES_MAX", count(limit::SCHEDULE_FAILURES_MAX.unsigned_abs().into())),
        ("SCHEDULE_RUN_DAYS", count(limit::SCHEDULE_RUN_DAYS.unsigned_abs().into())),
        ("SOURCE_TIMEOUT", seconds(limit::SOURCE_TIMEOUT)),
        ("SOURCE_BYTES_MAX", bytes(limit::SOURCE_BYTES_MAX as usize)),
        ("SESSION_DEPTH_MAX", count(limit::SESSION_DEPTH_MAX.unsigned_abs())),
        ("SESSION_DESCENDANTS_MAX", count(limit::SESSION_DESCENDANTS_MAX.unsigned_abs())),
        ("SESSION_WAIT_IDS_MAX", count(limit::SESSION_WAIT_IDS_MAX as u64)),
        ("SESSION_WAIT_SECONDS", count(limit::SESSION_WAIT_SECONDS.2)),
        ("SESSION_REPORTS_BYTES_MAX", bytes(limit::SESSION_REPORTS_BYTES_MAX)),
        ("SESSION_READ_EVENTS_MAX", count(limit::SESSION_READ_EVENTS_MAX.unsigned_abs())),
        ("SESSION_READ_BYTES_MAX", bytes(limit::SESSION_READ_BYTES_MAX)),
        ("TRIGGERS_MAX", count(limit::TRIGGERS_MAX.unsigned_abs())),
        ("INVOKE_TOKENS_MAX", count(limit::INVOKE_TOKENS_MAX.unsigned_abs())),
        ("TRIGGER_MESSAGES_PER_SECOND", count(limit::TRIGGER_MESSAGES_PER_SECOND.into())),
        ("TRIGGER_LOOKUPS_MAX", count(limit::TRIGGER_LOOKUPS_MAX as u64)),
        ("TRIGGER_LOOKUPS_PER_PEER", count(limit::TRIGGER_LOOKUPS_PER_PEER as u64)),
        ("TRIGGER_REFUSED_AFTER", format!("{} ms", limit::TRIGGER_REFUSED_AFTER.as_millis())),
        ("GITHUB_FIELD_BYTES_MAX", bytes(limit::GITHUB_FIELD_BYTES_MAX)),
        ("WEBHOOK_TOLERANCE_SECONDS", count(limit::WEBHOOK_TOLERANCE_SECONDS.unsigned_abs())),
        ("TRIGGER_SECRET_BYTES_MIN", bytes(limit::TRIGGER_SECRET_BYTES_MIN)),
        ("CRON_BYTES_MAX", bytes(limit::CRON_BYTES_MAX)),
        ("SCHEDULED_WAKES_PENDING_MAX", count(limit::SCHEDULED_WAKES_PENDING_MAX.unsigned_abs())),
        ("SCHEDULED_WAKE_NOTE_CHARS_MAX", count(limit::SCHEDULED_WAKE_NOTE_CHARS_MAX as u64)),
        ("WEBHOOKS_MAX", count(limit::WEBHOOKS_MAX as u64)),
        ("ORG_JOBS_MAX", count(limit::ORG_JOBS_MAX.unsigned_abs().into())),
        ("STEPS_DEFAULT", count(limit::STEPS_DEFAULT)),
        ("MODEL_MAX_TOKENS_DEFAULT", count(limit::MODEL_MAX_TOKENS_DEFAULT)),
        ("TOOL_OUTPUT_BYTES_MAX", count(limit::TOOL_OUTPUT_BYTES_MAX as u64)),
        ("TURN_ATTEMPTS_MAX", count(limit::TURN_ATTEMPTS_MAX.unsigned_abs().into())),
        ("STREAMS_MAX", count(limit::STREAMS_MAX as u64)),
        ("STREAMS_PER_ORG_MAX", count(limit::STREAMS_PER_ORG_MAX as u64)),
        ("READY_TIMEOUT", seconds(limit::READY_TIMEOUT)),
        ("STREAM_OUTAGE_MAX", seconds(limit::STREAM_OUTAGE_MAX)),
        ("STREAM_WRITE_TIMEOUT", seconds(limit::STREAM_WRITE_TIMEOUT)),
        ("SOCKET_MESSAGE_BYTES_MAX", bytes(limit::SOCKET_MESSAGE_BYTES_MAX)),
        ("WAITING_INPUT_BYTES_MAX", bytes(limit::WAITING_INPUT_BYTES_MAX)),
        ("CONVERSATION_BYTES_MAX", bytes(limit::CONVERSATION_BYTES_MAX)),
        ("EVENT_BODY_BYTES_MAX", bytes(limit::EVENT_BODY_BYTES_MAX)),
        ("COST_MICROS_MAX", count(limit::COST_MICROS_MAX)),
        ("IDEMPOTENCY_HOURS", count(limit::IDEMPOTENCY_HOURS.unsigned_abs().into())),
        ("IDEMPOTENCY_WAIT", seconds(limit::IDEMPOTENCY_WAIT)),
        ("DELIVERY_ATTEMPTS_SHOWN", count(limit::DELIVERY_ATTEMPTS_SHOWN.unsigned_abs())),
    ]
}

/// Bounds that the egress socket knows and no caller meets, with the reason.
const INNER: [(&str, &str); 16] = [
    ("SMALL_BODY_BYTES_MAX", "said in the rows of larger bodies"),
    ("PAGE_ROWS_DEFAULT", "said beside the largest page"),
    ("USAGE_DAYS_DEFAULT", "what is summed when nothing is asked"),
    ("CLIENT_TOKEN_TTL_SECONDS", "said below the table: no error"),
    ("RATE_SWEEP_REQUESTS", "memory of the process"),
    ("UNKNOWN_SECRET_TTL", "said below the table: no error"),
    ("VALID_SECRET_TTL", "said below the table: no error"),
    ("SECRETS_REMEMBERED_MAX", "memory of the process"),
    ("KEY_CACHE_TTL", "said as five seconds in docs/organizations.md"),
    ("KEY_CACHE_ENTRIES_MAX", "memory of the process"),
    ("STREAM_HEARTBEAT", "a comment of a stream"),
    ("STREAM_AUTH_INTERVAL", "said as five seconds in docs/organizations.md"),
    ("STREAM_REVOKED_GRACE", "the end of a stream whose token ended"),
    ("DRAIN_TIMEOUT", "the end of the process"),
    ("KEY_USE_INTERVAL", "said as the minute in docs/organizations.md"),
    ("MODEL_NAME_BYTES_MAX", "that of a name"),
];

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let group = |(at, digit): (usize, char)| {
        let comma = (at > 0 && (digits.len() - at).is_multiple_of(3)).then_some(',');
        comma.into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(group).collect()
}

#[test]
fn every_bound_that_a_caller_can_meet_is_told_with_its_number() {
    let page = text("docs/limits.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    for (name, number) in shown() {
        let named = rows.iter().filter(|row| row.last() == Some(&format!("`{name}`").as_str()));
        let bounds: Vec<_> = named.map(|row| row[1]).collect();
        // At the beginning, or a word of its own.
        let is_told =
            |bound: &&str| bound.starts_with(&number) || bound.split([' ', ',']).any(|word| word == number);
        assert!(
            !bounds.is_empty() && bounds.iter().all(is_told),
            "docs/limits.md: `{name}` is {number}: {bounds:?}"
        );
    }
    // Whatever bound the egress socket names is told, or listed here as one that nobody meets.
    let told: BTreeSet<_> =
        shown().iter().map(|(name, _)| *name).chain(INNER.map(|(name, _)| name)).collect();
    let known = [
        "limit/action.rs",
        "limit/mod.rs",
        "limit/operation.rs",
        "limit/sandbox.rs",
        "limit/source.rs",
        "limit/trigger.rs",
    ];
    let known = known.map(|file| text(&format!("src/base/{file}"))).concat();
    let known = known.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
    let egress_socket = sources_of(&["src/http", "src/wire"]);
    let words: BTreeSet<_> =
        egress_socket.split(|character: char| !character.is_alphanumeric() && character != '_').collect();
    let untold: Vec<_> = known.filter(|name| words.contains(name) && !told.contains(name)).collect();
    assert!(untold.is_empty(), "docs/limits.md does not tell {untold:?}");
}
