//! Client of MCP servers (Model Context Protocol, versions 2024-11-05 to 2026-07-28).
//!
//! Called by `turn`, which lists the tools of a server and calls them; calls `net` for every connection over HTTP, and
//! `sandbox` for a server that is a process there. A server is untrusted: what it sends is bounded in time and bytes, an access token goes to its own origin only, and one that
//! fails again and again is left alone for a while.

mod answer;
mod breaker;
mod connection;
mod elicitation;
mod exec;
mod failure;
mod lines;
mod oauth;
mod process;
mod process_output;
mod program;
mod transcript;
mod transport;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::{
    base::SecretString,
    domain::{CredentialId, OrgId},
    net,
};

pub use answer::{Answer, Image};
pub use connection::{CallOutcome, Connection, Listing};
pub use elicitation::{Asked, Continuation};
pub use failure::Failure;
pub use oauth::NoToken;
pub use program::Program;
pub use transcript::CallState;

use breaker::Breakers;

/// Clients of MCP servers of one process. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    net: net::Client,
    breakers: Arc<Breakers>,
    /// Work that outlives the turn which began it.
    tasks: TaskTracker,
}

/// A server, as one organization reaches it.
#[derive(Clone)]
pub struct Endpoint {
    pub org: OrgId,
    pub url: Url,
    pub credential: Option<CredentialId>,
    pub access: Arc<dyn AccessSource>,
}

/// Token and headers that authorize requests to a server.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub token: Option<SecretString>,
    /// Header of the token; `None` for `Authorization: Bearer`.
    pub key_header: Option<String>,
    /// Headers of each request, and their values.
    pub headers: Vec<(String, SecretString)>,
}

/// Source of the access to a server.
#[async_trait]
pub trait AccessSource: Send + Sync {
    /// Returns the access for the next request. `refused` is the token that the server has refused, if it has.
    ///
    /// # Errors
    /// The reason why there is none: the credential was deleted, or gets no new token.
    async fn access(&self, refused: Option<&SecretString>) -> Result<Access, String>;
}

impl Clients {
    /// Creates clients that connect by `net`.
    pub fn new(net: net::Client) -> Self {
        Self { net, breakers: Arc::default(), tasks: TaskTracker::new() }
    }

    /// Runs work that must not end with the turn which began it.
    pub fn run_to_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn(work)
    }

    /// Waits for that work. Call it when no turn runs any more.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
