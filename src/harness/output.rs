//! The output of a turn that has an output schema: judged when the agent submits it, and asked for again.

use serde_json::Value;

use super::{Halt, next::Finish, turn::Run};
use crate::{
    domain::{
        Actor, Level,
        event::{Body, Draft, RejectedOutput},
        tool::ToolCall,
    },
    tool::CallResult,
};

impl Run<'_> {
    /// Returns the events of a submitted output: the result of the turn, or its `faults` for the model.
    pub(super) fn submit(&self, call: &ToolCall, faults: Vec<String>) -> Vec<Draft> {
        if faults.is_empty() {
            let body = Body::AgentMessage {
                text: call.input.to_string(),
                awaiting_input: false,
                options: Vec::new(),
                output: Some(call.input.clone()),
                output_repairs: Some(self.rejections(&[])),
            };
            let mut message = self.draft(body, Actor::agent());
            message.level = Level::User;
            let done = CallResult::ok("The output was accepted.");
            return [vec![message], self.result_events(call, done)].concat();
        }
        let words = format!(
            "The output does not fit its schema, so it was not accepted.\n{}\nSubmit the whole output again.",
            faults.join("\n")
        );
        let rejected = RejectedOutput { call_id: Some(call.call_id.clone()), faults };
        let rejected = self.draft(Body::OutputRejected(rejected), Actor::system());
        [vec![rejected], self.result_events(call, CallResult::not_run(words))].concat()
    }

    /// Tells the model that the turn needs an output. Returns whether the turn ended instead.
    pub(super) async fn ask_for_output(&mut self) -> Result<bool, Halt> {
        let faults = vec!["no output was submitted".to_owned()];
        let rejected = RejectedOutput { call_id: None, faults };
        let rejected = vec![self.draft(Body::OutputRejected(rejected), Actor::system())];
        let rejections = self.rejections(&rejected);
        if self.turn.output_repairs.is_some_and(|repairs| rejections > repairs) {
            return self.finish(Finish::OutputInvalid, rejected).await;
        }
        self.record(rejected).await?;
        Ok(false)
    }

    /// Returns the number of rejected outputs, including `before`.
    pub(super) fn rejections(&self, before: &[Draft]) -> u32 {
        let is_rejection = |draft: &&Draft| matches!(draft.body, Body::OutputRejected(_));
        let new = u32::try_from(before.iter().filter(is_rejection).count()).unwrap_or(u32::MAX);
        self.own().map_or(0, |turn| turn.output_repairs).saturating_add(new)
    }

    /// Returns the output that the agent submitted, including `before`.
    pub(super) fn output(&self, before: &[Draft]) -> Option<Value> {
        let output = |draft: &Draft| match &draft.body {
            Body::AgentMessage { output, .. } => output.clone(),
            _ => None,
        };
        before.iter().rev().find_map(output).or_else(|| self.own()?.output.clone())
    }
}
