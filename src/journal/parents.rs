//! Sessions below others: started under a parent, whose limits bind them too.

use super::{Error, Unit};
use crate::{
    base::limit::{SESSION_HEIGHT_MAX, SESSION_TREE_MAX},
    domain::{SessionId, Status, decide::Rejection},
};

impl Unit {
    /// Holds the session that a new one is to be started under, until the commit.
    ///
    /// # Errors
    /// `Store(NotFound)` when this organization has no such session; `Rejected` when it is closed,
    /// too far down, or has too many below it.
    pub async fn adopt(&mut self, parent: SessionId) -> Result<(), Error> {
        let (above, tree) = self.tx.hold_parent(parent).await?;
        // Read after it is held: nobody closes it from here on.
        if self.tx.session(parent).await?.status == Status::Archived {
            return Err(Rejection::ParentArchived.into());
        }
        if above >= SESSION_HEIGHT_MAX {
            return Err(Rejection::TooDeep.into());
        }
        if tree >= SESSION_TREE_MAX {
            return Err(Rejection::TooManyBelow.into());
        }
        Ok(())
    }

    /// Refuses what costs something where a limit is used up that the session shares with
    /// those above and below it.
    pub(super) async fn may_use(&mut self, session: SessionId) -> Result<(), Error> {
        let budgets = self.tx.budgets(session).await?;
        let Some(spend) = budgets.iter().find_map(|budget| budget.used_up(1)) else { return Ok(()) };
        Err(match spend.seen_from(session).session {
            None => Rejection::BudgetExceeded(spend.limit),
            Some(above) => Rejection::AboveExceeded(spend.limit, above),
        }
        .into())
    }
}
