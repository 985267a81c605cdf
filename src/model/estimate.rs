//! Token estimates for calls without a provider's count.
//!
//! Called by `scripted`, which has no tokenizer, by `openai` for servers that report no usage, and
//! by the harness for aborted calls. The limit on tokens must also apply to these.

use crate::domain::{Block, Message, content::Content, conversation::ModelRequest, shown_files};

/// Estimates 4 bytes per token: accurate for English and code, high for other text.
pub fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

/// Estimates the input tokens of one call without serializing it.
pub fn input_tokens(request: &ModelRequest) -> u64 {
    let messages = request.history.iter().map(|message| match message {
        Message::User { content, .. } if !content.is_empty() => 0,
        Message::User { text, .. } => text.len(),
        Message::Assistant { blocks, .. } => said_bytes(blocks),
        Message::Results { results } => results.iter().map(|result| result.output.len()).sum(),
    });
    let files: u64 = shown_files::parts(&request.history).map(Content::tokens).sum();
    let tools = request.tools.iter().map(|tool| tool.name.len() + tool.description.len());
    files + tokens(request.system.len() + messages.sum::<usize>() + tools.sum::<usize>())
}

/// Returns the bytes that a model generated.
pub(super) fn said_bytes(blocks: &[Block]) -> usize {
    let bytes = blocks.iter().map(|block| match block {
        Block::Text { text } | Block::Thinking { text } => text.len(),
        Block::ToolCall(call) => call.tool.len() + call.input.to_string().len(),
    });
    bytes.sum()
}
