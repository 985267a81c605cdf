//! `edit`: replaces text in a file. Unsafe, but recoverable.
//!
//! Called by the catalog; calls the port `Sandbox`. If the new text contains the old text, a second
//! edit would change the file twice. Therefore a note with the digests of the file before and after
//! is written to the sandbox before the file. A takeover compares them with the file and determines
//! whether the crash was before or after the edit.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{CallResult, Fault, Invocation, Recovered, SandboxHandle, Tool, at, exec, parse, tell};
use crate::{
    base::{limit, seal, text::hex},
    domain::tool::{Replay, ToolSpec},
    sandbox,
};

#[derive(Debug, Deserialize)]
struct Args {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    replace_all: bool,
}

/// Data that a takeover needs about an interrupted edit.
#[derive(Serialize, Deserialize)]
struct Note {
    before: String,
    after: String,
    words: String,
}

/// Next to the saved outputs; it must live exactly as long as the sandbox.
const NOTE_DIR: &str = "/tmp/tool-output";
/// Max size of a note that is accepted; real notes have a few hundred bytes.
const NOTE_BYTES_MAX: usize = 8 << 10;
/// Number of lines shown around a change.
const CONTEXT_LINES: usize = 3;

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "edit".to_owned(),
        description: "Replaces text in a file. `old` must match the file exactly, including white space, \
            and occur once, unless `replace_all` is set: add lines until it is unique. Read the file first."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Absolute, or relative to the working directory."},
                "old": {"type": "string", "minLength": 1, "description": "The text to replace, without line numbers."},
                "new": {"type": "string", "description": "The replacement text."},
                "replace_all": {"type": "boolean", "description": "Replaces every occurrence (default false)."},
            },
            "required": ["path", "old", "new"],
            "additionalProperties": false,
        }),
        replay: Replay::Unsafe,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run(&self, call_id: &str, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        let path = handle.path(&self.path);
        let before = text_file(handle, &path).await?;
        let count = before.matches(&self.old).count();
        let words = match count {
            _ if self.old == self.new => {
                return tell("`old` and `new` are equal; nothing to change.");
            }
            0 => return tell(not_found(&path, &before, &self.old)),
            2.. if !self.replace_all => {
                return tell(format!(
                    "`old` occurs {count} times in {path}. Add lines around it to make it unique, or set `replace_all`."
                ));
            }
            1 => format!("Changed {path}.\n{}", around(&before, self)),
            2.. => format!("Changed {path} in {count} places. The first:\n{}", around(&before, self)),
        };
        let after = before.replace(&self.old, &self.new);
        if after.len() > limit::TOOL_FILE_BYTES_MAX {
            return tell(format!(
                "{path} would grow beyond {} bytes. Use `bash`.",
                limit::TOOL_FILE_BYTES_MAX
            ));
        }
        let note = Note { before: digest(&before), after: digest(&after), words };
        let bytes = serde_json::to_vec(&note).expect("a note is JSON");
        handle.sandbox.write_file(handle.fence, &note_path(call_id), &bytes).await?;
        handle.sandbox.write_file(handle.fence, &path, after.as_bytes()).await.map_err(at(&path))?;
        Ok(CallResult::ok(note.words))
    }

    /// Compares the file with the note: before, after, or changed by another.
    async fn recover(&self, call_id: &str, handle: &SandboxHandle) -> Result<Recovered, Fault> {
        let note = match handle.sandbox.read_file(handle.fence, &note_path(call_id), 0, NOTE_BYTES_MAX).await
        {
            Ok(part) => part.content,
            Err(sandbox::Fault::NotFound(_)) => return Ok(Recovered::NeverRan),
            Err(fault) => return Err(fault.into()),
        };
        let Ok(note) = serde_json::from_slice::<Note>(&note) else {
            return Ok(Recovered::Unknown);
        };
        let now = match text_file(handle, &handle.path(&self.path)).await {
            Ok(text) => digest(&text),
            Err(Fault::TellModel(_)) => return Ok(Recovered::Unknown),
            Err(fault) => return Err(fault),
        };
        Ok(match now {
            now if now == note.after => Recovered::Done(CallResult::ok(note.words)),
            now if now == note.before => Recovered::NeverRan,
            _ => Recovered::Unknown,
        })
    }
}

fn note_path(call_id: &str) -> String {
    format!("{NOTE_DIR}/{}.edit", exec::id(call_id))
}

fn digest(text: &str) -> String {
    hex(&seal::sha256(text.as_bytes()))
}

/// Reads a whole text file that is small enough to be edited here.
async fn text_file(handle: &SandboxHandle, path: &str) -> Result<String, Fault> {
    let most = limit::TOOL_FILE_BYTES_MAX;
    let mut content = Vec::new();
    loop {
        let part = handle
            .sandbox
            .read_file(handle.fence, path, content.len() as u64, most)
            .await
            .map_err(at(path))?;
        if part.size > most as u64 {
            return tell(format!("{path} has {} bytes, more than {most}. Change it with `bash`.", part.size));
        }
        let is_end = part.content.is_empty();
        content.extend(part.content);
        if is_end || content.len() as u64 >= part.size {
            break;
        }
    }
    String::from_utf8(content).or_else(|_| tell(format!("{path} is not UTF-8 text. Change it with `bash`.")))
}

fn not_found(path: &str, content: &str, old: &str) -> String {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let hint = if squeezed(content).contains(&squeezed(old)) {
        "It occurs with other white space: indentation, line ends or tabs differ."
    } else {
        "Read the file again: it may have changed."
    };
    format!("`old` is not in {path}. {hint}")
}

/// Returns the changed lines with context, numbered as in the new file.
fn around(before: &str, args: &Args) -> String {
    let at = before.find(&args.old).expect("the occurrences were counted before");
    let first = before[..at].matches('\n').count();
    let changed = args.new.lines().count().max(1);
    let after = before.replacen(&args.old, &args.new, 1);
    let start = first.saturating_sub(CONTEXT_LINES);
    let lines = after.lines().enumerate().skip(start).take(first - start + changed + CONTEXT_LINES);
    let shown: String = lines.map(|(at, line)| super::read::numbered(at + 1, line, line.len())).collect();
    super::output::cap(&shown, "Read the file to see all of it.")
}
