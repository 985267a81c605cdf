//! Backup and restore of docs/operations.md, with its own commands: taken while the service runs, restored
//! into an empty database, and used afterwards.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    fake::{
        openai::OpenAi,
        provider::{Fake, Step},
    },
    support::{
        database::program,
        service::{Caller, Ground},
    },
};

fn run(command: &mut Command) {
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn log(owner: &Caller, session: &str) -> Value {
    owner.get(&format!("/sessions/{session}/events?level=internal&limit=500")).await.ok()["data"].clone()
}

/// The whole body of the first event, which is stored as a blob.
async fn spilled(owner: &Caller, session: &str) -> Value {
    let log = log(owner, session).await;
    let large = log.as_array().expect("events").iter().find(|event| event["content_ref"].is_string());
    let id = large.expect("a body over 32 KiB")["id"].as_str().expect("an id");
    owner.get(&format!("/sessions/{session}/events/{id}/content")).await.ok()
}

/// Backs up the database, then the blobs, as documented.
fn back_up(ground: &Ground, into: &Path) {
    let mut dump = Command::new(program("pg_dump"));
    dump.args(["--format=custom", "--dbname", &ground.database.superuser_url()]);
    run(dump.arg("--file").arg(into.join("sojourn.dump")));
    run(Command::new("cp").arg("-a").arg(ground.data_dir.path().join("blobs")).arg(into.join("blobs")));
}

fn restore(from: &Path, ground: &Ground) {
    let mut restore = Command::new(program("pg_restore"));
    restore.args(["--exit-on-error", "--single-transaction", "--dbname", &ground.database.superuser_url()]);
    run(restore.arg(from.join("sojourn.dump")));
    run(Command::new("cp").arg("-a").arg(from.join("blobs")).arg(ground.data_dir.path().join("blobs")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_back_up_that_was_made_while_it_ran_is_restored_and_goes_on() {
    let provider = Fake::decide(OpenAi, |request| match request.call {
        1 => Step::default().and_tool("ask", json!({ "question": "Go on?" })),
        _ => Step::text("It goes on."),
    })
    .await;
    let endpoint = format!("--openai-base-url={}/v1", provider.base_url);
    let ground = Ground::new().await;
    let service = ground.serve(&[&endpoint]).await;
    let owner = service.owner();
    let agent =
        json!({ "name": "asker", "prompt": "Ask.", "model": "openai/gpt-5", "key": "sk-sealed-in-the-dump" });
    owner.post("/agents", agent).await.ok();
    let input = "a long input ".repeat(10_000);
    let created = owner.post("/sessions", json!({ "agent": "asker", "input": input })).await.ok();
    let asking = created["session"]["id"].as_str().expect("an id").to_owned();
    owner.settled(&asking, 1).await;
    let running = owner.play(json!([{ "text": "It was running.", "delay_ms": 4_000 }])).await;
    owner.follow(&running, |event| event["type"] == "turn.started").await;

    let kept = tempfile::tempdir().expect("a directory");
    back_up(&ground, kept.path());
    let (before, body) = (log(&owner, &asking).await, spilled(&owner, &asking).await);
    let later = owner.play(json!([{ "text": "after the back-up" }])).await;
    service.stop().await;

    let restored = Ground::empty().await;
    restore(kept.path(), &restored);
    let service = restored.serve(&[&endpoint]).await;
    let owner = service.owner();
    assert_eq!(log(&owner, &asking).await, before);
    assert_eq!(spilled(&owner, &asking).await, body);
    owner.get(&format!("/sessions/{later}")).await.error(404);
    // Encrypted values decrypt, and a waiting turn continues with its answer.
    owner.post(&format!("/sessions/{asking}/messages"), json!({ "text": "Yes." })).await.ok();
    owner.settled(&asking, 2).await;
    let result = owner.get(&format!("/sessions/{asking}/result")).await.ok();
    assert_eq!(result["result"]["body"]["text"], "It goes on.");
    let asked = provider.requests().pop().expect("the model was asked");
    assert_eq!(asked.headers["authorization"], "Bearer sk-sealed-in-the-dump");
    // The turn that was running during the dump ends here.
    let ended = owner.settled(&running, 1).await;
    assert_eq!(ended.last().expect("its end")["body"]["yield_reason"], "completed");
    service.stop().await;
}
