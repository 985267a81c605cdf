//! Bounds of the service that callers can meet or that several files share: named constants with
//! unit and reason.
//!
//! Every channel, buffer, page, loop and retry has a bound, here or beside the only code that needs
//! it. Anything unbounded can take the service down.

mod action;
mod child_session;
mod database;
mod delta;
mod egress;
mod file;
mod image;
mod log;
mod mcp;
mod node;
mod operation;
mod process;
mod retention;
mod sandbox;
mod skill;
mod snapshot;
mod source;
mod trigger;

use std::time::Duration;

use super::backoff::Backoff;

pub use action::*;
pub use child_session::*;
pub use database::*;
pub use delta::*;
pub use egress::*;
pub use file::*;
pub use image::*;
pub use log::*;
pub use mcp::*;
pub use node::*;
pub use operation::*;
pub use process::*;
pub use retention::*;
pub use sandbox::*;
pub use skill::*;
pub use snapshot::*;
pub use source::*;
pub use trigger::*;

// ---- requests ----

/// Max size of a request body. A message is text; files have their own routes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Max values and names in a JSON body: parsed, each takes up to a hundred times the memory of its bytes. A file in base64
/// is one value.
pub const JSON_VALUES_MAX: usize = 100_000;
/// JSON bodies up to this size, in bytes, are parsed at once; larger ones on a thread for blocking work.
pub const SMALL_BODY_BYTES_MAX: usize = 64 << 10;
/// Larger JSON bodies that one process parses concurrently; further ones wait.
pub const LARGE_BODIES_MAX: usize = 4;
/// Those of one organization.
pub const LARGE_BODIES_PER_ORG: usize = 1;
/// Bytes of an oversized body that are read and discarded before the error response. Closing the
/// connection while the client still sends would lose the response.
pub const BODY_DRAIN_BYTES_MAX: u64 = 8 << 20;
/// Max size of an import file, in bytes: a session of about 10,000 events.
pub const IMPORT_BYTES_MAX: usize = 64 << 20;
/// Imports that one process reads concurrently; each holds its file in memory.
pub const IMPORTS_MAX: usize = 2;
/// Those of one organization; further ones wait.
pub const IMPORTS_PER_ORG: usize = 1;
/// Time for which an import waits for others to end.
pub const IMPORT_WAIT: Duration = Duration::from_secs(10);
/// Max size of the text of one message or prompt: about 60,000 tokens.
pub const TEXT_BYTES_MAX: usize = 256 << 10;
/// Max size of `metadata`, as JSON; it is for routing, not for data.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// Max length of a name, title, key or client id, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Models of an agent beside its own, for times when that is not available.
pub const FALLBACK_MODELS_MAX: usize = 4;
/// Max length of a provider key, in bytes.
pub const CREDENTIAL_BYTES_MAX: usize = 4_096;
/// Headers that one credential adds to the calls of its provider.
pub const PROVIDER_HEADERS_MAX: usize = 16;
/// Max length of the name of such a header, in bytes.
pub const PROVIDER_HEADER_NAME_BYTES_MAX: usize = 64;
/// Max length of its value, in bytes: that of a provider key.
pub const PROVIDER_HEADER_VALUE_BYTES_MAX: usize = CREDENTIAL_BYTES_MAX;
/// Scopes of one key.
pub const KEY_SCOPES_MAX: usize = 32;
/// Words in one list of a request: tools of an agent, event types of a destination.
pub const LIST_ITEMS_MAX: usize = 64;
/// Max length of such a word, a scope or a provider's name, in bytes.
pub const LIST_ITEM_BYTES_MAX: usize = 64;
/// Max retention of archived sessions, in days.
pub const RETENTION_DAYS_MAX: i32 = 36_500;
/// Max size of a request head (request line and headers), in bytes.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// Timeout for a connection to send a request head, and its max idle time between requests.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that one process serves; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 12_000;
/// Concurrent requests on one HTTP/2 connection.
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// Time after which an HTTP/2 connection without a request is closed.
pub const HTTP2_IDLE: Duration = Duration::from_secs(60);
/// Interval between pings on an HTTP/2 connection, and the timeout of their answer.
pub const HTTP2_PING: Duration = Duration::from_secs(20);
/// Rows of a page when the caller sets no limit.
pub const PAGE_ROWS_DEFAULT: u32 = 50;
/// Max rows of a page; a page is built in memory.
pub const PAGE_ROWS_MAX: u32 = 500;
/// Days of usage that are summed: when the caller sets none, and at most.
pub const USAGE_DAYS_DEFAULT: i64 = 28;
pub const USAGE_DAYS_MAX: i64 = 400;
/// Timeout of a request; beyond it the response is 503.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for a concurrent request with the same idempotency key, before 409.
pub const IDEMPOTENCY_WAIT: Duration = Duration::from_secs(5);
/// Hours for which an idempotency key is stored.
pub const IDEMPOTENCY_HOURS: i32 = 24;
/// Max length of `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Sustained requests per second of one API key, unless the operator sets another value.
pub const REQUESTS_PER_SECOND: u32 = 500;
/// Factor between the request rate of an organization and that of one of its keys.
pub const ORGANIZATION_RATE_FACTOR: u32 = 4;
/// Burst of an idle key: the requests of this many seconds at once.
pub const REQUESTS_BURST_SECONDS: u32 = 4;
/// Requests between two sweeps that remove callers with a full allowance. The rate limiter
/// therefore holds at most this many entries beyond the busy callers.
pub const RATE_SWEEP_REQUESTS: u32 = 10_000;
/// Time for which a verified API key is cached. A revocation must take effect everywhere within 5
/// s.
pub const KEY_CACHE_TTL: Duration = Duration::from_secs(3);
/// Verified keys that one process caches.
pub const KEY_CACHE_ENTRIES_MAX: usize = 10_000;

