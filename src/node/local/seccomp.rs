//! Seccomp profile: the system calls that a sandbox may use.
//!
//! Called by `bundle`. An allow-list based on the default profile of the Moby project; all other calls fail
//! with EPERM. Deliberately excluded: mounts, new namespaces, modules, keys, bpf, perf, io_uring,
//! userfaultfd, clocks, swap, quotas, open_by_handle_at, and asynchronous I/O (io_setup), whose contexts all
//! sandboxes of a machine share (fs.aio-max-nr). A command has no capability, so calls that need one
//! are excluded too.

use oci_spec::{
    OciSpecError,
    runtime::{
        LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
        LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
    },
};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: all flags with which clone creates a
/// namespace.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;
const AF_UNIX: u64 = 1;
const AF_NETLINK: u64 = 16;
/// Families of sockets with any protocol: Unix, IPv4, IPv6. The others reach parts of the kernel that nothing in
/// a sandbox needs and that have let programs escape: AF_ALG the page cache of files that are only readable
/// (CVE-2026-31431), AF_VSOCK the hypervisor, past the network namespace.
const SOCKET_FAMILIES: [u64; 3] = [AF_UNIX, 2, 10];
/// NETLINK_ROUTE and NETLINK_SOCK_DIAG, with which programs read interfaces, routes and sockets.
const NETLINK_PROTOCOLS: [u64; 2] = [0, 4];
/// `personality` values that programs use: query, Linux, 32-bit and their UNAME26 forms. Others disable
/// protections (READ_IMPLIES_EXEC, no ASLR).
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Mask of the node type in mknod's mode, and the types that are not devices.
const NODE_TYPE: u64 = 0o170000;
const NO_DEVICES: [u64; 4] = [0, 0o010000, 0o100000, 0o140000];

/// Action for a call that must appear not to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbsentCall {
    /// Fail with ENOSYS.
    Error,
    /// Notify a tracer that does not exist, which fails with ENOSYS: gVisor supports only one error number
    /// for all calls.
    Tracer,
}

/// Profile of every process in a sandbox. Only calls of the native architecture pass: the 32-bit tables are
/// additional kernel attack surface that nothing needs.
pub(super) fn profile(absent: AbsentCall) -> Result<LinuxSeccomp, OciSpecError> {
    let mut syscalls = vec![
        allow(&ALLOWED, Vec::new())?,
        allow(
            &["clone"],
            vec![argument(0, CLONE_NAMESPACES, Some(0), LinuxSeccompOperator::ScmpCmpMaskedEq)?],
        )?,
        // Its flags are in memory, which a filter cannot read. C libraries fall back to clone when clone3
        // does not exist.
        does_not_exist("clone3", absent)?,
        allow(&["socketpair"], vec![argument(0, AF_UNIX, None, LinuxSeccompOperator::ScmpCmpEq)?])?,
    ];
    for family in SOCKET_FAMILIES {
        let is_family = argument(0, family, None, LinuxSeccompOperator::ScmpCmpEq)?;
        syscalls.push(allow(&["socket"], vec![is_family])?);
    }
    for protocol in NETLINK_PROTOCOLS {
        let is_netlink = argument(0, AF_NETLINK, None, LinuxSeccompOperator::ScmpCmpEq)?;
        let is_protocol = argument(2, protocol, None, LinuxSeccompOperator::ScmpCmpEq)?;
        syscalls.push(allow(&["socket"], vec![is_netlink, is_protocol])?);
    }
    // A device needs a capability that no command has, but gVisor's own file systems do not check it.
    for (name, index) in [("mknod", 1), ("mknodat", 2)] {
        for kind in NO_DEVICES {
            let is_kind = argument(index, NODE_TYPE, Some(kind), LinuxSeccompOperator::ScmpCmpMaskedEq)?;
            syscalls.push(allow(&[name], vec![is_kind])?);
        }
    }
    for value in PERSONALITIES {
        let is_value = argument(0, value, None, LinuxSeccompOperator::ScmpCmpEq)?;
        syscalls.push(allow(&["personality"], vec![is_value])?);
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(EPERM)
        .syscalls(syscalls)
        .build()
}

fn does_not_exist(name: &str, absent: AbsentCall) -> Result<LinuxSyscall, OciSpecError> {
    let syscall = LinuxSyscallBuilder::default().names(vec![name.to_owned()]);
    match absent {
        AbsentCall::Error => syscall.action(LinuxSeccompAction::ScmpActErrno).errno_ret(ENOSYS).build(),
        AbsentCall::Tracer => syscall.action(LinuxSeccompAction::ScmpActTrace).build(),
    }
}

fn allow(names: &[&str], args: Vec<LinuxSeccompArg>) -> Result<LinuxSyscall, OciSpecError> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let syscall = LinuxSyscallBuilder::default().names(names).action(LinuxSeccompAction::ScmpActAllow);
    if args.is_empty() { syscall.build() } else { syscall.args(args).build() }
}

