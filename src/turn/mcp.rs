//! The tools of MCP servers for a turn: lists them, offers them to the model, and calls them.
//!
//! A connection is made when a list or a call first needs it, and ends with this worker's part of the turn; a server that
//! is a process stays in its sandbox. What the model is offered comes from the log alone, so a worker that takes the turn over offers the same.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::{
    elicitation::Elicitations,
    mcp_access::StoredAccess,
    mcp_server::{Obstacle, Purpose, Reach, Server},
    mcp_tools::usable,
    pinned_tools::{McpPlace, McpTarget},
};
use crate::{
    base::{
        Origin, Timestamp,
        limit::{
            ELICITATIONS_MAX, MCP_LIST_TIMEOUT, MCP_PROCESS_LIST_TIMEOUT, MCP_REPEAT_DELAY,
            SANDBOX_CALL_ATTEMPTS_MAX,
        },
    },
    domain::{
        CredentialId, OrgId, SessionId,
        content::Content,
        elicitation::Response,
        event::Body,
        log_fold::McpLists,
        mcp::{McpFailed, McpListed, McpTool},
        tool::{Replay, ToolCall, ToolSpec},
    },
    file::{self, Files},
    harness::Halt,
    lifecycle::{self, LeasedSandbox},
    mcp::{Answer, CallOutcome, CallState, Clients, Continuation, Endpoint, Failure, Image},
    store::Store,
    tool::{Call, CallResult, Fault, LazySchema},
};

/// Attempts of a call that is safe to repeat.
const ATTEMPTS: u32 = 2;
/// Told of a call that cannot be settled.
const INTERRUPTED: &str = "This call was interrupted and may have reached its server, so its outcome is unknown. Check \
                           what it did before you call the tool again.";

/// Told of a call whose server asked a person, when its state cannot be read.
const UNREADABLE: &str = "The server of this call asked a person, and its state cannot be read here, so the call was given \
                          up; its outcome is unknown.";

/// A request of a call.
struct Request {
    /// State of the server, and the response of a person.
    response: Option<(Continuation, Response)>,
    /// How often the server wanted to be called again since.
    repetition: u32,
}

/// The MCP servers of an agent, for one lease.
pub(super) struct McpTools {
    files: Files,
    /// Sandbox of the servers that are processes.
    sandbox: Arc<LeasedSandbox>,
    elicitations: Elicitations,
    origin: Origin,
    org: OrgId,
    session: SessionId,
    servers: Vec<Server>,
    /// Tools that the model may be offered beside the others.
    tools_max: usize,
    offered: RwLock<Arc<[Offered]>>,
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
    /// The tools as they were listed last. `expires_seconds`: time in which a person must answer a server.
    pub(super) fn new(
        clients: Clients,
        (store, files, origin): (&Store, &Files, &Origin),
        sandbox: &Arc<LeasedSandbox>,
        (servers, tools_max, expires_seconds): (Vec<McpTarget>, usize, u64),
        known: &McpLists,
    ) -> Self {
        let (org, session) = (sandbox.writer().fence().org, sandbox.writer().fence().session);
        let endpoint = |credential: Option<CredentialId>, url: Url| {
            let parts = (store.clone(), origin.clone());
            let access = Arc::new(StoredAccess::new(clients.clone(), parts, org, credential, &url));
            Endpoint { org, credential, access, url }
        };
        let server = |McpTarget { server, place }| {
            let reach = place.map(|place| match place {
                McpPlace::Address(url) => Reach::Http(endpoint(server.credential, url)),
                McpPlace::Command(command) => Reach::Process(command),
            });
            Server::new(server, reach, (&clients, sandbox), known)
        };
        let servers = servers.into_iter().map(server).collect();
        let tools = Self {
            files: files.clone(),
            sandbox: Arc::clone(sandbox),
            elicitations: Elicitations::new((store, origin), (org, session), expires_seconds),
            origin: origin.clone(),
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
        let replay = offered.spec.replay;
        // What a process was sent is stored beside it.
        let call = || match self.servers[offered.server].is_process() {
            true => Call::external(call.clone(), replay, None),
            false => Call::remote(call.clone(), replay),
        };
        Some(checked.map(|()| call()))
    }

    /// Lists the tools of the servers whose list is due for a turn that started at `since`, or that changed. Returns also why
    /// the turn cannot go on now: those in the sandbox are not listed without one.
    pub(super) async fn list(&self, known: &McpLists, since: Timestamp) -> (Vec<Body>, Option<Halt>) {
        let mut due = Vec::new();
        for server in &self.servers {
            if known.is_due(&server.config, since) || server.has_changed().await {
                due.push(self.list_one(server));
            }
        }
        let (mut listed, mut halt) = (Vec::new(), None);
        for one in join_all(due).await {
            match one {
                Ok(body) => listed.push(body),
                Err(reason) => halt = Some(reason),
            }
        }
        (listed, halt)
    }

    async fn list_one(&self, server: &Server) -> Result<Body, Halt> {
        let started = Instant::now();
        let time = if server.is_process() { MCP_PROCESS_LIST_TIMEOUT } else { MCP_LIST_TIMEOUT };
        let left = || time.saturating_sub(started.elapsed());
        let _use = server.begin_use();
        let listed = async {
            let connection = match server.connect(Purpose::Call, left()).await {
                Ok(connection) => connection,
                Err(Obstacle::Failure(failure)) => return Ok(Err(failure)),
                Err(Obstacle::Sandbox(lifecycle::Error::Stale)) => return Err(Halt::Stale),
                Err(Obstacle::Sandbox(lifecycle::Error::NotYet(_, retry))) => return Err(Halt::Wait(retry)),
                Err(Obstacle::Sandbox(error)) => return Ok(Err(Failure::Unreachable(error.to_string()))),
            };
            let listing = connection.list(&server.config.name, left()).await;
            if listing.is_err() {
                server.forget(&connection).await;
            }
            Ok(listing)
        };
        let config = &server.config;
        Ok(match listed.await? {
            Ok(listing) => {
                server.note_version(&listing.protocol_version);
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
                retry_at: failure.suspended_for().map(|left| self.origin.now() + left),
            }),
        })
    }

