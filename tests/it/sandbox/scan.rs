//! The list of a session's files, and the contents of those that are fetched.

use std::time::Duration;

use bytes::Bytes;
use sojourn::sandbox::{EntryKind, Fault, Fetched, FetchedFile, ScanEntry};
use tokio::{sync::mpsc, time::timeout};

use super::World;
use crate::support::wait::WAIT_MAX;

/// Content of a file and whether it stayed the same while it was read; `None` if it was gone.
type File = Option<(Vec<u8>, bool)>;

async fn scan(world: &World<'_>, entries_max: usize) -> Result<Vec<ScanEntry>, Fault> {
    world.sandbox.scan(world.fence, entries_max as u64).await
}

/// The files of a fetch.
async fn read(mut fetched: Fetched) -> Result<Vec<File>, Fault> {
    let mut files = Vec::new();
    while let Some(file) = fetched.next().await? {
        files.push(match file {
            FetchedFile::Gone => None,
            FetchedFile::Whole { content, is_stable } => Some((content, is_stable)),
            FetchedFile::Large(mut file) => {
                let mut content = Vec::new();
                while let Some(part) = file.next_part().await? {
                    content.extend_from_slice(&part);
                }
                assert_eq!(content.len() as u64, file.size());
                Some((content, file.finish().await?))
            }
        });
    }
    Ok(files)
}

async fn fetch(world: &World<'_>, paths: &[Vec<u8>]) -> Result<Vec<File>, Fault> {
    let (sender, parts) = mpsc::channel::<Bytes>(4);
    let reading = read(Fetched::new(parts, paths.len()));
    let (sent, files) = tokio::join!(world.sandbox.fetch(world.fence, paths, sender), reading);
    sent.and(files)
}

fn paths<const COUNT: usize>(paths: [&str; COUNT]) -> [Vec<u8>; COUNT] {
    paths.map(|path| path.as_bytes().to_vec())
}

/// Nanoseconds of a time as `find` prints it.
fn nanos(time: &[u8]) -> i64 {
    let (seconds, fraction) = std::str::from_utf8(time).unwrap().split_once('.').unwrap();
    seconds.parse::<i64>().unwrap() * 1_000_000_000 + fraction[..9].parse::<i64>().unwrap()
}

/// The files as `find` lists them, in the order of a scan.
async fn found(world: &World<'_>) -> Vec<ScanEntry> {
    // Names need not be UTF-8.
    let find = r"find /workspace /home/agent -name 'closed*' -prune -o \( -type f -o -type d -o -type l \) \
        -printf '%y\0%m\0%s\0%T@\0%C@\0%i\0%n\0%l\0%p\0' | od -An -v -tx1 | tr -d ' \n'";
    let printed = world.says(find).await;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let printed: Vec<u8> = printed.as_bytes().chunks(2).map(byte).collect();
    let fields: Vec<_> = printed.split(|&byte| byte == 0).collect();
    let number =
        |field: &[u8], radix| u64::from_str_radix(std::str::from_utf8(field).unwrap(), radix).unwrap();
    let mut found: Vec<_> = fields
        .chunks_exact(9)
        .map(|fields| {
            let kind = match fields[0] {
                b"f" => EntryKind::File,
                b"d" => EntryKind::Directory,
                _ => EntryKind::Link,
            };
            let path = match fields[8].strip_prefix(b"/home/agent") {
                Some(below) => [b"home".as_slice(), below].concat(),
                None => fields[8][1..].to_vec(),
            };
            ScanEntry {
                path,
                kind,
                mode: number(fields[1], 8) as u32,
                size: if kind == EntryKind::File { number(fields[2], 10) } else { 0 },
                mtime_ns: nanos(fields[3]),
                ctime_ns: nanos(fields[4]),
                inode: number(fields[5], 10),
                links: number(fields[6], 10),
                target: fields[7].to_vec(),
            }
        })
        .collect();
    let names =
        |entry: &ScanEntry| entry.path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
    found.sort_by_key(names);
    found
}

