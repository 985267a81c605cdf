//! The state that a log means, computed from the documentation of the events (`docs/events`) and not with the
//! code of the service, and its comparison with the rows.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sojourn::domain::TurnId;
use uuid::Uuid;

use crate::record::{Event, Session};

/// Sums by the name of their column.
type Sums = BTreeMap<&'static str, i64>;

const TOKENS: [&str; 6] =
    ["input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens", "steps", "tool_calls"];
const COSTS: [&str; 5] =
    ["model_micros", "sandbox_cpu_micros", "sandbox_memory_micros", "fee_micros", "unpriced_steps"];

#[derive(Clone, Debug)]
struct Turn {
    id: Uuid,
    attempt: i64,
    is_queued: bool,
    is_waiting: bool,
    from: i64,
    to: i64,
    end: Option<(String, Option<String>)>,
    active_seconds: i64,
    sums: Sums,
}

/// State of a session after its log.
#[derive(Debug, Default)]
struct State {
    status: &'static str,
    input_head: i64,
    input_cursor: i64,
    running: Option<Turn>,
    queued: Option<Turn>,
    ended: Vec<Turn>,
    cancel: Option<Uuid>,
    hold: Option<&'static str>,
    stopped_us: Option<i64>,
    turns: i64,
    active_seconds: i64,
    exec_ms: i64,
    sums: Sums,
}

/// Differences between the log of a session and its rows.
pub fn differences(session: &Session) -> Vec<String> {
    let has_agent = session.row["has_agent"] == true;
    let mut state = State { status: "idle", ..State::default() };
    for event in &session.log {
        state.take(event, has_agent);
    }
    let mut found = Vec::new();
    compare(&mut found, "its row", &session.row, &state.columns(session.log.len() as i64));
    for turn in state.ended.iter().chain(&state.running).chain(&state.queued) {
        match session.turns.get(&turn.id) {
            Some(row) => compare(&mut found, &format!("the row of turn {}", turn.id), row, &turn.columns()),
            None => found.push(format!("turn {} has no row", turn.id)),
        }
    }
    let turns =
        state.ended.len() + usize::from(state.running.is_some()) + usize::from(state.queued.is_some());
    if turns != session.turns.len() {
        found.push(format!("its log has {turns} turns, and {} rows exist", session.turns.len()));
    }
    found
}

fn compare(found: &mut Vec<String>, what: &str, row: &Map<String, Value>, wanted: &[(&str, Value)]) {
    for (column, value) in wanted {
        let actual = row.get(*column).unwrap_or(&Value::Null);
        if actual != value {
            found.push(format!("{what} has {column} {actual}, its log says {value}"));
        }
    }
}

impl State {
    fn take(&mut self, event: &Event, has_agent: bool) {
        let at = i64::try_from(event.at.unix_timestamp_nanos() / 1_000).ok();
        match event.kind.as_str() {
            "session.status_changed" => {
                self.status = word(event.text("to"));
                self.stopped_us = at;
            }
            "session.started" => {
                self.hold = None;
                if self.status == "failed" && !has_agent {
                    self.status = "idle";
                }
            }
            "session.paused" => self.hold = Some("paused"),
            "session.resumed" => self.hold = None,
            "session.stopped" => (self.hold, self.stopped_us) = (Some("stopped"), at),
            "session.canceled" => (self.hold, self.stopped_us) = (Some("canceled"), at),
            "exec.started" if self.hold == Some("canceled") => self.hold = None,
            "exec.completed" if event.body.get("exec_id").is_some() => {
                self.exec_ms += event.number("duration_ms");
            }
            "sandbox.rotation_failed" if event.body["failed"] == true && self.status == "idle" => {
                self.status = "failed";
            }
            "user.message" => self.input(event),
            // Of an idle session, it queues a turn.
            "history.compaction_requested" if event.turn.is_some() => self.input(event),
            "turn.cancel_requested" => {
                self.cancel = turn_of(event);
                if event.text("mode") == "cancel" {
                    self.stopped_us = at;
                }
            }
            "turn.started" => self.start(event),
            "turn.steered" if event.body["from_is_empty"] == true => self.empty(event),
            "turn.retried" => self.retry(event),
            "turn.waiting" => {
                let for_callers = event.body["action_ids"].as_array().is_some_and(|ids| !ids.is_empty());
                self.wait(event, true, if for_callers { "awaiting_input" } else { "running" });
            }
            "turn.resumed" => self.wait(event, false, "running"),
            "turn.completed" => self.complete(event, at),
            _ => {}
        }
        self.add(event);
    }

