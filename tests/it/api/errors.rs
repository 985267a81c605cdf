//! Errors: one format for all, and the same body for unknown ids and for ids of other organizations.

use reqwest::{Method, header};
use serde_json::{Value, json};

use super::{World, id, noop};
use crate::support::service::{Answer, send};

async fn raw(world: &World, method: Method, path: &str, media: &str, body: Vec<u8>) -> Answer {
    send(world.owner.request(method, path).header(header::CONTENT_TYPE, media).body(body)).await
}

#[tokio::test]
async fn every_fault_of_a_request_has_the_form_of_an_error() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    assert_eq!(owner.get("/nothing/here").await.error(404)["type"], "not_found");
    let wrong = owner.delete("/sessions").await;
    let allowed = wrong.headers["allow"].to_str().expect("text");
    assert!(["GET", "POST"].iter().all(|method| allowed.contains(method)), "{allowed}");
    assert_eq!(wrong.error(405)["type"], "method_not_allowed");
    // Unsupported operations are rejected, not ignored.
    owner.post(&format!("/sessions/{session}/nothing"), json!({})).await.error(404);
    owner.delete(&format!("/sessions/{session}/events")).await.error(405);
    for (body, what) in [
        ("{", "EOF"),
        ("[]", "JSON object"),
        ("7", "invalid type"),
        ("{} x", "trailing"),
        ("", "EOF"),
        ("\"\u{0}\"", ""),
    ] {
        let error = raw(&world, Method::POST, "/sessions", "application/json", body.into()).await.error(400);
        assert!(
            error["type"] == "invalid" && error["message"].as_str().unwrap_or_default().contains(what),
            "{error}"
        );
    }
    let error = raw(&world, Method::POST, "/sessions", "application/json", vec![b'{', 0xff]).await.error(400);
    assert_eq!(error["type"], "invalid");
    for media in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let error = raw(&world, Method::POST, "/sessions", media, b"{}".to_vec()).await.error(415);
        assert_eq!(error["type"], "unsupported_media_type");
    }
    raw(&world, Method::POST, "/sessions", "application/json; charset=utf-8", b"{}".to_vec()).await.ok();
    let deep = "[".repeat(10_000);
    let error =
        raw(&world, Method::POST, "/sessions", "application/json", format!("{{\"input\":{deep}").into())
            .await;
    error.error(400);
    let large = json!({ "prompt": "x".repeat(1 << 20) }).to_string().into_bytes();
    let error = raw(&world, Method::POST, "/agents", "application/json", large.clone()).await.error(413);
    assert_eq!(error["type"], "too_large");
    // The same without a Content-Length that could be checked first.
    let chunks = futures::stream::iter(
        large.chunks(1 << 16).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect::<Vec<_>>(),
    );
    let request = owner.request(Method::POST, "/agents").header(header::CONTENT_TYPE, "application/json");
    send(request.body(reqwest::Body::wrap_stream(chunks))).await.error(413);
    world.end().await;
}

#[tokio::test]
async fn a_body_of_many_values_is_refused_before_it_is_parsed() {
    let world = World::still().await;
    let session = id(&world.owner.post("/sessions", json!({})).await.ok());
    let messages = format!("/sessions/{session}/messages");
    let metadata = |values: usize| format!("{{\"metadata\":{{\"a\":[{}1]}}}}", "1,".repeat(values));
    // 1.9 MiB, of which the largest possible part is values.
    for (path, values) in [("/sessions", 1_000_000), (&messages, 1_000_000), ("/agents", 200_000)] {
        let body = metadata(values).into_bytes();
        let error = raw(&world, Method::POST, path, "application/json", body).await.error(413);
        assert_eq!(error["type"], "too_large", "{path}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("100000 JSON values"), "{message}");
    }
    // Fewer are parsed, on another thread, with the same errors as in a small body.
    let body = metadata(90_000).into_bytes();
    let error = raw(&world, Method::POST, "/sessions", "application/json", body).await.error(400);
    assert_eq!(error["param"], "metadata");
    world.end().await;
}

#[tokio::test]
async fn param_names_the_field_that_is_wrong_unknown_repeated_or_absent() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    for (query, param) in [
        ("/sessions?status=foo", "status"),
        ("/sessions?overdue=maybe", "overdue"),
        ("/sessions?limit=1&limit=2", "limit"),
        ("/agents?limit=-1", "limit"),
        ("/agents?colour=red", "colour"),
        ("/audit?colour=red", "colour"),
        (&format!("/sessions/{session}/events?level=secret"), "level"),
        (&format!("/sessions/{session}/events?deltas=perhaps"), "deltas"),
        (&format!("/sessions/{session}/files"), "path"),
    ] {
        assert_eq!(owner.get(query).await.error(400)["param"], param, "{query}");
    }
    let destinations =
        |destination: Value| json!({ "destinations": [{ "url": "https://a.example" }, destination] });
    for (path, body, param) in [
        ("/agents", json!({ "prompt": "", "model": "scripted/noop" }), "name"),
        ("/agents", json!({ "name": 7, "prompt": "", "model": "scripted/noop" }), "name"),
        ("/sessions", json!({ "limits": { "tokens": "many" } }), "limits.tokens"),
        ("/sessions", json!({ "limits": { "coffee": 1 } }), "limits.coffee"),
        ("/sessions", destinations(json!({})), "destinations[1].url"),
        (
            "/sessions",
            destinations(json!({ "url": "https://b.example", "level": "secret" })),
            "destinations[1].level",
        ),
        (
            "/sessions",
            destinations(json!({ "url": "https://b.example", "colour": 1 })),
            "destinations[1].colour",
        ),
        ("/sessions", destinations(json!({ "url": "" })), "destinations[1].url"),
        (&format!("/sessions/{session}/messages"), json!({ "envelope": {} }), "envelope.text"),
        (&format!("/sessions/{session}/exec"), json!({}), "command"),
    ] {
        assert_eq!(owner.post(path, body.clone()).await.error(400)["param"], param, "{path} {body}");
    }
    let twice = br#"{"title": "a", "title": "b"}"#.to_vec();
    let error = raw(&world, Method::POST, "/sessions", "application/json", twice).await.error(400);
    assert_eq!(error["param"], "title");
    world.end().await;
}