    /// Returns the first server that the agent needs and that could not list its tools for a turn that started at
    /// `since`.
    pub(super) fn missing(&self, known: &McpLists, since: Timestamp) -> Option<String> {
        let is_missing = |server: &&Server| server.config.required && known.is_away(&server.config, since);
        self.servers.iter().find(is_missing).map(|server| server.config.name.clone())
    }

    /// Returns whether this is a call of a tool of a server.
    pub(super) fn has(&self, call: &Call) -> bool {
        self.target(&call.origin.tool).is_some()
    }

    /// Returns whether this is a call of a server that is a process in the sandbox.
    pub(super) fn is_in_sandbox(&self, call: &Call) -> bool {
        self.target(&call.origin.tool).is_some_and(|(place, _)| self.servers[place].is_process())
    }

    /// Reads the key of what a person has answered, before the call goes on.
    pub(super) async fn open_response(&self, call: &Call) -> Result<(), Fault> {
        if call.elicited.is_some() { self.elicitations.key().await.map(drop) } else { Ok(()) }
    }

    /// Runs a call to its end. `may_have_run`: an earlier worker may have sent it.
    ///
    /// # Errors
    /// There is no sandbox for a server that is a process.
    pub(super) async fn run(&self, call: &Call, mut may_have_run: bool) -> Result<CallResult, Fault> {
        let Some((place, name)) = self.target(&call.origin.tool) else {
            return Ok(CallResult::not_run("This tool is no longer offered, so it did not run."));
        };
        let server = &self.servers[place];
        // The request before the question of its server has run.
        may_have_run |= call.elicited.is_some();
        let mut attempts_left = if call.replay == Replay::Unsafe { 1 } else { ATTEMPTS };
        let mut connections_left = SANDBOX_CALL_ATTEMPTS_MAX;
        let Ok(response) = self.elicitations.open(call).await? else {
            return Ok(CallResult::unknown(UNREADABLE));
        };
        let mut request = Request { response, repetition: 0 };
        loop {
            let (is_sent, failure) = match self.call(server, &name, call, &request).await? {
                Ok(CallOutcome::Answered(answer)) => {
                    return Ok(self.result(&server.config.name, &name, answer).await);
                }
                // It only wants to be called again.
                Ok(CallOutcome::Asked(asked))
                    if asked.is_empty() && request.repetition < ELICITATIONS_MAX =>
                {
                    may_have_run = true;
                    sleep(MCP_REPEAT_DELAY).await;
                    let response = Some((asked.continuation, Response::Canceled));
                    request = Request { response, repetition: request.repetition + 1 };
                    continue;
                }
                Ok(CallOutcome::Asked(asked)) if asked.is_empty() => {
                    let words = format!("it wanted to be called again {ELICITATIONS_MAX} times");
                    (true, Failure::Protocol(words))
                }
                Ok(CallOutcome::Asked(asked)) => {
                    let elicitation = self.elicitations.seal(call, &server.config.name, asked).await?;
                    return Err(Fault::Asks(Box::new(elicitation)));
                }
                Err(failed) => failed,
            };
            may_have_run |= is_sent && failure.may_have_run();
            // A process that has the call may still answer it.
            if matches!(failure, Failure::Lost(_)) && connections_left > 0 && self.is_open(server, call).await
            {
                connections_left -= 1;
                continue;
            }
            attempts_left -= 1;
            if attempts_left == 0 || !failure.may_pass() {
                return Ok(failed(&server.config.name, call.replay, may_have_run, &failure));
            }
        }
    }

