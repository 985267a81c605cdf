//! Streams: the frames byte by byte, and no gaps and no duplicates however often the connection is cut.

use std::time::Duration;

use futures::{StreamExt, stream::BoxStream};
use proptest::{prelude::Strategy, strategy::ValueTree, test_runner::TestRunner};
use reqwest::{Method, header::HeaderMap};
use serde_json::{Value, json};

use super::{World, id, noop};
use crate::support::{
    service::{Caller, send},
    wait::WAIT_MAX,
};

/// An open stream.
pub(crate) struct Reader {
    chunks: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
}

impl Reader {
    pub(crate) async fn open(caller: &Caller, path: &str, last_seen: Option<&str>) -> (HeaderMap, Self) {
        let mut request = caller.request(Method::GET, path);
        if let Some(last_seen) = last_seen {
            request = request.header("Last-Event-ID", last_seen);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{path}");
        (response.headers().clone(), Self { chunks: response.bytes_stream().boxed(), buffer: Vec::new() })
    }

    /// The next frame with its empty line; `None` at the end of the stream.
    pub(crate) async fn frame(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame = self.buffer.drain(..end + 2).collect();
                return Some(String::from_utf8(frame).expect("UTF-8"));
            }
            let next = tokio::time::timeout(WAIT_MAX, self.chunks.next());
            match next.await.expect("a stream sends something within 30 s") {
                Some(chunk) => self.buffer.extend_from_slice(&chunk.expect("a chunk")),
                None => return None,
            }
        }
    }

    /// The next event.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        loop {
            let frame = self.frame().await?;
            if let Some(event) = event_of(&frame) {
                return Some(event);
            }
        }
    }
}

/// The event of a frame, which must have exactly the documented form.
#[track_caller]
pub(crate) fn event_of(frame: &str) -> Option<Value> {
    assert!(!frame.contains('\r'), "LF only: {frame:?}");
    if frame == "retry: 2000\n\n" || frame == ": alive\n\n" {
        return None;
    }
    let lines: Vec<_> = frame.trim_end_matches('\n').split('\n').collect();
    let [first, second] = lines[..] else { panic!("two lines: {frame:?}") };
    let seq = first.strip_prefix("id: ").unwrap_or_else(|| panic!("no id: {frame:?}"));
    let data = second.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {frame:?}"));
    let event: Value = serde_json::from_str(data).expect("one line of JSON");
    assert_eq!(event["seq"].to_string(), seq);
    assert_eq!(frame, format!("id: {seq}\ndata: {data}\n\n"));
    Some(event)
}

/// A session without a running turn, with `count` messages.
async fn session_of(world: &World, count: usize) -> String {
    world.owner.post("/agents", noop("a")).await.ok();
    let session = id(&world.owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    for n in 0..count {
        say(world, &session, n).await;
    }
    session
}

async fn say(world: &World, session: &str, n: usize) {
    let text = format!("line {n}\nanother\r\nid: 7\n\ndata: {{}}");
    world.owner.post(&format!("/sessions/{session}/messages"), json!({ "text": text })).await.ok();
}

#[tokio::test]
async fn a_stream_is_frames_of_two_lines() {
    let world = World::still().await;
    let session = session_of(&world, 3).await;
    for path in [format!("/sessions/{session}/events?stream=sse"), format!("/sessions/{session}/stream")] {
        let (head, mut reader) = Reader::open(&world.owner, &path, None).await;
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-store"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(head[name], value);
        }
        assert_eq!(reader.frame().await.as_deref(), Some("retry: 2000\n\n"));
        for seq in 1..=4 {
            assert_eq!(reader.event().await.expect("an event")["seq"], seq);
        }
        // Live: a new event arrives immediately.
        say(&world, &session, 9).await;
        assert!(reader.event().await.expect("an event")["seq"].as_i64() > Some(4));
        drop(reader);
    }
    world.end().await;
}

#[tokio::test]
async fn a_stream_says_the_same_as_a_page() {
    let world = World::new().await;
    let session = world.owner.play(json!([{ "text": "é\u{2028}\u{1}" }])).await;
    world.owner.settled(&session, 1).await;
    let page = world.owner.get(&format!("/sessions/{session}/events?limit=500")).await.ok();
    let is_end = |event: &Value| event["type"] == "turn.completed";
    assert_eq!(world.owner.follow(&session, is_end).await, *super::data(&page));
    world.end().await;
}