#[tokio::test]
async fn no_character_makes_the_service_fail() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    for (path, body) in [
        ("/sessions".to_owned(), json!({ "title": "a\0b" })),
        ("/sessions".to_owned(), json!({ "metadata": { "\0": 1 } })),
        ("/sessions".to_owned(), json!({ "key": "\0" })),
        ("/sessions".to_owned(), json!({ "agent": "\0" })),
        ("/agents".to_owned(), noop("\0")),
        ("/credentials".to_owned(), json!({ "key": "\0" })),
        (format!("/sessions/{session}/messages"), json!({ "text": "x", "idempotency_key": "\0" })),
    ] {
        let error = owner.post(&path, body).await.error(400);
        assert!(error["message"].as_str().unwrap_or_default().contains("U+0000"), "{error}");
    }
    for path in
        ["/sessions?key=%00", "/sessions?metadata[x]=%00", "/sessions?metadata[%00]=x", "/sessions?after=%00"]
    {
        owner.get(path).await.error(400);
    }
    owner.get(&format!("/sessions/{session}/events?type=%00")).await.error(400);
    // An input belongs to the agent: it is stored verbatim, including U+0000.
    owner.post("/agents", noop("a")).await.ok();
    let input = json!({ "text": "a\0b", "\0": ["\0"] });
    let created = owner.post("/sessions", json!({ "agent": "a", "input": input })).await.ok();
    let messages = owner.get(&format!("/sessions/{}/messages", id(&created))).await.ok();
    assert_eq!(super::data(&messages)[0]["body"]["input"], input);
    // All other characters are stored unchanged.
    let odd = "\u{1}\u{fffd}\u{10ffff}\u{202e}\\u0000 '; drop table session; --";
    let patched = owner.patch(&format!("/sessions/{session}"), json!({ "title": odd })).await.ok();
    assert_eq!(patched["title"], odd);
    for path in ["%00", "%ff", "..", "ses_", "SES_01m80jjgybes0ttvkffs625kj5", "%F0%9F"] {
        owner.get(&format!("/sessions/{path}/events")).await.error(404);
    }
    world.end().await;
}

