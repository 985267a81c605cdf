//! Transcript of a server process: the messages that it was sent and has sent, read from its stored input and output by a
//! worker that goes on with it.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

/// Field of the metadata of a call that names it: a repeated call has the same.
pub(super) const CALL_ID: &str = "sojourn/call_id";
/// Methods that begin the session of a process, and end a request early.
pub(super) const INITIALIZE: &str = "initialize";
pub(super) const INITIALIZED: &str = "notifications/initialized";
pub(super) const CANCEL: &str = "notifications/cancelled";

/// Begin of the id of the request of a call, before the id of the call and the number of the attempt.
const CALL: &str = "call:";

/// A call that was sent to a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SentCall {
    pub attempt: u32,
    pub state: CallState,
}

/// State of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallState {
    /// The process has it, and may answer.
    Open,
    /// The message with its answer; `None` of an old one.
    Answered(Option<Value>),
    /// It was given up.
    Canceled,
    /// Its process ended before it answered.
    Lost,
}

/// Answers whose messages are kept: those of the newest calls. A turn has fewer open ones.
const ANSWERS_MAX: usize = 32;
/// Requests of a process of its own that are kept while they have no answer.
const UNANSWERED_MAX: usize = 64;

/// Messages of a process, as far as they matter to the next connection.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    /// Requests that are not calls, and their methods.
    requests: HashMap<String, String>,
    pub calls: HashMap<String, SentCall>,
    /// The calls whose answers are kept, the oldest first.
    kept: VecDeque<String>,
    /// Id of the request that began the session of the process, and the message with its answer.
    pub initialize: Option<(String, Option<Value>)>,
    /// Whether it was told that the session has begun.
    pub is_initialized: bool,
    /// Ids of its own requests that were answered.
    answered: HashSet<String>,
    /// Its own requests that were not.
    pub unanswered: Vec<Value>,
    /// That its tools changed after they were listed last.
    pub tools_changed: Option<Value>,
}

/// Returns the id of the request of a call.
pub(super) fn call_request(call_id: &str, attempt: u32) -> String {
    format!("{CALL}{call_id}#{attempt}")
}

/// Returns the call and the attempt of a request.
pub(super) fn call_of(request: &str) -> Option<(&str, u32)> {
    let (call, attempt) = request.strip_prefix(CALL)?.rsplit_once('#')?;
    Some((call, attempt.parse().ok()?))
}

/// Returns whether a message is an answer to a request.
pub(super) fn is_answer(message: &Value) -> bool {
    message.get("method").is_none() && (message.get("result").is_some() || message.get("error").is_some())
}

impl Transcript {
    /// The transcript of a process that has just started, and the calls of those before it.
    pub(super) fn new(calls: HashMap<String, SentCall>) -> Self {
        Self { calls, ..Self::default() }
    }

    /// Takes a message that was sent to the process. The messages that it sent come after all of these.
    pub(super) fn take_sent(&mut self, message: &Value) {
        let method = message["method"].as_str();
        match (method, message.get("id")) {
            (Some(method), Some(id)) => {
                let Some(id) = id.as_str() else { return };
                if let Some((call, attempt)) = call_of(id) {
                    self.calls.insert(call.to_owned(), SentCall { attempt, state: CallState::Open });
                } else if method == INITIALIZE {
                    self.initialize = Some((id.to_owned(), None));
                } else {
                    self.requests.insert(id.to_owned(), method.to_owned());
                }
            }
            (Some(INITIALIZED), None) => self.is_initialized = true,
            (Some(CANCEL), None) => {
                let request = message["params"]["requestId"].as_str();
                if let Some((call, attempt)) = request.and_then(call_of)
                    && let Some(sent) = self.calls.get_mut(call).filter(|sent| sent.attempt == attempt)
                {
                    sent.state = CallState::Canceled;
                }
            }
            (None, Some(id)) => {
                self.answered.insert(id.to_string());
            }
            (Some(_) | None, None) => {}
        }
    }

    /// Takes a message that the process sent.
    pub(super) fn take_received(&mut self, message: Value) {
        let id = message.get("id");
        if is_answer(&message) {
            let Some(id) = id.and_then(Value::as_str) else { return };
            if let Some((call, attempt)) = call_of(id) {
                let call = call.to_owned();
                let is_first = |sent: &&mut SentCall| {
                    sent.attempt == attempt && !matches!(sent.state, CallState::Answered(_))
                };
                if let Some(sent) = self.calls.get_mut(&call).filter(is_first) {
                    sent.state = CallState::Answered(Some(message));
                    self.keep(call);
                }
            } else if let Some((_, answer)) = self.initialize.as_mut().filter(|(request, _)| request == id) {
                *answer = Some(message);
            } else if self.requests.get(id).is_some_and(|method| method == "tools/list") {
                self.tools_changed = None;
            }
        } else if let Some(id) = id {
            if self.unanswered.len() < UNANSWERED_MAX && !self.answered.contains(&id.to_string()) {
                self.unanswered.push(message);
            }
        } else if message["method"] == "notifications/tools/list_changed" {
            self.tools_changed = Some(message);
        }
    }

