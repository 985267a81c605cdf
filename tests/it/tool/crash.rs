//! Workers that die at every point of a call, and the recovery by the next worker.

use std::sync::atomic::Ordering;

use super::*;
use crate::support::wait::WAIT_MAX;

#[tokio::test]
async fn a_command_is_never_run_twice() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let bash = checked("toolu_1", "bash", json!({"command": "echo x >> count; cat count"}));
    assert_eq!(bash.recover(&handle).await, Ok(Recovered::NeverRan));
    let first = bash.run(&handle).await.expect("a result");
    assert_eq!(bash.run(&handle).await.expect("the same").output, first.output);
    assert_eq!(bash.recover(&handle).await, Ok(Recovered::Done(first)));
    assert_eq!(fake.text("count"), "x\n");
}

#[tokio::test]
async fn a_command_outlives_its_worker_and_its_end_is_found() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let gate = fake.on_host("/workspace/gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().expect("mkfifo").success());
    let bash = checked("toolu_1", "bash", json!({"command": "read line < gate; echo got $line; exit 4"}));
    let mut started = fake.started.subscribe();
    tokio::select! {
        done = bash.run(&handle) => panic!("it ended before its gate opened: {done:?}"),
        started = started.wait_for(|&count| count == 1) => { started.expect("the sandbox lives"); }
    }
    // The worker is gone; opening the gate waits for the command, which still runs.
    tokio::task::spawn_blocking(move || std::fs::write(gate, "it\n"))
        .await
        .expect("a thread")
        .expect("a gate");
    let Ok(Recovered::Done(done)) = bash.recover(&handle).await else {
        panic!("the command was lost");
    };
    assert_eq!(done.output, "got it\n[exit code 4]");
}

#[tokio::test]
async fn a_canceled_command_ends_with_its_children() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let bash = checked("toolu_1", "bash", json!({"command": "trap '' TERM; sleep 600 & sleep 600"}));
    let mut started = fake.started.subscribe();
    let cancel = async {
        started.wait_for(|&count| count == 1).await.expect("the sandbox lives");
        bash.cancel(&handle).await;
    };
    let both = async { tokio::join!(bash.run(&handle), cancel) };
    let (done, ()) = tokio::time::timeout(WAIT_MAX, both).await.expect("it ends");
    let done = done.expect("a result");
    assert_eq!(done.exec.as_ref().map(|exec| exec.cause), Some("killed"));
    assert!(done.is_error && done.output.ends_with("[killed on request]"), "{}", done.output);
}

#[tokio::test]
async fn an_edit_takes_effect_once_wherever_its_worker_dies() {
    for (writes, wanted) in [(0, "NeverRan"), (1, "NeverRan"), (2, "Done")] {
        let fake = FakeSandbox::new();
        let handle = fake.handle();
        fake.put("list.txt", "one\n");
        // The new text contains the old one: a second edit would show.
        let edit = checked("toolu_1", "edit", json!({"path": "list.txt", "old": "one", "new": "one one"}));
        fake.writes_left.store(writes, Ordering::SeqCst);
        let ran = edit.run(&handle).await;
        assert_eq!(ran.is_ok(), writes == 2, "{ran:?}");
        fake.writes_left.store(usize::MAX, Ordering::SeqCst);
        let recovered = edit.recover(&handle).await.expect("the sandbox lives");
        let word = match &recovered {
            Recovered::Done(done) => {
                assert_eq!(Ok(done.clone()), ran);
                "Done"
            }
            Recovered::NeverRan => {
                edit.run(&handle).await.expect("it may run now");
                "NeverRan"
            }
            Recovered::Unknown => "Unknown",
        };
        assert_eq!((word, fake.text("list.txt").as_str()), (wanted, "one one\n"), "after {writes} writes");
    }
}

#[tokio::test]
async fn an_edit_of_a_file_that_somebody_changed_since_is_unknown() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    fake.put("list.txt", "one\n");
    let edit = checked("toolu_1", "edit", json!({"path": "list.txt", "old": "one", "new": "two"}));
    edit.run(&handle).await.expect("a result");
    fake.put("list.txt", "three\n");
    assert_eq!(edit.recover(&handle).await, Ok(Recovered::Unknown));
}

#[tokio::test]
async fn what_is_safe_to_repeat_is_repeated() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let write = checked("toolu_1", "write", json!({"path": "deep/er/x.txt", "content": "a\nb\n"}));
    for _ in 0..2 {
        let Ok(Recovered::Done(done)) = write.recover(&handle).await else {
            panic!("a write can always be repeated");
        };
        assert_eq!(done.output, "Wrote /workspace/deep/er/x.txt: 2 lines, 4 bytes.");
    }
    let read = checked("toolu_2", "read", json!({"path": "deep/er/x.txt"}));
    let Ok(Recovered::Done(done)) = read.recover(&handle).await else {
        panic!("a read can always be repeated");
    };
    assert_eq!(done.output, "     1\ta\n     2\tb\n");
}
