//! Checks of the MCP servers of agents and sessions.

use crate::{
    domain::mcp::{McpServer, PROVIDER, problem},
    http::prelude::*,
    net,
    store::{self, credential::Credential},
};

/// Checks all but the credentials, which need the database.
pub(super) fn check_addresses(app: &App, servers: Option<&[McpServer]>) -> Result<()> {
    let servers = servers.unwrap_or_default();
    if let Some((index, field, words)) = problem(servers) {
        return Err(invalid(index, field, format!("`{field}` {words}")));
    }
    for (index, server) in servers.iter().enumerate() {
        let Some(url) = &server.url else { continue };
        net::parse(url)
            .and_then(|url| app.0.mcp_servers.check(&url))
            .map_err(|refused| invalid(index, "url", refused.to_string()))?;
    }
    Ok(())
}

/// Checks that the credentials exist, and that each is for its server: a token is sent to its own origin only.
pub(super) async fn check_credentials(unit: &mut Unit, servers: Option<&[McpServer]>) -> Result<()> {
    for (index, server) in servers.unwrap_or_default().iter().enumerate() {
        let (Some(id), Some(url)) = (server.credential, &server.url) else { continue };
        let credential = match unit.tx().credential(id).await {
            Ok(credential) => credential,
            Err(store::Error::NotFound) => {
                return Err(invalid(index, "credential", "no credential has this id"));
            }
            Err(error) => return Err(error.into()),
        };
        if !is_for(&credential, url) {
            let words = format!(
                "this credential is not for that server: it must have the provider `{PROVIDER}`, and a `base_url` with \
                 the same scheme, host and port as the `url`"
            );
            return Err(invalid(index, "credential", words));
        }
    }
    Ok(())
}

fn is_for(credential: &Credential, url: &str) -> bool {
    let base = credential.base_url.as_deref().and_then(|base| net::parse(base).ok());
    let (Some(base), Ok(url)) = (base, net::parse(url)) else { return false };
    credential.provider == PROVIDER && base.origin() == url.origin()
}

fn invalid(index: usize, field: &str, words: impl Into<String>) -> ApiError {
    ApiError::invalid(format!("mcp_servers[{index}].{field}"), words.into())
}
