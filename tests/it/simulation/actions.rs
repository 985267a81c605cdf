//! Actions of the simulated session: their state by the log, callers who answer them, and their expiry.

use std::{sync::Arc, time::Duration};

use sojourn::{
    base::Timestamp,
    domain::{
        ActionId, Actor, Event, EventId, TurnId,
        action::{
            ActionAnswer, ActionKind, ActionState, Closed, Confirmation, Consequences, Decision, Ended,
            Others, Then, ToolAnswer,
        },
        content::Content,
        decide::{Command, Rejection, Stamp},
        elicitation::{Elicited, Response},
        event::Body,
        open_work::{CallEnd, OpenCall},
        permission::{Grant, Rule},
        question::{Answer, Answers},
    },
};
use tokio::time::sleep;

use super::{
    database::{Database, open_work},
    director::stamp,
    world::World,
};

/// An action with its end.
pub struct Found {
    turn: TurnId,
    pub kind: ActionKind,
    pub always: Vec<Rule>,
    /// Whether an MCP server asks.
    is_of_server: bool,
    expires_at: Timestamp,
    ended: Option<(Ended, Timestamp)>,
    answer: Option<ActionAnswer>,
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
                    let found = Found {
                        turn,
                        kind: action.kind,
                        always: action.always.clone(),
                        is_of_server: action.server.is_some(),
                        expires_at: action.expires_at,
                        ended: None,
                        answer: None,
                    };
                    actions.push((action.id, found));
                }
                Body::UserCustomToolResult(answer) => {
                    let given = Some(ActionAnswer::Result(answer.clone()));
                    end(&mut actions, event, answer.action_id, Ended::Answered, given);
                }
                Body::UserToolConfirmation(confirmation) => {
                    let given = Some(ActionAnswer::Confirmation((**confirmation).clone()));
                    end(&mut actions, event, confirmation.action_id, Ended::Answered, given);
                }
                Body::UserAnswer(answers) => {
                    let given = Some(ActionAnswer::Answers(answers.clone()));
                    end(&mut actions, event, answers.action_id, Ended::Answered, given);
                }
                Body::ActionClosed { action_id, reason } => {
                    end(&mut actions, event, *action_id, (*reason).into(), None);
                }
                _ => {}
            }
        }
        actions
    }

    /// The newest question of a call's server, if it has ended.
    pub fn elicited(&self, call_id: &str) -> Option<Elicited> {
        let of_call = self.log.iter().filter_map(|event| match &event.draft.body {
            Body::ActionRequired(action) if action.call_id == call_id => Some(action),
            _ => None,
        });
        let asked: Vec<_> = of_call.filter(|action| action.continuation.is_some()).collect();
        let newest = asked.last()?;
        let response = self.log.iter().find_map(|event| match &event.draft.body {
            Body::UserAnswer(answers) if answers.action_id == newest.id => Some(match answers.declined {
                true => Response::Declined,
                false => Response::Accepted(answers.answers.clone()),
            }),
            Body::ActionClosed { action_id, .. } if *action_id == newest.id => Some(Response::Canceled),
            _ => None,
        })?;
        let round = u32::try_from(asked.len()).expect("few");
        Some(Elicited { round, continuation: newest.continuation.clone()?, response })
    }

    /// The open actions, oldest first.
    pub fn open_actions(&self) -> Vec<(ActionId, Found)> {
        self.actions().into_iter().filter(|(_, found)| found.ended.is_none()).collect()
    }

    /// What a confirmation changes beside its action, as `http` decides.
    fn consequences(&self, found: &Found, confirmation: &Confirmation) -> Consequences {
        let is_other = |(id, one): &(ActionId, Found)| {
            *id != confirmation.action_id && one.kind == ActionKind::Confirmation
        };
        let others = self.open_actions().into_iter().filter(is_other);
        if !confirmation.others.is_keep() {
            let closed = others.map(|(id, _)| (id, Closed::Rejected)).collect();
            return Consequences { grant: None, closed };
        }
        let Some(rule) = confirmation.rule.clone().filter(|_| found.ended.is_none()) else {
            return Consequences::default();
        };
        let closed =
            others.filter(|(_, one)| one.always.contains(&rule)).map(|(id, _)| (id, Closed::Allowed));
        let closed = closed.collect();
        let confirmation_event_id = EventId::from_uuid(confirmation.action_id.uuid());
        let grant = Grant { rule, schema_hash: String::new(), confirmation_event_id };
        Consequences { grant: Some(grant), closed }
    }

    /// Whether an action that nobody has ended is past its time.
    pub fn has_expired(&self, turn: TurnId, ts: Timestamp) -> bool {
        let is_late = |found: &Found| found.turn == turn && found.ended.is_none() && found.expires_at <= ts;
        self.actions().iter().any(|(_, found)| is_late(found))
    }

    /// A caller's answer, as `journal::Unit` executes it.
    pub fn answer(&mut self, answer: ActionAnswer, stamp: &Stamp, now: Duration) -> Result<usize, Rejection> {
        let actions = self.actions();
        let found = actions.into_iter().find(|(id, _)| *id == answer.action_id());
        let (id, found) = found.expect("a caller answers an action that it read");
        if found.answer.as_ref().is_some_and(|first| *first == answer) {
            return Ok(0);
        }
        let consequences = match &answer {
            ActionAnswer::Result(_) | ActionAnswer::Answers(_) => Consequences::default(),
            ActionAnswer::Confirmation(confirmation) => self.consequences(&found, confirmation),
        };
        let ends_turn = matches!(&answer, ActionAnswer::Confirmation(one) if one.then == Then::EndTurn);
        let state = ActionState {
            id,
            turn: found.turn,
            kind: found.kind,
            ended: found.ended,
            is_expired: found.expires_at <= stamp.origin.now(),
            claim: None,
        };
        let events =
            self.execute(Command::Answer { state, answer, consequences, claim: None }, stamp, now)?;
        let is_service = |call: &OpenCall| {
            matches!(call.action, None | Some((_, _, Some(CallEnd::Confirmed | CallEnd::Rejected(_)))))
        };
        let lets_continue =
            || self.open_actions().is_empty() || open_work(&self.log, found.turn).0.iter().any(is_service);
        if self.session.is_waiting() && lets_continue() {
            self.lease.enqueue(now);
        }
        if ends_turn {
            self.execute(Command::Interrupt, stamp, now)?;
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
        let (action_id, found) = &open[chance.below(open.len() as u64) as usize];
        let answer = match found.kind {
            ActionKind::ToolResult => {
                let content = vec![Content::Text { text: format!("Answer {}.", world.number()) }];
                ActionAnswer::Result(ToolAnswer {
                    action_id: *action_id,
                    content,
                    is_error: chance.one_in(4),
                })
            }
            ActionKind::Confirmation => ActionAnswer::Confirmation(confirmation(&world, *action_id, found)),
            ActionKind::Question if found.is_of_server && chance.one_in(3) => {
                ActionAnswer::Answers(Answers { action_id: *action_id, answers: Vec::new(), declined: true })
            }
            ActionKind::Question => ActionAnswer::Answers(Answers {
                action_id: *action_id,
                answers: vec![written(format!("Answer {}.", world.number()))],
                declined: false,
            }),
        };
        // Its turn may end, its time may pass, and others may answer meanwhile.
        sleep(world.duration()).await;
        let mut sent = vec![answer.clone()];
        if chance.one_in(4) {
            sent.push(if chance.one_in(2) { answer } else { another(answer) });
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

fn confirmation(world: &World, action_id: ActionId, found: &Found) -> Confirmation {
    let chance = &world.chance;
    let decision = match chance.below(4) {
        0 => Decision::Reject,
        1 => Decision::Always,
        _ => Decision::Once,
    };
    let rejects = decision == Decision::Reject;
    Confirmation {
        action_id,
        decision,
        rule: found.always.first().filter(|_| decision == Decision::Always).cloned(),
        message: rejects.then(|| format!("Not {}.", world.number())),
        args_hash: None,
        others: if rejects && chance.one_in(3) { Others::Reject } else { Others::Keep },
        then: if rejects && chance.one_in(3) { Then::EndTurn } else { Then::Continue },
    }
}

fn written(text: String) -> Answer {
    Answer { labels: Vec::new(), text: Some(text) }
}

/// Another answer of the same action.
fn another(answer: ActionAnswer) -> ActionAnswer {
    match answer {
        ActionAnswer::Result(answer) => {
            ActionAnswer::Result(ToolAnswer { is_error: !answer.is_error, ..answer })
        }
        ActionAnswer::Answers(one) => {
            let answers = vec![written("Something else.".to_owned())];
            ActionAnswer::Answers(Answers { answers, declined: false, ..one })
        }
        ActionAnswer::Confirmation(one) => ActionAnswer::Confirmation(Confirmation {
            decision: if one.decision == Decision::Once { Decision::Reject } else { Decision::Once },
            rule: None,
            message: None,
            others: Others::Keep,
            then: Then::Continue,
            ..one
        }),
    }
}