    fn input(&mut self, event: &Event) {
        self.input_head = event.seq;
        if self.hold != Some("paused") {
            self.hold = None;
        }
        let Some(id) = event.turn else { return };
        match &mut self.queued {
            Some(queued) => queued.to = event.seq,
            None => {
                let (from, to) = (event.seq, event.seq);
                let sums = Sums::new();
                self.queued = Some(Turn {
                    id,
                    attempt: 0,
                    is_queued: true,
                    is_waiting: false,
                    from,
                    to,
                    end: None,
                    active_seconds: 0,
                    sums,
                });
            }
        }
        // A waiting turn goes on waiting.
        if self.running.is_none() && matches!(self.status, "idle" | "failed" | "awaiting_input") {
            self.status = "queued";
        }
    }

    fn start(&mut self, event: &Event) {
        if let Some(mut turn) = self.queued.take_if(|queued| Some(queued.id) == event.turn) {
            turn.is_queued = false;
            turn.to = event.number("input_to_seq");
            self.input_cursor = turn.to;
            self.turns += i64::from(event.number("attempt") == 1);
            self.status = "running";
            self.running = Some(turn);
        }
        if let Some(running) = &mut self.running {
            running.attempt = event.number("attempt");
        }
    }

    /// The last turn is queued again, and is no ended one.
    fn retry(&mut self, event: &Event) {
        let Some(mut turn) = self.ended.pop_if(|turn| Some(turn.id) == event.turn) else { return };
        self.active_seconds -= turn.active_seconds;
        (turn.to, turn.end, turn.is_queued) = (self.input_head, None, true);
        self.queued = Some(turn);
        if self.hold != Some("paused") {
            self.hold = None;
        }
        self.status = "queued";
    }

    /// The running turn has read all messages of the queued one.
    fn empty(&mut self, event: &Event) {
        let from = event.text("from_turn_id").parse::<TurnId>().ok().map(|id| id.uuid());
        if let Some(emptied) = self.queued.take_if(|queued| Some(queued.id) == from) {
            self.input_cursor = emptied.to;
        }
    }

    fn wait(&mut self, event: &Event, is_waiting: bool, status: &'static str) {
        if let Some(turn) = self.running.as_mut().filter(|turn| Some(turn.id) == event.turn) {
            (turn.is_waiting, self.status) = (is_waiting, status);
        }
    }

    fn complete(&mut self, event: &Event, at: Option<i64>) {
        let is_it = |turn: &mut Turn| Some(turn.id) == event.turn;
        let Some(mut turn) = self.running.take_if(is_it).or_else(|| self.queued.take_if(is_it)) else {
            return;
        };
        self.input_cursor = self.input_cursor.max(turn.to);
        let reason = event.text("yield_reason").to_owned();
        let code = event.body["error"]["code"].as_str().map(str::to_owned);
        turn.active_seconds = event.number("active_seconds");
        self.active_seconds += turn.active_seconds;
        if self.cancel == Some(turn.id) {
            self.cancel = None;
        }
        if matches!(event.actor.as_str(), "human" | "trigger") {
            self.stopped_us = at;
        }
        if self.running.is_none() {
            self.status = match (&self.queued, reason.as_str()) {
                (Some(_), _) => "queued",
                (None, "needs_input" | "requires_action") => "awaiting_input",
                (None, "error") if event.body["failed"] == true => "failed",
                (None, _) => "idle",
            };
        }
        turn.end = Some((reason, code));
        self.ended.push(turn);
    }

