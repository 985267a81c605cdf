//! Checks of the guarantees on the database, once no work is pending.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use sojourn::{
    base::{Id, Origin, seal::MasterKey},
    blob::Blobs,
    domain::{
        Body, Event, OperationId, OrgId, SessionId, Status, TurnId, apply, event::Outcome, turn::YieldReason,
    },
    journal::Journal,
    store::{Store, notification::Notifications, pool::PoolSizes},
};
use uuid::Uuid;

use crate::{
    client::Violations,
    cluster::Cluster,
    load::{self, Made},
    processes::MASTER_KEY,
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
    /// Commands that callers ran directly.
    pub direct: u64,
    /// Calls with an unknown outcome.
    pub unknown: u64,
    /// Turns that continued in a second or later attempt.
    pub recovered: u64,
    /// Turns that were interrupted too often.
    pub exhausted: u64,
    pub attempts_max: i32,
}

/// Reads all data and checks the guarantees.
pub struct Checker<'a> {
    store: Store,
    journal: Journal,
    data_dir: &'a Path,
    violations: &'a Violations,
    found: Found,
}

impl<'a> Checker<'a> {
    pub fn new(cluster: &Cluster, data_dir: &'a Path, violations: &'a Violations) -> anyhow::Result<Self> {
        let master = MasterKey::parse(MASTER_KEY).context("the master key")?;
        let store = Store::open(cluster.own_urls(), PoolSizes { app: 2, system: 2 }, master)?;
        let blobs = Blobs::local(&data_dir.join("blobs"))?;
        let journal = Journal::new(store.clone(), blobs, Notifications::new(Uuid::nil()), Origin::system());
        Ok(Self { store, journal, data_dir, violations, found: Found::default() })
    }

    /// Checks every session that the load created.
    pub async fn check(mut self, org: OrgId, made: &[Made]) -> anyhow::Result<Found> {
        for one in made {
            self.session(org, one).await.with_context(|| one.session.to_string())?;
        }
        self.store.close().await;
        Ok(self.found)
    }

    async fn session(&mut self, org: OrgId, made: &Made) -> anyhow::Result<()> {
        let id = made.session;
        let log = self.journal.log(org, id, 0).await?;
        self.found.sessions += 1;
        self.found.events += log.len() as u64;
        if !log.iter().map(|event| event.seq).eq(1..=log.len() as i64) {
            self.say(id, "its seq has a gap");
            return Ok(());
        }
        let ids: HashSet<_> = log.iter().map(|event| event.draft.id).collect();
        if ids.len() != log.len() {
            self.say(id, "an event is in its log twice");
        }
        self.fold(org, id, &log).await?;
        let inputs = log.iter().filter(|event| matches!(event.draft.body, Body::UserMessage { .. })).count();
        if inputs as u64 != made.inputs {
            self.say(id, &format!("{} messages were acknowledged, {inputs} are in its log", made.inputs));
        }
        let mut turns: BTreeMap<TurnId, Vec<&Event>> = BTreeMap::new();
        for event in &log {
            if let Some(turn) = event.draft.turn_id {
                turns.entry(turn).or_default().push(event);
            }
        }
        for (turn, events) in &turns {
            self.turn(id, *turn, events);
        }
        let trace = made.trace.clone().unwrap_or_else(|| load::trace(self.data_dir, id));
        self.effects(id, &log, &trace);
        self.direct(id, &log, &trace);
        Ok(())
    }

    /// The row is the fold of the log, and the session is idle.
    async fn fold(&self, org: OrgId, id: SessionId, log: &[Event]) -> anyhow::Result<()> {
        let row = self.store.load_session(org, id).await?;
        let Some((folded, ended)) = apply::fold(id, log) else {
            self.say(id, "its log does not start with session.created");
            return Ok(());
        };
        if folded != row {
            self.say(id, &format!("its row is not the fold of its log:\n  row  {row:?}\n  fold {folded:?}"));
        }
        match row.status {
            Status::Idle | Status::AwaitingInput | Status::Failed | Status::Archived => {}
            Status::Queued | Status::Running => self.say(id, &format!("it is still {:?}", row.status)),
        }
        if row.is_pending() {
            self.say(id, "queued input is not taken by any turn");
        }
        let mut tx = self.store.begin(org).await?;
        let rows = tx.turns(id, None, 1_000).await?;
        for turn in &ended {
            if rows.iter().find(|row| row.id == turn.id) != Some(turn) {
                self.say(id, &format!("the row of {} is not the fold of its events", turn.id));
            }
        }
        Ok(())
    }

