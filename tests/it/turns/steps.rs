//! A service that is killed at one step of a sandbox operation: it is blocked there, killed, restarted, and
//! the outcome is the same as without the kill.
//!
//! The service is not aware of it. It is blocked at a write by a trigger that waits for a lock, and at a
//! program by a wrapper of the same name.

use std::time::Duration;

use futures::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{
    assert_sound, ends,
    hold::{Hold, Point, Then},
    idle::blobs,
    leaks::Left,
    of, outputs, run, script, session, steer, wait_until,
};
use crate::support::{
    program::Program,
    service::{Caller, Ground, KEY},
};

const AFTER_RESTART: &str = "after the restart";
/// Number of steps tested concurrently.
const AT_ONCE: usize = 4;

/// Operation during which the service is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Creates a sandbox for the session's first command.
    Make,
    /// Freezes an idle sandbox, and saves its files.
    Freeze,
    /// Hibernates an idle sandbox.
    Sleep,
    /// Thaws a frozen sandbox.
    Thaw,
    /// Creates a sandbox with the files of a checkpoint.
    Wake,
    /// Replaces a sandbox whose lifetime is over.
    Replace,
    /// Creates a checkpoint on a caller's request.
    Save,
    /// Removes the resources of a closed session.
    Close,
}

/// Resources of the session after its service was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    OneSandbox,
}

use After::{Nothing, OneSandbox};
use Then::{GoesOn, GoesOnLate, IsLost};
use Way::{Close, Freeze, Make, Replace, Save, Sleep, Thaw, Wake};

