//! The tools of MCP servers for a turn: lists them, offers them to the model, and calls them.
//!
//! A connection is made when a list or a call first needs it, and ends with this worker's part of the turn. What the
//! model is offered comes from the log alone, so a worker that takes the turn over offers the same.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::Instant;
use url::Url;

use super::{mcp_access::StoredAccess, pinned_tools::McpTarget};
use crate::{
    base::{
        Origin, Timestamp,
        limit::{
            MCP_LIST_TIMEOUT, MCP_LISTS_PER_TURN_MAX, MCP_SKIPPED_MAX, MCP_TOOLS_MAX, MODEL_REASON_BYTES_MAX,
            NAME_BYTES_MAX,
        },
        text,
    },
    domain::{
        CredentialId, OrgId, SessionId,
        content::Content,
        event::Body,
        log_fold::McpLists,
        mcp::{self, McpFailed, McpListed, McpServer, McpSkipped, McpTool},
        tool::{Replay, ToolCall, ToolSpec},
    },
    file::{self, Files},
    mcp::{Answer, Clients, Connection, Endpoint, Failure, Image},
    store::Store,
    tool::{self, Call, CallResult, LazySchema},
};

/// Attempts of a call that is safe to repeat.
const ATTEMPTS: u32 = 2;

/// The MCP servers of an agent, for one lease.
pub(super) struct McpTools {
    clients: Clients,
    files: Files,
    org: OrgId,
    session: SessionId,
    servers: Vec<Server>,
    /// Tools that the model may be offered beside the others.
    tools_max: usize,
    offered: RwLock<Arc<[Offered]>>,
}

/// A server of the agent.
struct Server {
    config: McpServer,
    /// Where it is; or why that cannot be used.
    endpoint: Result<Endpoint, Failure>,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether it is known to need the handshake of the older versions.
    is_legacy: bool,
    /// Whether it did not know a tool that it had listed.
    is_stale: bool,
    /// Lists that were read because of a change.
    lists: u32,
}

/// A tool that the model is offered.
struct Offered {
    /// Place of its server.
    server: usize,
    /// Name that the server calls it.
    tool: String,
    spec: ToolSpec,
    schema: LazySchema,
}

impl McpTools {
    /// The tools as they were listed last.
    pub(super) fn new(
        clients: Clients,
        (store, files, origin): (&Store, &Files, &Origin),
        (org, session): (OrgId, SessionId),
        (servers, tools_max): (Vec<McpTarget>, usize),
        known: &McpLists,
    ) -> Self {
        let endpoint = |credential: Option<CredentialId>, url: Url| {
            let parts = (store.clone(), origin.clone());
            let access = Arc::new(StoredAccess::new(clients.clone(), parts, org, credential, &url));
            Endpoint { org, credential, access, url }
        };
        let server = |McpTarget { server, url }| {
            let endpoint = url.map(|url| endpoint(server.credential, url));
            Server::new(server, endpoint, known)
        };
        let servers = servers.into_iter().map(server).collect();
        let tools = Self {
            clients,
            files: files.clone(),
            org,
            session,
            servers,
            tools_max,
            offered: RwLock::new([].into()),
        };
        tools.offer(known);
        tools
    }

    /// Offers these tools from now on, those of the first servers first.
    pub(super) fn offer(&self, known: &McpLists) {
        let of_server = |(place, server): (usize, &Server)| {
            let offered = |tool: &McpTool| Offered {
                server: place,
                tool: tool.tool.clone(),
                spec: server.config.spec_of(tool),
                schema: LazySchema::new(tool.input_schema.clone()),
            };
            known.tools(&server.config).map(offered).collect::<Vec<_>>()
        };
        let offered = self.servers.iter().enumerate().flat_map(of_server).take(self.tools_max).collect();
        *self.offered.write().unwrap_or_else(PoisonError::into_inner) = offered;
    }

