//! Callers' use of a session's sandbox without its agent: commands and files.

use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use sqlx::Connection;

use super::{
    Scene, appears, assert_sound, ends, log, of, outputs, run, script, session, steer, until, wait_until,
    workspace,
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

async fn exec(caller: &Caller, session: &str, command: Value) -> Answer {
    caller.post(&format!("/sessions/{session}/exec"), json!({ "command": command })).await
}

async fn put(caller: &Caller, session: &str, path: &str, content: Vec<u8>) -> Answer {
    let path = format!("/sessions/{session}/files?path={path}");
    let request = caller.request(Method::PUT, &path).header(header::CONTENT_TYPE, "application/octet-stream");
    send(request.body(content)).await
}

/// Requests bytes of a file.
async fn get(caller: &Caller, session: &str, path: &str, range: Option<&str>) -> reqwest::Response {
    let mut request = caller.request(Method::GET, &format!("/sessions/{session}/files?path={path}"));
    if let Some(range) = range {
        request = request.header(header::RANGE, range);
    }
    request.send().await.expect("an answer")
}

#[tokio::test]
async fn a_command_runs_and_is_in_the_log() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let ran = exec(owner, &id, json!("echo out; echo err >&2; echo here > file; exit 3")).await.ok();
    let shown = session(owner, &id).await;
    assert_eq!((&shown["phase"], &shown["sandbox"]["state"]), (&Value::Null, &json!("running")));
    assert_eq!(
        (&ran["state"], &ran["exit_code"], &ran["cause"]),
        (&json!("completed"), &json!(3), &json!("exited"))
    );
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&ran["stdout_bytes"], &ran["error"]), (&json!(4), &Value::Null));

    let body = json!({
        "command": ["printenv", "A"], "env": { "A": "a b" }, "working_dir": "/tmp", "timeout_seconds": 5,
    });
    let argv = owner.post(&format!("/sessions/{id}/exec"), body).await.ok();
    assert_eq!(argv["stdout"], "a b\n", "words are not split");
    let kept = exec(owner, &id, json!("pwd; cat file")).await.ok();
    assert_eq!(kept["stdout"], "/workspace\nhere\n", "the same sandbox");
    let again = owner.get(&format!("/sessions/{id}/exec/{}", ran["id"].as_str().unwrap())).await.ok();
    assert_eq!(again, ran);
    let mut superuser = scene.ground.database.superuser().await;
    let requests: Vec<(String,)> =
        sqlx::query_as("select request::text from operation").fetch_all(&mut superuser).await.expect("rows");
    assert_eq!(requests.len(), 3);
    assert!(
        !requests.iter().any(|(request,)| request.contains("a b")),
        "the response contains the variables"
    );

    let log = log(owner, &id).await;
    assert_sound(&log);
    let (started, completed) = (of(&log, "exec.started"), of(&log, "exec.completed"));
    assert_eq!((started.len(), completed.len(), of(&log, "sandbox.created").len()), (3, 3, 1));
    assert_eq!((&started[0]["body"]["exec_id"], &completed[0]["body"]["exec_id"]), (&ran["id"], &ran["id"]));
    assert_eq!(
        (&started[0]["actor"]["type"], &completed[0]["body"]["exit_code"]),
        (&json!("human"), &json!(3))
    );
    let shown = session(owner, &id).await;
    assert_eq!((&shown["sandbox"]["state"], &shown["status"]), (&json!("running"), &json!("idle")));
    assert_eq!(shown["budget_consumed"]["tool_calls"], 3);
    scene.close().await;
}

