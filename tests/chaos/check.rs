//! Checks of the guarantees on the database, once no work is pending.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use sojourn::domain::SessionId;
use uuid::Uuid;

use crate::{
    answers::{Actions, Answers},
    client::Violations,
    fold,
    load::{self, Made},
    mcp::{self, Notes},
    messages::Messages,
    record::{Event, Record, Session},
    script,
};

/// Counts beside the violations.
#[derive(Debug, Default)]
pub struct Found {
    pub sessions: u64,
    pub events: u64,
    pub turns: u64,
    pub calls: u64,
    /// Commands that left their token.
    pub ran: u64,
    /// Commands that callers ran directly, and those of them in sessions without an agent.
    pub direct: u64,
    pub direct_without_agent: u64,
    /// Calls of custom tools that callers answered, and those that nobody answered in time.
    pub answered: u64,
    pub expired: u64,
    /// Messages that a running turn read.
    pub steered: u64,
    /// Summaries of histories, and requests for one that would have saved too little.
    pub compacted: u64,
    pub not_compacted: u64,
    /// Outputs of turns that had to submit one, and those that did not fit.
    pub outputs: u64,
    pub rejected_outputs: u64,
    /// Calls that reached the MCP server, and those of them whose outcome is unknown.
    pub noted: u64,
    pub unknown_notes: u64,
    /// Calls with an unknown outcome.
    pub unknown: u64,
    /// Turns that continued in a second or later attempt.
    pub recovered: u64,
    /// Turns that were interrupted too often.
    pub exhausted: u64,
    /// Retries of these and of turns whose model refused a request.
    pub retried: u64,
    pub attempts_max: i64,
    pub freezes: u64,
    pub hibernations: u64,
}

/// Reads all data and checks the guarantees.
pub struct Checker<'a> {
    data_dir: &'a Path,
    violations: &'a Violations,
    answers: &'a Answers,
    notes: &'a Notes,
    found: Found,
}

impl<'a> Checker<'a> {
    pub fn new(
        data_dir: &'a Path,
        violations: &'a Violations,
        answers: &'a Answers,
        notes: &'a Notes,
    ) -> Self {
        Self { data_dir, violations, answers, notes, found: Found::default() }
    }

    /// Checks every session in the database, and that the load knows each of them.
    pub async fn check(mut self, record: &mut Record, made: &[Made]) -> anyhow::Result<Found> {
        let known: HashMap<Uuid, &Made> = made.iter().map(|made| (made.session.uuid(), made)).collect();
        let all = record.sessions.clone();
        for id in &all {
            let session = record.session(*id).await.with_context(|| id.to_string())?;
            if let Some(made) = known.get(id) {
                self.session(&session, made);
            } else {
                self.violations.note(format!("{id} is in the database, and no caller was told of it"));
            }
        }
        let present: HashSet<Uuid> = all.into_iter().collect();
        for made in made.iter().filter(|made| !present.contains(&made.session.uuid())) {
            self.say(made.session, "a caller was told of it, and it is not in the database");
        }
        for action in self.answers.0.lock().expect("no driver panics").keys() {
            self.violations.note(format!("an answer of {action} was acknowledged, and is in no log"));
        }
        if self.found.unknown_notes * 2 > self.found.noted {
            let (unknown, all) = (self.found.unknown_notes, self.found.noted);
            self.violations
                .note(format!("{unknown} of {all} calls of the MCP server have an unknown outcome"));
        }
        for left in record.leftovers().await? {
            self.violations.note(left);
        }
        Ok(self.found)
    }

