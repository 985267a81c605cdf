//! `read`: a file with line numbers. Read-only.
//!
//! Called by the catalog; calls the port `Sandbox`. A file may have any size: it is read in parts
//! until the requested lines are found.

use async_trait::async_trait;
use bytes::BytesMut;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, SandboxHandle, Tool, at, output, parse, tell};
use crate::{
    base::{limit, text},
    domain::{
        content::Content,
        media_type::{self, is_image},
        tool::{Replay, ToolSpec},
    },
    sandbox::FilePart,
};

#[derive(Debug, Deserialize)]
struct Args {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    let lines = limit::READ_LINES_DEFAULT;
    ToolSpec {
        name: "read".to_owned(),
        description: format!(
            "Reads a text file, or shows a PNG, JPEG, GIF or WebP image. Each line is prefixed with its number and a tab, not part of the file. Returns at \
             most {lines} lines; use `offset` to continue. For directories use `glob`."
        ),
        input_schema: json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Absolute, or relative to the working directory."},
                "offset": {"type": "integer", "minimum": 1, "description": "First line to show (default 1)."},
                "limit": {
                    "type": "integer", "minimum": 1,
                    "description": format!("Max number of lines to return (default {lines})."),
                },
            },
            "required": ["path"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run(&self, _call_id: &str, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        let path = handle.path(&self.path);
        let first = self.offset.unwrap_or(1);
        let most = self
            .limit
            .map_or(limit::READ_LINES_DEFAULT, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
        let mut page = LineReader {
            first,
            most,
            line: 1,
            pending: Vec::new(),
            pending_bytes: 0,
            shown: String::new(),
            is_full: false,
        };
        let (mut offset, mut size) = (0, 0);
        while !page.is_full {
            let part = handle
                .sandbox
                .read_file(handle.fence, &path, offset, limit::TOOL_FILE_BYTES_MAX)
                .await
                .map_err(at(&path))?;
            size = part.size;
            if offset == 0 && is_image(media_type::of(&part.content)) {
                return show_image(handle, &path, part).await;
            }
            if offset == 0 && part.content.iter().take(limit::READ_PROBE_BYTES).any(|&byte| byte == 0) {
                return tell(format!("{path} is a binary file of {size} bytes. Use `bash` to inspect it."));
            }
            if part.content.is_empty() {
                page.end();
                break;
            }
            offset += part.content.len() as u64;
            page.take(&part.content);
            // Kernel files report size 0; they end with an empty part.
            if size > 0 && offset >= size && !page.is_full {
                page.end();
                break;
            }
            if offset > limit::READ_SCAN_BYTES_MAX {
                return tell(format!(
                    "Line {first} of {path} is too far from the start of the file. Use `bash` with sed or tail."
                ));
            }
        }
        Ok(CallResult::ok(match (size, page.shown.is_empty()) {
            (0, true) => format!("{path} is empty."),
            (_, true) => format!("{path} has only {} lines.", page.line - 1),
            (_, false) if page.is_full => {
                format!("{}[There is more. Continue with offset {}.]", page.shown, page.line)
            }
            (_, false) => page.shown,
        }))
    }
}

/// Shows an image to the model.
async fn show_image(handle: &SandboxHandle, path: &str, first: FilePart) -> Result<CallResult, Fault> {
    let size = first.size;
    if size > limit::FILE_BYTES_MAX as u64 {
        return tell(format!("{path} has {size} bytes, too many for an image that you can see."));
    }
    let mut content = BytesMut::from(&first.content[..]);
    while (content.len() as u64) < size {
        let offset = content.len() as u64;
        let read = handle.sandbox.read_file(handle.fence, path, offset, limit::TOOL_FILE_BYTES_MAX);
        let part = read.await.map_err(at(path))?;
        if part.content.is_empty() {
            break;
        }
        content.extend_from_slice(&part.content);
    }
    let file = handle.services.store_image(path, content.freeze()).await?;
    let output = match &file.image {
        Some(image) => format!("The image {path} of {} x {} pixels follows.", image.width, image.height),
        None => format!("{path} is no image."),
    };
    Ok(CallResult { content: vec![Content::Image(file)], ..CallResult::ok(output) })
}

/// Formats a line with its number; `bytes` is the line's length in the file.
pub(super) fn numbered(number: usize, line: &str, bytes: usize) -> String {
    let cut = text::truncate(line, limit::LINE_BYTES_MAX);
    let more = if cut.len() == line.len() { 0 } else { bytes.saturating_sub(cut.len()) };
    if more == 0 {
        format!("{number:>6}\t{line}\n")
    } else {
        format!("{number:>6}\t{cut} [… {more} bytes more]\n")
    }
}

/// The requested lines, collected from parts with arbitrary boundaries.
struct LineReader {
    first: u64,
    most: usize,
    /// Number of the next line.
    line: u64,
    /// The beginning of that line, and its length so far.
    pending: Vec<u8>,
    pending_bytes: usize,
    shown: String,
    is_full: bool,
}

impl LineReader {
    fn take(&mut self, part: &[u8]) {
        let mut rest = part;
        while let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
            self.grow(&rest[..at]);
            rest = &rest[at + 1..];
            self.show();
            if self.is_full {
                return;
            }
        }
        self.grow(rest);
    }

    /// Handles a last line without a line feed.
    fn end(&mut self) {
        if self.pending_bytes > 0 {
            self.show();
        }
    }

    // Skipped lines, and the part of a line beyond the limit, are not buffered.
    fn grow(&mut self, more: &[u8]) {
        let space_left = (2 * limit::LINE_BYTES_MAX).saturating_sub(self.pending.len());
        let keep = if self.line < self.first { 0 } else { more.len().min(space_left) };
        self.pending.extend_from_slice(&more[..keep]);
        self.pending_bytes += more.len();
    }

    fn show(&mut self) {
        let line = std::mem::take(&mut self.pending);
        let bytes = std::mem::take(&mut self.pending_bytes);
        if self.line >= self.first {
            let shown_lines = self.line - self.first;
            let line = text::printable(line.strip_suffix(b"\r").unwrap_or(&line));
            let row = numbered(self.line as usize, &line, bytes);
            let is_over = self.shown.len() + row.len() > 2 * output::END_BYTES;
            self.is_full = shown_lines >= self.most as u64 || is_over;
            if self.is_full {
                return;
            }
            self.shown.push_str(&row);
        }
        self.line += 1;
    }
}
