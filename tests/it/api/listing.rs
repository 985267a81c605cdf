//! The live list of sessions: the current sessions, then every change, however often the connection is cut
//! and whichever process made the change.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{World, data, id, noop, stream::Reader};
use crate::support::{service::Caller, wait::WAIT_MAX};

const LIST: &str = "/sessions?stream=sse";

/// The next frame of a list: its id and its content.
async fn said(reader: &mut Reader) -> (String, Value) {
    loop {
        let frame = reader.frame().await.expect("the stream continues");
        assert!(!frame.contains('\r') && !frame.contains("event:"), "{frame:?}");
        if frame == "retry: 2000\n\n" || frame == ": alive\n\n" {
            continue;
        }
        let (first, second) = frame.trim_end().split_once('\n').expect("two lines");
        let id = first.strip_prefix("id: ").unwrap_or_else(|| panic!("no id: {frame:?}"));
        let line = second.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {frame:?}"));
        return (id.to_owned(), serde_json::from_str(line).expect("one line of JSON"));
    }
}

/// Reads until `done`, for [`WAIT_MAX`] at most; returns all frames.
async fn until(reader: &mut Reader, done: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut frames = Vec::new();
    let read = async {
        loop {
            let (_, frame) = said(reader).await;
            let is_done = done(&frame);
            frames.push(frame);
            if is_done {
                return;
            }
        }
    };
    let in_time = timeout(WAIT_MAX, read).await.is_ok();
    assert!(in_time, "the list does not send the wanted frame: {frames:#?}");
    frames
}

/// Reads the initial list; returns its sessions.
async fn beginning(reader: &mut Reader) -> Vec<Value> {
    let mut frames = until(reader, |frame| frame["type"] == "list.current").await;
    frames.pop();
    frames.into_iter().map(|frame| frame["session"].clone()).collect()
}

fn is(frame: &Value, session: &str, status: &str) -> bool {
    frame["session"]["id"] == session && frame["session"]["status"] == status
}

async fn create(owner: &Caller, more: Value) -> String {
    let mut session = json!({ "agent": "a" });
    for (name, value) in more.as_object().expect("an object") {
        session[name] = value.clone();
    }
    id(&owner.post("/sessions", session).await.ok())
}

#[tokio::test]
async fn a_live_list_sends_the_current_sessions_and_then_changes() {
    let world = World::new().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let first = create(owner, json!({ "title": "one" })).await;
    create(owner, json!({})).await;
    let (head, mut reader) = Reader::open(owner, LIST, None).await;
    assert_eq!(head["content-type"], "text/event-stream");
    assert_eq!(head["cache-control"], "no-store");
    let page = owner.get("/sessions").await.ok();
    assert_eq!(&beginning(&mut reader).await, data(&page), "as in the page");

    let made = create(owner, json!({ "input": "go", "title": "new" })).await;
    let frames = until(&mut reader, |frame| is(frame, &made, "idle")).await;
    assert!(frames.iter().all(|frame| frame["type"] == "session.listed"), "{frames:?}");
    let last = &frames[frames.len() - 1]["session"];
    assert_eq!((&last["title"], &last["last_turn"]["yield_reason"]), (&json!("new"), &json!("completed")));

    owner.patch(&format!("/sessions/{first}"), json!({ "title": "two" })).await.ok();
    let (_, frame) = said(&mut reader).await;
    assert_eq!((&frame["session"]["id"], &frame["session"]["title"]), (&json!(first), &json!("two")));
    owner.post(&format!("/sessions/{first}/archive"), json!({})).await.ok();
    until(&mut reader, |frame| is(frame, &first, "archived")).await;
    owner.delete(&format!("/sessions/{first}")).await;
    let (_, frame) = said(&mut reader).await;
    assert_eq!(frame, json!({ "type": "session.unlisted", "id": first, "reason": "deleted" }));
    drop(reader);
    world.end().await;
}