    /// One terminal event, attempts in order, no event out of order.
    fn turn(&mut self, id: SessionId, turn: TurnId, events: &[&Event]) {
        self.found.turns += 1;
        let mut attempts = 0;
        let (mut unknown, mut exhausted) = (0, false);
        let mut end: Option<YieldReason> = None;
        let mut open: HashSet<&str> = HashSet::new();
        let mut settled: HashSet<&str> = HashSet::new();
        for event in events {
            let what = event.draft.body.type_name();
            if end.is_some() {
                self.say(id, &format!("{what} ({}) follows the end of {turn}", event.seq));
            }
            match &event.draft.body {
                Body::UserMessage { .. } | Body::TurnCancelRequested { .. } => continue,
                Body::TurnStarted { attempt, .. } => {
                    if *attempt != attempts + 1 {
                        self.say(id, &format!("attempt {attempt} of {turn} follows attempt {attempts}"));
                    }
                    attempts = *attempt;
                }
                Body::TurnCompleted(completed) => {
                    end = Some(completed.yield_reason);
                    let code = completed.error.as_ref().map(|error| error.code.as_str());
                    match code {
                        None => {}
                        Some("recovery_exhausted") => exhausted = true,
                        Some(code) => self.say(id, &format!("{turn} failed: {code}, {:?}", completed.error)),
                    }
                }
                Body::ToolCall { call_id, .. } => {
                    self.found.calls += 1;
                    if !open.insert(call_id) || settled.contains(call_id.as_str()) {
                        self.say(id, &format!("{call_id} of {turn} is called twice"));
                    }
                }
                Body::ToolResult { call_id, outcome, .. } => {
                    unknown += u64::from(*outcome == Outcome::Unknown);
                    if !open.remove(call_id.as_str()) || !settled.insert(call_id) {
                        self.say(id, &format!("{call_id} of {turn} has a second result"));
                    }
                }
                _ => {}
            }
            if attempts == 0 && end.is_none() {
                self.say(id, &format!("{what} ({}) comes before the start of {turn}", event.seq));
            }
        }
        if end.is_none() {
            self.say(id, &format!("{turn} has no end"));
        }
        // No fault destroys a sandbox, so the state of every command can be read.
        if unknown > 0 && end != Some(YieldReason::Canceled) && !exhausted {
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

    /// Compares the tokens of the commands on the disk with the log.
    fn effects(&mut self, id: SessionId, log: &[Event], trace: &[String]) {
        let mut left: HashMap<&str, u32> = HashMap::new();
        for token in trace {
            *left.entry(token).or_default() += 1;
        }
        self.found.ran += left.len() as u64;
        for (token, count) in left.iter().filter(|(_, count)| **count > 1) {
            self.say(id, &format!("{token} ran {count} times"));
        }
        let mut tokens: HashMap<(&TurnId, &str), &str> = HashMap::new();
        for event in log {
            let Some(turn) = &event.draft.turn_id else { continue };
            match &event.draft.body {
                Body::ToolCall { call_id, tool, input, .. } if tool == "bash" => {
                    let command = input["command"].as_str().unwrap_or_default();
                    tokens.insert((turn, call_id), command.split(' ').nth(1).unwrap_or_default());
                }
                Body::ToolResult { call_id, outcome, output, .. } => {
                    let Some(token) = tokens.get(&(turn, call_id.as_str())) else { continue };
                    let count = left.get(token).copied().unwrap_or(0);
                    match outcome {
                        Outcome::Ran if count != 1 => {
                            self.say(
                                id,
                                &format!("{token} is logged as run and ran {count} times: {output}"),
                            );
                        }
                        Outcome::NotRun if count != 0 => {
                            self.say(id, &format!("{token} is logged as not run and ran {count} times"));
                        }
                        Outcome::Ran | Outcome::NotRun | Outcome::Unknown => {}
                    }
                }
                _ => {}
            }
        }
    }

    /// Each command of a caller was started once, ended once, and left its token once.
    fn direct(&mut self, id: SessionId, log: &[Event], trace: &[String]) {
        let mut open: HashMap<OperationId, &str> = HashMap::new();
        for event in log {
            match &event.draft.body {
                Body::ExecStarted { exec_id, command, .. } => {
                    self.found.direct += 1;
                    if open.insert(*exec_id, command.split(' ').nth(1).unwrap_or_default()).is_some() {
                        self.say(id, &format!("{exec_id} is started twice"));
                    }
                }
                Body::ExecCompleted { exec_id: Some(exec_id), cause, .. } => {
                    let Some(token) = open.remove(exec_id) else {
                        self.say(id, &format!("{exec_id} has a second end, or no start"));
                        continue;
                    };
                    let count = trace.iter().filter(|left| *left == token).count();
                    if cause != "exited" || count != 1 {
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

/// The organization of the run.
pub async fn org(cluster: &Cluster) -> anyhow::Result<OrgId> {
    let mut connection = cluster.superuser().await?;
    let id: Uuid = sqlx::query_scalar("select org_id from org").fetch_one(&mut connection).await?;
    Ok(Id::from_uuid(id))
}

/// Median and maximum of the durations.
pub fn spread(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    (middle, times.last().copied().unwrap_or_default())
}
