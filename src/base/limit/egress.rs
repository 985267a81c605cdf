//! Bounds of a sandbox's way out.

use std::time::Duration;

/// Connections of one sandbox that are served at the same time; others wait.
pub const EGRESS_CONNECTIONS_MAX: usize = 64;
/// Different decisions of one turn that are told by name; a sandbox chooses the names.
pub const EGRESS_DECISIONS_MAX: usize = 128;
/// How often counts of equal decisions are written while nothing else is.
pub const EGRESS_FLUSH_INTERVAL: Duration = Duration::from_secs(10);
/// How long a program may take to begin its handshake in a tunnel.
pub const EGRESS_HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest beginning of a handshake, in bytes; key shares after quantum make it long.
pub const EGRESS_HELLO_BYTES_MAX: usize = 64 << 10;
/// How long a host may take to begin its answer: models think for minutes.
pub const EGRESS_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest head of a request, in bytes.
pub const EGRESS_HEAD_BYTES_MAX: usize = 64 << 10;
/// Certificates that one sandbox's authority keeps; the first is forgotten first.
pub const EGRESS_LEAVES_MAX: usize = 64;
/// How long certificates for a sandbox are valid; longer than a sandbox lives.
pub const EGRESS_CERTIFICATE_AGE: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Bytes of an answer that `web_fetch` reads.
pub const FETCH_BYTES_MAX: usize = 1 << 20;
/// How long `web_fetch` may take, redirects included.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirects that `web_fetch` follows; each is judged anew.
pub const FETCH_REDIRECTS_MAX: usize = 5;
