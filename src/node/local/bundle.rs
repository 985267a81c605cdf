//! The OCI runtime configuration of a sandbox.
//!
//! Called by `local` when it creates one. Pure, so that a sandbox's permissions are defined in one place. All
//! namespaces are new, the root file system is read-only, nothing of the host's environment or network is
//! visible, and the only capabilities are those that init needs to switch to another user.

use std::{collections::HashSet, path::Path};

use oci_spec::{
    OciSpecError,
    runtime::{
        Capability, Linux, LinuxBlockIo, LinuxBlockIoBuilder, LinuxBuilder, LinuxCapabilitiesBuilder,
        LinuxCpuBuilder, LinuxDeviceCgroupBuilder, LinuxIdMappingBuilder, LinuxMemoryBuilder,
        LinuxNamespaceBuilder, LinuxNamespaceType, LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder,
        LinuxThrottleDevice, LinuxThrottleDeviceBuilder, Mount, MountBuilder, PosixRlimit,
        PosixRlimitBuilder, PosixRlimitType, Process, ProcessBuilder, RootBuilder, Spec, SpecBuilder,
        UserBuilder,
    },
};
use rustix::{
    fs::{StatVfsMountFlags, major, minor, stat, statvfs},
    process::{Resource, getrlimit},
};
use sojourn_init::protocol::{
    CERTIFICATES, CONTROL_DIR, EGRESS_DIR, OOM_COUNTER, OUTPUT_DIR, PROGRAM, PROXY_PORT, SKILLS, WORKSPACE,
};

use super::{
    disk::Disk,
    layout::IdRange,
    rootfs::{Base, HOME, USER},
    seccomp::{self, AbsentCall},
};
use crate::{
    base::limit,
    domain::{OrgId, SessionId},
    sandbox::SandboxLimits,
};

/// Inputs of a configuration.
#[derive(Clone, Copy)]
pub(super) struct ContainerSpec<'a> {
    pub base: &'a Base,
    pub disk: &'a Disk,
    pub control_dir: &'a Path,
    pub egress_dir: &'a Path,
    pub org: OrgId,
    pub session: SessionId,
    /// The sandbox's range of host ids; `first` is 0 when it uses the host's own ids, without a user
    /// namespace.
    pub ids: IdRange,
    pub is_gvisor: bool,
    pub limits: SandboxLimits,
    pub env: &'a [(String, String)],
    pub orphan_seconds: Option<u64>,
    /// Maximum size of the files in bytes, where init enforces it.
    pub disk_bytes: Option<u64>,
    pub role: Role<'a>,
    /// A user namespace that exists and is joined; the runtime makes one if this is `None` and `ids` are not those of
    /// the host.
    pub user_namespace: Option<&'a Path>,
}

/// Purpose of a container.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role<'a> {
    /// Sandbox of a session.
    Sandbox,
    /// Installs packages into a root file system. The whole root file system is writable, and this command
    /// runs as its root.
    Install(&'a [String]),
}

/// The cgroup of a sandbox, where the service creates it.
pub(super) struct Cgroup<'a> {
    pub path: &'a Path,
    /// File with the count of processes killed by the OOM killer.
    pub oom_counter: &'a Path,
    /// Whether swap is accounted and can be limited.
    pub limits_swap: bool,
    /// Whether reads and writes can be limited.
    pub limits_io: bool,
}

/// Major number of loop devices.
const LOOP_DEVICES: u32 = 7;
/// OCI specification version of the fields used; every supported runtime accepts it.
const OCI_VERSION: &str = "1.0.2";
/// CPU scheduler period in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// Size of `/dev/shm` in bytes; it counts towards the memory limit.
const SHM: &str = "size=67108864";
/// Connections to the sandbox's own loopback bypass the proxy.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// Paths below `/proc` that expose or control the host.
const MASKED: [&str; 16] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Capabilities of an installer's root within its user namespace.
const INSTALLER_CAPABILITIES: [Capability; 8] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setfcap,
    Capability::Kill,
];

