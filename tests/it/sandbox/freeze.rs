//! Frozen sandboxes, and files restored from checkpoints.

use std::time::Duration;

use bytes::Bytes;
use sojourn::{
    blob::Blobs,
    sandbox::{Fault, Files, SandboxFence, Spec, checkpoint},
};
use tokio::sync::mpsc;

use super::{World, is_gone, limits, local::LocalProvider, run};
use crate::support::wait::wait_for;

/// A blob store of one check.
struct Store {
    directory: tempfile::TempDir,
    blobs: Blobs,
}

impl Store {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::local(&directory.path().join("blobs")).unwrap();
        Self { directory, blobs }
    }
}

const SESSION: &str = "organization/session";

/// All properties of the session's files that a program could depend on.
const LISTING: &str = r"cd /; export LC_ALL=C; (find workspace home/agent -printf '%p %y %m %s %T@ %n %l\n' | sort;
    find workspace home/agent -type f -exec sha256sum {} + | sort) | cat -v";

/// Destroys the sandbox and its disk, and creates a sandbox that waits for its files.
async fn replaced(world: &World<'_>) -> SandboxFence {
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    world.sandbox.erase(world.spec.org, world.spec.session).await.unwrap();
    let next = Spec { sandbox: world.origin.id(), restores: true, ..world.spec.clone() };
    assert_eq!(world.sandbox.create(&next, 2).await, Ok(Files::Fresh));
    next.fence(2)
}

async fn listing(world: &World<'_>, fence: SandboxFence) -> String {
    let look = world.shell("listing", LISTING);
    let world = World {
        fence,
        provider: world.provider,
        sandbox: world.sandbox.clone(),
        spec: world.spec.clone(),
        origin: world.origin.clone(),
    };
    world.ran(&look).await.stdout
}

pub async fn a_frozen_sandbox_stops_and_resumes_its_processes(world: &World<'_>) {
    let count = "echo ready; while :; do echo >> /workspace/count; done";
    world.sandbox.start(world.fence, &world.shell("count", count)).await.unwrap();
    world.printed("count", "ready").await;
    world.sandbox.freeze(world.fence).await.unwrap();
    let stats = world.sandbox.stats(world.spec.sandbox).await.unwrap();
    assert!(stats.is_frozen && stats.memory_bytes > 0 && stats.processes > 1, "{stats:?}");
    let later = world.sandbox.stats(world.spec.sandbox).await.unwrap();
    assert_eq!(later.cpu, stats.cpu, "a frozen sandbox uses no CPU time");
    // Another worker attaches; nothing has ended.
    let fence = SandboxFence { epoch: 2, ..world.fence };
    let other = world.provider.open();
    other.attach(fence).await.unwrap();
    assert!(!other.stats(world.spec.sandbox).await.unwrap().is_frozen);
    let size = async || other.read_file(fence, "count", 0, 1).await.unwrap().size;
    let before = size().await;
    wait_for("the command continues", async || (size().await > before).then_some(())).await;
    other.freeze(fence).await.unwrap();
    other.attach(fence).await.unwrap();
    other.attach(fence).await.unwrap();
    other.kill(fence, "count").await.unwrap();
}

pub async fn a_frozen_sandbox_can_be_ended(world: &World<'_>) {
    world.sandbox.start(world.fence, &world.shell("long", "sleep 609")).await.unwrap();
    world.sandbox.freeze(world.fence).await.unwrap();
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    world.provider.assert_nothing_left(world.spec.sandbox);
    assert!(is_gone(world.sandbox.freeze(world.fence).await));
    assert!(is_gone(world.sandbox.attach(world.fence).await));
    assert_eq!(world.sandbox.stats(world.spec.sandbox).await, Err(Fault::Gone));
}

