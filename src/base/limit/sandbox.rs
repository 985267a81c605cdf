//! Bounds of sandboxes: their start and end, calls to init, what they share with their neighbors, archives of
//! their files.

use std::time::Duration;

/// Timeout of the start of a sandbox.
pub const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(20);
/// Tries to start a sandbox before the turn ends with `sandbox_unavailable`.
pub const SANDBOX_START_ATTEMPTS_MAX: u32 = 3;
/// Shortest and longest time after which a session that waits for capacity for its sandbox asks again, and the part of
/// it for each session that is served before.
pub const SANDBOX_WAIT_POLL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
pub const SANDBOX_WAIT_POLL_STEP: Duration = Duration::from_millis(50);
/// Interval at which its position in the queue is recorded again.
pub const SANDBOX_WAIT_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a session that did not ask again holds up no other; it keeps the time since which it waits.
pub const SANDBOX_WAIT_SEEN: Duration = Duration::from_secs(20);
/// Output of one command that is stored, per stream, in bytes.
pub const EXEC_OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the input of a service that are sent to it in one call; escaped as JSON, they fit a frame.
pub const EXEC_INPUT_PART_BYTES_MAX: usize = 512 << 10;
/// Max size of a frame in either direction between worker and `sojourn-init`.
pub const INIT_FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of a sandbox's error message that are passed on.
pub const INIT_MESSAGE_BYTES_MAX: usize = 512;
/// Length of one call that waits for a command. A longer wait is several calls, so that a dead
/// sandbox is detected.
pub const INIT_WAIT_SLICE: Duration = Duration::from_secs(30);
/// Tries to acquire a loop device while other processes compete for it.
pub const LOOP_DEVICE_ATTEMPTS_MAX: u32 = 64;
/// First and longest pause between polls of a sandbox that is starting.
pub const SANDBOX_START_POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// Timeout of one command of the container runtime.
pub const RUNTIME_COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of the runtime's own log that are read after a failure.
pub const RUNTIME_LOG_BYTES_MAX: u64 = 16 << 10;
/// Timeout for the last processes of a sandbox to exit after SIGKILL.
pub const SANDBOX_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one file system command on a disk; checking a damaged file system reads all its
/// tables.
pub const VOLUME_COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// Formatted disks that are cached as templates, one per size; each takes up to 3 MB.
pub const DISK_TEMPLATES_MAX: usize = 16;
/// Timeout to remove a session's disk; the reaper retries.
pub const DISK_REMOVE_TIMEOUT: Duration = Duration::from_secs(120);
/// Max size of `/tmp` in a sandbox, in bytes. It counts as memory, of which it may take half.
pub const SANDBOX_TMP_BYTES: u64 = 512 << 20;
/// Processes of a sandbox beyond those of its commands: init, two threads of each runner, file
/// helpers. A full sandbox can therefore still answer and be killed.
pub const SANDBOX_PIDS_RESERVED: u32 = 192;
/// Files that one process of a sandbox may have open.
pub const SANDBOX_OPEN_FILES_MAX: u64 = 65_536;
/// Bytes and operations per second that a sandbox reads from its disk, and writes to it, where a cgroup can limit them.
pub const SANDBOX_IO_PER_SECOND: (u64, u64) = (256 << 20, 10_000);
/// Weight of a sandbox in its organization when processors are short, of an organization, and of all of them together;
/// the services of a machine have 1,024 (`cpu.shares`).
pub const SANDBOX_CPU_SHARES: u64 = 256;
/// The same of all of them together on cgroup v2, where services have 100 (`cpu.weight`).
pub const SANDBOXES_CPU_WEIGHT: u64 = 25;
/// Timeout of the wait for another process that creates or removes the cgroup of an organization, which takes it
/// milliseconds.
pub const CGROUP_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Pseudo terminals of a sandbox. All sandboxes of a machine share `kernel.pty.max`, which is 4,096.
pub const SANDBOX_TERMINALS_MAX: u32 = 64;
/// inotify instances of a sandbox, as many as a user of a machine has.
pub const SANDBOX_INOTIFY_INSTANCES_MAX: u32 = 128;
/// Files and directories that a sandbox watches with inotify; each takes about 1 KiB of its memory.
pub const SANDBOX_INOTIFY_WATCHES_MAX: u32 = 65_536;
/// Timeout of a call to `sojourn-init` that does not run a command.
pub const INIT_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an environment's lifecycle hook; hooks may install packages.
pub const LIFECYCLE_HOOK_TIMEOUT: Duration = Duration::from_secs(600);
/// Stored output of a lifecycle hook, per stream, in bytes; its end is reported on failure.
pub const LIFECYCLE_HOOK_OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// Timeout of one part of an archive of files, in either direction.
pub const ARCHIVE_PART_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a sandbox to unpack all of its files.
pub const ARCHIVE_UNPACK_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of one archive part sent into a sandbox; a frame holds more.
pub const ARCHIVE_PART_BYTES: usize = 256 << 10;
/// Archive parts that may be queued between a sandbox and the disk.
pub const ARCHIVE_PARTS_WAITING: usize = 8;
/// Max size of the list of a session's files, in bytes: 100,000 files with paths of 600 bytes.
pub const SCAN_BYTES_MAX: usize = 64 << 20;
/// Bytes of the paths in one call that fetches files; a frame holds more.
pub const FETCH_PATHS_BYTES_MAX: usize = 1 << 20;
/// Size of a fetched file up to which it is held in memory as a whole; larger ones are read in parts.
pub const FETCHED_WHOLE_BYTES_MAX: u64 = 8 << 20;
/// Max size of an archive of a session's files, before compression.
pub const CHECKPOINT_BYTES_MAX: u64 = 16 << 30;
/// Stored checkpoints of a session that its callers made.
pub const MANUAL_CHECKPOINTS_MAX: usize = 8;
/// Time for which the sandbox of a paused session is not hibernated, to preserve its processes.
pub const PAUSED_SANDBOX_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Stored automatic checkpoints of a session: the newest, and the previous one for a concurrent
/// reader.
pub const AUTOMATIC_CHECKPOINTS_MAX: usize = 2;
/// Retry interval of freezing or hibernating an idle sandbox that could not be: a command runs, or
/// its files could not be saved. Shorter if the settings freeze sandboxes sooner.
pub const IDLE_RETRY: Duration = Duration::from_secs(60);
/// Min interval between two heartbeat events in the log.
pub const HEARTBEAT_EVENT_INTERVAL: Duration = Duration::from_secs(300);
/// Retry interval of a rotation that could not save the files; the old sandbox stays in use.
pub const ROTATION_RETRY: Duration = Duration::from_secs(10);
/// Timeout of freezing or thawing a sandbox.
pub const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between SIGTERM and SIGKILL of a command; within the 2 s by which a turn may exceed its
/// deadline.
pub const KILL_GRACE: Duration = Duration::from_secs(1);
/// Tries of a sandbox call before it fails.
pub const SANDBOX_CALL_ATTEMPTS_MAX: u32 = 3;
/// First and longest back-off between tries to start or call a sandbox.
pub const SANDBOX_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
