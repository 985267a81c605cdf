//! A process of a server as one connection knows it: what it was sent and answered, and what the connection waits for.
//!
//! The process outlives connections: it stays when a turn ends or a worker dies, until its sandbox rests. Its input and
//! output are stored beside it, so the next connection does not begin the session anew, and a call that was sent is not
//! sent again.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::{sync::Notify, time::timeout};
use tokio_util::task::TaskTracker;

use super::{
    exec::ServerExec,
    transcript::{
        CALL_ID, CANCEL, CallState, INITIALIZE, INITIALIZED, SentCall, Transcript, call_of, call_request,
        is_answer,
    },
};
use crate::{
    base::{
        limit::{
            EXEC_INPUT_PART_BYTES_MAX, MCP_CLOSE_TIMEOUT, MCP_MESSAGE_BYTES_MAX, MCP_NOTICES_MAX,
            MCP_PROCESS_BYTES_MAX, MODEL_REASON_BYTES_MAX,
        },
        text,
    },
    sandbox::Fault,
};

/// A process, shared by the parts of a connection.
pub(super) struct Process {
    pub exec: ServerExec,
    /// Finishes a message that was begun, whoever waits for it.
    tasks: TaskTracker,
    /// Bytes of its input.
    input_bytes: tokio::sync::Mutex<u64>,
    /// Bytes of its input and of its output that was read.
    bytes: AtomicU64,
    /// Begin of the ids of the requests of this connection.
    requests_of: String,
    requests: AtomicU64,
    state: Mutex<State>,
    /// A message was sent, or is there without being sent.
    pub stirred: Notify,
    /// Why it answers no more.
    end: OnceLock<String>,
    /// Why it can be sent no more.
    unsendable: OnceLock<String>,
}

#[derive(Default)]
struct State {
    transcript: Transcript,
    /// Requests of this connection that have no answer: their ids for the process, and for the library.
    open: HashMap<String, Value>,
    /// Messages for the library.
    inbox: VecDeque<Value>,
    /// Those that it does not take yet.
    held: VecDeque<Value>,
    /// Calls that may be made again.
    repeatable: HashSet<String>,
    /// Whether the library has begun to make requests: before that it takes nothing but answers.
    has_begun: bool,
    /// Messages on this connection that nobody asked for.
    unasked: u32,
}

/// A message could not be passed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("{0}")]
    Sandbox(#[from] Fault),
    #[error("the message is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the message has more than {MCP_MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the message was not sent to its end")]
    Interrupted,
    #[error("the call was made before, and its answer is not known")]
    NotAgain,
}

impl Process {
    /// A process of which so many bytes of input and output are known.
    pub(super) fn new(
        exec: ServerExec,
        tasks: TaskTracker,
        transcript: Transcript,
        (input_bytes, output_bytes): (u64, u64),
    ) -> Arc<Self> {
        let held = transcript.unanswered.iter().chain(&transcript.tools_changed).cloned().collect();
        // No two connections of a lease that send something begin at the same place.
        let requests_of = format!("{}:{input_bytes}", exec.fence.epoch);
        Arc::new(Self {
            exec,
            tasks,
            input_bytes: tokio::sync::Mutex::new(input_bytes),
            bytes: AtomicU64::new(input_bytes + output_bytes),
            requests_of,
            requests: AtomicU64::new(0),
            state: Mutex::new(State { transcript, held, ..State::default() }),
            stirred: Notify::new(),
            end: OnceLock::new(),
            unsendable: OnceLock::new(),
        })
    }

    /// Why it answers no more, or can be sent no more, if so.
    pub(super) fn end(&self) -> Option<&str> {
        self.end.get().or_else(|| self.unsendable.get()).map(String::as_str)
    }

    /// Why it answers no more; waits a moment for a process that is just ending.
    pub(super) async fn ending(&self) -> Option<&str> {
        let end = async {
            let exit = self.exec.wait().await.ok()?;
            Some(self.exec.last_words(&exit).await)
        };
        if self.end.get().is_none()
            && let Ok(Some(words)) = timeout(MCP_CLOSE_TIMEOUT, end).await
        {
            self.note_end(&words);
        }
        self.end()
    }