#[tokio::test]
async fn a_cut_live_list_resumes_and_sends_missed_changes() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let old = create(owner, json!({})).await;
    let gone = create(owner, json!({})).await;
    let path = format!("{LIST}&limit=1");
    let (_, mut reader) = Reader::open(owner, &path, None).await;
    // A connection that was cut within the initial list starts it again.
    let (in_beginning, _) = said(&mut reader).await;
    let (place, frame) = said(&mut reader).await;
    assert_eq!(frame["type"], "list.current");
    drop(reader);
    let (_, mut anew) = Reader::open(owner, &path, Some(&in_beginning)).await;
    assert_eq!(beginning(&mut anew).await.len(), 1);
    drop(anew);

    owner.patch(&format!("/sessions/{old}"), json!({ "title": "later" })).await.ok();
    owner.delete(&format!("/sessions/{gone}")).await;
    let made = create(owner, json!({ "input": "x" })).await;
    // The header takes precedence over the URL; either resumes the list.
    for (path, header) in [
        (path.clone(), Some(place.as_str())),
        (format!("{path}&cursor={place}"), None),
        (format!("{path}&cursor={in_beginning}"), Some(place.as_str())),
    ] {
        let (_, mut reader) = Reader::open(owner, &path, header).await;
        let frames = until(&mut reader, |frame| frame["type"] == "list.current").await;
        let told: Vec<_> = frames.iter().map(|frame| frame["type"].as_str().expect("a type")).collect();
        assert_eq!(told, ["session.listed", "session.unlisted", "session.listed", "list.current"]);
        assert_eq!(frames[0]["session"]["title"], "later", "though it is not among the newest");
        assert_eq!(frames[1]["id"], gone);
        assert!(is(&frames[2], &made, "queued"));
    }
    // A reader that comes so late that the deletion is forgotten gets the whole list again.
    world.ground.sql("update removal set removed_at = now() - interval '31 days'").await;
    assert_eq!(world.store.delete_old_removals(10).await.expect("housekeeping"), 1);
    let (_, mut late) = Reader::open(owner, &path, Some(&place)).await;
    let listed = beginning(&mut late).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["id"], made);
    world.end().await;
}

#[tokio::test]
async fn a_live_list_reports_sessions_that_no_longer_match() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    owner.post("/agents", noop("b")).await.ok();
    let blue = create(owner, json!({ "metadata": { "team": "blue" } })).await;
    create(owner, json!({ "agent": "b", "metadata": { "team": "blue" } })).await;
    create(owner, json!({ "metadata": { "team": "red" } })).await;
    let seen = owner.get(&format!("/sessions/{blue}")).await.ok();
    let agent = seen["agent_id"].as_str().expect("an agent");
    let path = format!("{LIST}&status=idle&agent={agent}&metadata[team]=blue");
    let (_, mut reader) = Reader::open(owner, &path, None).await;
    let sessions = beginning(&mut reader).await;
    assert!(sessions.len() == 1 && id(&sessions[0]) == blue, "{sessions:?}");
    // A session of another agent is not listed; one that was listed is reported as unlisted.
    create(owner, json!({ "agent": "b" })).await;
    owner.post(&format!("/sessions/{blue}/messages"), json!({ "text": "go" })).await.ok();
    let (_, frame) = said(&mut reader).await;
    assert_eq!(frame, json!({ "type": "session.unlisted", "id": blue, "reason": "filtered" }));
    owner.post(&format!("/sessions/{blue}/cancel"), json!({})).await.ok();
    until(&mut reader, |frame| is(frame, &blue, "idle")).await;
    drop(reader);
    world.end().await;
}

#[tokio::test]
async fn a_live_list_shows_changes_of_sandboxes() {
    let world = World::new().await;
    let owner = &world.owner;
    let (_, mut reader) = Reader::open(owner, LIST, None).await;
    assert_eq!(beginning(&mut reader).await.len(), 0);
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    let path = format!("/sessions/{session}");
    let has = |session: &Value, state: &str| session["sandbox"]["state"] == state;
    let shows =
        |frame: &Value, state: &str| frame["session"]["id"] == session && has(&frame["session"], state);
    owner.post(&format!("{path}/start"), json!({})).await.ok();
    until(&mut reader, |frame| shows(frame, "running")).await;
    // The end of a sandbox has no frame of its own: the session's next frame shows it.
    owner.post(&format!("{path}/stop"), json!({})).await.ok();
    owner.until(&path, |now| has(now, "hibernated")).await;
    owner.patch(&path, json!({ "title": "stopped" })).await.ok();
    let frames = until(&mut reader, |frame| frame["session"]["title"] == "stopped").await;
    assert!(shows(&frames[frames.len() - 1], "hibernated"), "{frames:#?}");
    owner.post(&format!("{path}/start"), json!({})).await.ok();
    until(&mut reader, |frame| shows(frame, "running")).await;
    owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    drop(reader);
    world.end().await;
}

