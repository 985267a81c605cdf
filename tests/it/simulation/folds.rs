//! Stored folds of the log: current, old, damaged and missing ones.

use std::sync::Arc;

use sojourn::domain::{Event, Session, log_fold::LogFold};

use super::world::{Away, World};

impl World {
    /// Reads the row, and the fold of the log: the stored one, if it can be read, and the events since.
    pub async fn fold(self: &Arc<Self>) -> Result<(Session, LogFold), Away> {
        let (session, log, stored) = self
            .ask(|database, _| (database.session.clone(), database.log.clone(), database.stored_fold.clone()))
            .await?;
        let read = stored.and_then(|json| serde_json::from_str(&json).ok());
        let mut fold = read.unwrap_or_else(|| LogFold::new(false));
        catch_up(&mut fold, &log);
        Ok((session, fold))
    }

    /// Stores the fold of an ended turn, or leaves an old one, or damages it.
    pub async fn keep_fold(self: &Arc<Self>, fold: &LogFold) {
        let json = serde_json::to_string(fold).expect("a fold is JSON");
        let stored = match self.chance.below(4) {
            0 => return,
            1 => json[..json.len() / 2].to_owned(),
            _ => json,
        };
        // A fold that is not stored is read from the log.
        let _ = self.ask(move |database, _| database.stored_fold = Some(stored)).await;
    }
}

/// Adds the events that follow a fold in the log.
pub fn catch_up(fold: &mut LogFold, log: &[Event]) {
    let seq = fold.seq();
    log.iter().filter(|event| event.seq > seq).for_each(|event| fold.take(event));
}