pub async fn a_late_worker_freezes_nothing(world: &World<'_>) {
    let successor = SandboxFence { epoch: 9, ..world.fence };
    world.sandbox.attach(successor).await.unwrap();
    assert_eq!(world.sandbox.freeze(world.fence).await, Err(Fault::Stale));
    assert!(!world.sandbox.stats(world.spec.sandbox).await.unwrap().is_frozen);
    world.sandbox.freeze(successor).await.unwrap();
    // A stale worker does not thaw a sandbox that its successor froze.
    assert_eq!(world.sandbox.attach(world.fence).await, Err(Fault::Stale));
    assert!(world.sandbox.stats(world.spec.sandbox).await.unwrap().is_frozen);
}

pub async fn a_command_counts_as_long_as_it_runs(world: &World<'_>) {
    assert_eq!(world.sandbox.running(world.fence).await, Ok(0));
    world.sandbox.start(world.fence, &world.shell("long", "sleep 610")).await.unwrap();
    assert_eq!(world.sandbox.running(world.fence).await, Ok(1));
    world.sandbox.kill(world.fence, "long").await.unwrap();
    assert_eq!(world.sandbox.running(world.fence).await, Ok(0));
    // A background process of a finished command is frozen with its sandbox; it does not count as a command.
    world.says("sleep 610 > /dev/null 2>&1 & disown").await;
    assert_eq!(world.sandbox.running(world.fence).await, Ok(0));
}

pub async fn files_come_back_as_they_were(world: &World<'_>) {
    let script = r#"
        mkdir -p deep/$(printf 'd%.0s' {1..200})/$(printf 'e%.0s' {1..200}) empty closed ~/.config
        echo one > plain; chmod 4751 plain; echo two > secret; chmod 000 secret; echo in > closed/in; chmod 000 closed
        ln plain deep/hard; ln -s plain soft; ln -s /nowhere dangling; ln -s $(printf 'x%.0s' {1..300}) long
        echo odd > "$(printf 'line\nend')"; echo raw > "$(printf '\377\376')"; echo '~' > ~/.config/rc
        mkfifo pipe; head -c 300000 /dev/urandom > random; : > nothing
        touch -d '2001-02-03 04:05:06.123456789' plain deep; touch -h -d '1999-01-01' soft
        python3 -c 'import os; os.setxattr("random", "user.mark", bytes(range(256)))' 2>/dev/null || true
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("gone")'"#;
    world.says(script).await;
    let mark = r#"python3 -c 'import os; print(len(os.getxattr("/workspace/random", "user.mark")))' 2>&1"#;
    let marked = world.says(&format!("{mark} || true")).await;
    let expected: String = listing(world, world.fence)
        .await
        .lines()
        .filter(|line| !line.contains("gone"))
        .map(|line| format!("{line}\n"))
        .collect();
    let store = Store::new();
    let saved = checkpoint::save(&*world.sandbox, world.fence, &store.blobs, SESSION, None).await.unwrap();
    let again =
        checkpoint::save(&*world.sandbox, world.fence, &store.blobs, SESSION, Some(&saved.digest)).await;
    assert_eq!(again.unwrap(), saved, "equal files give an equal checkpoint");
    assert!(world.says("stat -c %a secret closed").await == "0\n0", "a closed directory is closed again");

    let fence = replaced(world).await;
    let fetched = checkpoint::fetch(&store.blobs, SESSION, &saved.digest).await.unwrap();
    checkpoint::load(&*world.sandbox, fence, fetched).await.unwrap();
    world.sandbox.attach(fence).await.unwrap();
    let restored = listing(world, fence).await;
    // Directories that contained a socket, and the roots, have other modification times.
    let strip = |text: &str| text.replace("gone", "");
    for (one, other) in strip(&expected).lines().zip(strip(&restored).lines()) {
        assert_eq!(one, other);
    }
    assert_eq!(expected.lines().count(), restored.lines().count());
    let exec = world.shell("mark", &format!("{mark} || true"));
    world.sandbox.start(fence, &exec).await.unwrap();
    world.sandbox.wait(fence, "mark").await.unwrap();
    let range = sojourn::sandbox::OutputRange {
        stream: sojourn::sandbox::OutputStream::Stdout,
        offset: 0,
        bytes_max: 999,
    };
    let output = world.sandbox.output(fence, "mark", range).await.unwrap();
    assert_eq!(String::from_utf8(output).unwrap().trim(), marked);
    let third = checkpoint::save(&*world.sandbox, fence, &store.blobs, SESSION, None).await.unwrap();
    assert_eq!(third.digest, saved.digest, "the checkpoint does not depend on the sandbox");
    world.sandbox.destroy(fence.sandbox).await.unwrap();
}

