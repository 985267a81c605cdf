//! The Docker provider: the same suite against a daemon that the test starts.
//!
//! `scripts/docker-daemon` starts it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use sojourn::{
    base::limit::SANDBOX_IO_PER_SECOND,
    blob::Blobs,
    domain::{SandboxId, rootfs::RootFs},
    node::local::{Config, Disks, Local, docker, image},
    sandbox::{Files, Images, Sandbox, SandboxLimits, Spec, checkpoint},
};

use super::{
    Provider, conforms,
    image::small,
    limits,
    local::{LocalProvider, writes_at_a_bounded_rate},
    neighbors, run,
};
use crate::{
    support::{images, ordinary::OrdinaryUser, service::Ground, wait::WAIT_MAX},
    turns,
};

/// Script that starts the daemon.
const DAEMON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/docker-daemon");

/// A daemon; drop stops it and removes everything that it created.
struct Daemon {
    child: Child,
    place: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Self {
        Self::started(Command::new(DAEMON), &[])
    }

    /// The same with user namespace remapping.
    fn remapped(user: &OrdinaryUser) -> Self {
        Self::started(user.known_to(DAEMON), &["--userns-remap=sojourn-test"])
    }

    fn started(mut command: Command, more: &[&str]) -> Self {
        let open_to_all = fs::Permissions::from_mode(0o711);
        let place =
            tempfile::Builder::new().prefix("sjd").permissions(open_to_all).tempdir_in("/tmp").unwrap();
        let log = fs::File::create(place.path().join("log")).unwrap();
        command.arg(place.path()).args(more);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        let child = child.expect("this test needs Docker's daemon: run scripts/setup --test");
        let daemon = Self { child, place };
        let until = Instant::now() + WAIT_MAX;
        while std::os::unix::net::UnixStream::connect(daemon.socket()).is_err() {
            let log = fs::read_to_string(daemon.place.path().join("log")).unwrap();
            assert!(Instant::now() < until, "the daemon did not start: {log}");
            thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("socket")
    }

    fn docker(&self, arguments: &[&str]) -> String {
        let host = format!("unix://{}", self.socket().display());
        let done = Command::new("docker").args(["--host", &host]).args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Sandboxes of one daemon, below their own directories.
struct DockerProvider {
    daemon: Arc<Daemon>,
    data: tempfile::TempDir,
    run: tempfile::TempDir,
    image: Option<String>,
    disks: Disks,
    rootfs: RootFs,
    images: image::Config,
}

impl DockerProvider {
    fn new(daemon: &Arc<Daemon>) -> Self {
        let data = tempfile::tempdir().unwrap();
        let open_to_all = fs::Permissions::from_mode(0o711);
        let run = tempfile::Builder::new().permissions(open_to_all).tempdir().unwrap();
        let (image, disks, rootfs, images) =
            (None, Disks::Volumes, RootFs::default(), image::Config::default());
        Self { daemon: Arc::clone(daemon), data, run, image, disks, rootfs, images }
    }

    /// Uses an image of the daemon.
    fn on(daemon: &Arc<Daemon>, image: &str) -> Self {
        Self { image: Some(image.to_owned()), ..Self::new(daemon) }
    }

    fn config(&self) -> Config {
        let docker = docker::Config { socket: self.daemon.socket(), image: self.image.clone() };
        Config {
            run_dir: self.run.path().join("run"),
            docker: Some(docker),
            disks: self.disks,
            images: self.images.clone(),
            ..Config::new(&self.data.path().join("data"))
        }
    }
}

impl Provider for DockerProvider {
    fn open(&self) -> Arc<dyn Sandbox> {
        Arc::new(Local::new(self.config()).expect("the daemon is there"))
    }

    fn measures_disks(&self) -> bool {
        self.disks == Disks::Directories
    }

    fn rootfs(&self) -> RootFs {
        self.rootfs.clone()
    }

    fn assert_nothing_left(&self, sandbox: SandboxId) {
        let id = sandbox.to_string();
        assert!(!self.run.path().join("run/sandboxes").join(&id).exists(), "the sandbox's directory is left");
        let known = self.daemon.docker(&["ps", "--all", "--quiet", "--filter", &format!("name={id}")]);
        assert_eq!(known, "", "a container is left");
    }
}

#[test]
fn the_docker_provider_conforms() {
    let forwards = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    let before = forwards();
    let daemon = Arc::new(Daemon::start());
    conforms(&|| DockerProvider::new(&daemon), &SHORT);
    assert_eq!(daemon.docker(&["ps", "--all", "--quiet"]), "", "a container is left");
    assert_eq!(forwards(), before, "the daemon changed the machine's network");
}

#[test]
fn containers_leave_enough_for_others() {
    let daemon = Arc::new(Daemon::start());
    let provider = DockerProvider::new(&daemon);
    // Instances of inotify and message queues count by user, and all containers have the same ones.
    let by_user = ["inotify", "POSIX message queues"];
    let is_by_user = |name: &str| by_user.iter().any(|begin| name.starts_with(begin));
    for shared in neighbors::RESOURCES.iter().filter(|shared| !is_by_user(shared.name)) {
        neighbors::holds_with(&provider, shared);
    }
    run(&provider, limits(), |world| {
        Box::pin(async {
            let open = "python3 -c \"import ctypes, os; \
                print(ctypes.CDLL(None).mq_open(b'/queue', os.O_CREAT | os.O_RDWR, 0o600, None))\"";
            assert_eq!(world.says(open).await, "-1", "a message queue was made");
        })
    });
}

#[test]
fn the_disk_of_a_container_is_read_and_written_at_a_bounded_rate() {
    let daemon = Arc::new(Daemon::start());
    let (provider, limits) =
        (DockerProvider::new(&daemon), SandboxLimits { disk_bytes: 1 << 30, ..limits() });
    run(&provider, limits, |world| {
        Box::pin(async move {
            let name = world.spec.sandbox.to_string();
            let limit = "{{json .HostConfig.BlkioDeviceWriteBps}}";
            let limit = daemon.docker(&["inspect", "--format", limit, &name]);
            assert!(
                limit.contains("/dev/loop") && limit.contains(&SANDBOX_IO_PER_SECOND.0.to_string()),
                "{limit}"
            );
            writes_at_a_bounded_rate(world).await;
        })
    });
}

/// Checks that `make test` runs; `make test-full` runs all.
pub const SHORT: [&str; 16] = [
    "a_quiesced_sandbox_writes_nothing_until_it_is_attached",
    "a_command_reports_its_output_and_its_exit_code",
    "the_same_id_twice_runs_once",
    "a_kill_ends_a_tree_that_fled_and_ignores_term",
    "a_link_never_leads_out_of_the_sandbox",
    "a_command_is_an_unprivileged_user_for_good",
    "nothing_of_the_host_is_visible",
    "there_is_no_network_but_loopback",
    "mounts_and_new_namespaces_are_refused",
    "the_escape_checklist_holds",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "a_second_sandbox_of_a_session_displaces_the_first",
    "a_command_outlives_the_worker_that_started_it",
    "a_scan_lists_every_file_with_its_state",
    "a_frozen_sandbox_can_be_ended",
    "files_come_back_as_they_were",
];

#[test]
fn a_session_moves_from_an_oci_runtime_to_docker_and_back() {
    let daemon = Arc::new(Daemon::start());
    let (local, docker) = (LocalProvider::new(), DockerProvider::new(&daemon));
    let blobs = tempfile::tempdir().unwrap();
    run(&local, super::limits(), |world| {
        Box::pin(async move {
            let blobs = Blobs::local(blobs.path()).unwrap();
            world
                .says("echo from-runc > file; mkdir d; ln -s ../file d/l; echo kept > ~/kept; chmod 750 d")
                .await;
            let saved = checkpoint::save(&*world.sandbox, world.fence, &blobs, "s", None).await.unwrap();
            let other = docker.open();
            let spec = Spec { sandbox: world.origin.id(), restores: true, ..world.spec.clone() };
            assert_eq!(other.create(&spec, 2).await.unwrap(), Files::Fresh);
            let fence = spec.fence(2);
            let fetched = checkpoint::fetch(&blobs, "s", &saved.digest).await.unwrap();
            checkpoint::load(&*other, fence, fetched).await.unwrap();
            other.attach(fence).await.unwrap();
            let script = "cat file d/l ~/kept; stat -c %a d; test -O file && echo and-back > back";
            other.start(fence, &world.shell("look", script)).await.unwrap();
            assert_eq!(other.wait(fence, "look").await.unwrap().code, 0);
            let range = sojourn::sandbox::OutputRange {
                stream: sojourn::sandbox::OutputStream::Stdout,
                offset: 0,
                bytes_max: 100,
            };
            let said = String::from_utf8(other.output(fence, "look", range).await.unwrap()).unwrap();
            assert_eq!(said, "from-runc\nfrom-runc\nkept\n750\n");
            // Equal files give an equal checkpoint, whichever provider saved them.
            other.start(fence, &world.shell("undo", "rm back; touch -r d .")).await.unwrap();
            other.wait(fence, "undo").await.unwrap();
            let again = checkpoint::save(&*other, fence, &blobs, "s", None).await.unwrap();
            other.destroy(spec.sandbox).await.unwrap();
            other.erase(spec.org, spec.session).await.unwrap();
            docker.assert_nothing_left(spec.sandbox);
            let third = Spec { sandbox: world.origin.id(), restores: true, ..world.spec.clone() };
            assert_eq!(world.sandbox.create(&third, 3).await.unwrap(), Files::Fresh);
            let fence = third.fence(3);
            let fetched = checkpoint::fetch(&blobs, "s", &again.digest).await.unwrap();
            checkpoint::load(&*world.sandbox, fence, fetched).await.unwrap();
            let part = world.sandbox.read_file(fence, "d/l", 0, 100).await.unwrap();
            assert_eq!(part.content, b"from-runc\n");
        })
    });
}

/// Programs of the image in the test below; the service provides everything else in a sandbox.
const PROGRAMS: [&str; 4] = ["bash", "cat", "id", "ls"];

/// Imports a small image: a few programs of this machine with their libraries, and a marker file.
fn import(daemon: &Daemon, name: &str) {
    let script = r#"set -e
        cd "$1"; shift
        mkdir -p usr/bin usr/lib usr/lib64 usr/sbin usr/share
        for place in bin lib lib64 sbin; do ln -s "usr/$place" "$place"; done
        for program in "$@"; do
            cp "/usr/bin/$program" usr/bin/
            for library in $(ldd "/usr/bin/$program" | grep -o '/[^ ]*'); do
                at=$(realpath "$(dirname "$library")")
                mkdir -p ".$at"; cp -L "$library" ".$at/"
            done
        done
        echo of-the-image > usr/share/mark
        tar --create --file ../image.tar ."#;
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    fs::create_dir(&root).unwrap();
    let made = Command::new("sh").args(["-c", script, "sh"]).arg(&root).args(PROGRAMS).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    daemon.docker(&["import", place.path().join("image.tar").to_str().unwrap(), name]);
}

#[test]
fn a_sandbox_of_an_image_has_the_programs_of_the_image() {
    let daemon = Arc::new(Daemon::start());
    let missing =
        Local::new(DockerProvider::on(&daemon, "sojourn-test:none").config()).unwrap_err().to_string();
    assert!(missing.contains("has no image sojourn-test:none (SOJOURN_SANDBOX_IMAGE)"), "{missing}");
    import(&daemon, "sojourn-test:1");
    run(&DockerProvider::on(&daemon, "sojourn-test:1"), limits(), |world| {
        Box::pin(async {
            assert_eq!(world.says("cat /usr/share/mark; id -u; id -un").await, "of-the-image\n1000\nagent");
            assert_eq!(world.says("ls /usr/bin").await, PROGRAMS.join("\n"), "nothing of the machine's own");
            assert_eq!(
                world
                    .says("ls -A /root /opt /home; ls /etc/shadow 2>/dev/null; true")
                    .await
                    .matches("shadow")
                    .count(),
                0
            );
            world.sandbox.write_file(world.fence, "file", b"written").await.unwrap();
            assert_eq!(world.says("cat file; echo back > back").await, "written");
            let part = world.sandbox.read_file(world.fence, "back", 0, 10).await.unwrap();
            assert_eq!(part.content, b"back\n");
            assert_eq!(world.says("echo x 2>/dev/null > /usr/share/mark || echo closed").await, "closed");
        })
    });
}

#[test]
fn a_sandbox_on_an_image_of_the_operator_has_its_programs_too() {
    let daemon = Arc::new(Daemon::start());
    let registered = tempfile::tempdir().unwrap();
    let (tree, packed) = (registered.path().join("tree"), registered.path().join("packed.tar"));
    small(&tree);
    fs::write(tree.join("etc/mark"), "of-the-image").unwrap();
    let tarred = Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(packed).arg(".").status();
    assert!(tarred.unwrap().success());
    for name in ["tree", "packed"] {
        let mut provider = DockerProvider::new(&daemon);
        let directory = Some(registered.path().to_owned());
        provider.images = image::Config { registered: directory, ..image::Config::default() };
        provider.rootfs = RootFs { image: name.to_owned(), ..RootFs::default() };
        let local = Local::new(provider.config()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(local.make_image(&provider.rootfs)).unwrap();
        run(&provider, limits(), |world| {
            Box::pin(async move {
                assert_eq!(
                    world.says("cat /etc/mark; echo; id -un; pwd").await,
                    "of-the-image\nagent\n/workspace"
                );
                assert_eq!(world.says("ls /usr/bin | cat").await, "bash\ncat\nid\nls\nstat\ntouch");
                assert_eq!(world.says("touch /tmp/a ~/c d; touch /usr/e || echo no").await, "no");
                world.sandbox.write_file(world.fence, "file", b"written").await.unwrap();
                assert_eq!(world.says("cat file").await, "written");
            })
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_installed_for_sandboxes_of_a_daemon() {
    let (daemon, ground) = (Daemon::start(), Ground::new().await);
    images::share(ground.data_dir.path());
    let mut settings = images::settings();
    settings.push("--sandbox-provider=docker".to_owned());
    settings.push(format!("--docker-socket={}", daemon.socket().display()));
    let service = ground.serve(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let owner = service.owner();
    let config = json!({ "image": "debian", "packages": { "apt": ["tree"] } });
    let environment = turns::image::stored(&owner, config).await;
    let build = turns::image::built(&owner, &environment).await;
    assert_eq!(build["state"], "ready", "{build}");
    let script = json!([turns::run("tree --version; id -un; touch /usr/x"), { "text": "Done." }]);
    let id = owner.play_in(script, json!(environment)).await;
    let log = owner.settled(&id, 1).await;
    let said = turns::outputs(&log)[0];
    for part in ["tree v", "agent", "Read-only file system"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let container = turns::of(&log, "sandbox.created")[0]["body"]["sandbox_id"].clone();
    let name = container.as_str().expect("an id");
    assert!(!daemon.docker(&["ps", "--quiet", "--filter", &format!("name={name}")]).is_empty());
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    owner.until(&format!("/sessions/{id}"), |shown| shown["sandbox"].is_null()).await;
    service.stop().await;
    fs::remove_dir_all(ground.sandboxes().run_dir.with_extension("docker")).unwrap();
}

/// Checks that `make test` runs with this daemon; `make test-full` runs all.
pub const REMAPPED: [&str; 6] = [
    "a_command_reports_its_output_and_its_exit_code",
    "a_command_is_an_unprivileged_user_for_good",
    "the_escape_checklist_holds",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "the_disk_outlives_the_sandbox",
    "files_come_back_as_they_were",
];

#[test]
fn a_daemon_that_maps_its_users_conforms() {
    let user = OrdinaryUser::with_equal_ids();
    let daemon = Arc::new(Daemon::remapped(&user));
    // The daemon does not see mounts that are made after its start.
    let open = || DockerProvider { disks: Disks::Directories, ..DockerProvider::new(&daemon) };
    let (first, daemon) = (user.first_lent().to_string(), Arc::clone(&daemon));
    run(&open(), limits(), |world| {
        Box::pin(async move {
            let name = world.spec.sandbox.to_string();
            let pid = daemon.docker(&["inspect", "--format", "{{.State.Pid}}", &name]);
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
            assert_eq!(uid.split_whitespace().next(), Some(first.as_str()));
        })
    });
    conforms(&open, &REMAPPED);
}
