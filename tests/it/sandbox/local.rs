//! The local provider: its own guarantees, and its view from outside.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use sojourn::{
    base::limit::SANDBOX_IO_PER_SECOND,
    domain::{SandboxId, rootfs::RootFs},
    node::local::{Config, Disks, Local, image},
    sandbox::{Cause, Exec, Fault, Sandbox, SandboxFence, SandboxLimits, Spec},
};

use super::{Provider, World, run, with_local};

/// Sandboxes below a directory that only root may enter.
pub struct LocalProvider {
    data: tempfile::TempDir,
    run: tempfile::TempDir,
    disks: Disks,
    pub runtime: &'static str,
    pub rootfs: RootFs,
    pub images: image::Config,
}

impl LocalProvider {
    pub fn new() -> Self {
        let open_to_all = fs::Permissions::from_mode(0o711);
        let closed = fs::Permissions::from_mode(0o700);
        let data = tempfile::Builder::new().permissions(closed).tempdir().unwrap();
        let run = tempfile::Builder::new().permissions(open_to_all).tempdir().unwrap();
        let (disks, rootfs) = (Disks::Volumes, RootFs::default());
        Self { data, run, disks, runtime: "runc", rootfs, images: image::Config::default() }
    }

    /// Uses the image `debian`, built once for all tests.
    pub fn debian() -> Self {
        let image = "debian".to_owned();
        let provider = Self { rootfs: RootFs { image, ..RootFs::default() }, ..Self::new() };
        crate::support::images::share(&provider.data_dir());
        provider
    }

    pub fn without_volumes() -> Self {
        Self { disks: Disks::Directories, ..Self::new() }
    }

    pub fn gvisor() -> Self {
        Self { runtime: "runsc", ..Self::new() }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.config().data_dir
    }

    pub fn config(&self) -> Config {
        let data_dir = self.data.path().join("a".repeat(150));
        Config {
            run_dir: self.run.path().join("run"),
            disks: self.disks,
            runtime: self.runtime.to_owned(),
            images: self.images.clone(),
            ..Config::new(&data_dir)
        }
    }
}

impl Provider for LocalProvider {
    fn open(&self) -> Arc<dyn Sandbox> {
        Arc::new(
            Local::new(self.config())
                .expect("these tests need root, runc and runsc: run scripts/setup --test"),
        )
    }

    fn is_gvisor(&self) -> bool {
        self.runtime == "runsc"
    }

    fn measures_disks(&self) -> bool {
        // Only root mounts file systems.
        self.disks == Disks::Directories || !rustix::process::geteuid().is_root()
    }

    fn rootfs(&self) -> RootFs {
        self.rootfs.clone()
    }

    fn assert_nothing_left(&self, sandbox: SandboxId) {
        let id = sandbox.to_string();
        let run = self.run.path().join("run");
        assert!(!run.join("sandboxes").join(&id).exists(), "the sandbox's directory is left");
        let states = fs::read_dir(run.join("runtime")).unwrap().flatten();
        let of_sandbox = states.filter(|state| state.file_name().to_string_lossy().starts_with(&id));
        assert_eq!(of_sandbox.count(), 0, "the runtime's state is left");
        for place in ["mountinfo", "mounts"] {
            assert!(
                !fs::read_to_string(format!("/proc/self/{place}")).unwrap().contains(&id),
                "a mount is left"
            );
        }
        assert_eq!(cgroups_of(&id), Vec::<String>::new(), "a cgroup is left");
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
            if status.contains("State:\tZ") {
                // It has ended; reaping it is up to the machine.
                continue;
            }
            let memberships = fs::read_to_string(process.path().join("cgroup")).unwrap_or_default();
            assert!(!memberships.contains(&id), "a process is left: {:?}", process.path());
        }
    }
}

/// Cgroups of a sandbox in all hierarchies: below those of organizations, or beside them.
pub fn cgroups_of(id: &str) -> Vec<String> {
    let entries = |place: &Path| fs::read_dir(place).into_iter().flatten().flatten();
    let hierarchies = entries(Path::new("/sys/fs/cgroup")).map(|entry| entry.path());
    let hierarchies = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]);
    let parents = hierarchies.map(|hierarchy| hierarchy.join("sojourn")).flat_map(|parent| {
        let organizations: Vec<_> = entries(&parent).map(|entry| entry.path()).collect();
        organizations.into_iter().chain([parent])
    });
    parents
        .map(|parent| parent.join(id))
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect()
}

