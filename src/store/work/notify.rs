//! LISTEN/NOTIFY between processes. A lost notification costs a poll, never data.

use sqlx::postgres::PgListener;

use crate::store::{Result, Store};

const CHANNEL: &str = "sojourn";
/// Channel of response deltas, which only processes with followers need.
const DELTA_CHANNEL: &str = "sojourn_delta";

/// Maximum payload of one notification in bytes; Postgres accepts at most 8,000.
pub(super) const PAYLOAD_BYTES_MAX: usize = 7_900;

/// The single listening connection of a process.
pub struct Listener(PgListener);

/// A received notification.
pub enum Received {
    /// Changes, by the words of their kinds and ids.
    Changes(String),
    /// Response deltas.
    Deltas(String),
}

impl Store {
    /// Sends notifications to every process, this one included.
    ///
    /// Never call it inside an append's transaction: a notification takes a global lock at commit.
    pub async fn notify(&self, payload: &str) -> Result<()> {
        sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(payload).execute(&self.system).await?;
        Ok(())
    }

    /// Sends response deltas to the processes that listen to them, in one commit.
    pub async fn notify_deltas(&self, payloads: &[String]) -> Result<()> {
        sqlx::query("select pg_notify($1, payload) from unnest($2::text[]) as payload")
            .bind(DELTA_CHANNEL)
            .bind(payloads)
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// Opens the listening connection; `has_followers` also listens to response deltas.
    pub async fn listen(&self, has_followers: bool) -> Result<Listener> {
        let mut listener = PgListener::connect_with(&self.system).await?;
        listener.listen(CHANNEL).await?;
        if has_followers {
            listener.listen(DELTA_CHANNEL).await?;
        }
        Ok(Listener(listener))
    }
}

impl Listener {
    /// Returns the next notification.
    ///
    /// An error means that notifications may have been lost: listen again and read the tables.
    pub async fn next(&mut self) -> Result<Received> {
        let received = self.0.recv().await?;
        let payload = received.payload().to_owned();
        Ok(if received.channel() == DELTA_CHANNEL {
            Received::Deltas(payload)
        } else {
            Received::Changes(payload)
        })
    }
}
