//! Signals that stop a turn from outside, in the form that the harness reads.

use tokio::sync::watch;

use crate::{domain::TurnId, harness::Signals, store::job::LeaseState};

/// Signals of a turn, derived from the state of its lease and from the worker's drain.
pub(super) struct SignalSource {
    lease: watch::Receiver<LeaseState>,
    draining: watch::Receiver<bool>,
    turn: TurnId,
    sender: watch::Sender<Signals>,
    pub(super) receiver: watch::Receiver<Signals>,
}

impl SignalSource {
    pub(super) fn new(
        lease: watch::Receiver<LeaseState>,
        draining: watch::Receiver<bool>,
        turn: TurnId,
    ) -> Self {
        let (sender, receiver) = watch::channel(Signals::default());
        Self { lease, draining, turn, sender, receiver }
    }

    /// Updates the signals. Never returns.
    pub(super) async fn follow(&self) {
        let (mut lease, mut draining) = (self.lease.clone(), self.draining.clone());
        loop {
            let state = *lease.borrow_and_update();
            let signals = Signals {
                lost: state.lost,
                cancel: state.cancel_turn == Some(self.turn),
                // A pause also lets the turn reach its next checkpoint; it resumes from there.
                drain: *draining.borrow_and_update() || state.is_paused,
            };
            self.sender.send_if_modified(|held| std::mem::replace(held, signals) != signals);
            let changed = async {
                tokio::select! {
                    changed = lease.changed() => changed.is_ok(),
                    changed = draining.changed() => changed.is_ok(),
                }
            };
            if !changed.await {
                // The lease table is dropped at the end of the process; no more signals follow.
                std::future::pending::<()>().await;
            }
        }
    }
}
