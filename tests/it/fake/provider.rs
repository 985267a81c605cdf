//! Strict fakes of model providers: they reject the requests that the real ones reject.
//!
//! A test passes a script of responses, or a closure that picks a response for each request, and reads the
//! received requests afterwards. A request that the real endpoint would reject is rejected in the same way
//! and recorded in `refusals`.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    response::Response,
    routing::post,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use super::published;

/// Largest request (Anthropic's bound).
const REQUEST_BYTES_MAX: usize = 32_000_000;

/// One response or one fault.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub said: Vec<Said>,
    pub usage: Used,
    /// The provider's own stop reason; by default the one that the content implies.
    pub stop: Option<&'static str>,
    pub delay: Duration,
    pub fault: Option<Fault>,
}

/// One block of a response.
#[derive(Clone, Debug)]
pub enum Said {
    Text(String),
    Thinking(String),
    Redacted(String),
    /// Name, and arguments as text, which need not be JSON.
    Tool(String, String),
}

/// Usage that a response reports.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    pub input: u64,
    pub output: u64,
    pub cache_write: u64,
    pub cache_read: u64,
}

impl Default for Used {
    fn default() -> Self {
        Self { input: 10, output: 5, cache_write: 0, cache_read: 0 }
    }
}

/// A fault of the provider.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A status other than 200, with the provider's error body.
    Status { status: u16, headers: Vec<(&'static str, String)>, kind: &'static str, message: String },
    /// Neither head nor body is ever sent.
    Stall,
    /// The body stops after this many bytes; the connection stays open.
    StallAfter(usize),
    /// The connection is lost after this many bytes of the body.
    CutAfter(usize),
    /// An error event in mid-stream, after the content.
    ErrorEvent { kind: &'static str, message: &'static str },
}

impl Step {
    pub fn text(text: &str) -> Self {
        Self::default().and(Said::Text(text.to_owned()))
    }

    pub fn fault(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::text("This is never read to its end.") }
    }

    pub fn status(status: u16, kind: &'static str, message: &str) -> Self {
        Self::fault(Fault::Status { status, headers: Vec::new(), kind, message: message.to_owned() })
    }

    pub fn and(mut self, said: Said) -> Self {
        self.said.push(said);
        self
    }

    pub fn and_tool(self, name: &str, input: Value) -> Self {
        self.and(Said::Tool(name.to_owned(), input.to_string()))
    }

    pub fn using(self, usage: Used) -> Self {
        Self { usage, ..self }
    }

    pub fn stopping(self, stop: &'static str) -> Self {
        Self { stop: Some(stop), ..self }
    }

    pub fn has_tools(&self) -> bool {
        self.said.iter().any(|said| matches!(said, Said::Tool(..)))
    }
}

/// A received request; `call` counts from 1.
#[derive(Clone, Debug)]
pub struct Request {
    pub call: usize,
    /// Address of the client.
    pub peer: SocketAddr,
    pub headers: HeaderMap,
    pub body: Value,
}

/// Error with which a request is rejected.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub status: u16,
    pub kind: &'static str,
    pub message: String,
}

pub fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { status: 400, kind: "invalid_request_error", message: message.into() })
}

/// Validation, errors and responses of one provider.
pub trait Dialect: Send + Sync + 'static {
    const PATH: &'static str;
    /// Provider with the published types of its requests: one of `dialect::PROVIDERS`.
    const TYPES: &'static str;

    fn check(&self, request: &Request) -> Result<(), Refusal>;

    fn error_body(&self, refusal: &Refusal) -> Value;

    /// Frames of a complete response.
    fn frames(&self, request: &Request, step: &Step) -> Vec<String>;

    fn error_frame(&self, kind: &str, message: &str) -> String;
}

type Decide = Box<dyn Fn(&Request) -> Step + Send + Sync>;

enum Play {
    Script(Mutex<VecDeque<Step>>),
    Decide(Decide),
}

struct Shared<D> {
    dialect: D,
    play: Play,
    requests: Mutex<Vec<Request>>,
    refusals: Mutex<Vec<String>>,
    calls: watch::Sender<usize>,
    hung_up: watch::Sender<usize>,
}

/// A running fake; stops on drop.
pub struct Fake<D: Dialect> {
    pub base_url: String,
    shared: Arc<Shared<D>>,
    task: JoinHandle<()>,
}

impl<D: Dialect> Fake<D> {
    /// Returns these responses in order; further requests are rejected.
    pub async fn script(dialect: D, steps: impl IntoIterator<Item = Step>) -> Self {
        Self::start(dialect, Play::Script(Mutex::new(steps.into_iter().collect()))).await
    }