pub async fn a_scan_lists_every_file_with_its_state(world: &World<'_>) {
    let make = r#"
        mkdir -p src/deep/empty a; cd src; echo one > one; chmod 4750 one; ln one deep/hard; ln -s one soft
        ln -s /nowhere/else dangling; echo name > "$(printf 'line\nend')"; echo name > "$(printf 'raw\377')"; echo > ' '
        touch -d '2001-02-03 04:05:06.123456789' deep; mkdir -m 1777 sticky; : > nothing; head -c 9000000 /dev/zero > large
        mkdir -p .git/objects; echo kept > ~/.kept; touch ../a/x ../a.b; mkfifo pipe
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("gone")'
        mkdir closed closed-listed; echo x > closed/x; echo x > closed-listed/x; echo secret > closed-file
        chmod 000 closed closed-file; chmod 600 closed-listed"#;
    world.says(make).await;
    let expected = found(world).await;
    assert!(expected.len() > 20, "{expected:?}");
    let listed = scan(world, 1_000).await.unwrap();
    assert_eq!(listed, expected);
    let of =
        |path: &[u8]| listed.iter().find(|entry| entry.path == path).unwrap_or_else(|| panic!("{path:?}"));
    let one = of(b"workspace/src/one");
    assert_eq!(
        (one.mode, one.size, one.links, one.inode),
        (0o4750, 4, 2, of(b"workspace/src/deep/hard").inode)
    );
    assert_eq!(of(b"workspace/src/dangling").target, b"/nowhere/else");
    assert_eq!(of(b"workspace/src/deep").mtime_ns % 1_000_000_000, 123_456_789);
    assert_eq!(of(b"workspace/src/raw\xff").size, of(b"workspace/src/line\nend").size);
    // A second scan finds the same, and no mode was changed.
    assert_eq!(scan(world, 1_000).await.unwrap(), listed);
    assert_eq!(world.says("cd src; stat -c %a closed closed-file closed-listed").await, "0\n0\n600");
    world.says("cd src; chmod 700 closed closed-listed; rm -r closed* pipe gone").await;
    let count = scan(world, 1_000).await.unwrap().len();
    assert_eq!(scan(world, count).await.unwrap().len(), count);
    for fewer in [count - 1, 1, 0] {
        let refused = Fault::Refused(format!("there are more than {fewer} files"));
        assert_eq!(scan(world, fewer).await, Err(refused));
    }
}

pub async fn a_fetch_reads_files_and_nothing_in_their_place(world: &World<'_>) {
    let make = r#"
        mkdir -p d/e moved; printf one > d/e/one; printf two > "d/e/$(printf 'line\nend')"; : > d/empty; printf x > ~/x
        for name in linked piped replaced removed shut; do printf old > $name; done; printf old > moved/file
        python3 -c 'open("large", "wb").write(bytes(range(251)) * 40000)'"#;
    world.says(make).await;
    let wanted = paths([
        "home/x",
        "workspace/d/e/line\nend",
        "workspace/d/e/one",
        "workspace/d/empty",
        "workspace/large",
    ]);
    let large: Vec<u8> = (0..=250).cycle().take(251 * 40_000).collect();
    let expected = [b"x".to_vec(), b"two".to_vec(), b"one".to_vec(), Vec::new(), large];
    let files = fetch(world, &wanted).await.unwrap();
    assert!(files == expected.map(|content| Some((content, true))), "a file came with other bytes");
    assert_eq!(fetch(world, &[]).await, Ok(Vec::new()));

    let replace = "ln -sf /etc/passwd linked; rm piped; mkfifo piped; rm replaced; mkdir replaced; rm removed; \
                   chmod 000 shut; mkdir elsewhere; printf new > elsewhere/file; rm -r moved; ln -s elsewhere moved";
    world.says(replace).await;
    let replaced = paths([
        "workspace",
        "workspace/linked",
        "workspace/moved/file",
        "workspace/piped",
        "workspace/removed",
        "workspace/replaced",
        "workspace/shut",
        "workspace/d/e/one",
    ]);
    // A pipe does not block the reader.
    let files = timeout(WAIT_MAX, fetch(world, &replaced)).await.expect("an end").unwrap();
    let (last, others) = files.split_last().unwrap();
    assert_eq!(*last, Some((b"one".to_vec(), true)));
    assert!(others.iter().all(Option::is_none), "{files:?}");

    // More paths than fit one call.
    let long = |number| format!("workspace/{}/{number:0>200}", ["n"; 400].concat()).into_bytes();
    let mut many: Vec<Vec<u8>> = (0..2_000).map(long).collect();
    many.push(b"home/x".to_vec());
    let files = fetch(world, &many).await.unwrap();
    assert_eq!((files.len(), files.last().unwrap()), (2_001, &Some((b"x".to_vec(), true))));
    assert!(files[..2_000].iter().all(Option::is_none));

    for outside in
        ["/etc/passwd", "workspace/../etc/passwd", "tmp/x", "workspace//d", "workspace/a\0home/x", ""]
    {
        let refused = fetch(world, &paths([outside])).await;
        assert!(matches!(refused, Err(Fault::Refused(_))), "{outside:?}: {refused:?}");
    }
}

