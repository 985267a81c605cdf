//! Loops: calls that the model makes again and again, judged before they run.

use crate::domain::{
    log_fold::TurnFold,
    repetition::{RecentCalls, Repetition},
    tool::ToolCall,
    turn_settings::{LoopPolicy, LoopSettings},
};

/// The calls of a turn so far, for a response that is not in the log yet.
pub(super) struct Loops {
    settings: LoopSettings,
    recent: RecentCalls,
    /// Loops that no person has confirmed.
    found: u32,
}

impl Loops {
    pub(super) fn of(settings: LoopSettings, turn: Option<&TurnFold>) -> Self {
        let (recent, found) = turn.map(|turn| (turn.recent.clone(), turn.loops)).unwrap_or_default();
        Self { settings, recent, found }
    }

    /// Takes the next call; returns the repetition that it completes. The second one of a turn ends it.
    pub(super) fn take(&mut self, call: &ToolCall) -> Option<Repetition> {
        if self.settings.policy == LoopPolicy::Off {
            return None;
        }
        self.recent.push(call);
        let times = self.settings.repeats();
        let calls = self.recent.repeated(times)?;
        let ends_turn = self.settings.policy == LoopPolicy::Stop || self.found > 0;
        self.recent.clear();
        self.found += 1;
        Some(Repetition { calls, times, ends_turn })
    }
}
