//! Sandboxes on images: the same suite on `debian`, and images that the operator registered.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    slice,
};

use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use sojourn::{
    base::{seal::sha256, text::hex},
    domain::rootfs::{RootFs, StoredRootFs},
    node::local::{Local, image},
    sandbox::{BuildError, Fault, Images, Install, Sandbox},
};

use super::{World, conforms, limits, local::LocalProvider, run};

/// Checks that `make test` runs; `make test-full` runs all.
pub const SHORT: [&str; 13] = [
    "a_command_reports_its_output_and_its_exit_code",
    "a_kill_ends_a_tree_that_fled_and_ignores_term",
    "what_a_tool_writes_a_command_sees_and_the_other_way_round",
    "a_link_never_leads_out_of_the_sandbox",
    "a_command_is_an_unprivileged_user_for_good",
    "nothing_of_the_host_is_visible",
    "there_is_no_network_but_loopback",
    "mounts_and_new_namespaces_are_refused",
    "only_the_sessions_places_are_writable",
    "the_escape_checklist_holds",
    "a_full_disk_ends_the_command_and_not_the_sandbox",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "files_come_back_as_they_were",
];

#[test]
fn the_local_provider_conforms_on_debian() {
    conforms(&LocalProvider::debian, &SHORT);
}

#[test]
fn gvisor_runs_debian_too() {
    let mut provider = LocalProvider::debian();
    provider.runtime = "runsc";
    run(&provider, limits(), |world| Box::pin(is_debian(world)));
}

/// The programs are the image's, the tables the sandbox's own, and nothing is writable.
async fn is_debian(world: &World<'_>) {
    let said =
        world.says("dpkg-query -W -f '${Status}\\n' git | tail -1; git --version; id -un; whoami").await;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "install ok installed");
    assert!(lines[1].starts_with("git version"), "{said}");
    assert_eq!(lines[2..], ["agent", "agent"]);
    let script =
        "for place in /usr /etc /var /opt /; do touch $place/x 2>/dev/null && echo $place; done; true";
    assert_eq!(world.says(script).await, "");
    assert_eq!(
        world.says("python3 -c 'import ssl; print(ssl.OPENSSL_VERSION)' | cut -c1-7").await,
        "OpenSSL"
    );
    assert_eq!(world.says("cat /etc/hosts /etc/resolv.conf | head -1").await, "127.0.0.1\tlocalhost sandbox");
}

/// A root file system with a few programs of this machine.
pub fn small(root: &Path) {
    for directory in ["usr/bin", "etc", "var/tmp", "tmp", "dev", "proc", "sys", "root"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for (place, target) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        symlink(target, root.join(place)).unwrap();
    }
    programs(root, "bash cat id ls touch stat");
}