/// Operation, description of the kill, its point, the fate of blocked work, and the remaining resources.
type Step = (Way, &'static str, Point, Then, After);

const INSERT: &str = "insert on sandbox";
const UPDATE: &str = "update on sandbox";
const ANNOUNCED: Point = Point::Write(UPDATE, "new.is_announced and not old.is_announced");
const FROZEN: Point = Point::Write(UPDATE, "new.state = 'frozen'");
const THAWED: Point = Point::Write(UPDATE, "new.state = 'live' and old.state = 'frozen'");
const ENDING: Point = Point::Write(UPDATE, "new.state = 'ending'");
const ENDED: Point = Point::Write(UPDATE, "new.state = 'ended'");
const SAVED: Point = Point::Write("insert on checkpoint", "true");

#[rustfmt::skip]
const MAKING: [Step; 14] = [
    (Make, "before its row", Point::Write(INSERT, "true"), IsLost, OneSandbox),
    (Make, "before its disk is formatted", Point::Before("mkfs.ext4"), IsLost, OneSandbox),
    (Make, "before its disk is mounted", Point::Before("mount"), IsLost, OneSandbox),
    (Make, "after its disk was mounted", Point::After("mount"), IsLost, OneSandbox),
    (Make, "before the runtime's run", Point::Before("run"), IsLost, OneSandbox),
    (Make, "in the runtime's run, which goes on", Point::Before("run"), GoesOn, OneSandbox),
    (Make, "in the runtime's run, which goes on when another is there", Point::Before("run"), GoesOnLate, OneSandbox),
    (Make, "after the runtime's run", Point::After("run"), IsLost, OneSandbox),
    (Make, "before `sandbox.created`", Point::Event("sandbox.created"), IsLost, OneSandbox),
    (Make, "after `sandbox.created`, before its row says so", ANNOUNCED, IsLost, OneSandbox),
    (Wake, "before its row", Point::Write(INSERT, "true"), IsLost, OneSandbox),
    (Wake, "before its disk is mounted", Point::Before("mount"), IsLost, OneSandbox),
    (Wake, "after the runtime's run, before its files are there", Point::After("run"), IsLost, OneSandbox),
    (Wake, "before `sandbox.created`, with its files", Point::Event("sandbox.created"), IsLost, OneSandbox),
];

#[rustfmt::skip]
const RESTING: [Step; 16] = [
    (Save, "before the checkpoint's row", SAVED, IsLost, OneSandbox),
    (Save, "before `sandbox.checkpoint_created`", Point::Event("sandbox.checkpoint_created"), IsLost, OneSandbox),
    (Freeze, "before the checkpoint's row", SAVED, IsLost, OneSandbox),
    (Freeze, "before `sandbox.checkpoint_created`", Point::Event("sandbox.checkpoint_created"), IsLost, OneSandbox),
    (Freeze, "before `sandbox.frozen`", Point::Event("sandbox.frozen"), IsLost, OneSandbox),
    (Freeze, "after `sandbox.frozen`, before its row says so", FROZEN, IsLost, OneSandbox),
    (Thaw, "before its row says so", THAWED, IsLost, OneSandbox),
    (Thaw, "before `sandbox.thawed`", Point::Event("sandbox.thawed"), IsLost, OneSandbox),
    (Sleep, "before its end is noted", ENDING, IsLost, OneSandbox),
    (Sleep, "before `sandbox.terminated`", Point::Event("sandbox.terminated"), IsLost, Nothing),
    (Sleep, "before the runtime's delete", Point::Before("delete"), IsLost, Nothing),
    (Sleep, "after the runtime's delete", Point::After("delete"), IsLost, Nothing),
    (Sleep, "before its row has ended", ENDED, IsLost, Nothing),
    (Sleep, "after its row has ended, before its disk is removed", ENDED, GoesOn, Nothing),
    (Close, "before the runtime's delete", Point::Before("delete"), IsLost, Nothing),
    (Close, "before the checkpoint's row is gone", Point::Write("delete on checkpoint", "true"), IsLost, Nothing),
];

#[rustfmt::skip]
const REPLACING: [Step; 12] = [
    (Replace, "before `sandbox.rotation_started`", Point::Event("sandbox.rotation_started"), IsLost, OneSandbox),
    (Replace, "before the checkpoint's row", SAVED, IsLost, OneSandbox),
    (Replace, "before the end of the old one is noted", ENDING, IsLost, OneSandbox),
    (Replace, "before `sandbox.terminated`", Point::Event("sandbox.terminated"), IsLost, OneSandbox),
    (Replace, "before the runtime's delete", Point::Before("delete"), IsLost, OneSandbox),
    (Replace, "after the runtime's delete", Point::After("delete"), IsLost, OneSandbox),
    (Replace, "before the old one's row has ended", ENDED, IsLost, OneSandbox),
    (Replace, "the old one is gone, before the new one's row", Point::Write(INSERT, "true"), IsLost, OneSandbox),
    (Replace, "before the runtime's run", Point::Before("run"), IsLost, OneSandbox),
    (Replace, "after the runtime's run", Point::After("run"), IsLost, OneSandbox),
    (Replace, "before `sandbox.created`", Point::Event("sandbox.created"), IsLost, OneSandbox),
    (Replace, "before `sandbox.rotation_completed`", Point::Event("sandbox.rotation_completed"), IsLost, OneSandbox),
];

/// Sandboxes never idle within a test, or idle soon.
const AWAKE: [&str; 3] =
    ["--lease-ms=1000", "--sandbox-freeze-after-seconds=600", "--sandbox-hibernate-after-seconds=600"];
const FROZEN_SOON: [&str; 3] =
    ["--lease-ms=1000", "--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=600"];
const ASLEEP_SOON: [&str; 3] =
    ["--lease-ms=1000", "--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=0.3"];

impl Way {
    fn settings(self) -> &'static [&'static str] {
        match self {
            Make | Replace | Save => &AWAKE,
            Freeze | Thaw | Close => &FROZEN_SOON,
            Sleep | Wake => &ASLEEP_SOON,
        }
    }

    /// Brings the session to the state before the step; returns its number of turns.
    async fn prepare(self, scene: &Scene) -> usize {
        match self {
            Make | Freeze | Sleep => return 0,
            Thaw | Close => {
                scene.say(1).await;
                scene.comes_to("frozen").await;
            }
            Wake => {
                scene.say(1).await;
                scene.comes_to("hibernated").await;
            }
            Replace | Save => scene.say(1).await,
        }
        1
    }

    /// Starts the operation in which the service is killed; returns the expected number of turns.
    async fn begin(self, scene: &Scene) -> usize {
        let path = format!("/sessions/{}", scene.session);
        match self {
            Make | Freeze | Sleep => scene.steer(1).await,
            Replace => {
                let over = "update sandbox set rotates_at = now(), expires_at = now() + interval '1 hour'";
                scene.ground.sql(over).await;
                scene.steer(2).await;
                return 2;
            }
            Thaw | Wake => {
                scene.steer(2).await;
                return 2;
            }
            Save => {
                let ask = scene.caller.request(Method::POST, &format!("{path}/checkpoints"));
                // The response never arrives: the service is killed.
                tokio::spawn(ask.json(&json!({})).send());
            }
            Close => drop(scene.caller.post(&format!("{path}/archive"), json!({})).await.ok()),
        }
        1
    }
}

/// One session and its service, which is killed and restarted.
struct Scene {
    ground: Ground,
    caller: Caller,
    session: String,
}

impl Scene {
    async fn open(ground: Ground, program: &Program) -> Self {
        let caller = Caller::new(&program.base, KEY);
        let agent = caller.inline_agent().await;
        let created = caller.post("/sessions", json!({ "agent": agent })).await.ok();
        let session = created["session"]["id"].as_str().expect("an id").to_owned();
        Self { ground, caller, session }
    }

    /// Starts turn number `turn`, which leaves a unique trace.
    async fn steer(&self, turn: usize) {
        let command = format!("echo {turn} >> file; cat file");
        steer(&self.caller, &self.session, &script(json!([run(&command), { "text": "Done." }]))).await;
    }

    async fn say(&self, turn: usize) {
        self.steer(turn).await;
        self.settled(turn).await;
    }

