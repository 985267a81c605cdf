//! Callers' control of a session and its sandbox: checkpoints, start and stop, pause, context.

use std::{fs, process::Command, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Scene, appears, assert_sound, ends, log, of, outputs, processes, run, script, session, steer, until,
    wait_until,
};
use crate::support::{
    service::{Answer, Caller, send},
    wait::wait_for,
};

/// A session without an agent: a sandbox with a log.
async fn empty(caller: &Caller, more: Value) -> String {
    let created = caller.post("/sessions", more).await.ok();
    created["session"]["id"].as_str().expect("an id").to_owned()
}

async fn exec(caller: &Caller, session: &str, command: &str) -> Answer {
    caller.post(&format!("/sessions/{session}/exec"), json!({ "command": command })).await
}

async fn says(caller: &Caller, session: &str, command: &str) -> String {
    let ran = exec(caller, session, command).await.ok();
    assert_eq!(ran["exit_code"], 0, "{command}: {ran}");
    ran["stdout"].as_str().expect("text").to_owned()
}

async fn act(caller: &Caller, session: &str, verb: &str) -> Answer {
    caller.post(&format!("/sessions/{session}/{verb}"), json!({})).await
}

/// Starts a command; returns its id.
async fn begun(caller: &Caller, session: &str, command: &str) -> String {
    let request =
        caller.request(Method::POST, &format!("/sessions/{session}/exec")).header("Prefer", "wait=0");
    let asked = send(request.json(&json!({ "command": command }))).await.ok();
    asked["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn files_are_restored_from_a_checkpoint() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    says(owner, &id, "echo one > a; echo home > ~/b").await;
    let first = act(owner, &id, "checkpoints").await;
    assert_eq!(first.status, 201);
    let first = first.ok();
    assert_eq!(
        (&first["by_hand"], act(owner, &id, "checkpoints").await.ok()["id"].clone()),
        (&json!(true), first["id"].clone())
    );
    says(owner, &id, "echo two > a; rm ~/b; echo new > c").await;
    let second = act(owner, &id, "checkpoints").await.ok();
    assert_ne!(second["id"], first["id"]);

    let back = |checkpoint: &Value| {
        let body = json!({ "checkpoint_id": checkpoint["id"] });
        let path = format!("/sessions/{id}/restore");
        async move { owner.post(&path, body).await }
    };
    assert_eq!(back(&first).await.ok()["id"], first["id"]);
    assert_eq!(says(owner, &id, "cat a ~/b; ls").await, "one\nhome\na\n");
    says(owner, &id, "echo three > a").await;
    assert_eq!(back(&second).await.ok()["id"], second["id"]);
    assert_eq!(says(owner, &id, "cat a c; ls ~").await, "two\nnew\n");
    let listed = owner.get(&format!("/sessions/{id}/checkpoints")).await.ok()["data"].clone();
    assert_eq!((&listed[0]["id"], &listed[1]["id"]), (&second["id"], &first["id"]), "gone back to last");

    let log = log(owner, &id).await;
    assert_sound(&log);
    let ended = of(&log, "sandbox.terminated");
    assert_eq!(
        (ended.len(), &ended[0]["body"]["reason"], &ended[0]["actor"]["type"]),
        (2, &json!("restored"), &json!("human"))
    );
    let restored = of(&log, "sandbox.checkpoint_restored");
    assert_eq!(
        (&restored[0]["body"]["checkpoint_id"], &restored[1]["body"]["checkpoint_id"]),
        (&first["id"], &second["id"])
    );
    assert_eq!(of(&log, "sandbox.files_lost").len(), 0);
    owner
        .post(
            &format!("/sessions/{id}/restore"),
            json!({ "checkpoint_id": "ckp_01jd0000000000000000000000" }),
        )
        .await
        .error(404);
    scene.close().await;
}

#[tokio::test]
async fn the_checkpoint_before_is_restored_when_the_blob_of_the_newest_is_missing() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = empty(owner, json!({ "agent": agent })).await;
    says(owner, &id, "echo one > a").await;
    let first = act(owner, &id, "checkpoints").await.ok();
    says(owner, &id, "echo two > b").await;
    let blobs = || -> Vec<String> {
        let found = Command::new("find")
            .arg(scene.ground.data_dir.path().join("blobs"))
            .args(["-path", "*/checkpoints/*", "-type", "f"])
            .output();
        let found = String::from_utf8(found.expect("find runs").stdout).expect("UTF-8");
        found.lines().map(str::to_owned).collect()
    };
    let older = blobs();
    // Takes a checkpoint, and removes the sandbox with its disk.
    act(owner, &id, "stop").await.ok();
    let newest: Vec<_> = blobs().into_iter().filter(|path| !older.contains(path)).collect();
    assert_eq!(newest.len(), 1, "{newest:?}");
    fs::remove_file(&newest[0]).expect("it is removed");
    act(owner, &id, "start").await.ok();
    assert_eq!(says(owner, &id, "ls").await, "a\n");
    let log = log(owner, &id).await;
    assert_eq!(of(&log, "sandbox.checkpoint_restored")[0]["body"]["checkpoint_id"], first["id"]);
    assert_eq!(of(&log, "sandbox.files_lost").len(), 1, "the log says that files are missing");
    scene.close().await;
}

