//! Tools in a turn: questions, invalid calls, large output, lost sandboxes.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sojourn::node::local::Local;
use sojourn::sandbox::Sandbox;

use super::{
    Scene, appears, ask_model, assert_sound, bash, ends, log, of, outputs, run, script, session, steer, until,
};

fn call(tool: &str, input: Value) -> Value {
    json!({ "tool": tool, "input": input })
}

#[tokio::test]
async fn a_question_waits_for_its_answer_without_a_worker() {
    let scene = Scene::open(&["--max-concurrent-turns=1"]).await;
    let owner = &scene.owner;
    let question = call("ask", json!({ "question": "Which branch?", "options": ["main", "next"] }));
    let id =
        owner.play(json!([{ "text": "I have to know.", "tools": [question] }, { "text": "Never." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["needs_input"]);
    let asking = session(owner, &id).await;
    assert_eq!(asking["status"], "awaiting_input");
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok()["result"].clone();
    assert_eq!((result["type"].as_str(), result["level"].as_str()), (Some("agent.message"), Some("user")));
    assert_eq!(
        result["body"],
        json!({ "text": "Which branch?", "awaiting_input": true, "options": ["main", "next"] })
    );
    assert_eq!(asking["last_turn"]["result_event_id"], result["id"]);
    // The wait blocks no other session.
    let other = owner.play(json!([{ "text": "Meanwhile." }])).await;
    owner.settled(&other, 1).await;

    steer(owner, &id, "main").await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(ends(&log), ["needs_input", "completed"]);
    assert_eq!(session(owner, &id).await["status"], "idle");
    scene.close().await;
}

#[tokio::test]
async fn what_only_reads_runs_together_and_what_changes_runs_alone() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let step = json!({ "tools": [
        bash("echo one > a; echo two > b"),
        call("read", json!({ "path": "a" })),
        call("read", json!({ "path": "b" })),
        call("glob", json!({ "pattern": "*" })),
        bash("rm a"),
        call("read", json!({ "path": "a" })),
    ] });
    let id = owner.play(json!([step, { "text": "Done." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let outputs = outputs(&log);
    assert!(outputs[1].contains("one") && outputs[2].contains("two"), "{outputs:?}");
    assert!(outputs[3].contains('a') && outputs[3].contains('b'));
    let failed: Vec<_> =
        of(&log, "tool.result").iter().map(|event| event["body"]["is_error"] == true).collect();
    assert_eq!(failed, [false, false, false, false, false, true], "{outputs:?}");
    // The three read-only calls were settled in one append.
    let times: Vec<_> = of(&log, "tool.result").iter().map(|event| event["ts"].clone()).collect();
    assert!(times[1] == times[2] && times[2] == times[3] && times[3] != times[4], "{times:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_model_that_errs_is_told_and_goes_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let step = json!({ "tools": [
        call("browse", json!({ "url": "https://example.com" })),
        call("read", json!({ "file": "a" })),
        call("bash", json!({ "command": "" })),
        call("ask", json!({})),
        call("glob", json!({ "pattern": "*" })),
    ] });
    let id = owner.play(json!([step, { "text": "I see." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    let results = of(&log, "tool.result");
    assert!(outputs(&log)[0].contains("no tool `browse`"), "{:?}", outputs(&log));
    assert!(outputs(&log)[1].contains("path"), "{:?}", outputs(&log));
    for refused in &results[..4] {
        assert_eq!(
            (&refused["body"]["is_error"], &refused["body"]["outcome"]),
            (&json!(true), &json!("not_run"))
        );
    }
    assert_eq!(results[4]["body"]["outcome"], "ran");
    scene.close().await;
}

#[tokio::test]
async fn arguments_that_are_no_json_are_said_to_be_so() {
    use crate::fake::{Fake, Said, Step, anthropic::Anthropic};
    let half = Said::Tool("bash".to_owned(), "{\"command\": \"echo".to_owned());
    let fake = Fake::script(Anthropic::default(), [Step::default().and(half), Step::text("Sorry.")]).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let id = ask_model(&scene.owner, "Go.").await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "not_run");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn an_agent_has_the_tools_that_it_was_given() {
    let scene = Scene::open(&[]).await;
    let agent =
        json!({ "name": "reader", "prompt": "", "model": "scripted/inline", "tools": ["read", "glob"] });
    scene.owner.post("/agents", agent).await.ok();
    let input = json!({ "script": [run("touch forbidden"), { "text": "I may not." }] });
    let created = scene.owner.post("/sessions", json!({ "agent": "reader", "input": input })).await.ok();
    let log = scene.owner.settled(created["session"]["id"].as_str().expect("an id"), 1).await;
    assert!(outputs(&log)[0].contains("read, glob"), "{:?}", outputs(&log));
    assert!(of(&log, "sandbox.created").is_empty());
    scene.close().await;
}

#[tokio::test]
async fn huge_output_is_cut_in_the_log_and_kept_in_the_sandbox() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let much = "echo first; yes 'a line of output' | head -c 900000; echo; echo last";
    let id = owner.play(json!([run(much), { "text": "Much." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let output = outputs(&log)[0];
    assert!(
        output.len() <= 31_000 && output.starts_with("first") && output.contains("last"),
        "{}",
        output.len()
    );
    let path = output
        .split_whitespace()
        .find(|word| word.starts_with("/tmp/"))
        .expect("a file")
        .trim_end_matches(':');
    assert_eq!(of(&log, "exec.completed")[0]["body"]["bytes"], 900_000 + 6 + 1 + 5);
    steer(owner, &id, &script(json!([run(&format!("wc -c < {path}")), { "text": "Counted." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log)[1].trim(), "900012");
    scene.close().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_for_a_row_comes_back_whole_to_the_model() {
    use crate::fake::{Fake, Step, anthropic::Anthropic};
    let quotes = json!({ "command": "yes '\"\"\"\"\"\"\"\"' | head -c 29000" });
    let steps = [Step::default().and_tool("bash", quotes), Step::text("One."), Step::text("Two.")];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = ask_model(owner, "Go.").await;
    let log = owner.settled(&id, 1).await;
    let result = of(&log, "tool.result")[0];
    assert_eq!(result["body_truncated"], true);
    // The next turn reads the log again, including the blob.
    steer(owner, &id, "Again.").await;
    owner.settled(&id, 2).await;
    let said = |call: usize| fake.requests()[call].body["messages"][2]["content"][0]["content"].to_string();
    assert!(said(1).len() > 29_000);
    assert_eq!(said(1), said(2));
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn a_call_is_in_the_log_before_it_runs() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id =
        owner.play(json!([run("until [ -e go ]; do sleep 0.05; done; rm go"), { "text": "Done." }])).await;
    let before = until(owner, &id, "tool.call").await;
    let call = before.last().expect("the call");
    assert_eq!((&call["body"]["tool"], &call["body"]["replay"]), (&json!("bash"), &json!("unsafe")));
    until(owner, &id, "sandbox.created").await;
    assert!(of(&log(owner, &id).await, "tool.result").is_empty());
    std::fs::write(super::workspace(&scene.ground).join("go"), "").expect("a file");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "tool.result")[0]["step_id"], Value::Null);
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_that_dies_during_a_call_is_reported_and_replaced_with_its_files() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let first = "echo once >> counter; echo kept > ~/kept; touch ready; sleep 600";
    let id = owner.play(json!([run(first), run("cat counter ~/kept"), { "text": "I see." }])).await;
    appears(&scene.ground, "ready").await;
    let local = Local::new(scene.ground.sandboxes()).expect("sandboxes are supported here");
    let found = local.list().await.expect("a list");
    let dead = found.iter().find_map(|found| found.sandbox).expect("a sandbox");
    local.destroy(dead).await.expect("it ends");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert!(outputs(&log)[0].contains("outcome is unknown"), "{:?}", outputs(&log));
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "unknown");
    assert_eq!(outputs(&log)[1], "once\nkept\n");
    assert_eq!(of(&log, "sandbox.created").len(), 2);
    assert_eq!(of(&log, "sandbox.lost")[0]["body"]["sandbox_id"], dead.to_string());
    scene.close().await;
}

/// Init process of the sandbox in which a process with this mark runs.
fn init_of(mark: &str) -> Pid {
    let status = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |pid: i32, name: &str| -> i32 {
        let status = status(pid);
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        line.split_whitespace().last().and_then(|word| word.parse().ok()).expect("a number")
    };
    let marked = std::fs::read_dir("/proc").expect("proc").flatten().find_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let pid: i32 = process.file_name().to_str()?.parse().ok()?;
        (line.starts_with(mark.as_bytes()) && field(pid, "NSpid:") != pid).then_some(pid)
    });
    let mut pid = marked.expect("it runs in a sandbox");
    while field(pid, "NSpid:") != 1 {
        pid = field(pid, "PPid:");
    }
    Pid::from_raw(pid).expect("a process")
}

#[tokio::test]
async fn a_sandbox_whose_init_is_killed_is_replaced_too() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let mark = format!("doomed-{}", std::process::id());
    let first = format!("echo once >> counter; exec -a {mark} sleep 600");
    let id = owner.play(json!([run(&first), run("cat counter"), { "text": "I see." }])).await;
    super::wait_until("it runs", || super::processes(&mark) > 0).await;
    super::wait_until("it has its name", || {
        std::fs::read_dir("/proc").expect("proc").flatten().any(|process| {
            std::fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(mark.as_bytes()))
        })
    })
    .await;
    kill_process(init_of(&mark), Signal::KILL).expect("it may be killed");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "unknown");
    assert_eq!(outputs(&log)[1], "once\n");
    assert_eq!((of(&log, "sandbox.created").len(), of(&log, "sandbox.lost").len()), (2, 1));
    scene.close().await;
}

#[tokio::test]
async fn files_and_home_last_from_turn_to_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner
        .play(json!([run("echo here > file; git config --global user.name Kept"), { "text": "One." }]))
        .await;
    owner.settled(&id, 1).await;
    steer(
        owner,
        &id,
        &script(json!([run("cat file; git config user.name; pwd; whoami"), { "text": "Two." }])),
    )
    .await;
    let log = owner.settled(&id, 2).await;
    let second = outputs(&log)[1];
    assert!(second.starts_with("here\nKept\n/workspace\n"), "{second}");
    assert_eq!(of(&log, "sandbox.created").len(), 1, "the same sandbox");
    scene.close().await;
}