    fn session(&mut self, session: &Session, made: &Made) {
        let (id, log) = (made.session, &session.log);
        self.found.sessions += 1;
        self.found.events += log.len() as u64;
        if !log.iter().map(|event| event.seq).eq(1..=log.len() as i64) {
            self.say(id, "its seq has a gap");
            return;
        }
        if log.first().is_none_or(|first| first.kind != "session.created") {
            self.say(id, "its log does not start with session.created");
        }
        let ids: HashSet<_> = log.iter().map(|event| event.id).collect();
        if ids.len() != log.len() {
            self.say(id, "an event is in its log twice");
        }
        for difference in fold::differences(session) {
            self.say(id, &difference);
        }
        let status = session.row["status"].as_str().unwrap_or_default();
        if !matches!(status, "idle" | "awaiting_input" | "failed" | "archived") {
            self.say(id, &format!("it is still {status}"));
        }
        if session.row["input_head"].as_i64() > session.row["input_cursor"].as_i64() {
            self.say(id, "queued input is not taken by any turn");
        }
        let count = |kind: &str| log.iter().filter(|event| event.kind == kind).count() as u64;
        if count("user.message") != made.inputs {
            let inputs = count("user.message");
            self.say(id, &format!("{} messages were acknowledged, {inputs} are in its log", made.inputs));
        }
        self.requests(id, log, made);
        self.sandboxes(id, log);
        let mut turns: BTreeMap<Uuid, Vec<&Event>> = BTreeMap::new();
        for event in log {
            if let Some(turn) = event.turn {
                turns.entry(turn).or_default().push(event);
            }
        }
        let messages = Messages::of(log);
        self.found.steered += messages.steered();
        for fault in messages.faults() {
            self.say(id, &fault);
        }
        turns.retain(|turn, _| !messages.is_gone(*turn));
        for (turn, events) in &turns {
            self.turn(id, *turn, events);
            if made.has_schema {
                self.output(id, *turn, events, log);
            }
        }
        let disk = load::trace(self.data_dir, id);
        let trace = made.trace.clone().or_else(|| disk.clone()).unwrap_or_default();
        if let Some(disk) = disk.filter(|disk| *disk != trace) {
            self.say(id, &format!("its disk has {} lines, its file had {}", disk.len(), trace.len()));
        }
        let missed = |event: &&Event| {
            event.text("tool") == "session_wait" && event.text("output").contains("\"timed_out\":true")
        };
        for event in log.iter().filter(missed) {
            self.say(id, &format!("{} missed the end of its child", event.text("call_id")));
        }
        self.effects(id, log, &trace);
        self.direct(id, log, &trace, session.row["has_agent"] == true);
    }

    /// Requests to summarize the history, each once, and what became of them.
    fn requests(&mut self, id: SessionId, log: &[Event], made: &Made) {
        let count = |kind: &str| log.iter().filter(|event| event.kind == kind).count() as u64;
        for asked in &made.compactions {
            if !log.iter().any(|event| event.kind == "history.compaction_requested" && event.id == *asked) {
                self.say(id, &format!("{asked} was acknowledged and is not in its log"));
            }
        }
        if count("history.compaction_requested") != made.compactions.len() as u64 {
            let (asked, known) = (count("history.compaction_requested"), made.compactions.len());
            self.say(
                id,
                &format!("{known} requests for a summary were acknowledged, {asked} are in its log"),
            );
        }
        self.found.compacted += count("history.compacted");
        self.found.not_compacted += count("history.compaction_failed");
        self.found.rejected_outputs += count("output.rejected");
    }

    /// The begin and the end of a sandbox are in the log once.
    fn sandboxes(&mut self, id: SessionId, log: &[Event]) {
        let count = |kind: &str| log.iter().filter(|event| event.kind == kind).count() as u64;
        self.found.freezes += count("sandbox.frozen");
        let is_hibernation =
            |event: &&Event| event.kind == "sandbox.terminated" && event.text("reason") == "idle";
        self.found.hibernations += log.iter().filter(is_hibernation).count() as u64;
        for kinds in [&["sandbox.created"][..], &["sandbox.terminated", "sandbox.lost"]] {
            let named = log.iter().filter(|event| kinds.contains(&event.kind.as_str()));
            let mut seen = HashSet::new();
            for event in named.filter(|event| !seen.insert(event.text("sandbox_id"))) {
                self.say(id, &format!("{} has a second {}", event.text("sandbox_id"), event.kind));
            }
        }
    }

