//! An MCP server on loopback, of either era of the protocol. It refuses what the official servers refuse: requests
//! without the right headers, versions, sessions or metadata.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

/// Version of the protocol with sessions.
const LEGACY: &str = "2025-11-25";
/// Version of the protocol without.
pub const STATELESS: &str = "2026-07-28";

/// Answer to a call of a tool.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A result.
    Result(Value),
    /// An error of the protocol.
    Error(i64, &'static str),
    /// A status without a body.
    Status(u16),
    /// A body that is no message.
    Raw(&'static str),
    /// 307 to another address.
    Redirect(String),
    /// These messages in an event stream, then the result.
    Stream(Vec<Value>, Value),
    /// An event stream that ends without the result.
    Cut,
    /// The result after this time.
    After(Duration, Value),
    /// The server has these tools from now on. The result comes behind the notification of it, if there is one.
    NewTools { tools: Vec<Value>, is_told: bool, result: Value },
    /// The server forgets its sessions, then answers.
    EndedSessions(Value),
    /// It asks a person by these requests, with a state of its own. The next call has to bring the state back, with a
    /// response to each: `decide` finds them in the arguments as `inputResponses`.
    Ask(Value),
}

/// A request that the server read.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub params: Value,
    pub authorization: Option<String>,
    pub headers: HeaderMap,
}

type Decide = dyn Fn(&str, &Value) -> Reply + Send + Sync;

struct Shared {
    is_legacy: bool,
    tools: Mutex<Vec<Value>>,
    decide: Box<Decide>,
    seen: Mutex<Vec<Seen>>,
    refusals: Mutex<Vec<String>>,
    sessions: Mutex<BTreeSet<String>>,
    next_session: AtomicUsize,
    /// Tokens that are accepted; all requests if there are none.
    tokens: Mutex<BTreeSet<String>>,
    /// Status of all answers, if it is not the usual one.
    status: Mutex<Option<u16>>,
    /// Whether requests are never answered.
    hangs: AtomicBool,
    /// Tools of one page of a list.
    page: AtomicUsize,
    /// What it has asked, by the state that it gave.
    asked: Mutex<BTreeMap<String, Value>>,
}

/// The server; stops on drop.
pub struct McpFake {
    /// Address of its endpoint.
    pub url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for McpFake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A result with one text.
pub fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// A tool with one argument, as a server lists it.
pub fn tool(name: &str) -> Value {
    json!({
        "name": name, "description": format!("Does {name}."),
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": { "word": { "type": "string" } }, "required": ["word"],
        },
    })
}

impl McpFake {
    /// A server of the version 2026-07-28, whose calls `decide` answers by tool and arguments.
    pub async fn stateless(
        tools: Vec<Value>,
        decide: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(false, tools, Box::new(decide)).await
    }

    /// A server of the versions with sessions.
    pub async fn legacy(
        tools: Vec<Value>,
        decide: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(true, tools, Box::new(decide)).await
    }

