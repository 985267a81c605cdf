//! Child sessions: started under a parent session, whose limits apply to them too, and ended with it on request.

use super::{Error, Executed, Unit};
use crate::{
    base::limit::{SESSION_DEPTH_MAX, SESSION_DESCENDANTS_MAX},
    domain::{
        SessionId, Status,
        decide::{Command, Rejection, Stamp},
    },
};

impl Unit {
    /// Locks the parent session of a new session until the commit.
    ///
    /// # Errors
    /// `Store(NotFound)` when this organization has no such session. `Rejected` when it is
    /// archived, is nested too deep, or its tree has too many sessions.
    pub async fn adopt(&mut self, parent: SessionId) -> Result<(), Error> {
        let (above, tree) = self.tx.lock_parent(parent).await?;
        // Read after the lock is taken, so nobody can archive it from here on.
        if self.tx.session(parent).await?.status == Status::Archived {
            return Err(Rejection::ParentArchived.into());
        }
        if above >= SESSION_DEPTH_MAX {
            return Err(Rejection::TooDeep.into());
        }
        if tree >= SESSION_DESCENDANTS_MAX {
            return Err(Rejection::TooManyDescendants.into());
        }
        Ok(())
    }

    /// Cancels the turns of a session and of all below it.
    ///
    /// # Errors
    /// As [`Unit::execute`].
    pub async fn cancel_all(&mut self, id: SessionId, stamp: &Stamp) -> Result<Executed, Error> {
        let below = self.tx.lock_descendants(id).await?;
        let executed = self.execute(id, Command::Cancel, stamp).await?;
        for child in below {
            self.execute(child, Command::Cancel, stamp).await?;
        }
        Ok(executed)
    }

    /// Archives a session and all below it.
    ///
    /// # Errors
    /// As [`Unit::execute`].
    pub async fn archive_all(&mut self, id: SessionId, stamp: &Stamp) -> Result<Executed, Error> {
        let below = self.tx.lock_descendants(id).await?;
        let executed = self.archive(id, stamp).await?;
        for child in below {
            self.archive(child, stamp).await?;
        }
        Ok(executed)
    }

    /// Rejects a request that costs money when a limit is used up.
    ///
    /// The limits are those of the session and of its ancestors.
    pub(super) async fn check_limits(&mut self, session: SessionId) -> Result<(), Error> {
        let budgets = self.tx.budgets(session).await?;
        let Some(spend) = budgets.iter().find_map(|budget| budget.used_up(1)) else { return Ok(()) };
        Err(match spend.seen_from(session).session {
            None => Rejection::BudgetExceeded(spend.limit),
            Some(above) => Rejection::AncestorLimitExceeded(spend.limit, above),
        }
        .into())
    }
}