#[tokio::test]
async fn a_stream_resumes_after_the_larger_cursor() {
    let world = World::still().await;
    let session = session_of(&world, 5).await;
    for (after, last_seen, first) in
        [("0", None, 1), ("2", None, 3), ("2", Some("4"), 5), ("4", Some("2"), 5)]
    {
        let path = format!("/sessions/{session}/events?stream=sse&after={after}");
        let (_, mut reader) = Reader::open(&world.owner, &path, last_seen).await;
        assert_eq!(reader.event().await.expect("an event")["seq"], first, "{after} {last_seen:?}");
    }
    let path = format!("/sessions/{session}/stream?type=user.*&level=user&after=0");
    let (_, mut reader) = Reader::open(&world.owner, &path, None).await;
    assert_eq!(reader.event().await.expect("an event")["seq"], 2, "the first event is not a message");
    drop(reader);
    world.end().await;
}

#[tokio::test]
async fn a_stream_that_is_cut_again_and_again_has_no_gap_and_no_double() {
    const MESSAGES: usize = 120;
    const CUTS: usize = 150;
    let world = World::still().await;
    let session = session_of(&world, 1).await;
    let mut runner = TestRunner::deterministic();
    let lengths = proptest::collection::vec(0_usize..4, CUTS);
    let lengths = lengths.new_tree(&mut runner).expect("lengths").current();
    let writes = async {
        for n in 0..MESSAGES {
            say(&world, &session, n).await;
        }
    };
    let reads = async {
        let (mut seen, mut opened) = (Vec::<i64>::new(), 0);
        // The last reader reads to the end; the others stop between two frames.
        for length in lengths.iter().copied().chain([usize::MAX]) {
            let place = seen.last().copied().unwrap_or_default();
            let path = format!("/sessions/{session}/events?stream=sse&after={}", place / 2);
            let last_seen = place.to_string();
            let (_, mut reader) = Reader::open(&world.owner, &path, Some(&last_seen)).await;
            opened += 1;
            for _ in 0..length {
                if seen.len() == MESSAGES + 2 {
                    return (seen, opened);
                }
                seen.push(reader.event().await.expect("an event")["seq"].as_i64().expect("a seq"));
            }
        }
        (seen, opened)
    };
    let ((), (seen, opened)) = tokio::join!(writes, reads);
    assert_eq!(seen, (1..=MESSAGES as i64 + 2).collect::<Vec<_>>());
    assert!(opened > 50, "only {opened} connections");
    world.end().await;
}

#[tokio::test]
async fn a_quiet_stream_has_a_heartbeat() {
    let world = World::still().await;
    let session = session_of(&world, 0).await;
    let path = format!("/sessions/{session}/events?stream=sse&after=1");
    let (_, mut reader) = Reader::open(&world.owner, &path, None).await;
    assert_eq!(reader.frame().await.as_deref(), Some("retry: 2000\n\n"));
    assert_eq!(reader.frame().await.as_deref(), Some(": alive\n\n"));
    drop(reader);
    world.end().await;
}

#[tokio::test]
async fn a_stream_ends_with_what_opened_it() {
    let world = World::still().await;
    let session = session_of(&world, 1).await;
    let path = format!("/sessions/{session}/stream?after=2");
    let caller = world.key(&["sessions:read"], None).await;
    let (_, mut by_key) = Reader::open(&caller, &path, None).await;
    let token = world.owner.post(&format!("/sessions/{session}/client-tokens"), json!({})).await.ok();
    let token = world.service.caller(token["token"].as_str().expect("a token"));
    let (_, mut by_token) = Reader::open(&token, &path, None).await;
    world.revoke(&caller).await;
    let revoked = std::time::Instant::now();
    assert_eq!(by_key.event().await, None, "the stream ended, and cleanly");
    assert!(revoked.elapsed() < Duration::from_secs(6));
    // The last event of a session still reaches authorized readers.
    world.owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    let last = std::iter::from_fn(|| Some(())).take(3);
    let mut types = Vec::new();
    for () in last {
        match by_token.event().await {
            Some(event) => types.push(event["type"].as_str().expect("a type").to_owned()),
            None => break,
        }
    }
    assert_eq!(types.last().map(String::as_str), Some("session.status_changed"));
    assert_eq!(by_token.event().await, None);
    world.end().await;
}

#[tokio::test]
async fn an_invalid_cursor_is_rejected_and_not_taken_for_the_beginning() {
    let world = World::still().await;
    let session = id(&world.owner.post("/sessions", json!({})).await.ok());
    for path in ["events?stream=sse", "stream", "events"] {
        for place in ["", "x", "1.5", "-", "99999999999999999999"] {
            let request = world.owner.request(Method::GET, &format!("/sessions/{session}/{path}"));
            let answer = send(request.header("Last-Event-ID", place)).await;
            assert_eq!(answer.error(400)["param"], "Last-Event-ID", "{path} {place:?}");
        }
    }
    let request = world.owner.request(Method::GET, &format!("/sessions/{session}/events"));
    send(request.header("Last-Event-ID", "1")).await.ok();
    world.end().await;
}
