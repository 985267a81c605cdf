//! `edit`: one piece of a file for another. Unsafe, and yet it can be recovered.
//!
//! Called by the catalogue; calls the port `Sandbox`. Where the new text holds the
//! old one, a second edit would change the file twice. So a note with the digests
//! of the file before and after is left in the sandbox before the file is written: a
//! takeover compares them with the file and knows on which side the crash was.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Done, Recovered, SandboxHandle, Stop, at, exec, tell};
use crate::{
    base::{limit, seal, text::hex},
    domain::tool::{Replay, ToolCall, ToolSpec},
    sandbox,
};

#[derive(Deserialize)]
pub(super) struct Args {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    replace_all: bool,
}

/// What a takeover needs to know of an edit that was under way.
#[derive(Serialize, Deserialize)]
struct Note {
    before: String,
    after: String,
    words: String,
}

/// Beside the spilled outputs: it must live exactly as long as the sandbox.
const NOTE_DIR: &str = "/tmp/tool-output";
/// Largest note that is believed; ours have a few hundred bytes.
const NOTE_BYTES_MAX: usize = 8 << 10;
/// Lines around a change that are shown.
const CONTEXT_LINES: usize = 3;

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "edit".to_owned(),
        description: "Replaces a piece of a file. `old` must be in the file exactly as given, white space included, \
            and only once, or `replace_all` must be set: add lines around it until it is unique. Read the file first."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Absolute, or below the working directory."},
                "old": {"type": "string", "minLength": 1, "description": "The text to replace, without line numbers."},
                "new": {"type": "string", "description": "The text that takes its place."},
                "replace_all": {"type": "boolean", "description": "Replaces every occurrence (default false)."},
            },
            "required": ["path", "old", "new"],
            "additionalProperties": false,
        }),
        replay: Replay::Unsafe,
    }
}

pub(super) async fn run(call: &ToolCall, args: Args, handle: &SandboxHandle) -> Result<Done, Stop> {
    let path = handle.path(&args.path);
    let before = text_file(handle, &path).await?;
    let count = before.matches(&args.old).count();
    let words = match count {
        _ if args.old == args.new => {
            return tell("`old` and `new` are the same: there is nothing to change.");
        }
        0 => return tell(not_found(&path, &before, &args.old)),
        2.. if !args.replace_all => {
            return tell(format!(
                "`old` is in {path} {count} times. Add lines around it until it is unique, or set `replace_all`."
            ));
        }
        1 => format!("Changed {path}.\n{}", around(&before, &args)),
        2.. => format!("Changed {path} in {count} places. The first:\n{}", around(&before, &args)),
    };
    let after = before.replace(&args.old, &args.new);
    if after.len() > limit::TOOL_FILE_BYTES_MAX {
        return tell(format!("{path} would grow beyond {} bytes. Use `bash`.", limit::TOOL_FILE_BYTES_MAX));
    }
    let note = Note { before: digest(&before), after: digest(&after), words };
    let bytes = serde_json::to_vec(&note).expect("a note is JSON");
    handle.sandbox.write_file(handle.fence, &note_path(call), &bytes).await?;
    handle.sandbox.write_file(handle.fence, &path, after.as_bytes()).await.map_err(at(&path))?;
    Ok(Done::ok(note.words))
}

/// Before, after, or neither: somebody else was at the file.
pub(super) async fn recover(call: &ToolCall, args: Args, handle: &SandboxHandle) -> Result<Recovered, Stop> {
    let note = match handle.sandbox.read_file(handle.fence, &note_path(call), 0, NOTE_BYTES_MAX).await {
        Ok(part) => part.content,
        Err(sandbox::Fault::NotFound(_)) => return Ok(Recovered::NeverRan),
        Err(fault) => return Err(fault.into()),
    };
    let Ok(note) = serde_json::from_slice::<Note>(&note) else {
        return Ok(Recovered::Unknown);
    };
    let now = match text_file(handle, &handle.path(&args.path)).await {
        Ok(text) => digest(&text),
        Err(Stop::TellModel(_)) => return Ok(Recovered::Unknown),
        Err(Stop::Fault(fault)) => return Err(Stop::Fault(fault)),
    };
    Ok(match now {
        now if now == note.after => Recovered::Done(Done::ok(note.words)),
        now if now == note.before => Recovered::NeverRan,
        _ => Recovered::Unknown,
    })
}

fn note_path(call: &ToolCall) -> String {
    format!("{NOTE_DIR}/{}.edit", exec::id(call))
}

fn digest(text: &str) -> String {
    hex(&seal::sha256(text.as_bytes()))
}

/// The whole of a file that is text and small enough to be changed here.
async fn text_file(handle: &SandboxHandle, path: &str) -> Result<String, Stop> {
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
        "It is there with other white space: indentation, line ends or tabs differ."
    } else {
        "Read the file again: it may have changed."
    };
    format!("`old` is not in {path}. {hint}")
}

/// The changed lines with a few around them, numbered as they are now.
fn around(before: &str, args: &Args) -> String {
    let at = before.find(&args.old).expect("it was counted before");
    let first = before[..at].matches('\n').count();
    let changed = args.new.lines().count().max(1);
    let after = before.replacen(&args.old, &args.new, 1);
    let start = first.saturating_sub(CONTEXT_LINES);
    let lines = after.lines().enumerate().skip(start).take(first - start + changed + CONTEXT_LINES);
    let shown: String = lines.map(|(at, line)| super::read::numbered(at + 1, line, line.len())).collect();
    super::output::cap(&shown, "Read the file to see all of it.")
}
