//! Sandboxes across worker takeovers.

use tokio::time::timeout;

use sojourn::sandbox::{Cause, Fault, Files, OutputRange, OutputStream, SandboxFence, Spec};

use super::{World, is_gone};
use crate::support::wait::WAIT_MAX;

pub async fn a_stale_epoch_changes_nothing(world: &World<'_>) {
    let successor = SandboxFence { epoch: 7, ..world.fence };
    world.sandbox.start(world.fence, &world.shell("open", "sleep 606")).await.unwrap();
    world.sandbox.attach(successor).await.unwrap();
    let late = world.shell("late", "touch /workspace/late");
    assert_eq!(world.sandbox.start(world.fence, &late).await, Err(Fault::Stale));
    assert_eq!(world.sandbox.kill(world.fence, "open").await, Err(Fault::Stale));
    assert_eq!(world.sandbox.write_file(world.fence, "late", b"x").await, Err(Fault::Stale));
    assert_eq!(world.sandbox.write_file(world.fence, "late", &vec![0; 1 << 20]).await, Err(Fault::Stale));
    assert_eq!(world.sandbox.attach(world.fence).await, Err(Fault::Stale));
    assert_eq!(world.sandbox.create(&world.spec, world.fence.epoch).await, Err(Fault::Stale));
    assert_eq!(world.sandbox.freeze(world.fence).await, Err(Fault::Stale));
    let missing = world.sandbox.read_file(successor, "late", 0, 1).await;
    assert!(matches!(missing, Err(Fault::NotFound(_))), "{missing:?}");
    world.sandbox.kill(successor, "open").await.unwrap();
    assert_eq!(world.sandbox.wait(successor, "open").await.unwrap().cause, Cause::Killed);
}