/// Sustained requests per second with a secret that is unknown, from one peer address, and in one process; and how
/// many may come at once.
pub const UNKNOWN_SECRETS_PER_SECOND: u32 = 50;
pub const UNKNOWN_SECRETS_PER_PEER_BURST: u32 = 200;
pub const UNKNOWN_SECRETS_BURST: u32 = 1_000;
/// Lookups of keys and tokens that were not valid before, at the same time; further ones wait.
pub const UNKNOWN_SECRETS_CONCURRENT_MAX: usize = 4;
/// Time for which a peer above that is refused.
pub const UNKNOWN_SECRETS_WAIT: Duration = Duration::from_secs(1);
/// Time for which an unknown secret is not looked up again.
pub const UNKNOWN_SECRET_TTL: Duration = Duration::from_secs(3);
/// Time for which a secret that was valid is looked up also for a refused peer.
pub const VALID_SECRET_TTL: Duration = Duration::from_secs(3_600);
/// Secrets, as hashes, and peers that one process remembers for this.
pub const SECRETS_REMEMBERED_MAX: usize = 50_000;
/// Connections of one peer address. Those of a trusted proxy and of this machine are only limited in total.
pub const CONNECTIONS_PER_PEER_MAX: usize = 3_000;

/// Interval at which the last use of a key is recorded.
pub const KEY_USE_INTERVAL: Duration = Duration::from_secs(60);
/// Time for which a rotated key still works, in seconds: default, max.
pub const KEY_OVERLAP_SECONDS: (i64, i64) = (86_400, 7 * 86_400);

/// Lifetime of a client token, in seconds: min, default, max.
pub const CLIENT_TOKEN_TTL_SECONDS: (i64, i64, i64) = (60, 3_600, 86_400);

/// Time for the database to answer the check of readiness. A load balancer must hear soon that it does not.
pub const READY_TIMEOUT: Duration = Duration::from_secs(3);

// ---- streams ----

