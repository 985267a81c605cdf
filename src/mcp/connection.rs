//! One connection to a server: the handshake of its era, its tools, and calls of them.

use std::{
    borrow::Cow,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rmcp::{
    ErrorData, RoleClient, Service, ServiceError,
    model::{
        CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientResult, ElicitationCapability,
        ErrorCode, FormElicitationCapability, Implementation, InitializeRequestParams,
        PaginatedRequestParams, ProtocolVersion, RequestMetaObject, ServerNotification, ServerRequest, Tool,
        UrlElicitationCapability,
    },
    service::{
        ClientCacheConfig, ClientLifecycleMode, NotificationContext, RequestContext, RunningService,
        serve_client_with_lifecycle_and_ct,
    },
    transport::{
        IntoTransport, StreamableHttpClientTransport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    Answer, Asked, CallState, Clients, Continuation, Endpoint, Failure, Program, breaker::Key,
    process::Process, transcript::CALL_ID, transport::Http,
};
use crate::{
    base::limit::{
        MCP_CLOSE_TIMEOUT, MCP_DISCOVERY_TIMEOUT, MCP_LIST_BYTES_MAX, MCP_MESSAGE_BYTES_MAX, MCP_NOTICES_MAX,
        MCP_PAGES_MAX,
    },
    domain::{elicitation::Response, mcp::McpTool},
};

/// A connection to a server. Dropping it ends it; [`Connection::close`] also tells the server.
pub struct Connection {
    running: RunningService<RoleClient, Handler>,
    notices: Arc<Notices>,
    clients: Clients,
    /// Server of the breaker; none for a process.
    key: Option<Key>,
    process: Option<Arc<Process>>,
    /// Whether a failure of transport was noted: one connection counts once for the breaker.
    has_failed: AtomicBool,
    /// Whether the tools were listed on it.
    has_listed: AtomicBool,
    /// Ends it.
    end: CancellationToken,
}

/// The tools of a server.
pub struct Listing {
    /// Version of the protocol.
    pub protocol_version: String,
    pub tools: Vec<McpTool>,
    /// Age at which the server wants the list to be read again, if it says so.
    pub ttl: Option<Duration>,
}

/// Outcome of a call.
pub enum CallOutcome {
    Answered(Answer),
    /// The server asks a person first.
    Asked(Asked),
}

/// Messages that the server sent without being asked.
#[derive(Default)]
struct Notices {
    count: AtomicU32,
    tools_changed: AtomicBool,
}

/// The client's side of the protocol. It offers the server no model; questions to a person end the request that needs them.
struct Handler {
    notices: Arc<Notices>,
    /// Ends the connection.
    end: CancellationToken,
}

impl Handler {
    /// Ends the connection of a server that sends too much.
    fn count(&self) {
        if self.notices.count.fetch_add(1, Ordering::Relaxed) >= MCP_NOTICES_MAX {
            self.end.cancel();
        }
    }
}

impl Service<RoleClient> for Handler {
    async fn handle_request(
        &self,
        request: ServerRequest,
        _context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        self.count();
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client does not offer it", None)),
        }
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        self.count();
        if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
            self.notices.tools_changed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn get_info(&self) -> InitializeRequestParams {
        let client = Implementation::new("sojourn", env!("CARGO_PKG_VERSION"));
        let mut capabilities = ClientCapabilities::default();
        let (form, url) = (FormElicitationCapability::default(), UrlElicitationCapability::default());
        capabilities.elicitation = Some(ElicitationCapability::new().with_form(form).with_url(url));
        InitializeRequestParams::new(capabilities, client)
    }
}

/// Handshake of a connection.
#[derive(Clone, Copy, Debug)]
enum Handshake {
    /// That of the versions before 2026-07-28.
    Legacy,
    /// None: the server is of that version or a later one.
    None,
    /// The server is asked. The library takes one that does not answer within `MCP_DISCOVERY_TIMEOUT` for a legacy one.
    Asked,
}

impl Handshake {
    fn of(is_legacy: bool) -> Self {
        if is_legacy { Self::Legacy } else { Self::Asked }
    }
}

impl Clients {
    /// Connects to a server, within `time`. `is_legacy` says that it is known to need the handshake of the versions
    /// before 2026-07-28; else it is asked.
    ///
    /// # Errors
    /// Any [`Failure`]; failures of transport count for the breaker.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        is_legacy: bool,
        time: Duration,
    ) -> Result<Connection, Failure> {
        let key = (endpoint.org, endpoint.url.to_string(), endpoint.credential);
        if let Some(left) = self.breakers.open_for(&key, Instant::now()) {
            return Err(Failure::Suspended(left));
        }
        let client =
            self.net.vetted(&endpoint.url).map_err(|refused| Failure::Refused(refused.to_string()))?;
        let http = Http {
            client: client.clone(),
            org: endpoint.org,
            access: Arc::clone(&endpoint.access),
            streams: Arc::default(),
        };
        let mut config = StreamableHttpClientTransportConfig::with_uri(endpoint.url.as_str());
        config.max_json_response_size = MCP_MESSAGE_BYTES_MAX;
        config.max_sse_event_size = MCP_MESSAGE_BYTES_MAX;
        let transport = StreamableHttpClientTransport::with_client(http, config);
        let connected = self.serve(transport, Handshake::of(is_legacy), time).await;
        let connection = connected.inspect_err(|failure| self.note(&key, failure))?;
        Ok(Connection { key: Some(key), ..connection })
    }

    /// Connects to a server that runs in a sandbox, within `time`; starts it if it does not run.
    ///
    /// # Errors
    /// Any [`Failure`]: nothing but the handshake was sent.
    pub async fn run(
        &self,
        program: &Program,
        is_legacy: bool,
        time: Duration,
    ) -> Result<Connection, Failure> {
        let began = Instant::now();
        match self.run_once(program, Handshake::of(is_legacy), time).await {
            // It began too late to be asked, was taken for a legacy one, and had already taken the question.
            Err(Failure::Rejected(_)) if !is_legacy && began.elapsed() >= MCP_DISCOVERY_TIMEOUT => {
                self.run_once(program, Handshake::None, time.saturating_sub(began.elapsed())).await
            }
            connected => connected,
        }
    }

    async fn run_once(
        &self,
        program: &Program,
        handshake: Handshake,
        time: Duration,
    ) -> Result<Connection, Failure> {
        let began = Instant::now();
        let found = timeout(time, program.process(self.tasks.clone())).await;
        let (process, output) = found.unwrap_or(Err(Failure::Timeout(time)))?;
        let handshake = if process.has_session() { Handshake::Legacy } else { handshake };
        let failure = match self.serve(output, handshake, time.saturating_sub(began.elapsed())).await {
            Ok(connection) => return Ok(Connection { process: Some(process), ..connection }),
            Err(failure) => failure,
        };
        let is_late = matches!(failure, Failure::Timeout(_));
        let end = if is_late { None } else { process.ending().await.map(str::to_owned) };
        if !process.has_open_call() {
            // Another one may do better, the next time. One that has ended stays so.
            let killed = timeout(MCP_CLOSE_TIMEOUT, process.exec.kill()).await;
            tracing::debug!(?killed, "the process of an MCP server made no connection and was ended");
        }
        Err(end.map_or(failure, Failure::Unreachable))
    }

    /// Begins the protocol on a transport.
    async fn serve<E, A>(
        &self,
        transport: impl IntoTransport<RoleClient, E, A>,
        handshake: Handshake,
        time: Duration,
    ) -> Result<Connection, Failure>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let preferred_versions = vec![ProtocolVersion::NO_INITIALIZE];
        let mode = match handshake {
            Handshake::Legacy => ClientLifecycleMode::Initialize,
            Handshake::None => ClientLifecycleMode::Discover { preferred_versions },
            Handshake::Asked => ClientLifecycleMode::Auto {
                preferred_versions,
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            },
        };
        let (notices, end) = (Arc::<Notices>::default(), CancellationToken::new());
        let handler = Handler { notices: Arc::clone(&notices), end: end.clone() };
        let connecting = serve_client_with_lifecycle_and_ct(handler, transport, mode, end.clone());
        let connected = match timeout(time, connecting).await {
            Ok(connected) => connected.map_err(|error| Failure::of_connect(&error)),
            Err(_) => Err(Failure::Timeout(time)),
        };
        let running = connected?;
        // Lists are kept in the log; a stale one must not take the place of a failure.
        running.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let (has_failed, has_listed) = (AtomicBool::new(false), AtomicBool::new(false));
        let clients = self.clone();
        Ok(Connection { running, notices, clients, key: None, process: None, has_failed, has_listed, end })
    }

    /// Notes a failure for the breaker.
    fn note(&self, key: &Key, failure: &Failure) {
        if failure.is_of_transport() {
            self.breakers.failed(key, Instant::now());
        }
    }
}

