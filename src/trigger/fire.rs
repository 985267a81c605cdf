//! One run of a schedule: a new session, or a message to an existing one.

use serde_json::json;
use time::format_description::well_known::Rfc3339;

use super::{
    open::{Inherited, Opening, open},
    refused::Refused,
};
use crate::{
    base::{Timestamp, limit::SCHEDULE_FAILURES_MAX},
    domain::{
        Actor, ActorKind, Notice, RunId,
        decide::{Command, Input, Stamp},
        schedule::{CronSchedule, Overlap, RunState},
        session::Source,
    },
    journal::{self, Unit},
    store::{self, audit::Act, run::Run, schedule::Schedule},
};

/// Reason of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    /// Its slot is due.
    Slot(Timestamp),
    /// A caller requested it, at this time.
    Manual(Timestamp),
}

/// Starts a run of a locked schedule and records it, in one transaction.
///
/// # Errors
/// A refused run is refused before anything is written.
pub(crate) async fn fire(
    unit: &mut Unit,
    schedule: &Schedule,
    fired: Fired,
    scripted: bool,
    stamp: &Stamp,
) -> Result<Run, Refused> {
    let id: RunId = stamp.origin.id();
    let (slot, source) = match fired {
        Fired::Slot(slot) => (slot, Source::Cron),
        Fired::Manual(now) => (now, Source::Manual),
    };
    let mut input = Input::of(schedule.input.clone());
    let at = slot.format(&Rfc3339).unwrap_or_default();
    input.refs.insert("schedule".to_owned(), json!({ "id": schedule.id, "run": id, "slot": at }));
    let session = match schedule.session {
        Some(session) => unit.execute(session, Command::Steer(input), stamp).await.map_err(unknown)?.session,
        None => {
            let session_template = schedule.session_template.clone().unwrap_or_default();
            let sources = Vec::new();
            let opening = Opening {
                agent: schedule.agent,
                session_template,
                inherited: Inherited::default(),
                sources,
                input,
                source,
                scripted,
                parent: None,
            };
            open(unit, opening, stamp).await?
        }
    };
    let run = Run {
        id,
        slot,
        manual: matches!(fired, Fired::Manual(_)),
        state: RunState::Started,
        session: Some(session.id),
        turn: session.queued.as_ref().map(|turn| turn.id),
        error: None,
    };
    unit.tx().insert_run(schedule.id, &run).await?;
    Ok(run)
}

/// Fires the due slot of a locked schedule at `now` and sets its next slot.
pub(super) async fn fire_due(
    unit: &mut Unit,
    mut schedule: Schedule,
    now: Timestamp,
    scripted: bool,
    stamp: &Stamp,
) -> Result<(), journal::Error> {
    let due = match (CronSchedule::parse(&schedule.cron, &schedule.time_zone), schedule.next_fire_at) {
        (Ok(cadence), Some(waited_for)) => cadence.due(waited_for, now),
        (Err(_), _) | (_, None) => {
            return Err(store::Error::Corrupt("a schedule has no cadence".to_owned()).into());
        }
    };
    schedule.next_fire_at = due.next;
    schedule.updated_at = now;
    if !unit.tx().has_run(schedule.id, due.slot).await? {
        let skips = schedule.overlap == Overlap::Skip;
        if skips && unit.tx().is_schedule_busy(&schedule).await? {
            let run = empty_run(stamp, due.slot, RunState::Skipped, None);
            unit.tx().insert_run(schedule.id, &run).await?;
        } else if let Err(refused) = fire(unit, &schedule, Fired::Slot(due.slot), scripted, stamp).await {
            let Some(code) = refused.code() else { return Err(failed(refused)) };
            let error = (code.to_owned(), refused.to_string());
            fail(unit, &mut schedule, due.slot, error, stamp).await?;
        }
    }
    Ok(unit.tx().update_schedule(&schedule).await?)
}

/// Records a slot that could not be run as a failed run, and counts it.
pub(super) async fn fail(
    unit: &mut Unit,
    schedule: &mut Schedule,
    slot: Timestamp,
    error: (String, String),
    stamp: &Stamp,
) -> Result<(), journal::Error> {
    let run = empty_run(stamp, slot, RunState::Failed, Some(error));
    unit.tx().insert_run(schedule.id, &run).await?;
    count(unit, schedule, true, stamp).await
}

/// Counts the end of a run. After too many consecutive failures, disables the schedule and appends
/// a notice.
pub(super) async fn count(
    unit: &mut Unit,
    schedule: &mut Schedule,
    failed: bool,
    stamp: &Stamp,
) -> Result<(), journal::Error> {
    schedule.consecutive_failures = if failed { schedule.consecutive_failures + 1 } else { 0 };
    if !schedule.enabled || schedule.consecutive_failures < SCHEDULE_FAILURES_MAX {
        return Ok(());
    }
    schedule.enabled = false;
    schedule.next_fire_at = None;
    schedule.paused_reason = Some("failing".to_owned());
    let (id, agent, failures) = (schedule.id, schedule.agent, schedule.consecutive_failures);
    let details = json!({ "agent_id": agent, "reason": "failing", "consecutive_failures": failures });
    let actor = Actor::system();
    let target = Some(id.to_string());
    let act = Act { id: stamp.origin.id(), actor: &actor, action: "schedule.paused", target, details };
    unit.tx().record_audit(&act).await?;
    unit.tx().tell(&[Notice::schedule_paused(id, agent, failures, &stamp.origin)]).await?;
    unit.has_due_delivery();
    Ok(())
}

/// Returns the actor of a schedule's own actions.
pub(super) fn actor(schedule: &Schedule) -> Actor {
    Actor { id: Some(schedule.id.to_string()), display: None, kind: ActorKind::Trigger }
}

/// Creates a run that started no session.
fn empty_run(stamp: &Stamp, slot: Timestamp, state: RunState, error: Option<(String, String)>) -> Run {
    Run { id: stamp.origin.id(), slot, manual: false, state, session: None, turn: None, error }
}

/// Returns the internal failure behind a refusal that has no code.
fn failed(refused: Refused) -> journal::Error {
    match refused {
        Refused::Journal(error) => error,
        other => store::Error::Corrupt(other.to_string()).into(),
    }
}

fn unknown(error: journal::Error) -> Refused {
    match error {
        journal::Error::Store(store::Error::NotFound) => Refused::UnknownSession,
        error => error.into(),
    }
}
