//! Commands: start, watch, end.

use std::time::{Duration, Instant};

use sojourn::sandbox::{Cause, Exec, Fault, JOIN_OUTPUTS, OutputRange, OutputStream, SandboxFence, Signal};

use super::World;
use crate::support::wait::wait_for;

pub async fn a_command_reports_its_output_and_its_exit_code(world: &World<'_>) {
    let exec = Exec {
        env: vec![("GREETING".to_owned(), "hello".to_owned())],
        cwd: "/tmp".to_owned(),
        ..world.shell("first", "echo $GREETING from $PWD; echo oops >&2; exit 3")
    };
    let ran = world.ran(&exec).await;
    assert_eq!((ran.exit.code, ran.exit.cause), (3, Cause::Exited));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("hello from /tmp\n", "oops\n"));
    assert_eq!((ran.exit.stdout_bytes, ran.exit.stderr_bytes), (16, 5));
    let signalled = world.ran(&world.shell("signalled", "kill -SEGV $$")).await;
    assert_eq!((signalled.exit.code, signalled.exit.cause), (139, Cause::Exited));
}

pub async fn a_command_that_does_not_exist_says_so(world: &World<'_>) {
    let missing = Exec { argv: vec!["no-such-program".to_owned()], ..world.shell("missing", "") };
    let ran = world.ran(&missing).await;
    assert_eq!(ran.exit.code, 127);
    assert!(ran.stderr.contains("no-such-program"), "{}", ran.stderr);
    let nowhere = Exec { cwd: "/nowhere".to_owned(), ..world.shell("nowhere", "true") };
    let ran = world.ran(&nowhere).await;
    assert!(ran.exit.code != 0 && ran.stderr.contains("/nowhere"), "{ran:?}");
    let empty = Exec { argv: Vec::new(), ..world.shell("empty", "") };
    assert!(matches!(world.sandbox.start(world.fence, &empty).await, Err(Fault::Refused(_))));
    let bad_id = world.shell("../escape", "true");
    assert!(matches!(world.sandbox.start(world.fence, &bad_id).await, Err(Fault::Refused(_))));
}

pub async fn a_closed_working_directory_is_opened_for_its_owner(world: &World<'_>) {
    world.says("echo kept > file; chmod 000 /workspace").await;
    assert_eq!(world.says("cat file; stat -c %a .").await, "kept\n700");
    // Only its owner may open a directory.
    let closed = "find / -maxdepth 4 -path /proc -prune -o -type d ! -executable -print -quit 2>/dev/null";
    let closed = world.says(closed).await;
    assert!(closed.starts_with('/'), "each image has a directory of root alone: {closed}");
    let foreign = Exec { cwd: closed, ..world.shell("foreign", "true") };
    let ran = world.ran(&foreign).await;
    assert!(ran.exit.code != 0, "{ran:?}");
}

pub async fn the_same_id_twice_runs_once(world: &World<'_>) {
    let exec = world.shell("once", "echo ran >> /workspace/count; echo done");
    let both = tokio::join!(world.ran(&exec), world.ran(&exec));
    assert_eq!((both.0.stdout.as_str(), both.1.stdout.as_str()), ("done\n", "done\n"));
    assert_eq!(both.0.exit, both.1.exit);
    world.ran(&exec).await;
    assert_eq!(world.says("cat /workspace/count").await, "ran");
}

pub async fn output_can_be_read_while_the_command_runs(world: &World<'_>) {
    let exec = world.shell("slow", "echo early; read < <(sleep 600)");
    world.sandbox.start(world.fence, &exec).await.unwrap();
    world.printed("slow", "early").await;
    let range = OutputRange { stream: OutputStream::Stdout, offset: 2, bytes_max: 2 };
    assert_eq!(world.sandbox.output(world.fence, "slow", range).await.unwrap(), b"rl");
    let beyond = OutputRange { offset: 1_000, ..range };
    assert_eq!(world.sandbox.output(world.fence, "slow", beyond).await.unwrap(), b"");
    world.sandbox.kill(world.fence, "slow").await.unwrap();
    let exit = world.sandbox.wait(world.fence, "slow").await.unwrap();
    assert_eq!((exit.code, exit.cause), (143, Cause::Killed));
}

pub async fn commands_run_side_by_side(world: &World<'_>) {
    // Each waits for the other's file, so they never end when run one after the other.
    let wait_for = |mine: &str, other: &str| {
        format!("touch /tmp/{mine}; until [ -e /tmp/{other} ]; do sleep 0.01; done; echo {mine}")
    };
    let (left, right) = (world.shell("left", &wait_for("l", "r")), world.shell("right", &wait_for("r", "l")));
    let (left, right) = tokio::join!(world.ran(&left), world.ran(&right));
    assert_eq!((left.stdout.as_str(), right.stdout.as_str()), ("l\n", "r\n"));
}