#[test]
fn the_disk_is_read_and_written_at_a_bounded_rate() {
    let limits = SandboxLimits { disk_bytes: 1 << 30, ..super::limits() };
    run(&LocalProvider::new(), limits, |world| {
        Box::pin(async {
            let limited = cgroups_of(&world.fence.sandbox.to_string()).iter().any(|cgroup| {
                let rate = SANDBOX_IO_PER_SECOND.0.to_string();
                ["blkio.throttle.write_bps_device", "io.max"]
                    .iter()
                    .filter_map(|file| fs::read_to_string(Path::new(cgroup).join(file)).ok())
                    .any(|limits| limits.starts_with("7:") && limits.contains(&rate))
            });
            assert!(limited, "no cgroup has the limit");
            writes_at_a_bounded_rate(world).await;
        })
    });
}

/// Asserts that 512 MiB take as long as the limit says.
pub async fn writes_at_a_bounded_rate(world: &World<'_>) {
    const MIB: u64 = 512;
    // Past the page cache, whose writes version 1 of cgroups does not count.
    let copy = format!("dd if=/dev/zero of=x bs=1M count={MIB} oflag=direct status=none && echo written");
    let began = Instant::now();
    assert_eq!(world.says(&copy).await, "written");
    let least = (MIB << 20) as f64 / SANDBOX_IO_PER_SECOND.0 as f64;
    let took = began.elapsed().as_secs_f64();
    assert!(took > 0.7 * least, "{MIB} MiB in {took} s");
}

#[test]
fn memory_beyond_the_limit_is_told_apart() {
    with_local(|world| {
        Box::pin(async {
            let hog = world.shell("hog", "python3 -c 'x = bytearray(600 << 20)'; exit $?");
            let ran = world.ran(&hog).await;
            assert_eq!((ran.exit.cause, ran.exit.code), (Cause::Oom, 137));
            // Without an OOM kill the same exit code means nothing.
            let imitator = world.ran(&world.shell("imitator", "exit 137")).await;
            assert_eq!((imitator.exit.cause, imitator.exit.code), (Cause::Exited, 137));
        })
    });
}

#[test]
fn a_fork_bomb_is_contained_and_killed() {
    with_local(|world| {
        Box::pin(async {
            let bomb = Exec { timeout: Duration::from_secs(600), ..world.shell("bomb", BOMB) };
            world.sandbox.start(world.fence, &bomb).await.unwrap();
            world.printed("bomb", "armed").await;
            // The sandbox responds and serves files while its process limit is reached.
            world.sandbox.write_file(world.fence, "during", b"x").await.unwrap();
            world.sandbox.attach(world.fence).await.unwrap();
            let pids = pids_current(world);
            assert!(pids <= 64 + 192, "{pids} processes");
            world.sandbox.kill(world.fence, "bomb").await.unwrap();
            // Init, a runner, the counting shell and its two helpers.
            let left: u32 = world.says("ls -d /proc/[0-9]* | wc -l").await.parse().unwrap();
            assert!(left <= 5, "{left} processes");
        })
    });
}

pub const BOMB: &str =
    "trap '' TERM; echo armed; bomb() { bomb | bomb & }; while :; do bomb 2>/dev/null; done 2>/dev/null";

fn pids_current(world: &World<'_>) -> u32 {
    let id = world.spec.sandbox.to_string();
    let find = |path: String| fs::read_to_string(Path::new(&path).join("pids.current")).ok();
    let text = cgroups_of(&id).into_iter().find_map(find).expect("some hierarchy counts processes");
    text.trim().parse().unwrap()
}

#[test]
fn one_gibibyte_of_output_takes_the_caps_disk() {
    let provider = LocalProvider::new();
    let data_dir = provider.data.path().to_owned();
    run(&provider, SandboxLimits::default(), |world| {
        Box::pin(async move {
            let flood = world.shell("flood", "yes | head -c 1G; yes | head -c 100M >&2");
            let exit = world.ran(&flood).await.exit;
            assert_eq!((exit.stdout_bytes, exit.stderr_bytes), (1 << 30, 100 << 20));
            let usage = std::process::Command::new("du").args(["-s", "-B1"]).arg(&data_dir).output().unwrap();
            let bytes: u64 =
                String::from_utf8(usage.stdout).unwrap().split('\t').next().unwrap().parse().unwrap();
            assert!(bytes < 3 << 20, "{bytes} bytes on disk for two streams of at most 1 MiB");
        })
    });
}