    /// One terminal event, attempts in order, no event out of order.
    fn turn(&mut self, id: SessionId, turn: Uuid, events: &[&Event]) {
        self.found.turns += 1;
        let mut attempts = 0;
        let (mut unknown, mut exhausted) = (0, false);
        let mut end: Option<&str> = None;
        let actions = self.actions(id, events);
        let (mut open, mut settled): (HashSet<&str>, HashSet<&str>) = Default::default();
        for event in events {
            let kind = event.kind.as_str();
            if kind == "turn.retried" && end.take().is_some() {
                self.found.retried += 1;
                continue;
            }
            if end.is_some() {
                self.say(id, &format!("{kind} ({}) follows the end of {turn}", event.seq));
            }
            match kind {
                "user.message" | "turn.cancel_requested" | "history.compaction_requested" => continue,
                "turn.started" => {
                    if event.number("attempt") != attempts + 1 {
                        let attempt = event.number("attempt");
                        self.say(id, &format!("attempt {attempt} of {turn} follows attempt {attempts}"));
                    }
                    attempts = event.number("attempt");
                }
                "turn.completed" => {
                    end = Some(event.text("yield_reason"));
                    match event.body["error"]["code"].as_str() {
                        None => {}
                        Some("recovery_exhausted") => exhausted = true,
                        // As the script wants it.
                        Some("model_refused_request") => {}
                        Some(code) => {
                            self.say(id, &format!("{turn} failed: {code}, {}", event.body["error"]));
                        }
                    }
                }
                "tool.call" => {
                    self.found.calls += 1;
                    let call = event.text("call_id");
                    if !open.insert(call) || settled.contains(call) {
                        self.say(id, &format!("{call} of {turn} is called twice"));
                    }
                }
                "tool.result" => {
                    let call = event.text("call_id");
                    let is_unknown = is_unknown(event) && !actions.is_expired(call);
                    unknown += u64::from(is_unknown);
                    if !open.remove(call) || !settled.insert(call) {
                        self.say(id, &format!("{call} of {turn} has a second result, or no call before it"));
                    }
                }
                _ => {}
            }
            if attempts == 0 && end.is_none() {
                self.say(id, &format!("{kind} ({}) comes before the start of {turn}", event.seq));
            }
        }
        if end.is_none() {
            self.say(id, &format!("{turn} has no end"));
        }
        // No fault destroys a sandbox, so the state of every command can be read.
        if unknown > 0 && end != Some("canceled") && !exhausted {
            self.say(id, &format!("{unknown} calls of {turn} have an unknown outcome"));
        }
        if !open.is_empty() {
            self.say(id, &format!("calls of {turn} have no result: {open:?}"));
        }
        self.found.unknown += unknown;
        self.found.exhausted += u64::from(exhausted);
        self.found.recovered += u64::from(attempts > 1);
        self.found.attempts_max = self.found.attempts_max.max(attempts);
    }

    /// The output of a turn that had to submit one, unless it ended early or read no message: that of the script in the
    /// newest message.
    fn output(&mut self, id: SessionId, turn: Uuid, events: &[&Event], log: &[Event]) {
        let end = events.iter().rfind(|event| event.kind == "turn.completed");
        let Some(end) = end.filter(|end| end.text("yield_reason") == "completed") else { return };
        let is_output = |event: &&&Event| event.kind == "agent.message" && !event.body["output"].is_null();
        let steered = events.iter().rfind(|event| event.kind == "turn.steered");
        // A message that came beside an output has another one made.
        let since = steered.map_or(0, |steered| steered.seq);
        let outputs: Vec<_> = events.iter().filter(is_output).filter(|event| event.seq > since).collect();
        let newest = steered.and_then(|steered| steered.body["seqs"].as_array()?.last()?.as_i64());
        let own = || events.iter().rfind(|event| event.kind == "user.message").map(|event| event.seq);
        let Some(message) = newest.or_else(own).and_then(|seq| log.get(usize::try_from(seq - 1).ok()?))
        else {
            return;
        };
        self.found.outputs += outputs.len() as u64;
        let given: Vec<_> = outputs.iter().map(|event| &event.body["output"]).collect();
        let wanted = script::output_of(message).unwrap_or_else(|| end.body["output"].clone());
        if given != [&wanted] || end.body["output"] != wanted {
            self.say(
                id,
                &format!("{turn} submitted {given:?}, its script says {wanted}: {}", end.body["output"]),
            );
        }
    }

