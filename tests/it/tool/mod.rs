//! Tools against a sandbox with real commands and files.

mod crash;
mod files;
mod search;

use serde_json::{Value, json};
use sojourn::{
    base::{Origin, limit, text::hex},
    domain::{
        Block, Message, StopReason,
        conversation::{ModelApi, ModelOptions, ModelRequest},
        tool::{MALFORMED_INPUT, Replay, ToolCall, ToolResult, ToolSpec},
    },
    model::{Http, Providers, Settings, trusted_client},
    tool::{self, Call, CallResult, Catalog, Fault, Recovered, SandboxHandle},
};

use crate::fake::sandbox::FakeSandbox;

fn call(id: &str, tool: &str, input: Value) -> ToolCall {
    ToolCall { call_id: id.to_owned(), tool: tool.to_owned(), input }
}

async fn run(handle: &SandboxHandle, tool: &str, input: Value) -> CallResult {
    // Each call of a test has its own id.
    let id = hex(&Origin::system().bytes::<8>());
    checked(&id, tool, input).run(handle).await.expect("a result")
}

fn checked(id: &str, tool: &str, input: Value) -> Call {
    Catalog::builtin().check(&call(id, tool, input)).expect("valid arguments")
}

#[test]
fn the_catalogue_is_fixed_and_fits_both_providers() {
    let all = Catalog::builtin();
    assert_eq!(all.specs().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>(), tool::names());
    let json = |specs: Vec<ToolSpec>| serde_json::to_string(&specs).expect("JSON");
    assert_eq!(json(all.specs()), json(Catalog::builtin().specs()));
    for spec in all.specs() {
        assert!(spec.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{}", spec.name);
        assert_eq!(spec.input_schema["type"], "object", "{}", spec.name);
        assert_eq!(spec.input_schema["additionalProperties"], false, "{}", spec.name);
        for word in ["anyOf", "oneOf", "allOf", "$ref"] {
            assert!(spec.input_schema.get(word).is_none(), "{} has {word}", spec.name);
        }
    }
    let classes: Vec<_> = all.specs().iter().map(|spec| spec.replay).collect();
    use Replay::{Idempotent, ReadOnly, Unsafe};
    assert_eq!(
        classes,
        [
            Unsafe, ReadOnly, Idempotent, Unsafe, ReadOnly, ReadOnly, ReadOnly, ReadOnly, Idempotent,
            // Those for child sessions.
            Idempotent, ReadOnly, ReadOnly, Idempotent, Idempotent
        ]
    );
}

#[test]
fn arguments_that_do_not_fit_are_explained_to_the_model() {
    let all = Catalog::builtin();
    let told = |tool: &str, input: Value| all.check(&call("1", tool, input)).expect_err("a refusal");
    let words = told("read", json!({"path": "x", "offset": "ten", "lines": 3}));
    assert!(words.contains("/offset") && words.contains("lines") && words.contains("It takes:"), "{words}");
    let words = told("bash", json!({MALFORMED_INPUT: "{\"command\": \"ls"}));
    assert!(words.contains("not a complete JSON object") && words.contains("{\"command\": \"ls"), "{words}");
    assert!(told("bash", json!({"command": ""})).contains("/command"));
    assert!(told("bash", json!({"command": "ls", "timeout_seconds": 100_000})).contains("/timeout_seconds"));
    assert!(told("surf", json!({})).contains("no tool `surf`"));
    assert!(told("ask", json!({"options": []})).contains("question"));
    // A null means "not given", as some models send it.
    assert!(all.check(&call("1", "read", json!({"path": "x", "offset": null}))).is_ok());
    assert!(all.check(&call("1", "ask", json!({"question": "Which?", "options": ["a", "b"]}))).is_ok());
}

#[tokio::test]
async fn bash_says_what_a_terminal_shows_and_how_it_ended() {
    let handle = FakeSandbox::new().handle();
    let command = "echo one; echo two >&2; echo \"$GREETING ($#)\"; cd / && exit 3";
    let done = run(&handle, "bash", json!({"command": command})).await;
    assert_eq!((done.output.as_str(), done.is_error), ("one\ntwo\nhello (0)\n[exit code 3]", true));
    let exec = done.exec.expect("a command");
    assert_eq!((exec.exit_code, exec.bytes, exec.cause), (3, 18, "exited"));
    assert_eq!((exec.command.as_str(), exec.summary.as_str()), (command, "one\ntwo\nhello (0)\n"));
    let silent = run(&handle, "bash", json!({"command": "true"})).await;
    assert_eq!((silent.output.as_str(), silent.is_error), ("(no output)", false));
    assert_eq!(run(&handle, "bash", json!({"command": "-x"})).await.exec.expect("a command").exit_code, 127);
    assert_eq!(run(&handle, "bash", json!({"command": "printf 'a\\0b'"})).await.output, "a\u{FFFD}b");
}

#[tokio::test]
async fn long_output_is_cut_in_the_middle_and_kept_whole() {
    let handle = FakeSandbox::new().handle();
    let done = run(&handle, "bash", json!({"command": "seq 1 30000"})).await;
    assert!(done.output.len() <= limit::TOOL_OUTPUT_BYTES_MAX, "{}", done.output.len());
    assert!(done.output.starts_with("1\n2\n") && done.output.ends_with("29999\n30000\n"));
    assert!(done.output.contains("of 168894 bytes are left out"), "{}", &done.output[14_000..16_000]);
    let path = done.output.split_whitespace().find(|word| word.starts_with("/tmp/")).expect("a path");
    let page =
        run(&handle, "read", json!({"path": path.trim_end_matches(':'), "offset": 15_000, "limit": 1})).await;
    assert!(page.output.starts_with(" 15000\t15000\n"), "{}", page.output);
}

#[tokio::test]
async fn a_sandbox_that_is_gone_or_taken_is_the_harness_s_affair() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let bash = checked("1", "bash", json!({"command": "true"}));
    fake.epoch.store(2, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(bash.run(&handle).await, Err(Fault::Stale));
    fake.is_lost.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(bash.run(&handle).await, Err(Fault::SandboxGone));
    assert_eq!(bash.recover(&handle).await, Err(Fault::SandboxGone));
    bash.cancel(&handle).await;
}

#[tokio::test]
async fn the_demo_repairs_its_sample_with_these_tools() {
    let fake = FakeSandbox::new();
    let (handle, all) = (fake.handle(), Catalog::builtin());
    let providers = Providers::new(Http::new(trusted_client(), None), Settings::default());
    let model = providers
        .model(&"scripted/demo".parse().expect("a name"), ModelApi::ChatCompletions, None)
        .expect("a model");
    let mut history = vec![Message::user("Repair the failing test.")];
    let report = loop {
        let request = ModelRequest {
            model: "demo".to_owned(),
            system: String::new(),
            tools: all.specs(),
            history: history.clone(),
            max_tokens: 1_000,
            options: ModelOptions::default(),
            files: std::collections::HashMap::new(),
        };
        let answer = model.answer(&request, &mut |_| {}).await.expect("an answer");
        let mut results = Vec::new();
        for call in answer.tool_calls() {
            let done = all.check(call).expect("a valid call").run(&handle).await.expect("a result");
            results.push(ToolResult {
                call_id: call.call_id.clone(),
                output: done.output,
                is_error: done.is_error,
                content: done.content,
            });
        }
        if let (StopReason::EndTurn, Some(Block::Text { text })) = (answer.stop, answer.blocks.last()) {
            break text.clone();
        }
        history.push(Message::Assistant {
            provider: "scripted".to_owned(),
            raw: Vec::new(),
            blocks: answer.blocks,
        });
        history.push(Message::Results { results });
    };
    assert!(report.starts_with("The tests pass now."), "{report}\n{history:?}");
    assert!(fake.text("tally.py").contains("in prices(lines):"));
}

#[tokio::test]
async fn a_fetched_page_and_its_rejection_are_reported_to_the_model() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let page = run(&handle, "web_fetch", json!({"url": "https://docs.example/"})).await;
    assert_eq!(page.output, "https://docs.example/ answered 200 (text/plain)\n\nthe only page");
    let refused = run(&handle, "web_fetch", json!({"url": "https://other.example/"})).await;
    assert!(
        refused.is_error && refused.output.contains("other.example/ is not allowed"),
        "{}",
        refused.output
    );
}