/// Interval of heartbeat comments, which keep proxies from closing an idle stream.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(10);
/// Interval at which a stream verifies its reader's credential: an API key, a client token. A key's
/// result is cached for `KEY_CACHE_TTL`, so the check is cheap, and a revoked key can read for less
/// than 5 s more. Each check of a token is a query.
pub const STREAM_AUTH_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Time for which a stream still sends earlier events after its reader lost access. The archive
/// that ends a client token is itself an event that the reader should receive.
pub const STREAM_REVOKED_GRACE: Duration = Duration::from_millis(500);
/// Events that a stream reads in one query.
pub const STREAM_PAGE_ROWS: i64 = 200;
/// Fallback poll of a stream, in case a notification is lost.
pub const STREAM_POLL: Duration = Duration::from_secs(5);
/// Max recent appends of one log that notifications keep for followers in the same process, and the
/// bytes of one append. A follower that misses one reads the database.
pub const STREAM_RECENT_APPENDS: usize = 4;
pub const STREAM_RECENT_APPEND_BYTES: usize = 64 << 10;
/// Frames that may wait for a slow reader before it is disconnected.
pub const STREAM_BUFFER_FRAMES: usize = 64;
/// Newest events of a log that its followers share, and their bytes. A follower further behind
/// reads the database itself.
pub const STREAM_FEED_EVENTS: usize = 256;
pub const STREAM_FEED_BYTES: usize = 256 << 10;
/// Changes of a list within this time are read together. An organization's list is read at most
/// this often, independent of the number of followers.
pub const STREAM_LIST_PAUSE: Duration = Duration::from_millis(100);
/// Deltas of a growing answer that may wait for a reader; a slower reader loses some.
pub const STREAM_DELTAS: usize = 256;
/// A stream whose reads of the database fail for this long ends; its reader can resume at another process.
pub const STREAM_OUTAGE_MAX: Duration = Duration::from_secs(20);
/// A reader that accepts no frame for this long is disconnected; it can resume.
pub const STREAM_WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Max size of a message from a WebSocket reader, in bytes; readers need not send any.
pub const SOCKET_MESSAGE_BYTES_MAX: usize = 1 << 10;
/// Streams that one process serves.
pub const STREAMS_MAX: usize = 10_000;
/// Of these, the most that one organization may have.
pub const STREAMS_PER_ORG_MAX: usize = 7_500;

// ---- queue and worker ----

/// Min interval between two notifications of a process; those in between are merged. The first one
/// after a pause is sent immediately.
pub const NOTIFICATION_INTERVAL: Duration = Duration::from_millis(2);

/// Fallback poll of a worker for due jobs, in case a notification is lost. Also the longest time for which one claim looks
/// for a job, and for which due jobs are made ready, before the worker attends to other things.
pub const CLAIM_POLL: Duration = Duration::from_secs(1);
/// Max jobs of one claim (measured: 10 rows cost three times as much as 1).
pub const CLAIM_JOBS_MAX: i64 = 10;
/// Slots of a worker beside its own, for organizations that hold few in it: one for so many, and at least one.
pub const RESERVED_SLOTS_PART: usize = 4;
/// Min time between two claims for these slots while notifications of ready jobs arrive.
pub const RESERVE_CLAIM_INTERVAL: Duration = Duration::from_millis(50);
/// Jobs that became ready recently and that a claim reads by time. With more, it visits organizations.
pub const CLAIM_WINDOW: i64 = 512;
/// Organizations that one claim visits; the next claim continues after the last one.
pub const CLAIM_ORGS_MAX: i32 = 64;
/// Shortest time without an answer of the database after which a worker lets the holders of leases renew them, for
/// `CLAIM_AFTER_OUTAGE`, before it claims jobs. Leases that are longer than this and two renewals expire later.
pub const CLAIM_OUTAGE_MIN: Duration = Duration::from_secs(5);
pub const CLAIM_AFTER_OUTAGE: Duration = Duration::from_secs(2);
/// Delay before a claim is repeated whose organizations another claim was serving, and repetitions.
pub const CLAIM_CONTENDED: Backoff =
    Backoff { first: Duration::from_millis(2), longest: Duration::from_millis(16) };