#[test]
fn remains_of_a_crash_do_not_stop_the_next_sandbox() {
    with_local(|world| {
        Box::pin(async {
            // As after a crash: the first process of the sandbox dies, and with it the sandbox.
            let pid_file = find_pid_file(world);
            let pid = fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
            let init = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
            while world.sandbox.attach(world.fence).await != Err(Fault::Gone) {
                tokio::task::yield_now().await;
            }
            world.sandbox.create(&world.spec, 2).await.unwrap();
            let fence = SandboxFence { epoch: 2, ..world.fence };
            world.sandbox.start(fence, &world.shell("again", "true")).await.unwrap();
            assert_eq!(world.sandbox.wait(fence, "again").await.unwrap().code, 0);
        })
    });
}

fn find_pid_file(world: &World<'_>) -> std::path::PathBuf {
    let id = world.spec.sandbox.to_string();
    let mounts = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    mounts
        .map(|entry| entry.path().join("run/sandboxes").join(&id).join("pid"))
        .find(|path| path.exists())
        .unwrap()
}

#[test]
fn a_sandbox_that_cannot_start_leaves_nothing() {
    let provider = LocalProvider::new();
    let broken = Config { runtime: "/bin/false".to_owned(), ..provider.config() };
    let broken = Local::new(broken).unwrap();
    run(&provider, SandboxLimits::default(), |world| {
        Box::pin(async move {
            let origin = &world.origin;
            let spec = Spec { sandbox: origin.id(), session: origin.id(), ..world.spec.clone() };
            let fault = broken.create(&spec, 1).await.unwrap_err();
            assert!(matches!(fault, Fault::Unavailable(_)), "{fault:?}");
            world.provider.assert_nothing_left(spec.sandbox);
            broken.erase(spec.org, spec.session).await.unwrap();
        })
    });
}

#[test]
fn an_orphaned_sandbox_ends_itself() {
    let provider = LocalProvider::new();
    let config = Config { orphan_after: Some(Duration::from_secs(1)), ..provider.config() };
    let local = Local::new(config).unwrap();
    run(&provider, SandboxLimits::default(), |world| {
        Box::pin(async move {
            let origin = &world.origin;
            let spec = Spec { sandbox: origin.id(), session: origin.id(), ..world.spec.clone() };
            local.create(&spec, 1).await.unwrap();
            let fence = spec.fence(1);
            local.start(fence, &world.shell("last", "sleep 608")).await.unwrap();
            // The wait is split into slices; the sandbox ends within the first one.
            assert_eq!(local.wait(fence, "last").await, Err(Fault::Gone));
            local.destroy(spec.sandbox).await.unwrap();
            world.provider.assert_nothing_left(spec.sandbox);
            local.erase(spec.org, spec.session).await.unwrap();
        })
    });
}

#[test]
fn a_disk_that_is_too_deep_for_a_recursion_is_erased() {
    with_local(|world| {
        Box::pin(async {
            let script = "python3 - <<'END'
import os
for _ in range(10000):
    os.mkdir('d'); os.chdir('d')
END";
            world.says(script).await;
        })
    });
}

#[test]
fn a_missing_runtime_is_one_clear_line() {
    let provider = LocalProvider::new();
    let fault =
        Local::new(Config { runtime: "no-such-runtime".to_owned(), ..provider.config() }).unwrap_err();
    assert_eq!(fault, Fault::Unavailable("no-such-runtime was not found; run scripts/setup".to_owned()));
}

/// Debian mounts `/run` with `noexec`. The test reruns itself where all its directories are mounted so, and
/// where `/var/lib` is private.
#[test]
fn a_run_directory_that_is_no_place_for_programs_is_no_obstacle() {
    const AGAIN: &str = "SOJOURN_TEST_NOEXEC";
    if std::env::var_os(AGAIN).is_none() {
        let place = tempfile::tempdir().unwrap();
        let script = r#"mount -t tmpfs -o noexec,nosuid,nodev,mode=711 tmpfs "$1" && mount -t tmpfs tmpfs /var/lib || exit
            TMPDIR=$1; export TMPDIR; shift; exec "$@""#;
        let ran = std::process::Command::new("unshare")
            .args(["--mount", "--propagation=private", "--", "sh", "-c", script, "sh"])
            .arg(place.path())
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::local::a_run_directory_that_is_no_place_for_programs_is_no_obstacle"])
            .env(AGAIN, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let program = std::env::temp_dir().join("program");
    fs::copy("/bin/true", &program).unwrap();
    assert!(std::process::Command::new(program).status().is_err(), "no program runs here");
    with_local(|world| Box::pin(async { assert_eq!(world.says("echo runs").await, "runs") }));
}
