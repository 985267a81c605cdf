//! A pull request of a GitHub trigger: its commits become a source of the session.

use reqwest::Method;
use serde_json::json;
use sojourn::base::{seal::mac, text::hex};

use super::{credential, scene, sources_of, told};
use crate::{
    fake::git::{GitHost, TOKEN},
    support::service::send,
    turns::{assert_sound, log, of, session},
};

#[tokio::test]
async fn a_pull_request_of_a_trigger_is_cloned_with_the_credential_of_its_place() {
    let host = GitHost::start().await;
    let [.., pull] = host.repository("private/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let base = format!("https://localhost:{}", host.port);
    // One credential for another base, and one whose base contains the repository.
    credential(owner, &format!("{base}/other"), "not-for-this", false).await;
    let own = credential(owner, &format!("{base}/private"), TOKEN, true).await;
    let agent = json!({ "name": "noop", "prompt": "", "model": "scripted/noop" });
    let agent = owner.post("/agents", agent).await.ok()["id"].as_str().expect("an id").to_owned();
    let trigger = json!({ "kind": "github", "react": [{ "event": "pull_request", "actions": ["opened"] }] });
    let trigger = owner.post(&format!("/agents/{agent}/hooks"), trigger).await.ok();

    let opened = json!({
        "action": "opened",
        "pull_request": {
            "number": 7, "title": "New", "body": "words", "html_url": "u", "author_association": "OWNER",
            "head": { "ref": "pull", "sha": pull, "repo": { "full_name": "fork/app" } },
        },
        "repository": { "full_name": "private/app", "clone_url": host.url("private/app.git") },
        "sender": { "login": "octocat" },
    });
    let body = opened.to_string();
    let secret = trigger["secret"].as_str().expect("shown once");
    let request = owner
        .request(Method::POST, &format!("/hooks/{}", trigger["id"].as_str().expect("an id")))
        .header("content-type", "application/json")
        .header("x-github-event", "pull_request")
        .header("x-github-delivery", "1")
        .header("x-hub-signature-256", format!("sha256={}", hex(&mac(secret.as_bytes(), body.as_bytes()))));
    let answer = send(request.body(body)).await.ok();
    let id = answer["session_id"].as_str().expect("an id").to_owned();
    owner.settled(&id, 1).await;

    let shown = session(owner, &id).await;
    let source = &shown["sources"][0];
    assert_eq!((&shown["source"], shown["sources"].as_array().map(Vec::len)), (&json!("react"), Some(1)));
    assert_eq!(source["url"], json!(host.url("private/app.git")));
    assert_eq!((&source["ref"], &source["credential_id"]), (&json!("refs/pull/7/head"), &json!(own)));
    // Cloned before the first command, whether of the agent or of a caller.
    let look = json!({ "command": "git -C sources/app rev-parse HEAD; cat sources/app/README" });
    let request = owner.request(Method::POST, &format!("/sessions/{id}/exec"));
    let looked = send(request.json(&look)).await.ok();
    assert_eq!(looked["stdout"], format!("{pull}\npull\n"), "{looked}");
    let log = log(owner, &id).await;
    assert_sound(&log);
    assert_eq!(told(&log), ["cloning", "cloned"]);
    assert_eq!(of(&log, "source.cloned")[0]["body"]["sha"], json!(pull));
    assert_eq!(sources_of(owner, &id).await[0]["resolved_sha"], json!(pull));
    // The token belongs to that credential, and only the proxy had it.
    let allowed = of(&log, "egress.allowed");
    assert!(!allowed.is_empty() && allowed.iter().all(|event| event["body"]["secrets"] == json!([own])));
    assert!(!host.authorizations().is_empty());
    assert!(!serde_json::to_string(&log).expect("text").contains(TOKEN));
    scene.close().await;
}