    /// The tools as the model sees them.
    pub(super) fn specs(&self) -> Vec<ToolSpec> {
        self.offered().iter().map(|offered| offered.spec.clone()).collect()
    }

    /// Returns the hash of the server of a tool; `None` for another tool.
    pub(super) fn server_hash(&self, name: &str) -> Option<String> {
        let (server, _) = self.target(name)?;
        Some(self.servers[server].config.server_hash())
    }

    /// Checks a call; or words for the model. `None` for a call of another tool.
    pub(super) fn check(&self, call: &ToolCall) -> Option<Result<Call, String>> {
        let offered = self.offered();
        let offered = offered.iter().find(|offered| offered.spec.name == call.tool)?;
        let checked = offered.schema.check(&call.tool, &call.input);
        Some(checked.map(|()| Call::remote(call.clone(), offered.spec.replay)))
    }

    /// Lists the tools of the servers whose list is due for a turn that started at `since`, or that changed.
    pub(super) async fn list(&self, known: &McpLists, since: Timestamp) -> Vec<Body> {
        let mut due = Vec::new();
        for server in &self.servers {
            if known.is_due(&server.config, since) || server.has_changed().await {
                due.push(self.list_one(server));
            }
        }
        join_all(due).await
    }

    async fn list_one(&self, server: &Server) -> Body {
        let started = Instant::now();
        let left = || MCP_LIST_TIMEOUT.saturating_sub(started.elapsed());
        let listed = async {
            let connection = self.connect(server, left()).await?;
            match connection.list(&server.config.name, left()).await {
                Ok(listing) => Ok(listing),
                Err(failure) => {
                    server.forget(&connection).await;
                    Err(failure)
                }
            }
        };
        let config = &server.config;
        match listed.await {
            Ok(listing) => {
                server.state().is_legacy = mcp::has_handshake(&listing.protocol_version);
                let (tools, skipped) = usable(listing.tools).await;
                let ttl = listing.ttl.map(|ttl| ttl.as_secs());
                let version = &listing.protocol_version;
                Body::McpListed(Box::new(McpListed::new(config, version, tools, skipped, ttl)))
            }
            Err(failure) => Body::McpFailed(McpFailed {
                server: config.name.clone(),
                server_hash: config.server_hash(),
                code: failure.code().to_owned(),
                message: failure.to_string(),
            }),
        }
    }

    /// Returns the first server that the agent needs and that could not list its tools for a turn that started at
    /// `since`.
    pub(super) fn missing(&self, known: &McpLists, since: Timestamp) -> Option<String> {
        let is_missing = |server: &&Server| server.config.required && known.is_away(&server.config, since);
        self.servers.iter().find(is_missing).map(|server| server.config.name.clone())
    }

    /// Runs a call to its end. `may_have_run`: an earlier worker may have sent it.
    pub(super) async fn run(&self, call: &Call, mut may_have_run: bool) -> CallResult {
        let Some((place, name)) = self.target(&call.origin.tool) else {
            return CallResult::not_run("This tool is no longer offered, so it did not run.");
        };
        let server = &self.servers[place];
        let mut attempts_left = if call.replay == Replay::Unsafe { 1 } else { ATTEMPTS };
        loop {
            attempts_left -= 1;
            match self.call(server, &name, call).await {
                Ok(answer) => return self.result(&server.config.name, &name, answer).await,
                Err((is_sent, failure)) => {
                    may_have_run |= is_sent && failure.may_have_run();
                    if attempts_left == 0 || !failure.may_pass() {
                        return failed(&server.config.name, call.replay, may_have_run, &failure);
                    }
                }
            }
        }
    }

    /// Settles a call that a worker began and did not finish.
    pub(super) async fn recover(&self, call: &Call) -> CallResult {
        if call.replay == Replay::Unsafe {
            return CallResult::unknown(
                "This call was interrupted and may have reached its server, so its outcome is unknown. Check what it did \
                 before you call the tool again.",
            );
        }
        self.run(call, true).await
    }

