//! A model provider with arbitrary valid responses and realistic faults.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use sojourn::{
    domain::{
        Answer, Block, Message, StopReason, Usage,
        conversation::ModelRequest,
        tool::{ASK, SESSION_WAIT, SUBMIT_OUTPUT, ToolCall},
    },
    harness::{Delta, Model},
    model::Fault,
};
use tokio::time::sleep;

use super::{
    tools::{CALLER_TOOL, REMOTE_TOOL},
    world::World,
};
use crate::fake::dialect;

/// Model of the session.
pub struct Provider {
    pub world: Arc<World>,
}

#[async_trait]
impl Model for Provider {
    fn provider(&self) -> &str {
        self.world.plan.provider
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        _: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault> {
        if let Err(words) = dialect::check(&request.history) {
            panic!("{words}: {:#?}", request.history);
        }
        if self.world.plan.is_strict {
            for provider in dialect::PROVIDERS {
                dialect::check_strictly(provider, request).unwrap_or_else(|words| {
                    panic!("{provider} refuses: {words}: {:#?}", request.history);
                });
            }
        }
        let number = self.world.number();
        self.world.look(|database| database.ledger.asked(number, request.history.clone()));
        sleep(self.world.duration()).await;
        if self.world.mishap(self.world.plan.model_fails_one_in) {
            return Err(self.fault().await);
        }
        let (blocks, stop) = self.blocks(number, &request.history);
        // The number of the request travels as usage, so that the log identifies it.
        let usage = Usage { input_tokens: number, output_tokens: 5, ..Usage::default() };
        Ok(Answer { raw: dialect::raw(self.provider(), &blocks), blocks, stop, usage })
    }
}

impl Provider {
    async fn fault(&self) -> Fault {
        let reason = "simulated".to_owned();
        match self.world.chance.below(12) {
            0 => Fault::ContextTooLong { reason },
            1 => Fault::Unauthorized { reason },
            2 => Fault::Refused { reason },
            3 => {
                // A stall until the adapter's timeout.
                sleep(Duration::from_secs(120)).await;
                Fault::Unavailable { reason, retry_after: None }
            }
            4..10 => {
                let retry_after = Some(self.world.chance.millis(0, 30_000));
                Fault::Unavailable { reason, retry_after }
            }
            _ => Fault::Unavailable { reason, retry_after: None },
        }
    }

    /// Draws a response: the longer the turn, the likelier its end.
    fn blocks(&self, number: u64, history: &[Message]) -> (Vec<Block>, StopReason) {
        let chance = &self.world.chance;
        let is_user = |message: &Message| matches!(message, Message::User { .. });
        let since_input = history.iter().rev().take_while(|message| !is_user(message)).count() as u64;
        let mut blocks = Vec::new();
        if matches!(history.last(), Some(Message::User { text, .. }) if text.starts_with("The conversation above"))
        {
            let summary = format!("Summary {number}.");
            return (vec![Block::Text { text: summary }], StopReason::EndTurn);
        }
        if self.world.plan.window.is_some() && chance.one_in(3) {
            blocks.push(Block::Text { text: "A long report. ".repeat(1_000) });
        }
        if chance.one_in(4) {
            blocks.push(Block::Thinking { text: format!("Thought {number}.") });
        }
        if chance.one_in(2) {
            blocks.push(Block::Text { text: chance.pick(&["Done.", "Next.", " ", ""]).to_owned() });
        }
        let is_over = self.world.is_calm() && chance.one_in(2) || chance.below(12) < since_input;
        if is_over {
            let stop = match chance.below(10) {
                0 => StopReason::MaxTokens,
                1 => StopReason::Refusal,
                _ => StopReason::EndTurn,
            };
            return (blocks, stop);
        }
        if chance.one_in(10) {
            return (blocks, StopReason::Pause);
        }
        let calls = if chance.one_in(200) { 70 } else { 1 + chance.below(4) };
        blocks.extend((0..calls).map(|at| Block::ToolCall(self.call(format!("c{number}_{at}")))));
        (blocks, if chance.one_in(10) { StopReason::MaxTokens } else { StopReason::ToolUse })
    }

    fn call(&self, call_id: String) -> ToolCall {
        let chance = &self.world.chance;
        let needs_output = self.world.plan.output_repairs.is_some();
        let tool = match chance.below(20) {
            _ if needs_output && chance.one_in(6) => SUBMIT_OUTPUT,
            0 => ASK,
            1 => "no_such_tool",
            2..4 => CALLER_TOOL,
            4 => SESSION_WAIT,
            5..9 => "read",
            9..12 => "write",
            12..14 => REMOTE_TOOL,
            _ => "bash",
        };
        let input: Value = match chance.below(12) {
            0 => json!({"bad": true}),
            1 => json!({"_malformed": "{\"comm"}),
            2..4 => json!({"command": "make", "question": "Which?", "policy": "ask"}),
            4 => json!({"command": "make", "question": "Which?", "policy": "deny"}),
            5..8 => json!({"command": "make", "question": "Which?", "questions": [{"question": "Which?"}]}),
            _ => json!({"command": "make", "question": "Which?"}),
        };
        ToolCall { call_id, tool: tool.to_owned(), input }
    }
}
