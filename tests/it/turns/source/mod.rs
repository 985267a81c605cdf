//! Repositories in a session's sandbox: cloned once, before its first command.

mod large;
mod local;
mod takeover;
mod trigger;

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, of, outputs, run, script, session, steer};
use crate::{
    fake::git::{GitHost, TOKEN},
    support::service::{Caller, Service},
};

/// A service whose sandboxes reach a git host.
async fn scene(host: &GitHost) -> Scene {
    let settings = host.settings();
    Scene::open(&settings.each_ref().map(String::as_str)).await
}

/// A credential for repositories below `base`; returns its id.
async fn credential(owner: &Caller, base: &str, key: &str, is_default: bool) -> String {
    let body = json!({ "provider": "git", "key": key, "base_url": base, "is_default": is_default });
    owner.post("/credentials", body).await.ok()["id"].as_str().expect("an id").to_owned()
}

/// A session that plays `steps` with these sources; `more` is merged into its body.
async fn play(owner: &Caller, steps: Value, sources: Value, more: Value) -> String {
    let agent = owner.inline_agent().await;
    let mut body = json!({ "agent": agent, "input": { "script": steps }, "sources": sources });
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let created = owner.post("/sessions", body).await.ok();
    created["session"]["id"].as_str().expect("an id").to_owned()
}

async fn sources_of(owner: &Caller, id: &str) -> Vec<Value> {
    owner.get(&format!("/sessions/{id}/sources")).await.ok()["data"].as_array().expect("a list").clone()
}

fn done(command: &str) -> Value {
    json!([run(command), { "text": "Done." }])
}

/// Types of the `source.*` events, in order.
fn told(log: &[Value]) -> Vec<&str> {
    log.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("source.")).collect()
}

