//! Faults of the blob store: away, silent, another one, without a blob.

use std::{fs, path::PathBuf};

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, ask_model, of, run, script, steer};
use crate::{
    fake::{Fake, Step, anthropic::Anthropic, bucket::Bucket},
    support::{
        program::Program,
        service::{Caller, Ground, KEY, Service},
        wait::wait_for,
    },
};

const WAITING: &str = "select count(*) from event_content";

/// Path of the complete body of an event.
fn content(session: &str, event: &Value) -> String {
    format!("/sessions/{session}/events/{}/content", event["id"].as_str().expect("an id"))
}

/// A script that is too long for a row.
fn long_script() -> String {
    json!({ "script": [{ "text": "Read." }], "rest": "é".repeat(40_000) }).to_string()
}

#[tokio::test]
async fn large_bodies_wait_in_the_database_while_the_blob_store_is_away() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "text": "First." }])).await;
    owner.settled(&id, 1).await;
    let blobs = scene.ground.data_dir.path().join("blobs");
    let away = scene.ground.data_dir.path().join("blobs.away");
    fs::rename(&blobs, &away).unwrap();
    fs::write(&blobs, "not a directory").unwrap();

    // A message of a caller, and output of a tool: both are complete for readers, and the turns do not wait.
    let text = long_script();
    steer(owner, &id, &text).await;
    owner.settled(&id, 2).await;
    let quotes = "yes '\"\"\"\"\"\"\"\"' | head -c 29000";
    steer(owner, &id, &script(json!([run(quotes), { "text": "Ran." }]))).await;
    let log = owner.settled(&id, 3).await;
    let said = of(&log, "user.message")[1];
    let output = of(&log, "tool.result")[0];
    assert_eq!((&said["body_truncated"], &output["body_truncated"]), (&json!(true), &json!(true)));
    assert_eq!(owner.get(&content(&id, said)).await.ok()["text"], text.as_str());
    let whole = owner.get(&content(&id, output)).await.ok();
    assert_eq!(whole["output"].as_str().map(str::len), Some(29_000));
    assert_eq!(scene.ground.count(WAITING).await, 2);
    assert!(scene.service.metrics().await["sojourn_event_content_pending"] >= 2.0);

    fs::remove_file(&blobs).unwrap();
    fs::rename(&away, &blobs).unwrap();
    // A worker claimed them for a minute when it could not store them.
    scene.ground.sql("update event_content set claimed_until = now()").await;
    wait_for("the bodies are moved", async || (scene.ground.count(WAITING).await == 0).then_some(())).await;
    assert_eq!(owner.get(&content(&id, said)).await.ok()["text"], text.as_str());
    assert_eq!(owner.get(&content(&id, output)).await.ok(), whole);
    scene.close().await;
}

#[tokio::test]
async fn a_turn_continues_without_a_body_that_is_lost() {
    let steps = [
        Step::default().and_tool("bash", json!({ "command": "yes '\"\"\"\"\"\"\"\"' | head -c 29000" })),
        Step::text("One."),
        Step::text("Two."),
    ];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let settings =
        [format!("--anthropic-base-url={}", fake.base_url), "--metrics-listen=127.0.0.1:0".to_owned()];
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let scene = Scene::open(&settings).await;
    let id = ask_model(&scene.owner, "Go.").await;
    let log = scene.owner.settled(&id, 1).await;
    let result = of(&log, "tool.result")[0].clone();
    let Scene { ground, service, .. } = scene;
    service.stop().await;

    // A new process has nothing of the log in memory.
    for blob in blobs_of(&ground) {
        fs::remove_file(blob).unwrap();
    }
    let service = ground.serve(&settings).await;
    let owner = service.owner();
    steer(&owner, &id, "Again.").await;
    owner.settled(&id, 2).await;
    let said = |call: usize| -> String {
        let content = &fake.requests()[call].body["messages"][2]["content"][0]["content"];
        content.as_str().or_else(|| content[0]["text"].as_str()).expect("a text").to_owned()
    };
    let (before, after) = (said(1), said(2));
    let (kept, marker) = after.rsplit_once('\n').expect("a marker");
    assert_eq!(marker, "[The rest of this text is lost.]");
    assert!(before.starts_with(kept) && kept.len() > 4_000, "{} bytes are left", kept.len());
    assert_eq!(fake.refusals(), Vec::<String>::new());
    let missing = owner.get(&content(&id, &result)).await.error(404);
    assert!(missing["message"].as_str().expect("a message").contains("missing from the blob store"));
    assert_eq!(service.metrics().await["sojourn_blobs_lost_total{kind=\"event\"}"], 1.0);
    service.stop().await;
}

