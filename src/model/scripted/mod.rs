//! Scripted models: play a script without a provider; everything else is real.
//!
//! Called through the port `Model`. For first steps (`demo`), for tests of the whole service
//! (`inline`, docs/scripted.md) and for benchmarks (`noop`). The next step is computed from the
//! history alone, so any worker can continue; only pending faults are counted in the process.

mod demo;
mod faults;
mod inline;
mod step;

use std::sync::Arc;

use async_trait::async_trait;

use super::{Delta, Fault, Model};
use crate::domain::{
    Answer, Message,
    conversation::{ModelRequest, summarized_to},
};

use step::{DONE, Step, grow, pause};

pub use demo::SAMPLE;
pub(super) use faults::Faults;

/// Provider name in model names and histories.
pub(super) const PROVIDER: &str = "scripted";
/// Names of the available scripts.
pub(super) const NAMES: [&str; 3] = ["noop", "demo", "inline"];
/// A model that plays one of the scripts.
#[derive(Debug)]
pub(super) struct Scripted {
    script: Script,
    faults: Arc<Faults>,
}

#[derive(Clone, Copy, Debug)]
enum Script {
    Noop,
    Demo,
    Inline,
}

impl Scripted {
    /// Returns the script of that name, if it exists.
    pub(super) fn named(name: &str, faults: Arc<Faults>) -> Option<Self> {
        let script = match name {
            "noop" => Script::Noop,
            "demo" => Script::Demo,
            "inline" => Script::Inline,
            _ => return None,
        };
        Some(Self { script, faults })
    }
}

#[async_trait]
impl Model for Scripted {
    fn provider(&self) -> &str {
        PROVIDER
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault> {
        let step = match self.script {
            Script::Noop => Step { text: DONE.to_owned(), ..Step::default() },
            Script::Demo => demo::step(&request.history),
            Script::Inline => inline::step(&request.history)?,
        };
        if let Some(planned) =
            step.fault.as_ref().filter(|planned| self.faults.is_due(request, planned.times))
        {
            return Err(planned.play(&step, deltas).await);
        }
        pause(step.delay).await;
        let mut place = place_of(&request.history);
        if step.new_ids {
            place = format!("{place}_{}_{}", std::process::id(), self.faults.count());
        }
        let blocks = step.blocks(&place);
        for (index, block) in blocks.iter().enumerate() {
            grow(index, block, deltas);
        }
        Ok(step.answer(request, blocks))
    }
}

/// Returns a word that differs at each step of a session: the number of messages, and the place of the last summary.
fn place_of(history: &[Message]) -> String {
    let length = history.len().to_string();
    summarized_to(history).map_or(length.clone(), |to_seq| format!("{length}_{to_seq}"))
}

#[cfg(test)]
mod tests;