impl Connection {
    /// Returns whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.end.is_cancelled() || self.running.is_closed()
    }

    /// Returns whether the tools were listed on it, which tells the library what some calls need in their headers.
    pub fn has_listed(&self) -> bool {
        self.has_listed.load(Ordering::Relaxed)
    }

    /// Notes for the breaker whether the server answered; finds out how a process has ended.
    async fn noted<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let Some(key) = &self.key else {
            return match (outcome, &self.process) {
                (Err(Failure::Lost(reason)), Some(process)) => {
                    Err(Failure::Lost(process.ending().await.map_or(reason, str::to_owned)))
                }
                (outcome, _) => outcome,
            };
        };
        match &outcome {
            Err(failure) if failure.is_of_transport() => {
                if !self.has_failed.swap(true, Ordering::Relaxed) {
                    self.clients.note(key, failure);
                }
            }
            Err(failure) if !failure.is_answer() => {}
            // An answer, if not the one that was wanted.
            Ok(_) | Err(_) => self.clients.breakers.succeeded(key),
        }
        outcome
    }

    /// Returns the state of a call of this name, if it was sent to the process of the server, or one before.
    pub fn call_state(&self, call_id: &str) -> Option<CallState> {
        self.process.as_ref()?.call_state(call_id)
    }

    /// Tells the process of the server that a call is given up, if it has it.
    pub async fn cancel(&self, call_id: &str) {
        let Some(process) = &self.process else { return };
        match timeout(MCP_CLOSE_TIMEOUT, Arc::clone(process).cancel(call_id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "the process of an MCP server was not told of a cancel")
            }
            Err(_) => tracing::debug!("the process of an MCP server is told of a cancel late"),
        }
    }

    /// Returns whether another process should take the place of the one of the server.
    pub fn is_spent(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_spent())
    }

    /// Returns whether the server has said that its tools changed, once.
    pub fn take_change(&self) -> bool {
        self.notices.tools_changed.swap(false, Ordering::Relaxed)
    }

    /// Lists the tools of the server, which the agent calls `server`, within `time`.
    ///
    /// # Errors
    /// Any [`Failure`]; `Protocol` for a list that is too long.
    pub async fn list(&self, server: &str, time: Duration) -> Result<Listing, Failure> {
        self.take_change();
        let listed = self.within(time, self.pages(server)).await.flatten();
        self.has_listed.fetch_or(listed.is_ok(), Ordering::Relaxed);
        self.noted(listed).await
    }

    /// Awaits an answer for a time, and not of a connection that was ended because the server sends too much: the library
    /// may then be busy with what it sent.
    async fn within<T>(&self, time: Duration, answer: impl Future<Output = T>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            answered = timeout(time, answer) => answered.map_err(|_| Failure::Timeout(time)),
            () = self.end.cancelled() => {
                Err(Failure::Lost("it was ended, because the server sent too much beside its answer".to_owned()))
            }
        }
    }

    async fn pages(&self, server: &str) -> Result<Listing, Failure> {
        let (mut tools, mut bytes, mut ttl, mut cursor) = (Vec::new(), 0, None::<Duration>, None);
        for _ in 0..MCP_PAGES_MAX {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let page = self.running.peer().list_tools(Some(params)).await;
            let page = page.map_err(|error| Failure::of_request(&error))?;
            bytes += serde_json::to_vec(&page.tools).map_or(usize::MAX, |json| json.len());
            if bytes > MCP_LIST_BYTES_MAX {
                return Err(Failure::Protocol(format!(
                    "its list of tools has more than {MCP_LIST_BYTES_MAX} bytes"
                )));
            }
            tools.extend(page.tools.into_iter().map(|tool| named(server, tool)));
            let age = page.ttl_ms.map(Duration::from_millis);
            ttl = ttl.into_iter().chain(age).min();
            cursor = page.next_cursor;
            if cursor.is_none() {
                let version = self.running.peer().peer_info().map(|info| info.protocol_version.to_string());
                return Ok(Listing { protocol_version: version.unwrap_or_default(), tools, ttl });
            }
        }
        Err(Failure::Protocol(format!("its list of tools has more than {MCP_PAGES_MAX} pages")))
    }

    /// Calls a tool, within `time`. `call_id` names the call for the server; a process is sent it again only if it
    /// `may_repeat`. `response`: to what the server has asked a person in the call before.
    ///
    /// # Errors
    /// Any [`Failure`]; an error that the server reports is an [`Answer`].
    pub async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        (call_id, may_repeat): (&str, bool),
        response: Option<&(Continuation, Response)>,
        time: Duration,
    ) -> Result<CallOutcome, Failure> {
        if let Some(process) = self.process.as_ref().filter(|_| may_repeat) {
            process.allow_again(call_id);
        }
        let mut params = CallToolRequestParams::new(Cow::Owned(tool.to_owned())).with_arguments(arguments);
        if let Some((continuation, response)) = response {
            let (state, responses) = continuation.responses(response);
            params.request_state = state;
            params.input_responses = Some(responses);
        }
        let mut meta = RequestMetaObject::default();
        meta.insert(CALL_ID.to_owned(), Value::String(call_id.to_owned()));
        params.meta = Some(meta);
        // Giving the call up tells the server.
        let mut answer = pin!(self.running.peer().call_tool_once(params));
        let answered = self.within(time, &mut answer).await;
        // The library does not tell a process: it gives calls up that another worker goes on with, too.
        if matches!(answered, Err(Failure::Timeout(_))) {
            self.cancel(call_id).await;
        }
        let answered = match answered {
            Ok(Ok(CallToolResponse::Complete(result))) => Ok(CallOutcome::Answered(Answer::of(result, tool))),
            Ok(Ok(CallToolResponse::InputRequired(wanted))) => Asked::read(wanted).map(CallOutcome::Asked),
            Ok(Ok(_)) => Err(Failure::Protocol("it answered with a task, which is not supported".to_owned())),
            Ok(Err(ServiceError::McpError(error))) => Ok(CallOutcome::Answered(Answer::of_error(&error))),
            Ok(Err(error)) => Err(Failure::of_request(&error)),
            Err(failure) => Err(failure),
        };
        self.noted(answered).await
    }

    /// Ends the connection, and the session of a server that has one.
    pub async fn close(mut self) {
        if let Err(error) = self.running.close_with_timeout(MCP_CLOSE_TIMEOUT).await {
            tracing::debug!(%error, "the connection to an MCP server ended badly");
        }
    }
}

/// Returns a tool under the name that a model calls.
fn named(server: &str, tool: Tool) -> McpTool {
    let annotations = tool.annotations.unwrap_or_default();
    let description = tool.description.or(tool.title.map(Into::into)).unwrap_or_default();
    let mut schema = Arc::unwrap_or_clone(tool.input_schema);
    // Libraries name an older dialect for schemas that are also ones of 2020-12.
    schema.remove("$schema");
    McpTool {
        read_only: annotations.read_only_hint.unwrap_or_default(),
        idempotent: annotations.idempotent_hint.unwrap_or_default(),
        ..McpTool::new(server, &tool.name, &description, schema)
    }
}