#[tokio::test]
async fn a_public_repository_is_cloned_before_the_first_command() {
    let host = GitHost::start().await;
    let [main, next, pull] = host.repository("open/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let url = host.url("open/app.git");
    let agent = owner.inline_agent().await;
    let sources = json!([
        { "url": url },
        { "url": url, "name": "next", "ref": "next", "path": "code/next", "depth": 1 },
        { "url": url, "name": "tag", "ref": "refs/tags/v1" },
        { "url": url, "name": "pull", "ref": "refs/pull/7/head", "sha": pull },
    ]);
    let command = "for at in sources/app code/next sources/tag sources/pull; do git -C $at rev-parse HEAD; done; \
        git -C sources/app branch --show-current; git -C sources/app remote get-url origin; \
        git -C code/next log --oneline | wc -l; git -C sources/pull status --porcelain; cat sources/pull/README; \
        ls -A /workspace /workspace/sources";
    let body = json!({ "agent": agent, "input": { "script": done(command) }, "sources": sources });
    let created = owner.post("/sessions", body).await.ok();
    let states: Vec<_> =
        created["sources"].as_array().expect("a list").iter().map(|source| &source["status"]).collect();
    assert_eq!(states, ["pending"; 4]);
    assert_eq!(created["session"]["sources"][1]["path"], "/workspace/code/next");
    let id = created["session"]["id"].as_str().expect("an id");
    let log = owner.settled(id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"], "{log:#?}");
    let said = outputs(&log)[0];
    let expected = format!(
        "{main}\n{next}\n{main}\n{pull}\nmain\n{url}\n1\npull\n/workspace:\ncode\nsources\n\n/workspace/sources:\napp\npull\ntag\n"
    );
    assert_eq!(said, expected);
    assert_eq!(told(&log), ["cloning", "cloned"].repeat(4));
    assert_eq!(of(&log, "source.cloned")[0]["body"]["sha"], json!(main));
    let types: Vec<_> = log.iter().filter_map(|event| event["type"].as_str()).collect();
    let at = |kind: &str| types.iter().position(|one| *one == kind).expect("it is there");
    assert!(at("sandbox.created") < at("source.cloning") && at("source.cloned") < at("exec.completed"));
    let sources = sources_of(owner, id).await;
    assert!(sources.iter().all(|source| source["status"] == "resolved"), "{sources:?}");
    assert_eq!(sources[3]["resolved_sha"], json!(pull));
    assert!(host.authorizations().is_empty());
    // Allowed egress is logged as usual, and is closed after the clones.
    assert!(of(&log, "egress.allowed").iter().all(|event| event["body"]["manner"] == "inspected"));
    let again = format!("git -C sources/app fetch; curl -s {} ; true", host.url("open/app.git/info/refs"));
    let asked = host.asked().len();
    steer(owner, id, &script(done(&format!("unset NO_PROXY no_proxy; {again}")))).await;
    let log = owner.settled(id, 2).await;
    assert_eq!(host.asked().len(), asked, "the agent reaches no more than before: {:?}", outputs(&log));
    assert!(!of(&log, "egress.denied").is_empty());
    assert_eq!(of(&log, "source.cloning").len(), 4, "it is not cloned again");
    scene.close().await;
}

#[tokio::test]
async fn a_token_opens_a_repository_and_never_enters_the_sandbox() {
    let host = GitHost::start().await;
    host.repository("private/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let base = format!("https://localhost:{}/private", host.port);
    let id = credential(owner, &base, TOKEN, false).await;
    // A lifecycle hook that reads `/proc` while the clone runs.
    let spy = "(until [ -e /tmp/stop ]; do cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; sleep 0.01; done \
        | tr '\\0' '\\n' > /tmp/seen) > /dev/null 2>&1 &";
    let coded = {
        use base64::Engine;
        base64::prelude::BASE64_STANDARD.encode(format!("x-access-token:{TOKEN}"))
    };
    let command = format!(
        "touch /tmp/stop; sleep 0.3; cat sources/app/README; grep -c 'x-sojourn-source' /tmp/seen; \
        grep -rlE 'that[-]stays[-]outside|[{}]{}' /workspace /home/agent /tmp /proc/self/environ 2>/dev/null; \
        git -C sources/app config --list --local | grep -ciE 'token|extraheader|x-sojourn'; true",
        &coded[..1],
        &coded[1..],
    );
    let sources = json!([{ "url": host.url("private/app.git"), "credential": id }]);
    let environment = json!({ "environment": { "lifecycle_hooks": { "post_start": spy } } });
    let session = play(owner, done(&command), sources, environment).await;
    let log = owner.settled(&session, 1).await;
    assert_eq!(ends(&log), ["completed"], "{log:#?}");
    let lines: Vec<_> = outputs(&log)[0].lines().collect();
    assert_eq!((lines[0], lines.last().copied(), lines.len()), ("main", Some("0"), 3), "{lines:?}");
    assert!(lines[1].parse::<u64>().expect("a number") > 0, "it saw git at work: {lines:?}");
    assert!(!host.authorizations().is_empty());
    let allowed = of(&log, "egress.allowed");
    assert!(allowed.iter().all(|event| event["body"]["secrets"] == json!([id])), "{allowed:?}");
    let all = serde_json::to_string(&log).expect("text");
    assert!(!all.contains("that-stays-outside") && !all.contains(&coded));
    scene.close().await;
}

#[tokio::test]
async fn a_forbidden_repository_ends_the_turn_at_once() {
    let host = GitHost::start().await;
    host.repository("private/app.git");
    host.repository("open/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let base = format!("https://localhost:{}", host.port);
    let wrong = credential(owner, &base, "not-the-token", false).await;
    let [private, moved, nothing] =
        ["private/app.git", "moved/app.git", "open/nothing.git"].map(|path| host.url(path));
    for sources in [
        json!([{ "url": private }]),
        json!([{ "url": private, "credential": wrong }]),
        json!([{ "url": nothing }]),
        json!([{ "url": moved }]),
    ] {
        let id = play(owner, done("echo never"), sources.clone(), json!({})).await;
        let log = owner.settled(&id, 1).await;
        assert_sound(&log);
        let end = &of(&log, "turn.completed")[0]["body"];
        assert_eq!(end["error"]["code"], "missing_repo_access", "{sources} {end}");
        assert!(of(&log, "error.runtime").is_empty(), "it is not retried");
        assert_eq!(told(&log), ["cloning", "failed"]);
        let shown = session(owner, &id).await;
        assert_eq!(
            (&shown["status"], &shown["exit_status"]),
            (&json!("failed"), &json!("missing_repo_access"))
        );
        let source = &sources_of(owner, &id).await[0];
        assert_eq!((&source["status"], &source["retryable"]), (&json!("auth_required"), &json!(false)));
        assert_eq!(source["error_code"], "source.auth_required");
    }
    // With a valid key in the same credential, the next use clones it.
    let id = play(owner, done("true"), json!([{ "url": private, "credential": wrong }]), json!({})).await;
    owner.settled(&id, 1).await;
    owner.patch(&format!("/credentials/{wrong}"), json!({ "key": TOKEN })).await.ok();
    steer(owner, &id, &script(done("cat sources/app/README"))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log)[1], *outputs(&log).last().expect("one")), ("completed", "main\n"));
    // A deleted credential grants nothing.
    let id = play(
        owner,
        json!([{ "text": "Hello." }]),
        json!([{ "url": private, "credential": wrong }]),
        json!({}),
    )
    .await;
    owner.settled(&id, 1).await;
    owner.delete(&format!("/credentials/{wrong}")).await;
    steer(owner, &id, &script(done("true"))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(of(&log, "turn.completed")[1]["body"]["error"]["code"], "missing_repo_access");
    scene.close().await;
}

#[tokio::test]
async fn a_missing_repository_is_reported_and_an_unavailable_host_is_retried() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let url = host.url("open/app.git");
    for (source, code) in [
        (json!({ "url": url, "ref": "nothing" }), "source.ref_not_found"),
        (json!({ "url": url, "ref": "refs/pull/8/head" }), "source.ref_not_found"),
        (json!({ "url": url, "sha": "0123456789".repeat(4) }), "source.sha_mismatch"),
    ] {
        let id = play(owner, done("echo never"), json!([source]), json!({})).await;
        let log = owner.settled(&id, 1).await;
        let end = &of(&log, "turn.completed")[0]["body"];
        assert_eq!(end["error"]["code"], "source_failed", "{end}");
        assert_eq!(of(&log, "source.failed")[0]["body"]["code"], code, "{log:#?}");
        assert_eq!(session(owner, &id).await["exit_status"], "error");
    }
    let taken = json!({ "environment": { "lifecycle_hooks": { "post_start": "mkdir -p sources/app; touch sources/app/x" } } });
    let id = play(owner, done("echo never"), json!([{ "url": url }]), taken).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(of(&log, "source.failed")[0]["body"]["code"], "source.path_taken");

    host.fail(1);
    let id = play(owner, done("cat sources/app/README"), json!([{ "url": url }]), json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), outputs(&log)), (vec!["completed"], vec!["main\n"]));
    let retried = of(&log, "error.runtime");
    assert_eq!((retried.len(), &retried[0]["body"]["code"]), (1, &json!("sandbox_unavailable")));
    assert_eq!(told(&log), ["cloning", "failed", "cloning", "cloned"]);
    assert_eq!(of(&log, "source.failed")[0]["body"]["retryable"], true);
    scene.close().await;
}

#[tokio::test]
async fn the_post_clone_hook_runs_once_and_its_failure_ends_the_turn() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let sources = json!([{ "url": host.url("open/app.git") }]);
    let hooks = json!({ "post_start": "ls sources 2>/dev/null | wc -l > before", "post_clone": "cat sources/app/README >> after" });
    let environment = json!({ "environment": { "sources": sources, "lifecycle_hooks": hooks } });
    let id = play(owner, done("cat before after"), json!([]), environment).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log), ["0\nmain\n"]);
    assert_eq!(told(&log), ["cloning", "cloned", "prepared"]);
    steer(owner, &id, &script(done("cat after"))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log)[1], "main\n");

    let broken =
        json!({ "environment": { "lifecycle_hooks": { "post_clone": "echo the reason >&2; exit 4" } } });
    let id = play(owner, done("echo never"), sources.clone(), broken.clone()).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let end = &of(&log, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "lifecycle_hook_failed");
    let message = end["error"]["message"].as_str().expect("words");
    assert!(message.contains("post_clone ended with 4") && message.contains("the reason"), "{message}");
    assert!(of(&log, "error.runtime").is_empty());
    // Without sources there is no `post_clone` to run.
    let id = play(owner, done("echo ran"), json!([]), broken).await;
    assert_eq!(outputs(&owner.settled(&id, 1).await), ["ran\n"]);
    scene.close().await;
}

