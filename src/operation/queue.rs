//! Order in which the operations of a session are served.

use std::collections::VecDeque;

use crate::{
    base::limit::OPERATIONS_CONCURRENT_MAX,
    domain::{OperationId, operation::Request},
    store::operation::Open,
};

/// Waiting operations and those in progress.
#[derive(Default)]
pub(crate) struct OperationQueue {
    pub waiting: VecDeque<Open>,
    pub under_way: Vec<Open>,
}

impl OperationQueue {
    /// Takes the operation to serve next, if one may start now. Commands run a few at a time, so that
    /// they do not block file reads and kills; an operation on the sandbox as a whole runs alone.
    pub(super) fn next(&mut self) -> Option<Open> {
        let is_exclusive = |open: &Open| open.request.is_exclusive();
        let is_command = |open: &Open| matches!(open.request, Request::Exec { .. });
        if self.under_way.iter().any(is_exclusive) {
            return None;
        }
        let has_capacity = |commands: bool| {
            self.under_way.iter().filter(|open| is_command(open) == commands).count()
                < OPERATIONS_CONCURRENT_MAX
        };
        let first_alone = self.waiting.iter().position(is_exclusive).unwrap_or(self.waiting.len());
        let is_free = |open: &Open| has_capacity(is_command(open));
        let place = match self.waiting.iter().take(first_alone).position(is_free) {
            Some(place) => place,
            // A restore is refused while others run; it does not wait for them.
            None => match &self.waiting.get(first_alone)?.request {
                Request::Restore { .. } => first_alone,
                _ if self.under_way.is_empty() => first_alone,
                _ => return None,
            },
        };
        let open = self.waiting.remove(place)?;
        self.under_way.push(open.clone());
        Some(open)
    }

    /// Removes a completed operation from those in progress.
    pub(super) fn is_over(&mut self, operation: OperationId) {
        self.under_way.retain(|open| open.id != operation);
    }

    /// Returns the commands in progress that a waiting stop ends.
    pub(super) fn to_end(&self) -> impl Iterator<Item = OperationId> {
        let is_stop = |open: &Open| matches!(open.request, Request::Stop);
        let has_stop = self.waiting.iter().any(is_stop);
        let is_command = |open: &&Open| matches!(open.request, Request::Exec { .. });
        self.under_way.iter().filter(is_command).map(|open| open.id).filter(move |_| has_stop)
    }
}
