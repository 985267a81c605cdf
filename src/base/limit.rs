//! Every bound of the service, by name, with its unit and its reason.
//!
//! A channel, buffer, page, loop or retry without a number here has no bound,
//! and what has no bound is what takes a service down.

mod egress;
mod image;
mod log;
mod operation;
mod source;
mod trigger;

use std::time::Duration;

pub use egress::*;
pub use image::*;
pub use log::*;
pub use operation::*;
pub use source::*;
pub use trigger::*;

// ---- requests ----

/// Largest request body. A message is text; files have routes of their own.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// A body that is too large is still read up to this many bytes, and thrown away: a
/// connection that is closed under a sender takes the answer with it.
pub const BODY_DRAIN_BYTES_MAX: u64 = 8 << 20;
/// Largest file of an import, in bytes: a session of about 10,000 events.
pub const IMPORT_BYTES_MAX: usize = 64 << 20;
/// Imports that one process reads at the same time; each holds its file in memory.
pub const IMPORTS_MAX: usize = 2;
/// Largest text of one message or prompt: about 60,000 tokens.
pub const TEXT_BYTES_MAX: usize = 256 << 10;
/// Largest `metadata`, as JSON: it is for routing, not for data.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// Longest name, title, key or client id, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest provider key, in bytes.
pub const CREDENTIAL_BYTES_MAX: usize = 4_096;
/// Scopes that one key names.
pub const KEY_SCOPES_MAX: usize = 32;
/// Words that one list of a request names: tools of an agent, types of a destination.
pub const WORDS_MAX: usize = 64;
/// Longest of these words, in bytes; of a scope and of a provider's name too.
pub const WORD_BYTES_MAX: usize = 64;
/// Longest time that archived sessions may be kept for, in days.
pub const RETENTION_DAYS_MAX: i32 = 36_500;
/// Largest head of a request, in bytes: its line and headers.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// How long a connection may take to send the head of a request, and may be idle
/// between two.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that one process serves; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 12_000;
/// Requests under way on one HTTP/2 connection.
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// How often the other end of an HTTP/2 connection is asked whether it is there, and
/// how long it may take to say so.
pub const HTTP2_PING: Duration = Duration::from_secs(20);
/// Rows of a page when the caller names no limit.
pub const PAGE_ROWS_DEFAULT: u32 = 50;
/// Rows of a page at most; a page is built in memory.
pub const PAGE_ROWS_MAX: u32 = 500;
/// Days of usage that are summed when the caller names none, and at most.
pub const USAGE_DAYS_DEFAULT: i64 = 28;
pub const USAGE_DAYS_MAX: i64 = 400;
/// How long a request may take before it is answered 503.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an equal request in batch is waited for before 409.
pub const IDEMPOTENCY_WAIT: Duration = Duration::from_secs(5);
/// How long an idempotency key is remembered.
pub const IDEMPOTENCY_HOURS: i32 = 24;
/// Longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Requests per second that one API key may make, sustained, unless the operator
/// says otherwise.
pub const REQUESTS_PER_SECOND: u32 = 500;
/// An organization may make so many times the requests that one of its keys may.
pub const ORGANIZATION_RATE_FACTOR: u32 = 4;
/// A key that was quiet may make the requests of this many seconds at once.
pub const REQUESTS_BURST_SECONDS: u32 = 4;
/// After this many requests, callers that have their whole allowance are forgotten;
/// so at most this many more than the busy ones are remembered.
pub const RATE_SWEEP_REQUESTS: u32 = 10_000;
/// How long a verified API key is trusted without asking the database again;
/// a revocation must take effect everywhere within 5 s.
pub const KEY_CACHE_TTL: Duration = Duration::from_secs(3);
/// Verified keys that one process remembers.
pub const KEY_CACHE_ENTRIES_MAX: usize = 10_000;

/// How often the use of a key is noted.
pub const KEY_USE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a replaced key goes on, in seconds: when the caller names no time, longest.
pub const KEY_OVERLAP_SECONDS: (i64, i64) = (86_400, 7 * 86_400);

