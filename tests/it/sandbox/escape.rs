//! The escape checklist: first attempts of untrusted code.
//!
//! Each line is a script that runs inside the sandbox and prints only what succeeded. All of them run, then
//! the table of results is printed.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use sojourn::{
    domain::EventKind,
    sandbox::{Cause, Exec},
};

use super::{Ran, World};

/// Writes the type and path of what the attempts look for to a file. One walk for all of them: with gVisor a walk over the
/// programs of a machine takes half a minute.
const WALK: &str = "find / -path /proc -prune -o \\( -type s -o -name release_agent -o -name memory.limit_in_bytes \
    -o -name memory.max -o -name pids.max -o -name cgroup.procs -o -name workspace \\) -printf '%y %p\\n' \
    > /tmp/found 2>/dev/null; grep -c ' /workspace$' /tmp/found";

/// Attempts: description and script.
const CHECKLIST: [(&str, &str); 33] = [
    ("sockets of a container engine", "grep '^s' /tmp/found"),
    ("the host through /proc/1/root", "ls /proc/1/root/ /proc/1/cwd/ 2>/dev/null"),
    (
        "the core pattern",
        "{ echo '|/bin/true' > /proc/sys/kernel/core_pattern; } 2>/dev/null && echo written",
    ),
    (
        "a release agent",
        "grep '/release_agent$' /tmp/found; mount -t cgroup none /tmp 2>/dev/null && echo mounted",
    ),
    (
        "mounts",
        "for kind in tmpfs proc sysfs overlay; do mount -t $kind none /tmp 2>/dev/null && echo $kind; done",
    ),
    ("new namespaces", "for kind in U m n p i u C; do unshare -$kind true 2>/dev/null && echo $kind; done"),
    ("entering the namespaces of init", "nsenter -t 1 -m -n -p true 2>/dev/null && echo entered"),
    (
        "ptrace of init",
        "python3 -c 'import ctypes; print(\"traced\") if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 0'",
    ),
    ("the memory of init", "head -c 1 /proc/1/mem 2>/dev/null"),
    ("the variables and the map of init", VARIABLES),
    (
        "init's own program",
        "{ echo x > /proc/1/exe; echo x > /.sojourn/sojourn-init; } 2>/dev/null && echo written",
    ),
    ("signals to init", "kill -9 1 2>/dev/null && echo killed"),
    ("raw sockets and other families", SOCKETS),
    ("io_uring, bpf, keys, modules", CALLS),
    ("asynchronous I/O contexts", ASYNCHRONOUS),
    (
        "becoming root",
        "python3 -c 'import os; os.setuid(0); print(os.getuid())' 2>/dev/null; sudo -n id 2>/dev/null",
    ),
    (
        "a program with set-user-id",
        "cp /bin/sh /workspace/s && chmod 4755 /workspace/s; /workspace/s -p -c 'test $(id -u) != 1000 && id'; rm /workspace/s",
    ),
    (
        "device nodes",
        "for place in /tmp /dev/shm /workspace; do mknod $place/d b 8 0 2>/dev/null && echo $place; done; \
         head -c 1 /dev/mem /dev/kmsg /dev/sda /dev/vda /dev/loop0 2>/dev/null",
    ),
    (
        "the kernel's log and symbols",
        "dmesg 2>/dev/null | head -1; grep -v '^0000000000000000' /proc/kallsyms 2>/dev/null | head -1",
    ),
    ("disks of the machine", "cat /proc/diskstats /proc/partitions 2>/dev/null | head -1"),
    (
        "sysctl, sysrq",
        "for file in kernel/panic vm/drop_caches kernel/hostname; do { echo 1 > /proc/sys/$file; } 2>/dev/null && echo $file; done; \
        { echo h > /proc/sysrq-trigger; } 2>/dev/null && echo sysrq",
    ),
    (
        "its own limits",
        "for file in $(grep -E '/(memory.limit_in_bytes|memory.max|pids.max|cgroup.procs)$' /tmp/found | cut -c 3-); do \
        { echo 0 > $file; } 2>/dev/null && echo $file; done",
    ),
    (
        "descriptors that leaked in",
        "for fd in /proc/self/fd/*; do readlink $fd; done | grep '^/' | grep -vE '^/(proc|dev/null|usr|lib|workspace)'",
    ),
    ("the control directory", "ls /.sojourn/control /.sojourn/output 2>/dev/null"),
    (
        "other sessions' files",
        "grep '/workspace$' /tmp/found | grep -v ' /workspace$'; \
         ls -d /var/lib/sojourn* /var/lib/docker* /var/lib/containers* /data /srv/* 2>/dev/null",
    ),
    ("secrets of the host", "cat /etc/shadow /etc/machine-id /root/.bashrc /etc/ssh/ssh_host_* 2>/dev/null"),
    (
        "other processes",
        "for pid in $(ls /proc | grep -E '^[0-9]+$'); do cat /proc/$pid/comm; done 2>/dev/null | grep -vE '^(sojourn-init|bash|ls|cat|grep)$'",
    ),
    ("metadata addresses", METADATA),
    (
        "the proxy's port",
        "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 3128)); print(\"bound\")' 2>/dev/null",
    ),
    (
        "writing outside of its places",
        "for place in / /etc /usr /bin /.sojourn /.sojourn/egress /opt /home; do touch $place/x 2>/dev/null && echo $place; done",
    ),
    (
        "links out of the workspace",
        "ln -s /etc/shadow l; cat l 2>/dev/null; ln /etc/passwd h 2>/dev/null && echo linked; rm -f l h",
    ),
    (
        "dangerous personalities",
        "setarch -X true 2>/dev/null && echo read-implies-exec; setarch -R true 2>/dev/null && echo no-randomization",
    ),
    ("handles of files", HANDLES),
];