pub async fn a_kill_ends_a_tree_that_fled_and_ignores_term(world: &World<'_>) {
    let script = "trap '' TERM INT HUP
        (setsid bash -c \"trap '' TERM; (exec -a fugitive sleep 601) & (setsid setsid sleep 601 &); wait\" &) &
        until grep -aq fugitive /proc/[0-9]*/cmdline 2>/dev/null; do :; done
        echo fled; while :; do sleep 602; done";
    world.sandbox.start(world.fence, &world.shell("fugitive", script)).await.unwrap();
    world.printed("fugitive", "fled").await;
    world.sandbox.kill(world.fence, "fugitive").await.unwrap();
    let exit = world.sandbox.wait(world.fence, "fugitive").await.unwrap();
    assert_eq!((exit.code, exit.cause), (137, Cause::Killed));
    assert_eq!(world.processes("sleep").await, 0);
    // Killing a finished command again succeeds.
    world.sandbox.kill(world.fence, "fugitive").await.unwrap();
}

pub async fn a_signal_reaches_a_command_and_what_it_started(world: &World<'_>) {
    let script = "trap 'echo outer; exit 5' USR1
        bash -c \"trap 'echo inner; exit' USR1; echo ready; while :; do sleep 0.01; done\" & wait $!; wait";
    world.sandbox.start(world.fence, &world.shell("trapped", script)).await.unwrap();
    world.printed("trapped", "ready").await;
    world.sandbox.signal(world.fence, "trapped", Signal::Usr1).await.unwrap();
    let exit = world.sandbox.wait(world.fence, "trapped").await.unwrap();
    assert_eq!((exit.code, exit.cause), (5, Cause::Exited), "the command decides how it handles a signal");
    world.printed("trapped", "inner").await;
    for (signal, code) in [(Signal::Hup, 129), (Signal::Term, 143), (Signal::Kill, 137)] {
        let id = format!("sent-{code}");
        world.sandbox.start(world.fence, &world.shell(&id, "echo ready; exec sleep 606")).await.unwrap();
        world.printed(&id, "ready").await;
        world.sandbox.signal(world.fence, &id, signal).await.unwrap();
        let exit = world.sandbox.wait(world.fence, &id).await.unwrap();
        assert_eq!((exit.code, exit.cause), (code, Cause::Killed), "{signal:?}");
    }
    // A finished command receives no signal.
    world.sandbox.signal(world.fence, "trapped", Signal::Kill).await.unwrap();
    let stale = SandboxFence { epoch: world.fence.epoch - 1, ..world.fence };
    assert_eq!(world.sandbox.signal(stale, "trapped", Signal::Kill).await, Err(Fault::Stale));
    let never = world.sandbox.signal(world.fence, "never", Signal::Kill).await;
    assert!(matches!(never, Err(Fault::NotFound(_))), "{never:?}");
}

/// A runner that recognizes the `JOIN_OUTPUTS` script joins the outputs itself; any other script is run.
pub async fn joined_outputs_come_in_order(world: &World<'_>) {
    let line = "for at in 1 2 3 4 5; do echo out $at; echo err $at >&2; done; echo \"$0\" $#; exit 6";
    for (id, join) in [("known", JOIN_OUTPUTS.to_owned()), ("unknown", format!("{JOIN_OUTPUTS} "))] {
        let exec =
            Exec { argv: ["bash", "-c", &join, line].map(str::to_owned).into(), ..world.shell(id, "") };
        let ran = world.ran(&exec).await;
        let wanted: String = (1..=5).map(|at| format!("out {at}\nerr {at}\n")).collect();
        assert_eq!((ran.stdout, ran.stderr), (wanted + "bash 0\n", String::new()), "{id}");
        assert_eq!((ran.exit.code, ran.exit.stderr_bytes), (6, 0));
    }
}

pub async fn a_command_ends_at_its_time_with_all_that_it_started(world: &World<'_>) {
    let script = "(setsid sleep 603 &); echo partial; sleep 604";
    let exec = Exec { timeout: Duration::from_millis(300), ..world.shell("late", script) };
    let began = Instant::now();
    let ran = world.ran(&exec).await;
    assert_eq!((ran.exit.cause, ran.exit.code, ran.stdout.as_str()), (Cause::Timeout, 143, "partial\n"));
    assert!(ran.exit.duration >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(10));
    world.sandbox.kill(world.fence, "late").await.unwrap();
    assert_eq!(world.processes("sleep").await, 0);
}

pub async fn a_background_process_outlives_its_command_until_it_is_killed(world: &World<'_>) {
    let ran = world.ran(&world.shell("server", "sleep 605 & echo started")).await;
    assert_eq!((ran.exit.code, ran.stdout.as_str()), (0, "started\n"));
    assert_eq!(world.processes("sleep").await, 1);
    world.sandbox.kill(world.fence, "server").await.unwrap();
    assert_eq!(world.processes("sleep").await, 0);
    let exit = world.sandbox.wait(world.fence, "server").await.unwrap();
    assert_eq!((exit.code, exit.cause), (0, Cause::Exited));
}

pub async fn output_beyond_the_cap_is_counted_not_kept(world: &World<'_>) {
    let exec = Exec { output_bytes_max: 100_000, ..world.shell("flood", "yes | head -c 1G; exit 4") };
    world.sandbox.start(world.fence, &exec).await.unwrap();
    let exit = world.sandbox.wait(world.fence, "flood").await.unwrap();
    assert_eq!((exit.code, exit.cause, exit.stdout_bytes), (4, Cause::Exited, 1 << 30));
    let range = OutputRange { stream: OutputStream::Stdout, offset: 0, bytes_max: 200_000 };
    assert_eq!(world.sandbox.output(world.fence, "flood", range).await.unwrap().len(), 100_000);
}

pub async fn the_oldest_output_is_evicted(world: &World<'_>) {
    let one = OutputRange { stream: OutputStream::Stdout, offset: 0, bytes_max: 1 };
    for round in 0..10 {
        let exec = world.shell(&format!("much-{round}"), "head -c 64M /dev/zero");
        let exec = Exec { output_bytes_max: u64::MAX, ..exec };
        world.sandbox.start(world.fence, &exec).await.unwrap();
        world.sandbox.wait(world.fence, &exec.id).await.unwrap();
    }
    let oldest = world.sandbox.output(world.fence, "much-0", one).await;
    assert!(matches!(oldest, Err(Fault::NotFound(_))), "{oldest:?}");
    assert_eq!(world.sandbox.output(world.fence, "much-9", one).await.unwrap(), [0]);
    // Its result stays available, and it does not run again.
    world.sandbox.start(world.fence, &world.shell("much-0", "touch again")).await.unwrap();
    assert_eq!(world.sandbox.wait(world.fence, "much-0").await.unwrap().stdout_bytes, 64 << 20);
    assert_eq!(world.says("ls -A").await, "");
}

pub async fn a_service_takes_its_input_once_and_does_not_count_as_running(world: &World<'_>) {
    let (sandbox, fence) = (&world.sandbox, world.fence);
    let script = "while read -r line; do echo \"<$line>\"; done; echo end";
    let service = Exec { is_service: true, ..world.shell("service", script) };
    sandbox.start(fence, &service).await.unwrap();
    assert_eq!(sandbox.running(fence).await, Ok(0), "its sandbox may rest");
    sandbox.write_input(fence, "service", 0, "one\ntw").await.unwrap();
    // What was not known to have arrived is sent again, with more.
    sandbox.write_input(fence, "service", 0, "one\ntw").await.unwrap();
    sandbox.write_input(fence, "service", 4, "two\n").await.unwrap();
    world.printed("service", "<two>").await;
    assert_eq!(world.output("service", OutputStream::Stdout).await, "<one>\n<two>\n");
    assert_eq!(sandbox.read_input(fence, "service", 2, 100).await.unwrap(), b"e\ntwo\n");
    for (offset, text) in [(9, "late"), (0, "two\n"), (6, "o\nand more\n")] {
        // It leaves a gap, or something else is there.
        let other = sandbox.write_input(fence, "service", offset, text).await;
        let is_refused = matches!(other, Err(Fault::Refused(_)));
        assert!(is_refused != (offset == 6), "{offset}: {other:?}");
    }
    // More than the pipe holds, while the service reads nothing else.
    let long = format!("{}\n", "x".repeat(200_000));
    sandbox.write_input(fence, "service", 17, &long).await.unwrap();
    let end = format!("{}>", "x".repeat(100));
    wait_for("all of it arrives", async || {
        let range = OutputRange { stream: OutputStream::Stdout, offset: 100_000, bytes_max: 200_000 };
        let output = sandbox.output(fence, "service", range).await.unwrap();
        String::from_utf8(output).unwrap().contains(&end).then_some(())
    })
    .await;
    let stale = SandboxFence { epoch: fence.epoch - 1, ..fence };
    assert_eq!(sandbox.write_input(stale, "service", 0, "").await, Err(Fault::Stale));
    sandbox.kill(fence, "service").await.unwrap();
    let ended = sandbox.write_input(fence, "service", 0, "").await;
    assert!(matches!(ended, Err(Fault::Refused(_))), "{ended:?}");
    assert_eq!(sandbox.read_input(fence, "service", 0, 3).await.unwrap(), b"one");
    let unknown = sandbox.write_input(fence, "never", 0, "").await;
    assert!(matches!(unknown, Err(Fault::NotFound(_))), "{unknown:?}");
    let plain = world.shell("plain", "sleep 606");
    sandbox.start(fence, &plain).await.unwrap();
    let refused = sandbox.write_input(fence, "plain", 0, "x").await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    sandbox.kill(fence, "plain").await.unwrap();
}

pub async fn an_unknown_command_is_not_found(world: &World<'_>) {
    let range = OutputRange { stream: OutputStream::Stderr, offset: 0, bytes_max: 1 };
    assert!(matches!(world.sandbox.wait(world.fence, "never").await, Err(Fault::NotFound(_))));
    assert!(matches!(world.sandbox.output(world.fence, "never", range).await, Err(Fault::NotFound(_))));
    assert!(matches!(world.sandbox.kill(world.fence, "never").await, Err(Fault::NotFound(_))));
}
