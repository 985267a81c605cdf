//! Postgres outage: 503 with Retry-After, no 500, and full recovery afterwards.

use std::{fs, os::unix::fs::PermissionsExt};

use reqwest::Method;
use serde_json::json;
use sojourn::{base::Origin, store::embedded::Embedded};
use tempfile::TempDir;

use super::{data, id, noop};
use crate::support::service::{Service, send};

/// A database server of this test only; its data directory is removed with it.
struct Home(TempDir);

impl Home {
    async fn start(&self) -> Embedded {
        Embedded::start(self.0.path(), &Origin::system(), &|_| {}).await.expect("the database starts")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // As root the data directory is elsewhere, behind a link.
        if let Ok(home) = self.0.path().join("postgres").canonicalize()
            && !home.starts_with(self.0.path())
        {
            let _gone = fs::remove_dir_all(home);
        }
    }
}

#[tokio::test]
async fn without_its_database_the_service_answers_503_and_recovers_afterwards() {
    let home = Home(TempDir::new().expect("a directory"));
    fs::set_permissions(home.0.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let embedded = home.start().await;
    let data_dir = TempDir::new().expect("a directory");
    let service = Service::on(&embedded.urls(), data_dir.path(), &[]).await;
    let owner = service.owner();
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a", "input": "before" })).await.ok());
    owner.settled(&session, 1).await;
    assert!(embedded.stop().await.expect("it stops"), "nobody else uses it");
    let ready = owner.base.replace("/v3", "/readyz");
    for (method, path, body) in [
        (Method::GET, "/sessions".to_owned(), None),
        (Method::POST, "/sessions".to_owned(), Some(json!({ "agent": "a" }))),
        (Method::GET, format!("/sessions/{session}/events"), None),
        (Method::GET, format!("/sessions/{session}/stream"), None),
        (Method::POST, format!("/sessions/{session}/messages"), Some(json!({ "text": "x" }))),
    ] {
        let mut request = owner.request(method, &path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = send(request).await;
        assert!(answer.headers.contains_key("retry-after"), "{path}");
        assert_eq!(answer.error(503)["type"], "unavailable", "{path}");
    }
    let client = reqwest::Client::new();
    assert_eq!(send(client.get(&ready)).await.status, 503);
    assert_eq!(send(client.get(ready.replace("/readyz", "/healthz"))).await.status, 200, "the process lives");
    let embedded = home.start().await;
    assert_eq!(send(client.get(&ready)).await.status, 200, "lost connections are reopened");
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "after" })).await.ok();
    owner.settled(&session, 2).await;
    let messages = owner.get(&format!("/sessions/{session}/messages")).await.ok();
    let texts: Vec<_> = data(&messages).iter().map(|event| event["body"]["text"].clone()).collect();
    assert_eq!(texts, ["before", "done", "after", "done"]);
    service.stop().await;
    embedded.stop().await.expect("it stops");
}