    /// Sends a call. An error says whether it was sent.
    async fn call(&self, server: &Server, name: &str, call: &Call) -> Result<Answer, (bool, Failure)> {
        let time = Duration::from_secs(server.config.timeout_seconds());
        let connected = self.connect(server, MCP_LIST_TIMEOUT.min(time)).await;
        let connection = connected.map_err(|failure| (false, failure))?;
        if !connection.has_listed()
            && self.needs_headers(&call.origin.tool)
            && let Err(failure) = connection.list(&server.config.name, MCP_LIST_TIMEOUT).await
        {
            server.forget(&connection).await;
            return Err((false, failure));
        }
        let arguments = call.origin.input.as_object().cloned().unwrap_or_default();
        let call_id = format!("{}/{}", self.session, call.id());
        match connection.call(name, arguments, &call_id, time).await {
            Ok(answer) => {
                if answer.is_unknown_tool {
                    server.state().is_stale = true;
                }
                Ok(answer)
            }
            Err(failure) => {
                server.forget(&connection).await;
                Err((true, failure))
            }
        }
    }

    /// Returns the connection to a server, within `time`.
    async fn connect(&self, server: &Server, time: Duration) -> Result<Arc<Connection>, Failure> {
        let mut current = server.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let endpoint = server.endpoint.as_ref().map_err(Clone::clone)?;
        let is_legacy = server.state().is_legacy;
        let connected = self.clients.connect(endpoint, is_legacy, time).await;
        // It may speak another version by now.
        server.state().is_legacy &= connected.is_ok();
        let connection = Arc::new(connected?);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Returns an answer as a result for the model.
    async fn result(&self, server: &str, name: &str, answer: Answer) -> CallResult {
        let Answer { mut text, is_error, images, .. } = answer;
        let mut content = Vec::new();
        for (index, image) in images.into_iter().enumerate() {
            match self.store(&format!("{server}-{name}-{}", index + 1), image).await {
                Ok(image) => content.push(image),
                Err(reason) => text.push_str(&format!("\n\n[an image that cannot be shown: {reason}]")),
            }
        }
        if text.trim().is_empty() {
            let words =
                if content.is_empty() { "The tool returned nothing." } else { "The tool returned this." };
            words.clone_into(&mut text);
        }
        let result = if is_error { CallResult::error(text) } else { CallResult::ok(text) };
        CallResult { content, ..result }
    }

    /// Stores an image for the model; or why it cannot be shown.
    async fn store(&self, name: &str, image: Image) -> Result<Content, String> {
        let kind = image
            .media_type
            .rsplit('/')
            .next()
            .filter(|kind| kind.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let name = format!("{name}.{}", kind.unwrap_or("bin"));
        let stored = self.files.create_for_session(self.org, self.session, &name, image.content).await;
        match stored.map(|file| file.reference()) {
            Ok(file) if file.image.is_some() => Ok(Content::Image(file)),
            Ok(_) => Err("its bytes are not those of an image".to_owned()),
            Err(error @ (file::Error::Refused(_) | file::Error::Full)) => Err(error.to_string()),
            // The server has answered: its answer must not be lost for an image.
            Err(error) => {
                tracing::warn!(%error, "an image of an MCP server was not stored");
                Err("it could not be stored".to_owned())
            }
        }
    }

    /// Returns whether some arguments of a tool are also sent as headers, which the list of its server says.
    fn needs_headers(&self, name: &str) -> bool {
        let offered = self.offered();
        let offered = offered.iter().find(|offered| offered.spec.name == name);
        offered.is_some_and(|offered| offered.spec.input_schema.to_string().contains("x-mcp-header"))
    }

    fn target(&self, name: &str) -> Option<(usize, String)> {
        let offered = self.offered();
        let offered = offered.iter().find(|offered| offered.spec.name == name)?;
        Some((offered.server, offered.tool.clone()))
    }

    fn offered(&self) -> Arc<[Offered]> {
        Arc::clone(&self.offered.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the connections.
    pub(super) async fn close(&self) {
        let close = async |server: &Server| {
            let connection = server.connection.lock().await.take();
            if let Some(connection) = connection.and_then(Arc::into_inner) {
                connection.close().await;
            }
        };
        join_all(self.servers.iter().map(close)).await;
    }
}

impl Server {
    fn new(config: McpServer, endpoint: Result<Endpoint, Failure>, known: &McpLists) -> Self {
        let is_legacy =
            known.listed(&config).is_some_and(|listed| mcp::has_handshake(&listed.protocol_version));
        let state = Mutex::new(State { is_legacy, ..State::default() });
        Self { config, endpoint, connection: tokio::sync::Mutex::default(), state }
    }

    /// Returns whether its tools changed since they were listed, as far as it says so, and not too often.
    async fn has_changed(&self) -> bool {
        let is_told =
            self.connection.lock().await.as_ref().is_some_and(|connection| connection.take_change());
        let mut state = self.state();
        let has_changed = std::mem::take(&mut state.is_stale) || is_told;
        if has_changed {
            state.lists += 1;
        }
        has_changed && state.lists <= MCP_LISTS_PER_TURN_MAX
    }

    /// Drops a connection that failed.
    async fn forget(&self, failed: &Arc<Connection>) {
        let mut current = self.connection.lock().await;
        if current.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, failed)) {
            *current = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tools that a model can be offered, and the others with the reason.
async fn usable(tools: Vec<McpTool>) -> (Vec<McpTool>, Vec<McpSkipped>) {
    let (mut named, mut skipped, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for tool in tools {
        let reason = if tool.tool.is_empty() || tool.tool.len() > NAME_BYTES_MAX {
            Some(format!("has a name that is empty or longer than {NAME_BYTES_MAX} bytes"))
        } else if !names.insert(tool.name.clone()) {
            Some("is listed twice".to_owned())
        } else if named.len() >= MCP_TOOLS_MAX {
            Some(format!("is beyond the first {MCP_TOOLS_MAX}"))
        } else {
            None
        };
        match reason {
            Some(reason) => skipped.push(McpSkipped { tool: tool.tool, reason }),
            None => named.push(tool),
        }
    }
    let schemas = named.iter().map(|tool: &McpTool| tool.input_schema.clone()).collect();
    let problems = tool::check_schemas(schemas).await;
    let mut usable = Vec::new();
    for (tool, problem) in named.into_iter().zip(problems) {
        match problem {
            Some(problem) => {
                skipped.push(McpSkipped { tool: tool.tool, reason: format!("`inputSchema` {problem}") });
            }
            None => usable.push(tool),
        }
    }
    if skipped.len() > MCP_SKIPPED_MAX {
        skipped.truncate(MCP_SKIPPED_MAX);
        skipped.push(McpSkipped { tool: String::new(), reason: "and others".to_owned() });
    }
    for one in &mut skipped {
        one.tool = text::truncate(&one.tool, NAME_BYTES_MAX).to_owned();
        one.reason = text::truncate(&one.reason, MODEL_REASON_BYTES_MAX).to_owned();
    }
    (usable, skipped)
}

/// Returns the result of a call that got no answer.
fn failed(server: &str, replay: Replay, may_have_run: bool, failure: &Failure) -> CallResult {
    let words = format!("The MCP server `{server}` gave no result: {failure}.");
    match (may_have_run, replay) {
        (false, _) => CallResult::not_run(format!("{words} The tool did not run.")),
        (true, Replay::ReadOnly) => CallResult::error(words),
        (true, Replay::Unsafe | Replay::Idempotent) => CallResult::unknown(format!(
            "{words} The outcome of the call is unknown; check what it did before you call the tool again."
        )),
    }
}
