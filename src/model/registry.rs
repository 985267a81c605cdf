//! Registry that resolves a model name to a model.
//!
//! Called by `turn`, and by `http` to validate a name before a session pins it;
//! creates the adapters. A URL that an organization set is marked as such here, so that it is
//! reachable only through the guard.

use std::{fmt, str::FromStr, sync::Arc};

use url::Url;

use super::{
    Model,
    anthropic::{self, Anthropic},
    exchange::{Access, Http},
    openai::{self, OpenAi},
    responses::{self, Responses},
    scripted::{self, Scripted},
};
use crate::{
    base::{SecretString, limit},
    domain::{
        conversation::{ModelApi, ModelRequest},
        mcp, source,
    },
};

/// A model name with its provider, such as `anthropic/claude-sonnet-4-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// `[a-z0-9_-]`, such as `anthropic`.
    pub provider: String,
    /// The provider's name of the model; may contain slashes.
    pub model: String,
}

/// A stored credential, decrypted for one turn.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The provider of the key.
    pub provider: String,
    /// A custom base URL that the organization set.
    pub base_url: Option<Url>,
    pub key: SecretString,
    /// The header of the key, if it is not that of the provider's API.
    pub key_header: Option<String>,
    /// Further headers of each call, with names in lower case; one replaces that of the adapter.
    pub headers: Vec<(String, SecretString)>,
}

/// The operator's settings for providers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The part before `/v1/messages`.
    pub anthropic_base_url: Url,
    /// `2023-06-01` or `2026-10-21`.
    pub anthropic_version: String,
    /// The part before `/chat/completions` and `/responses`.
    pub openai_base_url: Url,
    /// Whether `scripted/...` models may be used.
    pub scripted: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let url = |text: &str| text.parse().expect("a constant address");
        Self {
            anthropic_base_url: url("https://api.anthropic.com"),
            anthropic_version: anthropic::VERSION_DEFAULT.to_owned(),
            openai_base_url: url("https://api.openai.com/v1"),
            scripted: true,
        }
    }
}

/// Reason why a name resolves to no model; the message is for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModel {
    /// The name is malformed or refers to no known provider or script.
    #[error("{0}")]
    BadName(String),
    /// The provider needs a credential and there is none.
    #[error("the model provider {provider} needs a credential")]
    NoCredential { provider: String },
    /// The credential does not match the name.
    #[error("{0}")]
    BadCredential(String),
}

/// Creates models; one instance per process.
#[derive(Debug)]
pub struct Providers {
    http: Http,
    settings: Settings,
    scripted: Arc<scripted::Faults>,
}

impl Providers {
    /// Creates the registry with the process's HTTP client.
    pub fn new(http: Http, settings: Settings) -> Self {
        Self { http, settings, scripted: Arc::default() }
    }

    /// Returns whether models of this provider need a credential.
    pub fn needs_credential(provider: &str) -> bool {
        provider != scripted::PROVIDER
    }

    /// Returns the model with that name, using that credential. Does not connect.
    ///
    /// # Errors
    /// `BadName` for a provider that is disabled or unknown (any provider other than the built-in ones
    /// needs a credential with a `base_url`), `NoCredential`, `BadCredential`.
    pub fn model(
        &self,
        name: &ModelName,
        api: ModelApi,
        credential: Option<&Connection>,
    ) -> Result<Arc<dyn Model>, NoModel> {
        if name.provider == scripted::PROVIDER {
            return self.scripted_model(&name.model);
        }
        let provider = &name.provider;
        let credential = credential.ok_or_else(|| NoModel::NoCredential { provider: provider.clone() })?;
        if credential.provider != *provider {
            let reason =
                format!("the credential is for {}, the model is from {provider}", credential.provider);
            return Err(NoModel::BadCredential(reason));
        }
        let own = match provider.as_str() {
            anthropic::PROVIDER => Some(&self.settings.anthropic_base_url),
            openai::PROVIDER => Some(&self.settings.openai_base_url),
            _ => None,
        };
        let org_named = credential.base_url.is_some();
        let base = credential.base_url.as_ref().or(own).ok_or_else(|| {
            let known = "anthropic, openai or scripted";
            NoModel::BadCredential(format!(
                "{provider} is not {known}: its credential needs the base_url of an OpenAI-compatible API"
            ))
        })?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(NoModel::BadCredential(
                "the base_url must begin with https:// or http://".to_owned(),
            ));
        }
        let http = self.http.clone();
        let access = Access {
            org_named,
            key: credential.key.clone(),
            key_header: credential.key_header.clone(),
            headers: credential.headers.clone(),
        };
        Ok(match (provider.as_str(), api) {
            (anthropic::PROVIDER, _) => {
                Arc::new(Anthropic::new(http, base, access, &self.settings.anthropic_version))
            }
            (_, ModelApi::ChatCompletions) => Arc::new(OpenAi::new(http, base, access, provider)),
            (_, ModelApi::Responses) => Arc::new(Responses::new(http, base, access, provider)),
        })
    }

    /// Rejects a name that cannot be valid. Only the provider knows its models; the scripts are
    /// known here.
    pub fn check(name: &ModelName) -> Result<(), NoModel> {
        if [source::PROVIDER, mcp::PROVIDER].contains(&name.provider.as_str()) {
            let reason =
                format!("{} is not a model provider; its credentials are for something else", name.provider);
            return Err(NoModel::BadName(reason));
        }
        if Self::needs_credential(&name.provider) || scripted::NAMES.contains(&name.model.as_str()) {
            return Ok(());
        }
        Err(unknown_script(&name.model))
    }

    fn scripted_model(&self, model: &str) -> Result<Arc<dyn Model>, NoModel> {
        if !self.settings.scripted {
            return Err(NoModel::BadName("scripted models are disabled here".to_owned()));
        }
        let scripted = Scripted::named(model, Arc::clone(&self.scripted));
        Ok(Arc::new(scripted.ok_or_else(|| unknown_script(model))?))
    }
}