pub const CLAIM_CONTENDED_MAX: u32 = 8;
/// Time before the last claim that the next one reads again, for transactions that commit late.
pub const CLAIM_MARGIN: Duration = Duration::from_secs(2);
/// The same for one claim every `SWEEP_INTERVAL`; longer than any transaction that enqueues a job.
pub const CLAIM_MARGIN_MAX: Duration = Duration::from_secs(120);
/// Interval at which a process reads all jobs again, for those that were written while the clock of the
/// database was behind: a server whose clock was set, or another one after a failover.
pub const CLAIM_READ_ALL_INTERVAL: Duration = Duration::from_secs(20);
/// Idle and archived sandboxes that a worker attends concurrently, beside its turns.
pub const MAINTENANCE_JOBS_MAX: usize = 8;
/// Due jobs of the sandboxes of a node among which a claim chooses.
pub const MAINTENANCE_WINDOW: i64 = 256;
/// Delay of a job of a sandbox that a turn or an operation uses: an idle sandbox is frozen that much later at most.
pub const MAINTENANCE_RETRY: Duration = Duration::from_secs(1);
/// Time for which a sandbox that replaces another waits for the capacity of that one under the lease of its job.
pub const ROTATION_WAIT: Duration = Duration::from_secs(5);
/// Jobs that one statement makes ready when their time has come.
pub const READY_JOBS_MAX: i64 = 256;
/// Concurrently leased jobs of one organization, unless it has its own limit.
pub const ORG_JOBS_MAX: i32 = 100;
/// Interval at which leases are renewed and cancels are polled.
pub const CONTROL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a stopping worker waits for its turns to reach a durable point.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a drain gives a running tool: a short command, a sandbox that is starting. A longer
/// command continues in its sandbox without the worker.
pub const DRAIN_TOOL_GRACE: Duration = Duration::from_secs(1);
/// Time that a drain gives a model call, which is already paid for; within `DRAIN_TIMEOUT`.
pub const DRAIN_MODEL_GRACE: Duration = Duration::from_secs(8);
/// Crashes of one turn, since it last waited for callers or was retried, before it ends with `recovery_exhausted`.
pub const TURN_ATTEMPTS_MAX: i32 = 5;
/// Interval at which workers search for sessions that have work but no job.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// A session whose work no worker has started within this time is overdue. The invariant is that no
/// session is ever overdue, even if any process crashes.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(30);
/// Tries of a turn whose sandbox is unavailable before its agent has done anything.
pub const INFRASTRUCTURE_ATTEMPTS_MAX: u32 = 4;
/// First and longest back-off between those tries.
pub const INFRASTRUCTURE_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

// ---- harness ----

/// Model calls of one turn when the session sets no `steps`.
pub const STEPS_DEFAULT: u64 = 200;
/// Tries of one model call within a turn.
pub const MODEL_ATTEMPTS_MAX: u32 = 6;
/// First and longest back-off between those tries.
pub const MODEL_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A longer wait for a provider releases the slot to other turns.
pub const MODEL_WAIT_IN_SLOT: Duration = Duration::from_secs(3);
/// A provider that sends no first byte for this long has stalled.
pub const MODEL_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(120);
/// A provider that sends nothing between two chunks for this long has stalled.
pub const MODEL_CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// Max size of a provider's response, in bytes.
pub const MODEL_RESPONSE_BYTES_MAX: usize = 16 << 20;
/// `max_tokens` of a model call when the agent sets none.
pub const MODEL_MAX_TOKENS_DEFAULT: u64 = 16_384;
/// Interval at which a call retries while the remaining money is reserved by other calls.
pub const SPEND_WAIT: Duration = Duration::from_secs(1);
/// Agents and organizations whose usage of past hours a process caches; about 50 bytes each.
pub const PAST_SPEND_AGENTS_MAX: usize = 200_000;
/// Concurrent tool calls of one step (read-only tools only).
pub const PARALLEL_TOOLS_MAX: usize = 8;
/// Tool calls of one model response.
pub const TOOL_CALLS_PER_STEP_MAX: usize = 64;
/// Max length of the one-line summary of a tool call, in bytes.
pub const TOOL_SUMMARY_BYTES_MAX: usize = 200;
/// Bytes of tool output that are sent to the model; the rest stays in a file.
pub const TOOL_OUTPUT_BYTES_MAX: usize = 30_000;
/// Max size of a file that a tool reads or writes whole, in bytes.
pub const TOOL_FILE_BYTES_MAX: usize = 1 << 20;
/// Timeout of a tool's command when the model sets none.
pub const TOOL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// Max timeout of a tool's command.
pub const TOOL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