fn argument(
    index: usize,
    value: u64,
    value_two: Option<u64>,
    op: LinuxSeccompOperator,
) -> Result<LinuxSeccompArg, OciSpecError> {
    let argument = LinuxSeccompArgBuilder::default().index(index).value(value).op(op);
    match value_two {
        Some(value_two) => argument.value_two(value_two).build(),
        None => argument.build(),
    }
}

/// Calls that every program may use with any arguments.
#[rustfmt::skip]
const ALLOWED: [&str; 299] = [
    "accept", "accept4", "access", "adjtimex", "alarm", "arch_prctl", "bind", "brk", "cachestat", "capget",
    "capset", "chdir", "chmod", "chown", "clock_adjtime", "clock_getres", "clock_gettime",
    "clock_nanosleep", "close", "close_range", "connect", "copy_file_range", "creat", "dup", "dup2", "dup3",
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd",
    "eventfd2", "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64",
    "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync",
    "fgetxattr", "flistxattr", "flock", "fork", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync",
    "ftruncate", "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "futimesat",
    "get_mempolicy", "get_robust_list", "get_thread_area", "getcpu", "getcwd", "getdents", "getdents64",
    "getegid", "geteuid", "getgid", "getgroups", "getitimer", "getpeername", "getpgid", "getpgrp", "getpid",
    "getppid", "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid",
    "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "getxattrat",
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch",
    "ioctl", "ioprio_get", "ioprio_set", "kill",
    "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lchown", "lgetxattr", "link",
    "linkat", "listen", "listxattr", "listxattrat", "llistxattr", "lremovexattr", "lseek", "lsetxattr",
    "lstat", "madvise", "map_shadow_stack", "mbind", "membarrier", "memfd_create", "memfd_secret",
    "mincore", "mkdir", "mkdirat", "mlock", "mlock2", "mlockall", "mmap", "modify_ldt",
    "mprotect", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink",
    "mremap", "mseal", "msgctl", "msgget", "msgrcv", "msgsnd", "msync", "munlock", "munlockall", "munmap",
    "name_to_handle_at", "nanosleep", "newfstatat", "open", "openat", "openat2", "pause", "pidfd_getfd",
    "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free", "pkey_mprotect", "poll",
    "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64", "process_madvise", "process_mrelease",
    "process_vm_readv", "process_vm_writev", "pselect6", "ptrace", "pwrite64", "pwritev", "pwritev2",
    "read", "readahead", "readlink", "readlinkat", "readv", "recv", "recvfrom", "recvmmsg", "recvmsg",
    "remap_file_pages", "removexattr", "removexattrat", "rename", "renameat", "renameat2",
    "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
    "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "select", "semctl", "semget", "semop",
    "semtimedop", "send", "sendfile", "sendmmsg", "sendmsg", "sendto", "set_mempolicy",
    "set_mempolicy_home_node", "set_robust_list", "set_thread_area", "set_tid_address", "setfsgid",
    "setfsuid", "setgid", "setgroups", "setitimer", "setpgid", "setpriority", "setregid", "setresgid",
    "setresuid", "setreuid", "setrlimit", "setsid", "setsockopt", "setuid", "setxattr", "setxattrat",
    "shmat", "shmctl", "shmdt", "shmget", "shutdown", "sigaltstack", "signalfd", "signalfd4",
    "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range",
    "sync_file_range2", "syncfs", "sysinfo", "tee", "tgkill", "time", "timer_create", "timer_delete",
    "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime",
    "timerfd_settime", "times", "tkill", "truncate", "umask", "uname", "unlink", "unlinkat", "utime",
    "utimensat", "utimes", "vfork", "vmsplice", "wait4", "waitid", "write", "writev",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_escape_a_sandbox_are_not_allowed() {
        for name in [
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "setns",
            "unshare",
            "bpf",
            "perf_event_open",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "keyctl",
            "add_key",
            "request_key",
            "kexec_load",
            "kexec_file_load",
            "init_module",
            "finit_module",
            "delete_module",
            "userfaultfd",
            "open_by_handle_at",
            "clone",
            "clone3",
            "mknod",
            "mknodat",
            "socket",
            "socketpair",
            "io_setup",
            "personality",
            "reboot",
            "settimeofday",
            "clock_settime",
            "swapon",
            "quotactl",
            "acct",
            "syslog",
            "fsopen",
            "fsmount",
            "move_mount",
            "open_tree",
            "mount_setattr",
            "iopl",
            "ioperm",
            "vhangup",
            "lookup_dcookie",
            "move_pages",
        ] {
            assert!(!ALLOWED.contains(&name), "{name} is allowed without a condition");
        }
    }

    #[test]
    fn each_call_is_named_once_in_order() {
        assert!(ALLOWED.is_sorted_by(|before, after| before < after));
    }
}