#[tokio::test]
async fn the_same_request_is_one_command() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let body = json!({ "command": "echo once >> counter; sleep 0.3; wc -l < counter" });
    let ask = || {
        let request = owner.request(Method::POST, &format!("/sessions/{id}/exec"));
        send(request.header("Idempotency-Key", "one").json(&body))
    };
    let (one, other) = tokio::join!(ask(), ask());
    let (one, other, third) = (one.ok(), other.ok(), ask().await);
    assert_eq!(third.headers["idempotency-replayed"], "true");
    assert_eq!((&one["stdout"], &one["id"]), (&json!("1\n"), &other["id"]));
    assert_eq!(third.ok()["id"], one["id"]);
    let request = owner.request(Method::POST, &format!("/sessions/{id}/exec"));
    let another = send(request.header("Idempotency-Key", "one").json(&json!({ "command": "true" }))).await;
    assert_eq!(another.error(422)["code"], "idempotency_mismatch");
    assert_eq!(of(&log(owner, &id).await, "exec.completed").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_caller_is_served_beside_a_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let waits = "echo agent > who; touch ready; until [ -e go ]; do sleep 0.05; done; cat said";
    let id = owner.play(json!([run(waits), { "text": "Done." }])).await;
    appears(&scene.ground, "ready").await;
    let ran = exec(owner, &id, json!("cat who; echo caller > said")).await.ok();
    assert_eq!(ran["stdout"], "agent\n");
    assert_eq!(put(owner, &id, "go", b"".to_vec()).await.ok()["bytes"], 0);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), outputs(&log)), (vec!["completed"], vec!["caller\n"]));
    assert_eq!(of(&log, "exec.started")[0]["turn_id"], Value::Null, "it does not belong to the turn");
    assert_eq!(of(&log, "sandbox.created").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn nothing_of_a_turn_is_in_the_log_before_its_start() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = empty(owner, json!({ "agent": agent, "limits": { "tokens": 1_000_000 } })).await;
    // A turn of a session with limits reads the reservations before it starts.
    let mut holder = scene.ground.database.superuser().await;
    let lock = "begin; lock table reservation in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut holder).await.expect("the lock");
    steer(owner, &id, &script(json!([{ "text": "Done." }]))).await;
    let waiting = "select count(*)
        from pg_locks l
        join pg_database d on d.oid = l.database and d.datname = current_database()
        where l.relation = 'reservation'::regclass and not l.granted";
    wait_for("the turn waits", async || (scene.ground.count(waiting).await > 0).then_some(())).await;
    // A request that needs the sandbox arrives, and has time to be served.
    let asked = get(owner, &id, "missing", None);
    let release = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        holder.close().await.expect("a clean end");
    };
    let (answer, ()) = tokio::join!(asked, release);
    assert_eq!(answer.status(), StatusCode::NOT_FOUND, "it is served after the start");
    let log = owner.settled(&id, 1).await;
    // The message was sent before the turn began.
    let first = log.iter().find(|event| event["turn_id"].is_string() && event["type"] != "user.message");
    let first = first.expect("a turn");
    assert_eq!(first["type"], "turn.started");
    scene.close().await;
}

#[tokio::test]
async fn a_turn_does_not_wait_for_a_callers_command() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = empty(owner, json!({ "agent": agent })).await;
    let long = "echo run >> counter; touch ready; until [ -e go ]; do sleep 0.05; done; cat counter";
    let asked = async { exec(owner, &id, json!(long)).await.ok() };
    let turn = async {
        appears(&scene.ground, "ready").await;
        steer(owner, &id, &script(json!([run("cat counter"), { "text": "Done." }]))).await;
        let log = owner.settled(&id, 1).await;
        assert_eq!(outputs(&log), ["run\n"]);
        std::fs::write(workspace(&scene.ground).join("go"), "").expect("a file");
    };
    let (ran, ()) = tokio::join!(asked, turn);
    assert_eq!(
        (&ran["state"], &ran["stdout"]),
        (&json!("completed"), &json!("run\n")),
        "one command, one end"
    );
    let log = log(owner, &id).await;
    assert_sound(&log);
    let mine = |event: &&Value| event["body"]["exec_id"] == ran["id"];
    let completed = of(&log, "exec.completed").into_iter().filter(mine).count();
    assert_eq!((of(&log, "exec.started").len(), completed), (1, 1));
    scene.close().await;
}

