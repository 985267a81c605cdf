//! Tests of scripts against histories, without real tools.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::domain::{
    Block, Message, StopReason,
    conversation::ModelOptions,
    tool::{ToolCall, ToolResult},
};

fn request(history: Vec<Message>) -> ModelRequest {
    ModelRequest {
        model: "inline".to_owned(),
        system: "Be brief.".to_owned(),
        tools: Vec::new(),
        history,
        max_tokens: 100,
        options: ModelOptions::default(),
        files: std::collections::HashMap::new(),
    }
}

/// A session that plays a script; `run` returns the tool results.
struct Session {
    model: Scripted,
    history: Vec<Message>,
}

impl Session {
    fn of(name: &str) -> Self {
        let model = Scripted::named(name, Arc::default()).expect("a script");
        Self { model, history: Vec::new() }
    }

    fn say(mut self, text: impl ToString) -> Self {
        self.history.push(Message::user(text.to_string()));
        self
    }

    async fn step(&mut self, run: impl Fn(&ToolCall) -> (String, bool)) -> Result<Answer, Fault> {
        let answer = self.model.answer(&request(self.history.clone()), &mut |_| {}).await?;
        let provider = self.model.provider().to_owned();
        let results = answer.tool_calls().map(|call| {
            let (output, is_error) = run(call);
            ToolResult { call_id: call.call_id.clone(), output, is_error, content: Vec::new() }
        });
        let results: Vec<_> = results.collect();
        self.history.push(Message::Assistant {
            provider,
            raw: answer.raw.clone(),
            blocks: answer.blocks.clone(),
        });
        if !results.is_empty() {
            self.history.push(Message::Results { results });
        }
        Ok(answer)
    }

    /// Runs steps until no tool is requested; returns the last text and the tools that ran.
    async fn turn(&mut self, run: impl Fn(&ToolCall) -> (String, bool)) -> (String, Vec<String>) {
        let mut ran = Vec::new();
        loop {
            let answer = self.step(&run).await.expect("an answer");
            ran.extend(answer.tool_calls().map(|call| call.tool.clone()));
            if let (StopReason::EndTurn, Some(Block::Text { text })) = (answer.stop, answer.blocks.last()) {
                return (text.clone(), ran);
            }
        }
    }
}

fn silent(_: &ToolCall) -> (String, bool) {
    (String::new(), false)
}

#[tokio::test]
async fn noop_answers_at_once() {
    let mut session = Session::of("noop").say("Hi");
    assert_eq!(session.turn(silent).await, ("done".to_owned(), Vec::new()));
}

#[tokio::test]
async fn inline_plays_its_steps_in_order_and_then_is_done() {
    let script = json!({"script": [
        {"thinking": "t", "text": "a", "tools": [{"tool": "bash", "input": {"command": "ls"}}, {"tool": "read"}]},
        {"tools": [{"tool": "glob"}], "repeat": 2, "usage": {"input_tokens": 5, "cache_read_tokens": 7}},
    ], "anything": true});
    let mut session = Session::of("inline").say(script);
    let first = session.step(silent).await.expect("the first step");
    assert_eq!(first.blocks.len(), 4);
    assert_eq!(first.stop, StopReason::ToolUse);
    assert!(first.usage.input_tokens > 0 && first.usage.output_tokens > 0);
    let second = session.step(silent).await.expect("the second step");
    assert_eq!((second.usage.input_tokens, second.usage.cache_read_tokens), (5, 7));
    let (text, ran) = session.turn(silent).await;
    assert_eq!((text.as_str(), ran.len()), ("done", 1));
    let ids: std::collections::HashSet<_> = session
        .history
        .iter()
        .flat_map(|message| match message {
            Message::Results { results } => results.iter().map(|result| result.call_id.clone()).collect(),
            Message::User { .. } | Message::Assistant { .. } => Vec::new(),
        })
        .collect();
    assert_eq!(ids.len(), 4);
    // The next message has its own script; plain text has none.
    let mut session = session.say(json!({"script": [{"text": "again"}]}));
    assert_eq!(session.turn(silent).await.0, "again");
    assert_eq!(session.say("thanks").turn(silent).await.0, "done");
}

#[tokio::test]
async fn inline_names_the_place_of_a_mistake() {
    let mut session =
        Session::of("inline").say(json!({"script": [{"text": "a"}, {"tools": [{"tol": "x"}]}]}));
    let fault = session.step(silent).await.expect_err("a mistake");
    assert!(
        matches!(&fault, Fault::Refused { reason } if reason.contains("script[1].tools[0]")),
        "{fault:?}"
    );
}