/// Life of a client token, in seconds: shortest, default, longest.
pub const CLIENT_TOKEN_TTL_SECONDS: (i64, i64, i64) = (60, 3_600, 86_400);

// ---- streams ----

/// A comment this often keeps proxies from closing an idle stream.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(10);
/// How often a stream asks whether its reader's key is still good, and its client
/// token. The answer on a key is remembered for `KEY_CACHE_TTL`, so it is cheap to ask,
/// and a revoked one reads on for less than 5 s; each ask on a token is a query.
pub const STREAM_PROOF_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How long a stream whose reader may not read on still says what was said before:
/// the archive that ends a token is itself an event.
pub const STREAM_LAST_WORD: Duration = Duration::from_millis(500);
/// Events that a stream reads at once.
pub const STREAM_PAGE_ROWS: i64 = 200;
/// The net under the notifications: how often a stream looks without one.
pub const STREAM_POLL: Duration = Duration::from_secs(5);
/// Appends of one log that its followers in the same process find told, and the bytes of
/// one: whoever misses one reads.
pub const STREAM_TOLD: usize = 4;
pub const STREAM_TOLD_BYTES: usize = 64 << 10;
/// Frames that may wait for a slow reader before it is disconnected.
pub const STREAM_BUFFER_FRAMES: usize = 64;
/// Newest events of a log that its followers share, and their bytes: who is further
/// behind reads by itself.
pub const STREAM_FEED_EVENTS: usize = 256;
pub const STREAM_FEED_BYTES: usize = 256 << 10;
/// Changes of a list that come within this time are read together: an organization's list is
/// read at most so often, however many follow it.
pub const STREAM_LIST_PAUSE: Duration = Duration::from_millis(100);
/// Pieces of a growing answer that may wait for a reader; a slower one misses some.
pub const STREAM_PIECES: usize = 256;
/// A reader that takes no frame for this long is disconnected; it can resume.
pub const STREAM_WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest message that a reader's WebSocket may send, in bytes: none is wanted.
pub const SOCKET_MESSAGE_BYTES_MAX: usize = 1 << 10;
/// Streams that one process serves.
pub const STREAMS_MAX: usize = 10_000;

// ---- queue and worker ----

/// Shortest time between two notifications of a process: notifications of that time share one.
/// The first after a pause leaves at once.
pub const NOTIFICATION_INTERVAL: Duration = Duration::from_millis(2);

/// The net under the notifications: how often a worker looks for due jobs.
pub const CLAIM_POLL: Duration = Duration::from_secs(1);
/// Jobs that one claim takes at most (measured: ten rows cost three times one).
pub const CLAIM_JOBS_MAX: i64 = 10;
/// Organizations that one claim visits; the next one goes on after the last of them.
pub const CLAIM_ORGS_MAX: i32 = 64;
/// Jobs of one organization that may be held at the same time, unless it has its own number.
pub const ORG_JOBS_MAX: i32 = 100;
/// How often held leases are renewed and cancels are looked for without a notification.
pub const CONTROL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a worker that was asked to stop waits for a checkpoint.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a drain lets a tool finish: a short command, a sandbox that is starting.
/// A longer command goes on in its sandbox without us.
pub const DRAIN_TOOL_GRACE: Duration = Duration::from_secs(1);
/// How long a drain lets a model call finish, which is paid for; within `DRAIN_TIMEOUT`.
pub const DRAIN_MODEL_GRACE: Duration = Duration::from_secs(8);
/// Crashes that one turn survives before it ends `recovery_exhausted`.
pub const TURN_ATTEMPTS_MAX: i32 = 5;
/// First and longest pause before a turn asks again for a record that is away.
pub const RECORD_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Times that a turn asks again before its job is given back for others to try.
pub const RECORD_ATTEMPTS_MAX: u32 = 60;
/// How often workers look for sessions that have work and no job.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// A session whose work nobody has taken up for this long is overdue: the reservation
/// is that none ever is, whatever crashes.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(30);
/// Tries of a turn whose sandbox cannot be had before its agent has done anything.
pub const INFRASTRUCTURE_ATTEMPTS_MAX: u32 = 4;
/// First and longest back-off between those tries.
pub const INFRASTRUCTURE_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long one statement may run before the database gives it up.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

