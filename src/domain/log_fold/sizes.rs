//! Sizes of messages and results: the memory that they take, and the bytes that a model reads.

use serde_json::Value;

use crate::domain::{
    Message,
    content::Content,
    conversation::Block,
    event::{Body, StepCompleted},
    tool::ToolResult,
};

/// Memory that the body of an event adds to the conversation, in bytes; that of a message is known when it is added.
pub(super) fn added_bytes(body: &Body) -> usize {
    match body {
        Body::StepCompleted(step) if step.purpose.is_none() => step_bytes(step),
        Body::ToolResult { output, content, .. } => {
            output.len() + content.iter().map(part_memory).sum::<usize>()
        }
        _ => 0,
    }
}

/// Bytes of a message for a model, with 4 bytes for each token of a file; of a response, those of its blocks.
pub(super) fn message_bytes(message: &Message) -> usize {
    match message {
        Message::User { text, content } if content.is_empty() => text.len(),
        Message::User { content, .. } => content.iter().map(part_bytes).sum(),
        Message::Assistant { raw, blocks, .. } if raw.is_empty() => blocks.iter().map(block_bytes).sum(),
        Message::Assistant { raw, .. } => raw.iter().map(value_bytes).sum(),
        Message::Results { results } => results.iter().map(result_bytes).sum(),
    }
}

/// Bytes of a result for a model, with 4 bytes for each token of a file.
pub(super) fn result_bytes(result: &ToolResult) -> usize {
    result.output.len() + result.content.iter().map(part_bytes).sum::<usize>()
}

fn part_memory(part: &Content) -> usize {
    size_of::<Content>()
        + match part {
            Content::Text { text } => text.len(),
            Content::Image(file) | Content::Document(file) => {
                file.name.len() + file.path.len() + file.sha256.len()
            }
        }
}

fn part_bytes(part: &Content) -> usize {
    usize::try_from(part.tokens()).unwrap_or(usize::MAX).saturating_mul(4)
}

/// Approximate memory of a message, in bytes.
pub(super) fn memory_bytes(message: &Message) -> usize {
    match message {
        Message::Assistant { raw, blocks, .. } => {
            raw.iter().map(value_bytes).sum::<usize>() + blocks.iter().map(block_bytes).sum::<usize>()
        }
        Message::User { text, content } => text.len() + content.iter().map(part_memory).sum::<usize>(),
        Message::Results { results } => results.iter().map(result_memory).sum(),
    }
}

/// Approximate memory of a result, in bytes.
pub(super) fn result_memory(result: &ToolResult) -> usize {
    result.output.len() + result.content.iter().map(part_memory).sum::<usize>()
}

/// Bytes of a block of a response.
pub(super) fn block_bytes(block: &Block) -> usize {
    match block {
        Block::Text { text } | Block::Thinking { text } => text.len(),
        Block::ToolCall(call) => value_bytes(&call.input),
    }
}

fn step_bytes(step: &StepCompleted) -> usize {
    step.raw.iter().map(value_bytes).sum::<usize>() + step.blocks.iter().map(block_bytes).sum::<usize>()
}

fn value_bytes(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + value_bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
}
