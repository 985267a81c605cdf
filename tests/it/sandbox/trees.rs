//! Whole directories: archives that callers read and write.

use bytes::Bytes;
use sojourn::sandbox::Fault;
use tar::{EntryType, Header};
use tokio::sync::mpsc;

use super::World;

/// Archive of a directory, as the sandbox creates it.
async fn read(world: &World<'_>, path: &str) -> Result<Vec<u8>, Fault> {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(4);
    let taken = async {
        let mut whole = Vec::new();
        while let Some(part) = receiver.recv().await {
            whole.extend_from_slice(&part);
        }
        whole
    };
    let (read, whole) = tokio::join!(world.sandbox.read_tree(world.fence, path, sender), taken);
    read.map(|()| whole)
}

async fn write(world: &World<'_>, path: &str, archive: Vec<u8>) -> Result<(), Fault> {
    let (sender, receiver) = mpsc::channel(4);
    let archive = Bytes::from(archive);
    let sent = async move {
        for start in (0..archive.len()).step_by(100_000) {
            let part = archive.slice(start..archive.len().min(start + 100_000));
            if sender.send(Ok(part)).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(world.sandbox.write_tree(world.fence, path, receiver), sent).0
}

fn names(archive: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> =
        entries.map(|entry| entry.path().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub async fn a_directory_travels_in_one_piece_and_back(world: &World<'_>) {
    let make = r#"
        mkdir -p src/deep/empty; cd src; echo one > one; chmod 750 one; ln one deep/hard; ln -s one soft
        head -c 700000 /dev/urandom > deep/random; echo name > "$(printf 'line\nend')"; mkfifo pipe
        touch -d '2001-02-03 04:05:06' one; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("gone")'"#;
    world.says(make).await;
    let archive = read(world, "src").await.unwrap();
    assert_eq!(
        names(&archive),
        ["deep", "deep/empty", "deep/hard", "deep/random", "line\nend", "one", "pipe", "soft"]
    );
    // A pipe cannot be written back.
    let refused = write(world, "copy", archive).await.unwrap_err();
    assert!(
        matches!(&refused, Fault::Refused(words) if words.contains("pipe: an archive must not contain Fifo")),
        "{refused:?}"
    );
    world
        .says("rm src/pipe; rm -r copy; mkdir -p copy/deep; ln -s /etc/passwd copy/one; echo old > copy/kept")
        .await;
    let archive = read(world, "/workspace/src").await.unwrap();
    write(world, "/workspace/copy", archive.clone()).await.unwrap();
    let compared = "rm -f src/gone; diff -r src copy; stat -c '%a %Y %h' copy/one; readlink copy/soft; cat copy/kept; \
                    cat copy/one; ls -A copy | grep -c sojourn-write; true";
    assert_eq!(
        world.says(compared).await,
        "Only in copy: kept\n750 981173106 2\none\nold\none\n0",
        "the link is replaced and not followed"
    );
    // Writing the same archive again changes nothing.
    write(world, "/workspace/copy", archive).await.unwrap();
    assert_eq!(world.says("diff -r src copy; stat -c %h copy/one").await, "Only in copy: kept\n2");
    write(world, "/workspace/new/place", tar::Builder::new(Vec::new()).into_inner().unwrap()).await.unwrap();
    assert_eq!(world.says("ls -A new/place").await, "");
    for (path, is_missing) in [("src/one", true), ("missing", true), ("/.sojourn/control", false)] {
        let fault = read(world, path).await.unwrap_err();
        assert_eq!(matches!(fault, Fault::NotFound(_)), is_missing, "{path}: {fault:?}");
    }
    for path in ["/usr/lib/evil", "/.sojourn/output", "src/one"] {
        let fault = write(world, path, read(world, "src").await.unwrap()).await.unwrap_err();
        assert!(matches!(fault, Fault::Refused(_) | Fault::NotFound(_)), "{path}: {fault:?}");
    }
}

/// An archive of these entries in order, with any names.
fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, link) in entries {
        let is_file = matches!(kind, EntryType::Regular | EntryType::GNUSparse);
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o4755);
        header.set_size(if is_file { 4 } else { 0 });
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_link_name_literal(link).unwrap();
        if *kind == EntryType::GNUSparse {
            // Four bytes at the end of an exabyte of holes.
            let gnu = header.as_gnu_mut().unwrap();
            gnu.sparse[0].set_offset((1 << 60) - 4);
            gnu.sparse[0].set_length(4);
            gnu.set_real_size(1 << 60);
        }
        header.set_cksum();
        let content: &[u8] = if is_file { b"evil" } else { b"" };
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

pub async fn a_hostile_archive_stays_in_its_directory(world: &World<'_>) {
    use EntryType::{Block, Char, Directory, Fifo, GNUSparse, Link, Regular, Symlink};
    world.says("mkdir -p in outside; ln -s /workspace/outside in/there; ln -s outside loop; echo own > outside/own").await;
    let bad: [&[(EntryType, &str, &str)]; 17] = [
        &[(Regular, "../evil", "")],
        &[(Regular, "/workspace/outside/evil", "")],
        &[(Regular, "a/../../outside/evil", "")],
        &[(Regular, "..", "")],
        &[(Directory, "../evil", "")],
        &[(Regular, "there/evil", "")],
        &[(Directory, "there/evil", "")],
        &[(Symlink, "out", "../outside"), (Regular, "out/evil", "")],
        &[(Symlink, "../evil", "/")],
        &[(Link, "out", "/workspace/outside/own")],
        &[(Link, "out", "../outside/own")],
        &[(Link, "out", "there/own")],
        &[(Link, "out", "")],
        &[(Fifo, "pipe", "")],
        &[(Char, "null", "")],
        &[(Block, "disk", "")],
        &[(GNUSparse, "bomb", "")],
    ];
    for entries in bad {
        let refused = write(world, "in", archive(entries)).await;
        assert!(matches!(refused, Err(Fault::Refused(_))), "{entries:?}: {refused:?}");
    }
    assert_eq!(
        world.says("ls -A outside; ls -A | tr '\\n' ' '; stat -c %h outside/own").await,
        "own\nin loop outside 1"
    );
    let mut sparse = tar::Builder::new(Vec::new());
    sparse.append_pax_extensions([("GNU.sparse.realsize", b"1152921504606846976".as_slice())]).unwrap();
    let whole = [sparse.into_inner().unwrap()[..1_024].to_vec(), archive(&[(Regular, "bomb", "")])].concat();
    let refused = write(world, "in", whole).await;
    assert!(matches!(&refused, Err(Fault::Refused(words)) if words.contains("sparse")), "{refused:?}");
    // A link's target is not written, and the setuid bit is dropped.
    world.says("ln -s ../outside/own in/own").await;
    write(world, "in", archive(&[(Regular, "./own", ""), (Symlink, "far", "/etc/shadow")])).await.unwrap();
    assert_eq!(
        world.says("cat outside/own in/own; stat -c ' %a %F' in/own; readlink in/far").await,
        "own\nevil 755 regular file\n/etc/shadow"
    );
    // A file cannot replace a directory.
    let refused = write(world, ".", archive(&[(Regular, "in", "")])).await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
}

pub async fn a_bomb_of_an_archive_ends_itself(world: &World<'_>) {
    // A header of a terabyte file without content.
    let mut whole = archive(&[(EntryType::Regular, "huge", "")]);
    let mut header = Header::from_byte_slice(&whole[..512]).clone();
    header.set_size(1 << 40);
    header.set_cksum();
    whole[..512].copy_from_slice(header.as_bytes());
    let refused = write(world, "in", whole).await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    assert_eq!(world.says("ls -A in").await, "", "half a file is not written");
    // A name longer than the memory of the sandbox.
    let name_bytes: usize = 300 << 20;
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(name_bytes as u64);
    header.set_cksum();
    let mut whole = header.as_bytes().to_vec();
    whole.resize(512 + name_bytes, b'a');
    whole.extend(archive(&[(EntryType::Regular, "short", "")]));
    let refused = write(world, "in", whole).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(world.says("ls -A in; echo alive").await, "alive");
}

pub async fn a_directory_is_read_while_others_work_in_it(world: &World<'_>) {
    let busy = "mkdir busy; echo ready; i=0; while :; do i=$((i+1)); echo $i > busy/$((i % 50)); rm -f busy/$(((i + 25) % 50)); \
                mv busy/$((i % 50)) busy/moved; done";
    world.sandbox.start(world.fence, &world.shell("busy", busy)).await.unwrap();
    world.printed("busy", "ready").await;
    for _ in 0..20 {
        let archive = read(world, "/workspace").await.unwrap();
        assert_eq!(names(&archive)[0], "busy");
    }
    world.sandbox.kill(world.fence, "busy").await.unwrap();
    world.says("echo secret > busy/closed; chmod 000 busy/closed").await;
    let refused = read(world, "/workspace").await.unwrap_err();
    assert!(matches!(&refused, Fault::Refused(words) if words.starts_with("busy/closed:")), "{refused:?}");
}

pub async fn skills_are_replaced_as_a_whole_and_no_command_changes_them(world: &World<'_>) {
    let write = async |entries: &[(EntryType, &str, &str)]| {
        let (sender, receiver) = mpsc::channel(1);
        let archive = archive(entries).into();
        let sent = async move { sender.send(Ok(archive)).await.expect("a receiver") };
        tokio::join!(world.sandbox.write_skills(world.fence, receiver), sent).0
    };
    let file = EntryType::Regular;
    write(&[(file, "one/SKILL.md", ""), (file, "one/a/b", ""), (file, ".list", "")]).await.unwrap();
    let tried = "echo x > /skills/one/SKILL.md; rm -rf /skills/one; touch /skills/x; mv /skills/one /skills/two; \
                 ln -s /workspace /skills/three; find /skills -mindepth 1 | sort; stat -c '%u %g %a' /skills/one/SKILL.md";
    let said = world.says(&format!("({tried}) 2> /dev/null")).await;
    assert_eq!(
        said,
        "/skills/.list\n/skills/one\n/skills/one/SKILL.md\n/skills/one/a\n/skills/one/a/b\n0 0 755"
    );
    write(&[(file, "two/SKILL.md", "")]).await.unwrap();
    assert_eq!(world.says("find /skills -type f").await, "/skills/two/SKILL.md");
    // Skills are not in the session's files.
    let archived = read(world, "/workspace").await.unwrap();
    assert!(names(&archived).iter().all(|name| !name.contains("SKILL.md")));
    let refused = write(&[(file, "../workspace/x", "")]).await.unwrap_err();
    assert!(matches!(refused, Fault::Refused(_)), "{refused:?}");
}
