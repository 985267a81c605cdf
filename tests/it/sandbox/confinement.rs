//! Confinement: what a command cannot see, do or become.

use sojourn::sandbox::Fault;

use super::World;

pub async fn a_command_is_an_unprivileged_user_for_good(world: &World<'_>) {
    assert_eq!(world.says("id -u; id -g; id -G; whoami").await, "1000\n1000\n1000\nagent");
    let status = world.says("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t'").await;
    let zero = "0000000000000000";
    // gVisor does not report these two lines.
    let rest =
        if world.provider.is_gvisor() { String::new() } else { format!("CapAmb:{zero}\nNoNewPrivs:1\n") };
    let expected = format!("CapInh:{zero}\nCapPrm:{zero}\nCapEff:{zero}\nCapBnd:{zero}\n{rest}Seccomp:2");
    assert_eq!(status, expected);
    assert_ne!(world.says("cat /proc/self/oom_score_adj").await, "0");
    assert_eq!(world.says("su -c id 2>&1; sudo -n id 2>&1; true").await.matches("uid=0").count(), 0);
}

pub async fn nothing_of_the_host_is_visible(world: &World<'_>) {
    let root = world.says("ls -A / | grep -vxE 'lib(32|64|x32)|.dockerenv|srv' | tr '\\n' ' '").await;
    assert_eq!(root, ".sojourn bin dev etc home lib opt proc root run sbin skills sys tmp usr var workspace");
    assert_eq!(world.says("ls -A /root /opt /run /home/agent | grep -v : ; true").await, "");
    // gVisor has its own, without information about the machine.
    let hardware = "find /sys -type f -not -path '/sys/fs/cgroup/*' 2>/dev/null | head -3";
    assert!(world.provider.is_gvisor() || world.says(hardware).await.is_empty());
    assert_eq!(world.says("ls -A /home").await, "agent");
    assert_eq!(world.says("cat /etc/shadow /etc/machine-id 2>/dev/null; true").await, "");
    assert_eq!(world.says("hostname").await, "sandbox");
    // Only the sandbox's own processes: init, a runner, the command.
    assert_eq!(world.says("cat /proc/1/comm").await, "sojourn-init");
    assert!(world.says("ls -d /proc/[0-9]* | wc -l").await.parse::<u32>().unwrap() < 8);
    let readable = world.says("cat /proc/kcore /proc/keys /proc/kallsyms 2>/dev/null | wc -c; true").await;
    assert_eq!(readable, "0");
    let commit = "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m";
    for tool in [commit, "python3 -c 'import ssl, json, sqlite3'", "awk 'BEGIN { exit 0 }'"] {
        world.says(tool).await;
    }
}

pub async fn the_environment_is_the_sandboxes_own(world: &World<'_>) {
    let names = world
        .says("env -0 | cut -z -d= -f1 | tr '\\0' '\\n' | grep -vxE '_|SHLVL|OLDPWD|HOSTNAME' | sort | tr '\\n' ' '")
        .await;
    let own = "SANDBOX_SETTING HOME LANG LOGNAME PATH PWD SHELL TERM TMPDIR USER";
    let of_the_proxy = "ALL_PROXY HTTPS_PROXY HTTP_PROXY NO_PROXY all_proxy http_proxy https_proxy no_proxy \
        CARGO_HTTP_CAINFO CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_FILE";
    let mut expected: Vec<_> = own.split_whitespace().chain(of_the_proxy.split_whitespace()).collect();
    expected.sort_unstable();
    let mut names: Vec<_> = names.split_whitespace().collect();
    names.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(world.says("echo $SANDBOX_SETTING in $HOME").await, "of the sandbox in /home/agent");
    let bad = sojourn::sandbox::Exec {
        env: vec![("A=B".to_owned(), "c".to_owned())],
        ..world.shell("bad-name", "true")
    };
    assert!(matches!(world.sandbox.start(world.fence, &bad).await, Err(Fault::Refused(_))));
}