/// Builds the whole configuration. Without `cgroup`, the engine chooses one and mounts it in the sandbox at
/// the path where init reads it.
pub(super) fn spec(of: &ContainerSpec<'_>, cgroup: Option<&Cgroup<'_>>) -> Result<Spec, OciSpecError> {
    SpecBuilder::default()
        .version(OCI_VERSION)
        .root(RootBuilder::default().path(of.base.rootfs.as_path()).readonly(is_sandbox(of)).build()?)
        .hostname("sandbox")
        .process(process(of)?)
        .mounts(mounts(of, cgroup)?)
        .linux(linux(of, cgroup)?)
        .build()
}

fn is_sandbox(of: &ContainerSpec<'_>) -> bool {
    matches!(of.role, Role::Sandbox)
}

/// Number of ids of the container's range.
pub(super) fn number_of_ids(of: &ContainerSpec<'_>) -> u32 {
    if is_sandbox(of) { IdRange::IDS } else { IdRange::OF_IMAGES }
}

fn process(of: &ContainerSpec<'_>) -> Result<Process, OciSpecError> {
    let rights = match of.role {
        // `Setpcap` is dropped first: init empties the bounding set before it does anything else.
        Role::Sandbox => {
            vec![Capability::Setuid, Capability::Setgid, Capability::Kill, Capability::Setpcap]
        }
        Role::Install(_) => INSTALLER_CAPABILITIES.to_vec(),
    };
    let rights: HashSet<_> = rights.into_iter().collect();
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(rights.clone())
        .permitted(rights.clone())
        .effective(rights)
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()?;
    let or_zero = |number: Option<u64>| number.unwrap_or(0).to_string();
    let args = match of.role {
        Role::Sandbox => ["serve".to_owned(), or_zero(of.orphan_seconds), or_zero(of.disk_bytes)].to_vec(),
        Role::Install(command) => std::iter::once("install".to_owned()).chain(command.to_vec()).collect(),
    };
    let args: Vec<String> = std::iter::once(PROGRAM.to_owned()).chain(args).collect();
    ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0u32).gid(0u32).umask(0o022u32).build()?)
        .args(args)
        .env(environment(of.env))
        .cwd("/")
        .capabilities(capabilities)
        .rlimits(rlimits(of.limits)?)
        .no_new_privileges(true)
        .build()
}

/// Environment of every command: fixed values, overridden by the sandbox's own.
fn environment(own: &[(String, String)]) -> Vec<String> {
    let mut fixed = vec![
        ("PATH", "/home/agent/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", HOME),
        ("USER", USER),
        ("LOGNAME", USER),
        ("SHELL", "/bin/bash"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
    ];
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    // Programs read different spellings; curl reads only lower-case `http_proxy`.
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        fixed.push((name, &proxy));
    }
    fixed.extend([("NO_PROXY", NO_PROXY), ("no_proxy", NO_PROXY)]);
    // Read by OpenSSL, Node, requests and pip, git, curl, cargo, in this order.
    for name in [
        "SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "CURL_CA_BUNDLE",
        "CARGO_HTTP_CAINFO",
    ] {
        fixed.push((name, CERTIFICATES));
    }
    fixed.retain(|(name, _)| !own.iter().any(|(own_name, _)| own_name == name));
    let fixed = fixed.iter().map(|(name, value)| format!("{name}={value}"));
    fixed.chain(own.iter().map(|(name, value)| format!("{name}={value}"))).collect()
}

fn rlimits(limits: SandboxLimits) -> Result<Vec<PosixRlimit>, OciSpecError> {
    let rlimit = |typ, resource, wanted: u64| {
        // Limits are only lowered: raising one needs a capability that the service may lack.
        let value = getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted));
        PosixRlimitBuilder::default().typ(typ).soft(value).hard(value).build()
    };
    Ok(vec![
        // Counted per user of the sandbox: it keeps commands below the sandbox's own process limit, so that
        // init can always start a process.
        rlimit(PosixRlimitType::RlimitNproc, Resource::Nproc, u64::from(limits.pids))?,
        rlimit(PosixRlimitType::RlimitNofile, Resource::Nofile, limit::SANDBOX_OPEN_FILES_MAX)?,
        // Disables core files. 1, unlike 0, also stops the kernel from starting a core pattern's pipe program
        // on the host (core(5), do_coredump in the kernel).
        rlimit(PosixRlimitType::RlimitCore, Resource::Core, 1)?,
    ])
}

