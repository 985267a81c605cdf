//! The port `Journal` over the simulated database, and the end of a turn that was interrupted too often.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Map;
use sojourn::{
    base::Timestamp,
    domain::{
        ActionId, Actor, Body, Event, Session,
        action::Closed,
        budget::MaxUsage,
        delta::Delta,
        event::{Draft, TurnCompleted},
        log_fold::{LogFold, ReadTo, open_calls},
        spend::Verdict,
        tool::ToolCall,
        turn::{TurnError, YieldReason},
    },
    harness::{CallResult, Halt, Journal, unanswered},
};

use super::{
    actions::system,
    database::{Database, Fence, Recorded},
    folds::catch_up,
    world::{Away, World},
};

/// The journal under a lease.
pub struct LeasedJournal {
    pub world: Arc<World>,
    pub fence: Fence,
}

#[async_trait]
impl Journal for LeasedJournal {
    async fn record(&self, drafts: Vec<Draft>, read_to: ReadTo) -> Result<Vec<Event>, Halt> {
        let (fence, ts) = (self.fence, self.world.origin.now());
        let recorded =
            self.world.ask(move |database, now| database.record(fence, (drafts, read_to), ts, now)).await;
        match recorded.map_err(away)? {
            Recorded::Appended(events) => Ok(events),
            Recorded::Stale => Err(Halt::Stale),
            Recorded::Moved => Err(Halt::Moved),
        }
    }

    async fn catch_up(&self, fold: &mut LogFold) -> Result<(), Halt> {
        let log = self.world.ask(|database, _| database.log.clone()).await.map_err(away)?;
        catch_up(fold, &log);
        Ok(())
    }

    async fn read_steers(&self, fold: &mut LogFold) -> Result<(), Halt> {
        let (fence, stamp) = (self.fence, system(&self.world));
        let read = self.world.ask(move |database, now| database.read_steers(fence, &stamp, now)).await;
        match read.map_err(away)? {
            Recorded::Appended(_) => self.catch_up(fold).await,
            Recorded::Stale => Err(Halt::Stale),
            Recorded::Moved => Err(Halt::Moved),
        }
    }

    async fn actions_ended(&self, read_to_seq: i64) -> Result<bool, Halt> {
        let (turn, ts) = (self.fence.turn, self.world.origin.now());
        let now = move |database: &mut Database, _| {
            (database.has_expired(turn, ts), database.session.action_head > read_to_seq)
        };
        let (has_expired, has_ended) = self.world.ask(now).await.map_err(away)?;
        if has_expired {
            let stamp = system(&self.world);
            self.world.ask(move |database, now| database.expire(turn, &stamp, now)).await.map_err(away)?;
        }
        Ok(has_expired || has_ended)
    }

    async fn session(&self) -> Result<Session, Halt> {
        self.world.ask(|database, _| database.session.clone()).await.map_err(away)
    }

    async fn reserve(
        &self,
        _: &(dyn Fn() -> MaxUsage + Send + Sync),
        _: bool,
        _: bool,
    ) -> Result<Verdict, Halt> {
        // No spend cap applies in the simulation.
        Ok(Verdict::Granted { close: Vec::new() })
    }
}

/// Ends a turn that was interrupted too often, as `turn::end_early` does.
pub async fn end_early(journal: &LeasedJournal) -> Result<(), Halt> {
    let turn = journal.fence.turn;
    let log = journal.world.ask(|database, _| database.log.clone()).await.map_err(away)?;
    let draft = |body: Body| Draft {
        id: journal.world.origin.id(),
        actor: Actor::system(),
        level: body.level(),
        turn_id: Some(turn),
        step_id: None,
        refs: Map::new(),
        body,
    };
    let fold = LogFold::of(&log, false);
    let state = fold.turn(turn);
    let lost = |call: ToolCall| {
        let done = state.and_then(|state| unanswered(state, &call.call_id, "ended"));
        draft(done.unwrap_or_else(|| CallResult::unknown("Nobody knows.")).body(&call))
    };
    let mut drafts: Vec<_> = open_calls(&log, turn).into_iter().map(lost).collect();
    let open = state.into_iter().flat_map(|state| state.open_actions());
    let closed = |(action_id, ..): (ActionId, &str, Timestamp)| Body::ActionClosed {
        action_id,
        reason: Closed::Withdrawn,
    };
    drafts.extend(open.map(|action| draft(closed(action))));
    let own = log.iter().filter(|event| event.draft.turn_id == Some(turn)).map(|event| &event.draft);
    drafts.push(draft(Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id: turn,
        yield_reason: YieldReason::Error,
        result_event_id: None,
        usage: Delta::of(own).usage,
        active_seconds: 0,
        error: Some(TurnError { code: "recovery_exhausted".to_owned(), message: String::new() }),
        output: None,
        output_repairs: 0,
        limit: None,
        failed: true,
    }))));
    journal.record(drafts, fold.read_to()).await.map(drop)
}

pub fn away(_: Away) -> Halt {
    Halt::Unavailable("the database is away".to_owned())
}