#[tokio::test]
async fn a_command_outlives_its_worker() {
    let scene = Scene::open(&["--role=api"]).await;
    let first = scene.ground.serve(&["--role=worker"]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let long = "echo run >> counter; touch ready; until [ -e go ]; do sleep 0.05; done; cat counter";
    let asked = async { exec(owner, &id, json!(long)).await.ok() };
    let handed_over = async {
        appears(&scene.ground, "ready").await;
        let second = scene.ground.serve(&["--role=worker"]).await;
        first.stop().await;
        std::fs::write(workspace(&scene.ground).join("go"), "").expect("a file");
        second
    };
    let (ran, second) = tokio::join!(asked, handed_over);
    assert_eq!((&ran["state"], &ran["stdout"]), (&json!("completed"), &json!("run\n")));
    let log = log(owner, &id).await;
    assert_eq!((of(&log, "exec.completed").len(), of(&log, "sandbox.created").len()), (1, 1));
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_command_is_followed_by_whoever_takes_its_session_over() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let long = "echo run >> counter; touch ready; until [ -e go ]; do sleep 0.05; done; cat counter";
    let asked = async { exec(owner, &id, json!(long)).await.ok() };
    let crashed = async {
        appears(&scene.ground, "ready").await;
        // As after a crash: another worker held the lease, and it has expired.
        let mut superuser = scene.ground.database.superuser().await;
        let sql = "with s as (update session set epoch = epoch + 1)
                   update job set worker_id = gen_random_uuid(), ready_at = now() where kind = 'operation'";
        sqlx::query(sql).execute(&mut superuser).await.expect("an update");
        std::fs::write(workspace(&scene.ground).join("go"), "").expect("a file");
    };
    let (ran, ()) = tokio::join!(asked, crashed);
    assert_eq!((&ran["state"], &ran["stdout"]), (&json!("completed"), &json!("run\n")), "it ran once");
    let log = log(owner, &id).await;
    assert_sound(&log);
    assert_eq!((of(&log, "exec.completed").len(), of(&log, "sandbox.created").len()), (1, 1));
    scene.close().await;
}

#[tokio::test]
async fn a_command_that_may_have_begun_elsewhere_is_not_begun_again() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let request = owner.request(Method::POST, &format!("/sessions/{id}/exec")).header("Prefer", "wait=0");
    let asked = send(request.json(&json!({ "command": "touch ran" }))).await.ok();
    // As left by a worker that died together with its sandbox, after the command was started.
    let mut superuser = scene.ground.database.superuser().await;
    let sql = "update operation set sandbox_id = gen_random_uuid(), started_at = now()";
    sqlx::query(sql).execute(&mut superuser).await.expect("an update");
    let worker = scene.ground.serve(&["--role=worker"]).await;
    until(owner, &id, "exec.completed").await;
    let path = format!("/sessions/{id}/exec/{}", asked["id"].as_str().unwrap());
    let mut ran = Value::Null;
    // The resource is updated after the log.
    while ran["state"] != "failed" {
        ran = owner.get(&path).await.ok();
    }
    assert_eq!(ran["error"]["code"], "outcome_unknown");
    let seen = exec(owner, &id, json!("ls")).await.ok();
    assert_eq!(seen["stdout"], "");
    assert_eq!(of(&log(owner, &id).await, "exec.completed").len(), 2, "one for each");
    worker.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn files_are_written_read_and_listed() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let content: Vec<u8> = (0..2_500_000_u32).map(|byte| (byte % 251) as u8).collect();
    let written = put(owner, &id, "deep/down/data.bin", content.clone()).await.ok();
    assert_eq!(written, json!({ "path": "/workspace/deep/down/data.bin", "bytes": 2_500_000 }));

    let whole = get(owner, &id, "/workspace/deep/down/data.bin", None).await;
    assert_eq!(whole.status(), StatusCode::OK);
    assert_eq!(whole.headers()[header::CONTENT_DISPOSITION], "attachment; filename=\"data.bin\"");
    assert_eq!(whole.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(whole.headers()[header::CONTENT_SECURITY_POLICY], "sandbox");
    assert_eq!(whole.bytes().await.expect("bytes"), content);
    let part = get(owner, &id, "deep/down/data.bin", Some("bytes=1048570-1048589")).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.headers()[header::CONTENT_SECURITY_POLICY], "sandbox");
    assert_eq!(part.headers()[header::CONTENT_RANGE], "bytes 1048570-1048589/2500000");
    assert_eq!(part.bytes().await.expect("bytes"), content[1_048_570..1_048_590]);

    exec(owner, &id, json!("ln -s data.bin deep/down/link; mkfifo deep/down/pipe; touch $'deep/down/a\\nb'"))
        .await
        .ok();
    let listed = owner.get(&format!("/sessions/{id}/files/list?path=deep/down")).await.ok();
    let entries = listed["entries"].as_array().expect("entries");
    let kinds: Vec<_> = entries
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap()))
        .collect();
    assert_eq!(kinds, [("a\nb", "file"), ("data.bin", "file"), ("link", "link"), ("pipe", "other")]);
    assert_eq!((&entries[1]["bytes"], &listed["truncated"]), (&json!(2_500_000), &json!(false)));
    let whole = owner.get(&format!("/sessions/{id}/files/list")).await.ok();
    assert_eq!(whole["entries"][0]["name"], "deep");

    for (path, status) in [("missing", 404), ("deep", 400), ("/etc/shadow", 404), ("../../../root/x", 404)] {
        let refused = get(owner, &id, path, None).await;
        assert_eq!(refused.status().as_u16(), status, "{path}: {}", refused.text().await.unwrap());
    }
    owner.get(&format!("/sessions/{id}/files/list?path=/nowhere")).await.error(404);
    put(owner, &id, "/usr/bin/evil", b"x".to_vec()).await.error(400);
    put(owner, &id, "large", vec![0; (3 << 20) + 1]).await.error(413);
    let all = get(owner, &id, "deep/down/data.bin", Some("bytes=0-18446744073709551615")).await;
    assert_eq!(all.bytes().await.expect("bytes"), content);
    assert_eq!(get(owner, &id, "deep/down/data.bin", Some("bytes=9-1")).await.status(), 400);
    assert_eq!(get(owner, &id, "deep/down/data.bin", Some("bytes=2500000-")).await.status(), 400);
    let log = log(owner, &id).await;
    let files = of(&log, "file.written");
    assert_eq!((files.len(), &files[0]["body"]["path"]), (1, &json!("/workspace/deep/down/data.bin")));
    assert_eq!(files[0]["actor"]["type"], "human");
    scene.close().await;
}

