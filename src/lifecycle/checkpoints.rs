//! Retention of a session's checkpoints.

use super::Sandboxes;
use crate::{
    base::limit::{AUTOMATIC_CHECKPOINTS_MAX, MANUAL_CHECKPOINTS_MAX},
    domain::{OrgId, SessionId},
    sandbox::checkpoint,
    store::checkpoint::Checkpoint,
};

impl Sandboxes {
    /// Deletes old checkpoints of a session. Retains the newest ones and the newest manual ones. Each
    /// blob is deleted before its row.
    pub(crate) async fn remove_old_checkpoints(&self, org: OrgId, session: SessionId) -> Result<(), String> {
        let all = self.store.checkpoints(org, session).await.map_err(|error| error.to_string())?;
        let (newest, others) = all.split_at(AUTOMATIC_CHECKPOINTS_MAX.min(all.len()));
        let mut kept: Vec<_> =
            all.iter().filter(|one| one.is_retained).take(MANUAL_CHECKPOINTS_MAX).collect();
        kept.extend(newest);
        let is_old = |one: &&Checkpoint| !kept.iter().any(|kept| kept.checkpoint == one.checkpoint);
        for checkpoint in others.iter().filter(is_old) {
            // Checkpoints of equal files share one blob.
            if !kept.iter().any(|kept| kept.digest == checkpoint.digest) {
                let key = checkpoint::key(&blobs_of_session(org, session), &checkpoint.digest);
                self.blobs.delete(&key).await.map_err(|error| error.to_string())?;
            }
            let deleted = self.store.delete_checkpoint_row(org, session, checkpoint.checkpoint).await;
            deleted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Deletes every checkpoint of a closed session, blobs before rows. Includes blobs without a row, whose
    /// worker died between the two writes.
    pub(crate) async fn remove_checkpoints(&self, org: OrgId, session: SessionId) -> Result<(), String> {
        let place = checkpoint::place(&blobs_of_session(org, session));
        self.blobs.remove_all(&place).await.map_err(|error| error.to_string())?;
        let all = self.store.checkpoints(org, session).await.map_err(|error| error.to_string())?;
        for checkpoint in all {
            let deleted = self.store.delete_checkpoint_row(org, session, checkpoint.checkpoint).await;
            deleted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Prefix of a session's blobs.
pub(crate) fn blobs_of_session(org: OrgId, session: SessionId) -> String {
    format!("{}/{}", org.uuid(), session.uuid())
}
