//! Bounds of MCP servers and of their tools.

use std::time::Duration;

/// MCP servers of an agent, or of a session.
pub const MCP_SERVERS_MAX: usize = 20;
/// Max length of the name of an MCP server, in bytes: it is a part of the name of each of its tools.
pub const MCP_NAME_BYTES_MAX: usize = 32;
/// Tools of one MCP server that are listed; the others are left out.
pub const MCP_TOOLS_MAX: usize = 128;
/// Pages of one list of tools.
pub const MCP_PAGES_MAX: usize = 32;
/// Max size of the list of tools of an MCP server, in bytes.
pub const MCP_LIST_BYTES_MAX: usize = 1 << 20;
/// Time in which an MCP server must be connected to and have listed its tools.
pub const MCP_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Age from which the list of an MCP server is read again when a turn starts, if the server says nothing else, in
/// seconds; also the longest one.
pub const MCP_LIST_SECONDS: u64 = 3_600;
/// Lists of one MCP server that are read during one turn because its tools changed.
pub const MCP_LISTS_PER_TURN_MAX: u32 = 8;
/// Time in which a call of an MCP tool must be answered, in seconds: min, default and max.
pub const MCP_CALL_SECONDS: (u64, u64, u64) = (1, 120, 3_600);
/// Max size of one message of an MCP server, in bytes: a result with an image.
pub const MCP_MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Max length of the description of an MCP tool, in bytes; a longer one is cut.
pub const MCP_DESCRIPTION_BYTES_MAX: usize = 8 << 10;
/// Images of one result of an MCP tool that the model gets.
pub const MCP_IMAGES_MAX: usize = 8;
/// Notifications and requests that an MCP server may send during one turn; then its connection is closed.
pub const MCP_NOTICES_MAX: u32 = 10_000;
/// Event streams that a connection to an MCP server opens, beside those of its answers.
pub const MCP_STREAMS_MAX: u32 = 50;
/// Time between two of them.
pub const MCP_STREAM_INTERVAL: Duration = Duration::from_secs(1);
/// Tools of a server that its list names as left out.
pub const MCP_SKIPPED_MAX: usize = 64;
/// Time for the file of a result that is too long for the model; without one the rest is left out.
pub const MCP_RESULT_FILE_TIMEOUT: Duration = Duration::from_secs(20);
/// Redirects within its origin that a request to an MCP server follows.
pub const MCP_REDIRECTS_MAX: usize = 3;
/// Words and bytes of the command of a server.
pub const MCP_COMMAND_WORDS_MAX: usize = 64;
pub const MCP_COMMAND_BYTES_MAX: usize = 8 << 10;
/// Time in which a server must say which versions of the protocol it speaks, before it is taken for a legacy one. Set by
/// the library (`rmcp`).
pub const MCP_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a server in the sandbox must start and list its tools: it may have to download itself.
pub const MCP_PROCESS_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Processes of one server in one sandbox, one after the other.
pub const MCP_PROCESSES_MAX: u32 = 256;
/// Bytes of the messages of such a process, in both directions, after which another one takes its place when no call is
/// open.
pub const MCP_PROCESS_BYTES_MAX: u64 = 16 << 20;
/// First and longest pause between two looks at what such a process has written.
pub const MCP_PROCESS_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));
/// Longest pause while it is asked for nothing.
pub const MCP_PROCESS_IDLE_POLL: Duration = Duration::from_secs(2);
/// Attempts of a call to the sandbox of such a process.
pub const MCP_PROCESS_ATTEMPTS_MAX: u32 = 4;
/// Failures of transport within [`MCP_BREAKER_WINDOW`] after which an MCP server is not tried for a while.
pub const MCP_BREAKER_FAILURES: usize = 5;
/// Window of these failures.
pub const MCP_BREAKER_WINDOW: Duration = Duration::from_secs(60);
/// Time for which it is not tried: the first one, which doubles, and the longest.
pub const MCP_BREAKER_OPEN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(300));
/// MCP servers whose failures a process remembers.
pub const MCP_BREAKERS_MAX: usize = 10_000;
/// Time for the end of a connection to an MCP server.
pub const MCP_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time before the end of an access token from which it is refreshed.
pub const OAUTH_EXPIRY_MARGIN: Duration = Duration::from_secs(60);
/// Time for which one process may refresh an access token; longer than the request to the token endpoint.
pub const OAUTH_REFRESH_LEASE: Duration = Duration::from_secs(30);
/// Time in which a token endpoint must answer.
pub const OAUTH_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for which a request waits for an access token; shorter than that of a list, so that a slow token endpoint is told
/// from a slow server. The refresh goes on.
pub const OAUTH_WAIT: Duration = Duration::from_secs(8);
/// Time between attempts to store a token that the token endpoint gave.
pub const OAUTH_STORE_RETRY: Duration = Duration::from_secs(1);
/// Time for which an opened credential is used before it is read again.
pub const MCP_ACCESS_TTL: Duration = Duration::from_secs(30);
/// Interval at which it looks for that token.
pub const OAUTH_POLL: Duration = Duration::from_millis(200);
/// Bytes of the answer of a token endpoint that are read.
pub const OAUTH_RESPONSE_BYTES_MAX: usize = 64 << 10;
/// Times that a server may ask a person during one call.
pub const ELICITATIONS_MAX: u32 = 8;
/// Questions of one elicitation.
pub const ELICITATION_QUESTIONS_MAX: usize = 16;
/// Max size of the words and questions of an elicitation, as JSON, in bytes. With the next two it fits the body of one event, which
/// is never truncated.
pub const ELICITATION_BYTES_MAX: usize = 8_000;
/// Max size of the requests that they come in, as JSON, in bytes.
pub const ELICITATION_REQUEST_BYTES_MAX: usize = 32 << 10;
/// Max size of the state that a server gives with them, in bytes, with the form of its questions.
pub const ELICITATION_STATE_BYTES_MAX: usize = 9_000;
/// Max size of the arguments of the call that the action shows, as JSON, in bytes.
pub const ELICITATION_INPUT_BYTES_MAX: usize = 8_000;
/// Delay before a call is made again that its server wants again without asking anything.
pub const MCP_REPEAT_DELAY: Duration = Duration::from_secs(1);