    /// Notes why it answers no more.
    pub(super) fn note_end(&self, words: &str) {
        let _ = self.end.set(text::truncate(words, MODEL_REASON_BYTES_MAX).to_owned());
    }

    /// Whether its session has begun: another handshake would be one too many.
    pub(super) fn has_session(&self) -> bool {
        self.state().transcript.has_session()
    }

    /// Whether it has a call that it may still answer.
    pub(super) fn has_open_call(&self) -> bool {
        self.state().transcript.has_open_call()
    }

    /// Whether the library waits for an answer.
    pub(super) fn is_asked(&self) -> bool {
        !self.state().open.is_empty()
    }

    /// Whether another process should take its place: its messages take much space.
    pub(super) fn is_spent(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= MCP_PROCESS_BYTES_MAX && !self.has_open_call()
    }

    /// Lets a call be made again whose answer is lost.
    pub(super) fn allow_again(&self, call_id: &str) {
        self.state().repeatable.insert(call_id.to_owned());
    }

    /// State of a call, if it was sent.
    pub(super) fn call_state(&self, call_id: &str) -> Option<CallState> {
        self.state().transcript.calls.get(call_id).map(|sent| sent.state.clone())
    }

    /// Tells the server that a call is given up, if it has a request of it.
    pub(super) async fn cancel(self: Arc<Self>, call_id: &str) -> Result<(), SendError> {
        let request = {
            let mut state = self.state();
            let is_of_call = |name: &str| {
                name.strip_prefix(call_id).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let open =
                |(name, sent): &(&String, &mut SentCall)| is_of_call(name) && sent.state == CallState::Open;
            let Some((name, sent)) = state.transcript.calls.iter_mut().find(open) else { return Ok(()) };
            sent.state = CallState::Canceled;
            call_request(name, sent.attempt)
        };
        let told = json!({
            "jsonrpc": "2.0", "method": CANCEL, "params": { "requestId": request },
        });
        self.write(format!("{told}\n")).await
    }

    /// Sends a message of the library, unless the process has it.
    pub(super) async fn send(self: Arc<Self>, mut message: Value) -> Result<(), SendError> {
        if !self.prepare(&mut message)? {
            self.stirred.notify_one();
            return Ok(());
        }
        let line = format!("{message}\n");
        if line.len() > MCP_MESSAGE_BYTES_MAX {
            return Err(SendError::TooLarge);
        }
        self.write(line).await
    }

    /// Gives a message the ids that the process knows. Returns whether it has to be sent.
    fn prepare(&self, message: &mut Value) -> Result<bool, SendError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let method = message["method"].as_str().map(str::to_owned);
        if !matches!(method.as_deref(), Some(INITIALIZE | "server/discover")) {
            state.has_begun = true;
            state.inbox.extend(state.held.drain(..));
        }
        Ok(match (method.as_deref(), message.get("id").cloned()) {
            (Some(method), Some(id)) => {
                let call_id = message["params"]["_meta"][CALL_ID].as_str().map(str::to_owned);
                let (request, known) = match (method, call_id) {
                    (INITIALIZE, _) if let Some((request, answer)) = &state.transcript.initialize => {
                        (request.clone(), answer.clone().map_or(Known::Open, Known::Answered))
                    }
                    ("tools/call", Some(call_id)) => state.begin_call(call_id)?,
                    _ => {
                        let number = self.requests.fetch_add(1, Ordering::Relaxed);
                        (format!("{}:{number}", self.requests_of), Known::New)
                    }
                };
                if method == INITIALIZE {
                    // The library waits for no answer to an earlier question.
                    state.open.clear();
                    state.transcript.initialize.get_or_insert_with(|| (request.clone(), None));
                }
                let is_new = matches!(known, Known::New);
                match known {
                    Known::Answered(answer) => state.inbox.push_back(with_id(answer, &id)),
                    Known::New | Known::Open => drop(state.open.insert(request.clone(), id)),
                }
                message["id"] = Value::String(request);
                is_new
            }
            (Some(INITIALIZED), None) => !std::mem::replace(&mut state.transcript.is_initialized, true),
            (Some(CANCEL), None) => state.cancel(message),
            // An answer to a request of the process.
            (None, _) | (Some(_), None) => true,
        })
    }

