//! `scripted/demo`: a first session that fixes the sample repository for real.
//!
//! Called by `Scripted`. The tools run in the sandbox and each step depends on their results, so
//! the final report is true. The session itself writes the sample into an empty workspace. A later
//! question is answered from the conversation; any other later message runs the tests again.

use serde_json::{Value, json};

use super::step::{Step, since_last_user};
use crate::domain::{
    Block, Message,
    tool::{ToolCall, ToolResult},
};

/// Files of the sample repository: path in the workspace, content. One test fails.
pub const SAMPLE: [(&str, &str); 3] = [
    ("README.md", include_str!("sample/README.md")),
    ("tally.py", include_str!("sample/tally.py")),
    ("test_tally.py", include_str!("sample/test_tally.py")),
];

const BUG: &str = "prices(lines)[1:]";
const REPAIR: &str = "prices(lines)";
const TEST: &str = "python3 -m unittest 2>&1";
const COMMIT: &str = "git init -q && git add -A && \
    git -c user.name=Sample -c user.email=sample@example.com commit -q -m 'Add the tally' && \
    git log --oneline";

/// Stage of the session; every stage but the last requests tools.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Look,
    Unpack,
    Test,
    Read,
    Repair,
    Verify,
    Report(String),
}

/// Returns the step for this history.
pub(super) fn step(history: &[Message]) -> Step {
    if let Some(answer) = answer(history) {
        return says(&answer, Vec::new());
    }
    let results = since_last_user(history).iter().filter_map(|message| match message {
        Message::Results { results } => Some(results.as_slice()),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    results.fold(Stage::Look, Stage::after).step()
}

/// Returns the answer to a question that follows a report: the edits so far, and that report.
fn answer(history: &[Message]) -> Option<String> {
    let asked = history.iter().rposition(|message| matches!(message, Message::User { .. }))?;
    let (before, Message::User { text, .. }) = (&history[..asked], &history[asked]) else { return None };
    let report = before.windows(2).rev().find_map(report).filter(|_| text.contains('?'))?;
    let edits: Vec<_> = before.windows(2).flat_map(edits).collect();
    let changed = if edits.is_empty() { "I changed no file.".to_owned() } else { edits.join("\n") };
    Some(format!("{changed}\n\nMy report was:\n\n{report}"))
}

/// Returns the text of the message that ended a turn with work: it follows results and requests no tool.
fn report(exchange: &[Message]) -> Option<String> {
    let [Message::Results { .. }, Message::Assistant { blocks, .. }] = exchange else { return None };
    let mut texts = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } => texts.push(text.as_str()),
            Block::Thinking { .. } => {}
            Block::ToolCall(_) => return None,
        }
    }
    Some(texts.join("\n"))
}

/// Describes the edits that succeeded among the calls of one response and their results.
fn edits(exchange: &[Message]) -> Vec<String> {
    let [Message::Assistant { blocks, .. }, Message::Results { results }] = exchange else {
        return Vec::new();
    };
    let succeeded = |call: &ToolCall| {
        let mut own = results.iter().filter(|result| result.call_id == call.call_id);
        call.tool == "edit" && own.any(|result| !result.is_error)
    };
    let calls = blocks.iter().filter_map(|block| match block {
        Block::ToolCall(call) if succeeded(call) => Some(&call.input),
        Block::ToolCall(_) | Block::Text { .. } | Block::Thinking { .. } => None,
    });
    let word = |input: &Value, name: &str| input[name].as_str().unwrap_or_default().to_owned();
    calls
        .map(|input| {
            let (path, old, new) = (word(input, "path"), word(input, "old"), word(input, "new"));
            format!("In `{path}` I replaced `{old}` with `{new}`.")
        })
        .collect()
}

impl Stage {
    /// Returns the next stage, given the tool results of this one.
    fn after(self, results: &[ToolResult]) -> Self {
        let said = |words: &str| results.iter().any(|result| result.output.contains(words));
        let first_error = results.iter().find(|result| result.is_error);
        let passed = said("\nOK") && first_error.is_none();
        match self {
            Self::Look if said("test_tally.py") => Self::Test,
            Self::Look => match first_error {
                Some(error) => Self::gave_up("look into the workspace", error),
                None => Self::Unpack,
            },
            // Without git the files exist anyway; the tests decide.
            Self::Unpack => Self::Test,
            Self::Test if passed => {
                Self::Report("All tests of the repository pass. There is nothing to repair.".to_owned())
            }
            Self::Test => Self::Read,
            Self::Read if said(BUG) => Self::Repair,
            Self::Read => Self::Report(
                "A test fails, but `total_cents` is not as I know it. I changed nothing.".to_owned(),
            ),
            Self::Repair => match first_error {
                Some(error) => Self::gave_up("edit tally.py", error),
                None => Self::Verify,
            },
            Self::Verify if passed => Self::Report(REPAIRED.to_owned()),
            Self::Verify => Self::Report("I repaired the loop, but a test still fails.".to_owned()),
            Self::Report(report) => Self::Report(report),
        }
    }

    fn gave_up(doing: &str, error: &ToolResult) -> Self {
        Self::Report(format!("I could not {doing}: {}", error.output))
    }

    fn step(self) -> Step {
        let bash = |command: &str| ("bash".to_owned(), json!({"command": command}));
        let read = |path: &str| ("read".to_owned(), json!({"path": path}));
        match self {
            Self::Look => Step {
                thinking: "First see what is in the workspace.".to_owned(),
                ..says(
                    "I look at the repository.",
                    vec![bash("ls -A; git log --oneline -5 2>/dev/null; true")],
                )
            },
            Self::Unpack => {
                let write = |(path, content): &(&str, &str)| {
                    ("write".to_owned(), json!({"path": path, "content": content}))
                };
                let mut tools: Vec<_> = SAMPLE.iter().map(write).collect();
                tools.push(bash(COMMIT));
                says("The workspace is empty. I put the sample repository into it.", tools)
            }
            Self::Test => says("I run its tests.", vec![bash(TEST)]),
            Self::Read => says(
                "A test fails. I read the code and the test.",
                vec![read("tally.py"), read("test_tally.py")],
            ),
            Self::Repair => Step {
                thinking: "The loop starts at the second price: the first item is never added.".to_owned(),
                ..says(
                    "The sum skips the first item. I repair the loop.",
                    vec![("edit".to_owned(), json!({"path": "tally.py", "old": BUG, "new": REPAIR}))],
                )
            },
            Self::Verify => {
                says("I run the tests again.", vec![bash(&format!("{TEST}; git diff --stat; true"))])
            }
            Self::Report(report) => says(&report, Vec::new()),
        }
    }
}

const REPAIRED: &str = "The tests pass now.

`total_cents` in `tally.py` began its loop at the second price, so the first item was never added. \
It now adds all of them. I changed one line and ran the three tests before and after.";

fn says(text: &str, tools: Vec<(String, Value)>) -> Step {
    Step { text: text.to_owned(), tools, ..Step::default() }
}
