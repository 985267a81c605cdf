//! Effects of an environment on the commands of a turn: size, variables, egress.

use serde_json::json;

use super::{Scene, assert_sound, bash, of, outputs, run};
use crate::egress::Host;

/// Prints the response of a URL to the agent's token.
fn ask(url: &str) -> serde_json::Value {
    run(&format!(
        "env -u NO_PROXY -u no_proxy python3 - <<'END'
import os, urllib.request, urllib.error
headers = {{'Authorization': 'Bearer ' + os.environ.get('TOKEN', '')}}
try:
    print(urllib.request.urlopen(urllib.request.Request('{url}', headers=headers), timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except Exception as error:
    print(error)
END"
    ))
}

#[tokio::test]
async fn a_turn_reaches_what_its_environment_allows_and_its_log_says_so() {
    let host = Host::start(false, "HTTP/1.1 200 OK\r\n").await;
    let scene = Scene::open(&["--allow-private-egress=on"]).await;
    let owner = &scene.owner;
    let url = format!("http://localhost:{}", host.port);
    let fetch = |url: String| json!({ "tool": "web_fetch", "input": { "url": url } });
    let script = json!([
        run("echo $MODE; ulimit -u"),
        ask(&format!("{url}/one")),
        ask("http://elsewhere.example/"),
        { "tools": [fetch(format!("{url}/two")), fetch("https://elsewhere.example/".to_owned())] },
        { "tools": [bash("for i in $(seq 20); do curl -s http://elsewhere.example/ >/dev/null; done; true")] },
        { "text": "Done." },
    ]);
    let environment = json!({
        "pids": 77, "env": { "MODE": "of the environment" },
        "network": { "allow": [{ "host": "localhost", "port": host.port }] },
    });
    let id = owner.play_in(script, environment).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let outputs = outputs(&log);
    assert!(outputs[0].contains("of the environment") && outputs[0].contains("77"), "{}", outputs[0]);
    assert!(outputs[1].contains("GET /one HTTP/1.1"), "{}", outputs[1]);
    assert!(outputs[2].contains("403 egress: "), "{}", outputs[2]);
    assert!(outputs[3].contains("GET /two HTTP/1.1"), "{}", outputs[3]);
    assert!(
        outputs[4].contains("Nothing was fetched") && outputs[4].contains("elsewhere.example"),
        "{}",
        outputs[4]
    );
    let allowed = of(&log, "egress.allowed");
    // The first request is logged before any byte is sent; further ones are counted.
    let counts: Vec<_> = allowed.iter().map(|event| event["body"]["count"].as_u64()).collect();
    assert_eq!(counts, [Some(1), Some(1)], "{allowed:?}");
    assert_eq!(
        (&allowed[0]["body"]["host"], &allowed[0]["body"]["manner"]),
        (&json!("localhost"), &json!("plain"))
    );
    let denied = of(&log, "egress.denied");
    assert!((2..8).contains(&denied.len()), "a loop is reported as a count: {denied:?}");
    assert!(denied.iter().all(|event| event["body"]["reason"] == "host_not_allowed"));
    assert_eq!(log.last().expect("an end")["type"], "turn.completed", "no event follows the end");
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_without_an_environment_reaches_nothing() {
    let host = Host::start(false, "HTTP/1.1 200 OK\r\n").await;
    let scene = Scene::open(&["--allow-private-egress=on"]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([ask(&format!("http://localhost:{}/", host.port)), { "text": "Done." }])).await;
    let log = owner.settled(&id, 1).await;
    assert!(outputs(&log)[0].contains("403 egress: "), "{:?}", outputs(&log));
    assert_eq!(of(&log, "egress.denied").len(), 1);
    assert!(host.heads().is_empty());
    scene.close().await;
}

#[tokio::test]
async fn a_secret_of_a_deleted_environment_ends_the_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let named = json!({
        "name": "with a secret", "config": { "network": { "allow": [{ "host": "api.example" }] } },
        "secrets": [{ "name": "TOKEN", "value": "a-very-secret-value", "hosts": ["api.example"] }],
    });
    let environment = owner.post("/environments", named).await.ok()["id"].as_str().expect("an id").to_owned();
    let id = owner.play_in(json!([run("echo $TOKEN"), { "text": "Done." }]), json!(environment)).await;
    let log = owner.settled(&id, 1).await;
    assert!(outputs(&log)[0].contains("sjph_"), "{:?}", outputs(&log));
    owner.delete(&format!("/environments/{environment}")).await;
    super::steer(owner, &id, &super::script(json!([{ "text": "Again." }]))).await;
    let log = owner.settled(&id, 2).await;
    let end = &of(&log, "turn.completed")[1]["body"];
    assert_eq!(end["error"]["code"], "environment_deleted", "{end}");
    scene.close().await;
}

#[tokio::test]
async fn a_lifecycle_hook_runs_once_and_its_failure_ends_the_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let ready = json!({ "lifecycle_hooks": { "post_start": "echo ready >> marks" } });
    let id = owner.play_in(json!([run("cat marks"), run("cat marks"), { "text": "Done." }]), ready).await;
    owner.settled(&id, 1).await;
    super::steer(owner, &id, &super::script(json!([run("cat marks"), { "text": "Again." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    for output in outputs(&log) {
        assert_eq!(output.matches("ready").count(), 1, "{output}");
    }
    let broken = json!({ "lifecycle_hooks": { "post_start": "echo the reason >&2; exit 3" } });
    let id = owner.play_in(json!([run("echo never"), { "text": "Never." }]), broken).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let end = &of(&log, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "lifecycle_hook_failed");
    let message = end["error"]["message"].as_str().expect("words");
    assert!(message.contains("ended with 3") && message.contains("the reason"), "{message}");
    assert!(of(&log, "error.runtime").is_empty(), "it is not retried");
    assert_eq!(super::session(owner, &id).await["status"], "failed");
    scene.close().await;
}