    /// Appends to its input, to the end, whoever waits for it: a part of a message must not stay the last one.
    pub(super) async fn write(self: Arc<Self>, text: String) -> Result<(), SendError> {
        let process = Arc::clone(&self);
        let written = self.tasks.spawn(async move {
            let written = process.append(&text).await;
            if let Err(error) = &written {
                // It is not known how much of it arrived.
                let _ = process.unsendable.set(format!("a message could not be sent to it: {error}"));
            }
            process.stirred.notify_one();
            written
        });
        written.await.unwrap_or(Err(SendError::Interrupted))
    }

    async fn append(&self, text: &str) -> Result<(), SendError> {
        let mut offset = self.input_bytes.lock().await;
        let mut left = text;
        while !left.is_empty() {
            let part = text::truncate(left, EXEC_INPUT_PART_BYTES_MAX);
            self.exec.write(*offset, part).await?;
            *offset += part.len() as u64;
            self.bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            left = &left[part.len()..];
        }
        Ok(())
    }

    /// Takes messages that the process has sent, in so many bytes of output.
    pub(super) fn receive(&self, messages: Vec<Value>, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut guard = self.state();
        let state = &mut *guard;
        for message in messages {
            if !is_answer(&message) {
                state.unasked += 1;
                let queue = if state.has_begun { &mut state.inbox } else { &mut state.held };
                queue.push_back(message);
                continue;
            }
            let open = message["id"].as_str().and_then(|request| state.open.remove(request));
            match open {
                Some(id) => state.inbox.push_back(with_id(message.clone(), &id)),
                None => state.unasked += 1,
            }
            state.transcript.take_received(message);
        }
        if state.unasked > MCP_NOTICES_MAX {
            (state.inbox, state.held) = Default::default();
            drop(guard);
            self.note_end("it sends too many messages");
        }
    }

    /// Returns the next message for the library.
    pub(super) fn next(&self) -> Option<Value> {
        self.state().inbox.pop_front()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a request that a process has.
enum Known {
    /// Nothing.
    New,
    /// The request.
    Open,
    /// The request, which it has answered with this message.
    Answered(Value),
}

/// Returns an answer under the id that the library knows.
fn with_id(mut answer: Value, id: &Value) -> Value {
    answer["id"].clone_from(id);
    answer
}

impl State {
    /// Begins a call, or an attempt of it. Returns the id of its request, and the part of it that the process has.
    fn begin_call(&mut self, call_id: String) -> Result<(String, Known), SendError> {
        let sent = self.transcript.calls.get(&call_id);
        match sent.map(|sent| (sent.attempt, &sent.state)) {
            Some((attempt, CallState::Open)) => Ok((call_request(&call_id, attempt), Known::Open)),
            Some((attempt, CallState::Answered(Some(answer)))) => {
                Ok((call_request(&call_id, attempt), Known::Answered(answer.clone())))
            }
            Some(_) if !self.repeatable.contains(&call_id) => Err(SendError::NotAgain),
            before => {
                let attempt = before.map_or(0, |(attempt, _)| attempt) + 1;
                let request = call_request(&call_id, attempt);
                self.transcript.calls.insert(call_id, SentCall { attempt, state: CallState::Open });
                Ok((request, Known::New))
            }
        }
    }

    /// Gives the notification that a request is given up the id that the process knows. Returns whether it is told: not
    /// of a call, which another worker may go on with.
    fn cancel(&mut self, message: &mut Value) -> bool {
        let id = &message["params"]["requestId"];
        let request = self.open.iter().find(|(_, open)| *open == id).map(|(request, _)| request.clone());
        let Some(request) = request.filter(|request| call_of(request).is_none()) else { return false };
        self.open.remove(&request);
        message["params"]["requestId"] = Value::String(request);
        true
    }
}
