//! Repositories on the operator's disk: which paths are allowed, and how they reach the sandbox.

use std::{fs, os::unix::fs::symlink};

use serde_json::json;

use super::{Scene, assert_sound, done, of, outputs, play, told};
use crate::fake::git::make_repository;

#[tokio::test]
async fn a_local_repository_is_copied_and_not_mounted() {
    let ground = tempfile::tempdir().expect("a directory");
    let at = |name: &str| ground.path().join(name);
    let [main, _, pull] = make_repository(&at("allowed/app.git"));
    let setting = format!("--local-sources={}", at("allowed").display());
    let scene = Scene::open(&[&setting]).await;
    let owner = &scene.owner;
    let url = format!("file://{}", at("allowed/app.git").display());
    let sources = json!([{ "url": url }, { "url": url, "name": "pull", "ref": "refs/pull/7/head" }]);
    let command = format!(
        "git -C sources/app rev-parse HEAD; git -C sources/pull rev-parse HEAD; cat sources/app/README; \
        git -C sources/app branch -r | wc -l; ls -A /workspace; ls {} 2>/dev/null; grep -c {} /proc/mounts; true",
        ground.path().display(),
        ground.path().display(),
    );
    let id = play(owner, done(&command), sources, json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log), [format!("{main}\n{pull}\nmain\n3\nsources\n0\n")], "{log:#?}");
    assert_eq!(told(&log), ["cloning", "cloned"].repeat(2));
    assert!(of(&log, "source.cloned")[0]["body"]["bytes"].as_u64().expect("a number") > 0);
    assert!(of(&log, "egress.allowed").is_empty());
    scene.close().await;
}

#[tokio::test]
async fn only_repositories_below_a_listed_directory_are_copied() {
    let ground = tempfile::tempdir().expect("a directory");
    let at = |name: &str| ground.path().join(name);
    make_repository(&at("outside/app.git"));
    make_repository(&at("allowed/app.git"));
    symlink(at("outside/app.git"), at("allowed/link.git")).expect("a link");
    fs::create_dir(at("allowed/plain")).expect("a directory");
    fs::create_dir(at("allowed/file")).expect("a directory");
    fs::write(at("allowed/file/.git"), format!("gitdir: {}\n", at("outside/app.git").display()))
        .expect("a file");
    make_repository(&at("allowed/borrows.git"));
    let alternates = at("allowed/borrows.git/objects/info/alternates");
    fs::write(alternates, format!("{}\n", at("outside/app.git/objects").display())).expect("a file");
    let setting = format!("--local-sources={}", at("allowed").display());
    let scene = Scene::open(&[&setting]).await;
    let owner = &scene.owner;
    let url = |path: &str| format!("file://{}", at(path).display());
    for path in ["outside/app.git", "allowed/link.git", "allowed/../outside/app.git", "allowed/nothing"] {
        for (call, body, param) in [
            ("/sessions", json!({ "sources": [{ "url": url(path) }] }), "sources[0].url"),
            (
                "/sessions",
                json!({ "environment": { "sources": [{ "url": url(path) }] } }),
                "environment.sources[0].url",
            ),
            (
                "/environments",
                json!({ "name": "x", "config": { "sources": [{ "url": url(path) }] } }),
                "config.sources[0].url",
            ),
            (
                "/agents",
                json!({ "name": "x", "prompt": "", "model": "scripted/noop", "sources": [{ "url": url(path) }] }),
                "sources[0].url",
            ),
        ] {
            let refused = owner.post(call, body).await.error(400);
            assert_eq!((&refused["code"], &refused["param"]), (&json!("source_not_allowed"), &json!(param)));
        }
    }
    // Rejected when read: parts of the repository are outside the allowed directory.
    for path in ["allowed/plain", "allowed/file", "allowed/borrows.git"] {
        let id = play(owner, done("echo never"), json!([{ "url": url(path) }]), json!({})).await;
        let log = owner.settled(&id, 1).await;
        assert_eq!(of(&log, "turn.completed")[0]["body"]["error"]["code"], "source_failed", "{path}");
        assert_eq!(of(&log, "source.failed")[0]["body"]["code"], "source.not_allowed", "{path}: {log:#?}");
    }
    // The path was replaced after the session was created.
    let id = owner.post("/sessions", json!({ "sources": [{ "url": url("allowed/app.git") }] })).await.ok();
    let id = id["session"]["id"].as_str().expect("an id").to_owned();
    fs::rename(at("allowed/app.git"), at("allowed/before.git")).expect("a move");
    symlink(at("outside/app.git"), at("allowed/app.git")).expect("a link");
    let failed = owner.post(&format!("/sessions/{id}/exec"), json!({ "command": "true" })).await.ok();
    assert_eq!(failed["error"]["code"], "source_failed", "{failed}");
    scene.close().await;
    // Without the setting no local path is allowed.
    let scene = Scene::open(&[]).await;
    let refused =
        scene.owner.post("/sessions", json!({ "sources": [{ "url": url("allowed/before.git") }] })).await;
    assert_eq!(refused.error(400)["code"], "source_not_allowed");
    scene.close().await;
}
