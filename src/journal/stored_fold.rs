//! Folds of long logs in the database, so that a turn does not read a whole log.
//!
//! A stored fold saves reading and is never the truth. One that is missing, damaged, or of another version of
//! the fold is not used: then the log is read from its first event.

use std::io::{self, Read as _};

use super::{Error, Journal, ReadFold};
use crate::{
    base::limit::{FOLD_JSON_BYTES_MAX, FOLD_STORE_EVENTS},
    domain::{OrgId, SessionId, log_fold::LogFold},
    store,
};

/// Version of the fold and its JSON. Raise it when either changes: older folds are then not used any more.
const VERSION: i32 = 18;

/// zstd compression level: level 1 gives most of the reduction at the lowest CPU cost.
const LEVEL: i32 = 1;

impl Journal {
    /// Reads the fold of a log: the cached or the stored one, and the events since.
    pub(super) async fn fold(
        &self,
        org: OrgId,
        session: SessionId,
        objects: bool,
    ) -> Result<ReadFold, Error> {
        let cached = self.fold_cache.take(session).filter(|read| read.fold.objects() == objects);
        let mut read = match cached {
            Some(read) => read,
            None => self.stored_fold(org, session, objects).await?,
        };
        if self.catch_up(org, session, &mut read.fold).await? {
            read.stored_to = 0;
        }
        Ok(read)
    }

    async fn stored_fold(&self, org: OrgId, session: SessionId, objects: bool) -> Result<ReadFold, Error> {
        let stored = self.load_fold(org, session).await?.filter(|fold| fold.objects() == objects);
        Ok(match stored {
            Some(fold) => ReadFold { stored_to: fold.seq(), fold },
            None => ReadFold { fold: LogFold::new(objects), stored_to: 0 },
        })
    }

    /// Reads the stored fold of a log, if there is one that can be used.
    #[expect(clippy::disallowed_methods, reason = "awaited here")]
    pub(super) async fn load_fold(&self, org: OrgId, session: SessionId) -> Result<Option<LogFold>, Error> {
        let Some(stored) = self.store.load_log_fold(org, session, VERSION).await? else { return Ok(None) };
        let decoded = tokio::task::spawn_blocking(move || decode(&stored)).await;
        let decoded = decoded.unwrap_or_else(|error| Err(io::Error::other(error)));
        Ok(decoded
            .inspect_err(|error| {
                tracing::warn!(session.id = %session, %error, "a stored fold cannot be read; reading the log instead");
            })
            .ok())
    }

    /// Keeps the fold of a log for the next turn: in this process, and in the database if it grew by many events.
    #[expect(clippy::disallowed_methods, reason = "awaited here")]
    pub(super) async fn keep_fold(&self, org: OrgId, session: SessionId, read: ReadFold) {
        let ReadFold { fold, stored_to } = read;
        if fold.seq() - stored_to < FOLD_STORE_EVENTS {
            return self.fold_cache.put(session, ReadFold { fold, stored_to });
        }
        let encoded = tokio::task::spawn_blocking(move || (encode(&fold), fold)).await;
        // The task ends without a value only with its process.
        let Ok((encoded, fold)) = encoded else { return };
        let stored = match encoded {
            Ok(encoded) => self.store.store_log_fold(org, session, VERSION, fold.seq(), &encoded).await,
            Err(error) => Err(store::Error::Corrupt(error.to_string())),
        };
        let stored_to = match stored {
            Ok(()) => fold.seq(),
            Err(error) => {
                tracing::warn!(session.id = %session, %error, "the fold of a log was not stored; the next turn may read more");
                stored_to
            }
        };
        self.fold_cache.put(session, ReadFold { fold, stored_to });
    }
}

fn encode(fold: &LogFold) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
    encoder.include_checksum(true)?;
    serde_json::to_writer(&mut encoder, fold)?;
    encoder.finish()
}

fn decode(stored: &[u8]) -> io::Result<LogFold> {
    let mut json = Vec::new();
    zstd::Decoder::new(stored)?.take(FOLD_JSON_BYTES_MAX).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}
