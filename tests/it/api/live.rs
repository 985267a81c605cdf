//! Live transports beside server-sent events: WebSockets, and deltas of growing answers.

use std::time::Duration;

use futures::{SinkExt, StreamExt, future::join_all};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Message, client::IntoClientRequest, protocol::frame::coding::CloseCode},
};

use super::{World, id, noop};
use crate::{
    fake::{Fake, Fault, Step, anthropic::Anthropic},
    support::{
        service::{Caller, Ground},
        wait::WAIT_MAX,
    },
};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn connect(caller: &Caller, path: &str, key: Option<&str>) -> Socket {
    let url = format!("{}{path}", caller.base.replace("http://", "ws://"));
    let mut request = url.into_client_request().expect("a request");
    if let Some(key) = key {
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().expect("a header"));
    }
    connect_async(request).await.expect("a connection").0
}

async fn message(socket: &mut Socket) -> Message {
    let next = tokio::time::timeout(WAIT_MAX, socket.next());
    next.await.expect("something within 30 s").expect("no end").expect("a message")
}

async fn event(socket: &mut Socket) -> Value {
    loop {
        match message(socket).await {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn say(world: &World, session: &str, text: &str) {
    world.owner.post(&format!("/sessions/{session}/messages"), json!({ "text": text })).await.ok();
}

async fn session(world: &World) -> String {
    world.owner.post("/agents", noop("a")).await.ok();
    id(&world.owner.post("/sessions", json!({ "agent": "a" })).await.ok())
}

#[tokio::test]
async fn a_socket_replays_and_follows_under_one_cursor() {
    let world = World::still().await;
    let session = session(&world).await;
    for n in 0..3 {
        say(&world, &session, &format!("line {n}")).await;
    }
    let path = format!("/sessions/{session}/ws");
    let mut socket = connect(&world.owner, &format!("{path}?after=1"), Some(&world.owner.key)).await;
    let page = world.owner.get(&format!("/sessions/{session}/events?after=1")).await.ok();
    for listed in super::data(&page) {
        assert_eq!(event(&mut socket).await, *listed);
    }
    say(&world, &session, "now").await;
    let now = event(&mut socket).await;
    assert_eq!(now["body"]["text"], "now");
    drop(socket);
    say(&world, &session, "later").await;
    let after = format!("{path}?after={}", now["seq"]);
    let mut socket = connect(&world.owner, &after, Some(&world.owner.key)).await;
    assert_eq!(event(&mut socket).await["body"]["text"], "later");
    // The socket accepts no messages.
    socket.send(Message::text("hello")).await.expect("a message");
    let Message::Close(Some(close)) = message(&mut socket).await else { panic!("no close frame") };
    assert_eq!(close.code, CloseCode::Unsupported);
    world.end().await;
}

#[tokio::test]
async fn a_socket_has_the_rights_of_its_key_and_ends_with_them() {
    let world = World::still().await;
    let session = session(&world).await;
    say(&world, &session, "hello").await;
    let path = format!("/sessions/{session}/ws");
    assert_eq!(world.owner.get(&path).await.error(400)["param"], "upgrade");
    let minted = world.owner.post(&format!("/sessions/{session}/client-tokens"), json!({})).await.ok();
    let token = minted["token"].as_str().expect("a token");
    let mut socket = connect(&world.owner, &format!("{path}?token={token}&level=user"), None).await;
    assert_eq!(event(&mut socket).await["type"], "user.message");
    for (path, key) in [
        (path.as_str(), "sjk_test_of_nobody_at_all"),
        ("/sessions/ses_01jd0000000000000000000000/ws", world.owner.key.as_str()),
    ] {
        let url = format!("{}{path}", world.owner.base.replace("http://", "ws://"));
        let mut request = url.into_client_request().expect("a request");
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().expect("a header"));
        assert!(connect_async(request).await.is_err(), "{path}");
    }
    // A stopping service closes the socket with a reason, and the reader knows where to resume.
    let world = world.end();
    let farewell = async {
        loop {
            if let Message::Close(close) = message(&mut socket).await {
                return close.expect("a reason").code;
            }
        }
    };
    let ((), code) = tokio::join!(world, farewell);
    assert_eq!(code, CloseCode::Away);
}

#[tokio::test]
async fn a_frame_that_is_too_large_ends_the_socket_before_it_is_sent() {
    let world = World::still().await;
    let path = format!("/sessions/{}/ws", session(&world).await);
    let mut socket = connect(&world.owner, &path, Some(&world.owner.key)).await;
    let MaybeTlsStream::Plain(stream) = socket.get_mut() else { panic!("TLS") };
    // The head of a masked binary frame of 2,048 bytes, and none of them.
    stream.write_all(&[0x82, 0xfe, 0x08, 0x00, 1, 2, 3, 4]).await.expect("a connection");
    let ended = async {
        while let Some(Ok(message)) = socket.next().await {
            if matches!(message, Message::Close(_)) {
                break;
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, ended).await.expect("an end");
    world.end().await;
}

#[tokio::test]
async fn an_answer_is_streamed_as_deltas_and_ends_as_one_event() {
    let world = World::new().await;
    let agent = world.owner.inline_agent().await;
    let session = id(&world.owner.post("/sessions", json!({ "agent": agent })).await.ok());
    let path = format!("/sessions/{session}/events?stream=sse&deltas=true");
    let response = world.owner.request(Method::GET, &path).send().await.expect("an answer");
    let text = "What is said here is longer than one piece, and é is not cut in two. ".repeat(4);
    let script = json!({ "script": [{ "text": text, "thinking": "Let me see." }] });
    say(&world, &session, &script.to_string()).await;
    let mut chunks = response.bytes_stream();
    let mut all = String::new();
    while !all.contains("turn.completed\"") {
        let chunk = tokio::time::timeout(WAIT_MAX, chunks.next()).await;
        let chunk = chunk.expect("something within 30 s").expect("no end").expect("a chunk");
        all.push_str(std::str::from_utf8(&chunk).expect("no character is split in this test"));
    }
    let (mut said, mut thought, mut seq, mut step) = (String::new(), String::new(), 0, Value::Null);
    for frame in all.split("\n\n") {
        let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        if event["type"] != "agent.message.delta" {
            seq = event["seq"].as_i64().expect("a seq");
            if event["type"] == "agent.message" {
                assert_eq!(event["body"]["text"].as_str(), Some(text.as_str()));
                assert_eq!(event["step_id"], step);
            }
            continue;
        }
        // A client resumes after the last `id:`; a delta has none.
        assert!(!frame.contains("id: ") && event.get("id").is_none(), "{frame}");
        assert_eq!((event["seq"].as_i64(), &event["attempt"]), (Some(seq), &json!(1)), "{event}");
        step = event["step_id"].clone();
        let piece = event["body"]["text"].as_str().expect("a text");
        match event["body"]["kind"].as_str() {
            Some("text") => said.push_str(piece),
            Some("thinking") => thought.push_str(piece),
            kind => panic!("{kind:?}"),
        }
    }
    assert_eq!((said, thought.as_str()), (text, "Let me see."));
    let log = world.owner.get(&format!("/sessions/{session}/events?limit=500")).await.ok();
    assert!(!log.to_string().contains("agent.message.delta"));
    world.owner.get(&format!("/sessions/{session}/events?deltas=true")).await.error(400);
    world.end().await;
}

/// The fake provider stops in the middle of its answer, so all that arrives is a delta.
#[tokio::test]
async fn deltas_reach_a_stream_of_another_process() {
    let text = "This answer is written by a process that serves no stream. ".repeat(30);
    let fake = Fake::script(
        Anthropic::default(),
        [Step { fault: Some(Fault::StallAfter(4_000)), ..Step::text(&text) }],
    );
    let fake = fake.await;
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let worker = ground.serve(&["--role=worker", &base_url]).await;
    let owner = api.owner();
    let agent = json!({ "name": "a", "prompt": "Write.", "model": "anthropic/m-1", "key": "sk-a-key" });
    let agent = id(&owner.post("/agents", agent).await.ok());
    let session = id(&owner.post("/sessions", json!({ "agent": agent })).await.ok());
    let path = format!("/sessions/{session}/events?stream=sse&deltas=true");
    let response = owner.request(Method::GET, &path).send().await.expect("an answer");
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "Go." })).await.ok();
    let mut chunks = response.bytes_stream();
    let (mut all, mut said) = (String::new(), String::new());
    // More than the first delta: later ones are joined, and not lost.
    while said.len() < 70 {
        let chunk = tokio::time::timeout(WAIT_MAX, chunks.next()).await;
        let chunk = chunk.expect("something within a minute").expect("no end").expect("a chunk");
        all.push_str(std::str::from_utf8(&chunk).expect("ASCII"));
        let frames = all.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
        let deltas = frames.filter(|frame: &Value| frame["type"] == "agent.message.delta");
        said = deltas.map(|delta| delta["body"]["text"].as_str().expect("a text").to_owned()).collect();
    }
    assert!(text.starts_with(&said), "{said}");
    assert!(!all.contains("step.completed") && fake.refusals().is_empty(), "{all}");
    owner.post(&format!("/sessions/{session}/cancel"), json!({})).await.ok();
    owner.settled(&session, 1).await;
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_reader_with_a_cursor_far_ahead_is_refused_and_affects_no_other_reader() {
    let world = World::still().await;
    let session = session(&world).await;
    let path = format!("/sessions/{session}/ws?after=");
    let stream = format!("/sessions/{session}/stream?after=1000000");
    assert_eq!(world.owner.get(&stream).await.error(409)["code"], "events_lost");
    let mut honest = connect(&world.owner, &format!("{path}1"), Some(&world.owner.key)).await;
    let ahead = format!("{}{path}2000000", world.owner.base.replace("http://", "ws://"));
    let mut ahead = ahead.into_client_request().expect("a request");
    let bearer = format!("Bearer {}", world.owner.key).parse().expect("a header");
    ahead.headers_mut().insert("authorization", bearer);
    assert!(connect_async(ahead).await.is_err());
    for text in ["one", "two", "three"] {
        say(&world, &session, text).await;
        assert_eq!(event(&mut honest).await["body"]["text"], text);
    }
    let mut late = connect(&world.owner, &format!("{path}0"), Some(&world.owner.key)).await;
    for seq in 1..=4 {
        assert_eq!(event(&mut late).await["seq"], seq);
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_one_session_share_its_feed_and_each_sees_what_it_asked_for() {
    let world = World::new().await;
    let agent = world.owner.inline_agent().await;
    let session = id(&world.owner.post("/sessions", json!({ "agent": agent })).await.ok());
    let turns = 5;
    let read = async |query: &'static str, after: i64| {
        let path = format!("/sessions/{session}/events?stream=sse&after={after}{query}");
        let response = world.owner.request(Method::GET, &path).send().await.expect("an answer");
        let mut chunks = response.bytes_stream();
        let (mut all, mut seqs) = (String::new(), Vec::new());
        loop {
            let chunk = tokio::time::timeout(WAIT_MAX, chunks.next()).await;
            let chunk = chunk.expect("something within a minute").expect("no end").expect("a chunk");
            all.push_str(std::str::from_utf8(&chunk).expect("ASCII"));
            if all.matches("\"type\":\"turn.completed\"").count() == turns {
                break;
            }
        }
        for line in all.lines().filter_map(|line| line.strip_prefix("id: ")) {
            seqs.push(line.parse::<i64>().expect("a seq"));
        }
        (query, after, seqs)
    };
    let queries = ["", "&level=user", "&level=progress", "&type=turn.*", "&type=turn.completed"];
    let readers = join_all((0..20).map(|at| read(queries[at % queries.len()], (at as i64 / 7).min(1))));
    let writer = async {
        for _ in 0..turns {
            let script =
                json!({ "script": [{ "text": "One.", "tools": [{ "tool": "none" }] }, { "text": "Two." }] });
            say(&world, &session, &script.to_string()).await;
            let settled =
                async || world.owner.get(&format!("/sessions/{session}")).await.ok()["status"] == "idle";
            while !settled().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let (read, ()) = tokio::join!(readers, writer);
    for (query, after, seqs) in read {
        let page =
            world.owner.get(&format!("/sessions/{session}/events?limit=500&after={after}{query}")).await.ok();
        let listed: Vec<_> =
            super::data(&page).iter().map(|event| event["seq"].as_i64().expect("a seq")).collect();
        assert_eq!(seqs, listed, "{query} after {after}");
    }
    world.end().await;
}
