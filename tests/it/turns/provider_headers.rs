//! Headers of a credential in the calls of its provider.

use serde_json::json;

use super::{Scene, ends, steer};
use crate::fake::{Fake, Request, Step, anthropic::Anthropic};

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers.get(name).and_then(|value| value.to_str().ok())
}

#[tokio::test]
async fn each_call_has_the_headers_of_the_credential_and_nobody_reads_their_values() {
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Done.")).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let headers =
        json!({ "Anthropic-Beta": "files-api-2025-04-14", "x-gateway-key": "secret-of-the-gateway" });
    let body = json!({ "provider": "anthropic", "key": "sk-ant-1", "is_default": true, "headers": headers });
    let made = owner.post("/credentials", body).await.ok();
    assert_eq!(made["headers"], json!(["anthropic-beta", "x-gateway-key"]));
    assert!(!made.to_string().contains("secret-of-the-gateway"), "{made}");
    let agent = json!({ "name": "a", "prompt": "p", "model": "anthropic/claude-sonnet-4-5" });
    owner.post("/agents", agent).await.ok();
    let created = owner.post("/sessions", json!({ "agent": "a", "input": "Hi" })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    owner.settled(&id, 1).await;

    // A new key leaves the headers alone; new headers replace them.
    let path = format!("/credentials/{}", made["id"].as_str().expect("an id"));
    let rotated = owner.patch(&path, json!({ "key": "sk-ant-2" })).await.ok();
    assert_eq!(rotated["headers"], made["headers"]);
    steer(owner, &id, "And now?").await;
    owner.settled(&id, 2).await;
    let rotated =
        owner.patch(&path, json!({ "key": "sk-ant-3", "headers": { "x-team": "blue" } })).await.ok();
    assert_eq!(rotated["headers"], json!(["x-team"]));
    steer(owner, &id, "And now?").await;
    let log = owner.settled(&id, 3).await;
    assert_eq!((ends(&log), fake.refusals()), (vec!["completed"; 3], Vec::new()));
    let requests = fake.requests();
    let sent: Vec<_> = requests
        .iter()
        .map(|request| {
            ["x-api-key", "anthropic-beta", "x-gateway-key", "x-team"].map(|name| header(request, name))
        })
        .collect();
    let (beta, gateway) = (Some("files-api-2025-04-14"), Some("secret-of-the-gateway"));
    assert_eq!(
        sent,
        [
            [Some("sk-ant-1"), beta, gateway, None],
            [Some("sk-ant-2"), beta, gateway, None],
            [Some("sk-ant-3"), None, None, Some("blue")]
        ]
    );
    let audit = owner.get("/audit").await.ok().to_string();
    assert!(audit.contains("x-gateway-key") && !audit.contains("secret-of-the-gateway"), "{audit}");
    scene.close().await;
}

#[tokio::test]
async fn a_header_that_the_service_sets_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    for (more, param) in [
        (json!({ "headers": { "Host": "x" } }), "headers.Host"),
        (json!({ "headers": { "x-api-key": "x" } }), "headers.x-api-key"),
        (json!({ "headers": { "x-team": "a\r\nb: c" } }), "headers.x-team"),
        (json!({ "key_header": "x-team", "headers": { "X-Team": "blue" } }), "headers.X-Team"),
        (json!({ "key_header": "content-length" }), "key_header"),
        (
            json!({ "provider": "git", "base_url": "https://github.com/acme", "headers": { "x-team": "blue" } }),
            "headers",
        ),
    ] {
        let mut body = json!({ "provider": "anthropic", "key": "sk-ant-1234" });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let refused = owner.post("/credentials", body).await.error(400);
        assert_eq!(refused["param"], param, "{refused}");
    }
    scene.close().await;
}