// ---- model providers ----

/// Timeout of a connection to a provider.
pub const MODEL_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a provider to close a response that is complete. Without the wait the connection is
/// lost; a longer wait delays every step.
pub const MODEL_DRAIN_TIMEOUT: Duration = Duration::from_millis(20);
/// Max Retry-After that is accepted from a provider, which is untrusted.
pub const MODEL_RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// Bytes of a provider's error response that are read.
pub const MODEL_ERROR_BYTES_MAX: usize = 64 << 10;
/// Bytes of a provider's error message that are stored as a reason.
pub const MODEL_REASON_BYTES_MAX: usize = 600;
/// Max plausible number of tokens of one kind in one response. The count comes from the server at
/// an organization's URL, which is untrusted, and sums must not overflow.
pub const MODEL_TOKENS_MAX: u64 = 1 << 40;
/// Max price, and max cost of one call, in micro-USD; sums must not overflow.
pub const COST_MICROS_MAX: u64 = 1 << 40;
/// Breakpoints of the prompt cache in one request (Anthropic's rule).
pub const MODEL_CACHE_POINTS_MAX: usize = 4;
/// Min thinking budget, in tokens (Anthropic's rule).
pub const MODEL_THINKING_TOKENS_MIN: u64 = 1_024;
/// Max length of a model name, provider included, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 200;
/// Max length of a tool name that both providers accept in a history.
pub const TOOL_NAME_BYTES_MAX: usize = 64;
/// Max length of a tool call id that both providers accept (OpenAI's rule).
pub const CALL_ID_BYTES_MAX: usize = 40;
/// Max delay of one step of a script.
pub const SCRIPT_DELAY_MAX: Duration = Duration::from_secs(3_600);
/// Scripted faults that one process counts; the oldest is evicted first.
pub const SCRIPT_FAULTS_MAX: usize = 4_096;

// ---- tools ----

