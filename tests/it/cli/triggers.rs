//! Schedules, triggers and invoke tokens on the command line.

use serde_json::{Value, json};

use super::{run, text};
use crate::support::service::Ground;

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_managed_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let agent = service.owner().inline_agent().await;
    let schedule = |words: &[&str]| {
        let output = run(&service, &[&["schedule"], words].concat(), "");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        text(&output)
    };
    let cron = ["--cron", "0 4 1 1 *", "--input", "Look.", "--limit-turns", "2"];
    let made = schedule(&[&["create", &agent], &cron[..]].concat());
    let id = made.split_whitespace().next().expect("an id").to_owned();
    assert!(id.starts_with("sch_") && made.trim_end().ends_with("-01-01T04:00:00Z"), "{made}");
    let listed = schedule(&["list", "inline"]);
    assert!(listed.contains(&id) && listed.contains("0 4 1 1 *") && listed.contains("UTC"), "{listed}");
    assert_eq!(schedule(&["disable", &agent, &id]), format!("{id} off\n"));
    let session = schedule(&["fire", &agent, &id]);
    let runs = schedule(&["runs", &agent, &id]);
    let unknown = run(&service, &["schedule", "list", "nobody"], "");
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("/agents/nobody"), "{unknown:?}");
    assert!(
        session.starts_with("ses_") && runs.contains(session.trim_end()) && runs.contains("started"),
        "{runs}"
    );
    let moved = schedule(&["update", &agent, &id, "--time-zone", "Asia/Tokyo", "--json"]);
    let moved: Value = serde_json::from_str(&moved).expect("JSON");
    assert_eq!((&moved["time_zone"], &moved["limits"]), (&json!("Asia/Tokyo"), &json!({ "turns": 2 })));
    assert!(schedule(&["enable", &agent, &id]).contains("next at "));
    assert_eq!(schedule(&["delete", &agent, &id]), "");
    let refused = run(&service, &["schedule", "get", &agent, &id], "");
    assert_eq!(refused.status.code(), Some(1));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_is_managed_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let agent = service.owner().inline_agent().await;
    let create = ["trigger", "create", &agent, "--mention", "acme-bot", "--react", "issues:opened,labeled"];
    let made = run(&service, &create, "");
    let secret = text(&made).trim_end().to_owned();
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    let root = service.base.trim_end_matches("/v3");
    assert!(secret.len() >= 16 && said.starts_with(&format!("{root}/v3/hooks/trg_")), "{made:?}");
    let (_, id) = said.lines().next().expect("an address").rsplit_once('/').expect("a path");

    let trigger = |words: &[&str]| {
        let output = run(&service, &[&["trigger"], words].concat(), "");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        text(&output)
    };
    let listed = trigger(&["list", &agent]);
    assert!(listed.contains(id) && listed.contains("acme-bot") && listed.contains("github"), "{listed}");
    assert_eq!(trigger(&["disable", &agent, id]), "off\n");
    assert_eq!(trigger(&["enable", &agent, id]), "on\n");
    trigger(&["update", &agent, id, "--authors", "anyone", "--limit-turns", "3"]);
    let shown: Value = serde_json::from_str(&trigger(&["get", &agent, id])).expect("JSON");
    assert_eq!((&shown["authors"], &shown["limits"]), (&json!("anyone"), &json!({ "turns": 3 })));
    assert_eq!(shown["react"], json!([{ "event": "issues", "actions": ["opened", "labeled"] }]));
    assert_eq!(shown["secret"], Value::Null);
    assert_ne!(trigger(&["rotate", &agent, id]).trim_end(), secret);

    let own = ["trigger", "create", &agent, "--kind", "generic", "--secret-stdin", "--json"];
    let own = run(&service, &own, "a secret of one's own\n");
    let own: Value = serde_json::from_slice(&own.stdout).expect("JSON");
    assert_eq!(own["kind"], "generic", "{own}");
    let wrong = run(&service, &["trigger", "create", &agent, "--react", "issues"], "");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("EVENT:ACTION"), "{wrong:?}");
    assert_eq!(trigger(&["delete", &agent, id]), "");
    assert_eq!(run(&service, &["trigger", "get", &agent, id], "").status.code(), Some(1));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invoke_token_is_managed_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let agent = service.owner().inline_agent().await;
    let tokens = |words: &[&str]| run(&service, &[&["agent", "invoke-token"], words].concat(), "");
    let made = tokens(&["create", "inline", "--name", "the form", "--title", "Called", "--limit-turns", "3"]);
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(said.starts_with(&format!("{}/agents/{agent}/invoke\n", service.base)), "{made:?}");
    let caller = service.caller(text(&made).trim_end());
    let path = format!("/agents/{agent}/invoke");
    let started = caller.post(&path, json!({ "input": "Look." })).await.ok();
    let session = &started["session"];
    assert_eq!((&session["title"], &session["limits"]), (&json!("Called"), &json!({ "turns": 3 })));
    let listed = text(&tokens(&["list", &agent]));
    assert!(listed.contains("the form") && !listed.contains(&caller.key), "{listed}");
    let listed: Value = serde_json::from_slice(&tokens(&["list", &agent, "--json"]).stdout).expect("JSON");
    let id = listed["data"][0]["id"].as_str().expect("an id");
    assert_eq!(text(&tokens(&["revoke", &agent, id])), "");
    caller.post(&path, json!({ "input": "Look." })).await.error(401);
    assert_eq!(tokens(&["revoke", &agent, id]).status.code(), Some(1));
    service.stop().await;
}