#[tokio::test]
async fn a_list_is_its_own_organizations_and_needs_the_scope() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    create(owner, json!({})).await;
    let (_, mut strangers) = Reader::open(&world.stranger, LIST, None).await;
    assert_eq!(beginning(&mut strangers).await, Vec::<Value>::new());
    let made = create(owner, json!({})).await;
    world.stranger.post("/agents", noop("a")).await.ok();
    let own = create(&world.stranger, json!({})).await;
    let (place, frame) = said(&mut strangers).await;
    assert_eq!(id(&frame), own, "and nothing of {made}");

    world.anonymous.get(LIST).await.error(401);
    let lacking = world.key(&["agents:read"], None).await;
    lacking.get(LIST).await.error(403);
    let token = owner.post(&format!("/sessions/{made}/client-tokens"), json!({})).await.ok();
    world.service.caller(token["token"].as_str().expect("a token")).get(LIST).await.error(401);
    for (path, param) in [
        (format!("{LIST}&cursor={place}"), "cursor"),
        (format!("{LIST}&overdue=true"), "overdue"),
        (format!("{LIST}&limit=0"), "limit"),
        (format!("{LIST}&level=user"), "level"),
    ] {
        let error = owner.get(&path).await.error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    // A cursor belongs to one list: it is rejected with another filter, and so is a cursor of a page.
    let other = format!("{LIST}&status=idle&cursor={place}");
    world.stranger.get(&other).await.error(400);
    drop(strangers);
    world.end().await;
}

#[tokio::test]
async fn a_list_ends_with_the_key_that_opened_it() {
    let world = World::still().await;
    let caller = world.key(&["sessions:read"], None).await;
    let (_, mut reader) = Reader::open(&caller, LIST, None).await;
    assert_eq!(beginning(&mut reader).await.len(), 0);
    world.revoke(&caller).await;
    let revoked = std::time::Instant::now();
    while reader.frame().await.is_some() {}
    assert!(revoked.elapsed() < Duration::from_secs(6));
    world.end().await;
}

#[tokio::test]
async fn changes_of_another_process_are_sent_here() {
    let world = World::still().await;
    let other = world.ground.serve(&["--role=api"]).await;
    world.owner.post("/agents", noop("a")).await.ok();
    let (_, mut reader) = Reader::open(&world.owner, LIST, None).await;
    assert_eq!(beginning(&mut reader).await.len(), 0);
    let made = create(&other.owner(), json!({})).await;
    let (_, frame) = said(&mut reader).await;
    assert!(is(&frame, &made, "idle"));
    drop(reader);
    other.stop().await;
    world.end().await;
}

#[tokio::test]
async fn readers_that_are_cut_at_every_frame_know_the_whole_list_in_the_end() {
    const SESSIONS: usize = 40;
    let world = World::new().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let write = async {
        let all = (0..SESSIONS).map(|n| async move {
            let made = create(owner, json!({ "input": "go" })).await;
            let path = format!("/sessions/{made}");
            match n % 4 {
                0 => owner.patch(&path, json!({ "title": "t" })).await.ok(),
                1 => return drop(owner.delete(&path).await),
                2 => owner.post(&format!("{path}/messages"), json!({ "text": "x" })).await.ok(),
                _ => Value::Null,
            };
            while owner.get(&path).await.ok()["status"] != "idle" {}
        });
        join_all(all).await;
        create(owner, json!({ "title": "the last one" })).await;
    };
    // The initial list is read completely or not at all; afterwards each reader reads a number of frames
    // before its connection is cut.
    let (_, mut first) = Reader::open(owner, LIST, None).await;
    let (begun, frame) = said(&mut first).await;
    assert_eq!(frame["type"], "list.current");
    let begun = &begun;
    let read = |length: usize| async move {
        let (mut known, mut place) = (BTreeMap::<String, Value>::new(), begun.clone());
        for cut in 0.. {
            let (_, mut reader) = Reader::open(owner, &format!("{LIST}&limit=500"), Some(&place)).await;
            let mut is_current = false;
            for _ in 0..length {
                let (id, frame) = said(&mut reader).await;
                place = id;
                match frame["type"].as_str() {
                    Some("session.listed") => {
                        let session = frame["session"].clone();
                        known.insert(super::id(&session), session);
                    }
                    Some("session.unlisted") => drop(known.remove(frame["id"].as_str().expect("an id"))),
                    _ => is_current = true,
                }
                if is_current && known.values().any(|session| session["title"] == "the last one") {
                    return (known, cut);
                }
            }
        }
        unreachable!("it reads until the last frame")
    };
    let ((), few, more, one) = tokio::join!(write, read(2), read(7), read(usize::MAX));
    let page = owner.get("/sessions?limit=500").await.ok();
    for (known, _) in [&few, &more, &one] {
        for session in data(&page) {
            let seen = &known[session["id"].as_str().expect("an id")];
            assert_eq!((&seen["status"], &seen["title"]), (&session["status"], &session["title"]));
        }
        assert_eq!(known.len(), data(&page).len());
    }
    assert!(few.1 > 10, "{} connections", few.1);
    world.end().await;
}