#[tokio::test]
async fn foreign_ids_answer_like_unknown_ids() {
    let world = World::still().await;
    let session = id(&world.stranger.post("/sessions", json!({})).await.ok());
    let never = format!("ses_0{}", &session["ses_0".len()..].chars().rev().collect::<String>());
    let bare = |mut error: Value| {
        error["request_id"] = Value::Null;
        error
    };
    for end in ["", "/events", "/turns", "/result", "/steps", "/messages", "/destinations", "/deliveries"] {
        let foreign = world.owner.get(&format!("/sessions/{session}{end}")).await;
        let unknown = world.owner.get(&format!("/sessions/{never}{end}")).await;
        let headers = |answer: &Answer| {
            let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(headers(&foreign), headers(&unknown));
        assert_eq!(bare(foreign.error(404)), bare(unknown.error(404)), "{end}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_caller_without_a_scope_is_told_which_one_is_missing() {
    let world = World::still().await;
    let bearer = |value: &str| {
        world.anonymous.request(Method::GET, "/sessions").header(header::AUTHORIZATION, value.to_owned())
    };
    let nobody = reqwest::Client::new();
    let path = format!("{}/sessions", world.owner.base);
    let refused = [
        send(nobody.get(&path)).await,
        send(bearer("Bearer")).await,
        send(nobody.get(&path).header(header::AUTHORIZATION, format!("Basic {}", world.owner.key))).await,
        send(nobody.get(&path).bearer_auth("no such key at all")).await,
        send(nobody.get(&path).bearer_auth("sjk_live_00000000000000000000000000000000000000")).await,
        send(nobody.get(&path).header("x-api-key", "no such key at all")).await,
        world.key(&["*"], Some(-1)).await.get("/sessions").await,
    ];
    for answer in refused {
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert_eq!(answer.error(401)["type"], "unauthorized");
    }
    send(nobody.get(&path).header("x-api-key", &world.owner.key)).await.ok();
    let reader = world.key(&["sessions:read"], None).await;
    reader.get("/sessions").await.ok();
    let error = reader.post("/sessions", json!({})).await.error(403);
    assert!(
        error["type"] == "forbidden"
            && error["message"].as_str().unwrap_or_default().contains("sessions:write")
    );
    reader.get("/agents").await.error(403);
    let writer = world.key(&["sessions:*"], Some(60)).await;
    writer.post("/sessions", json!({})).await.ok();
    writer.get("/credentials").await.error(403);
    world.end().await;
}

#[tokio::test]
async fn a_revoked_key_ends_within_five_seconds() {
    let world = World::still().await;
    let caller = world.key(&["*"], None).await;
    caller.get("/sessions").await.ok();
    world.revoke(&caller).await;
    let revoked = std::time::Instant::now();
    while caller.get("/sessions").await.status == 200 {
        assert!(revoked.elapsed() < std::time::Duration::from_secs(5), "still good");
        tokio::task::yield_now().await;
    }
    world.end().await;
}

#[tokio::test]
async fn a_caller_sees_its_rate_limit_and_is_stopped_beyond_it() {
    let world = World::with(&["--role=api", "--requests-per-second=1"]).await;
    let number = |answer: &Answer, name: &str| -> u64 {
        answer.headers[name].to_str().expect("text").parse().expect("a number")
    };
    let first = world.owner.get("/sessions").await;
    assert_eq!((number(&first, "ratelimit-limit"), number(&first, "ratelimit-remaining")), (4, 3));
    assert_eq!(number(&first, "ratelimit-reset"), 1);
    let more = futures::future::join_all((0..20).map(|_| world.owner.get("/agents/unknown"))).await;
    let refused: Vec<_> = more.iter().filter(|answer| answer.status == 429).collect();
    assert!(!refused.is_empty() && more.iter().all(|answer| [404, 429].contains(&answer.status.as_u16())));
    for answer in refused {
        assert!(number(answer, "retry-after") >= 1 && number(answer, "ratelimit-remaining") == 0);
        assert_eq!(answer.body["error"]["type"], "rate_limited");
    }
    // Other organizations are not limited by it, and an anonymous caller has no rate limit to report.
    assert_eq!(world.stranger.get("/sessions").await.status, 200);
    assert!(world.anonymous.get("/sessions").await.headers.get("ratelimit-limit").is_none());
    world.end().await;
}

#[tokio::test]
async fn a_browser_may_ask_from_anywhere() {
    let world = World::still().await;
    let preflight = world
        .anonymous
        .request(Method::OPTIONS, "/sessions")
        .header(header::ORIGIN, "https://app.example")
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .header(
            header::ACCESS_CONTROL_REQUEST_HEADERS,
            "authorization,content-type,idempotency-key,last-event-id",
        )
        .send()
        .await
        .expect("an answer");
    assert_eq!(preflight.status(), 200);
    let list = |name: &str| preflight.headers()[name].to_str().expect("text").to_ascii_lowercase();
    assert_eq!(list("access-control-allow-origin"), "*");
    assert!(
        ["get", "post", "put", "patch", "delete"]
            .iter()
            .all(|method| list("access-control-allow-methods").contains(method))
    );
    for name in ["authorization", "content-type", "idempotency-key", "last-event-id"] {
        assert!(list("access-control-allow-headers").contains(name), "{name}");
    }
    let request =
        world.owner.request(Method::GET, "/sessions/ses_x").header(header::ORIGIN, "https://app.example");
    let answer = send(request).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "*", "errors too");
    let exposed = answer.headers["access-control-expose-headers"].to_str().expect("text");
    assert!(["x-request-id", "retry-after", "ratelimit-remaining"].iter().all(|name| exposed.contains(name)));
    world.end().await;
}

#[tokio::test]
async fn the_keys_of_an_organization_share_its_rate_limit() {
    let world = World::with(&["--role=api", "--requests-per-second=1"]).await;
    let mut keys = Vec::new();
    for _ in 0..6 {
        keys.push(world.key(&["*"], None).await);
    }
    // Each key may send four requests at once, and all keys together sixteen.
    let asked = keys.iter().flat_map(|key| (0..4).map(|_| key.get("/sessions")));
    let answers = futures::future::join_all(asked).await;
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(taken.len() >= 16 && !refused.is_empty(), "{} were taken", taken.len());
    for answer in refused {
        let error = &answer.body["error"];
        assert_eq!((answer.status.as_u16(), &error["type"]), (429, &json!("rate_limited")));
        assert_eq!(error["code"], "organization_rate");
        let number =
            |name: &str| answer.headers[name].to_str().expect("text").parse::<u64>().expect("a number");
        assert_eq!((number("retry-after") >= 1, number("ratelimit-remaining")), (true, 0));
    }
    assert_eq!(world.stranger.get("/sessions").await.status, 200);
    world.end().await;
}
