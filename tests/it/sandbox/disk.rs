//! Disks of a limited size: limits enforced by the kernel, and leftovers of a crash.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use sojourn::sandbox::{Cause, Files, SandboxFence, SandboxLimits, Spec};

use super::{World, local::LocalProvider, run, with_local};
use crate::support::wait::WAIT_MAX;

/// Number of mounts whose path or source contains `text`.
pub fn mounts_of(text: &str) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(text)).count()
}

/// Number of loop devices whose backing file contains `text` in its path.
fn loops_of(text: &str) -> usize {
    let devices = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
    let backing = devices.filter_map(|device| fs::read_to_string(device.join("loop/backing_file")).ok());
    backing.filter(|file| file.contains(text)).count()
}

/// Waits for the release of loop devices. The kernel releases one with the last copy of its mount, and a
/// container that is being created has such a copy for a moment.
pub fn loops_are_gone(text: &str) {
    let until = Instant::now() + WAIT_MAX;
    while loops_of(text) > 0 {
        assert!(Instant::now() < until, "a loop device is left");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Directory of the disk of the world's session.
fn root(provider: &LocalProvider, spec: &Spec) -> PathBuf {
    let (org, session) = (spec.org.uuid().to_string(), spec.session.uuid().to_string());
    provider.data_dir().join("sandboxes").join(org).join(session)
}

/// A new sandbox on the same disk; `between` runs after the old one was destroyed.
async fn again(world: &World<'_>, between: impl FnOnce()) -> (Files, SandboxFence) {
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    between();
    let spec = Spec { sandbox: world.origin.id(), previous: vec![world.spec.sandbox], ..world.spec.clone() };
    let files = world.sandbox.create(&spec, 2).await.unwrap();
    (files, spec.fence(2))
}

async fn content(world: &World<'_>, fence: SandboxFence, path: &str) -> Option<String> {
    let part = world.sandbox.read_file(fence, path, 0, 100).await.ok()?;
    Some(String::from_utf8(part.content).unwrap())
}

#[test]
fn a_disk_is_as_large_as_it_was_asked_for_and_takes_what_is_in_it() {
    let provider = LocalProvider::new();
    let data_dir = provider.data_dir();
    run(&provider, SandboxLimits { disk_bytes: 10 << 30, ..super::limits() }, |world| {
        Box::pin(async move {
            let sizes = world.says("df --output=size,used -B1M /workspace | tail -1").await;
            let sizes: Vec<u64> = sizes.split_whitespace().map(|size| size.parse().unwrap()).collect();
            assert!((9_900..=10_240).contains(&sizes[0]) && sizes[1] < 8, "{sizes:?}");
            let taken = || {
                let usage = std::process::Command::new("du").args(["-s", "-B1M"]).arg(&data_dir).output();
                let text = String::from_utf8(usage.unwrap().stdout).unwrap();
                text.split('\t').next().unwrap().parse::<u64>().unwrap()
            };
            assert!(taken() < 8, "{} MiB for an empty disk", taken());
            world.says("head -c 64M /dev/urandom > x && sync -f x").await;
            assert!(taken() >= 64);
            world.says("rm x && sync -f .").await;
            let until = Instant::now() + WAIT_MAX;
            while taken() >= 16 {
                assert!(Instant::now() < until, "{} MiB after all was removed", taken());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    });
}

#[test]
fn files_without_content_are_bounded_too() {
    with_local(|world| {
        Box::pin(async {
            let script = "python3 - <<'END'
for at in range(1_000_000):
    open(f'f{at}', 'x').close()
END";
            let ran = world.ran(&world.shell("inodes", script)).await;
            assert_eq!(ran.exit.cause, Cause::DiskFull, "{}", ran.stderr);
            world.says("find . -name 'f*' -delete").await;
            world.says("touch again").await;
        })
    });
}

#[test]
fn what_a_crash_left_half_made_is_made_again() {
    let provider = LocalProvider::new();
    run(&provider, super::limits(), |world| {
        let disk = root(&provider, &world.spec);
        Box::pin(async move {
            world.says("echo kept > file; sync").await;
            // As after a reboot: nothing is mounted, the file system is in its file.
            let (files, fence) = again(world, || {
                rustix::mount::unmount(disk.join("files"), rustix::mount::UnmountFlags::empty()).unwrap();
                fs::write(disk.join("image.new"), "half a copy").unwrap();
            })
            .await;
            assert_eq!(files, Files::Kept);
            assert_eq!(content(world, fence, "file").await.as_deref(), Some("kept\n"));
            assert_eq!(mounts_of(disk.to_str().unwrap()), 1);
        })
    });
}

#[test]
fn a_file_system_that_cannot_be_fixed_counts_as_lost() {
    let provider = LocalProvider::new();
    run(&provider, super::limits(), |world| {
        let disk = root(&provider, &world.spec);
        Box::pin(async move {
            world.says("echo lost > file; sync").await;
            let (files, fence) = again(world, || {
                rustix::mount::unmount(disk.join("files"), rustix::mount::UnmountFlags::empty()).unwrap();
                let image = fs::File::options().write(true).open(disk.join("image")).unwrap();
                image.write_all_at(&vec![0xff; 64 << 20], 0).unwrap();
            })
            .await;
            assert_eq!(files, Files::Fresh);
            assert_eq!(content(world, fence, "file").await, None);
        })
    });
}

#[test]
fn without_loop_devices_the_size_is_looked_at() {
    let provider = LocalProvider::without_volumes();
    run(&provider, super::limits(), |world| {
        Box::pin(async move {
            // Directories without permissions are measured, and are no reason to end a command.
            let closed =
                "mkdir closed listed; echo in > closed/in; chmod 000 closed; chmod 444 listed; sleep 5
                          for at in $(seq 20); do stat -c %a closed listed | tr '\\n' ' ' > modes
                          grep -q '^0 444 $' modes && exit; sleep 0.1; done; exit 9";
            world.says(closed).await;
            let hidden = "mkdir hidden; cd hidden; exec 3> big; chmod 444 .
                          head -c 200M /dev/zero >&3 && sleep 30";
            let no_signals = "while :; do printf '%1000000s' x >> big; kill -STOP -1; kill -KILL -1; done";
            for (id, script) in [("hidden", hidden), ("signals", no_signals)] {
                let ran = world.ran(&world.shell(id, script)).await;
                assert_eq!(ran.exit.cause, Cause::DiskFull, "{script}: {}", ran.stderr);
                super::escape::not_ended(world, "chmod 755 hidden; rm -rf hidden big").await;
            }
            super::escape::a_full_disk_ends_the_command_and_not_the_sandbox(world).await;
            // Files that the measurement cannot reach count as too many.
            let deep = "python3 - <<'END'
import os, time
for _ in range(2500):
    os.mkdir('d'); os.chdir('d')
time.sleep(30)
END";
            assert_eq!(world.ran(&world.shell("deep", deep)).await.exit.cause, Cause::DiskFull);
        })
    });
}
