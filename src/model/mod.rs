//! Model providers behind one port: Anthropic Messages, OpenAI-compatible chat
//! completions, and `scripted`, which needs no provider.
//!
//! Called by the harness through the port `Model`; connects through `net`. An
//! adapter translates and parses and has no policy: whether to try again is the
//! harness's to decide, from the [`Fault`].

mod anthropic;
mod estimate;
mod exchange;
mod openai;
mod registry;
mod scripted;
mod sse;
mod tool_input;

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::{Answer, Usage, conversation::ModelRequest};

pub use estimate::{input_tokens, tokens};
pub use exchange::{Guard, Http, trusted_client};
pub use registry::{Connection, ModelName, NoModel, Providers, Settings, encode};
pub use scripted::SAMPLE;

/// A provider that answers requests.
#[async_trait]
pub trait Model: Send + Sync {
    /// The provider's name, as in `anthropic`.
    fn provider(&self) -> &str;

    /// One model call. `deltas` sees the answer while it grows (best effort).
    ///
    /// Dropping the future drops the connection: the provider stops generating.
    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault>;
}

/// A piece of an answer that is still growing.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// More text of the block at `index`.
    Text { index: usize, text: String },
    /// More thinking of the block at `index`.
    Thinking { index: usize, text: String },
    /// More of a tool call's input, which is told when it is whole.
    Input { bytes: usize },
    /// What the provider counted so far for this call; the last one holds.
    Used(Usage),
}

/// Why a model call gave no answer, by what the caller will do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// 429, 529, 5xx, no connection, a stall or a cut stream: try again.
    #[error("the model provider is not available: {reason}")]
    Unavailable { reason: String, retry_after: Option<Duration> },
    /// The history is longer than the model can read.
    #[error("the conversation no longer fits the model: {reason}")]
    ContextTooLong { reason: String },
    /// 401 or 403: the credential is wrong, revoked or not allowed this model.
    #[error("the model provider refused the credential: {reason}")]
    Unauthorized { reason: String },
    /// 402, or a quota that waiting does not refill.
    #[error("the model provider asks for payment: {reason}")]
    PaymentRequired { reason: String },
    /// Any other refusal: the same request would be refused again.
    #[error("the model provider refused the request: {reason}")]
    Refused { reason: String },
}
