//! LISTEN/NOTIFY between processes. A lost notification costs a poll, never data.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use crate::store::{Error, Result, Store};

const CHANNEL: &str = "sojourn";
/// Channel of response deltas, which only processes with followers need.
const DELTA_CHANNEL: &str = "sojourn_delta";

/// Maximum payload of one notification in bytes; Postgres accepts at most 8,000.
pub(super) const PAYLOAD_BYTES_MAX: usize = 7_900;

/// Time without a notification after which the listening connection is checked, and its time to answer.
const LISTEN_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const LISTEN_CHECK_TIMEOUT: Duration = Duration::from_secs(5);

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
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(self.listen.clone());
        let channels = [CHANNEL, DELTA_CHANNEL];
        let listening = timeout(LISTEN_CHECK_TIMEOUT, async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen_all(channels.into_iter().take(1 + usize::from(has_followers))).await?;
            Ok(Listener(listener))
        });
        listening.await.map_err(|_| Error::unanswered("the server does not answer"))?
    }
}

impl Listener {
    /// Returns the next notification.
    ///
    /// An error means that notifications may have been lost: listen again and read the tables. While there are
    /// none, asks the server from time to time, because a host that vanished sends nothing either.
    pub async fn next(&mut self) -> Result<Received> {
        let received = loop {
            match timeout(LISTEN_CHECK_INTERVAL, self.0.recv()).await {
                Ok(received) => break received?,
                Err(_) => {
                    let asked =
                        timeout(LISTEN_CHECK_TIMEOUT, sqlx::query("select 1").execute(&mut self.0)).await;
                    asked.map_err(|_| Error::unanswered("the listening connection is dead"))??;
                }
            }
        };
        let payload = received.payload().to_owned();
        Ok(if received.channel() == DELTA_CHANNEL {
            Received::Deltas(payload)
        } else {
            Received::Changes(payload)
        })
    }
}
