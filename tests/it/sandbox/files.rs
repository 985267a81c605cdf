//! Files that tools read and write.

use std::time::Duration;

use sojourn::sandbox::Fault;

use super::World;

async fn read(world: &World<'_>, path: &str) -> Result<String, Fault> {
    let part = world.sandbox.read_file(world.fence, path, 0, 1 << 20).await?;
    assert_eq!(part.size, part.content.len() as u64);
    Ok(String::from_utf8(part.content).unwrap())
}

pub async fn what_a_tool_writes_a_command_sees_and_the_other_way_round(world: &World<'_>) {
    world.sandbox.write_file(world.fence, "/workspace/src/deep/a.txt", b"by the tool\n").await.unwrap();
    world.sandbox.write_file(world.fence, "relative.txt", b"").await.unwrap();
    assert_eq!(
        world.says("cat src/deep/a.txt; stat -c %u:%g:%s relative.txt").await,
        "by the tool\n1000:1000:0"
    );
    world.says("printf 'by the command' > ~/b.txt").await;
    assert_eq!(read(world, "/home/agent/b.txt").await.unwrap(), "by the command");
    let part = world.sandbox.read_file(world.fence, "/home/agent/b.txt", 3, 3).await.unwrap();
    assert_eq!((part.content.as_slice(), part.size), (b"the".as_slice(), 14));
}

pub async fn a_file_is_replaced_with_its_mode_and_through_its_link(world: &World<'_>) {
    world.says("echo old > run.sh; chmod 750 run.sh; ln -s run.sh link; exec 3< run.sh").await;
    world.sandbox.write_file(world.fence, "/workspace/link", b"new\n").await.unwrap();
    assert_eq!(
        world.says("cat run.sh; stat -c %a run.sh; readlink link; ls -A").await,
        "new\n750\nrun.sh\nlink\nrun.sh"
    );
}

pub async fn a_link_never_leads_out_of_the_sandbox(world: &World<'_>) {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let path = secret.to_str().unwrap();
    world
        .says(&format!("ln -s {path} out; ln -s / root; ln -s /etc/shadow shadow; ln -s ../../../../.. up"))
        .await;
    for escape in ["out", "shadow", &format!("root{path}"), &format!("up{path}"), path, "../../../etc/shadow"]
    {
        let fault = read(world, escape).await.unwrap_err();
        // An image has its own table there, which is not readable.
        let is_closed = escape.ends_with("shadow") && !world.spec.rootfs.is_host();
        let is_refused = is_closed && matches!(fault, Fault::Refused(_));
        assert!(is_refused || matches!(fault, Fault::NotFound(_)), "{escape}: {fault:?}");
    }
    let _ = world.sandbox.write_file(world.fence, "out", b"overwritten").await;
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the host");
    for place in ["/usr/bin/env", "/etc/passwd", "root/usr/new", "/.sojourn/control/x", "/.sojourn/output/x"]
    {
        let fault = world.sandbox.write_file(world.fence, place, b"x").await.unwrap_err();
        assert!(matches!(fault, Fault::Refused(_)), "{place}: {fault:?}");
    }
}

pub async fn what_is_no_file_is_refused(world: &World<'_>) {
    world.says("mkdir dir; mkfifo pipe; echo secret > closed; chmod 000 closed").await;
    for path in ["dir", "pipe", "closed", "/dev/zero", "/.sojourn/control/init.sock", "a\0b"] {
        let reading = tokio::time::timeout(Duration::from_secs(5), read(world, path));
        let fault = reading.await.expect("a pipe does not block the reader").unwrap_err();
        assert!(matches!(fault, Fault::Refused(_)), "{path}: {fault:?}");
    }
    assert!(matches!(read(world, "missing").await, Err(Fault::NotFound(_))));
    assert!(matches!(read(world, "closed/below").await, Err(Fault::NotFound(_))));
    for path in ["dir", "pipe", "/", "/workspace"] {
        let fault = world.sandbox.write_file(world.fence, path, b"x").await.unwrap_err();
        assert!(matches!(fault, Fault::Refused(_)), "{path}: {fault:?}");
    }
}

pub async fn a_large_file_travels_in_parts(world: &World<'_>) {
    let content: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
    world.sandbox.write_file(world.fence, "large", &content).await.unwrap();
    let mut read = Vec::new();
    while read.len() < content.len() {
        let part = world.sandbox.read_file(world.fence, "large", read.len() as u64, 1 << 20).await.unwrap();
        assert!(!part.content.is_empty() && part.content.len() <= 1 << 20);
        read.extend(part.content);
    }
    assert!(read == content);
    let too_large = vec![0; 5 << 20];
    let fault = world.sandbox.write_file(world.fence, "too-large", &too_large).await.unwrap_err();
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
}