#[tokio::test]
async fn a_fault_strikes_as_often_as_it_says_and_then_the_step_is_played() {
    let fault = json!({"kind": "rate_limited", "times": 2, "retry_after_ms": 30});
    let mut session = Session::of("inline").say(json!({"script": [{"text": "at last", "fault": fault}]}));
    for _ in 0..2 {
        let retry_after = Some(Duration::from_millis(30));
        let fault = session.step(silent).await.expect_err("a fault");
        assert!(matches!(fault, Fault::Unavailable { retry_after: wait, .. } if wait == retry_after));
    }
    assert_eq!(session.turn(silent).await.0, "at last");
    // A completed fault is removed: an equal history gets it again.
    session.history.truncate(1);
    assert!(session.step(silent).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_fault_looks_like_a_providers() {
    for (kind, fits) in [
        ("overloaded", (|fault| matches!(fault, Fault::Unavailable { .. })) as fn(Fault) -> bool),
        ("stall", |fault| matches!(fault, Fault::Unavailable { .. })),
        ("cut", |fault| matches!(fault, Fault::Unavailable { .. })),
        ("context_too_long", |fault| matches!(fault, Fault::ContextTooLong { .. })),
        ("unauthorized", |fault| matches!(fault, Fault::Unauthorized { .. })),
        ("payment_required", |fault| matches!(fault, Fault::PaymentRequired { .. })),
        ("refused", |fault| matches!(fault, Fault::Refused { .. })),
    ] {
        let script = json!({"script": [{"text": "ä long text", "fault": {"kind": kind}}]});
        let fault = Session::of("inline").say(script).step(silent).await.expect_err(kind);
        assert!(fits(fault), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_waited_for_and_deltas_add_up_to_the_text() {
    let text = "A sentence that is longer than one delta — by far.";
    let script = json!({"script": [{"text": text, "delay_ms": 5_000}]}).to_string();
    let (start, mut grown) = (tokio::time::Instant::now(), String::new());
    let history = vec![Message::user(script)];
    let model = Session::of("inline").model;
    let take = &mut |delta| match delta {
        Delta::Text { text, .. } | Delta::Thinking { text, .. } => grown.push_str(&text),
        Delta::Input { .. } | Delta::Used(_) => {}
    };
    model.answer(&request(history), take).await.expect("an answer");
    assert_eq!((start.elapsed().as_secs(), grown.as_str()), (5, text));
}

/// A workspace in which the fix works, or does not.
fn workspace(call: &ToolCall, repaired: bool) -> (String, bool) {
    let command = call.input["command"].as_str().unwrap_or_default();
    match call.tool.as_str() {
        "bash" if command.starts_with("ls") => (String::new(), false),
        "bash" if command.contains("git diff") && repaired => ("...\nRan 3 tests\n\nOK".to_owned(), false),
        "bash" if command.contains("unittest") => ("F\nFAILED (failures=2)".to_owned(), true),
        "read" => (SAMPLE[1].1.to_owned(), false),
        _ => ("ok".to_owned(), false),
    }
}

#[tokio::test]
async fn the_demo_repairs_the_sample_and_reports_what_the_tests_said() {
    let mut session = Session::of("demo").say("Fix the failing test.");
    let (report, ran) = session.turn(|call| workspace(call, true)).await;
    assert!(report.starts_with("The tests pass now."), "{report}");
    let all = ["bash", "write", "write", "write", "bash", "bash", "read", "read", "edit", "bash"];
    assert_eq!(ran, all);
}

#[tokio::test]
async fn the_demo_answers_a_question_about_its_work_from_the_conversation() {
    let mut session = Session::of("demo").say("Fix the failing test.");
    session.turn(|call| workspace(call, true)).await;
    let mut session = session.say("Thank you. What did you change?");
    let (answer, ran) = session.turn(|call| workspace(call, true)).await;
    assert!(ran.is_empty(), "{ran:?}");
    assert!(
        answer.starts_with("In `tally.py` I replaced `prices(lines)[1:]` with `prices(lines)`."),
        "{answer}"
    );
    assert!(answer.contains("The tests pass now."), "{answer}");
    // A second question gets the same answer, and a request is work.
    let mut session = session.say("And what else?");
    assert_eq!(session.turn(|call| workspace(call, true)).await.0, answer);
    let mut session = session.say("Run the tests once more.");
    let (report, ran) = session.turn(|call| workspace(call, true)).await;
    assert!(!ran.is_empty() && !report.contains("My report was"), "{report}");
    // A failed edit is no change, and a first message is work even if it is a question.
    let refused = |call: &ToolCall| match call.tool.as_str() {
        "edit" => ("no such file".to_owned(), true),
        _ => workspace(call, true),
    };
    let mut session = Session::of("demo").say("Can you fix it?");
    let (_, ran) = session.turn(refused).await;
    assert!(ran.contains(&"edit".to_owned()), "{ran:?}");
    let (answer, _) = session.say("What did you change?").turn(refused).await;
    assert!(answer.starts_with("I changed no file.") && answer.contains("I could not edit"), "{answer}");
}

#[tokio::test]
async fn the_demo_does_not_claim_what_the_tests_do_not_show() {
    let (report, _) = Session::of("demo").say("Go").turn(|call| workspace(call, false)).await;
    assert!(report.contains("still fails"), "{report}");
    let broken = |_: &ToolCall| ("no sandbox".to_owned(), true);
    let (report, _) = Session::of("demo").say("Go").turn(broken).await;
    assert!(report.contains("could not") && report.contains("no sandbox"), "{report}");
}

#[test]
fn the_sample_has_the_bug_that_the_demo_repairs() {
    assert!(SAMPLE[1].1.contains("prices(lines)[1:]"));
}