fn mounts(of: &ContainerSpec<'_>, cgroup: Option<&Cgroup<'_>>) -> Result<Vec<Mount>, OciSpecError> {
    // Files in `/tmp` count as memory and remain when the processes that wrote them are killed for memory, so
    // they may use at most half of the memory limit.
    let tmp_size = format!("size={}", limit::SANDBOX_TMP_BYTES.min(of.limits.memory_bytes / 2));
    let terminals = format!("max={}", limit::SANDBOX_TERMINALS_MAX);
    let terminals: &[&str] = if of.is_gvisor { &[] } else { &[&terminals] };
    let mut mounts = vec![
        mount("/proc", "proc", Path::new("proc"), &["nosuid", "noexec", "nodev"])?,
        mount(
            "/dev",
            "tmpfs",
            Path::new("tmpfs"),
            &["nosuid", "noexec", "strictatime", "mode=755", "size=65536"],
        )?,
        mount(
            "/dev/pts",
            "devpts",
            Path::new("devpts"),
            &[&["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"], terminals].concat(),
        )?,
        mount("/dev/shm", "tmpfs", Path::new("shm"), &["nosuid", "noexec", "nodev", "mode=1777", SHM])?,
    ];
    if is_sandbox(of) {
        let options = ["nosuid", "nodev", "mode=1777", &tmp_size];
        mounts.push(mount("/tmp", "tmpfs", Path::new("tmp"), &options)?);
    }
    for (from, to) in &of.base.binds {
        mounts.push(bind(&to.to_string_lossy(), from, &["rbind", "ro"])?);
    }
    mounts.push(bind(EGRESS_DIR, of.egress_dir, &["bind", "ro", "noexec"])?);
    if !is_sandbox(of) {
        return Ok(mounts);
    }
    mounts.push(bind(WORKSPACE, &of.disk.workspace, &["bind", "rw"])?);
    mounts.push(bind(HOME, &of.disk.home, &["bind", "rw"])?);
    mounts.push(bind(SKILLS, &of.disk.skills, &["bind", "rw"])?);
    mounts.push(bind(CONTROL_DIR, of.control_dir, &["bind", "rw", "noexec"])?);
    mounts.push(bind(OUTPUT_DIR, &of.disk.output, &["bind", "rw", "noexec"])?);
    if let Some(cgroup) = cgroup {
        mounts.push(bind(OOM_COUNTER, cgroup.oom_counter, &["bind", "ro", "noexec"])?);
    }
    Ok(mounts)
}

fn mount(destination: &str, typ: &str, source: &Path, options: &[&str]) -> Result<Mount, OciSpecError> {
    let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
    MountBuilder::default().destination(destination).typ(typ).source(source).options(options).build()
}

/// Bind mount without devices and set-user-id programs. It also keeps the `noexec` and `ro` flags of the
/// source's file system, because a user namespace may not clear them.
fn bind(destination: &str, source: &Path, options: &[&str]) -> Result<Mount, OciSpecError> {
    let flags = statvfs(source).map_or(StatVfsMountFlags::empty(), |stat| stat.f_flag);
    let mut options = [options, &["nosuid", "nodev"]].concat();
    for (flag, name) in [(StatVfsMountFlags::NOEXEC, "noexec"), (StatVfsMountFlags::RDONLY, "ro")] {
        if flags.contains(flag) && !options.contains(&name) {
            options.push(name);
        }
    }
    mount(destination, "bind", source, &options)
}

