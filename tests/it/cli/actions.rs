//! Actions on the command line.

use serde_json::{Value, json};

use super::{run, sojourn, text};
use crate::support::service::Ground;

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_custom_tool_is_sent_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let tool = json!([{
        "type": "custom", "name": "ask_weather", "description": "The weather.", "input_schema": { "type": "object" },
    }]);
    let words =
        ["agent", "create", "--name=forecaster", "--prompt=Play.", "--model=scripted/inline", "--tools=bash"];
    let made = run(&service, &[&words[..], &["--custom-tools=-"]].concat(), &tool.to_string());
    assert!(made.status.success(), "{made:?}");
    let calls: Vec<_> =
        ["Paris", "Rome"].map(|city| json!({ "tool": "ask_weather", "input": { "city": city } })).into();
    let script = json!([{ "tools": calls }, { "text": "It rains." }]);
    let body = json!({ "agent": "forecaster", "input": { "script": script } });
    let made = owner.post("/sessions", body).await.ok();
    let session = made["session"]["id"].as_str().expect("an id");

    let waited = sojourn(&service, &["get", session, "--watch"]);
    assert_eq!(waited.status.code(), Some(3));
    let told = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(told.contains("waits for ask_weather, ask_weather"), "{told}");
    let table = text(&sojourn(&service, &["pending", session]));
    let actions: Vec<_> =
        table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(actions.len() == 2 && table.contains(r#"{"city":"Paris"}"#), "{table}");
    assert_eq!(text(&sojourn(&service, &["pending"])), table);

    let unclear = sojourn(&service, &["answer", session, "Rain."]);
    let told = String::from_utf8_lossy(&unclear.stderr).into_owned();
    assert!(!unclear.status.success() && told.contains("--action") && told.contains(&actions[1]), "{told}");
    let first = ["answer", session, "No service.", "--error", "--action", &actions[0]];
    assert!(sojourn(&service, &first).status.success());
    let last = run(&service, &["session", "answer", session, "-", "--watch"], "Rain.");
    assert_eq!(last.status.code(), Some(0), "{last:?}");
    assert!(text(&last).ends_with("\nIt rains.\n"), "{last:?}");
    let tool = json!({ "name": "open_file", "description": "Opens a file.", "runs": "caller",
        "input_schema": { "type": "object" } });
    let listed = run(&service, &["session", "tools", session, "--register", "-"], &tool.to_string());
    assert!(text(&listed).contains("open_file") && text(&listed).contains("caller"), "{listed:?}");
    assert_eq!(text(&run(&service, &["session", "tools", session], "")), text(&listed));
    let results = owner.get(&format!("/sessions/{session}/events?type=tool.result")).await.ok();
    let output = |index: usize| {
        (results["data"][index]["body"]["output"].clone(), results["data"][index]["body"]["is_error"].clone())
    };
    assert_eq!(output(0), (json!("No service."), json!(true)));
    assert_eq!(output(1).0, json!("Rain."));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_approved_and_denied_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let rules = json!([{ "tool": "bash", "policy": "ask" }]);
    let words =
        ["agent", "create", "--name=careful", "--prompt=p", "--model=scripted/inline", "--permissions=-"];
    let made = run(&service, &words, &rules.to_string());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let steps = json!([
        { "tools": [{ "tool": "bash", "input": { "command": "echo one" } }] },
        { "tools": [{ "tool": "bash", "input": { "command": "echo one" } }] },
        { "tools": [{ "tool": "bash", "input": { "command": "echo two" } }, { "tool": "bash", "input": { "command": "ls" } }] },
        { "text": "Done." },
    ]);
    let body = json!({ "agent": "careful", "input": { "script": steps } });
    let made = service.owner().post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let path = format!("/sessions/{id}");
    let waits = async |count: usize| {
        let path = format!("{path}/pending");
        let is_there =
            |page: &serde_json::Value| page["data"].as_array().is_some_and(|rows| rows.len() == count);
        service.owner().until(&path, is_there).await["data"].as_array().expect("a page").clone()
    };
    waits(1).await;
    let failed = run(&service, &["session", "approve", id, "--always=2"], "");
    assert!(!failed.status.success());
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(told.contains("offers 1 rules") && told.contains("echo one"), "{told}");
    assert!(run(&service, &["session", "approve", id, "--always"], "").status.success());
    let open = waits(2).await;
    let table = text(&run(&service, &["session", "permissions", id], ""));
    let rows: Vec<_> = table.lines().skip(1).collect();
    assert!(rows.len() == 2 && rows[0].contains("agent") && rows[1].contains("echo one"), "{table}");
    let event = rows[1].split_whitespace().last().expect("an event").to_owned();
    assert!(event.starts_with("evt_"), "{table}");
    assert!(run(&service, &["session", "permissions", id, "--revoke", &event], "").status.success());
    assert_eq!(text(&run(&service, &["session", "permissions", id], "")).lines().count(), 2);
    let failed = run(&service, &["session", "deny", id], "");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("name one with --action"), "several are open");
    let action = open[0]["id"].as_str().expect("an id");
    let denied =
        run(&service, &["session", "deny", id, "Not this.", "--action", action, "--others", "--watch"], "");
    assert!(denied.status.success(), "{}", String::from_utf8_lossy(&denied.stderr));
    let log = service.owner().settled(id, 1).await;
    let outputs: Vec<_> = log
        .iter()
        .filter(|event| event["type"] == "tool.result")
        .map(|event| &event["body"]["output"])
        .collect();
    assert_eq!((outputs[0], outputs[1]), (&json!("one\n"), &json!("one\n")));
    assert!(
        outputs[2].as_str().is_some_and(|output| output.ends_with("They wrote: Not this.")),
        "{outputs:?}"
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_large_arguments_is_read_before_it_is_approved() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let rules = json!([{ "tool": "bash", "policy": "ask" }]);
    let agent = json!({ "name": "careful", "prompt": "", "model": "scripted/inline", "permissions": rules });
    service.owner().post("/agents", agent).await.ok();
    let command = format!("echo begin # {}\necho end", "x".repeat(40_000));
    let script =
        json!([{ "tools": [{ "tool": "bash", "input": { "command": command } }] }, { "text": "Done." }]);
    let body = json!({ "agent": "careful", "input": { "script": script } });
    let made = service.owner().post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let is_there = |page: &serde_json::Value| page["data"].as_array().is_some_and(|rows| rows.len() == 1);
    let page = service.owner().until(&format!("/sessions/{id}/pending"), is_there).await;
    let action = page["data"][0]["id"].as_str().expect("an id");

    let failed = run(&service, &["session", "approve", id], "");
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && told.contains(&format!("pending {id} --action {action}")), "{told}");
    let shown = run(&service, &["session", "pending", id, "--action", action], "");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["input"]["command"], command.as_str());
    assert!(run(&service, &["session", "approve", id, "--action", action, "--watch"], "").status.success());
    let log = service.owner().settled(id, 1).await;
    let ran = log.iter().find(|event| event["type"] == "tool.result").expect("a result");
    assert_eq!(ran["body"]["output"], "begin\nend\n");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let words = [
        "agent",
        "create",
        "--name=asker",
        "--prompt=p",
        "--model=scripted/inline",
        "--ask=wait",
        "--doom-loop=off",
    ];
    assert!(run(&service, &words, "").status.success());
    let questions = json!([
        { "question": "Where to?", "options": [{ "label": "staging" }, { "label": "production" }] }, { "question": "When?" },
    ]);
    let steps = json!([
        { "tools": [{ "tool": "ask", "input": { "questions": questions } }] },
        { "tools": [{ "tool": "ask", "input": { "questions": [questions[1]] } }] }, { "text": "Done." },
    ]);
    let made = service
        .owner()
        .post("/sessions", json!({ "agent": "asker", "input": { "script": steps } }))
        .await
        .ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let waited = sojourn(&service, &["get", id, "--watch"]);
    assert_eq!(waited.status.code(), Some(3));
    let failed = sojourn(&service, &["answer", id, "staging"]);
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(told.contains("asks 2 questions and 1 were answered") && told.contains("When?"), "{told}");
    let first = sojourn(&service, &["answer", id, "staging", "at noon", "--watch"]);
    assert_eq!(first.status.code(), Some(3), "{first:?}");
    let last = run(&service, &["session", "answer", id, "-", "--watch"], "in the evening");
    assert_eq!(last.status.code(), Some(0), "{last:?}");
    let answers = service.owner().get(&format!("/sessions/{id}/events?type=user.answer")).await.ok();
    assert_eq!(
        (&answers["data"][0]["body"]["answers"], &answers["data"][1]["body"]["answers"]),
        (&json!([{ "labels": ["staging"] }, { "text": "at noon" }]), &json!([{ "text": "in the evening" }]))
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_schema_is_read_from_a_file() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let schema =
        json!({ "type": "object", "properties": { "word": { "const": "yes" } }, "required": ["word"] });
    let words = [
        "agent",
        "create",
        "--name=sayer",
        "--prompt=p",
        "--model=scripted/inline",
        "--output-schema=-",
        "--output-repairs=0",
    ];
    let made = run(&service, &words, &schema.to_string());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let submits = |word: &str| {
        let call = json!({ "tool": "submit_output", "input": { "word": word } });
        json!({ "script": [{ "tools": [call] }] })
    };
    let body = json!({ "agent": "sayer", "input": submits("yes") });
    let made = service.owner().post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    service.owner().settled(id, 1).await;
    let result = run(&service, &["session", "result", id], "");
    assert_eq!(String::from_utf8_lossy(&result.stdout), "{\"word\":\"yes\"}\n");
    let other = json!({ "type": "object", "properties": { "word": { "const": "no" } } });
    let changed =
        run(&service, &["session", "update", id, "--output-schema=-", "--tools=read"], &other.to_string());
    assert!(changed.status.success(), "{}", String::from_utf8_lossy(&changed.stderr));
    let session = service.owner().get(&format!("/sessions/{id}")).await.ok();
    assert_eq!(session["agent_snapshot"]["output_schema"], other);
    assert_eq!(session["agent_snapshot"]["tools"], json!(["read"]));
    let failed = run(&service, &["session", "steer", id, &submits("yes").to_string(), "--watch"], "");
    assert!(!failed.status.success(), "its output does not fit the schema");
    service.stop().await;
}

