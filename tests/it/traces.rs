//! Spans as a collector receives them: one turn by the OpenTelemetry conventions for generative AI, a request
//! as a part of its caller's trace, and no contents of messages.

use std::{
    fmt::Write,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value,
    trace::v1::{Span, span::SpanKind},
};
use prost::Message;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    fake::{
        openai::OpenAi,
        provider::{Fake, Step},
        receiver::Receiver,
    },
    support::service::{Ground, KEY},
};

/// Trace id and span id of the caller.
const CALLER: (&str, &str) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");

/// Text around the spans in docs/trace.md, which `SOJOURN_TRACE_TRANSCRIPT=docs/trace.md` regenerates.
const HEAD: &str = "# Example trace\n\n\
    The spans of one turn, decoded as an OTLP collector received them: the turn, and below it two model calls with their tokens\n\
    and a tool call. The model's provider received the `traceparent` of its `chat` span. The test `tests/it/traces.rs` generates this\n\
    page and checks that no prompt, answer, argument or key is in the exported data.\n\n";
const MIDDLE: &str = "The request that created the session is part of its caller's trace:\n\n";

/// A process that exports its spans; killed when the test ends early.
struct Exporting(Child);

impl Drop for Exporting {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn serve(ground: &Ground, collector: &str, provider: &str) -> (Exporting, String) {
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
        .env("SOJOURN_OPENAI_BASE_URL", format!("{provider}/v1"))
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("UTF-8"));
    let address = lines.find_map(|line| line.strip_prefix("sojourn serves ").map(str::to_owned));
    // Its log output must be read.
    std::thread::spawn(move || lines.for_each(drop));
    (Exporting(child), address.expect("it logs its address"))
}

async fn send(client: &Client, url: String, body: Option<Value>) -> Value {
    let request = match &body {
        Some(body) => client.post(url).json(body),
        None => client.get(url),
    };
    let request = request.bearer_auth(KEY).header("traceparent", format!("00-{}-{}-01", CALLER.0, CALLER.1));
    request.send().await.expect("an answer").json().await.expect("JSON")
}

/// Decoded spans that a collector received, and the raw bytes.
async fn received(collector: &mut Receiver) -> (Vec<Span>, Vec<u8>) {
    let (mut spans, mut raw) = (Vec::new(), Vec::new());
    // All of them were answered before the process ended.
    while let Ok(request) = timeout(Duration::from_millis(200), collector.next()).await {
        assert_eq!(
            (request.path.as_str(), request.header("content-type")),
            ("/v1/traces", "application/x-protobuf")
        );
        let sent = ExportTraceServiceRequest::decode(request.body.clone()).expect("the collector's protocol");
        spans.extend(sent.resource_spans.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans));
        raw.extend_from_slice(&request.body);
    }
    (spans, raw)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute as text; empty when it is absent.
fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

fn all<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    let mut found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    found.sort_by_key(|span| span.start_time_unix_nano);
    found
}

/// Spans of a turn as a tree, in the format of docs/trace.md.
fn drawn(spans: &[Span], of: &Span) -> String {
    fn draw(spans: &[Span], parent: &Span, depth: usize, text: &mut String) {
        let ms = (parent.end_time_unix_nano - parent.start_time_unix_nano) as f64 / 1e6;
        let (pad, name) = ("  ".repeat(depth), &parent.name);
        writeln!(text, "{pad}{name}  {ms:.1} ms").expect("a string takes it");
        let above = Some(hex(&parent.parent_span_id)).filter(|id| !id.is_empty());
        let above = above.unwrap_or_else(|| "none".to_owned());
        writeln!(text, "{pad}  span {} parent {above}", hex(&parent.span_id)).expect("a string takes it");
        for attribute in parent
            .attributes
            .iter()
            .filter(|attribute| attribute.key.starts_with("gen_ai.") || attribute.key.starts_with("http."))
        {
            writeln!(text, "{pad}  {} = {}", attribute.key, self::attribute(parent, &attribute.key))
                .expect("a string takes it");
        }
        let mut children: Vec<_> =
            spans.iter().filter(|span| span.parent_span_id == parent.span_id).collect();
        children.sort_by_key(|span| span.start_time_unix_nano);
        children.into_iter().for_each(|child| draw(spans, child, depth + 1, text));
    }
    let mut text = format!("trace {}\n", hex(&of.trace_id));
    draw(spans, of, 0, &mut text);
    text
}

