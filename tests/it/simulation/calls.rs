//! Calls of the simulated session, and what the end of their action allows.

use sojourn::domain::{
    ActionId, TurnId,
    action::{Closed, Decision},
    event::Outcome,
    tool::Replay,
};

/// A call in the log.
#[derive(Debug)]
pub struct Call {
    pub turn: TurnId,
    pub replay: Replay,
    pub is_answered: bool,
    pub is_denied: bool,
    /// Whether its start is in the log.
    pub is_started: bool,
    /// Whether it runs at a server.
    pub is_remote: bool,
    /// Its newest action.
    pub action: Option<ActionId>,
    /// Whether that one is of its server.
    pub is_elicited: bool,
}

impl Call {
    /// A call that was just announced.
    pub fn new(turn: TurnId, replay: Replay, is_denied: bool, is_remote: bool) -> Self {
        Self {
            turn,
            replay,
            is_answered: false,
            is_denied,
            is_started: false,
            is_remote,
            action: None,
            is_elicited: false,
        }
    }
}

/// How an action ended.
#[derive(Debug)]
pub enum End {
    /// With this text for the model.
    Answered(String),
    Decided(Decision),
    Closed(Closed),
}

/// Whether a call with this end of its action may run.
pub fn may_run(end: Option<&Option<End>>) -> bool {
    matches!(end, Some(Some(End::Decided(Decision::Once | Decision::Always) | End::Closed(Closed::Allowed))))
}

/// The result of a call with an action is what ended the action.
pub fn check_result(end: Option<&Option<End>>, call: &Call, outcome: Outcome, output: &str) {
    let is_known = !call.is_remote || call.is_started || outcome != Outcome::Ran;
    assert!(is_known, "a call at a server ran whose start is not in the log: {output}");
    match (end, outcome) {
        _ if call.is_elicited => {
            assert!(outcome == Outcome::Unknown || call.is_started && outcome == Outcome::Ran, "{outcome:?}");
        }
        (end, _) if call.is_started => assert!(end.is_none() || may_run(end)),
        (Some(Some(End::Decided(_) | End::Closed(_))), Outcome::NotRun) => {}
        (None, _) => {}
        (Some(Some(End::Answered(text))), Outcome::Ran) => assert_eq!(output, text),
        (Some(Some(End::Closed(Closed::Expired))), Outcome::Unknown) => {}
        // It is withdrawn in the same append.
        (Some(None), Outcome::NotRun) => {}
        (end, outcome) => {
            panic!("a call whose action ended with {end:?} has the result {outcome:?}: {output}")
        }
    }
}