// ---- harness ----

/// Model calls of one turn when the session names no `steps`.
pub const STEPS_DEFAULT: u64 = 200;
/// Tries of one model call within a turn.
pub const MODEL_ATTEMPTS_MAX: u32 = 6;
/// First and longest back-off between those tries.
pub const MODEL_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A wait for a provider beyond this gives the slot to others.
pub const MODEL_WAIT_IN_SLOT: Duration = Duration::from_secs(3);
/// A provider that sends no first byte for this long has stalled.
pub const MODEL_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(120);
/// A provider that sends nothing between two chunks for this long has stalled.
pub const MODEL_CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer of a provider that is read, in bytes.
pub const MODEL_ANSWER_BYTES_MAX: usize = 16 << 20;
/// `max_tokens` of a model call when the agent names none.
pub const MODEL_MAX_TOKENS_DEFAULT: u64 = 16_384;
/// How long a call waits before it asks again for money that is reserved for others.
pub const SPEND_WAIT: Duration = Duration::from_secs(1);
/// Tool calls of one step that run at the same time (read-only ones).
pub const PARALLEL_TOOLS_MAX: usize = 8;
/// Tool calls that one answer may ask for.
pub const TOOL_CALLS_PER_STEP_MAX: usize = 64;
/// One line that says what a call is about, in bytes.
pub const TOOL_SUMMARY_BYTES_MAX: usize = 200;
/// Tool output that goes to the model, in bytes; the rest stays in a file.
pub const TOOL_OUTPUT_BYTES_MAX: usize = 30_000;
/// Largest file that a tool reads or writes whole, in bytes.
pub const TOOL_FILE_BYTES_MAX: usize = 1 << 20;
/// How long one command of a tool may run when the model names no time.
pub const TOOL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// How long one command of a tool may run at most.
pub const TOOL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

// ---- model providers ----

/// How long a provider may take to accept a connection.
pub const MODEL_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a provider may take to close an answer that is complete. Not waiting
/// costs the connection; waiting longer costs every step.
pub const MODEL_DRAIN_TIMEOUT: Duration = Duration::from_millis(20);
/// Longest wait that a provider's Retry-After is believed; it is a stranger's number.
pub const MODEL_RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// Bytes of a provider's refusal that are read.
pub const MODEL_REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Bytes of a provider's words that are kept as a reason.
pub const MODEL_REASON_BYTES_MAX: usize = 600;
/// Tokens of one kind that one answer is believed to have used: a count is the
/// word of whoever listens at an organization's address, and sums must not overflow.
pub const MODEL_TOKENS_MAX: u64 = 1 << 40;
/// Micro-USD that one price, or the cost of one call, is believed to be: sums of
/// these must not overflow either.
pub const COST_MICROS_MAX: u64 = 1 << 40;
/// Breakpoints of the prompt cache in one request (Anthropic's rule).
pub const MODEL_CACHE_POINTS_MAX: usize = 4;
/// Smallest budget for thinking, in tokens (Anthropic's rule).
pub const MODEL_THINKING_TOKENS_MIN: u64 = 1_024;
/// Longest name of a model, provider included, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 200;
/// Longest name of a tool that both providers take back in a history.
pub const TOOL_NAME_BYTES_MAX: usize = 64;
/// Longest id of a tool call that both providers take back (OpenAI's rule).
pub const CALL_ID_BYTES_MAX: usize = 40;
/// Longest pause that one step of a script may ask for.
pub const SCRIPT_DELAY_MAX: Duration = Duration::from_secs(3_600);
/// Scripted faults that one process counts; the oldest is forgotten first.
pub const SCRIPT_FAULTS_MAX: usize = 4_096;

// ---- tools ----