/// The creator learns that its lease is stale, and must not remove the sandbox that belongs to its successor.
pub async fn a_sandbox_that_was_taken_over_while_it_started_lives_on(world: &World<'_>) {
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    let taker = SandboxFence { epoch: 9, ..world.fence };
    for round in 0..4 {
        let taken = async {
            while world.sandbox.attach(taker).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        let taken = async { timeout(WAIT_MAX, taken).await.expect("a sandbox is made") };
        // Whichever attaches first: the other one finds the sandbox running.
        let (made, ()) = tokio::join!(world.sandbox.create(&world.spec, 8), taken);
        assert!(matches!(made, Ok(_) | Err(Fault::Stale)), "{made:?} in round {round}");
        assert_eq!(world.sandbox.attach(taker).await, Ok(()));
        assert_eq!(world.sandbox.create(&world.spec, 8).await, Err(Fault::Stale));
        world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    }
}

pub async fn a_sandbox_that_is_not_there_is_gone(world: &World<'_>) {
    let never = SandboxFence { sandbox: world.origin.id(), ..world.fence };
    assert!(is_gone(world.sandbox.attach(never).await));
    world.sandbox.start(world.fence, &world.shell("open", "sleep 607")).await.unwrap();
    let (waited, destroyed) =
        tokio::join!(world.sandbox.wait(world.fence, "open"), world.sandbox.destroy(world.spec.sandbox));
    destroyed.unwrap();
    assert_eq!(waited, Err(Fault::Gone));
    assert!(is_gone(world.sandbox.attach(world.fence).await));
    assert!(is_gone(world.sandbox.start(world.fence, &world.shell("after", "true")).await));
    assert!(is_gone(world.sandbox.write_file(world.fence, "a", b"").await));
}

pub async fn the_disk_outlives_the_sandbox(world: &World<'_>) {
    world.says("echo kept > /workspace/a; echo too > ~/b; echo not > /tmp/c").await;
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    world.provider.assert_nothing_left(world.spec.sandbox);
    let previous = vec![world.spec.sandbox];
    let next = Spec { sandbox: world.origin.id(), previous, ..world.spec.clone() };
    assert_eq!(world.sandbox.create(&next, 2).await, Ok(Files::Kept));
    let fence = next.fence(2);
    // The command id can be used again: the first one ran in another sandbox.
    let script = "cat /workspace/a ~/b; stat -c %U /workspace/a; ls /tmp";
    world.sandbox.start(fence, &world.shell("look", script)).await.unwrap();
    world.sandbox.wait(fence, "look").await.unwrap();
    let range = OutputRange { stream: OutputStream::Stdout, offset: 0, bytes_max: 1_000 };
    assert_eq!(world.sandbox.output(fence, "look", range).await.unwrap(), b"kept\ntoo\nagent\n");
    world.sandbox.destroy(next.sandbox).await.unwrap();
    world.provider.assert_nothing_left(next.sandbox);
}

pub async fn creating_twice_is_creating_once(world: &World<'_>) {
    world.says("echo here > /tmp/mark").await;
    world.sandbox.create(&world.spec, 2).await.unwrap();
    assert_eq!(world.sandbox.attach(world.fence).await, Err(Fault::Stale));
    let fence = SandboxFence { epoch: 2, ..world.fence };
    let part = world.sandbox.read_file(fence, "/tmp/mark", 0, 100).await.unwrap();
    assert_eq!(part.content, b"here\n");
}

pub async fn two_workers_at_once_make_one_sandbox(world: &World<'_>) {
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    let (other, third) = (world.provider.open(), world.provider.open());
    let outcomes = tokio::join!(
        world.sandbox.create(&world.spec, 3),
        other.create(&world.spec, 3),
        third.create(&world.spec, 3)
    );
    let outcomes = [outcomes.0, outcomes.1, outcomes.2];
    assert!(outcomes.iter().all(|made| *made == Ok(Files::Kept)), "the later one waits: {outcomes:?}");
    world.sandbox.attach(SandboxFence { epoch: 3, ..world.fence }).await.unwrap();
}

pub async fn a_second_sandbox_of_a_session_displaces_the_first(world: &World<'_>) {
    let second = Spec { sandbox: world.origin.id(), ..world.spec.clone() };
    world.sandbox.attach(SandboxFence { epoch: 5, ..world.fence }).await.unwrap();
    assert_eq!(world.sandbox.create(&second, 4).await, Err(Fault::Stale));
    world.sandbox.create(&second, 6).await.unwrap();
    assert!(is_gone(world.sandbox.attach(SandboxFence { epoch: 6, ..world.fence }).await));
    world.provider.assert_nothing_left(world.spec.sandbox);
    let erased = world.sandbox.erase(world.spec.org, world.spec.session).await;
    assert!(matches!(erased, Err(Fault::Refused(_))), "{erased:?}");
    world.sandbox.destroy(second.sandbox).await.unwrap();
}

pub async fn a_command_outlives_the_worker_that_started_it(world: &World<'_>) {
    let script = "echo before; until [ -e /workspace/go ]; do sleep 0.01; done; echo after";
    world.sandbox.start(world.fence, &world.shell("long", script)).await.unwrap();
    {
        let waiting = world.sandbox.wait(world.fence, "long");
        let dropped = tokio::time::timeout(std::time::Duration::from_millis(50), waiting).await;
        assert!(dropped.is_err());
    }
    let other = world.provider.open();
    let fence = SandboxFence { epoch: 2, ..world.fence };
    other.attach(fence).await.unwrap();
    other.write_file(fence, "go", b"").await.unwrap();
    let exit = other.wait(fence, "long").await.unwrap();
    assert_eq!((exit.code, exit.cause), (0, Cause::Exited));
    let range = OutputRange { stream: OutputStream::Stdout, offset: 0, bytes_max: 1_000 };
    assert_eq!(other.output(fence, "long", range).await.unwrap(), b"before\nafter\n");
}

pub async fn the_sandbox_is_listed_with_its_owner(world: &World<'_>) {
    let mine = |found: &sojourn::sandbox::Found| found.session == world.spec.session;
    let listed: Vec<_> = world.sandbox.list().await.unwrap().into_iter().filter(mine).collect();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].org, listed[0].sandbox), (world.spec.org, Some(world.spec.sandbox)));
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    let listed: Vec<_> = world.sandbox.list().await.unwrap().into_iter().filter(mine).collect();
    assert_eq!((listed.len(), listed[0].sandbox), (1, None));
}

pub async fn a_disk_that_another_sandbox_left_is_not_used(world: &World<'_>) {
    world.says("echo old > /workspace/a; echo old > ~/b").await;
    world.sandbox.destroy(world.spec.sandbox).await.unwrap();
    // The session moved to another provider and returns.
    let elsewhere = vec![world.origin.id()];
    let next = Spec { sandbox: world.origin.id(), previous: elsewhere, ..world.spec.clone() };
    assert_eq!(world.sandbox.create(&next, 2).await, Ok(Files::Fresh));
    let fence = next.fence(2);
    world.sandbox.start(fence, &world.shell("look", "ls -A /workspace ~")).await.unwrap();
    world.sandbox.wait(fence, "look").await.unwrap();
    let range = OutputRange { stream: OutputStream::Stdout, offset: 0, bytes_max: 1_000 };
    assert_eq!(world.sandbox.output(fence, "look", range).await.unwrap(), b"/home/agent:\n\n/workspace:\n");
    world.sandbox.destroy(next.sandbox).await.unwrap();
}
