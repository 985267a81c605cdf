//! Checks on the database, with statements of its own, once no work is pending.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use sojourn::domain::{DeliveryId, EventId, SessionId};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use crate::{
    ledger::{Acknowledged, Ledger},
    load::{Shape, TRACE},
};

/// Counts of a judgment.
#[derive(Debug, Default)]
pub struct Counts {
    pub sessions: usize,
    pub turns: usize,
    pub events: usize,
    pub inputs: usize,
    pub commands: usize,
    pub deliveries: usize,
    /// Acknowledged inputs that are not in the database; only where it may lose commits.
    pub lost_inputs: usize,
    /// Frames that are not in the database; of readers that were not told.
    pub lost_frames: usize,
    /// The same, of readers that had ended before.
    pub lost_frames_of_ended: usize,
    /// Attempts of turns beyond the first.
    pub takeovers: i64,
}

/// Judge of one run.
pub struct Judge<'a> {
    pub ledger: &'a Ledger,
    pub shape: Shape,
    pub data_dir: &'a Path,
    pub database: &'a mut PgConnection,
}

#[derive(FromRow)]
struct SessionRow {
    session_id: Uuid,
    head: i64,
    status: String,
}

#[derive(FromRow)]
struct EventRow {
    session_id: Uuid,
    seq: i64,
    event_id: Uuid,
    r#type: String,
    turn_id: Option<Uuid>,
    body: String,
}