/// End of a command's output that an event shows, in bytes.
pub const EXEC_SUMMARY_BYTES_MAX: usize = 1_000;
/// Words of one fault in a call's arguments, in bytes.
pub const TOOL_FAULT_BYTES_MAX: usize = 200;
/// How long a search may take; it walks the whole workspace.
pub const TOOL_SEARCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Lines of a file that one `read` shows when the model names no limit.
pub const READ_LINES_DEFAULT: usize = 2_000;
/// Longest line that `read` and `grep` show, in bytes; minified files have longer ones.
pub const LINE_BYTES_MAX: usize = 1_000;
/// Bytes of a file that `read` passes over to find a line.
pub const READ_SCAN_BYTES_MAX: u64 = 64 << 20;
/// Bytes at a file's beginning that tell text from binary.
pub const READ_PROBE_BYTES: usize = 8 << 10;
/// Paths that one `glob` lists.
pub const GLOB_PATHS_MAX: usize = 500;
/// Patterns that the braces of one `glob` may stand for.
pub const GLOB_PATTERNS_MAX: usize = 64;
/// Lines that one `grep` lists.
pub const GREP_LINES_MAX: usize = 300;
/// Answers that one question may suggest.
pub const ASK_OPTIONS_MAX: usize = 10;

// ---- sandbox ----

/// How long a sandbox may take to start before it is given up.
pub const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(20);
/// Tries to start a sandbox before the turn ends `sandbox_unavailable`.
pub const SANDBOX_START_ATTEMPTS_MAX: u32 = 3;
/// Output of one command that is kept, per stream, in bytes.
pub const EXEC_OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Commands that one sandbox runs at the same time.
pub const EXECS_MAX: usize = 64;
/// Largest frame in either direction between worker and `sojourn-init`.
pub const INIT_FRAME_BYTES_MAX: usize = 4 << 20;
/// Text of a fault from a sandbox that is passed on, in bytes.
pub const INIT_MESSAGE_BYTES_MAX: usize = 512;
/// One call that waits for a command; longer waits are several, so that a dead sandbox is noticed.
pub const INIT_WAIT_SLICE: Duration = Duration::from_secs(30);
/// Tries to have a loop device that others want at the same moment.
pub const LOOP_DEVICE_ATTEMPTS_MAX: u32 = 64;
/// First and longest pause between looks whether a new sandbox answers.
pub const SANDBOX_START_POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// How long one command of the container runtime may take.
pub const RUNTIME_COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// What is read of the runtime's own log when it failed, in bytes.
pub const RUNTIME_LOG_BYTES_MAX: u64 = 16 << 10;
/// How long the last processes of a sandbox may take to vanish after KILL.
pub const SANDBOX_END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one command on the file system of a disk may take: a check of a torn one reads all its tables.
pub const VOLUME_COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// Formatted disks that are kept for copying, one per size; each takes up to 3 MB.
pub const DISK_TEMPLATES_MAX: usize = 16;
/// How long removing a session's disk may take; it is tried again by the reaper.
pub const DISK_REMOVE_TIMEOUT: Duration = Duration::from_secs(120);
/// `/tmp` of a sandbox at most, in bytes: it counts as memory, of which it may take half.
pub const SANDBOX_TMP_BYTES: u64 = 512 << 20;
/// Processes of a sandbox beyond what its commands may have: init, two threads of
/// each runner, file helpers. They let a full sandbox still answer and be killed.
pub const SANDBOX_PIDS_RESERVED: u32 = 192;
/// Files that one process of a sandbox may have open.
pub const SANDBOX_OPEN_FILES_MAX: u64 = 65_536;
/// How long `sojourn-init` may take to answer a call that does not run anything.
pub const INIT_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a lifecycle hook of an environment may take: packages are installed there.
pub const LIFECYCLE_HOOK_TIMEOUT: Duration = Duration::from_secs(600);
/// Output of a lifecycle hook that is kept, per stream, in bytes; its end is told when it fails.
pub const LIFECYCLE_HOOK_OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// How long one part of an archive of files may take, in either direction.
pub const ARCHIVE_PART_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a sandbox may take to unpack all of its files.
pub const ARCHIVE_UNPACK_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of one part on their way into a sandbox; a frame holds more.
pub const ARCHIVE_PART_BYTES: usize = 256 << 10;
/// Parts that wait between a sandbox and the disk.
pub const ARCHIVE_PARTS_WAITING: usize = 8;
/// Largest archive of a session's files, before it is compressed.
pub const CHECKPOINT_BYTES_MAX: u64 = 16 << 30;
/// Checkpoints of a session that its callers made and that are kept.
pub const CHECKPOINTS_BY_HAND_KEPT: usize = 8;
/// How long the sandbox of a paused session is kept for its processes.
pub const PAUSED_SANDBOX_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Checkpoints of a session that are kept: the newest, and the one before it for
/// whoever is reading that.
pub const CHECKPOINTS_KEPT: usize = 2;
/// How often a sandbox is looked at that ought to rest and cannot: a command runs, its
/// files cannot be saved. Shorter where the settings let sandboxes rest sooner.
pub const REST_RETRY: Duration = Duration::from_secs(60);
/// A heartbeat is in the log at most this often.
pub const HEARTBEAT_LOGGED_EVERY: Duration = Duration::from_secs(300);
/// When a rotation is tried again that could not save the files; until then the old sandbox
/// is used on.
pub const ROTATION_RETRY: Duration = Duration::from_secs(10);
/// How long freezing or thawing a sandbox may take.
pub const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between TERM and KILL when a command is ended; within the two seconds by which
/// a turn may outlast its deadline.
pub const KILL_GRACE: Duration = Duration::from_secs(1);

