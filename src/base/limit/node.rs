//! Nodes, their agents, and the sandboxes that outlive a silent one.

use std::time::Duration;

/// Interval of a node's heartbeat.
pub const NODE_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// A node without a heartbeat for this long has lost its sandboxes.
pub const NODE_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a sandbox may outlive its configured end after its node's last heartbeat: the next
/// heartbeat, the lease of the last turn that uses it, and the sandbox's own slow poll.
pub const SANDBOX_ORPHAN_MARGIN: Duration = Duration::from_secs(30);
/// Time for which a starting worker waits for its node agent.
pub const NODE_AGENT_WAIT: Duration = Duration::from_secs(60);
/// Delay after which a job is tried again whose node does not answer.
pub const SANDBOX_NOT_YET_RETRY: Duration = Duration::from_secs(5);
/// Time in which a node says whether it has a root file system; one that takes longer gets no new sandbox.
pub const NODE_ROOTFS_TIMEOUT: Duration = Duration::from_secs(2);
/// Nodes that a new sandbox asks for capacity at once.
pub const SANDBOX_NODES_ASKED_MAX: usize = 3;
/// Delay between two attempts to reach the agents that a worker has not reached yet.
pub const NODE_JOIN_RETRY: Duration = Duration::from_secs(2);
/// Interval at which a node agent says that a call is in progress.
pub const NODE_CALL_BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Silence after which a node agent is considered dead: a few of those signs are missing.
pub const NODE_SILENCE_MAX: Duration = Duration::from_secs(20);
/// Time for which a call waits for another agent, after the one before has closed its connections.
pub const NODE_REPLACEMENT_MAX: Duration = Duration::from_secs(15);
/// First and longest delay between two attempts to reach another agent.
pub const NODE_REPLACEMENT_POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Time for which a node agent keeps a connection without a call.
pub const NODE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections without a call that a worker keeps for the next one.
pub const NODE_IDLE_CONNECTIONS_MAX: usize = 16;
/// Time for which a sandbox may keep a network connection that its worker has ended on its side.
pub const NODE_HALF_CLOSED_MAX: Duration = Duration::from_secs(30);
/// Delay after a connection that could not be accepted.
pub const NODE_ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Delay before a sandbox's network is opened again after the connection to its agent was lost.
pub const NODE_REOPEN_DELAY: Duration = Duration::from_secs(1);
/// Time for which a grant is valid. A worker signs another one after half of it.
pub const GRANT_LIFETIME: Duration = Duration::from_secs(300);
/// Difference of the clocks of a worker and a node that grants tolerate.
pub const GRANT_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Grants that a process keeps to spare signing and checking them again.
pub const GRANTS_KEPT_MAX: usize = 4_096;
/// Max size of the file with the public key of the grants, in bytes.
pub const GRANT_KEY_FILE_BYTES_MAX: u64 = 1 << 10;
/// Calls of workers to a node agent at a time; a connection that carries one of a sandbox is not counted.
pub const NODE_CONNECTIONS_MAX: usize = 8_192;
/// Sandboxes of a node that receive a keep-alive concurrently.
pub const SANDBOX_KEEPALIVES_MAX: usize = 16;
/// Timeout of a keep-alive to a sandbox; a busy sandbox receives the next one.
pub const SANDBOX_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the watcher of a node's sandboxes checks that the service lives.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which a worker removes what no owner of a node's resources needs any more.
pub const NODE_REAP_INTERVAL: Duration = Duration::from_secs(60);