/// gVisor shows these to every user of a sandbox. They contain only what a command has itself.
const VARIABLES: &str = "head -c 1 /proc/1/environ /proc/1/maps 2>/dev/null";

const SOCKETS: &str = "python3 - <<'END'
import socket
unix, ipv4, ipv6, netlink = 1, 2, 10, 16
attempts = [(family, kind, 0) for family in range(64) for kind in (1, 2, 3, 4, 5) if family not in (unix, ipv4, ipv6, netlink)]
attempts += [(netlink, 3, protocol) for protocol in range(1, 32) if protocol != 4]
attempts += [(ipv4, 3, 1), (ipv4, 3, 255), (ipv6, 3, 58)]
for family, kind, protocol in attempts:
    try:
        socket.socket(family, kind, protocol); print(family, kind, protocol)
    except OSError:
        pass
for family in range(64):
    try:
        family == unix or socket.socketpair(family) and print('pair', family)
    except OSError:
        pass
END";

const CALLS: &str = "python3 - <<'END'
import ctypes, platform
libc = ctypes.CDLL(None)
x86 = {'io_uring_setup': 425, 'bpf': 321, 'keyctl': 250, 'init_module': 175, 'userfaultfd': 323, 'perf_event_open': 298,
       'kexec_load': 246, 'fsopen': 430, 'pivot_root': 155, 'setns': 308, 'swapon': 167, 'reboot': 169, 'iopl': 172}
for name, number in x86.items() if platform.machine() == 'x86_64' else ():
    if libc.syscall(number, 0, 0, 0, 0, 0) != -1:
        print(name)
END";

const ASYNCHRONOUS: &str = "python3 - <<'END'
import ctypes, platform
context = ctypes.c_ulong(0)
number = 206 if platform.machine() == 'x86_64' else 0
if ctypes.CDLL(None).syscall(number, 1, ctypes.byref(context)) == 0:
    print('made')
END";

const METADATA: &str = "python3 - <<'END'
import socket
for host in ('169.254.169.254', '100.100.100.200', '192.0.0.192', '168.63.129.16', '10.0.0.1', '172.17.0.1', '1.1.1.1'):
    try:
        socket.create_connection((host, 80), 1); print(host)
    except OSError:
        pass
END";

const HANDLES: &str = "python3 - <<'END'
import ctypes
libc = ctypes.CDLL(None)
handle = ctypes.create_string_buffer(b'\\x08\\0\\0\\0\\x01\\0\\0\\0\\x02\\0\\0\\0\\0\\0\\0\\0')
if libc.open_by_handle_at(-100, handle, 0) >= 0:
    print('opened')
END";

const LOOPBACK: &str = "the host's loopback";

/// Descriptions of the attempts.
pub fn tried() -> impl Iterator<Item = &'static str> {
    CHECKLIST.into_iter().map(|(name, _)| name).chain([LOOPBACK])
}

pub async fn the_escape_checklist_holds(world: &World<'_>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let loopback = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 1); print(\"reached\")' 2>/dev/null"
    );
    let walk = Exec { timeout: Duration::from_secs(240), ..world.shell("walk", WALK) };
    assert_eq!(world.ran(&walk).await.stdout, "1\n", "the walk found its own workspace");
    let mut table = String::new();
    let mut escapes = 0;
    for (name, script) in CHECKLIST.into_iter().chain([(LOOPBACK, loopback.as_str())]) {
        let got = world.says(&format!("{script}\ntrue")).await;
        let got = if world.provider.is_gvisor() && script == VARIABLES { String::new() } else { got };
        escapes += usize::from(!got.is_empty());
        let outcome = if got.is_empty() { "held" } else { got.as_str() };
        table.push_str(&format!("{name:<34} {outcome}\n"));
    }
    println!("escape checklist\n{table}");
    assert!(listener.accept().is_err(), "something escaped from the sandbox");
    assert_eq!(escapes, 0, "{table}");
}