pub async fn a_large_file_with_holes_takes_no_space(world: &World<'_>) {
    world.says("truncate -s 300M sparse; printf end >> sparse").await;
    let store = Store::new();
    let saved = checkpoint::save(&*world.sandbox, world.fence, &store.blobs, SESSION, None).await.unwrap();
    assert!(saved.bytes < 1 << 20, "{} bytes", saved.bytes);
    let fence = replaced(world).await;
    let fetched = checkpoint::fetch(&store.blobs, SESSION, &saved.digest).await.unwrap();
    checkpoint::load(&*world.sandbox, fence, fetched).await.unwrap();
    world
        .sandbox
        .start(fence, &world.shell("du", "tail -c 3 sparse; stat -c ' %s %b' sparse"))
        .await
        .unwrap();
    world.sandbox.wait(fence, "du").await.unwrap();
    let range = sojourn::sandbox::OutputRange {
        stream: sojourn::sandbox::OutputStream::Stdout,
        offset: 0,
        bytes_max: 999,
    };
    let said = String::from_utf8(world.sandbox.output(fence, "du", range).await.unwrap()).unwrap();
    let fields: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(fields[..2], ["end", "314572803"], "{said}");
    // gVisor does not report holes of files.
    assert!(
        world.provider.is_gvisor() || fields[2].parse::<u64>().unwrap() < 2_000,
        "{said} blocks of 512 bytes"
    );
    world.sandbox.destroy(fence.sandbox).await.unwrap();
}

#[test]
fn files_larger_than_a_checkpoint_are_refused_before_they_are_read() {
    for provider in [LocalProvider::new(), LocalProvider::gvisor()] {
        run(&provider, limits(), |world| Box::pin(large_files_are_not_read(world)));
    }
}

async fn large_files_are_not_read(world: &World<'_>) {
    // One file, and several of which each is small enough.
    for script in ["truncate -s 1T huge", "for i in 1 2 3; do truncate -s 6G part$i; done"] {
        world.says(script).await;
        let (sender, mut receiver) = mpsc::channel(1);
        // Dropped with its first part: then a provider that reads all ends, too.
        let first = async move { receiver.recv().await };
        let (packed, first) = tokio::join!(world.sandbox.pack(world.fence, sender), first);
        assert!(first.is_none(), "{script}: a part was sent");
        let exceeds = Fault::Refused("the sandbox's files exceed 17179869184 bytes".to_owned());
        assert_eq!(packed, Err(exceeds), "{script}");
        // The processes run, and without these files a checkpoint is taken.
        world.says("rm -f huge part?").await;
        let store = Store::new();
        checkpoint::save(&*world.sandbox, world.fence, &store.blobs, SESSION, None).await.unwrap();
    }
}