pub async fn a_file_that_changes_while_it_is_fetched_is_not_stable(world: &World<'_>) {
    const BYTES: u64 = 30_000_000;
    for change in ["echo more >> file", ": > file", "chmod 600 file"] {
        world.says(&format!("rm -f file; head -c {BYTES} /dev/urandom > file; echo end > next")).await;
        let (sender, parts) = mpsc::channel::<Bytes>(1);
        let wanted = paths(["workspace/file", "workspace/next"]);
        let reading = async move {
            let mut fetched = Fetched::new(parts, 2);
            let Some(FetchedFile::Large(mut file)) = fetched.next().await.unwrap() else {
                panic!("a small file")
            };
            assert_eq!(file.size(), BYTES);
            // The helper waits: the rest does not fit the buffers on the way.
            world.says(change).await;
            let mut bytes = 0;
            while let Some(part) = file.next_part().await.unwrap() {
                bytes += part.len() as u64;
            }
            assert_eq!(bytes, BYTES, "{change}");
            assert!(!file.finish().await.unwrap(), "{change}: the file counts as unchanged");
            match fetched.next().await.unwrap() {
                Some(FetchedFile::Whole { content, is_stable: true }) => assert_eq!(content, b"end\n"),
                next => panic!("{next:?}"),
            }
            assert!(fetched.next().await.unwrap().is_none());
        };
        let (sent, ()) = tokio::join!(world.sandbox.fetch(world.fence, &wanted, sender), reading);
        sent.unwrap();
    }
}

pub async fn a_scan_and_a_fetch_pass_over_what_vanishes(world: &World<'_>) {
    let busy = "mkdir busy; echo ready; i=0; while :; do i=$((i+1)); echo $i > busy/$((i % 50)); rm -f busy/$(((i + 25) % 50)); \
                mv busy/$((i % 50)) busy/moved; mkdir -p busy/d/e; rm -rf busy/d; ln -sf $i busy/link; done";
    world.sandbox.start(world.fence, &world.shell("busy", busy)).await.unwrap();
    world.printed("busy", "ready").await;
    for _ in 0..20 {
        let listed = scan(world, 1_000).await.unwrap();
        assert!(listed.iter().any(|entry| entry.path == b"workspace/busy"), "{listed:?}");
        let files = listed.into_iter().filter(|entry| entry.kind == EntryKind::File);
        let files: Vec<_> = files.map(|entry| entry.path).collect();
        let contents = fetch(world, &files).await.unwrap();
        let busy = files.iter().zip(&contents).filter(|(path, _)| path.starts_with(b"workspace/busy/"));
        for (path, content) in busy {
            let is_number = |content: &[u8]| content.trim_ascii().iter().all(u8::is_ascii_digit);
            assert!(content.as_ref().is_none_or(|(content, _)| is_number(content)), "{path:?}: {content:?}");
        }
    }
    // A caller that goes away ends the fetch, and the sandbox serves the next one.
    world.sandbox.kill(world.fence, "busy").await.unwrap();
    world.says("head -c 30000000 /dev/zero > large").await;
    let (sender, mut parts) = mpsc::channel::<Bytes>(1);
    let wanted = paths(["workspace/large"]);
    let first = async move { parts.recv().await };
    let ended = async { tokio::join!(world.sandbox.fetch(world.fence, &wanted, sender), first) };
    let (ended, first) = timeout(Duration::from_secs(30), ended).await.expect("an end");
    assert!(first.is_some() && matches!(ended, Err(Fault::Unavailable(_))), "{ended:?}");
    assert_eq!(fetch(world, &paths(["workspace/none"])).await, Ok(vec![None]));
}