    /// Adds what the event used to the session, and to the turn that it belongs to.
    fn add(&mut self, event: &Event) {
        let mut used = Sums::new();
        match event.kind.as_str() {
            "step.completed" | "step.aborted" => {
                let usage = &event.body["usage"];
                for name in TOKENS {
                    used.insert(name, usage[name].as_i64().unwrap_or_default());
                }
                for name in COSTS {
                    used.insert(name, usage["cost"][name].as_i64().unwrap_or_default());
                }
                if event.kind == "step.completed"
                    && event.body["cost_micros"].is_null()
                    && used.get("unpriced_steps") == Some(&0)
                {
                    used.insert("unpriced_steps", 1);
                }
            }
            // An output is no part of the work.
            "tool.call" => drop(used.insert("tool_calls", i64::from(event.text("tool") != "submit_output"))),
            "turn.started" => drop(used.insert("fee_micros", event.number("fee_micros"))),
            "exec.completed" => {
                used.insert("tool_calls", i64::from(event.body.get("exec_id").is_some()));
                used.insert("sandbox_cpu_micros", event.number("cpu_micros"));
                used.insert("sandbox_memory_micros", event.number("memory_micros"));
            }
            _ => {}
        }
        let running = self.running.as_mut().filter(|turn| Some(turn.id) == event.turn);
        for sums in [Some(&mut self.sums), running.map(|turn| &mut turn.sums)].into_iter().flatten() {
            for (name, value) in &used {
                *sums.entry(name).or_default() += value;
            }
        }
    }

    fn columns(&self, head: i64) -> Vec<(&'static str, Value)> {
        let id = |turn: Option<&Turn>| turn.map(|turn| turn.id.to_string()).into();
        let mut columns = vec![
            ("status", self.status.into()),
            ("hold", self.hold.into()),
            ("head", head.into()),
            ("input_head", self.input_head.into()),
            ("input_cursor", self.input_cursor.into()),
            ("running_turn_id", id(self.running.as_ref())),
            ("queued_turn_id", id(self.queued.as_ref())),
            ("ended_turn_id", id(self.ended.last())),
            ("cancel_turn_id", self.cancel.map(|id| id.to_string()).into()),
            ("stopped_us", self.stopped_us.into()),
            ("turns", self.turns.into()),
            ("active_seconds", self.active_seconds.into()),
            ("exec_ms", self.exec_ms.into()),
        ];
        columns.extend(sum_columns(&self.sums));
        columns
    }
}

impl Turn {
    fn columns(&self) -> Vec<(&'static str, Value)> {
        let reason = self.end.as_ref().map(|(reason, _)| reason.clone());
        let state = match (&reason, self.is_queued) {
            (Some(reason), _) if reason == "error" => "error",
            (Some(_), _) => "ok",
            (None, true) => "queued",
            (None, _) if self.is_waiting => "waiting",
            (None, _) => "running",
        };
        let mut columns = vec![
            ("state", state.into()),
            ("attempt", self.attempt.into()),
            ("input_from_seq", self.from.into()),
            ("input_to_seq", self.to.into()),
            ("yield_reason", reason.into()),
            ("error_code", self.end.as_ref().and_then(|(_, code)| code.clone()).into()),
            ("active_seconds", self.active_seconds.into()),
        ];
        columns.extend(sum_columns(&self.sums));
        columns
    }
}

fn sum_columns(sums: &Sums) -> impl Iterator<Item = (&'static str, Value)> {
    TOKENS.into_iter().chain(COSTS).map(|name| (name, sums.get(name).copied().unwrap_or_default().into()))
}

/// The turn that a body names.
fn turn_of(event: &Event) -> Option<Uuid> {
    event.text("turn_id").parse::<TurnId>().ok().map(|id| id.uuid())
}

fn word(status: &str) -> &'static str {
    ["idle", "archived", "failed", "queued", "running", "awaiting_input"]
        .into_iter()
        .find(|word| *word == status)
        .unwrap_or("unknown")
}
