//! The command line against a running service.

mod actions;
mod credentials;
mod production;
mod triggers;

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::support::service::{Ground, KEY, Service};

fn sojourn(service: &Service, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command.arg("session").args(words).env("SOJOURN_URL", &service.base).env("SOJOURN_API_KEY", KEY);
    command.output().expect("the binary runs")
}

/// Runs any command with this standard input.
fn run(service: &Service, words: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command.args(words).env("SOJOURN_URL", &service.base).env("SOJOURN_API_KEY", KEY);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_watched_from_its_creation_to_its_result() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    service.owner().inline_agent().await;
    let created =
        sojourn(&service, &["create", "--agent", "inline", "--input", "Hello", "--title", "T", "--watch"]);
    assert_eq!(created.status.code(), Some(0), "{}", String::from_utf8_lossy(&created.stderr));
    let seen = text(&created);
    assert!(
        seen.contains("user.message") && seen.contains("turn.completed") && seen.ends_with("done\n"),
        "{seen}"
    );

    let listed = text(&sojourn(&service, &["list"]));
    let session =
        listed.split_whitespace().find(|word| word.starts_with("ses_")).expect("a session").to_owned();
    assert!(listed.contains("idle") && listed.contains("completed"), "{listed}");

    let events = text(&sojourn(&service, &["events", &session, "--type", "turn.*", "--json"]));
    let kinds: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        kinds.iter().map(|event| event["type"].as_str()).collect::<Vec<_>>(),
        [Some("turn.started"), Some("turn.completed")]
    );
    let first = text(&sojourn(&service, &["logs", &session, "--limit", "2", "--json"]));
    let seqs: Vec<Value> = first.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(seqs.iter().map(|event| event["seq"].as_i64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    let shown: Value =
        serde_json::from_str(&text(&sojourn(&service, &["status", &session]))).expect("a session");
    assert_eq!((&shown["id"], &shown["source"]), (&json!(session), &json!("cli")));
    assert_eq!(text(&sojourn(&service, &["result", &session])), "done\n");
    assert_eq!(text(&sojourn(&service, &["archive", &session])), "archived\n");
    sojourn(&service, &["create", "--title", "Second"]);
    let page = sojourn(&service, &["list", "--limit", "1"]);
    assert!(text(&page).contains("Second") && !text(&page).contains(&session), "{page:?}");
    let told = String::from_utf8_lossy(&page.stderr).into_owned();
    let cursor = told.trim().strip_prefix("more sessions: add --cursor ").expect("a cursor").to_owned();
    let next = sojourn(&service, &["list", "--limit", "1", "--cursor", &cursor]);
    assert!(text(&next).contains(&session) && next.stderr.is_empty(), "{next:?}");
    let refused = sojourn(&service, &["send", &session, "more"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("archived and read-only"));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_how_a_watched_turn_ended() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let question = json!([{ "tools": [{ "tool": "ask", "input": { "question": "Which one?" } }] }]);
    let asking = owner.play(question).await;
    assert_eq!(sojourn(&service, &["get", &asking, "--watch"]).status.code(), Some(3));
    let failing = owner.play(json!([{ "fault": { "kind": "unauthorized" } }])).await;
    assert_eq!(sojourn(&service, &["get", &failing, "--watch"]).status.code(), Some(6));
    let waiting = owner.play(json!([{ "delay_ms": 600_000 }])).await;
    owner.follow(&waiting, |event| event["type"] == "turn.started").await;
    assert_eq!(text(&sojourn(&service, &["cancel", &waiting])).trim(), "running");
    assert_eq!(sojourn(&service, &["get", &waiting, "--watch"]).status.code(), Some(5));
    let running = owner.play(json!([{ "delay_ms": 600_000 }])).await;
    owner.follow(&running, |event| event["type"] == "turn.started").await;
    assert_eq!(text(&sojourn(&service, &["stop", &running])), "idle\n", "it is enabled when this is printed");
    assert_eq!(
        text(&sojourn(&service, &["stop", &running])),
        "idle\n",
        "a setting that is correct is not changed"
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_made_changed_and_brought_back() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let create =
        ["agent", "create", "--name", "a", "--prompt-file", "-", "--model", "scripted/noop", "--json"];
    let made = run(&service, &create, "First.\n");
    let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let agent = made["id"].as_str().expect("an id");
    assert_eq!(made["prompt"], "First.\n");
    let changed =
        run(&service, &["agent", "update", agent, "--prompt", "Second.", "--limit-tokens", "900"], "");
    assert_eq!(text(&changed), format!("{agent} revision 2\n"));
    let listed = text(&run(&service, &["agent", "revisions", agent], ""));
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(run(&service, &["agent", "activate", agent, "1"], "").status.success());
    let now: Value =
        serde_json::from_slice(&run(&service, &["agent", "get", agent], "").stdout).expect("JSON");
    assert_eq!((&now["revision"], &now["limits"]["tokens"]), (&json!(1), &json!(900)));
    let session = text(&sojourn(&service, &["create", "--agent", "a"])).trim().to_owned();
    assert!(run(&service, &["agent", "delete", agent], "").status.success());
    let pinned = text(&sojourn(&service, &["agent", &session]));
    let pinned: Value = serde_json::from_str(&pinned).expect("the pinned agent");
    assert_eq!((&pinned["prompt"], &pinned["agent_id"]), (&json!("First.\n"), &json!(agent)));
    let gone = run(&service, &["agent", "get", agent], "");
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("404"), "{gone:?}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_key_comes_by_standard_input_and_is_never_printed() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let made =
        run(&service, &["credential", "create", "--name", "main", "--default"], "sk-secret-of-mine-1234\n");
    let credential = text(&made).trim().to_owned();
    assert!(credential.starts_with("cred_"), "{made:?}");
    let rotated = run(&service, &["credential", "rotate", &credential, "--json"], "sk-secret-of-mine-9876\n");
    let listed = run(&service, &["credential", "list"], "");
    assert!(text(&listed).contains("9876") && text(&listed).contains("true"), "{listed:?}");
    for output in [&made, &rotated, &listed] {
        assert!(!format!("{output:?}").contains("sk-secret"), "{output:?}");
    }
    let empty = run(&service, &["credential", "create"], "\n");
    assert!(String::from_utf8_lossy(&empty.stderr).contains("standard input contains no key"), "{empty:?}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_file_names_the_service_and_the_key() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let file = ground.data_dir.path().join("env");
    fs::write(&file, format!("SOJOURN_URL={}\nSOJOURN_API_KEY={KEY}\n", service.base)).expect("a file");
    let bare = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command.env_remove("SOJOURN_URL").env_remove("SOJOURN_API_KEY").args(["session", "list"]);
        command
    };
    let listed = bare().env("SOJOURN_CONFIG", &file).output().expect("the binary runs");
    assert!(listed.status.success() && text(&listed).starts_with("SESSION"), "{listed:?}");
    let wrong = bare().env("SOJOURN_CONFIG", file.with_extension("gone")).output().expect("the binary runs");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("cannot be read"), "{wrong:?}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_met_and_missing_requirements() {
    let ground = Ground::new().await;
    let doctor = |url: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command.args(["doctor", "--json"]).args(more).env("DATABASE_URL", url);
        command.env("SOJOURN_DATA_DIR", ground.data_dir.path());
        let output = command.output().expect("the binary runs");
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), said)
    };
    let check = |said: &Value, name: &str| {
        let all = said["checks"].as_array().expect("checks");
        all.iter().find(|check| check["check"] == name).cloned().unwrap_or_default()
    };
    let (code, said) = doctor(&ground.database.app_url, &["--role=api"]);
    assert_eq!((code, &said["ok"]), (Some(0), &json!(true)), "{said}");
    assert_eq!(check(&said, "clock")["ok"], true);
    assert_eq!(check(&said, "connections")["ok"], true);
    let (code, said) = doctor(&ground.database.app_url, &["--role=api", "--database-connections=1000"]);
    assert_eq!((code, &check(&said, "connections")["ok"]), (Some(1), &json!(false)), "{said}");
    let (code, said) = doctor("postgres://nobody@127.0.0.1:1/none", &["--sandbox-runtime=no-such-runtime"]);
    assert_eq!((code, &said["ok"]), (Some(1), &json!(false)));
    assert_eq!(check(&said, "database")["ok"], false, "{said}");
    assert_eq!(check(&said, "sandbox runtime")["ok"], false, "{said}");
    assert_eq!(check(&said, "sandboxes")["ok"], false, "{said}");
    // Checks without a need for the runtime are reported all the same.
    for name in ["cgroups", "root", "user ids", "root files", "images", "disk"] {
        assert_ne!(check(&said, name)["said"], Value::Null, "{name}: {said}");
    }
    let images = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(images.path().join("tools")).expect("a directory");
    let registered = format!("--images={}", images.path().display());
    let mirror = "--apt-mirror=http://debian.example/debian";
    let (_, said) = doctor(&ground.database.app_url, &[&registered, mirror]);
    assert_eq!(check(&said, "images")["ok"], true, "{said}");
    assert!(
        check(&said, "images")["said"].as_str().is_some_and(|said| said.ends_with(" has tools")),
        "{said}"
    );
    let debian = "built by mmdebstrap from http://debian.example/debian";
    assert_eq!(check(&said, "image debian")["said"], debian, "{said}");
    std::fs::write(images.path().join("notes.txt"), "").expect("a file");
    let (code, said) = doctor(&ground.database.app_url, &[&registered]);
    assert_eq!((code, &check(&said, "images")["ok"]), (Some(1), &json!(false)), "{said}");
    std::fs::remove_file(images.path().join("notes.txt")).expect("a file");
    std::fs::write(images.path().join("tagged.ref"), "registry.example/tools:1.0\n").expect("a file");
    let (code, said) = doctor(&ground.database.app_url, &[&registered]);
    assert_eq!(code, Some(1), "{said}");
    let images = check(&said, "images")["said"].to_string();
    assert!(images.contains("tagged.ref (the reference has no digest"), "{images}");
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(env!("CARGO_BIN_EXE_sojourn"))
            .args(["completions", shell])
            .output()
            .expect("the binary runs");
        assert!(output.status.success() && text(&output).contains("sojourn"), "{shell}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_is_made_changed_and_given_a_secret() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let made = run(
        &service,
        &[
            "environment",
            "create",
            "--name",
            "e",
            "--cpus",
            "1",
            "--allow",
            "api.example.com",
            "--env",
            "CI=true",
        ],
        "",
    );
    let environment = text(&made).trim().to_owned();
    assert!(environment.starts_with("env_"), "{made:?}");
    assert!(run(&service, &["environment", "update", &environment, "--memory", "1Gi"], "").status.success());
    let secret = ["environment", "set-secret", &environment, "TOKEN", "--host", "api.example.com"];
    let stored = run(&service, &secret, "value-of-the-secret\n");
    assert!(stored.status.success(), "{stored:?}");
    let found: Value =
        serde_json::from_slice(&run(&service, &["environment", "get", &environment], "").stdout)
            .expect("JSON");
    let config = &found["config"];
    assert_eq!(
        (&config["cpus"], &config["memory"], &config["env"]["CI"]),
        (&json!(1.0), &json!("1Gi"), &json!("true"))
    );
    assert_eq!(
        found["secrets"],
        json!([{
            "name": "TOKEN", "hosts": ["api.example.com"], "headers": ["authorization"], "query_parameters": [],
        }])
    );
    let listed = run(&service, &["environment", "list"], "");
    assert!(
        text(&listed).contains("api.example.com") && !format!("{listed:?}{stored:?}").contains("value-of")
    );
    let gone = run(&service, &["environment", "remove-secret", &environment, "OTHER"], "");
    assert!(gone.status.code() == Some(1) && String::from_utf8_lossy(&gone.stderr).contains("no secret"));
    assert!(run(&service, &["environment", "remove-secret", &environment, "TOKEN"], "").status.success());
    assert!(run(&service, &["environment", "delete", &environment], "").status.success());
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_printed_once_and_opens_until_it_is_revoked() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let create = ["key", "create", "--name", "k", "--scope", "sessions:*,keys:read", "--expires-in", "30"];
    let made = run(&service, &create, "");
    let secret = text(&made).trim().to_owned();
    assert!(secret.starts_with("sjk_live_"), "{made:?}");
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    let key = told.split_whitespace().next().expect("an id").to_owned();
    let as_it = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command.args(words).env("SOJOURN_URL", &service.base).env("SOJOURN_API_KEY", &secret);
        command.output().expect("the binary runs")
    };
    let listed = text(&as_it(&["key", "list"]));
    assert!(listed.contains("sessions:*,keys:read") && !listed.contains(&secret), "{listed}");
    assert_eq!(as_it(&["key", "revoke", &key]).status.code(), Some(1), "it has no such scope");
    let rotated = run(&service, &["key", "rotate", &key, "--overlap", "60", "--json"], "");
    let rotated: Value = serde_json::from_slice(&rotated.stdout).expect("JSON");
    assert!(rotated["key"].as_str().is_some_and(|new| new != secret));
    assert!(run(&service, &["key", "revoke", &key], "").status.success());
    let refused = as_it(&["session", "list"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("401"), "{refused:?}");
    let audit = text(&run(&service, &["audit", "--action", "key.*"], ""));
    assert!(["key.created", "key.rotated", "key.revoked"].iter().all(|act| audit.contains(act)), "{audit}");
    let exported = text(&run(&service, &["audit", "export"], ""));
    assert!(exported.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()) && exported.len() > 100);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_received_verified_and_printed_here() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let listen = ["webhook", "listen", "--types", "webhook.test,turn.completed", "--count", "2", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command.args(listen).env("SOJOURN_URL", &service.base).env("SOJOURN_API_KEY", KEY);
    let mut listening =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut told = std::io::BufReader::new(listening.stderr.take().expect("a pipe"));
    let mut first = String::new();
    std::io::BufRead::read_line(&mut told, &mut first).expect("a line");
    assert!(first.starts_with("listening on http://127.0.0.1:"), "{first}");
    let webhooks = owner.get("/webhooks").await.ok();
    let webhook = webhooks["data"][0]["id"].as_str().expect("a webhook").to_owned();
    let tested = run(&service, &["webhook", "test", &webhook], "");
    assert!(text(&tested).starts_with("dlv_"), "{tested:?}");
    let session = owner.play(json!([{ "text": "done" }])).await;
    let ended = tokio::task::spawn_blocking(|| listening.wait_with_output().expect("it ends"));
    let ended = ended.await.expect("the wait does not panic");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let deliveries: Vec<Value> =
        text(&ended).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut types: Vec<_> =
        deliveries.iter().map(|delivery| delivery["type"].as_str().expect("a type")).collect();
    types.sort_unstable();
    assert_eq!(types, ["turn.completed", "webhook.test"]);
    assert!(deliveries.iter().any(|delivery| delivery["sessionId"] == session.as_str()));
    assert_eq!(
        owner.get("/webhooks").await.ok()["data"],
        json!([]),
        "it removed the resources that it had created"
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_with_another_signature_is_rejected_and_reported() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let url = format!("http://127.0.0.1:{port}/");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command.args(["webhook", "listen", "--secret-stdin", "--count", "1", "--port", &port.to_string()]);
    command.env("SOJOURN_URL", &service.base).env("SOJOURN_API_KEY", KEY);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut listening = command.spawn().expect("the binary runs");
    listening.stdin.take().expect("a pipe").write_all(b"whsec_YW5vdGhlciBzZWNyZXQ=\n").expect("it reads");
    let made = run(&service, &["webhook", "create", &url, "--types", "webhook.test"], "");
    assert!(text(&made).starts_with("whsec_"), "{made:?}");
    let webhook = String::from_utf8_lossy(&made.stderr).split(';').next().expect("an id").to_owned();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {}
    assert!(run(&service, &["webhook", "test", &webhook], "").status.success());
    let ended = listening.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.stdout.is_empty() && String::from_utf8_lossy(&ended.stderr).contains("refused"),
        "{ended:?}"
    );
    let delivery = loop {
        let page = run(&service, &["webhook", "deliveries", &webhook, "--status", "failed", "--json"], "");
        let page: Value = serde_json::from_slice(&page.stdout).unwrap_or_else(|_| panic!("{page:?}"));
        if let Some(id) = page["data"][0]["id"].as_str() {
            break id.to_owned();
        }
    };
    let tries = text(&run(&service, &["webhook", "delivery", &webhook, &delivery], ""));
    assert!(tries.contains("401") && tries.contains("webhook.test"), "{tries}");
    assert!(run(&service, &["webhook", "redeliver", &webhook, &delivery], "").status.success());
    assert!(run(&service, &["webhook", "update", &webhook, "--disable"], "").status.success());
    assert!(text(&run(&service, &["webhook", "list"], "")).contains("false"));
    assert!(text(&run(&service, &["webhook", "rotate", &webhook], "")).starts_with("whsec_"));
    assert!(run(&service, &["webhook", "delete", &webhook], "").status.success());
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_exported_imported_and_summarized() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let session = owner.play(json!([{ "text": "done" }])).await;
    owner.settled(&session, 1).await;
    let file = ground.data_dir.path().join("session.ndjson");
    let to = file.to_str().expect("UTF-8");
    assert!(sojourn(&service, &["export", &session, "--output", to]).status.success());
    assert_eq!(text(&sojourn(&service, &["export", &session])), fs::read_to_string(&file).expect("a file"));
    let imported = text(&sojourn(&service, &["import", to]));
    let found = owner.get(&format!("/sessions/{}", imported.trim())).await.ok();
    assert_eq!(found["source"], "import");
    let cut = ground.data_dir.path().join("cut.ndjson");
    let whole = fs::read_to_string(&file).expect("a file");
    fs::write(&cut, &whole[..whole.len() / 2]).expect("a file");
    assert_eq!(sojourn(&service, &["import", cut.to_str().expect("UTF-8")]).status.code(), Some(1));
    assert!(text(&sojourn(&service, &["usage", &session])).contains("(all)"));
    let usage = text(&run(&service, &["usage", "--by", "day,model"], ""));
    assert!(usage.starts_with("DAY") && usage.contains("scripted/inline"), "{usage}");
    let asking =
        owner.play(json!([{ "tools": [{ "tool": "ask", "input": { "question": "Which?" } }] }, {}])).await;
    assert_eq!(sojourn(&service, &["get", &asking, "--watch"]).status.code(), Some(3));
    assert!(sojourn(&service, &["answer", &asking, "this one", "--watch"]).status.success());
    let nothing = sojourn(&service, &["answer", &asking, "again"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("asks no question"), "{nothing:?}");
    assert!(sojourn(&service, &["delete", imported.trim()]).status.success());
    owner.get(&format!("/sessions/{}", imported.trim())).await.error(404);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_list_goes_on_with_every_change() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let first = owner.play(json!([{ "text": "done" }])).await;
    owner.settled(&first, 1).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command.args(["session", "list", "--watch", "--json"]).env("SOJOURN_URL", &service.base);
    let mut watching =
        command.env("SOJOURN_API_KEY", KEY).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let lines = std::io::BufReader::new(watching.stdout.take().expect("a pipe"));
    let mut frames = std::io::BufRead::lines(lines)
        .map(|line| serde_json::from_str::<Value>(&line.expect("a line")).expect("JSON"));
    assert_eq!(frames.next().expect("a frame")["session"]["id"], first.as_str());
    assert_eq!(frames.next().expect("a frame")["type"], "list.current");
    let second = owner.play(json!([{ "text": "done" }])).await;
    let settled = frames.find(|frame| frame["session"]["status"] == "idle").expect("a frame");
    assert_eq!(settled["session"]["id"], second.as_str());
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_used_from_the_command_line() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let session = text(&run(&service, &["session", "create"], "")).trim().to_owned();
    assert!(session.starts_with("ses_"), "{session}");
    let exec = |words: &[&str]| run(&service, &[&["session", "exec", &session], words].concat(), "");
    let ran = exec(&["--env", "A=b c", "echo $A; echo err >&2; exit 3"]);
    assert_eq!((ran.status.code(), text(&ran).as_str()), (Some(3), "b c\n"));
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "err\n");
    assert_eq!(text(&exec(&["printf", "%s|", "a b", "c"])), "a b|c|");
    let ran: Value = serde_json::from_slice(&exec(&["--json", "true"]).stdout).expect("JSON");
    assert_eq!((&ran["state"], &ran["exit_code"]), (&json!("completed"), &json!(0)));

    let here = tempfile::tempdir().expect("a directory");
    let file = here.path().join("data.bin");
    let content: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 251) as u8).collect();
    std::fs::write(&file, &content).expect("a file");
    let there = format!("{session}:deep/");
    assert!(run(&service, &["session", "cp", &file.to_string_lossy(), &there], "").status.success());
    let listed = text(&run(&service, &["session", "ls", &session, "deep"], ""));
    assert!(listed.contains("data.bin") && listed.contains("100000"), "{listed}");
    let back = here.path().join("back");
    let from = format!("{session}:deep/data.bin");
    assert!(run(&service, &["session", "cp", &from, &back.to_string_lossy()], "").status.success());
    assert_eq!(std::fs::read(&back).expect("a file"), content);
    let missing = run(&service, &["session", "cp", &format!("{session}:none"), &back.to_string_lossy()], "");
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(std::fs::read(&back).expect("a file"), content, "existing settings stay");
    assert!(String::from_utf8_lossy(&missing.stderr).contains("404"), "{missing:?}");
    let archive = run(&service, &["session", "tar", &session, "deep"], "").stdout;
    std::fs::write(&back, &archive).expect("a file");
    assert!(archive.len() > content.len(), "{} bytes", archive.len());
    service.stop().await;
}
