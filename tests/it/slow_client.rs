//! Hostile connections: slow, silent, endless. Other clients are served meanwhile.

use std::time::{Duration, Instant};

use reqwest::{Method, header};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::{
    api::stream::{Reader, event_of},
    support::service::{Ground, KEY, Service, send},
};

fn address(service: &Service) -> String {
    service.base.trim_start_matches("http://").trim_end_matches("/v3").to_owned()
}

/// Reads until the peer has closed.
async fn is_closed(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    // A reset counts as an end.
    let _ = stream.read_to_end(&mut said).await;
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn whoever_says_nothing_or_little_is_disconnected_and_delays_nobody() {
    let count = if std::env::var_os("SOJOURN_TEST_FULL").is_some() { 5_000 } else { 300 };
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let place = address(&service);
    let begun = Instant::now();
    let mut idle = Vec::new();
    for number in 0..count {
        let mut stream = TcpStream::connect(&place).await.expect("a connection");
        let start: &[u8] = match number % 4 {
            0 => b"",
            1 => b"POST /v3/sessions HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            2 => b"PRI * HT",
            _ => b"G",
        };
        stream.write_all(start).await.expect("it takes some bytes");
        idle.push(stream);
    }
    let owner = service.owner();
    for _ in 0..20 {
        let asked = Instant::now();
        owner.post("/sessions", json!({})).await.ok();
        assert!(asked.elapsed() < Duration::from_secs(5), "others are served: {:?}", asked.elapsed());
    }
    let ended = tokio::time::timeout(
        Duration::from_secs(60),
        futures::future::join_all(idle.into_iter().map(is_closed)),
    );
    ended.await.expect("every idle connection is closed");
    assert!(begun.elapsed() >= Duration::from_secs(10), "but not at once");
    service.stop().await;
}

#[tokio::test]
async fn a_request_that_is_too_large_anywhere_is_refused() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let long = "x".repeat(80 << 10);
    let request = owner.request(Method::GET, "/sessions").header("x-long", &long);
    assert_eq!(request.send().await.expect("an answer").status(), 431);
    // A Content-Length that is too large is rejected before the body is read.
    let mut stream = TcpStream::connect(address(&service)).await.expect("a connection");
    let head = format!(
        "POST /v3/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Content-Length: 1099511627776\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it is taken");
    let mut said = [0; 12];
    stream.read_exact(&mut said).await.expect("an answer");
    assert_eq!(&said, b"HTTP/1.1 413");
    let deep = format!("{{\"metadata\":{}1{}}}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    let request = owner.request(Method::POST, "/sessions").header(header::CONTENT_TYPE, "application/json");
    send(request.body(deep)).await.error(400);
    owner.get("/sessions?limit=501").await.error(400);
    owner.get("/sessions").await.ok();
    service.stop().await;
}

#[tokio::test]
async fn http2_without_asking_is_spoken_too() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let answer =
        client.get(format!("{}/sessions", service.base)).bearer_auth(KEY).send().await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.version()), (200, reqwest::Version::HTTP_2));
    service.stop().await;
}

#[tokio::test]
async fn a_trickled_body_and_an_answer_that_nobody_reads_end_too() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let (owner, place) = (service.owner(), address(&service));
    let agent = owner.inline_agent().await;
    let made = owner.post("/sessions", json!({ "agent": agent, "input": "x" })).await.ok();
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    let text = "y".repeat(200 << 10);
    for _ in 0..60 {
        owner.post(&format!("/sessions/{id}/messages"), json!({ "text": text })).await.ok();
    }
    let trickled = async {
        let mut stream = TcpStream::connect(&place).await.expect("a connection");
        let head = format!(
            "POST /v3/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.expect("it is taken");
        let (mut said, mut begun) = ([0; 12], false);
        let mut bytes = tokio::time::interval(Duration::from_secs(1));
        while !begun {
            tokio::select! {
                read = stream.read_exact(&mut said) => { read.expect("an answer"); begun = true; }
                _ = bytes.tick() => { let _ = stream.write_all(b" ").await; }
            }
        }
        String::from_utf8_lossy(&said).into_owned()
    };
    let unread = async {
        let mut stream = TcpStream::connect(&place).await.expect("a connection");
        let head = format!(
            "GET /v3/sessions/{id}/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("it is taken");
        // Longer than the service's timeout.
        tokio::time::sleep(Duration::from_secs(45)).await;
        is_closed(stream).await.len()
    };
    let both = async { tokio::join!(trickled, unread) };
    let (said, read) = tokio::time::timeout(Duration::from_secs(90), both).await.expect("both are ended");
    assert_eq!(said, "HTTP/1.1 503");
    assert!((1..60 * (200 << 10)).contains(&read), "it was cut off in the middle: {read} bytes");
    owner.get("/sessions").await.ok();
    service.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_read_too_slowly_ends_and_resumes_without_a_gap() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let session = owner.play(json!([])).await;
    // More than the buffers of the connection hold (`net.ipv4.tcp_wmem`).
    let message = json!({ "type": "user.message", "text": "y".repeat(8 << 10) });
    let messages = json!({ "events": vec![message; 60] });
    for _ in 0..16 {
        owner.post(&format!("/sessions/{session}/events"), messages.clone()).await.ok();
    }
    let head = owner.get(&format!("/sessions/{session}")).await.ok()["head"].as_u64().expect("a seq");

    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("a small buffer");
    let mut stream =
        socket.connect(address(&service).parse().expect("an address")).await.expect("a connection");
    // The body of HTTP/1.0 has no chunks.
    let ask = format!("GET /v3/sessions/{session}/stream HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("it is taken");
    // Longer than the service's timeout.
    tokio::time::sleep(Duration::from_secs(40)).await;
    let said = tokio::time::timeout(Duration::from_secs(60), is_closed(stream)).await.expect("it ends");
    let (_, body) = said.split_once("\r\n\r\n").expect("a head");
    // What follows the last frame is a part of one.
    let (frames, _) = body.rsplit_once("\n\n").expect("frames");
    let frames = frames.split("\n\n").map(|frame| format!("{frame}\n\n"));
    let mut seen: Vec<_> = frames.filter_map(|frame| event_of(&frame)?["seq"].as_u64()).collect();
    let cut = *seen.last().expect("events");
    assert!(cut < head, "it ended before the reader had everything");

    let path = format!("/sessions/{session}/stream");
    let (_, mut reader) = Reader::open(&owner, &path, Some(&cut.to_string())).await;
    while seen.last() < Some(&head) {
        let event = reader.event().await.expect("an event");
        seen.push(event["seq"].as_u64().expect("a seq"));
    }
    assert_eq!(seen, (1..=head).collect::<Vec<_>>());
    service.stop().await;
}
