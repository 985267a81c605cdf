//! The egress proxy of a sandbox: allowed requests, denied requests, and the log of both.

mod world;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::StatusCode;
use sojourn::{
    base::shares::Shares,
    domain::OrgId,
    egress::{Manner, Reason, Verdict},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use world::{Host, MemoryLog, PLACEHOLDER, SECRET, World, proxy, rule};

const OK: &str = "HTTP/1.1 200 OK\r\n";

#[tokio::test]
async fn nothing_is_reached_that_no_rule_names() {
    let host = Host::start(true, OK).await;
    let world = World::open(vec![rule("a.example", host.port, &[], None)], &host, true).await;
    let client = world.client();
    for url in ["https://b.example:PORT/", "https://a.example/", "https://evil.a.example:PORT/"] {
        let url = url.replace("PORT", &host.port.to_string());
        assert!(client.get(&url).send().await.is_err(), "{url}");
    }
    let plain = client.get(format!("http://b.example:{}/", host.port)).send().await.unwrap();
    assert_eq!(plain.status(), StatusCode::FORBIDDEN);
    assert_eq!(plain.headers()["x-sojourn-egress"], "host_not_allowed");
    assert!(host.heads().is_empty());
    assert_eq!(world.paper.reasons(), [Reason::Host, Reason::Port, Reason::Host, Reason::Host]);
    world.close().await;
}

#[tokio::test]
async fn connections_of_one_organization_leave_those_of_others() {
    let host = Host::start(true, OK).await;
    let connections = Arc::new(Shares::new(8, 2));
    let (greedy, other) =
        (OrgId::from_uuid(uuid::Uuid::from_u128(1)), OrgId::from_uuid(uuid::Uuid::from_u128(2)));
    let rules = || vec![rule("a.example", host.port, &[], None)];
    let first = World::among(Some(greedy), &connections, rules(), &host, true).await;
    let second = World::among(Some(greedy), &connections, rules(), &host, true).await;
    let neighbor = World::among(Some(other), &connections, rules(), &host, true).await;
    // Connections that ask for nothing, of two sandboxes of the same organization.
    let mut idle = Vec::new();
    for world in [&first, &first, &second] {
        idle.push(tokio::net::TcpStream::connect(("127.0.0.1", world.port)).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let get = async |world: &World| {
        let request = world.client().get(format!("https://a.example:{}/", host.port)).send();
        tokio::time::timeout(Duration::from_secs(2), request).await
    };
    assert!(get(&second).await.is_err(), "its organization has no connection left");
    assert_eq!(get(&neighbor).await.expect("in time").unwrap().status(), StatusCode::OK);
    idle.clear();
    assert_eq!(get(&second).await.expect("in time").unwrap().status(), StatusCode::OK);
    for world in [first, second, neighbor] {
        world.close().await;
    }
}

#[tokio::test]
async fn no_spelling_of_an_address_is_a_host() {
    let host = Host::start(false, OK).await;
    let world = World::open(vec![rule("a.example", host.port, &[], None)], &host, true).await;
    let spellings = "127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 [::1] [::ffff:127.0.0.1] 127.0.0.1. \
        169.254.169.254 localhost a.example@127.0.0.1 a.example%00.b a.example#b";
    for spelling in spellings.split_whitespace() {
        let place = format!("{spelling}:{}", host.port);
        for request in [
            format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n"),
            format!("GET http://{place}/ HTTP/1.1\r\nHost: a.example:{}\r\n\r\n", host.port),
        ] {
            let answer = world.raw(&request).await;
            assert!(!answer.starts_with("HTTP/1.1 2"), "{request} gave {answer}");
        }
    }
    assert!(host.heads().is_empty());
    assert_eq!(world.paper.allowed(), 0);
    world.close().await;
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_refused() {
    let host = Host::start(true, OK).await;
    let world = World::open(vec![rule("a.example", host.port, &[], None)], &host, false).await;
    assert!(world.client().get(format!("https://a.example:{}/", host.port)).send().await.is_err());
    let plain = world.client().get(format!("http://a.example:{}/", host.port)).send().await.unwrap();
    assert_eq!(plain.headers()["x-sojourn-egress"], "address_not_public");
    assert!(host.heads().is_empty());
    assert_eq!((world.paper.allowed(), world.paper.reasons()), (0, vec![Reason::Address; 2]));
    world.close().await;
}

#[tokio::test]
async fn a_tunnel_is_between_the_sandbox_and_the_host_it_names() {
    let host = Host::start(true, OK).await;
    let world = World::open(vec![rule("a.example", host.port, &[], None)], &host, true).await;
    let answer = world.client().get(format!("https://a.example:{}/x", host.port)).send().await.unwrap();
    assert!(answer.text().await.unwrap().starts_with("GET /x HTTP/1.1\r\n"));
    let (decision, count) = &world.paper.lines()[0];
    assert_eq!((decision.host.as_str(), *count), ("a.example", 1));
    assert_eq!(decision.verdict, Verdict::Allowed { manner: Manner::Tunnel, secrets: Vec::new() });
    // The same tunnel, with a handshake for another host behind the same front.
    for beginning in [b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n".to_vec(), hello_to("b.example")] {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", world.port)).await.unwrap();
        let connect = format!("CONNECT a.example:{0} HTTP/1.1\r\nHost: a.example:{0}\r\n\r\n", host.port);
        stream.write_all(connect.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stream.write_all(&beginning).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }
    assert_eq!(host.heads().len(), 1, "only the first request arrived");
    assert_eq!(world.paper.reasons(), [Reason::NotTls, Reason::Sni]);
    world.close().await;
}

fn hello_to(name: &'static str) -> Vec<u8> {
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_rule_of_methods_and_paths_holds_inside_tls() {
    let host = Host::start(true, OK).await;
    let world = World::open(vec![rule("a.example", host.port, &["GET"], Some("/v1"))], &host, true).await;
    let client = world.client();
    let url = |path: &str| format!("https://a.example:{}{path}", host.port);
    assert_eq!(client.get(url("/v1/./x?q=1")).send().await.unwrap().status(), StatusCode::OK);
    for (request, word) in [
        (client.post(url("/v1/x")), "method_not_allowed"),
        (client.get(url("/v2")), "path_not_allowed"),
        (client.get(url("/v1/%2e%2e/admin")), "path_not_allowed"),
        (client.get(url("/v1/..%2fadmin")), "path_not_allowed"),
        (client.get(url("/v1/x")).header("host", "b.example"), "host_mismatch"),
        (client.get(url("/v1/x")).header("upgrade", "websocket"), "upgrade"),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{word}");
        assert_eq!(answer.headers()["x-sojourn-egress"], word);
    }
    let heads = host.heads();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].starts_with("GET /v1/x?q=1 HTTP/1.1\r\n"), "the normalized path is sent: {}", heads[0]);
    world.close().await;
}

#[tokio::test]
async fn a_secret_is_put_in_on_the_way_and_taken_out_of_the_answer() {
    let host = Host::start(true, "HTTP/1.1 200 OK\r\nX-Echo: the-value-of-the-secret\r\n").await;
    let rules =
        vec![rule("bound.example", host.port, &[], None), rule("a.example", host.port, &["GET"], None)];
    let world = World::open(rules, &host, true).await;
    let basic = |password: &str| format!("Basic {}", BASE64_STANDARD.encode(format!("git:{password}")));
    let answer = world
        .client()
        .get(format!("https://bound.example:{}/?key={PLACEHOLDER}", host.port))
        .header("authorization", format!("Bearer {PLACEHOLDER}"))
        .header("authorization", basic(PLACEHOLDER))
        .header("x-api-key", "a key of the attacker's own")
        .header("cookie", "session=of-the-attacker")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.headers()["x-echo"], PLACEHOLDER);
    let echoed = answer.text().await.unwrap();
    let head = &host.heads()[0];
    assert!(head.contains(&format!("Bearer {SECRET}")) && head.contains(&basic(SECRET)), "{head}");
    assert!(head.starts_with(&format!("GET /?key={SECRET} ")), "{head}");
    assert!(!head.to_lowercase().contains("attacker"), "{head}");
    assert!(!echoed.contains(SECRET) && !echoed.contains(&BASE64_STANDARD.encode(format!("git:{SECRET}"))));
    assert_eq!(echoed.matches(PLACEHOLDER).count(), 2, "{echoed}");
    let verdict = &world.paper.lines()[0].0.verdict;
    assert_eq!(*verdict, Verdict::Allowed { manner: Manner::Inspected, secrets: vec!["TOKEN".to_owned()] });
    // A host that it is not bound to gets the placeholder and keeps its own headers.
    let other = world.client().get(format!("https://a.example:{}/", host.port));
    other.header("authorization", format!("Bearer {PLACEHOLDER}")).send().await.unwrap();
    assert!(host.heads()[1].contains(PLACEHOLDER) && !host.heads()[1].contains(SECRET));
    world.close().await;
}

#[tokio::test]
async fn a_foreign_key_in_a_query_and_a_compressed_answer_are_refused() {
    let host = Host::start(true, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n").await;
    let world = World::open(vec![rule("bound.example", host.port, &[], None)], &host, true).await;
    let url = |query: &str| format!("https://bound.example:{}/{query}", host.port);
    let foreign = world.client().get(url("?access_token=mine")).send().await.unwrap();
    assert_eq!(foreign.headers()["x-sojourn-egress"], "foreign_credential");
    let shown = world.client().get(url(&format!("?text={PLACEHOLDER}"))).send().await.unwrap();
    assert_eq!(shown.headers()["x-sojourn-egress"], "secret_placement");
    let shown = world.client().get(url("")).header("x-title", PLACEHOLDER).send().await.unwrap();
    assert_eq!(shown.headers()["x-sojourn-egress"], "secret_placement");
    let packed = world.client().get(url("")).send().await.unwrap();
    assert_eq!(packed.headers()["x-sojourn-egress"], "encoded_answer");
    // Without TLS not even a placeholder is sent.
    let plain = world.client().get(url("").replace("https", "http")).send().await.unwrap();
    assert_eq!(plain.headers()["x-sojourn-egress"], "not_tls");
    assert_eq!(host.heads().len(), 1);
    world.close().await;
}

#[tokio::test]
async fn a_loop_in_a_sandbox_does_not_flood_the_log() {
    let host = Host::start(false, OK).await;
    let world = World::open(Vec::new(), &host, true).await;
    let client = world.client();
    for at in 0..400 {
        client.get(format!("http://host-{at}.example/")).send().await.unwrap();
        client.get("http://again.example/").send().await.unwrap();
    }
    let lines = world.paper.lines();
    let counted = world.proxy.take();
    assert!(lines.len() + counted.len() < 200, "{} lines, {} counted", lines.len(), counted.len());
    let total: u64 = lines.iter().chain(&counted).map(|(_, count)| count).sum();
    assert_eq!(total, 800, "every decision is counted");
    world.close().await;
}

#[tokio::test]
async fn a_request_that_cannot_be_logged_is_not_sent() {
    let host = Host::start(false, OK).await;
    let world = World::open(vec![rule("a.example", host.port, &[], None)], &host, true).await;
    let url = format!("http://a.example:{}/", host.port);
    world.paper.torn.store(true, Ordering::SeqCst);
    assert_eq!(world.client().get(&url).send().await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(host.heads().is_empty());
    world.paper.torn.store(false, Ordering::SeqCst);
    assert_eq!(world.client().get(&url).send().await.unwrap().status(), StatusCode::OK);
    world.proxy.close().await;
    assert!(world.client().get(&url).send().await.is_err(), "a closed proxy denies everything");
    assert_eq!(host.heads().len(), 1);
    world.close().await;
}

#[tokio::test]
async fn a_fetch_keeps_the_rules_through_its_redirects() {
    let away = Host::start(false, "HTTP/1.1 302 Found\r\nLocation: http://b.example/\r\n").await;
    let host = Host::start(false, OK).await;
    let rules = vec![rule("a.example", host.port, &[], None), rule("c.example", away.port, &[], None)];
    let world = World::open(rules, &host, true).await;
    let page = world.proxy.fetch(&format!("http://a.example:{}/page", host.port)).await.unwrap();
    assert_eq!(page.status, 200);
    assert!(String::from_utf8(page.content).unwrap().starts_with("GET /page HTTP/1.1"));
    let refused = world.proxy.fetch(&format!("http://c.example:{}/", away.port)).await.unwrap_err();
    assert!(
        refused.to_string().contains("b.example") && refused.to_string().contains("not allow"),
        "{refused}"
    );
    for url in ["http://127.0.0.1/", "ftp://a.example/", "nonsense"] {
        assert!(world.proxy.fetch(url).await.is_err(), "{url}");
    }
    assert_eq!(world.paper.reasons(), [Reason::Host, Reason::AddressLiteral]);
    world.close().await;
}
