//! Every bound of the service, by name, with its unit and its reason.
//!
//! A channel, buffer, page, loop or retry without a number here has no bound,
//! and what has no bound is what takes a service down.

use std::time::Duration;

// ---- requests ----

/// Largest request body. A message is text; files have routes of their own.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Largest text of one message or prompt: about 60,000 tokens.
pub const TEXT_BYTES_MAX: usize = 256 << 10;
/// Largest `metadata`, as JSON: it is for routing, not for data.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// Longest name, title, key or client id, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Rows of a page when the caller names no limit.
pub const PAGE_ROWS_DEFAULT: u32 = 50;
/// Rows of a page at most; a page is built in memory.
pub const PAGE_ROWS_MAX: u32 = 500;
/// How long a request may take before it is answered 503.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an equal request in flight is waited for before 409.
pub const IDEMPOTENCY_WAIT: Duration = Duration::from_secs(5);
/// How long an idempotency key is remembered.
pub const IDEMPOTENCY_HOURS: i32 = 24;
/// Longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Requests per second that one API key may make, sustained.
pub const REQUESTS_PER_SECOND: u32 = 500;
/// Requests that one API key may make at once, beyond the sustained rate.
pub const REQUESTS_BURST: u32 = 2_000;
/// How long a verified API key is trusted without asking the database again;
/// a revocation must take effect everywhere within 5 s.
pub const KEY_CACHE_TTL: Duration = Duration::from_secs(3);
/// Verified keys that one process remembers.
pub const KEY_CACHE_ENTRIES_MAX: usize = 10_000;

/// Life of a client token, in seconds: shortest, default, longest.
pub const CLIENT_TOKEN_TTL_SECONDS: (i64, i64, i64) = (60, 3_600, 86_400);

// ---- the log ----

/// A body above this many bytes of JSON spills to a blob.
pub const EVENT_BODY_BYTES_MAX: usize = 32 << 10;
/// Events of one append: one step with all its views.
pub const APPEND_EVENTS_MAX: usize = 512;
/// Events that the history builder reads in one query.
pub const HISTORY_PAGE_ROWS: i64 = 1_000;

// ---- streams ----

/// A comment this often keeps proxies from closing an idle stream.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(10);
/// Events that a stream reads at once.
pub const STREAM_PAGE_ROWS: i64 = 200;
/// The net under the hints: how often a stream looks without one.
pub const STREAM_POLL: Duration = Duration::from_secs(5);
/// Frames that may wait for a slow reader before it is disconnected.
pub const STREAM_BUFFER_FRAMES: usize = 64;
/// A reader that takes no frame for this long is disconnected; it can resume.
pub const STREAM_WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Streams that one process serves.
pub const STREAMS_MAX: usize = 10_000;

// ---- queue and worker ----

/// The net under the hints: how often a worker looks for due jobs.
pub const CLAIM_POLL: Duration = Duration::from_secs(1);
/// Jobs that one claim takes at most (measured: ten rows cost three times one).
pub const CLAIM_JOBS_MAX: i64 = 10;
/// How often held leases are renewed and cancels are looked for without a hint.
pub const CONTROL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a worker that was asked to stop waits for a checkpoint.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Crashes that one turn survives before it ends `recovery_exhausted`.
pub const TURN_ATTEMPTS_MAX: i32 = 5;
/// How long one statement may run before the database gives it up.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

// ---- harness ----

/// Model calls of one turn when the session names no `steps`.
pub const STEPS_DEFAULT: u64 = 200;
/// Tries of one model call within a turn.
pub const MODEL_ATTEMPTS_MAX: u32 = 6;
/// First and longest back-off between those tries.
pub const MODEL_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A provider that sends no first byte for this long has stalled.
pub const MODEL_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(120);
/// A provider that sends nothing between two chunks for this long has stalled.
pub const MODEL_CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer of a provider that is read, in bytes.
pub const MODEL_ANSWER_BYTES_MAX: usize = 16 << 20;
/// `max_tokens` of a model call when the agent names none.
pub const MODEL_MAX_TOKENS_DEFAULT: u64 = 16_384;
/// Tool calls of one step that run at the same time (read-only ones).
pub const PARALLEL_TOOLS_MAX: usize = 8;
/// Tool calls that one answer may ask for.
pub const TOOL_CALLS_PER_STEP_MAX: usize = 64;
/// Tool output that goes to the model, in bytes; the rest stays in a file.
pub const TOOL_OUTPUT_BYTES_MAX: usize = 30_000;
/// Largest file that a tool reads or writes whole, in bytes.
pub const TOOL_FILE_BYTES_MAX: usize = 1 << 20;
/// How long one command of a tool may run when the model names no time.
pub const TOOL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// How long one command of a tool may run at most.
pub const TOOL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

// ---- sandbox ----

/// How long a box may take to start before it is given up.
pub const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(20);
/// Tries to start a box before the turn ends `sandbox_unavailable`.
pub const SANDBOX_START_ATTEMPTS_MAX: u32 = 3;
/// Output of one command that is kept, per stream, in bytes.
pub const EXEC_OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Commands that one box runs at the same time.
pub const EXECS_MAX: usize = 64;
/// Largest frame in either direction between worker and `sojourn-init`.
pub const INIT_FRAME_BYTES_MAX: usize = 4 << 20;
/// How long `sojourn-init` may take to answer a call that does not run anything.
pub const INIT_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Between TERM and KILL when a command is ended.
pub const KILL_GRACE: Duration = Duration::from_secs(2);

// ---- webhooks ----

/// How long a receiver may take to answer (Standard Webhooks asks for 15-30 s).
pub const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(15);
/// Deliveries that one process sends at the same time.
pub const WEBHOOKS_IN_FLIGHT_MAX: usize = 32;
/// Delays before each try, in seconds; after the last one the letter is dead.
pub const WEBHOOK_RETRY_SECONDS: [u64; 10] =
    [0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// Longest Retry-After that is honoured, in seconds.
pub const WEBHOOK_RETRY_AFTER_SECONDS_MAX: u64 = 86_400;
/// Bytes of a receiver's answer that are read.
pub const WEBHOOK_RESPONSE_BYTES_MAX: usize = 4 << 10;
/// Destinations of one session.
pub const DESTINATIONS_MAX: usize = 16;

// ---- embedded database ----

/// How long the embedded Postgres may take to be made, to recover and to answer;
/// at most 1 GB of its log is replayed after a crash.
pub const EMBEDDED_START_TIMEOUT: Duration = Duration::from_secs(120);
/// Launches within one start, while processes of a killed server still end.
pub const EMBEDDED_LAUNCHES_MAX: u32 = 8;
/// How long one attempt to connect may take while it starts.
pub const EMBEDDED_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to stop, before and after it is asked harder.
pub const EMBEDDED_STOP_TIMEOUT: Duration = Duration::from_secs(20);