/// Bytes of a command's output that its event shows; the end of the output.
pub const EXEC_SUMMARY_BYTES_MAX: usize = 1_000;
/// Max length of one validation error message, in bytes.
pub const TOOL_ERROR_BYTES_MAX: usize = 200;
/// Timeout of a search, which reads the whole workspace.
pub const TOOL_SEARCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Lines of a file that one `read` returns when the model sets no limit.
pub const READ_LINES_DEFAULT: usize = 2_000;
/// Max line length that `read` and `grep` return, in bytes; minified files have longer lines.
pub const LINE_BYTES_MAX: usize = 1_000;
/// Bytes of a file that `read` skips at most to find a line.
pub const READ_SCAN_BYTES_MAX: u64 = 64 << 20;
/// Bytes at the start of a file that decide between text and binary.
pub const READ_PROBE_BYTES: usize = 8 << 10;
/// Paths that one `glob` returns.
pub const GLOB_PATHS_MAX: usize = 500;
/// Patterns that the braces of one `glob` may expand to.
pub const GLOB_PATTERNS_MAX: usize = 64;
/// Lines that one `grep` returns.
pub const GREP_LINES_MAX: usize = 300;
/// Answers that one question may suggest.
pub const ASK_OPTIONS_MAX: usize = 10;
/// Times that calls are made before they are a loop: min, default and max.
pub const LOOP_REPEATS: (u32, u32, u32) = (2, 3, 10);
/// Longest sequence of calls whose repetition is a loop.
pub const LOOP_CALLS_MAX: u32 = 4;
/// Time in which a person must confirm a call that repeats, in seconds.
pub const LOOP_EXPIRES_SECONDS: u64 = 900;
/// Rejected outputs of a turn before it ends: default and max.
pub const OUTPUT_REPAIRS: (u32, u32) = (2, 5);
/// JSON of the output of a turn, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Faults of a rejected output that the model and the log get.
pub const OUTPUT_FAULTS_MAX: usize = 5;
/// Questions of one call that waits for the answers.
pub const QUESTIONS_MAX: usize = 4;
/// Max size of such questions, as JSON, in bytes: an event has them twice, and none is truncated.
pub const QUESTIONS_BYTES_MAX: usize = 12_000;

// ---- connections to URLs that organizations set ----

/// Max length of a URL that an organization sets, in bytes.
pub const NET_URL_BYTES_MAX: usize = 2_048;
/// Timeout of a DNS lookup, including the wait for a place.
pub const NET_RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent DNS lookups of one process; each has one or two sockets.
pub const NET_LOOKUPS_MAX: usize = 512;
/// Concurrent DNS lookups of one organization in one process. Those of names that are not answered take
/// `NET_RESOLVE_TIMEOUT` each.
pub const NET_LOOKUPS_PER_ORG_MAX: usize = 16;
/// Time for which an answer without an address, and at most one with addresses, is used again.
pub const NET_LOOKUP_TTL_MAX: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// Answers that one process keeps.
pub const NET_LOOKUPS_CACHED_MAX: u64 = 4_096;
/// Interval at which changes of `/etc/resolv.conf` and `/etc/hosts` are looked for.
pub const NET_FILES_INTERVAL: Duration = Duration::from_secs(5);
/// Addresses of one host name that are tried.
pub const NET_ADDRESSES_MAX: usize = 8;
/// Timeout of DNS lookup, connect and TLS handshake together. Below `WEBHOOK_TIMEOUT`, so that an
/// unreachable receiver is distinguished from a slow one.
pub const NET_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections in the pool of one host.
pub const NET_IDLE_PER_HOST_MAX: usize = 8;
/// Lifetime of an idle connection; also bounds how long a previous address of a host is still used.
pub const NET_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

// ---- webhooks ----