pub async fn there_is_no_network_but_loopback(world: &World<'_>) {
    assert_eq!(world.says("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(world.says("tail -n +2 /proc/net/route | wc -l").await, "0");
    let script = "python3 - <<'END'
import socket
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname(), 2).close()
print('loopback works')
END";
    assert_eq!(world.says(script).await, "loopback works");
}

pub async fn mounts_and_new_namespaces_are_refused(world: &World<'_>) {
    for attempt in [
        "mount -t tmpfs none /tmp",
        "mount --bind /usr /tmp",
        "umount /workspace",
        "unshare -r true",
        "unshare -U true",
        "unshare -m true",
        "unshare -n true",
        "nsenter -t 1 -m true",
        "chroot / true",
        "mknod /tmp/disk b 254 0",
        "dmesg",
    ] {
        assert_eq!(
            world.says(&format!("{attempt} >/dev/null 2>&1 && echo done || echo refused")).await,
            "refused",
            "{attempt}"
        );
    }
    // System calls by number, past the programs' own checks: tests the seccomp filter.
    let script = "python3 - <<'END'
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
calls = {'keyctl': 250, 'add_key': 248, 'bpf': 321, 'io_uring_setup': 425, 'userfaultfd': 323, 'unshare': 272,
         'perf_event_open': 298, 'kexec_load': 246, 'mount': 165, 'open_by_handle_at': 304, 'fsopen': 430}
if platform.machine() != 'x86_64':
    calls = {}
for name, number in calls.items():
    result = libc.syscall(number, 0, 0, 0, 0, 0)
    if result != -1 or ctypes.get_errno() != 1:
        print(name, result, ctypes.get_errno())
CLONE_NEWUSER = 0x10000000
print(libc.syscall(56, CLONE_NEWUSER | 17, 0, 0, 0, 0) if calls else -1, ctypes.get_errno() if calls else 1)
print(libc.syscall(435, 0, 0) if calls else -1, ctypes.get_errno() if calls else 38)
END";
    assert_eq!(world.says(script).await, "-1 1\n-1 38");
}

pub async fn only_the_sessions_places_are_writable(world: &World<'_>) {
    let script = "for place in / /usr /usr/bin /etc /home /var /root /opt /sys /proc/sys /.sojourn /dev; do
        touch $place/probe 2>/dev/null && echo $place
    done
    for place in /workspace /home/agent /tmp /var/tmp /dev/shm; do
        touch $place/probe || echo $place
    done
    echo 1 2>/dev/null > /proc/sys/kernel/panic && echo sysctl; echo 1 2>/dev/null > /proc/sysrq-trigger && echo sysrq; true";
    assert_eq!(world.says(script).await, "");
    assert_eq!(
        world.says("stat -f -c '%S %b' /tmp | { read size blocks; echo $((size * blocks >> 20)); }").await,
        "128"
    );
}

pub async fn init_is_out_of_reach_of_commands(world: &World<'_>) {
    // gVisor lets every user count the open files of init; reading or writing one fails.
    const COUNT: &str = "ls /proc/1/fd /proc/$PPID/fd";
    // gVisor stores `oom_score_adj` itself; nothing outside reads it.
    const BADNESS: &str = "echo -1000 > /proc/self/oom_score_adj";
    let attempts = [
        "ls /.sojourn/control",
        "ls /.sojourn/output",
        "kill -9 1",
        "cat /proc/1/mem",
        COUNT,
        "for fd in /proc/1/fd/*; do
            [ -c $fd ] && continue
            case $(readlink $fd) in pipe:*) ;; *) [ -z \"$(head -c1 $fd)\" ] || exit 0;; esac
            (echo >> $fd) && exit 0
        done; exit 1",
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('/.sojourn/control/init.sock')\"",
        BADNESS,
    ];
    let means_nothing = |one: &str| world.provider.is_gvisor() && [COUNT, BADNESS].contains(&one);
    for attempt in attempts.into_iter().filter(|one| !means_nothing(one)) {
        let script = format!(
            "bash -c '{}' >/dev/null 2>&1 && echo done || echo refused",
            attempt.replace('\'', "'\\''")
        );
        assert_eq!(world.says(&script).await, "refused", "{attempt}");
    }
    // A command may kill all processes of its user at once, and no others.
    assert_eq!(world.says("sleep 609 & kill -9 -1; echo alone").await, "alone");
    assert_eq!(world.says("echo alive").await, "alive");
}
