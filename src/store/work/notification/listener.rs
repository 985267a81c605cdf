//! LISTEN/NOTIFY between processes. A lost notification costs a poll, never data.

use std::{collections::HashSet, time::Duration};

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use super::word::{Channel, Payloads};
use crate::store::{Error, Result, Store};

/// Interval at which the listening connection is checked.
pub(super) const LISTEN_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time in which the listening connection must answer.
const LISTEN_CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// The single listening connection of a process.
pub(super) struct Listener {
    inner: PgListener,
    channels: HashSet<Channel>,
}

/// A received notification.
pub(super) enum Received {
    /// Changes, by the words of their kinds and ids.
    Changes(String),
    /// Response deltas.
    Deltas(String),
}

impl Store {
    /// Sends notifications to the processes that listen to their channels, this one included, in one commit.
    ///
    /// Never call it inside an append's transaction: a notification takes a global lock at commit.
    pub(super) async fn notify(&self, Payloads { channels, payloads }: &Payloads) -> Result<()> {
        sqlx::query("select pg_notify(c, p) from unnest($1::text[], $2::text[]) as n (c, p)")
            .bind(channels)
            .bind(payloads)
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// Opens the listening connection, and reads the generation of the database there: it is direct, also where
    /// the others lead to a pooler, which keeps them open when the server changes.
    pub(super) async fn listen(&self, channels: HashSet<Channel>) -> Result<Listener> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(self.listen.clone());
        answered(async {
            let mut inner = PgListener::connect_with(&pool).await?;
            // Else a lost connection would be replaced without a sign of what was lost meanwhile.
            inner.eager_reconnect(false);
            self.generation.read(&mut inner).await?;
            let mut listener = Listener { inner, channels: HashSet::new() };
            listener.add(channels).await?;
            Ok(listener)
        })
        .await
    }
}

impl Listener {
    /// Returns the next notification.
    ///
    /// Cancel-safe: what was not returned stays in the buffer of the connection.
    ///
    /// # Errors
    /// When the connection was lost: notifications may be lost too. Listen again and read the tables.
    pub(super) async fn next(&mut self) -> Result<Received> {
        let Some(received) = self.inner.try_recv().await? else {
            return Err(Error::unanswered("the listening connection was lost"));
        };
        let payload = received.payload().to_owned();
        Ok(if Channel::is_of_deltas(received.channel()) {
            Received::Deltas(payload)
        } else {
            Received::Changes(payload)
        })
    }

    /// Asks the server whether it is there, because a host that vanished sends nothing either.
    pub(super) async fn check(&mut self) -> Result<()> {
        answered(async {
            sqlx::query("select 1").execute(&mut self.inner).await?;
            Ok(())
        })
        .await
    }

    /// Listens to exactly these channels. Returns those that are new.
    ///
    /// Receives everything that is committed after the return.
    pub(super) async fn set(&mut self, wanted: &HashSet<Channel>) -> Result<HashSet<Channel>> {
        let old: Vec<_> = self.channels.difference(wanted).copied().collect();
        for channel in old {
            answered(async { Ok(self.inner.unlisten(&channel.to_string()).await?) }).await?;
            self.channels.remove(&channel);
        }
        let new: HashSet<_> = wanted.difference(&self.channels).copied().collect();
        self.listen_to(new).await
    }

    /// Listens to these channels, too. Returns those that are new.
    pub(super) async fn listen_to(&mut self, wanted: HashSet<Channel>) -> Result<HashSet<Channel>> {
        let new: HashSet<_> = wanted.difference(&self.channels).copied().collect();
        answered(self.add(new.clone())).await?;
        Ok(new)
    }

    /// Listens to these channels in one round trip.
    async fn add(&mut self, new: HashSet<Channel>) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = new.iter().map(Channel::to_string).collect();
        self.inner.listen_all(names.iter().map(String::as_str)).await?;
        self.channels.extend(new);
        Ok(())
    }
}

async fn answered<T>(asked: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(LISTEN_CHECK_TIMEOUT, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::unanswered("the listening connection is dead")),
    }
}