pub async fn no_process_runs_while_files_are_checkpointed(world: &World<'_>) {
    // Two files that always change together.
    let script =
        "echo 0 > a; echo 0 > b; echo ready; i=0; while :; do i=$((i+1)); echo $i > a; echo $i > b; done";
    world.says("head -c 20000000 /dev/urandom > bulk").await;
    world.sandbox.start(world.fence, &world.shell("twins", script)).await.unwrap();
    world.printed("twins", "ready").await;
    let (sender, mut receiver) = mpsc::channel(1);
    let packing = world.sandbox.pack(world.fence, sender);
    let taking = async {
        let first = receiver.recv().await.expect("a part");
        // While the archive is written no command starts; known results stay readable.
        let refused = world.sandbox.start(world.fence, &world.shell("other", "true")).await;
        assert!(matches!(refused, Err(Fault::Unavailable(_))), "{refused:?}");
        let mut whole = first.to_vec();
        while let Some(part) = receiver.recv().await {
            whole.extend_from_slice(&part);
        }
        whole
    };
    let (packed, whole) = tokio::join!(packing, taking);
    packed.unwrap();
    let mut found = std::collections::HashMap::new();
    for entry in tar::Archive::new(whole.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut text = String::new();
        if name.ends_with("/a") || name.ends_with("/b") {
            std::io::Read::read_to_string(&mut entry, &mut text).unwrap();
            found.insert(name, text.trim().parse::<i64>().unwrap_or(0));
        }
    }
    let (a, b) = (found["workspace/a"], found["workspace/b"]);
    assert!(a == b || a == b + 1 || a == 0 || b == 0, "{a} and {b}");
    // It resumes, and new commands start.
    world.says("true").await;
    let before = world.says("cat b").await;
    wait_for("the command continues", async || (world.says("cat b").await != before).then_some(())).await;
    world.sandbox.kill(world.fence, "twins").await.unwrap();
}

pub async fn a_quiesced_sandbox_writes_nothing_until_it_is_attached(world: &World<'_>) {
    let script = "i=0; echo ready; while :; do i=$((i+1)); echo $i > count; done";
    world.sandbox.start(world.fence, &world.shell("counts", script)).await.unwrap();
    world.printed("counts", "ready").await;
    world.sandbox.quiesce(world.fence).await.unwrap();
    let store = Store::new();
    let save = || checkpoint::save(&*world.sandbox, world.fence, &store.blobs, SESSION, None);
    let first = save().await.unwrap();
    // It does not continue when the archive is complete.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(save().await.unwrap(), first);
    world.sandbox.attach(world.fence).await.unwrap();
    wait_for("it continues", async || (save().await.unwrap() != first).then_some(())).await;
    // A command that starts continues it, too.
    world.sandbox.quiesce(world.fence).await.unwrap();
    let before = world.says("cat count").await;
    wait_for("it continues", async || (world.says("cat count").await != before).then_some(())).await;
    let stale = SandboxFence { epoch: 0, ..world.fence };
    assert_eq!(world.sandbox.quiesce(stale).await, Err(Fault::Stale));
    world.sandbox.kill(world.fence, "counts").await.unwrap();
}

pub async fn a_sandbox_that_was_not_restored_to_its_end_is_not_used(world: &World<'_>) {
    let fence = replaced(world).await;
    let unused = world.sandbox.attach(fence).await;
    assert!(matches!(unused, Err(Fault::Unavailable(_))), "{unused:?}");
    // Half an archive.
    let (sender, receiver) = mpsc::channel(4);
    sender.send(Ok(Bytes::from_static(&[0; 100]))).await.unwrap();
    sender.send(Err(Fault::Refused("the rest is gone".to_owned()))).await.unwrap();
    drop(sender);
    let broken = world.sandbox.unpack(fence, receiver).await;
    assert_eq!(broken, Err(Fault::Refused("the rest is gone".to_owned())));
    assert!(matches!(world.sandbox.attach(fence).await, Err(Fault::Unavailable(_))));
    // The next sandbox does not use the partial files.
    world.sandbox.destroy(fence.sandbox).await.unwrap();
    let previous = vec![fence.sandbox];
    let next = Spec { sandbox: world.origin.id(), previous, restores: true, ..world.spec.clone() };
    assert_eq!(world.sandbox.create(&next, 3).await, Ok(Files::Fresh));
    world.sandbox.destroy(next.sandbox).await.unwrap();
}

/// An archive of these entries in order, with any names.
fn archive(entries: &[(tar::EntryType, &str, &str)]) -> Bytes {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, link) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(if *kind == tar::EntryType::Regular { 4 } else { 0 });
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_link_name_literal(link).unwrap();
        header.set_cksum();
        let content: &[u8] = if *kind == tar::EntryType::Regular { b"evil" } else { b"" };
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap().into()
}

