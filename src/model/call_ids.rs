//! Ids of calls that differ from all others of a history, whatever a server sends.
//!
//! Used by the adapters of OpenAI's APIs: some servers start at `call_0` in every response, or send no id at all.

use std::collections::HashSet;

use super::tool_input;
use crate::domain::{
    Block, Message,
    conversation::{ModelRequest, summarized_to},
};

/// Ids that a history contains, and its length, for new ids.
#[derive(Debug)]
pub(super) struct CallIds {
    taken: HashSet<String>,
    messages: usize,
    /// `seq` up to which the history begins with a summary.
    summarized_to: Option<String>,
}

impl CallIds {
    /// Reads the ids of a request's history.
    pub(super) fn of(request: &ModelRequest) -> Self {
        let ids = request.history.iter().flat_map(|message| match message {
            Message::Assistant { blocks, .. } => blocks.as_slice(),
            Message::User { .. } | Message::Results { .. } => &[],
        });
        let ids = ids.filter_map(|block| match block {
            Block::ToolCall(call) => Some(call.call_id.clone()),
            Block::Text { .. } | Block::Thinking { .. } => None,
        });
        Self {
            taken: ids.collect(),
            messages: request.history.len(),
            summarized_to: summarized_to(&request.history).map(str::to_owned),
        }
    }

    /// Returns the id of the call at a place of the response: the one that the server sent, if it is new.
    pub(super) fn take(&mut self, sent: &str, at: usize) -> String {
        let mut id = if sent.is_empty() { String::new() } else { tool_input::call_id(sent) };
        if id.is_empty() || self.taken.contains(&id) {
            id = format!("call_{}_{at}", self.messages);
        }
        // The ids of the steps that a summary stands for are not known here.
        if let Some(to_seq) = &self.summarized_to {
            id = tool_input::call_id(&format!("{id}_{to_seq}"));
        }
        self.taken.insert(id.clone());
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_do_not_repeat_those_of_steps_that_a_summary_stands_for() {
        let ids = |summarized_to: Option<&str>| CallIds {
            taken: HashSet::new(),
            messages: 3,
            summarized_to: summarized_to.map(str::to_owned),
        };
        assert_eq!(ids(None).take("call_0", 0), "call_0");
        assert_eq!(ids(Some("41")).take("call_0", 0), "call_0_41");
        assert_eq!(ids(Some("41")).take("", 1), "call_3_1_41");
        let long = ids(Some("41")).take(&"x".repeat(40), 0);
        assert_eq!(long, tool_input::call_id(&long), "it stays the same in every request");
    }
}
