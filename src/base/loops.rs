//! Loops of a process: each runs until it is stopped, and an earlier end is an error.

use std::{collections::HashMap, future};

use tokio::task::{self, JoinSet};

/// Tasks that run until they are stopped. Dropping it aborts them.
#[derive(Default)]
pub struct Loops {
    tasks: JoinSet<()>,
    names: HashMap<task::Id, &'static str>,
}

/// A loop ended without being stopped, or panicked. A process without it would no longer do all its work.
#[derive(Debug, thiserror::Error)]
#[error("the {name} loop {how}")]
pub struct LoopEnded {
    name: &'static str,
    how: &'static str,
}

impl Loops {
    /// Starts a loop; `name` is for the error.
    pub fn spawn(&mut self, name: &'static str, run: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.spawn(run);
        self.names.insert(task.id(), name);
    }

    /// Waits until a loop ends. Cancellation safe.
    pub async fn ended(&mut self) -> LoopEnded {
        let (id, how) = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, "ended"),
            Some(Err(error)) => (error.id(), "panicked"),
            None => future::pending().await,
        };
        LoopEnded { name: self.names.remove(&id).unwrap_or("unknown"), how }
    }

    /// Waits until every loop has ended, after they were stopped.
    pub async fn joined(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_ends_or_panics_is_noticed() {
        let mut loops = Loops::default();
        loops.spawn("endless", future::pending());
        loops.spawn("sweep", async { panic!("a defect") });
        assert_eq!(loops.ended().await.to_string(), "the sweep loop panicked");
        loops.spawn("claim", future::ready(()));
        assert_eq!(loops.ended().await.to_string(), "the claim loop ended");
    }
}
