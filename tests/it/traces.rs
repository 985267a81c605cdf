//! Spans as a collector receives them: one turn by the conventions for generative AI,
//! a request as a part of its caller's trace, and nothing of what was said.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    fake::receiver::Receiver,
    support::service::{Ground, KEY},
};

const TRACE: [u8; 16] =
    [0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36];

/// A process that exports its spans; killed when the test ends early.
struct Exporting(Child);

impl Drop for Exporting {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn serve(ground: &Ground, collector: &str) -> (Exporting, String) {
    let urls = ground.urls();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command
        .arg("serve")
        .env("DATABASE_URL", &urls.app)
        .env("SOJOURN_OWNER_DATABASE_URL", &urls.owner)
        .env("SOJOURN_SYSTEM_DATABASE_URL", &urls.system)
        .env("SOJOURN_DATA_DIR", ground.data_dir.path())
        .env("SOJOURN_LISTEN", "127.0.0.1:0")
        .env("SOJOURN_BOOTSTRAP_API_KEY", KEY)
        .env("SOJOURN_FIRST_SESSION", "off")
        .env("SOJOURN_MASTER_KEY", "a passphrase that is long enough for tests")
        .env("SOJOURN_OTLP_ENDPOINT", collector)
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("UTF-8"));
    let address = lines.find_map(|line| line.strip_prefix("sojourn serves ").map(str::to_owned));
    // What it logs has to go somewhere.
    std::thread::spawn(move || lines.for_each(drop));
    (Exporting(child), address.expect("it says where it listens"))
}

async fn send(client: &Client, url: String, body: Option<Value>) -> Value {
    let trace: String = TRACE.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = match &body {
        Some(body) => client.post(url).json(body),
        None => client.get(url),
    };
    let request = request.bearer_auth(KEY).header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    request.send().await.expect("an answer").json().await.expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_and_its_request_reach_the_collector_without_what_was_said() {
    let ground = Ground::new().await;
    let mut collector = Receiver::start([]).await;
    let (mut process, address) = serve(&ground, &format!("http://127.0.0.1:{}", collector.port()));
    sojourn::net::install_tls();
    let client = Client::new();
    let agent = json!({ "name": "tracer", "prompt": "a prompt of the tenant", "model": "scripted/inline" });
    send(&client, format!("{address}/v3/agents"), Some(agent)).await;
    let script = json!([
        { "text": "words of the agent", "tools": [{ "tool": "glob", "input": { "pattern": "a value" } }] },
        { "tools": [{ "tool": "ask", "input": { "question": "the question" } }] },
    ]);
    let session = json!({ "agent": "tracer", "input": { "script": script } });
    let created = send(&client, format!("{address}/v3/sessions"), Some(session)).await;
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    while send(&client, format!("{address}/v3/sessions/{id}"), None).await["status"] != "awaiting_input" {
        tokio::task::yield_now().await;
    }
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let ended = tokio::task::spawn_blocking(move || process.0.wait()).await.expect("no panic");
    assert!(ended.expect("it ends").success());

    let mut sent: Vec<u8> = Vec::new();
    // All of them were answered before the process ended.
    while let Ok(request) = timeout(Duration::from_millis(200), collector.next()).await {
        assert_eq!(request.path, "/v1/traces");
        sent.extend_from_slice(&request.body);
    }
    let has = |bytes: &[u8]| sent.windows(bytes.len()).any(|window| window == bytes);
    for word in [
        "invoke_agent tracer",
        "chat inline",
        "execute_tool glob",
        "gen_ai.usage.output_tokens",
        "gen_ai.conversation.id",
        &id,
    ] {
        assert!(has(word.as_bytes()), "{word}");
    }
    assert!(has(&TRACE), "the request is a part of its caller's trace");
    for word in ["a prompt of the tenant", "words of the agent", "a value", "the question", KEY] {
        assert!(!has(word.as_bytes()), "{word} left with the spans");
    }
}