/// docs/trace.md: a turn, and a request that continues its caller's trace.
fn page(spans: &[Span], turn: &Span, request: &Span) -> String {
    let (turn, request) = (drawn(spans, turn), drawn(spans, request));
    let caller = format!("caller: trace {} span {}", CALLER.0, CALLER.1);
    format!("{HEAD}```text\n{turn}```\n\n{MIDDLE}```text\n{caller}\n\n{request}```\n")
}

/// Asserts that a span is a part of a turn, in the trace and in time.
fn below(turn: &Span, span: &Span) {
    assert_eq!((&span.trace_id, &span.parent_span_id), (&turn.trace_id, &turn.span_id), "{}", span.name);
    assert!(turn.start_time_unix_nano <= span.start_time_unix_nano);
    assert!(span.end_time_unix_nano <= turn.end_time_unix_nano, "{} ends within its turn", span.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_and_its_request_reach_the_collector_without_what_was_said() {
    let ground = Ground::new().await;
    let mut collector = Receiver::start([]).await;
    let steps = [
        Step::text("words of the agent").and_tool("glob", json!({ "pattern": "a value" })),
        Step::default().and_tool("ask", json!({ "question": "the question" })),
    ];
    let provider = Fake::script(OpenAi, steps).await;
    let endpoint = format!("http://127.0.0.1:{}", collector.port());
    let (mut process, address) = serve(&ground, &endpoint, &provider.base_url);
    sojourn::net::install_tls();
    let client = Client::new();
    let agent = json!({ "name": "tracer", "prompt": "a prompt of the organization", "model": "openai/gpt-5",
                        "key": "sk-key-of-the-organization" });
    send(&client, format!("{address}/v3/agents"), Some(agent)).await;
    let session = json!({ "agent": "tracer", "input": "an input of the organization" });
    let created = send(&client, format!("{address}/v3/sessions"), Some(session)).await;
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    while send(&client, format!("{address}/v3/sessions/{id}"), None).await["status"] != "awaiting_input" {
        tokio::task::yield_now().await;
    }
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let ended = tokio::task::spawn_blocking(move || process.0.wait()).await.expect("no panic");
    assert!(ended.expect("it ends").success());
    let (spans, raw) = received(&mut collector).await;

    // A turn is a trace of its own, and all its work is below it.
    let turn = *all(&spans, "invoke_agent tracer").first().expect("the turn");
    assert_eq!(turn.parent_span_id, [0_u8; 0]);
    assert_eq!(attribute(turn, "gen_ai.conversation.id"), id);
    assert_eq!(attribute(turn, "gen_ai.operation.name"), "invoke_agent");
    let chats = all(&spans, "chat gpt-5");
    let tools = all(&spans, "execute_tool glob");
    // A question ends the turn: no tool is executed for it.
    assert_eq!(
        (chats.len(), tools.len()),
        (2, 1),
        "{:?}",
        spans.iter().map(|span| &span.name).collect::<Vec<_>>()
    );
    chats.iter().chain(&tools).for_each(|span| below(turn, span));
    for chat in &chats {
        assert_eq!(chat.kind, SpanKind::Client as i32);
        assert_eq!(attribute(chat, "gen_ai.provider.name"), "openai");
        let used = ["input", "output"].map(|kind| attribute(chat, &format!("gen_ai.usage.{kind}_tokens")));
        assert_eq!(used, ["10", "5"]);
    }
    assert_eq!(attribute(tools[0], "gen_ai.tool.name"), "glob");

    // Outgoing: a provider gets the id of the calling span. Incoming: a request is a part of its caller's
    // trace.
    for (request, chat) in provider.requests().iter().zip(&chats) {
        let expected = format!("00-{}-{}-01", hex(&chat.trace_id), hex(&chat.span_id));
        assert_eq!(request.headers["traceparent"], expected.as_str());
    }
    let posts = all(&spans, "POST /v3/sessions");
    assert_eq!(posts.len(), 1);
    assert_eq!((hex(&posts[0].trace_id), hex(&posts[0].parent_span_id)), (CALLER.0.into(), CALLER.1.into()));

    let has = |word: &str| raw.windows(word.len()).any(|window| window == word.as_bytes());
    let said =
        ["a prompt of", "an input of", "words of the agent", "a value", "the question", "sk-key-of", KEY];
    for word in said {
        assert!(!has(word), "{word} was exported with the spans");
    }
    if let Ok(path) = std::env::var("SOJOURN_TRACE_TRANSCRIPT") {
        std::fs::write(path, page(&spans, turn, posts[0])).expect("the page can be written");
    }
}