/// Timeout of a receiver's response (Standard Webhooks recommends 15-30 s).
pub const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for which a claim holds a delivery; longer than any attempt.
pub const WEBHOOK_CLAIM_TTL: Duration = Duration::from_secs(60);
/// Deliveries that one process sends concurrently; each is a connection and a body of at most
/// `EVENT_BODY_BYTES_MAX`.
pub const WEBHOOKS_IN_FLIGHT_MAX: usize = 256;
/// Of these, the most to one destination.
pub const WEBHOOKS_PER_DESTINATION_MAX: i32 = 4;
/// Of these, the most of one organization.
pub const WEBHOOKS_PER_ORG_MAX: i32 = 64;
/// Of these, the most to receivers that were slow or failed recently; the other half is reserved
/// for receivers that respond.
pub const WEBHOOKS_SLOW_MAX: usize = 128;
/// A receiver that takes longer than this is slow.
pub const WEBHOOK_SLOW_AFTER: Duration = Duration::from_secs(2);
/// Time for which a receiver is recorded as slow, and the max number of such records.
pub const WEBHOOK_SLOW_RECORDS: (Duration, usize) = (Duration::from_secs(120), 10_000);
/// Time for which a dispatcher without free capacity waits for more deliveries to finish before it
/// claims again, unless a quarter of them did. A claim per freed place costs more than the delivery
/// that it finds.
pub const WEBHOOK_CLAIM_DELAY: Duration = Duration::from_millis(5);
/// Rows that a claim reads to find deliveries to different destinations.
pub const WEBHOOK_CLAIM_ROWS: i64 = 1_024;
/// Looks of a claim for destinations behind those rows; each finds one or a few.
pub const WEBHOOK_CLAIM_LOOKS: i64 = 256;
/// A destination without a successful delivery for this long is disabled.
pub const WEBHOOK_DISABLE_AFTER: Duration = Duration::from_secs(5 * 86_400);
/// Time for which deliveries also carry the signature of a rotated secret, in seconds: default,
/// max.
pub const WEBHOOK_OVERLAP_SECONDS: (i64, i64) = (86_400, 7 * 86_400);
/// Webhooks of one organization.
pub const WEBHOOKS_MAX: usize = 16;
/// Attempts of one delivery that are shown: one schedule and a few manual redeliveries.
pub const DELIVERY_ATTEMPTS_SHOWN: i64 = 50;
/// Delay before each attempt, in seconds; after the last one the delivery is dead.
pub const WEBHOOK_RETRY_SECONDS: [u64; 10] =
    [0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// Max Retry-After that is honored, in seconds.
pub const WEBHOOK_RETRY_AFTER_SECONDS_MAX: u64 = 86_400;
/// Bytes of a receiver's response that are read.
pub const WEBHOOK_RESPONSE_BYTES_MAX: usize = 4 << 10;
/// Max jitter, as a fraction of the delay. Jitter only adds, because the delays must span the
/// documented three days.
pub const WEBHOOK_JITTER: f64 = 0.1;
/// Max length of a caller-supplied webhook secret, in bytes.
pub const WEBHOOK_SECRET_BYTES_MAX: usize = 256;
/// Bytes of an error message that a delivery stores.
pub const WEBHOOK_ERROR_BYTES_MAX: usize = 512;
/// Destinations of one session.
pub const DESTINATIONS_MAX: usize = 16;

// ---- local webhook receiver (`webhook listen`) ----

/// Concurrent connections of the local receiver.
pub const LISTEN_CONNECTIONS_MAX: usize = 64;
/// Deliveries that may wait to be printed.
pub const LISTEN_DELIVERIES_MAX: usize = 64;
/// Max size of a delivery that the local receiver accepts, in bytes: an event body and its
/// envelope.
pub const LISTEN_DELIVERY_BYTES_MAX: usize = 1 << 20;
/// Max difference between a delivery's timestamp and now, in seconds (Standard Webhooks: 5 min).
pub const WEBHOOK_TOLERANCE_SECONDS: i64 = 300;

// ---- embedded database ----

/// Timeout for the embedded Postgres to initialize, recover and accept connections; at most 1 GB of
/// WAL is replayed after a crash.
pub const EMBEDDED_START_TIMEOUT: Duration = Duration::from_secs(120);
/// Launches within one start, while processes of a killed server still exit.
pub const EMBEDDED_LAUNCHES_MAX: u32 = 8;
/// Timeout of one connection attempt while it starts.
pub const EMBEDDED_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a fast shutdown, and then of an immediate shutdown.
pub const EMBEDDED_STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Time after its deletion during which an organization is purged repeatedly; longer than a key is
/// cached and a request may take.
pub const ORG_PURGE_REPEAT_FOR: Duration = Duration::from_secs(60);
/// Max concurrent turns that an operator may set for one organization.
pub const ORGANIZATION_TURNS_MAX: i32 = 100_000;
/// Max scheduling weight of one organization.
pub const ORGANIZATION_WEIGHT_MAX: i32 = 100;
/// Rows that one round of housekeeping removes.
pub const HOUSEKEEPING_BATCH: i64 = 1_000;