    /// Returns the response that `decide` picks.
    pub async fn decide(dialect: D, decide: impl Fn(&Request) -> Step + Send + Sync + 'static) -> Self {
        Self::start(dialect, Play::Decide(Box::new(decide))).await
    }

    async fn start(dialect: D, play: Play) -> Self {
        let shared = Arc::new(Shared {
            dialect,
            play,
            requests: Mutex::default(),
            refusals: Mutex::default(),
            calls: watch::channel(0).0,
            hung_up: watch::channel(0).0,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base_url = format!("http://{}", listener.local_addr().expect("a bound address"));
        let routes = Router::new()
            .route(D::PATH, post(serve::<D>))
            .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
            .with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            axum::serve(listener, routes.into_make_service_with_connect_info::<SocketAddr>())
                .await
                .expect("the fake serves")
        });
        Self { base_url, shared, task }
    }

    /// All received requests, rejected ones included.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("no handler panics").clone()
    }

    /// Requests that the real endpoint would have rejected.
    pub fn refusals(&self) -> Vec<String> {
        self.shared.refusals.lock().expect("no handler panics").clone()
    }

    pub fn calls(&self) -> usize {
        *self.shared.calls.borrow()
    }

    /// Waits until `times` requests have arrived.
    pub async fn called(&self, times: usize) {
        let enough = |calls: &usize| *calls >= times;
        self.shared.calls.subscribe().wait_for(enough).await.expect("the fake lives");
    }

    /// Waits until clients have canceled `times` responses.
    pub async fn hung_up(&self, times: usize) {
        let enough = |gone: &usize| *gone >= times;
        self.shared.hung_up.subscribe().wait_for(enough).await.expect("the fake lives");
    }
}

impl<D: Dialect> Drop for Fake<D> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Counts a client that disconnects before the end of the response.
struct Reader {
    hung_up: watch::Sender<usize>,
    waits: bool,
}

impl Reader {
    fn of<D>(shared: &Shared<D>) -> Self {
        Self { hung_up: shared.hung_up.clone(), waits: true }
    }

    fn waits(&mut self, waits: bool) {
        self.waits = waits;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.waits {
            self.hung_up.send_modify(|gone| *gone += 1);
        }
    }
}

async fn serve<D: Dialect>(
    State(shared): State<Arc<Shared<D>>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let request = {
        let mut requests = shared.requests.lock().expect("no handler panics");
        let request = Request { call: requests.len() + 1, peer, headers, body };
        requests.push(request.clone());
        request
    };
    shared.calls.send_replace(request.call);
    if let Err(refusal) = shared.dialect.check(&request) {
        shared.refusals.lock().expect("no handler panics").push(refusal.message.clone());
        return refused(&shared.dialect, &refusal, &[]);
    }
    published::write(D::TYPES, &bytes);
    let step = match &shared.play {
        Play::Script(steps) => steps.lock().expect("no handler panics").pop_front(),
        Play::Decide(decide) => Some(decide(&request)),
    };
    let Some(step) = step else {
        let message = "the script of this fake has no more steps".to_owned();
        shared.refusals.lock().expect("no handler panics").push(message.clone());
        let refusal = Refusal { status: 400, kind: "invalid_request_error", message };
        return refused(&shared.dialect, &refusal, &[]);
    };
    answer(shared, &request, step).await
}

fn refused(dialect: &impl Dialect, refusal: &Refusal, headers: &[(&'static str, String)]) -> Response {
    let mut response = Response::builder()
        .status(StatusCode::from_u16(refusal.status).expect("a status"))
        .header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::from(dialect.error_body(refusal).to_string())).expect("a response")
}

async fn answer<D: Dialect>(shared: Arc<Shared<D>>, request: &Request, step: Step) -> Response {
    if !step.delay.is_zero() {
        tokio::time::sleep(step.delay).await;
    }
    let mut frames = shared.dialect.frames(request, &step);
    let (mut bytes_max, mut cut) = (usize::MAX, false);
    match step.fault {
        None => {}
        Some(Fault::Status { status, headers, kind, message }) => {
            return refused(&shared.dialect, &Refusal { status, kind, message }, &headers);
        }
        Some(Fault::Stall) => {
            let _reader = Reader::of(&shared);
            std::future::pending::<()>().await;
        }
        Some(Fault::StallAfter(bytes)) => bytes_max = bytes,
        Some(Fault::CutAfter(bytes)) => (bytes_max, cut) = (bytes, true),
        Some(Fault::ErrorEvent { kind, message }) => {
            frames.pop();
            frames.push(shared.dialect.error_frame(kind, message));
        }
    }
    let mut left = bytes_max;
    let mut parts = Vec::new();
    for frame in frames {
        let part = frame.as_bytes()[..frame.len().min(left)].to_vec();
        left -= part.len();
        parts.push(Bytes::from(part));
    }
    let stalls = bytes_max != usize::MAX && !cut;
    let mut reader = Reader::of(&shared);
    let (mut sent, all) = (0, parts.iter().filter(|part| !part.is_empty()).count());
    let parts = stream::iter(parts.into_iter().filter(|part| !part.is_empty()).map(Ok::<_, std::io::Error>));
    let end = stream::once(async move {
        match (stalls, cut) {
            (true, _) => {
                std::future::pending::<Result<Bytes, Infallible>>().await.map_err(|never| match never {})
            }
            (false, true) => Err(std::io::Error::other("cut")),
            (false, false) => Ok(Bytes::new()),
        }
    });
    let body = parts.chain(end).map(move |part| {
        sent += 1;
        // A client that has received everything may disconnect without being counted.
        reader.waits(stalls || sent < all);
        part
    });
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .header("cache-control", "no-cache")
        .body(Body::from_stream(body))
        .expect("a response")
}

/// Cuts text into small pieces, as providers stream it.
pub fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(7).map(|piece| piece.iter().collect()).collect()
}