fn linux(of: &ContainerSpec<'_>, cgroup: Option<&Cgroup<'_>>) -> Result<Linux, OciSpecError> {
    let namespaces = [
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        // A new network namespace has only the loopback device.
        LinuxNamespaceType::Network,
        LinuxNamespaceType::Cgroup,
    ];
    let namespaces = namespaces.into_iter().map(|typ| LinuxNamespaceBuilder::default().typ(typ).build());
    let mut namespaces = namespaces.collect::<Result<Vec<_>, _>>()?;
    let mut ids = Vec::new();
    if of.ids.first > 0 {
        let user = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::User);
        namespaces.push(match of.user_namespace {
            Some(path) => user.path(path).build()?,
            None => user.build()?,
        });
        let mapping = LinuxIdMappingBuilder::default().container_id(0u32).host_id(of.ids.first);
        ids.push(mapping.size(number_of_ids(of)).build()?);
    }
    let owned = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect::<Vec<String>>();
    let linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .uid_mappings(ids.clone())
        .gid_mappings(ids)
        .resources(resources(of, cgroup)?)
        .seccomp(seccomp::profile(if of.is_gvisor { AbsentCall::Tracer } else { AbsentCall::Error })?)
        .rootfs_propagation("private")
        .masked_paths(owned(&MASKED))
        .readonly_paths(owned(&READ_ONLY));
    match cgroup {
        Some(cgroup) => linux.cgroups_path(cgroup.path).build(),
        None => linux.build(),
    }
}

fn resources(of: &ContainerSpec<'_>, cgroup: Option<&Cgroup<'_>>) -> Result<LinuxResources, OciSpecError> {
    let memory_bytes = i64::try_from(of.limits.memory_bytes).unwrap_or(i64::MAX);
    let memory = LinuxMemoryBuilder::default().limit(memory_bytes);
    // The swap limit includes memory, so equal limits mean that a sandbox never swaps.
    let memory =
        if cgroup.is_some_and(|cgroup| cgroup.limits_swap) { memory.swap(memory_bytes) } else { memory };
    let quota_us = u64::from(of.limits.cpu_millis) * CPU_PERIOD_US / 1_000;
    // All sandboxes together yield to the services of the machine.
    let cpu = LinuxCpuBuilder::default().shares(limit::SANDBOX_CPU_SHARES);
    let cpu = cpu.quota(quota_us.max(1_000) as i64).period(CPU_PERIOD_US);
    let processes = i64::from(of.limits.pids.saturating_add(limit::SANDBOX_PIDS_RESERVED));
    // The runtime adds the standard devices (null, zero, urandom, ...).
    let no_device = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?;
    let resources = LinuxResourcesBuilder::default()
        .memory(memory.build()?)
        .cpu(cpu.build()?)
        .pids(LinuxPidsBuilder::default().limit(processes).build()?)
        .devices(vec![no_device]);
    let loop_device = device_of(&of.disk.files).filter(|(major, _)| *major == LOOP_DEVICES);
    // The daemon of Docker makes the cgroup, and leaves out what the kernel cannot limit.
    match loop_device.filter(|_| cgroup.is_none_or(|cgroup| cgroup.limits_io)) {
        Some(device) => resources.block_io(block_io(device)?).build(),
        None => resources.build(),
    }
}

/// Numbers of the device that a directory is on.
fn device_of(directory: &Path) -> Option<(u32, u32)> {
    let device = stat(directory).ok()?.st_dev;
    Some((major(device), minor(device)))
}

/// Limits of reads and writes on the disk of the sandbox.
fn block_io((major, minor): (u32, u32)) -> Result<LinuxBlockIo, OciSpecError> {
    let device = |rate| -> Result<Vec<LinuxThrottleDevice>, OciSpecError> {
        let device = LinuxThrottleDeviceBuilder::default().major(i64::from(major)).minor(i64::from(minor));
        Ok(vec![device.rate(rate).build()?])
    };
    let (bytes, operations) = limit::SANDBOX_IO_PER_SECOND;
    LinuxBlockIoBuilder::default()
        .throttle_read_bps_device(device(bytes)?)
        .throttle_write_bps_device(device(bytes)?)
        .throttle_read_iops_device(device(operations)?)
        .throttle_write_iops_device(device(operations)?)
        .build()
}
