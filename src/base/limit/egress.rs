//! Bounds of a sandbox's egress proxy and of `web_fetch`.

use std::time::Duration;

/// Concurrent connections of one sandbox; further ones wait.
pub const EGRESS_CONNECTIONS_MAX: usize = 64;
/// Concurrent connections of all sandboxes of one process, and of one organization's; further ones wait.
pub const EGRESS_CONNECTIONS_PER_PROCESS: usize = 8_192;
pub const EGRESS_CONNECTIONS_PER_ORG: usize = 512;
/// Distinct decisions that one turn records by name; the sandbox chooses the names.
pub const EGRESS_DECISIONS_MAX: usize = 128;
/// Interval at which counts of equal decisions are written while nothing else is written.
pub const EGRESS_FLUSH_INTERVAL: Duration = Duration::from_secs(10);
/// Delay before the next connection of a sandbox after one could not be accepted.
pub const EGRESS_ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Timeout for a program to begin its TLS handshake in a tunnel.
pub const EGRESS_CLIENT_HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Max length of a TLS ClientHello, in bytes; post-quantum key shares make it long.
pub const EGRESS_CLIENT_HELLO_BYTES_MAX: usize = 64 << 10;
/// Timeout for a host to begin its response; models can think for minutes.
pub const EGRESS_RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);
/// Max length of a request head, in bytes.
pub const EGRESS_HEAD_BYTES_MAX: usize = 64 << 10;
/// Certificates that one sandbox's certificate authority caches; the first by host name is evicted.
pub const EGRESS_CERTIFICATES_MAX: usize = 64;
/// Validity of the certificates of a sandbox; longer than a sandbox lives.
pub const EGRESS_CERTIFICATE_AGE: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Bytes of a response that `web_fetch` reads.
pub const FETCH_BYTES_MAX: usize = 1 << 20;
/// Timeout of `web_fetch`, redirects included.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirects that `web_fetch` follows; the policy is evaluated again for each.
pub const FETCH_REDIRECTS_MAX: usize = 5;
