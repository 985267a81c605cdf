//! The models of a turn: the one of its agent, and those that are called while that is not available.

use std::sync::Arc;

use futures::future::try_join_all;

use super::{Refusal, Runtime, connection, spans::TracedModel, unavailable};
use crate::{
    domain::{
        OrgId,
        conversation::ModelOptions,
        fallback::FallbackModel,
        price::{PriceList, Tariff},
        session::AgentSnapshot,
    },
    harness::{Halt, TurnModel},
    model::{self, Connection, ModelName, NoModel, Providers},
    store,
};

impl Runtime {
    /// Returns the models of a turn, in the order in which they are called. A fallback model that cannot be called now
    /// is left out.
    pub(super) async fn models(
        &self,
        org: OrgId,
        agent: &AgentSnapshot,
        name: &ModelName,
        credential: Option<&Connection>,
        prices: Option<&PriceList>,
    ) -> Result<Result<Vec<TurnModel>, Refusal>, Halt> {
        let mut models = match self.model(name, agent.model_options.clone(), credential, prices) {
            Ok(model) => vec![model],
            Err(refusal) => return Ok(Err(refusal)),
        };
        let fallbacks = agent.settings.fallback_models.iter().flatten();
        let read = fallbacks.map(async |fallback| {
            Ok((fallback, self.fallback(org, agent, fallback, credential, prices).await?))
        });
        for (fallback, read) in try_join_all(read).await? {
            match read {
                // Two of one name could not be told apart.
                Ok(model) if models.iter().any(|known| known.full_name() == model.full_name()) => {}
                Ok(model) => models.push(model),
                Err(Refusal { code, message, .. }) => {
                    let model = &fallback.model;
                    tracing::warn!(org.id = %org, model, code, message, "a fallback model cannot be called");
                }
            }
        }
        Ok(Ok(models))
    }

    fn model(
        &self,
        name: &ModelName,
        options: ModelOptions,
        credential: Option<&Connection>,
        prices: Option<&PriceList>,
    ) -> Result<TurnModel, Refusal> {
        let api = options.api.unwrap_or_default();
        let model = self.providers.model(name, api, credential).map_err(|error| match error {
            NoModel::BadName(reason) => Refusal::error("model_unknown", reason),
            error @ (NoModel::NoCredential { .. } | NoModel::BadCredential(_)) => {
                Refusal::error("no_credential", error.to_string())
            }
        })?;
        Ok(TurnModel {
            model: Arc::new(TracedModel(model)),
            name: name.model.clone(),
            window: options.context_tokens.or_else(|| model::context_tokens(&name.model)),
            tariff: Tariff::of(&name.to_string(), prices),
            options,
        })
    }

    /// Returns a fallback model, with the credential of the session if the provider is the same, else with the
    /// organization's default one.
    async fn fallback(
        &self,
        org: OrgId,
        agent: &AgentSnapshot,
        fallback: &FallbackModel,
        own: Option<&Connection>,
        prices: Option<&PriceList>,
    ) -> Result<Result<TurnModel, Refusal>, Halt> {
        let name = match fallback.model.parse::<ModelName>() {
            Ok(name) => name,
            Err(error) => return Ok(Err(Refusal::error("model_unknown", error.to_string()))),
        };
        let own = own.filter(|own| own.provider == name.provider);
        let default = match own {
            None if Providers::needs_credential(&name.provider) => {
                match self.sandboxes.store.open_default_credential(org, &name.provider).await {
                    Ok(open) => open.map(connection),
                    Err(error @ (store::Error::NotFound | store::Error::Corrupt(_))) => {
                        return Ok(Err(Refusal::error("no_credential", error.to_string())));
                    }
                    Err(error) => return Err(unavailable(error)),
                }
            }
            Some(_) | None => None,
        };
        let options = fallback.options(&agent.model, &agent.model_options);
        Ok(self.model(&name, options, default.as_ref().or(own), prices))
    }
}
