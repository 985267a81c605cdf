//! The command line against a running service.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::service::{Ground, KEY, Service};

fn sojourn(service: &Service, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command.arg("session").args(words).env("SOJOURN_URL", &service.base).env("SOJOURN_API_KEY", KEY);
    command.output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_watched_from_its_creation_to_its_result() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    service.owner().inline_agent().await;
    let created =
        sojourn(&service, &["create", "--agent", "inline", "--input", "Hello", "--title", "T", "--watch"]);
    assert_eq!(created.status.code(), Some(0), "{}", String::from_utf8_lossy(&created.stderr));
    let seen = text(&created);
    assert!(
        seen.contains("user.message") && seen.contains("turn.completed") && seen.ends_with("done\n"),
        "{seen}"
    );

    let listed = text(&sojourn(&service, &["list"]));
    let session =
        listed.split_whitespace().find(|word| word.starts_with("ses_")).expect("a session").to_owned();
    assert!(listed.contains("idle") && listed.contains("completed"), "{listed}");

    let events = text(&sojourn(&service, &["events", &session, "--type", "turn.*", "--json"]));
    let kinds: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        kinds.iter().map(|event| event["type"].as_str()).collect::<Vec<_>>(),
        [Some("turn.started"), Some("turn.completed")]
    );
    assert_eq!(text(&sojourn(&service, &["result", &session])), "done\n");
    assert_eq!(text(&sojourn(&service, &["archive", &session])), "archived\n");
    let refused = sojourn(&service, &["steer", &session, "more"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("archived and read-only"));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_how_a_watched_turn_ended() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let question = json!([{ "tools": [{ "tool": "ask", "input": { "question": "Which one?" } }] }]);
    let asking = owner.play(question).await;
    assert_eq!(sojourn(&service, &["get", &asking, "--watch"]).status.code(), Some(3));
    let failing = owner.play(json!([{ "fault": { "kind": "unauthorized" } }])).await;
    assert_eq!(sojourn(&service, &["get", &failing, "--watch"]).status.code(), Some(6));
    let waiting = owner.play(json!([{ "delay_ms": 600_000 }])).await;
    owner.follow(&waiting, |event| event["type"] == "turn.started").await;
    assert_eq!(text(&sojourn(&service, &["cancel", &waiting])).trim(), "running");
    assert_eq!(sojourn(&service, &["get", &waiting, "--watch"]).status.code(), Some(5));
    service.stop().await;
}