    /// Waits for the end of `turns` turns. Each of them ran its command once, and found the traces of those
    /// before it.
    async fn settled(&self, turns: usize) {
        let log = self.caller.settled(&self.session, turns).await;
        assert_sound(&log);
        assert_eq!(ends(&log), vec!["completed"; turns]);
        let lines = |turn: usize| (1..=turn).map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(outputs(&log), (1..=turns).map(lines).collect::<Vec<_>>());
        let outcomes = of(&log, "tool.result").into_iter().map(|result| result["body"]["outcome"].clone());
        assert_eq!(outcomes.collect::<Vec<Value>>(), vec!["ran"; turns]);
        assert!(of(&log, "sandbox.lost").is_empty() && of(&log, "sandbox.files_lost").is_empty(), "{log:#?}");
    }

    async fn comes_to(&self, state: &str) {
        self.caller
            .until(&format!("/sessions/{}", self.session), |shown| shown["sandbox"]["state"] == state)
            .await;
    }

    /// Waits until exactly these resources remain, and as many sandbox rows.
    async fn wait_until_left(&self, wanted: Left, when: &str) {
        let rows = i64::from(wanted != Left::default());
        // Within one sweep of the reaper; the next one is a minute later.
        for _ in 0..400 {
            let live = self.ground.count("select count(*) from sandbox where state <> 'ended'").await;
            let mut left = Left::of(&self.ground).await;
            // The process of a command may be frozen with its sandbox before it is removed.
            if wanted.processes > 0 && when == AFTER_RESTART {
                left.processes = left.processes.min(wanted.processes);
            }
            if left == wanted && live == rows {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{when}: {:?} is left, not {wanted:?}", Left::of(&self.ground).await);
    }
}

/// Kills the service at this step and restarts it; returns the leftovers before the cleanup.
async fn take((way, _, at, then, after): Step, one: Left) -> Left {
    let ground = Ground::new().await;
    let mut hold = Hold::at(&ground, at).await;
    let program = hold.program(&ground, way.settings());
    let mut scene = Scene::open(ground, &program).await;
    way.prepare(&scene).await;
    hold.arm().await;
    let mut turns = way.begin(&scene).await;
    hold.is_reached().await;
    program.kill();
    let left = Left::of(&scene.ground).await;
    hold.let_go(then).await;

    let program = hold.program(&scene.ground, &AWAKE);
    scene.caller = Caller::new(&program.base, KEY);
    scene.settled(turns).await;
    if then == GoesOnLate {
        hold.let_go(GoesOn).await;
    }
    let expected = if after == OneSandbox { one } else { Left::default() };
    scene.wait_until_left(expected, AFTER_RESTART).await;
    if way != Close {
        turns += 1;
        scene.say(turns).await;
        scene.wait_until_left(one, "after the next turn").await;
        scene.caller.post(&format!("/sessions/{}/archive", scene.session), json!({})).await.ok();
    }
    scene.wait_until_left(Left::default(), "after the end").await;
    wait_until("no checkpoint is left", || blobs(&scene.ground) == 0).await;
    program.kill();
    left
}

/// Resources of one undisturbed sandbox.
async fn one_sandbox() -> Left {
    let ground = Ground::new().await;
    let program = Program::start(&ground, &AWAKE);
    let scene = Scene::open(ground, &program).await;
    scene.say(1).await;
    // The runner of the command ends a moment after it.
    let mut one = Left::of(&scene.ground).await;
    while one.processes > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        one = Left::of(&scene.ground).await;
    }
    assert_eq!(session(&scene.caller, &scene.session).await["sandbox"]["state"], "running");
    assert!(one.rows().iter().all(|(_, count)| *count > 0), "{one:?}");
    one
}

/// Runs the steps, a few in parallel, and prints the leftovers of each.
async fn take_all(steps: &'static [Step]) {
    let one = one_sandbox().await;
    let names = one.rows().map(|(what, _)| what).join(" | ");
    let counts = |left: &Left| left.rows().map(|(_, count)| count.to_string()).join(" | ");
    // Each in its own thread: a failed step stops no other.
    let alone = |step: Step| spawn_blocking(move || Handle::current().block_on(take(step, one)));
    let taken = stream::iter(steps).map(async |step| (step, alone(*step).await));
    let mut taken: Vec<_> = taken.buffer_unordered(AT_ONCE).collect().await;
    taken.sort_by_key(|(step, _)| steps.iter().position(|one| std::ptr::eq(one, *step)));
    println!("| killed | {names} | then |\n|---|{}---|", "---|".repeat(one.rows().len()));
    println!("| never: one sandbox | {} | |", counts(&one));
    let mut failed = Vec::new();
    for ((way, when, _, _, after), left) in taken {
        let after = if *after == OneSandbox { "one sandbox" } else { "nothing" };
        match left {
            Ok(left) => println!("| {way:?}: {when} | {} | {after} |", counts(&left)),
            Err(_) => failed.push((way, when)),
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_making_a_sandbox_leaves_nothing() {
    take_all(&MAKING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_a_hibernation_leaves_nothing() {
    take_all(&RESTING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_a_replacement_leaves_nothing() {
    take_all(&REPLACING).await;
}
