//! Usage accounting of model calls that end without a response.
//!
//! A provider charges for a prompt that it read and for tokens that it generated, even if the call
//! was dropped. The provider's own counts are used as far as it reported them; the rest is
//! estimated, so that dropping calls cannot evade a limit.

use super::{
    Delta,
    next::{Next, next},
    turn::{Run, millis},
};
use crate::{
    base::Timestamp,
    domain::{
        Actor, Cost, Usage,
        conversation::ModelRequest,
        event::{Aborted, Body, Draft, StepAborted},
    },
    model,
};

/// The part of a response that was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// The provider's own count, as far as it was reported.
    used: Option<Usage>,
    /// Bytes of generated text.
    bytes: usize,
}

/// An aborted call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub reason: Aborted,
    pub received: Received,
    pub started: Timestamp,
}

impl Received {
    /// Adds a delta of the response.
    pub(super) fn take(&mut self, delta: &Delta) {
        match delta {
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => self.bytes += text.len(),
            Delta::Input { bytes } => self.bytes += bytes,
            Delta::Used(usage) => self.used = Some(*usage),
        }
    }

    /// Returns whether the provider had started to respond.
    pub(super) fn is_anything(&self) -> bool {
        self.used.is_some() || self.bytes > 0
    }

    /// Returns the usage of the call, and whether part of it is estimated.
    fn usage(&self, request: &ModelRequest) -> (Usage, bool) {
        let said = model::tokens(self.bytes);
        match self.used {
            // Providers report output tokens at the end or at intervals.
            Some(used) => {
                let output_tokens = used.output_tokens.max(said);
                (Usage { output_tokens, ..used }, output_tokens > used.output_tokens)
            }
            None => {
                let input_tokens = model::input_tokens(request);
                (Usage { input_tokens, output_tokens: said, ..Usage::default() }, true)
            }
        }
    }
}

impl Run<'_> {
    /// Returns the aborted model call of a crashed worker's attempt: its prompt was sent, its
    /// response is lost.
    pub(super) fn lost_call(&self, attempt: i32) -> Option<Draft> {
        let was_asking = matches!(next(self.own(), attempt, self.turn.output_repairs), Next::Ask { .. });
        was_asking.then(|| {
            let (received, started) = (Received::default(), self.ports.origin.now());
            let cut = Cut { reason: Aborted::WorkerLost, received, started };
            self.aborted(cut, attempt, &self.request())
        })
    }

    /// Returns the event of an aborted call of `attempt`.
    pub(super) fn aborted(&self, cut: Cut, attempt: i32, request: &ModelRequest) -> Draft {
        let Cut { reason, received, started } = cut;
        let (used, estimated) = received.usage(request);
        let cost_micros = self.model().tariff.step_micros(&used);
        let body = Body::StepAborted(Box::new(StepAborted {
            provider: self.model().model.provider().to_owned(),
            model: self.model().name.clone(),
            reason,
            usage: Usage { cost: Cost::of_step(cost_micros), ..used },
            estimated,
            cost_micros,
            price_version: self.model().tariff.model.as_ref().map(|(_, version)| version.clone()),
            attempt,
            duration_ms: millis(self.ports.origin.now() - started),
        }));
        self.draft(body, Actor::system())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Message, conversation::ModelOptions};

    fn request() -> ModelRequest {
        ModelRequest {
            model: "m".to_owned(),
            system: "12345678".to_owned(),
            tools: Vec::new(),
            history: vec![Message::user("1234")],
            max_tokens: 1,
            options: ModelOptions::default(),
            files: std::collections::HashMap::new(),
        }
    }

    #[test]
    fn what_the_provider_counted_is_believed_and_the_rest_is_estimated() {
        let text = |text: &str| Delta::Text { index: 0, text: text.to_owned() };
        let mut received = Received::default();
        assert!(!received.is_anything());
        let nothing = Usage { input_tokens: 3, ..Usage::default() };
        assert_eq!(received.usage(&request()), (nothing, true), "the prompt was read");
        received.take(&text("12345678"));
        received.take(&Delta::Input { bytes: 4 });
        assert!(received.is_anything());
        assert_eq!(received.usage(&request()), (Usage { output_tokens: 3, ..nothing }, true));
        let counted = Usage { input_tokens: 70, cache_read_tokens: 9, output_tokens: 1, ..Usage::default() };
        received.take(&Delta::Used(counted));
        assert_eq!(received.usage(&request()), (Usage { output_tokens: 3, ..counted }, true));
        received.take(&Delta::Used(Usage { output_tokens: 5, ..counted }));
        assert_eq!(received.usage(&request()), (Usage { output_tokens: 5, ..counted }, false));
    }
}