#[tokio::test]
async fn a_directory_travels_as_an_archive() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    exec(owner, &id, json!("mkdir -p src/deep; echo one > src/one; ln -s one src/deep/link")).await.ok();
    let path = format!("/sessions/{id}/archive.tar");
    let read = owner.request(Method::GET, &format!("{path}?path=src")).send().await.expect("an answer");
    assert_eq!(
        (&read.headers()[header::CONTENT_TYPE], &read.headers()[header::CONTENT_DISPOSITION]),
        (&"application/x-tar".parse().unwrap(), &"attachment; filename=\"src.tar\"".parse().unwrap())
    );
    assert_eq!(read.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(read.headers()[header::CONTENT_SECURITY_POLICY], "sandbox");
    let archive = read.bytes().await.expect("bytes").to_vec();

    let upload = |path: String, kind: &'static str, content: Vec<u8>| {
        send(owner.request(Method::PUT, &path).header(header::CONTENT_TYPE, kind).body(content))
    };
    let tar = "application/x-tar";
    let written = upload(format!("{path}?path=copy"), tar, archive.clone()).await.ok();
    assert_eq!(written, json!({ "path": "/workspace/copy", "bytes": archive.len() }));
    let same = exec(owner, &id, json!("diff -r src copy; cat copy/deep/../one")).await.ok();
    assert_eq!(same["stdout"], "one\n");

    owner.get(&format!("{path}?path=missing")).await.error(404);
    assert_eq!(
        upload(path.clone(), tar, b"this is no archive, is it?".repeat(40)).await.error(400)["param"],
        "path"
    );
    assert_eq!(
        upload(path.clone(), "text/plain", archive).await.error(415)["type"],
        "unsupported_media_type"
    );
    let log = log(owner, &id).await;
    let files = of(&log, "file.written");
    assert_eq!(
        (files.len(), &files[0]["body"]["path"], &files[0]["body"]["is_archive"]),
        (1, &json!("/workspace/copy"), &json!(true))
    );
    assert_eq!(super::idle::blobs(&scene.ground), 0, "nothing of it remains");
    scene.close().await;
}

#[tokio::test]
async fn a_used_up_limit_refuses_commands_until_it_is_raised() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({ "limits": { "tool_calls": 1 } })).await;
    exec(owner, &id, json!("true")).await.ok();
    let refused = exec(owner, &id, json!("true")).await.error(402);
    assert_eq!((&refused["type"], &refused["code"]), (&json!("payment_required"), &json!("budget_exceeded")));
    owner.patch(&format!("/sessions/{id}"), json!({ "limits": { "tool_calls": 2 } })).await.ok();
    exec(owner, &id, json!("true")).await.ok();
    let log = log(owner, &id).await;
    assert_eq!((of(&log, "exec.started").len(), of(&log, "exec.completed").len()), (2, 2));
    scene.close().await;
}

