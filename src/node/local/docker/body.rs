//! The configuration of a sandbox for the Docker API.
//!
//! Called by `docker`. It translates the OCI configuration, so that a sandbox's permissions are defined in
//! one place (`bundle`), and omits the parts that the daemon creates itself: `/dev` and `/proc`, namespaces,
//! the cgroup.

use std::{collections::HashMap, fs, path::Path};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits, ThrottleDevice,
};
use oci_spec::runtime::{LinuxThrottleDevice, PosixRlimitType, Spec};
use sojourn_init::protocol::PROGRAM;

/// Settings that are not in the OCI configuration.
pub(super) struct Settings<'a> {
    pub image: &'a str,
    /// Source of init and the user tables, when the image has its own programs.
    pub skeleton: Option<&'a Path>,
    /// Whether the limit of processes per user counts this sandbox alone.
    pub counts_processes: bool,
}

/// User tables that a sandbox gets from the skeleton, whatever its image.
const TABLES: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/gitconfig"];
/// Size limit of init's own log in the daemon.
const LOG_SIZE: &str = "64k";

/// Translates an OCI configuration into the body of a create request.
///
/// # Errors
/// The part of the configuration that is missing.
pub(super) fn of<const LABELS: usize>(
    spec: &Spec,
    settings: &Settings<'_>,
    labels: [(&str, String); LABELS],
) -> Result<ContainerCreateBody, String> {
    let process = spec.process().as_ref().ok_or("it has no process")?;
    let args = process.args().as_ref().ok_or("it has no arguments")?;
    let (program, args) = args.split_first().ok_or("it has no program")?;
    Ok(ContainerCreateBody {
        hostname: spec.hostname().clone(),
        user: Some("0:0".to_owned()),
        env: process.env().clone(),
        entrypoint: Some(vec![program.clone()]),
        cmd: Some(args.to_vec()),
        working_dir: Some("/".to_owned()),
        image: Some(settings.image.to_owned()),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
        host_config: Some(host_config(spec, settings)?),
        ..ContainerCreateBody::default()
    })
}

fn host_config(spec: &Spec, settings: &Settings<'_>) -> Result<HostConfig, String> {
    let linux = spec.linux().as_ref().ok_or("it is not for Linux")?;
    let resources = linux.resources().as_ref().ok_or("it has no limits")?;
    let memory = resources.memory().as_ref().and_then(|memory| memory.limit());
    let cpu = resources.cpu().as_ref();
    let io = resources.block_io().as_ref();
    let process = spec.process().as_ref().ok_or("it has no process")?;
    let rights = process.capabilities().as_ref().and_then(|rights| rights.bounding().as_ref());
    let seccomp = serde_json::to_string(linux.seccomp()).map_err(|error| error.to_string())?;
    let masked = linux.masked_paths().iter().flatten().cloned().chain(hardware());
    let log = HashMap::from([("max-size".to_owned(), LOG_SIZE.to_owned())]);
    Ok(HostConfig {
        memory,
        memory_swap: memory,
        cpu_shares: cpu.and_then(|cpu| cpu.shares()).and_then(|shares| i64::try_from(shares).ok()),
        cpu_period: cpu.and_then(|cpu| cpu.period()).map(|period| period as i64),
        cpu_quota: cpu.and_then(|cpu| cpu.quota()),
        blkio_device_read_bps: throttles(io.and_then(|io| io.throttle_read_bps_device().as_deref())),
        blkio_device_write_bps: throttles(io.and_then(|io| io.throttle_write_bps_device().as_deref())),
        blkio_device_read_iops: throttles(io.and_then(|io| io.throttle_read_iops_device().as_deref())),
        blkio_device_write_iops: throttles(io.and_then(|io| io.throttle_write_iops_device().as_deref())),
        pids_limit: resources.pids().as_ref().map(|pids| pids.limit()),
        ulimits: Some(ulimits(spec, settings)),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: rights.map(|rights| rights.iter().map(ToString::to_string).collect()),
        security_opt: Some(vec!["no-new-privileges:true".to_owned(), format!("seccomp={seccomp}")]),
        mounts: Some(binds(spec, settings)),
        tmpfs: tmpfs(spec),
        masked_paths: Some(masked.collect()),
        readonly_paths: linux.readonly_paths().clone(),
        log_config: Some(HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(log) }),
        ..HostConfig::default()
    })
}