/// The blobs of events.
fn blobs_of(ground: &Ground) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![ground.data_dir.path().join("blobs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.parent().is_some_and(|parent| parent.ends_with("events")) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty());
    found
}

#[tokio::test]
async fn a_silent_bucket_stops_no_command() {
    let bucket = Bucket::open().await;
    let ground = Ground::new().await;
    let program = Program::with_environment(&ground, &[], bucket.environment());
    let owner = Caller::new(&program.base, KEY);
    let agent = owner.inline_agent().await;
    let other = Caller::new(&program.base, &ground.organization("other").await);
    other.inline_agent().await;
    let mut sessions = Vec::new();
    for _ in 0..40 {
        let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
        sessions.push(made["session"]["id"].as_str().expect("an id").to_owned());
    }
    bucket.hang(true);
    let text = long_script();
    let (_, listed) = tokio::join!(
        join_all(sessions.iter().map(|id| steer(&owner, id, &text))),
        join_all((0..20).map(|_| other.get("/sessions"))),
    );
    for answer in listed {
        answer.ok();
    }
    // The turns read the bodies too, from the database.
    let log = owner.settled(&sessions[0], 1).await;
    let said = of(&log, "user.message")[0];
    wait_for("a worker waits for the bucket", async || (bucket.unanswered() > 0).then_some(())).await;
    bucket.hang(false);
    wait_for("the bodies are moved", async || {
        ground.sql("update event_content set claimed_until = now()").await;
        (ground.count(WAITING).await == 0).then_some(())
    })
    .await;
    assert_eq!(bucket.objects("/events/"), 40);
    assert_eq!(owner.get(&content(&sessions[0], said)).await.ok()["text"], text.as_str());
    program.kill();
}

#[tokio::test]
async fn an_upload_whose_client_leaves_is_written_and_leaves_no_blob() {
    let bucket = Bucket::open().await;
    let ground = Ground::new().await;
    let program = Program::with_environment(&ground, &[], bucket.environment());
    let owner = Caller::new(&program.base, KEY);
    let made = owner.post("/sessions", json!({})).await.ok();
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    bucket.hang(true);
    let request = owner.request(Method::PUT, &format!("/sessions/{id}/files?path=late"));
    let request = request.header("content-type", "application/octet-stream").body(vec![b'x'; 100]);
    let stored =
        wait_for("the bytes are sent to the bucket", async || (bucket.unanswered() > 0).then_some(()));
    tokio::select! {
        answer = request.send() => panic!("the bucket does not answer: {answer:?}"),
        () = stored => {}
    }
    bucket.hang(false);
    owner.follow_from(&id, 0, |event| event["type"] == "file.written").await;
    wait_for("the blob is removed", async || (bucket.objects("/operations/") == 0).then_some(())).await;
    program.kill();
}

#[tokio::test]
async fn a_machine_that_does_not_share_the_blob_store_is_refused() {
    let ground = Ground::new().await;
    let first = ground.serve(&[]).await;
    let other = tempfile::tempdir().unwrap();
    let refused = |words: &'static str| {
        let (urls, path) = (ground.urls(), other.path().to_owned());
        async move {
            let error = Service::try_on(&urls, &path, &[]).await.err().expect("a refusal");
            assert!(error.contains(words), "{error}");
        }
    };
    refused("is not the blob store of this deployment").await;
    // It does not get an id by having been tried.
    refused("is not the blob store of this deployment").await;
    assert!(!other.path().join("blobs/store-id").exists());

    // Its operator moved the blobs there.
    assert!(ground.adopt_blob_store(other.path()).await);
    assert!(!ground.adopt_blob_store(other.path()).await);
    let second = Service::on(&ground.urls(), other.path(), &[]).await;
    second.stop().await;
    first.stop().await;
}
