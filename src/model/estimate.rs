//! Tokens by rule of thumb, where nobody counted them.
//!
//! Called by `scripted`, which has no tokenizer, by `openai` for servers that report no
//! usage, and by the harness for calls that were cut off: the limit on tokens must hold
//! for them too.

use crate::domain::{Block, Message, conversation::ModelRequest};

/// Four bytes a token: near the truth for English and code, high for the rest.
pub fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

/// The input of one call, without writing it down.
pub fn input_tokens(request: &ModelRequest) -> u64 {
    let messages = request.history.iter().map(|message| match message {
        Message::User { text } => text.len(),
        Message::Assistant { blocks, .. } => said_bytes(blocks),
        Message::Results { results } => results.iter().map(|result| result.output.len()).sum(),
    });
    let tools = request.tools.iter().map(|tool| tool.name.len() + tool.description.len());
    tokens(request.system.len() + messages.sum::<usize>() + tools.sum::<usize>())
}

/// Bytes of what a model said.
pub(super) fn said_bytes(blocks: &[Block]) -> usize {
    let bytes = blocks.iter().map(|block| match block {
        Block::Text { text } | Block::Thinking { text } => text.len(),
        Block::ToolCall(call) => call.tool.len() + call.input.to_string().len(),
    });
    bytes.sum()
}