// ---- connections to addresses that organizations name ----

/// Longest URL of an organization, in bytes.
pub const NET_URL_BYTES_MAX: usize = 2_048;
/// How long a name may take to resolve, its wait for a free thread included.
pub const NET_RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Lookups that one process runs at once: each blocks a thread of the runtime,
/// which has 512, until the system gives it up.
pub const NET_LOOKUPS_MAX: usize = 64;
/// Addresses of one name that are tried.
pub const NET_ADDRESSES_MAX: usize = 8;
/// How long resolving, connecting and the TLS handshake may take together; below
/// `WEBHOOK_TIMEOUT`, so that a receiver that is away is told from a slow one.
pub const NET_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections that are kept for one host.
pub const NET_IDLE_PER_HOST_MAX: usize = 8;
/// How long an idle connection is kept; also bounds how long the address that
/// a name had before is still used.
pub const NET_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

// ---- webhooks ----

/// How long a receiver may take to answer (Standard Webhooks asks for 15-30 s).
pub const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a claimed delivery is its dispatcher's: longer than any try takes.
pub const WEBHOOK_HOLD: Duration = Duration::from_secs(60);
/// Deliveries that one process sends at the same time: each is a connection and a
/// body of at most `EVENT_BODY_BYTES_MAX`.
pub const WEBHOOKS_IN_FLIGHT_MAX: usize = 256;
/// Of these, how many may be under way to one destination.
pub const WEBHOOKS_PER_DESTINATION_MAX: i32 = 4;
/// Of these, how many may be of one organization.
pub const WEBHOOKS_PER_ORG_MAX: i32 = 64;
/// Of these, how many may be under way to receivers that were slow or failed lately:
/// the other half is always there for receivers that answer.
pub const WEBHOOKS_SLOW_MAX: usize = 128;
/// A receiver that takes longer than this is slow.
pub const WEBHOOK_SLOW_AFTER: Duration = Duration::from_secs(2);
/// How long a receiver is remembered as slow, and how many are.
pub const WEBHOOK_SLOW_MEMORY: (Duration, usize) = (Duration::from_secs(120), 10_000);
/// How long a dispatcher without a free place waits for more deliveries to end before it
/// claims again, unless a quarter of them did: a claim for each place costs more than
/// the delivery that it finds.
pub const WEBHOOK_GATHER: Duration = Duration::from_millis(5);
/// Rows that a claim looks at for deliveries to different destinations.
pub const WEBHOOK_CLAIM_ROWS: i64 = 1_024;
/// A destination that has answered no delivery for this long is disabled.
pub const WEBHOOK_DISABLE_AFTER: Duration = Duration::from_secs(5 * 86_400);
/// How long deliveries carry the signature of the replaced secret too, in seconds:
/// when the caller names no time, and longest.
pub const WEBHOOK_OVERLAP_SECONDS: (i64, i64) = (86_400, 7 * 86_400);
/// Webhooks of one organization.
pub const WEBHOOKS_MAX: usize = 16;
/// Tries of one delivery that are shown: those of the schedule, sent again a few times.
pub const DELIVERY_ATTEMPTS_SHOWN: i64 = 50;
/// Delays before each try, in seconds; after the last one the delivery is dead.
pub const WEBHOOK_RETRY_SECONDS: [u64; 10] =
    [0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// Longest Retry-After that is honoured, in seconds.
pub const WEBHOOK_RETRY_AFTER_SECONDS_MAX: u64 = 86_400;
/// Bytes of a receiver's answer that are read.
pub const WEBHOOK_RESPONSE_BYTES_MAX: usize = 4 << 10;
/// What jitter adds to a delay at most, as a part of it. It never shortens one:
/// the delays add up to the three days that are reserved.
pub const WEBHOOK_JITTER: f64 = 0.1;
/// Longest secret that an organization may bring, in bytes.
pub const WEBHOOK_SECRET_BYTES_MAX: usize = 256;
/// Bytes of a failure's text that a delivery keeps.
pub const WEBHOOK_ERROR_BYTES_MAX: usize = 512;
/// Sessions above one another: each adds to what is read before a call of the lowest.
pub const SESSION_HEIGHT_MAX: i64 = 8;
/// Sessions below one that has none above it: what they used is added up before each call
/// of theirs.
pub const SESSION_TREE_MAX: i64 = 1_000;
/// Destinations of one session.
pub const DESTINATIONS_MAX: usize = 16;

// ---- a receiver of webhooks on a developer's machine ----

/// Connections that it serves at the same time.
pub const LISTEN_CONNECTIONS_MAX: usize = 64;
/// Deliveries that wait to be printed.
pub const LISTEN_DELIVERIES_MAX: usize = 64;
/// Largest delivery that it takes, in bytes: an event's body and all around it.
pub const LISTEN_DELIVERY_BYTES_MAX: usize = 1 << 20;
/// How far a delivery's time may be from now, in seconds (Standard Webhooks says 5 min).
pub const WEBHOOK_TOLERANCE_SECONDS: i64 = 300;

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

// ---- nodes ----

/// How often a node says that it is alive.
pub const NODE_BEAT: Duration = Duration::from_secs(10);
/// A node that has been silent for this long has lost its sandboxes.
pub const NODE_SILENCE: Duration = Duration::from_secs(60);
/// How long beyond its own time a sandbox may go on after its node's last sign of life: the
/// next beat, the lease of the last turn that speaks to it, and its own slow look.
pub const ORPHAN_TIMEOUT_SLACK: Duration = Duration::from_secs(30);
/// Sandboxes of a node that are told at the same time that it lives.
pub const SANDBOX_TOUCHES: usize = 16;
/// How long a sandbox may take to hear it: one that is busy hears the next one.
pub const SANDBOX_TOUCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Beats between two looks for what nobody owns.
pub const REAP_EVERY_BEATS: u32 = 6;
/// Archived sessions that one round of housekeeping deletes.
pub const RETENTION_BATCH: i64 = 100;
/// How long after a delete its blobs are removed once more: a worker that did not know
/// yet may have written one.
pub const PURGED_BLOBS_AFTER: Duration = Duration::from_secs(60);
/// How long after its deletion an organization is purged again and again: longer than a
/// key is remembered and a request may take.
pub const PURGE_AGAIN_FOR: Duration = Duration::from_secs(60);
/// Turns of one organization that an operator may let run at once.
pub const ORGANIZATION_TURNS_MAX: i32 = 100_000;
/// Most that one organization may weigh against another.
pub const ORGANIZATION_WEIGHT_MAX: i32 = 100;
/// Rows that one round of housekeeping removes.
pub const HOUSEKEEPING_BATCH: i64 = 1_000;
/// Tries to get an answer out of a sandbox before it is given up.
pub const SANDBOX_CALL_ATTEMPTS_MAX: u32 = 3;
/// First and longest back-off between two tries to start or ask a sandbox.
pub const SANDBOX_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
