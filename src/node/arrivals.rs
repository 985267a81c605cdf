//! Connections of sandboxes on their way to the worker: announced on one connection, taken over by another.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt, copy, split},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    base::{
        Origin,
        limit::{EGRESS_CONNECTIONS_MAX, NODE_HALF_CLOSED_MAX},
    },
    sandbox::{
        EgressConnection, frames,
        node::{grant::Scope, protocol::Answer},
    },
};

/// Connections that were announced and not taken over yet, by their ids.
pub(super) struct Arrivals {
    waiting: Mutex<HashMap<u64, Arrival>>,
    next: AtomicU64,
}

/// A connection of a sandbox, or of an installation.
pub(super) struct Arrival {
    scope: Scope,
    connection: Box<dyn EgressConnection>,
    /// Its place among those of the same socket, until it ends.
    _place: OwnedSemaphorePermit,
}

impl Arrivals {
    pub(super) fn new(origin: &Origin) -> Self {
        Self { waiting: Mutex::default(), next: AtomicU64::new(u64::from_be_bytes(origin.bytes())) }
    }

    /// Begins to announce the connections of one socket.
    pub(super) fn of_socket(&self) -> Announced<'_> {
        Announced { all: self, ids: Vec::new(), places: Arc::new(Semaphore::new(EGRESS_CONNECTIONS_MAX)) }
    }

    /// Takes a connection over. A grant of another epoch of the same sandbox does not.
    pub(super) fn take(&self, id: u64, scope: &Scope) -> Option<Arrival> {
        let mut waiting = self.waiting();
        if waiting.get(&id).is_none_or(|arrival| arrival.scope != *scope) {
            return None;
        }
        waiting.remove(&id)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Arrival>> {
        self.waiting.lock().expect("no code panics while it holds the lock of the arrivals")
    }
}

/// Connections that one socket has announced. Those that nobody took over end with it.
pub(super) struct Announced<'a> {
    all: &'a Arrivals,
    ids: Vec<u64>,
    /// Places of connections, also of those that were taken over.
    places: Arc<Semaphore>,
}

impl Announced<'_> {
    /// Announces a connection of a sandbox to its worker.
    pub(super) async fn add(
        &mut self,
        scope: &Scope,
        connection: Box<dyn EgressConnection>,
        worker: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        // Without a place, the sandbox sees that the connection ends.
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Ok(()) };
        let id = self.all.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut waiting = self.all.waiting();
            self.ids.retain(|id| waiting.contains_key(id));
            waiting.insert(id, Arrival { scope: scope.clone(), connection, _place: place });
        }
        self.ids.push(id);
        frames::write(worker, &Answer::Connection { id }, &[]).await
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let mut waiting = self.all.waiting();
        for id in &self.ids {
            waiting.remove(id);
        }
    }
}

/// Carries the bytes of a sandbox's connection. Once the worker sends nothing more, the sandbox has a while to end it.
pub(super) async fn carry(
    worker: Box<dyn EgressConnection>,
    Arrival { connection: sandbox, _place, .. }: Arrival,
) {
    let (mut from_worker, mut to_worker) = split(worker);
    let (mut from_sandbox, mut to_sandbox) = split(sandbox);
    let up = async {
        copy(&mut from_sandbox, &mut to_worker).await?;
        to_worker.shutdown().await
    };
    let down = async {
        copy(&mut from_worker, &mut to_sandbox).await?;
        to_sandbox.shutdown().await
    };
    tokio::pin!(up, down);
    // An error of either side ends both.
    let _ = tokio::select! {
        up = &mut up => match up {
            Ok(()) => down.await,
            failed => failed,
        },
        down = &mut down => match down {
            Ok(()) => timeout(NODE_HALF_CLOSED_MAX, up).await.unwrap_or(Ok(())),
            failed => failed,
        },
    };
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, duplex},
        time::{Instant, sleep},
    };

    use super::*;

    fn arrival(connection: impl EgressConnection + 'static) -> (Arrival, Arc<Semaphore>) {
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        (Arrival { scope: Scope::Node, connection: Box::new(connection), _place: place }, places)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_keeps_no_connection_that_its_worker_has_ended() {
        let ((worker, agent), (sandbox, agents_other)) = (duplex(64), duplex(64));
        let (arrival, places) = arrival(agents_other);
        drop(worker);
        let began = Instant::now();
        // The sandbox holds its end, and says nothing.
        carry(Box::new(agent), arrival).await;
        assert_eq!(began.elapsed(), NODE_HALF_CLOSED_MAX);
        assert_eq!(places.available_permits(), 1, "its place is free");
        drop(sandbox);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_sandbox_asks_before_it_half_closes_is_answered() {
        let ((mut worker, agent), (mut sandbox, agents_other)) = (duplex(64), duplex(64));
        let (arrival, _places) = arrival(agents_other);
        let talk = async {
            sandbox.write_all(b"ask").await.unwrap();
            sandbox.shutdown().await.unwrap();
            let mut asked = String::new();
            worker.read_to_string(&mut asked).await.unwrap();
            // Longer than the time that a half-closed connection has in the other direction.
            sleep(2 * NODE_HALF_CLOSED_MAX).await;
            worker.write_all(b"answer").await.unwrap();
            drop(worker);
            let mut answered = String::new();
            sandbox.read_to_string(&mut answered).await.unwrap();
            (asked, answered)
        };
        let ((), said) = tokio::join!(carry(Box::new(agent), arrival), talk);
        assert_eq!(said, ("ask".to_owned(), "answer".to_owned()));
    }
}