pub async fn an_archive_never_leads_out_of_the_files(world: &World<'_>) {
    use tar::EntryType::{Block, Char, Directory, Link, Regular, Symlink};
    let bad: [&[(tar::EntryType, &str, &str)]; 10] = [
        &[(Regular, "workspace/../../tmp/evil", "")],
        &[(Regular, "/tmp/evil", "")],
        &[(Regular, "tmp/evil", "")],
        &[(Regular, "../tmp/evil", "")],
        &[(Symlink, "workspace/out", "/tmp"), (Regular, "workspace/out/evil", "")],
        &[(Symlink, "workspace/out", "/tmp"), (Directory, "workspace/out/evil", "")],
        &[(Link, "workspace/out", "/etc/passwd")],
        &[(Link, "workspace/out", "workspace/../../etc/passwd")],
        &[(Char, "workspace/null", "")],
        &[(Block, "workspace/disk", "")],
    ];
    let fence = replaced(world).await;
    for entries in bad {
        let (sender, receiver) = mpsc::channel(4);
        sender.send(Ok(archive(entries))).await.unwrap();
        drop(sender);
        let refused = world.sandbox.unpack(fence, receiver).await;
        assert!(matches!(refused, Err(Fault::Refused(_) | Fault::NotFound(_))), "{entries:?}: {refused:?}");
        let evil = world.sandbox.read_file(fence, "/tmp/evil", 0, 9).await;
        assert!(matches!(evil, Err(Fault::NotFound(_))), "{entries:?}: {evil:?}");
    }
    world.sandbox.destroy(fence.sandbox).await.unwrap();
}

pub async fn a_checkpoint_that_is_gone_or_changed_is_not_restored(world: &World<'_>) {
    world.says("echo kept > a").await;
    let store = Store::new();
    let saved = checkpoint::save(&*world.sandbox, world.fence, &store.blobs, SESSION, None).await.unwrap();
    let fence = replaced(world).await;
    let never = "0".repeat(64);
    let gone = checkpoint::fetch(&store.blobs, SESSION, &never).await;
    assert!(matches!(gone, Err(Fault::NotFound(_))), "{gone:?}");
    let path = store.directory.path().join("blobs").join(checkpoint::key(SESSION, &saved.digest));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let changed = checkpoint::fetch(&store.blobs, SESSION, &saved.digest).await;
    assert!(matches!(changed, Err(Fault::NotFound(_))), "{changed:?}");
    assert!(matches!(world.sandbox.attach(fence).await, Err(Fault::Unavailable(_))));
    world.sandbox.destroy(fence.sandbox).await.unwrap();
}

pub async fn an_archive_larger_than_the_disk_is_refused(world: &World<'_>) {
    let fence = replaced(world).await;
    let (sender, receiver) = mpsc::channel(4);
    let bytes: u64 = 300 << 20;
    let bomb = async move {
        let mut header = tar::Header::new_gnu();
        header.set_path("workspace/bomb").unwrap();
        header.set_mode(0o644);
        header.set_size(bytes);
        header.set_cksum();
        let _ = sender.send(Ok(Bytes::copy_from_slice(header.as_bytes()))).await;
        for _ in 0..bytes >> 18 {
            // The reader may have stopped.
            if sender.send(Ok(Bytes::from(vec![1; 1 << 18]))).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Ok(Bytes::from(vec![0; 1_024]))).await;
    };
    let (refused, ()) = tokio::join!(world.sandbox.unpack(fence, receiver), bomb);
    assert!(matches!(&refused, Err(Fault::Refused(words)) if words.contains("space")), "{refused:?}");
    let used = world.sandbox.attach(fence).await;
    assert!(matches!(used, Err(Fault::Unavailable(_))), "{used:?}");
    world.sandbox.destroy(fence.sandbox).await.unwrap();
}