impl Judge<'_> {
    /// Checks everything; violations go into the ledger.
    pub async fn judge(mut self) -> anyhow::Result<Counts> {
        let mut counts = Counts::default();
        let sessions: Vec<SessionRow> = sqlx::query_as("select session_id, head, status::text from session")
            .fetch_all(&mut *self.database)
            .await?;
        let events: Vec<EventRow> = sqlx::query_as(
            "select session_id, seq, event_id, type, turn_id, body::text as body from event order by session_id, seq",
        )
        .fetch_all(&mut *self.database)
        .await?;
        (counts.sessions, counts.events) = (sessions.len(), events.len());
        let mut logs: HashMap<Uuid, Vec<EventRow>> = HashMap::new();
        for event in events {
            logs.entry(event.session_id).or_default().push(event);
        }
        for session in &sessions {
            let log = logs.get(&session.session_id).map_or(&[][..], Vec::as_slice);
            self.session(session, log, &mut counts)?;
        }
        self.acknowledged(&logs, &mut counts)?;
        counts.takeovers = sqlx::query_scalar("select coalesce(sum(attempt - 1), 0)::bigint from turn")
            .fetch_one(&mut *self.database)
            .await?;
        let jobs: i64 = sqlx::query_scalar("select count(*) from job where kind = 'turn'")
            .fetch_one(&mut *self.database)
            .await?;
        if jobs > 0 {
            self.ledger.violation(format!("{jobs} jobs of turns are left"));
        }
        self.deliveries(&mut counts).await?;
        Ok(counts)
    }

    /// The log of each session is whole, and each turn and call has one end.
    fn session(&self, session: &SessionRow, log: &[EventRow], counts: &mut Counts) -> anyhow::Result<()> {
        let id: SessionId = sojourn::base::Id::from_uuid(session.session_id);
        let violation = |words: String| self.ledger.violation(format!("{id}: {words}"));
        if session.status != "idle" {
            violation(format!("it is {}", session.status));
        }
        let seqs: Vec<_> = log.iter().map(|event| event.seq).collect();
        if seqs != (1..=session.head).collect::<Vec<_>>() {
            violation(format!("its log is {seqs:?}, and its head is {}", session.head));
        }
        let mut turns: BTreeMap<Uuid, (usize, usize)> = BTreeMap::new();
        let mut calls: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for event in log {
            let body: serde_json::Value = serde_json::from_str(&event.body)?;
            let call = body["call_id"].as_str().unwrap_or_default().to_owned();
            match (event.r#type.as_str(), event.turn_id) {
                ("turn.started", Some(turn)) => turns.entry(turn).or_default().0 += 1,
                ("turn.completed", Some(turn)) => {
                    turns.entry(turn).or_default().1 += 1;
                    if body["yield_reason"] != "completed" {
                        violation(format!("a turn ended with {}", event.body));
                    }
                }
                ("tool.call", _) => calls.entry(call).or_default().0 += 1,
                ("tool.result", _) => calls.entry(call).or_default().1 += 1,
                _ => {}
            }
        }
        counts.turns += turns.len();
        for (turn, (started, ended)) in turns {
            if started == 0 || ended != 1 {
                violation(format!("turn {turn} started {started} times and ended {ended} times"));
            }
        }
        for (call, count) in calls {
            if count != (1, 1) {
                violation(format!("call {call} has {count:?} calls and results"));
            }
        }
        self.commands(id, log, counts);
        Ok(())
    }

    /// No command ran twice.
    fn commands(&self, session: SessionId, log: &[EventRow], counts: &mut Counts) {
        if !self.shape.has_sandboxes {
            return;
        }
        let orgs = std::fs::read_dir(self.data_dir.join("sandboxes")).into_iter().flatten().flatten();
        let mut files =
            orgs.map(|org| org.path().join(session.uuid().to_string()).join("files/workspace").join(TRACE));
        let text = files.find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let mut ran = BTreeSet::new();
        for word in text.lines() {
            counts.commands += 1;
            if !ran.insert(word) {
                self.ledger.violation(format!("{session}: the command of {word} ran twice"));
            }
        }
        // A command with a result that is known has run.
        let is_unknown = |event: &EventRow| event.body.contains(r#""outcome":"unknown""#);
        let unknown = log.iter().any(|event| event.r#type == "tool.result" && is_unknown(event));
        let asked = log.iter().filter(|event| event.r#type == "tool.call" && event.body.contains(TRACE));
        if !unknown && asked.count() != ran.len() {
            self.ledger.violation(format!("{session}: a command of a completed call did not run"));
        }
    }

    /// Everything that was acknowledged is there, once.
    fn acknowledged(&self, logs: &HashMap<Uuid, Vec<EventRow>>, counts: &mut Counts) -> anyhow::Result<()> {
        for (id, Acknowledged { inputs, frames, is_read, is_lost }) in self.ledger.sessions() {
            if is_lost {
                continue;
            }
            let session: SessionId = id.parse()?;
            let log = logs.get(&session.uuid()).map_or(&[][..], Vec::as_slice);
            for word in &inputs {
                let is_input =
                    |event: &&EventRow| event.r#type == "user.message" && event.body.contains(word);
                match log.iter().filter(is_input).count() {
                    1 => counts.inputs += 1,
                    0 if self.shape.may_lose => counts.lost_inputs += 1,
                    times => self.ledger.violation(format!("{id}: an accepted input is there {times} times")),
                }
            }
            for (seq, event) in &frames {
                let event: EventId = event.parse()?;
                let is_there = log.iter().any(|row| row.seq == *seq && row.event_id == event.uuid());
                match (is_there, self.shape.may_lose) {
                    (true, _) => {}
                    (false, true) if is_read => counts.lost_frames_of_ended += 1,
                    (false, true) => counts.lost_frames += 1,
                    (false, false) => {
                        self.ledger.violation(format!("{id}: a reader got another event {seq}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Every delivery has arrived, and every event has one.
    async fn deliveries(&mut self, counts: &mut Counts) -> anyhow::Result<()> {
        let rows: Vec<(Uuid, Uuid, String)> =
            sqlx::query_as("select delivery_id, event_id, status from delivery")
                .fetch_all(&mut *self.database)
                .await?;
        let arrived = self.ledger.deliveries();
        counts.deliveries = rows.len();
        for (delivery, event, status) in &rows {
            let event: EventId = sojourn::base::Id::from_uuid(*event);
            let delivery: DeliveryId = sojourn::base::Id::from_uuid(*delivery);
            if status != "delivered" {
                self.ledger.violation(format!("{delivery} of {event} is {status}"));
            } else if !arrived.contains(&event.to_string()) {
                self.ledger.violation(format!("{delivery} of {event} is delivered and did not arrive"));
            }
        }
        let known: BTreeSet<_> =
            rows.iter().map(|(_, event, _)| EventId::from_uuid(*event).to_string()).collect();
        let unknown = arrived.difference(&known).count();
        if unknown > 0 && !self.shape.may_lose {
            self.ledger.violation(format!("{unknown} events arrived that the database does not have"));
        }
        let missing: i64 = sqlx::query_scalar(
            "select count(*) from event e
             where not exists (select from delivery d where d.org_id = e.org_id and d.event_id = e.event_id)",
        )
        .fetch_one(&mut *self.database)
        .await?;
        if missing > 0 {
            self.ledger.violation(format!("{missing} events have no delivery"));
        }
        Ok(())
    }
}

/// A run that is not at rest after this time says for what it waits.
const REST_REPORTED_AFTER: std::time::Duration = std::time::Duration::from_secs(20);

/// Waits until no delivery is due and every session is at rest, or `limit` has passed.
pub async fn rest(database: &mut PgConnection, limit: std::time::Duration) -> anyhow::Result<()> {
    let began = tokio::time::Instant::now();
    let (until, mut is_reported) = (began + limit, false);
    loop {
        let pending: i64 = sqlx::query_scalar(
            "select (select count(*) from delivery where ready_at is not null)
                  + (select count(*) from session where status <> 'idle')",
        )
        .fetch_one(&mut *database)
        .await?;
        if pending == 0 || tokio::time::Instant::now() > until {
            return Ok(());
        }
        if !is_reported && began.elapsed() > REST_REPORTED_AFTER {
            is_reported = true;
            let due: Vec<(String, i32, String)> = sqlx::query_as(
                "select status, attempts, coalesce(error, '') from delivery where ready_at is not null limit 10",
            )
            .fetch_all(&mut *database)
            .await?;
            println!("{pending} sessions and deliveries are not at rest; deliveries: {due:?}");
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}