/// Rejects fields beyond `allowed`.
pub fn only(value: &Value, path: &str, allowed: &[&str]) -> Result<(), Refusal> {
    let Some(fields) = value.as_object() else {
        return refuse(format!("{path}: Input should be an object"));
    };
    match fields.keys().find(|field| !allowed.contains(&field.as_str())) {
        Some(extra) => refuse(format!("{path}.{extra}: Extra inputs are not permitted")),
        None => Ok(()),
    }
}

/// Checks that a provider would compile the schema: every `type` is known, the top level is an object.
pub fn check_schema(schema: &Value, path: &str) -> Result<(), Refusal> {
    const TYPES: [&str; 7] = ["object", "array", "string", "integer", "number", "boolean", "null"];
    if schema["type"] != "object" {
        return refuse(format!("{path}.type: Input should be 'object'"));
    }
    if let Some(word) = ["oneOf", "anyOf", "allOf"].iter().find(|word| schema.get(**word).is_some()) {
        return refuse(format!("{path}: input_schema does not support {word} at the top level"));
    }
    let mut open = vec![schema];
    while let Some(part) = open.pop() {
        let types = match &part["type"] {
            Value::Array(types) => types.iter().collect(),
            Value::Null => Vec::new(),
            one => vec![one],
        };
        if let Some(unknown) = types.iter().find(|kind| !TYPES.contains(&kind.as_str().unwrap_or_default())) {
            return refuse(format!("{path}: JSON schema is invalid: {unknown} is no type of draft 2020-12"));
        }
        open.extend(part["properties"].as_object().into_iter().flat_map(|all| all.values()));
        open.extend(part.get("items"));
    }
    Ok(())
}

/// The rules of strict tools that both providers have: closed objects, and no keyword that a grammar cannot express.
pub fn check_strict_schema(schema: &Value, path: &str) -> Result<(), Refusal> {
    const REFUSED: [&str; 9] =
        ["allOf", "oneOf", "not", "if", "minLength", "maxLength", "minimum", "maximum", "patternProperties"];
    let mut open = vec![schema];
    while let Some(part) = open.pop() {
        if let Some(keyword) = REFUSED.iter().find(|keyword| part.get(**keyword).is_some()) {
            return refuse(format!("{path}: strict: '{keyword}' is not permitted"));
        }
        if part["type"] == "object" {
            if part["additionalProperties"] != false {
                return refuse(format!("{path}: strict: 'additionalProperties' must be false"));
            }
            let required = part["required"].as_array().cloned().unwrap_or_default();
            let names = part["properties"].as_object().into_iter().flat_map(|all| all.keys());
            if let Some(name) = names.into_iter().find(|name| !required.contains(&Value::from(name.as_str())))
            {
                return refuse(format!("{path}: strict: 'required' must have every property, not '{name}'"));
            }
        }
        open.extend(
            ["properties", "$defs"]
                .iter()
                .filter_map(|all| part[*all].as_object())
                .flat_map(|all| all.values()),
        );
        open.extend(part.get("items"));
        open.extend(part["anyOf"].as_array().into_iter().flatten());
    }
    Ok(())
}

pub fn is_tool_name(name: &Value) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    name.as_str().is_some_and(|name| (1..=64).contains(&name.len()) && name.bytes().all(fits))
}

pub fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers.get(name).and_then(|value| value.to_str().ok())
}

pub fn sse(event: &str, data: &Value) -> String {
    if event.is_empty() { format!("data: {data}\n\n") } else { format!("event: {event}\ndata: {data}\n\n") }
}

pub fn parse_or_text(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|_| json!(json))
}