    async fn start(is_legacy: bool, tools: Vec<Value>, decide: Box<Decide>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared {
            is_legacy,
            tools: Mutex::new(tools),
            decide,
            seen: Mutex::default(),
            refusals: Mutex::default(),
            sessions: Mutex::default(),
            next_session: AtomicUsize::new(1),
            tokens: Mutex::default(),
            status: Mutex::default(),
            hangs: AtomicBool::default(),
            page: AtomicUsize::new(2),
            asked: Mutex::default(),
        });
        let routes = Router::new().route("/mcp", any(serve)).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { url, shared, task }
    }

    /// Lists this many tools a page; two, unless it is set.
    pub fn set_page(&self, tools: usize) {
        self.shared.page.store(tools, Ordering::SeqCst);
    }

    /// Answers no request from now on.
    pub fn hang(&self) {
        self.shared.hangs.store(true, Ordering::SeqCst);
    }

    /// Accepts only these tokens from now on.
    pub fn accept(&self, tokens: &[&str]) {
        *self.shared.tokens.lock().expect("no panic") =
            tokens.iter().map(|&token| token.to_owned()).collect();
    }

    /// Answers everything with a status from now on.
    pub fn fail(&self, status: Option<u16>) {
        *self.shared.status.lock().expect("no panic") = status;
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.lock().expect("no panic").len()
    }

    /// Requests of a method so far.
    pub fn seen(&self, method: &str) -> Vec<Seen> {
        let seen = self.shared.seen.lock().expect("no panic");
        seen.iter().filter(|one| one.method == method).cloned().collect()
    }

    /// Why requests were refused so far, other than for an era that it does not speak.
    pub fn refusals(&self) -> Vec<String> {
        self.shared.refusals.lock().expect("no panic").clone()
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(status) = *shared.status.lock().expect("no panic") {
        return StatusCode::from_u16(status).expect("a status").into_response();
    }
    if shared.hangs.load(Ordering::SeqCst) {
        return std::future::pending().await;
    }
    let authorization = header(&headers, "authorization").map(str::to_owned);
    let tokens = shared.tokens.lock().expect("no panic").clone();
    let token = authorization.as_deref().and_then(|value| value.strip_prefix("Bearer "));
    if !tokens.is_empty() && !token.is_some_and(|token| tokens.contains(token)) {
        let challenge = [("www-authenticate", r#"Bearer error="invalid_token""#)];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    }
    match method {
        Method::POST => shared.post(&headers, authorization, &body).await,
        Method::GET => shared.listen(&headers),
        Method::DELETE => {
            let session = header(&headers, "mcp-session-id").unwrap_or_default();
            let is_known = shared.sessions.lock().expect("no panic").remove(session);
            if is_known { StatusCode::OK.into_response() } else { StatusCode::NOT_FOUND.into_response() }
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

impl Shared {
    /// Refuses a request, as one that no client may send.
    fn refuse(&self, id: &Value, words: &str) -> Response {
        self.refusals.lock().expect("no panic").push(words.to_owned());
        self.decline(id, -32_600, words)
    }

    /// Declines a request of the other era.
    fn decline(&self, id: &Value, code: i64, words: &str) -> Response {
        let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": words } });
        (StatusCode::BAD_REQUEST, axum::Json(error)).into_response()
    }

    fn listen(&self, headers: &HeaderMap) -> Response {
        if !self.is_legacy {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        }
        let session = header(headers, "mcp-session-id").unwrap_or_default();
        if !self.sessions.lock().expect("no panic").contains(session) {
            return StatusCode::NOT_FOUND.into_response();
        }
        // Nothing is ever sent on it.
        let silent = stream::pending::<Result<String, Infallible>>();
        ([("content-type", "text/event-stream")], Body::from_stream(silent)).into_response()
    }

    async fn post(&self, headers: &HeaderMap, authorization: Option<String>, body: &[u8]) -> Response {
        let Ok(message) = serde_json::from_slice::<Value>(body) else {
            return self.refuse(&Value::Null, "the body is no JSON");
        };
        let (id, method) = (&message["id"], message["method"].as_str().unwrap_or_default());
        let accepts = header(headers, "accept").unwrap_or_default();
        if !accepts.contains("application/json") || !accepts.contains("text/event-stream") {
            return self.refuse(id, "Not Acceptable: both kinds must be accepted");
        }
        if header(headers, "content-type") != Some("application/json") || message["jsonrpc"] != "2.0" {
            return self.refuse(id, "no JSON-RPC");
        }
        let params = message["params"].clone();
        let refused = if self.is_legacy {
            self.check_legacy(headers, id, method, &params)
        } else {
            self.check_stateless(headers, id, method, &params)
        };
        if let Some(refused) = refused {
            return refused;
        }
        let seen = Seen {
            method: method.to_owned(),
            params: params.clone(),
            authorization,
            headers: headers.clone(),
        };
        self.seen.lock().expect("no panic").push(seen);
        if id.is_null() {
            return StatusCode::ACCEPTED.into_response();
        }
        self.answer(id, method, &params).await
    }

    fn check_legacy(
        &self,
        headers: &HeaderMap,
        id: &Value,
        method: &str,
        params: &Value,
    ) -> Option<Response> {
        let session = header(headers, "mcp-session-id");
        match (method, session) {
            ("initialize", None) if !params["capabilities"]["elicitation"].is_null() => {
                Some(self.refuse(id, "a client that can be asked only in the other era"))
            }
            ("initialize", None) => None,
            ("initialize", Some(_)) => Some(self.refuse(id, "initialize in a session")),
            // What servers of these versions say to a probe of the newer one.
            (_, None) => Some(self.decline(&Value::Null, -32_000, "Bad Request: Server not initialized")),
            (_, Some(session)) if !self.sessions.lock().expect("no panic").contains(session) => {
                Some(StatusCode::NOT_FOUND.into_response())
            }
            (_, Some(_)) if header(headers, "mcp-protocol-version") != Some(LEGACY) => {
                Some(self.refuse(id, "another MCP-Protocol-Version than negotiated"))
            }
            (_, Some(_)) => None,
        }
    }

    fn check_stateless(
        &self,
        headers: &HeaderMap,
        id: &Value,
        method: &str,
        params: &Value,
    ) -> Option<Response> {
        if method == "initialize" {
            return Some(self.decline(id, -32_601, "there is no handshake in this version"));
        }
        let meta = &params["_meta"];
        let is_complete = meta["io.modelcontextprotocol/protocolVersion"] == STATELESS
            && meta["io.modelcontextprotocol/clientInfo"]["name"] == "sojourn"
            && meta["io.modelcontextprotocol/clientCapabilities"].is_object();
        if !id.is_null() && !is_complete {
            return Some(self.refuse(id, &format!("incomplete metadata: {meta}")));
        }
        if header(headers, "mcp-protocol-version") != Some(STATELESS) {
            return Some(self.refuse(id, "no MCP-Protocol-Version"));
        }
        if header(headers, "mcp-method") != Some(method) {
            return Some(self.refuse(id, "Mcp-Method differs from the method"));
        }
        if method == "tools/call" && header(headers, "mcp-name") != params["name"].as_str() {
            return Some(self.refuse(id, "Mcp-Name differs from the name"));
        }
        if headers.contains_key("mcp-session-id") {
            return Some(self.refuse(id, "a session in a version without sessions"));
        }
        None
    }

    async fn answer(&self, id: &Value, method: &str, params: &Value) -> Response {
        let capabilities = json!({ "tools": { "listChanged": true } });
        let info = json!({ "name": "fake", "version": "1" });
        let result = |result: Value| self.message(id, result);
        match method {
            "server/discover" => json_response(&result(json!({
                "supportedVersions": [STATELESS], "capabilities": capabilities, "serverInfo": info,
                "ttlMs": 60_000, "cacheScope": "private",
            }))),
            "initialize" => {
                let session = format!("session-{}", self.next_session.fetch_add(1, Ordering::SeqCst));
                self.sessions.lock().expect("no panic").insert(session.clone());
                let hello = result(
                    json!({ "protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": info }),
                );
                ([("mcp-session-id", session)], axum::Json(hello)).into_response()
            }
            "ping" => json_response(&result(json!({}))),
            "tools/list" => json_response(&self.list(id, params)),
            "tools/call" => self.call(id, params).await,
            _ => json_response(&failure(id, -32_601, "Method not found")),
        }
    }

    fn list(&self, id: &Value, params: &Value) -> Value {
        let tools = self.tools.lock().expect("no panic").clone();
        let from =
            params["cursor"].as_str().and_then(|cursor| cursor.parse::<usize>().ok()).unwrap_or_default();
        let count = self.page.load(Ordering::SeqCst);
        let page: Vec<_> = tools.iter().skip(from).take(count).cloned().collect();
        let mut listed = json!({ "tools": page });
        if from + count < tools.len() {
            listed["nextCursor"] = json!((from + count).to_string());
        }
        if !self.is_legacy {
            (listed["ttlMs"], listed["cacheScope"]) = (json!(3_600_000), json!("private"));
        }
        self.message(id, listed)
    }

    async fn call(&self, id: &Value, params: &Value) -> Response {
        let name = params["name"].as_str().unwrap_or_default();
        let is_known = self.tools.lock().expect("no panic").iter().any(|tool| tool["name"] == name);
        if !is_known {
            return json_response(&failure(id, -32_602, "Unknown tool"));
        }
        let mut arguments = params["arguments"].clone();
        if let Some(state) = params["requestState"].as_str() {
            let asked = self.asked.lock().expect("no panic").get(state).cloned();
            let keys = |object: &Value| {
                object.as_object().map(|object| object.keys().cloned().collect::<BTreeSet<_>>())
            };
            let responses = &params["inputResponses"];
            if asked.is_none() || asked.as_ref().and_then(keys) != keys(responses) {
                return self.refuse(id, "a state that was not given, or other responses than were asked for");
            }
            arguments["inputResponses"] = responses.clone();
        } else if !params["inputResponses"].is_null() {
            return self.refuse(id, "responses without the state");
        }
        match (self.decide)(name, &arguments) {
            Reply::Ask(requests) => {
                let capabilities =
                    &params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["elicitation"];
                if capabilities["form"].is_null() || capabilities["url"].is_null() {
                    return self.refuse(id, "a client that cannot be asked");
                }
                let mut asked = self.asked.lock().expect("no panic");
                let state = format!("secret-state-{}", asked.len() + 1);
                asked.insert(state.clone(), requests.clone());
                let result = json!({
                    "resultType": "input_required", "inputRequests": requests, "requestState": state,
                });
                json_response(&self.message(id, result))
            }
            Reply::Result(result) => json_response(&self.message(id, result)),
            Reply::Error(code, words) => json_response(&failure(id, code, words)),
            Reply::Status(status) => StatusCode::from_u16(status).expect("a status").into_response(),
            Reply::Raw(body) => ([("content-type", "application/json")], body).into_response(),
            Reply::Redirect(to) => (StatusCode::TEMPORARY_REDIRECT, [("location", to)]).into_response(),
            Reply::Stream(messages, result) => event_stream(messages, self.message(id, result)),
            Reply::NewTools { tools, is_told, result } => {
                *self.tools.lock().expect("no panic") = tools;
                let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
                event_stream(is_told.then_some(changed), self.message(id, result))
            }
            Reply::EndedSessions(result) => {
                self.sessions.lock().expect("no panic").clear();
                json_response(&self.message(id, result))
            }
            Reply::Cut => {
                let part = stream::iter([Ok::<_, std::io::Error>("data: {\"jsonrpc\"".to_owned())])
                    .chain(stream::iter([Err(std::io::Error::other("cut"))]));
                ([("content-type", "text/event-stream")], Body::from_stream(part)).into_response()
            }
            Reply::After(time, result) => {
                sleep(time).await;
                json_response(&self.message(id, result))
            }
        }
    }

    fn message(&self, id: &Value, mut result: Value) -> Value {
        if !self.is_legacy && result.get("resultType").is_none() {
            result["resultType"] = json!("complete");
        }
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    }
}

fn failure(id: &Value, code: i64, words: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": words } })
}

/// These messages, then the answer.
fn event_stream(messages: impl IntoIterator<Item = Value>, answer: Value) -> Response {
    let messages = messages.into_iter().chain([answer]);
    let events: String = messages.map(|message| format!("data: {message}\n\n")).collect();
    ([("content-type", "text/event-stream")], events).into_response()
}

fn json_response(message: &Value) -> Response {
    axum::Json(message.clone()).into_response()
}
