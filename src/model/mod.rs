//! Model providers: Anthropic Messages, OpenAI-compatible chat completions and Responses, `scripted`.
//!
//! Called by the harness through the port `Model`; connects through `net`. An adapter translates
//! and parses and has no policy: the harness decides about retries, from the [`Fault`].

mod anthropic;
mod call_ids;
mod estimate;
mod exchange;
mod openai;
mod registry;
mod responses;
mod scripted;
mod sent_file;
mod sse;
mod strict;
mod tool_input;
mod window;

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::{Answer, Usage, conversation::ModelRequest};

pub use estimate::{input_tokens, tokens};
pub use exchange::{Guard, Http, trusted_client};
pub use registry::{Connection, ModelName, NoModel, Providers, Settings, encode};
pub use scripted::SAMPLE;
pub use window::context_tokens;

/// Port of a model provider.
#[async_trait]
pub trait Model: Send + Sync {
    /// Returns the provider's name, such as `anthropic`.
    fn provider(&self) -> &str;

    /// Makes one model call; `deltas` receives the response while it streams (best effort).
    ///
    /// Dropping the future closes the connection, so the provider stops generating.
    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault>;
}

/// A delta of a streaming response.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// More text of the block at `index`.
    Text { index: usize, text: String },
    /// More thinking of the block at `index`.
    Thinking { index: usize, text: String },
    /// More of a tool call's input; the input itself is returned only when complete.
    Input { bytes: usize },
    /// Cumulative usage that the provider reported for this call; the last one is valid.
    Used(Usage),
}

/// Reason why a model call failed, by the caller's reaction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// 429, 529, 5xx, no connection, a stall or an interrupted stream: retry.
    #[error("the model provider is not available: {reason}")]
    Unavailable { reason: String, retry_after: Option<Duration> },
    /// The history exceeds the model's context window.
    #[error("the conversation no longer fits the model: {reason}")]
    ContextTooLong { reason: String },
    /// The model does not take an image or a document of the history, or all of a kind.
    #[error("the model refused a file: {reason}")]
    FilesRefused { reason: String },
    /// 401 or 403: the credential is invalid, revoked or not allowed to use this model.
    #[error("the model provider refused the credential: {reason}")]
    Unauthorized { reason: String },
    /// 402, or a quota that does not refill with time.
    #[error("the model provider asks for payment: {reason}")]
    PaymentRequired { reason: String },
    /// Any other error: the same request would fail again.
    #[error("the model provider refused the request: {reason}")]
    Refused { reason: String },
}

impl Fault {
    /// Returns the fault with another reason.
    pub(crate) fn map_reason(self, map: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unavailable { reason, retry_after } => {
                Self::Unavailable { reason: map(reason), retry_after }
            }
            Self::ContextTooLong { reason } => Self::ContextTooLong { reason: map(reason) },
            Self::FilesRefused { reason } => Self::FilesRefused { reason: map(reason) },
            Self::Unauthorized { reason } => Self::Unauthorized { reason: map(reason) },
            Self::PaymentRequired { reason } => Self::PaymentRequired { reason: map(reason) },
            Self::Refused { reason } => Self::Refused { reason: map(reason) },
        }
    }
}