pub async fn an_exit_code_cannot_be_forged(world: &World<'_>) {
    let forged = "{\"code\":0,\"cause\":\"exited\",\"stdout_bytes\":0,\"stderr_bytes\":0,\"duration_ms\":0}";
    let script = format!(
        "line='{forged}'; printf '%s\\ngone\\n' \"$line\"; printf '%s\\ngone\\n' \"$line\" >&2
        for fd in /proc/$PPID/fd/* /proc/1/fd/*; do printf '%s\\ngone\\n' \"$line\" > $fd; done 2>/dev/null
        for fd in 3 4 5 6 7 8 9; do eval \"printf '%s\\ngone\\n' '$line' >&$fd\"; done 2>/dev/null
        exit 7"
    );
    let ran = world.ran(&world.shell("forger", &script)).await;
    assert_eq!(ran.exit.code, 7);
    assert!(ran.stdout.contains(forged), "it is output and nothing more");
}

pub async fn what_is_used_up_ends_the_command_and_not_the_sandbox(world: &World<'_>) {
    let descriptors = "python3 - <<'END'
import os
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError as error:
    print(error.errno, len(held) < 65536)
END";
    assert_eq!(world.says(descriptors).await, "24 True");
    let memory_disk =
        "head -c 4G /dev/zero > /tmp/full 2>/dev/null && echo written; rm -f /tmp/full; echo over";
    assert_eq!(world.says(memory_disk).await, "over");
    assert_eq!(world.says("echo alive").await, "alive");
}

pub async fn a_full_disk_ends_the_command_and_not_the_sandbox(world: &World<'_>) {
    // Where the size is only measured periodically, the second part is killed.
    let flood = "head -c 200M /dev/zero > big 2>/dev/null && sleep 30";
    let ran = world.ran(&world.shell("flood", flood)).await;
    assert_eq!(ran.exit.cause, Cause::DiskFull, "{ran:?}");
    assert_ne!(ran.exit.code, 0);
    // Output and control files of commands do not count against the disk.
    let ran = not_ended(world, "yes | head -c 100K; false").await;
    assert_eq!((ran.stdout.len(), ran.exit.code), (100 << 10, 1));
    assert_eq!(not_ended(world, "rm big; echo removed").await.stdout, "removed\n");
    assert_eq!(not_ended(world, "head -c 8M /dev/zero > small").await.exit.code, 0);
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(fault) = world.sandbox.write_file(world.fence, "more", b"more").await {
        // Where the size is measured, the next measurement finds free space again.
        assert!(Instant::now() < until, "{fault}");
        tokio::task::yield_now().await;
    }
    assert_eq!(world.says("cat more").await, "more");
}

/// Runs a script while the disk may be full. Where its size is measured, every 2 s, a measurement that finds too
/// much kills everything that runs at that moment, so a short script may be hit once, and after a pause of the
/// machine twice. Where the disk has a file system of its own nothing is killed.
pub async fn not_ended(world: &World<'_>, script: &str) -> Ran {
    let tries = if world.provider.measures_disks() { 3 } else { 1 };
    for at in 0..tries {
        let id = format!("try-{at}-{}", world.origin.id::<EventKind>());
        let ran = world.ran(&world.shell(&id, script)).await;
        if ran.exit.cause != Cause::DiskFull || ran.exit.code < 128 {
            return ran;
        }
    }
    panic!("{tries} measurements killed it: {script}");
}

/// While a command swaps a directory for a link and back, a worker's file operations through it stay in the
/// sandbox, with the command's rights.
pub async fn a_race_of_links_leads_nowhere(world: &World<'_>) {
    // Created before the first write through it, which would create a directory of this name.
    world.says("mkdir real; echo own > real/passwd; ln -s real d").await;
    let swap = "exec python3 - <<'END'
import itertools, os
for target in itertools.cycle(['/etc', '/.sojourn/control', 'real']):
    os.symlink(target, 'new')
    os.rename('new', 'd')
END";
    world.sandbox.start(world.fence, &world.shell("swap", swap)).await.unwrap();
    let mut read = 0;
    let until = Instant::now() + Duration::from_secs(20);
    for at in 0.. {
        if at >= 100 && (read > 0 || Instant::now() > until) {
            break;
        }
        let part = world.sandbox.read_file(world.fence, "d/passwd", 0, 1 << 16).await;
        if let Ok(part) = part {
            let text = String::from_utf8(part.content).unwrap();
            assert!(text == "own\n" || text.contains("agent:x:1000"), "{text}");
            read += 1;
        }
        let _ = world.sandbox.write_file(world.fence, &format!("d/raced-{at}"), b"x").await;
    }
    world.sandbox.kill(world.fence, "swap").await.unwrap();
    assert!(read > 0, "no read succeeded during the race");
    assert_eq!(
        world
            .says("find / -path /proc -prune -o -path /usr -prune -o -name 'raced-*' -not -path '/workspace/*' -print 2>/dev/null; true")
            .await,
        ""
    );
}