#[tokio::test]
async fn sources_come_from_environment_agent_and_session_and_the_last_name_counts() {
    let host = GitHost::start().await;
    let [main, next, _] = host.repository("open/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let url = host.url("open/app.git");
    let environment = json!({ "name": "e", "config": { "sources": [{ "url": url, "name": "a" }, { "url": url, "name": "b" }] } });
    owner.post("/environments", environment).await.ok();
    let agent = json!({ "name": "with sources", "prompt": "", "model": "scripted/inline",
        "sources": [{ "url": url, "name": "b", "ref": "next" }] });
    let agent = owner.post("/agents", agent.clone()).await.ok();
    assert_eq!(agent["sources"][0]["ref"], "next");
    let body = json!({ "agent": "with sources", "environment": "e", "sources": [{ "url": url, "name": "c" }],
        "input": { "script": done("for at in a b c; do git -C sources/$at rev-parse HEAD; done") } });
    let id = owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    // A later source of the agent does not apply to this session.
    owner
        .patch(&format!("/agents/{}", agent["id"].as_str().expect("an id")), json!({ "sources": [] }))
        .await
        .ok();
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log), [format!("{main}\n{next}\n{main}\n")]);
    scene.close().await;
}

#[tokio::test]
async fn a_credential_goes_to_its_own_repositories_and_is_its_own_orgs() {
    let host = GitHost::start().await;
    host.repository("private/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let key = scene.ground.organization("another").await;
    let stranger = scene.service.caller(&key);
    let base = format!("https://localhost:{}/private", host.port);
    let own = credential(owner, &base, TOKEN, true).await;
    let url = host.url("private/app.git");
    let asks = async |caller: &Caller, source: Value| {
        let refused = caller.post("/sessions", json!({ "sources": [source] })).await.error(400);
        assert_eq!(refused["param"], "sources", "{refused}");
        refused["message"].as_str().expect("words").to_owned()
    };
    assert!(asks(&stranger, json!({ "url": url, "credential": own })).await.contains("no such credential"));
    let elsewhere = json!({ "url": "https://elsewhere.example/private/app", "credential": own });
    assert!(asks(owner, elsewhere.clone()).await.contains("another repository"));
    for path in ["/agents", "/environments"] {
        let body = match path {
            "/agents" => {
                json!({ "name": "x", "prompt": "", "model": "scripted/noop", "sources": [elsewhere] })
            }
            _ => json!({ "name": "x", "config": { "sources": [elsewhere] } }),
        };
        assert_eq!(owner.post(path, body).await.error(400)["param"], "sources");
    }
    let model = json!({ "provider": "anthropic", "key": "sk-ant-something" });
    let model = owner.post("/credentials", model).await.ok()["id"].clone();
    assert!(asks(owner, json!({ "url": url, "credential": model })).await.contains("provider `git`"));
    // The default credential is used where it matches, and is of no use to models.
    let id = play(owner, done("cat sources/app/README"), json!([{ "url": url }]), json!({})).await;
    assert_eq!(outputs(&owner.settled(&id, 1).await), ["main\n"]);
    assert_eq!(session(owner, &id).await["sources"][0]["credential_id"], json!(own));
    let other = json!({ "sources": [{ "url": "https://elsewhere.example/a/b" }] });
    let other = owner.post("/sessions", other).await.ok();
    assert_eq!(other["session"]["sources"][0].get("credential_id"), None);
    let agent = json!({ "name": "git", "prompt": "", "model": "git/app", "credential": own });
    assert_eq!(owner.post("/agents", agent).await.error(400)["param"], "model");
    for (body, param) in [
        (json!({ "provider": "git", "key": TOKEN }), "base_url"),
        (json!({ "provider": "git", "key": TOKEN, "base_url": "http://localhost" }), "base_url"),
        (json!({ "provider": "git", "key": TOKEN, "base_url": "https://user@localhost" }), "base_url"),
        (json!({ "provider": "git", "key": "short", "base_url": base }), "key"),
    ] {
        assert_eq!(owner.post("/credentials", body).await.error(400)["param"], param);
    }
    assert_eq!(stranger.get(&format!("/sessions/{id}/sources")).await.status, 404);
    scene.close().await;
}

#[tokio::test]
async fn commands_of_callers_find_the_sources_too() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let made = async |path: &str| {
        let body = json!({ "sources": [{ "url": host.url(path) }] });
        owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
    };
    let id = made("open/app.git").await;
    let exec = json!({ "command": "cat sources/app/README" });
    assert_eq!(owner.post(&format!("/sessions/{id}/exec"), exec.clone()).await.ok()["stdout"], "main\n");
    let id = made("private/app.git").await;
    let failed = owner.post(&format!("/sessions/{id}/exec"), exec).await.ok();
    assert_eq!(failed["error"]["code"], "missing_repo_access", "{failed}");
    let read = owner.get(&format!("/sessions/{id}/files?path=x")).await.error(409);
    assert_eq!(read["code"], "missing_repo_access");
    scene.close().await;
}

/// A worker beside an API of the same ground.
async fn worker(scene: &Scene, host: &GitHost, more: &[&str]) -> Service {
    let settings = host.settings();
    let own = [&["--role=worker"], more, &settings.each_ref().map(String::as_str)].concat();
    scene.ground.serve(&own).await
}
