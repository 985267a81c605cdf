//! Models that answer while the model of an agent is not available.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::conversation::ModelOptions;
use crate::base::json;

/// A model that is called when the one before it is not available.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FallbackModel {
    /// `provider/model`, as the model of an agent.
    pub model: String,
    /// Its options. By default those of the agent without `context_tokens` if the provider is the same, else only
    /// `max_tokens` of them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::object_or_null")]
    pub model_options: Option<ModelOptions>,
}

impl FallbackModel {
    /// Returns its options, given the model of the agent and its options.
    pub fn options(&self, model: &str, options: &ModelOptions) -> ModelOptions {
        let provider = |name: &str| name.split_once('/').map(|(provider, _)| provider.to_owned());
        match &self.model_options {
            Some(own) => own.clone(),
            None if provider(&self.model) == provider(model) => {
                ModelOptions { context_tokens: None, ..options.clone() }
            }
            None => ModelOptions { max_tokens: options.max_tokens, ..ModelOptions::default() },
        }
    }
}

/// Returns the index of the model for the next call. A turn stays with the model at `last`, which answered it last; each
/// of the `failures` since then moves on by one of the `count` models, and the first follows the last.
pub fn index(last: usize, failures: u32, count: usize) -> usize {
    (last + failures as usize) % count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::Effort;

    #[test]
    fn options_go_with_the_provider() {
        let effort = Some(Effort::Low);
        let options =
            ModelOptions { max_tokens: Some(7), context_tokens: Some(9), effort, ..ModelOptions::default() };
        let fallback = |model: &str, model_options| FallbackModel { model: model.to_owned(), model_options };
        let same = ModelOptions { context_tokens: None, ..options.clone() };
        assert_eq!(fallback("a/two", None).options("a/one", &options), same);
        let only = ModelOptions { max_tokens: Some(7), ..ModelOptions::default() };
        assert_eq!(fallback("b/two", None).options("a/one", &options), only);
        let own = ModelOptions { max_tokens: Some(1), ..ModelOptions::default() };
        assert_eq!(fallback("a/two", Some(own.clone())).options("a/one", &options), own);
    }

    #[test]
    fn failures_go_around() {
        assert_eq!([0, 1, 2, 3].map(|failures| index(1, failures, 3)), [1, 2, 0, 1]);
        assert_eq!([0, 1, 2].map(|failures| index(0, failures, 1)), [0, 0, 0]);
    }
}