    /// Keeps the answer of a call, and forgets that of an older one.
    fn keep(&mut self, call: String) {
        self.kept.push_back(call);
        if self.kept.len() > ANSWERS_MAX
            && let Some(oldest) = self.kept.pop_front()
            && let Some(SentCall { state: CallState::Answered(answer), .. }) = self.calls.get_mut(&oldest)
        {
            *answer = None;
        }
    }

    /// Whether the session of the process has begun, or is about to.
    pub(super) fn has_session(&self) -> bool {
        let answer = self.initialize.as_ref().map(|(_, answer)| answer.as_ref());
        answer.is_some_and(|answer| answer.is_none_or(|answer| answer.get("error").is_none()))
    }

    /// Whether the process refused to begin a session.
    pub(super) fn is_refused(&self) -> bool {
        self.initialize.is_some() && !self.has_session()
    }

    /// Takes the calls of the processes before it.
    pub(super) fn take_earlier(&mut self, calls: HashMap<String, SentCall>) {
        for (call, sent) in calls {
            self.calls.entry(call).or_insert(sent);
        }
    }

    /// Returns whether the process may still answer a call.
    pub(super) fn has_open_call(&self) -> bool {
        self.calls.values().any(|sent| sent.state == CallState::Open)
    }

    /// The calls of a process that has ended.
    pub(super) fn calls_at_end(self) -> impl Iterator<Item = (String, SentCall)> {
        self.calls.into_iter().map(|(call, mut sent)| {
            if sent.state == CallState::Open {
                sent.state = CallState::Lost;
            }
            (call, sent)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn transcript(sent: &[Value], received: &[Value]) -> Transcript {
        let mut transcript = Transcript::default();
        sent.iter().for_each(|message| transcript.take_sent(message));
        received.iter().for_each(|message| transcript.take_received(message.clone()));
        transcript
    }

    fn call(request: &str) -> Value {
        json!({ "id": request, "method": "tools/call", "params": {} })
    }

    #[test]
    fn a_call_is_known_with_what_became_of_it() {
        let canceled = json!({ "method": CANCEL, "params": { "requestId": "call:s/canceled#1" } });
        let answer = json!({ "id": "call:s/done#2", "result": {} });
        let late = json!({ "id": "call:s/done#1", "result": { "late": true } });
        let sent = [
            call(&call_request("s/open", 1)),
            call(&call_request("s/done", 1)),
            call(&call_request("s/done", 2)),
            call(&call_request("s/canceled", 1)),
            canceled,
        ];
        let known = transcript(&sent, &[late, answer.clone()]);
        assert_eq!(known.calls["s/open"].state, CallState::Open);
        assert_eq!(known.calls["s/done"], SentCall { attempt: 2, state: CallState::Answered(Some(answer)) });
        assert_eq!(known.calls["s/canceled"].state, CallState::Canceled);
        assert!(known.has_open_call());
        let ended: HashMap<_, _> = known.calls_at_end().collect();
        assert_eq!(ended["s/open"].state, CallState::Lost);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let calls: Vec<_> = (0..100).map(|number| call(&call_request(&format!("s/{number}"), 1))).collect();
        let answers =
            (0..100).map(|number| json!({ "id": call_request(&format!("s/{number}"), 1), "result": {} }));
        let own = (0..1_000).map(|number| json!({ "id": number, "method": "ping" }));
        let known = transcript(&calls, &answers.chain(own).collect::<Vec<_>>());
        let kept = |state: &CallState| matches!(state, CallState::Answered(Some(_)));
        assert_eq!(known.calls.values().filter(|sent| kept(&sent.state)).count(), ANSWERS_MAX);
        assert!(kept(&known.calls["s/99"].state) && !kept(&known.calls["s/0"].state));
        assert_eq!(known.unanswered.len(), UNANSWERED_MAX);
    }

    #[test]
    fn a_refused_session_is_not_one() {
        let sent = [json!({ "id": "7:0", "method": INITIALIZE })];
        assert!(transcript(&sent, &[]).has_session(), "its answer may come");
        let refused = transcript(&sent, &[json!({ "id": "7:0", "error": {} })]);
        assert!(refused.is_refused() && !refused.has_session());
    }

    #[test]
    fn a_session_is_begun_once_and_its_open_requests_are_known() {
        let sent = [
            json!({ "id": "7:0", "method": INITIALIZE }),
            json!({ "method": INITIALIZED }),
            json!({ "id": "7:1", "method": "tools/list" }),
            json!({ "id": 1, "result": {} }),
        ];
        let changed = json!({ "method": "notifications/tools/list_changed" });
        let begun = json!({ "id": "7:0", "result": { "serverInfo": {} } });
        let ping = |id: u32| json!({ "id": id, "method": "ping" });
        let listed = json!({ "id": "7:1", "result": { "tools": [] } });
        let received = [begun.clone(), ping(1), ping(2), changed.clone(), listed];
        let known = transcript(&sent, &received);
        assert_eq!(known.initialize, Some(("7:0".to_owned(), Some(begun))));
        assert!(known.is_initialized && known.has_session() && known.tools_changed.is_none());
        assert_eq!(known.unanswered, [ping(2)]);
        let again: Vec<_> = received.iter().cloned().chain([changed.clone()]).collect();
        assert_eq!(transcript(&sent, &again).tools_changed, Some(changed));
    }
}