#[tokio::test]
async fn no_restore_happens_while_work_is_running() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = empty(owner, json!({ "agent": agent })).await;
    says(owner, &id, "echo one > a").await;
    let checkpoint = act(owner, &id, "checkpoints").await.ok()["id"].clone();
    let path = format!("/sessions/{id}/restore");
    let body = json!({ "checkpoint_id": checkpoint });
    let running = begun(owner, &id, "touch ready; sleep 600").await;
    appears(&scene.ground, "ready").await;
    assert_eq!(owner.post(&path, body.clone()).await.error(409)["code"], "sandbox_in_use");
    let killed = act(owner, &id, &format!("exec/{running}/kill")).await.ok();
    assert_eq!((&killed["state"], &killed["cause"]), (&json!("completed"), &json!("killed")));
    let again = act(owner, &id, &format!("exec/{running}/kill")).await.ok();
    assert_eq!(again, killed, "it is over already");

    let waits = "touch turning; until [ -e go ]; do sleep 0.05; done; cat a";
    steer(owner, &id, &script(json!([run(waits), { "text": "Done." }]))).await;
    appears(&scene.ground, "turning").await;
    assert_eq!(owner.post(&path, body.clone()).await.error(409)["code"], "turn_running");
    // A checkpoint during a turn saves the files as they are.
    let beside = act(owner, &id, "checkpoints").await.ok();
    assert_ne!(beside["id"], checkpoint);
    std::fs::write(super::workspace(&scene.ground).join("go"), "").expect("a file");
    owner.settled(&id, 1).await;
    owner.post(&path, body).await.ok();
    assert_eq!(says(owner, &id, "ls").await, "a\n");
    scene.close().await;
}

#[tokio::test]
async fn four_long_commands_keep_nobody_from_the_sandbox() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let mut all = Vec::new();
    for number in 0..6 {
        all.push(begun(owner, &id, &format!("touch ready{number}; sleep 600")).await);
    }
    for number in 0..4 {
        appears(&scene.ground, &format!("ready{number}")).await;
    }
    let listed = owner.get(&format!("/sessions/{id}/files/list")).await.ok();
    assert_eq!(listed["entries"].as_array().map(Vec::len), Some(4), "two wait");
    // USR1 means what the program makes of it, so it is for one that runs.
    let kill = |number: usize| format!("/sessions/{id}/exec/{}/kill", all[number]);
    owner.post(&kill(4), json!({ "signal": "USR1" })).await.error(404);
    let killed = owner.post(&kill(4), json!({})).await.ok();
    assert_eq!((&killed["state"], &killed["cause"]), (&json!("completed"), &json!("killed")));
    owner.post(&kill(0), json!({})).await.ok();
    appears(&scene.ground, "ready5").await;
    assert!(!super::workspace(&scene.ground).join("ready4").exists(), "it never ran");
    scene.close().await;
}

