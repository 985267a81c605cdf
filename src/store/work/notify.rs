//! LISTEN/NOTIFY between processes. A lost notification costs a poll, never data.

use sqlx::postgres::PgListener;

use crate::store::{Result, Store};

const CHANNEL: &str = "sojourn";

/// The single listening connection of a process.
pub struct Listener(PgListener);

impl Store {
    /// Sends notifications to every process, this one included.
    ///
    /// Never call it inside an append's transaction: a notification takes a global lock at commit.
    pub async fn notify(&self, payload: &str) -> Result<()> {
        sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(payload).execute(&self.system).await?;
        Ok(())
    }

    /// Opens the listening connection.
    pub async fn listen(&self) -> Result<Listener> {
        let mut listener = PgListener::connect_with(&self.system).await?;
        listener.listen(CHANNEL).await?;
        Ok(Listener(listener))
    }
}

impl Listener {
    /// Returns the next payload.
    ///
    /// An error means that notifications may have been lost: listen again and read the tables.
    pub async fn next(&mut self) -> Result<String> {
        Ok(self.0.recv().await?.payload().to_owned())
    }
}