#[tokio::test]
async fn a_command_whose_sandbox_is_lost_has_an_unknown_outcome() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let asked = async { exec(owner, &id, json!("echo run >> counter; touch ready; sleep 600")).await.ok() };
    let lost = async {
        appears(&scene.ground, "ready").await;
        super::idle::destroy_sandbox(&scene.ground).await;
    };
    let (ran, ()) = tokio::join!(asked, lost);
    assert_eq!((&ran["state"], &ran["error"]["code"]), (&json!("failed"), &json!("outcome_unknown")));
    let kept = exec(owner, &id, json!("cat counter")).await.ok();
    assert_eq!(kept["stdout"], "run\n", "it is not run again, and the disk exists");
    let log = log(owner, &id).await;
    assert_sound(&log);
    let completed = of(&log, "exec.completed");
    assert_eq!((completed.len(), &completed[0]["body"]["cause"]), (2, &json!("unknown")));
    assert_eq!((of(&log, "sandbox.lost").len(), of(&log, "sandbox.created").len()), (1, 2));
    scene.close().await;
}

#[tokio::test]
async fn archive_ends_what_a_caller_runs() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    let mark = format!("direct-{}", std::process::id());
    let command = format!("touch ready; exec -a {mark} sleep 613");
    let asked = async { exec(owner, &id, json!(command)).await.ok() };
    let archived = async {
        appears(&scene.ground, "ready").await;
        owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    };
    let (ran, ()) = tokio::join!(asked, archived);
    assert_eq!((&ran["state"], &ran["error"]["code"]), (&json!("failed"), &json!("canceled")));
    wait_until("its sandbox ends", || super::processes(&mark) == 0).await;
    assert_eq!(exec(owner, &id, json!("true")).await.error(409)["code"], "archived");
    assert_eq!(put(owner, &id, "file", b"x".to_vec()).await.error(409)["code"], "archived");
    scene.close().await;
}

#[tokio::test]
async fn a_hibernated_sandbox_is_restored_for_a_caller() {
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=0.3"]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    exec(owner, &id, json!("echo here > file")).await.ok();
    until(owner, &id, "sandbox.terminated").await;
    assert_eq!(get(owner, &id, "file", None).await.text().await.expect("text"), "here\n");
    let log = log(owner, &id).await;
    assert_eq!(of(&log, "sandbox.checkpoint_restored").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn what_no_command_can_be_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    for (body, param) in [
        (json!({}), "command"),
        (json!({ "command": "" }), "command"),
        (json!({ "command": [] }), "command"),
        (json!({ "command": "a\u{0}b" }), "command"),
        (json!({ "command": "true", "working_dir": "relative" }), "working_dir"),
        (json!({ "command": "true", "env": { "A=B": "x" } }), "env"),
        (json!({ "command": "true", "timeout_seconds": 0 }), "timeout_seconds"),
        (json!({ "command": "true", "timeout_seconds": 3601 }), "timeout_seconds"),
        (json!({ "command": "true", "user": "root" }), "user"),
    ] {
        let refused = owner.post(&format!("/sessions/{id}/exec"), body.clone()).await.error(400);
        assert!(
            refused["message"].as_str().unwrap().contains(param) || refused["param"] == param,
            "{body}: {refused}"
        );
    }
    let timed = json!({ "command": "sleep 60", "timeout_seconds": 1 });
    let ended = owner.post(&format!("/sessions/{id}/exec"), timed).await.ok();
    assert_eq!((&ended["state"], &ended["cause"]), (&json!("completed"), &json!("timeout")));
    scene.close().await;
}

#[tokio::test]
async fn a_long_command_is_answered_before_it_is_over() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = empty(owner, json!({})).await;
    // Long enough for a sandbox to be made on a busy machine; until then, the command is queued.
    let request = owner.request(Method::POST, &format!("/sessions/{id}/exec")).header("Prefer", "wait=5");
    let long = json!({ "command": "touch ready; until [ -e go ]; do sleep 0.05; done; echo done" });
    let asked = send(request.json(&long)).await;
    assert_eq!(asked.status, StatusCode::ACCEPTED);
    let asked = asked.ok();
    assert_eq!((&asked["state"], &asked["exit_code"]), (&json!("running"), &Value::Null));
    put(owner, &id, "go", b"".to_vec()).await.ok();
    until(owner, &id, "exec.completed").await;
    let path = format!("/sessions/{id}/exec/{}", asked["id"].as_str().unwrap());
    let mut ran = Value::Null;
    // The resource is updated after the log.
    while ran["state"] != "completed" {
        ran = owner.get(&path).await.ok();
    }
    assert_eq!(ran["stdout"], "done\n");
    scene.close().await;
}