    /// Returns whether the process of a server has a call, and its answer can be read.
    async fn is_open(&self, server: &Server, call: &Call) -> bool {
        if !server.is_process() {
            return false;
        }
        let _use = server.begin_use();
        let connected = server.connect(Purpose::Recovery, MCP_PROCESS_LIST_TIMEOUT).await;
        let state = connected.ok().and_then(|connection| connection.call_state(&self.request_name(call, 0)));
        matches!(state, Some(CallState::Open | CallState::Answered(Some(_))))
    }

    /// Settles a call that a worker began and did not finish. `was_lost`: so was the sandbox of that time.
    pub(super) async fn recover(&self, call: &Call, was_lost: bool) -> Result<CallResult, Fault> {
        let server = self.target(&call.origin.tool).map(|(place, _)| &self.servers[place]);
        if call.replay != Replay::Unsafe {
            return self.run(call, true).await;
        }
        let Some(server) = server.filter(|server| server.is_process() && !was_lost) else {
            return Ok(CallResult::unknown(INTERRUPTED));
        };
        let _use = server.begin_use();
        let connected = server.connect(Purpose::Recovery, MCP_PROCESS_LIST_TIMEOUT).await;
        let state = match connected {
            Ok(connection) => connection.call_state(&self.request_name(call, 0)),
            Err(Obstacle::Failure(_)) => Some(CallState::Lost),
            Err(Obstacle::Sandbox(error)) => return Err(error.into()),
        };
        match state {
            // A process that has the call is not sent it again, and its answer is kept. The sandbox stays while it is
            // used here.
            None | Some(CallState::Open | CallState::Answered(_)) => self.run(call, state.is_some()).await,
            Some(CallState::Canceled | CallState::Lost) => Ok(CallResult::unknown(INTERRUPTED)),
        }
    }

    /// Tells a process that a call is given up. Returns whether this is a call of a server.
    pub(super) async fn cancel(&self, call: &ToolCall) -> bool {
        let Some((place, _)) = self.target(&call.tool) else { return false };
        let server = &self.servers[place];
        // A call at another server was given up with its future.
        if server.is_process() {
            let tell = async {
                if self.sandbox.still_exists().await.is_ok_and(|exists| exists) {
                    let _use = server.begin_use();
                    if let Ok(connection) = server.connect(Purpose::Cancel, MCP_LIST_TIMEOUT).await {
                        connection.cancel(&self.call_id(&call.call_id)).await;
                    }
                }
            };
            if timeout(MCP_LIST_TIMEOUT, tell).await.is_err() {
                tracing::debug!(session.id = %self.session, "the process of an MCP server was not told of a cancel");
            }
        }
        true
    }

    /// Name of a call for its server.
    fn call_id(&self, call_id: &str) -> String {
        format!("{}/{call_id}", self.session)
    }

    /// Name of a request of a call for its server: a call has another one after each response of a person.
    fn request_name(&self, call: &Call, repetition: u32) -> String {
        let name = self.call_id(call.id());
        match (call.elicited.as_ref().map_or(0, |elicited| elicited.round), repetition) {
            (0, 0) => name,
            (round, repetition) => format!("{name}/{round}.{repetition}"),
        }
    }

    /// Sends a request of a call. The inner error says whether it was sent.
    async fn call(
        &self,
        server: &Server,
        name: &str,
        call: &Call,
        request: &Request,
    ) -> Result<Result<CallOutcome, (bool, Failure)>, Fault> {
        let _use = server.begin_use();
        let time = Duration::from_secs(server.config.timeout_seconds());
        let start = if server.is_process() { MCP_PROCESS_LIST_TIMEOUT } else { MCP_LIST_TIMEOUT.min(time) };
        let connection = match server.connect(Purpose::Call, start).await {
            Ok(connection) => connection,
            Err(Obstacle::Failure(failure)) => return Ok(Err((false, failure))),
            Err(Obstacle::Sandbox(error)) => return Err(error.into()),
        };
        if !connection.has_listed()
            && self.needs_headers(&call.origin.tool)
            && let Err(failure) = connection.list(&server.config.name, MCP_LIST_TIMEOUT).await
        {
            server.forget(&connection).await;
            return Ok(Err((false, failure)));
        }
        let arguments = call.origin.input.as_object().cloned().unwrap_or_default();
        let call_id = self.request_name(call, request.repetition);
        let may_repeat = call.replay != Replay::Unsafe;
        let response = request.response.as_ref();
        let answered = tokio::select! {
            answered = connection.call(name, arguments, (&call_id, may_repeat), response, time) => answered,
            () = self.sandbox.end_of_life(), if server.is_process() => {
                connection.cancel(&call_id).await;
                Err(Failure::Lost("its sandbox has expired".to_owned()))
            }
        };
        Ok(match answered {
            Ok(outcome) => {
                if matches!(&outcome, CallOutcome::Answered(answer) if answer.is_unknown_tool) {
                    server.note_unknown_tool();
                }
                Ok(outcome)
            }
            Err(failure) => {
                server.forget(&connection).await;
                Err((true, failure))
            }
        })
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
        join_all(self.servers.iter().map(Server::close)).await;
    }
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