#[tokio::test]
async fn a_stopped_session_stays_idle_until_it_is_started() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let started = act(owner, &id, "start").await.ok();
    assert_eq!(started["sandbox"]["state"], "running");
    act(owner, &id, "start").await.ok();
    let mark = format!("stopped-{}", std::process::id());
    let command =
        format!("echo kept > a; (exec -a {mark} sleep 614 > /dev/null 2>&1 &) ; touch ready; sleep 600");
    let running = begun(owner, &id, &command).await;
    appears(&scene.ground, "ready").await;
    let stopped = owner.post(&format!("/sessions/{id}/stop"), json!({ "reason": "Task complete" })).await;
    assert_eq!(stopped.status, 200);
    let stopped = stopped.ok();
    assert_eq!(
        (&stopped["sandbox"]["state"], &stopped["exit_status"]),
        (&json!("hibernated"), &json!("stopped"))
    );
    assert_eq!(
        (&stopped["stopped"]["reason"], &stopped["stopped"]["by"]["type"]),
        (&json!("Task complete"), &json!("human"))
    );
    wait_until("its processes end", || processes(&mark) == 0).await;
    let ended = owner.get(&format!("/sessions/{id}/exec/{running}")).await.ok();
    assert_eq!((&ended["state"], &ended["cause"]), (&json!("completed"), &json!("killed")));
    act(owner, &id, "stop").await.ok();
    assert_eq!(exec(owner, &id, "true").await.error(409)["code"], "stopped");
    assert_eq!(act(owner, &id, "pause").await.error(409)["code"], "stopped");

    act(owner, &id, "start").await.ok();
    assert_eq!(says(owner, &id, "cat a").await, "kept\n");
    assert_eq!(session(owner, &id).await["exit_status"], Value::Null);
    let log = log(owner, &id).await;
    assert_sound(&log);
    assert_eq!((of(&log, "session.started").len(), of(&log, "session.stopped").len()), (2, 1));
    assert_eq!(of(&log, "session.stopped")[0]["body"]["reason"], "Task complete");
    let ended = of(&log, "sandbox.terminated");
    assert_eq!(
        (&ended[0]["body"]["reason"], &ended[0]["actor"]["type"]),
        (&json!("stopped"), &json!("human"))
    );
    assert_eq!(of(&log, "sandbox.checkpoint_restored").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_stop_ends_the_turn_and_a_message_goes_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("echo kept > a; touch ready; sleep 600"), { "text": "Done." }])).await;
    appears(&scene.ground, "ready").await;
    let stopped = act(owner, &id, "stop").await.ok();
    assert_eq!((&stopped["status"], &stopped["sandbox"]["state"]), (&json!("idle"), &json!("hibernated")));
    steer(owner, &id, &script(json!([run("cat a"), { "text": "Done." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(
        (ends(&log), *outputs(&log).last().expect("an output")),
        (vec!["canceled", "completed"], "kept\n")
    );
    assert_eq!(session(owner, &id).await["exit_status"], "completed");
    scene.close().await;
}

#[tokio::test]
async fn a_paused_session_stops_and_resumes() {
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=0.3"]).await;
    let owner = &scene.owner;
    let calls = json!([run("touch ready; until [ -e go ]; do sleep 0.05; done; echo one"), run("echo two"), { "text": "Done." }]);
    let id = owner.play(calls).await;
    appears(&scene.ground, "ready").await;
    let paused = act(owner, &id, "pause").await.ok();
    assert_eq!((&paused["phase"], &paused["status"]), (&json!("paused"), &json!("running")));
    act(owner, &id, "pause").await.ok();
    for (verb, code) in [("start", "paused"), ("wake", "paused"), ("checkpoints", "paused")] {
        assert_eq!(act(owner, &id, verb).await.error(409)["code"], code, "{verb}");
    }
    assert_eq!(exec(owner, &id, "true").await.error(409)["code"], "paused");
    steer(owner, &id, &script(json!([{ "text": "And more." }]))).await;
    std::fs::write(super::workspace(&scene.ground).join("go"), "").expect("a file");
    // The command continues, and the turn makes no further call.
    let sql = "select count(*) from job where kind = 'turn' and worker_id is null and ready_at > now() + interval '1 year'";
    wait_for("its worker releases it", async || (scene.ground.count(sql).await > 0).then_some(())).await;
    let shown = session(owner, &id).await;
    assert_eq!((&shown["phase"], &shown["next_attempt_at"]), (&json!("paused"), &Value::Null));
    assert!(!outputs(&log(owner, &id).await).contains(&"two\n"));

    let resumed = act(owner, &id, "resume").await.ok();
    assert_eq!(resumed["phase"], Value::Null);
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((ends(&log), outputs(&log)), (vec!["completed", "completed"], vec!["one\n", "two\n"]));
    let attempts: Vec<_> =
        of(&log, "turn.started").iter().map(|event| event["body"]["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 1], "a pause is not a crash");
    assert_eq!((of(&log, "session.paused").len(), of(&log, "session.resumed").len()), (1, 1));
    scene.close().await;
}

#[tokio::test]
async fn a_paused_sandbox_keeps_its_processes_and_its_time() {
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=1"]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({ "environment": { "timeout_seconds": 3600 } })).await;
    says(owner, &id, "echo here > /tmp/mark; (sleep 615 > /dev/null 2>&1 &)").await;
    let before = session(owner, &id).await["sandbox"]["expires_at"].as_str().expect("a time").to_owned();
    act(owner, &id, "pause").await.ok();
    until(owner, &id, "sandbox.frozen").await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let shown = session(owner, &id).await;
    assert_eq!(shown["sandbox"]["state"], "frozen", "it is not hibernated");
    act(owner, &id, "resume").await.ok();
    assert_eq!(says(owner, &id, "cat /tmp/mark; pgrep -c sleep").await, "here\n1\n");
    let after = session(owner, &id).await["sandbox"]["expires_at"].as_str().expect("a time").to_owned();
    let time = |text: &str| {
        time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).expect("a time")
    };
    let moved = time(&after) - time(&before);
    assert!(moved >= time::Duration::milliseconds(1_200), "{moved}");
    assert_eq!(of(&log(owner, &id).await, "sandbox.created").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_context_outlives_its_sandbox() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let context = json!({ "env_vars": { "A": "1", "B": "2" }, "custom_state": { "step": 1 } });
    let id = empty(owner, json!({ "agent": agent, "context": context })).await;
    let path = format!("/sessions/{id}/context");
    says(owner, &id, "mkdir -p project").await;
    let change = json!({ "working_dir": "/workspace/project", "env_vars": { "B": null, "C": "x y" }, "custom_state": { "branch": "main" } });
    let changed = owner.patch(&path, change.clone()).await.ok();
    let expected = json!({
        "working_dir": "/workspace/project", "env_vars": { "A": "1", "C": "x y" },
        "custom_state": { "step": 1, "branch": "main" },
    });
    assert_eq!(changed, expected);
    owner.patch(&path, change).await.ok();
    let own = json!({ "command": "pwd; echo \"$A $B $C\"", "env": { "A": "own" } });
    assert_eq!(
        owner.post(&format!("/sessions/{id}/exec"), own).await.ok()["stdout"],
        "/workspace/project\nown  x y\n"
    );
    act(owner, &id, "stop").await.ok();
    steer(owner, &id, &script(json!([run("pwd; echo \"$A $B $C\""), { "text": "Done." }]))).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log), ["/workspace/project\n1  x y\n"], "the agent's tools too");
    assert_eq!(owner.get(&path).await.ok(), expected);
    assert_eq!(session(owner, &id).await["context"], expected, "it is part of the session");
    let said = of(&log, "session.context_updated");
    assert_eq!((said.len(), &said[0]["level"]), (2, &json!("internal")));
    for (bad, param) in [
        (json!({ "working_dir": "relative" }), "working_dir"),
        (json!({ "env_vars": { "A=B": "x" } }), "env_vars"),
        (json!({ "custom_state": { "x": "y".repeat(17_000) } }), "custom_state"),
        (json!({ "cwd": "/" }), "cwd"),
    ] {
        let refused = owner.patch(&path, bad).await.error(400);
        assert!(refused["param"].as_str().is_some_and(|named| named.starts_with(param)), "{refused}");
    }
    scene.close().await;
}

#[tokio::test]
async fn tools_are_registered_by_name() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let path = format!("/sessions/{id}/tools");
    let schema = json!({ "type": "object", "properties": { "filter": { "type": "string" } } });
    let tool = json!({ "name": "run_tests", "tool_type": "custom", "description": "Run them", "input_schema": schema });
    assert_eq!(owner.post(&path, tool.clone()).await.ok(), tool);
    owner.post(&path, tool.clone()).await.ok();
    owner.post(&path, json!({ "name": "another" })).await.ok();
    let newer = json!({ "name": "run_tests", "tool_type": "mcp", "description": "", "input_schema": {} });
    owner.post(&path, newer.clone()).await.ok();
    let listed = owner.get(&path).await.ok()["data"].clone();
    assert_eq!((&listed[0]["name"], &listed[1]), (&json!("another"), &newer));
    assert_eq!(
        of(&log(owner, &id).await, "tool.registered").len(),
        3,
        "an equal registration appends no event"
    );
    scene.close().await;
}

#[tokio::test]
async fn a_client_finds_its_newest_session() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let find = |client: &str| owner.post("/sessions/reattach", json!({ "client_id": client }));
    assert_eq!(find("agent-1").await.ok(), json!({ "session": null, "reattached": false }));
    let first = empty(owner, json!({ "client_id": "agent-1" })).await;
    let second = empty(owner, json!({ "client_id": "agent-1" })).await;
    empty(owner, json!({ "client_id": "agent-2" })).await;
    let found = find("agent-1").await.ok();
    assert_eq!((&found["session"]["id"], &found["reattached"]), (&json!(second), &json!(true)));
    act(owner, &second, "archive").await.ok();
    assert_eq!(find("agent-1").await.ok()["session"]["id"], json!(first));
    let stranger = scene.service.caller("sjk_live_nobody");
    assert_eq!(stranger.post("/sessions/reattach", json!({ "client_id": "agent-1" })).await.status, 401);
    scene.close().await;
}

#[tokio::test]
async fn a_slug_names_one_open_session() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let first = empty(owner, json!({ "slug": "fix-login" })).await;
    assert_eq!(session(owner, "fix-login").await["id"], json!(first));
    let listed = async |slug: &str| {
        let page = owner.get(&format!("/sessions?slug={slug}")).await.ok();
        page["data"].as_array().expect("a page").iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((listed("fix-login").await, listed("fix").await), (vec![json!(first)], vec![]));
    let taken = owner.post("/sessions", json!({ "slug": "fix-login" })).await.error(409);
    assert_eq!((&taken["code"], &taken["param"]), (&json!("slug_taken"), &json!("slug")));
    let second = empty(owner, json!({})).await;
    let path = format!("/sessions/{second}");
    assert_eq!(owner.patch(&path, json!({ "slug": "fix-login" })).await.error(409)["code"], "slug_taken");
    owner.patch(&format!("/sessions/{first}"), json!({ "slug": null })).await.ok();
    assert_eq!(owner.patch(&path, json!({ "slug": "fix-login" })).await.ok()["slug"], "fix-login");
    act(owner, &second, "archive").await.ok();
    owner.get("/sessions/fix-login").await.error(404);
    assert_eq!(listed("fix-login").await, Vec::<Value>::new(), "an archived session released it");
    empty(owner, json!({ "slug": "fix-login" })).await;
    let long = "a".repeat(64);
    let document = include_str!("../../../openapi.yaml").lines();
    let reserved: Vec<&str> = document
        .filter_map(|line| line.trim().trim_end_matches(':').strip_prefix("/v3/sessions/"))
        .filter(|rest| !rest.contains(['{', '/']))
        .collect();
    assert!(!reserved.is_empty(), "openapi.yaml has no path of its own under /v3/sessions/");
    for bad in ["", "-a", "A", "a_b", "a b", &long].iter().chain(&reserved) {
        assert_eq!(
            owner.post("/sessions", json!({ "slug": bad })).await.error(400)["param"],
            "slug",
            "{bad}"
        );
    }
    assert_eq!(of(&log(owner, &second).await, "session.updated")[0]["body"]["slug"], "fix-login");
    scene.close().await;
}
