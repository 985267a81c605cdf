//! Actions of the simulated session: their state by the log, callers who answer them, and their expiry.

use std::{sync::Arc, time::Duration};

use sojourn::{
    base::Timestamp,
    domain::{
        ActionId, Actor, Event, TurnId,
        action::{ActionState, Closed, Content, Ended, OpenCall, ToolAnswer},
        decide::{Command, Rejection, Stamp},
        event::Body,
    },
};
use tokio::time::sleep;

use super::{
    database::{Database, open_work},
    director::stamp,
    world::World,
};

/// An action with its end.
struct Found {
    turn: TurnId,
    expires_at: Timestamp,
    ended: Option<(Ended, Timestamp)>,
    answer: Option<ToolAnswer>,
}

impl Database {
    /// The rows of `action`, by the log.
    fn actions(&self) -> Vec<(ActionId, Found)> {
        let mut actions: Vec<(ActionId, Found)> = Vec::new();
        let end = |actions: &mut Vec<(ActionId, Found)>, event: &Event, id, ended, answer| {
            let found = actions.iter_mut().find(|(action, _)| *action == id);
            let (_, found) = found.expect("an action is opened before it ends");
            (found.ended, found.answer) = (Some((ended, event.ts)), answer);
        };
        for event in &self.log {
            match &event.draft.body {
                Body::ActionRequired(action) => {
                    let turn = event.draft.turn_id.expect("an action belongs to a turn");
                    let found = Found { turn, expires_at: action.expires_at, ended: None, answer: None };
                    actions.push((action.id, found));
                }
                Body::UserCustomToolResult(answer) => {
                    end(&mut actions, event, answer.action_id, Ended::Answered, Some(answer.clone()));
                }
                Body::ActionClosed { action_id, reason } => {
                    let ended = match reason {
                        Closed::Expired => Ended::Expired,
                        Closed::Withdrawn => Ended::Withdrawn,
                    };
                    end(&mut actions, event, *action_id, ended, None);
                }
                _ => {}
            }
        }
        actions
    }

    /// Ids of the open actions, oldest first.
    pub fn open_actions(&self) -> Vec<ActionId> {
        self.actions().into_iter().filter(|(_, found)| found.ended.is_none()).map(|(id, _)| id).collect()
    }

    /// Whether an action that nobody has ended is past its time.
    pub fn has_expired(&self, turn: TurnId, ts: Timestamp) -> bool {
        let is_late = |found: &Found| found.turn == turn && found.ended.is_none() && found.expires_at <= ts;
        self.actions().iter().any(|(_, found)| is_late(found))
    }

    /// A caller's answer, as `journal::Unit` executes it.
    pub fn answer(&mut self, answer: ToolAnswer, stamp: &Stamp, now: Duration) -> Result<usize, Rejection> {
        let actions = self.actions();
        let found = actions.into_iter().find(|(id, _)| *id == answer.action_id);
        let (id, found) = found.expect("a caller answers an action that it read");
        if found.answer.is_some_and(|first| first == answer) {
            return Ok(0);
        }
        let state = ActionState {
            id,
            turn: found.turn,
            kind: sojourn::domain::action::ActionKind::ToolResult,
            ended: found.ended,
            is_expired: found.expires_at <= stamp.origin.now(),
            claim: None,
        };
        let events = self.execute(Command::Answer { state, answer, claim: None }, stamp, now)?;
        let is_service = |call: &OpenCall| call.action.is_none();
        let lets_continue =
            || self.open_actions().is_empty() || open_work(&self.log, found.turn).0.iter().any(is_service);
        if self.session.is_waiting() && lets_continue() {
            self.lease.enqueue(now);
        }
        Ok(events)
    }

    /// Closes what is past its time, as the worker of the turn does.
    pub fn expire(&mut self, turn: TurnId, stamp: &Stamp, now: Duration) {
        if self.session.running.as_ref().is_none_or(|running| running.id != turn) {
            return;
        }
        let ts = stamp.origin.now();
        let is_late = |found: &Found| found.turn == turn && found.ended.is_none() && found.expires_at <= ts;
        let late = self.actions().into_iter().filter(|(_, found)| is_late(found)).map(|(id, _)| id).collect();
        self.execute(Command::ExpireActions(late), stamp, now).expect("an expiry is never refused");
    }
}

/// The stamp of the service.
pub fn system(world: &World) -> Stamp {
    Stamp { actor: Actor::system(), origin: world.origin.clone() }
}

/// A program of the caller: answers actions, often late, sometimes twice.
pub async fn answer(world: Arc<World>) {
    let chance = &world.chance;
    loop {
        sleep(world.duration() + chance.millis(1, 1_000)).await;
        let open = world.look(|database| database.open_actions());
        if open.is_empty() || chance.one_in(3) {
            continue;
        }
        let action_id = chance.pick(&open);
        let text = format!("Answer {}.", world.number());
        let answer =
            ToolAnswer { action_id, content: vec![Content::Text { text }], is_error: chance.one_in(4) };
        // Its turn may end, its time may pass, and others may answer meanwhile.
        sleep(world.duration()).await;
        let mut sent = vec![answer.clone()];
        if chance.one_in(4) {
            sent.push(if chance.one_in(2) {
                answer
            } else {
                ToolAnswer { is_error: !answer.is_error, ..answer }
            });
        }
        for answer in sent {
            let stamp = stamp(&world);
            let answered = world.look(|database| database.answer(answer, &stamp, world.now()));
            if answered.is_ok_and(|events| events > 0) {
                world.notification(&world.job);
            }
        }
    }
}