#[tokio::test]
async fn a_failed_turn_is_retried() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let id = service.owner().play(json!([{ "text": "Done.", "fault": { "kind": "refused" } }])).await;
    service.owner().settled(&id, 1).await;
    let retried = run(&service, &["session", "retry", &id, "--watch"], "");
    assert!(retried.status.success(), "{}", String::from_utf8_lossy(&retried.stderr));
    assert!(String::from_utf8_lossy(&retried.stdout).contains("Done."), "{retried:?}");
    let again = run(&service, &["session", "retry", &id], "");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && said.contains("did not end with an error"), "{said}");
    service.stop().await;
}

#[tokio::test]
async fn a_history_is_summarized_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let id = owner.play(json!([{ "text": "w".repeat(9_000) }])).await;
    owner.settled(&id, 1).await;
    let asked =
        run(&service, &["session", "compact", &id, "--instructions", "Keep the numbers.", "--json"], "");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let accepted: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    let log = owner.settled(&id, 2).await;
    let requested =
        log.iter().find(|event| event["type"] == "history.compaction_requested").expect("it is noted");
    assert_eq!(requested["id"], accepted["event"]["id"]);
    assert_eq!(requested["body"]["instructions"], "Keep the numbers.");
    let nobody = run(&service, &["session", "compact", "ses_00000000000000000000000000"], "");
    assert!(!nobody.status.success() && !nobody.stderr.is_empty(), "{nobody:?}");
    service.stop().await;
}