/// The same with an npm that installs the package `N` as a file of N million bytes.
pub fn installable(root: &Path) {
    small(root);
    programs(root, "find rm");
    let npm = root.join("usr/bin/npm");
    fs::write(&npm, "#!/bin/bash\nprintf \"%0${!#}000000d\" 0 > /usr/installed\n").unwrap();
    fs::set_permissions(npm, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Copies programs of this machine with their libraries.
fn programs(root: &Path, names: &str) {
    let script = "for program in $1; do
        file=$(readlink -f $(command -v $program)); cp $file $0/usr/bin/$program
        ldd $file | grep -o '/[^ ]*' | while read -r library; do
            place=$0$(echo $library | sed 's,^/lib,/usr/lib,'); mkdir -p $(dirname $place); cp -L $library $place
        done
    done";
    let mut copy = Command::new("bash");
    let made = copy.args(["-ec", script]).arg(root).arg(names).env("PATH", "/usr/bin:/bin").status();
    assert!(made.unwrap().success());
}

/// The same as an OCI layout with two layers; the second one deletes a file.
fn layout(root: &Path, place: &Path) {
    fs::create_dir_all(place.join("blobs/sha256")).unwrap();
    let put = |bytes: Vec<u8>| {
        let digest = hex(&sha256(&bytes));
        fs::write(place.join("blobs/sha256").join(&digest), &bytes).unwrap();
        format!("sha256:{digest}")
    };
    let zipped = |from: &Path| {
        let script = "tar -C $0 -cf - . | gzip -1";
        put(Command::new("bash").args(["-c", script]).arg(from).output().unwrap().stdout)
    };
    let upper = tempfile::tempdir().unwrap();
    fs::create_dir_all(upper.path().join("etc")).unwrap();
    fs::write(upper.path().join("etc/.wh.below"), "").unwrap();
    fs::write(upper.path().join("etc/above"), "of the second layer").unwrap();
    fs::write(root.join("etc/below"), "of the first layer").unwrap();
    let of = |typ: &str, digest: &str| serde_json::json!({ "mediaType": format!("application/vnd.oci.image.{typ}"), "digest": digest, "size": 1 });
    let layers = [zipped(root), zipped(upper.path())].map(|digest| of("layer.v1.tar+gzip", &digest));
    let manifest = put(serde_json::json!({ "layers": layers }).to_string().into_bytes());
    let index = serde_json::json!({ "manifests": [of("manifest.v1+json", &manifest)] });
    fs::write(place.join("index.json"), index.to_string()).unwrap();
    fs::write(place.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

#[test]
fn an_image_that_the_operator_registered_is_unpacked_once_and_shared() {
    let ground = tempfile::tempdir().unwrap();
    let images = ground.path().join("images");
    small(&images.join("tree"));
    layout(&images.join("tree"), &images.join("layers"));
    let tarred = Command::new("tar")
        .arg("-C")
        .arg(images.join("tree"))
        .arg("-cf")
        .arg(images.join("packed.tar"))
        .arg(".")
        .status();
    assert!(tarred.unwrap().success());
    for name in ["tree", "packed", "layers"] {
        let mut provider = LocalProvider::new();
        provider.images = image::Config { registered: Some(images.clone()), ..image::Config::default() };
        provider.rootfs = RootFs { image: name.to_owned(), ..RootFs::default() };
        let (rootfs, config) = (provider.rootfs.clone(), provider.config());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let local = Local::new(config).unwrap();
        assert!(!runtime.block_on(local.has_rootfs(&rootfs)).unwrap());
        runtime.block_on(local.make_image(&rootfs)).unwrap();
        runtime.block_on(local.make_image(&rootfs)).unwrap();
        assert!(runtime.block_on(local.has_rootfs(&rootfs)).unwrap());
        let trees = fs::read_dir(provider.data_dir().join("images/trees")).unwrap().count();
        assert_eq!(trees, 1, "{name} is there once");
        run(&provider, limits(), |world| {
            Box::pin(async move {
                assert_eq!(world.says("id -un; pwd").await, "agent\n/workspace");
                assert_eq!(world.says("ls /usr/bin | cat").await, "bash\ncat\nid\nls\nstat\ntouch");
                assert_eq!(world.says("touch /tmp/a /var/tmp/b ~/c d; touch /usr/e || echo no").await, "no");
                // The owner of the image's files does not exist in the sandbox.
                assert_eq!(world.says("stat -c '%u %A' /usr/bin/bash").await, "65534 -rwxr-xr-x");
                if world.spec.rootfs.image == "layers" {
                    assert_eq!(
                        world.says("cat /etc/above; ls /etc/below || true").await,
                        "of the second layer"
                    );
                }
            })
        });
    }
}

#[test]
fn a_sandbox_on_an_image_that_is_not_there_is_not_made() {
    let provider = LocalProvider::new();
    let local = Local::new(provider.config()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for name in ["nobody-s", "../../etc", ""] {
        let rootfs = RootFs { image: name.to_owned(), ..RootFs::default() };
        let made = runtime.block_on(local.make_image(&rootfs));
        assert!(matches!(made, Err(BuildError::Failed(_))), "{name}: {made:?}");
        let origin = sojourn::base::Origin::system();
        let spec = sojourn::sandbox::Spec {
            sandbox: origin.id(),
            org: origin.id(),
            session: origin.id(),
            limits: limits(),
            rootfs,
            env: Vec::new(),
            previous: Vec::new(),
            restores: false,
        };
        let made = runtime.block_on(local.create(&spec, 1));
        assert!(matches!(made, Err(Fault::Unavailable(_))), "{made:?}");
        runtime.block_on(local.destroy(spec.sandbox)).unwrap();
        runtime.block_on(local.erase(spec.org, spec.session)).unwrap();
    }
}

#[test]
fn what_a_dead_process_began_is_removed_and_begun_anew() {
    let provider = LocalProvider::debian();
    let (data, run_dir) = (provider.data_dir(), provider.config().run_dir);
    let packages = serde_json::from_value(serde_json::json!({ "apt": ["no-such-package"] })).unwrap();
    let rootfs = RootFs { image: "debian".to_owned(), packages };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let local = Local::new(provider.config()).unwrap();
    let origin = sojourn::base::Origin::system();
    let begin = || runtime.block_on(local.begin_install(&rootfs, origin.id(), b"", None));
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap().contains(run_dir.to_str().unwrap());
    let begun = begin().unwrap().expect("it is not there");
    assert!(mounts());
    // While one process installs an image, no other one starts the same installation or removes it.
    let other = Local::new(provider.config()).unwrap();
    let second = runtime.block_on(other.begin_install(&rootfs, origin.id(), b"", None));
    assert!(matches!(second, Err(BuildError::Busy)));
    runtime.block_on(other.remove_unused_rootfs(&[])).unwrap();
    assert!(mounts());
    // As if the process had been killed: the lock is released, the rest remains.
    drop(begun);
    runtime.block_on(other.remove_unused_rootfs(&[])).unwrap();
    assert!(!mounts(), "a mount is left");
    assert_eq!(fs::read_dir(run_dir.join("installs")).unwrap().count(), 0);
    let left = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains('+');
    let work = fs::read_dir(data.join("images/work")).unwrap().flatten();
    // Other tests install at the same time.
    assert!(work.filter(left).all(|entry| !entry.path().join("version").exists()));
    // A failed installation leaves nothing either.
    let Install { egress, run } = begin().unwrap().expect("it is not there");
    drop(egress);
    assert!(matches!(runtime.block_on(run), Err(BuildError::Failed(_))), "there is no way out");
    assert!(!mounts() && fs::read_dir(run_dir.join("installs")).unwrap().count() == 0);
}

#[test]
fn a_root_file_system_with_packages_has_at_most_the_bytes_that_are_left() {
    let images = tempfile::tempdir().unwrap();
    installable(&images.path().join("tools"));
    let mut provider = LocalProvider::new();
    let registered = Some(images.path().to_owned());
    provider.images = image::Config { registered, ..image::Config::default() };
    let packages = serde_json::from_value(serde_json::json!({ "npm": ["8"] })).unwrap();
    let rootfs = RootFs { image: "tools".to_owned(), packages };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let local = Local::new(provider.config()).unwrap();
    let origin = sojourn::base::Origin::system();
    let install = |bytes_max| {
        runtime.block_on(async {
            match local.begin_install(&rootfs, origin.id(), b"", bytes_max).await? {
                Some(Install { egress: _, run }) => run.await,
                None => Ok(()),
            }
        })
    };
    let stored = || runtime.block_on(local.stored_rootfs(&rootfs)).unwrap();
    let reap = |surplus: &[RootFs]| runtime.block_on(local.remove_unused_rootfs(surplus)).unwrap();
    let there = |part: &str| {
        let entries = fs::read_dir(provider.data_dir().join("images").join(part)).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains('+')).collect::<Vec<_>>()
    };
    runtime.block_on(local.make_image(&rootfs)).unwrap();
    for (bytes_max, why) in
        [(0, "as much of the disk of this node as they may"), (4 << 20, "only 4 MiB more")]
    {
        let refused = install(Some(bytes_max)).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert_eq!((stored(), there("trees").len(), there("work").len()), (None, 0, 0), "{why}");
    }
    install(Some(1 << 30)).unwrap();
    let StoredRootFs { bytes, idle_seconds } = stored().expect("it is there");
    assert!((8_000_000..1 << 30).contains(&bytes) && idle_seconds < 600, "{bytes} {idle_seconds}");
    install(Some(0)).expect("what is there is refused to nobody");
    // Surplus is removed after an hour without use.
    let surplus = slice::from_ref(&rootfs);
    assert_eq!(reap(surplus), 0);
    let used = there("trees")[0].path().join("used");
    assert!(Command::new("touch").args(["-d", "2 hours ago"]).arg(used).status().unwrap().success());
    assert_eq!(reap(&[]), 0);
    assert!(stored().is_some_and(|stored| stored.idle_seconds >= 7_200));
    assert_eq!((reap(surplus), stored()), (1, None));
}

#[test]
fn remains_that_cannot_be_removed_keep_no_others_and_no_tree_is_too_deep() {
    let provider = LocalProvider::new();
    let local = Local::new(provider.config()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let reap = || runtime.block_on(local.remove_unused_rootfs(&[])).unwrap();
    let work = provider.data_dir().join("images/work");
    let (busy, deep) = (work.join("a"), work.join("b"));
    // A package may bring directories deeper than a path, a stack and the limit of open files allow.
    fs::create_dir_all(&deep).unwrap();
    let mut at = open(&deep, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..20_000 {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    fs::create_dir_all(busy.join("mounted")).unwrap();
    let mount = |program: &str, arguments: &[&str]| {
        let ended = Command::new(program).args(arguments).arg(busy.join("mounted")).status().unwrap();
        assert!(ended.success(), "{program} failed");
    };
    mount("mount", &["-t", "tmpfs", "none"]);
    // On a slow disk a pass ends before the tree does, and the next one goes on.
    let removed = (0..3).map(|_| if deep.exists() { reap() } else { 0 }).sum::<usize>();
    mount("umount", &[]);
    assert!(busy.exists() && !deep.exists() && removed == 1, "{removed} removed");
    assert_eq!(reap(), 1);
    assert!(!busy.exists());
}