    /// One end of each action, which the result of its call says, and the answers that were acknowledged.
    fn actions<'e>(&mut self, id: SessionId, events: &[&'e Event]) -> Actions<'e> {
        let mut actions = Actions::default();
        for event in events {
            let fault = match event.kind.as_str() {
                "action.required"
                | "action.closed"
                | "user.custom_tool_result"
                | "user.tool_confirmation"
                | "user.answer" => actions.take(event),
                "tool.result" => actions.contradiction(event),
                _ => None,
            };
            if let Some(fault) = fault {
                self.say(id, &fault);
            }
        }
        for (action, text) in actions.answers() {
            self.found.answered += 1;
            let known = self.answers.0.lock().expect("no driver panics").remove(action);
            if known.as_deref() != Some(text) {
                self.say(id, &format!("{action} has the answer {text}, acknowledged was {known:?}"));
            }
        }
        self.found.expired += actions.expired();
        actions
    }

    /// Compares the tokens that the commands left with the log.
    fn effects(&mut self, id: SessionId, log: &[Event], trace: &[String]) {
        let mut left: HashMap<&str, u32> = HashMap::new();
        for token in trace {
            *left.entry(token).or_default() += 1;
        }
        self.found.ran += left.len() as u64;
        for (token, count) in left.iter().filter(|(_, count)| **count > 1) {
            self.say(id, &format!("{token} ran {count} times"));
        }
        let mut tokens: HashMap<(Uuid, &str), &str> = HashMap::new();
        for event in log {
            let (Some(turn), call) = (event.turn, event.text("call_id")) else { continue };
            match event.kind.as_str() {
                "tool.call" if event.text("tool") == "bash" => {
                    let command = event.body["input"]["command"].as_str().unwrap_or_default();
                    tokens.insert((turn, call), token(command));
                }
                "tool.call" if event.text("tool") == mcp::NOTE => {
                    tokens.insert((turn, call), event.body["input"]["word"].as_str().unwrap_or_default());
                }
                "tool.result" => {
                    let Some(token) = tokens.get(&(turn, call)) else { continue };
                    let is_note = event.text("tool") == mcp::NOTE;
                    let count = if is_note {
                        let count = self.notes.count(token);
                        self.found.noted += u64::from(count);
                        self.found.unknown_notes += u64::from(event.text("outcome") == "unknown");
                        count
                    } else {
                        left.get(token).copied().unwrap_or(0)
                    };
                    let is_wrong = match event.text("outcome") {
                        "ran" => count != 1,
                        "not_run" => count != 0,
                        _ => count > 1,
                    };
                    if is_wrong {
                        let outcome = event.text("outcome");
                        self.say(id, &format!("{token} is logged as {outcome} and ran {count} times"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Each command of a caller was started once, ended once, and left its token once.
    fn direct(&mut self, id: SessionId, log: &[Event], trace: &[String], has_agent: bool) {
        let mut open: HashMap<&str, &str> = HashMap::new();
        for event in log {
            match event.kind.as_str() {
                "exec.started" => {
                    self.found.direct += 1;
                    self.found.direct_without_agent += u64::from(!has_agent);
                    if open.insert(event.text("exec_id"), token(event.text("command"))).is_some() {
                        self.say(id, &format!("{} is started twice", event.text("exec_id")));
                    }
                }
                "exec.completed" if event.body.get("exec_id").is_some() => {
                    let Some(token) = open.remove(event.text("exec_id")) else {
                        self.say(id, &format!("{} has a second end, or no start", event.text("exec_id")));
                        continue;
                    };
                    let count = trace.iter().filter(|left| *left == token).count();
                    if event.text("cause") != "exited" || count != 1 {
                        let cause = event.text("cause");
                        self.say(id, &format!("{token} ended with {cause} and ran {count} times"));
                    }
                }
                _ => {}
            }
        }
        if !open.is_empty() {
            self.say(id, &format!("commands of a caller have no end: {open:?}"));
        }
    }

    fn say(&self, id: SessionId, words: &str) {
        self.violations.note(format!("{id}: {words}"));
    }
}

/// Whether the outcome of a call is unknown, and was known to its sandbox. That of a call of an MCP server without an
/// answer is unknown.
fn is_unknown(result: &Event) -> bool {
    result.text("outcome") == "unknown" && result.text("tool") != mcp::NOTE
}

/// The token that a command leaves: `echo TOKEN >> FILE; ...`.
fn token(command: &str) -> &str {
    command.split(' ').nth(1).unwrap_or_default()
}

/// The public id of a session.
pub fn public(session: Uuid) -> SessionId {
    SessionId::from_uuid(session)
}

/// Median and maximum of the durations.
pub fn spread(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    (middle, times.last().copied().unwrap_or_default())
}