fn unknown_script(model: &str) -> NoModel {
    NoModel::BadName(format!("there is no scripted/{model}; available are {}", scripted::NAMES.join(", ")))
}

/// Returns the request body for a model of `provider`, as the log names it: Anthropic's Messages format, that of the
/// Responses API, or chat completions for all others. Equal requests give equal bytes.
pub fn encode(provider: &str, request: &ModelRequest) -> Vec<u8> {
    match provider {
        anthropic::PROVIDER => anthropic::encode(request),
        provider if provider.ends_with(responses::SUFFIX) => responses::encode(request, provider),
        _ => openai::encode(request, provider),
    }
}

impl FromStr for ModelName {
    type Err = NoModel;

    fn from_str(text: &str) -> Result<Self, NoModel> {
        let bad = |reason: &str| {
            let form = "a model name has the form provider/model, such as anthropic/claude-sonnet-4-5";
            Err(NoModel::BadName(format!("{form}: {reason}")))
        };
        if text.len() > limit::MODEL_NAME_BYTES_MAX {
            return bad(&format!("the name is longer than {} bytes", limit::MODEL_NAME_BYTES_MAX));
        }
        let Some((provider, model)) = text.split_once('/') else {
            return bad("the provider is missing");
        };
        let character =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if provider.is_empty() || !provider.bytes().all(character) {
            return bad("the provider may contain only a-z, 0-9, _ and -");
        }
        if model.is_empty() || !model.bytes().all(|byte| byte.is_ascii_graphic()) {
            return bad("the part after the slash must be non-empty printable ASCII without spaces");
        }
        Ok(Self { provider: provider.to_owned(), model: model.to_owned() })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::exchange::trusted_client;

    fn providers(settings: Settings) -> Providers {
        Providers::new(Http::new(trusted_client(), None), settings)
    }

    fn name(text: &str) -> ModelName {
        text.parse().expect("a model's name")
    }

    fn connection(provider: &str, base_url: Option<&str>) -> Connection {
        let base_url = base_url.map(|url| url.parse().expect("an address"));
        let (key_header, headers) = (None, Vec::new());
        Connection { provider: provider.to_owned(), base_url, key: "sk-1".into(), key_header, headers }
    }

    #[test]
    fn a_name_has_a_provider_and_a_model() {
        assert_eq!(name("router/meta/llama:free").model, "meta/llama:free");
        assert_eq!(name("openai/gpt-5").to_string(), "openai/gpt-5");
        for bad in ["", "gpt-5", "/x", "openai/", "Open AI/x", "openai/a b", "openai/é"] {
            let error = bad.parse::<ModelName>().expect_err(bad);
            assert!(error.to_string().contains("provider/model"), "{error}");
        }
        assert!("a/".to_owned().parse::<ModelName>().is_err());
        assert!(format!("a/{}", "x".repeat(limit::MODEL_NAME_BYTES_MAX)).parse::<ModelName>().is_err());
    }

    #[test]
    fn each_provider_asks_for_what_it_needs() {
        let all = providers(Settings::default());
        let model = |text: &str, credential: Option<&Connection>| {
            all.model(&name(text), ModelApi::ChatCompletions, credential)
                .map(|model| model.provider().to_owned())
        };
        assert_eq!(model("scripted/noop", None).as_deref(), Ok("scripted"));
        assert!(matches!(model("scripted/other", None), Err(NoModel::BadName(_))));
        assert!(matches!(model("anthropic/x", None), Err(NoModel::NoCredential { .. })));
        let own = connection("anthropic", None);
        assert_eq!(model("anthropic/x", Some(&own)).as_deref(), Ok("anthropic"));
        assert!(matches!(model("openai/x", Some(&own)), Err(NoModel::BadCredential(_))));
        let bare = connection("groq", None);
        assert!(matches!(model("groq/x", Some(&bare)), Err(NoModel::BadCredential(_))));
        let groq = connection("groq", Some("https://api.example/openai/v1"));
        assert_eq!(model("groq/x", Some(&groq)).as_deref(), Ok("groq"));
        let file = connection("groq", Some("file:///etc/passwd"));
        assert!(matches!(model("groq/x", Some(&file)), Err(NoModel::BadCredential(_))));
    }

    #[test]
    fn scripted_models_can_be_turned_off() {
        let off = providers(Settings { scripted: false, ..Settings::default() });
        assert!(matches!(
            off.model(&name("scripted/noop"), ModelApi::ChatCompletions, None),
            Err(NoModel::BadName(_))
        ));
    }
}