/// Limits of reads or writes, by the path of each device.
fn throttles(devices: Option<&[LinuxThrottleDevice]>) -> Option<Vec<ThrottleDevice>> {
    let named = |device: &LinuxThrottleDevice| {
        let known = fs::read_link(format!("/sys/dev/block/{}:{}", device.major(), device.minor())).ok()?;
        let path = Path::new("/dev").join(known.file_name()?).to_string_lossy().into_owned();
        Some(ThrottleDevice { path: Some(path), rate: i64::try_from(device.rate()).ok() })
    };
    devices.map(|devices| devices.iter().filter_map(named).collect())
}

/// Paths to mask that the daemon mounts read-only and that expose hardware and kernel: all of `/sys` except
/// the sandbox's own cgroup.
fn hardware() -> Vec<String> {
    let inside = |directory: &str| fs::read_dir(directory).into_iter().flatten().flatten();
    let entries = inside("/sys").chain(inside("/sys/fs")).map(|entry| entry.path());
    let shown = ["/sys/fs", "/sys/fs/cgroup"].map(Path::new);
    let hidden = entries.filter(|path| !shown.contains(&path.as_path()));
    hidden.map(|path| path.to_string_lossy().into_owned()).collect()
}

fn ulimits(spec: &Spec, settings: &Settings<'_>) -> Vec<ResourcesUlimits> {
    let rlimits = spec.process().as_ref().and_then(|process| process.rlimits().as_ref());
    let name = |typ: PosixRlimitType| match typ {
        PosixRlimitType::RlimitNproc => settings.counts_processes.then_some("nproc"),
        PosixRlimitType::RlimitNofile => Some("nofile"),
        PosixRlimitType::RlimitCore => Some("core"),
        _ => None,
    };
    let ulimit = |rlimit: &oci_spec::runtime::PosixRlimit| {
        Some(ResourcesUlimits {
            name: Some(name(rlimit.typ())?.to_owned()),
            soft: i64::try_from(rlimit.soft()).ok(),
            hard: i64::try_from(rlimit.hard()).ok(),
        })
    };
    // The bytes of POSIX message queues count by user, and all containers have the same ones: none can be made.
    let queues = ResourcesUlimits { name: Some("msgqueue".to_owned()), soft: Some(0), hard: Some(0) };
    rlimits.into_iter().flatten().filter_map(ulimit).chain([queues]).collect()
}

/// Bind mounts from the host. With an image that has its own programs, the host's programs are replaced by
/// init and the user tables.
fn binds(spec: &Spec, settings: &Settings<'_>) -> Vec<Mount> {
    let bind = |source: &Path, target: &Path, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_string_lossy().into_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    };
    let is_read_only =
        |mount: &oci_spec::runtime::Mount| mount.options().iter().flatten().any(|option| option == "ro");
    let shared = spec.mounts().iter().flatten().filter(|mount| mount.typ().as_deref() == Some("bind"));
    let mut binds: Vec<Mount> = shared
        .filter_map(|mount| Some((mount, mount.source().as_ref()?)))
        // A directory mounted at its own path is one of the host's program directories.
        .filter(|(mount, source)| settings.skeleton.is_none() || *source != mount.destination())
        .map(|(mount, source)| bind(source, mount.destination(), is_read_only(mount)))
        .collect();
    if let Some(skeleton) = settings.skeleton {
        for place in TABLES.into_iter().chain([PROGRAM]) {
            let source = skeleton.join(place.trim_start_matches('/'));
            binds.push(bind(&source, Path::new(place), true));
        }
    }
    binds
}

fn tmpfs(spec: &Spec) -> Option<HashMap<String, String>> {
    let own = |mount: &&oci_spec::runtime::Mount| {
        mount.typ().as_deref() == Some("tmpfs") && mount.destination() != Path::new("/dev")
    };
    let options = |mount: &oci_spec::runtime::Mount| {
        let options = mount.options().iter().flatten().map(String::as_str);
        // The daemon adds noexec unless exec is set.
        let exec = (!mount.options().iter().flatten().any(|option| option == "noexec")).then_some("exec");
        let options: Vec<&str> = options.chain(exec).collect();
        (mount.destination().to_string_lossy().into_owned(), options.join(","))
    };
    Some(spec.mounts().as_ref()?.iter().filter(own).map(options).collect())
}
