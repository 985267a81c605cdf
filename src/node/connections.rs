//! Connections of workers: calls one after the other, each with signs of life until it is done.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use metrics::{counter, gauge};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, copy, split},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{MissedTickBehavior, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{keys::Keys, listener::Listener};
use crate::{
    base::{
        Origin,
        limit::{EGRESS_CONNECTIONS_MAX, NODE_CONNECTIONS_MAX},
    },
    node::local::Local,
    sandbox::{
        EgressConnection, EgressSocket, Fault, Images, Install, Sandbox, SandboxFence, frames,
        node::{
            grant::Scope,
            protocol::{Answer, Call, Done, Request, SILENCE_MAX, Sent, WAITING_INTERVAL},
        },
    },
};

/// Answer to a caller of a newer version.
const UNKNOWN_CALL: &str = "the node agent does not know this call: upgrade the agents before the workers";
/// Time for which a connection without a call is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a sandbox may keep a connection that the worker has ended on its side.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(30);
/// Delay after a connection that could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The agent of one machine.
pub struct Agent {
    pub(super) local: Local,
    pub(super) origin: Origin,
    keys: Keys,
    /// Connections of sandboxes that were announced and not taken over yet.
    arrivals: Mutex<HashMap<u64, Arrival>>,
    next_arrival: AtomicU64,
    /// Builds of images, which go on when their worker hangs up.
    pub(super) builds: TaskTracker,
}

/// A connection of a sandbox, or of an installation.
struct Arrival {
    scope: Scope,
    connection: Connection,
    /// Its place among those of the same socket, until it ends.
    _place: OwnedSemaphorePermit,
}

type Connection = Box<dyn EgressConnection>;
type Reader = ReadHalf<Connection>;
type Writer = WriteHalf<Connection>;

impl Agent {
    /// The agent `node`, which makes sandboxes in `local`. `key_file` contains the public key of the deployment's
    /// grants.
    pub fn new(local: Local, node: Uuid, key_file: PathBuf, origin: Origin) -> Self {
        let next_arrival = AtomicU64::new(u64::from_be_bytes(origin.bytes()));
        let (arrivals, builds) = (Mutex::default(), TaskTracker::new());
        Self { local, origin, keys: Keys::new(node, key_file), arrivals, next_arrival, builds }
    }

    /// Serves workers until `stop`; then interrupts calls in progress, which workers repeat.
    pub async fn serve(self: Arc<Self>, listener: Listener, stop: CancellationToken) {
        let (tasks, places) = (TaskTracker::new(), Arc::new(Semaphore::new(NODE_CONNECTIONS_MAX)));
        loop {
            let accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (place, listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => accepted,
            };
            let handshake = match accepted {
                Ok(handshake) => handshake,
                Err(error) => {
                    tracing::warn!(%error, "a caller could not be accepted");
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (agent, stop) = (Arc::clone(&self), stop.clone());
            tasks.spawn(async move {
                let attended = async {
                    match timeout(SILENCE_MAX, handshake).await {
                        Ok(Ok(connection)) => agent.attend(connection).await,
                        Ok(Err(error)) => tracing::warn!(%error, "a caller was refused"),
                        Err(_) => tracing::warn!("a caller did not finish its handshake"),
                    }
                };
                gauge!("sojourn_node_connections").increment(1.0);
                stop.run_until_cancelled(attended).await;
                gauge!("sojourn_node_connections").decrement(1.0);
                drop(place);
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn attend(&self, mut connection: Connection) {
        loop {
            let read = timeout(IDLE_TIMEOUT, frames::read::<Value>(&mut connection)).await;
            let Ok(Ok((request, payload))) = read else { return };
            let Ok(Request { grant, call }) = serde_json::from_value(request) else {
                let fault = Answer::Fault(Fault::Unavailable(UNKNOWN_CALL.to_owned()));
                let _ = frames::write(&mut connection, &fault, &[]).await;
                return;
            };
            let granted = self.keys.check(&grant, self.origin.now()).and_then(|grant| {
                let may_be_unnamed = matches!(call, Call::Status {});
                if grant.node.is_none() && !may_be_unnamed {
                    return Err(Fault::Refused("the grant names no node".to_owned()));
                }
                Ok(grant.scope)
            });
            let answered = match granted {
                Err(fault) => {
                    refused(&fault);
                    frames::write(&mut connection, &Answer::Fault(fault), &[])
                        .await
                        .map(|()| Some(connection))
                }
                Ok(scope) => self.answer(connection, scope, call, payload).await,
            };
            match answered {
                Ok(Some(next)) => connection = next,
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "a caller is gone"),
            }
        }
    }

    /// Carries out a call. Returns the connection if it can carry another one.
    async fn answer(
        &self,
        mut connection: Connection,
        scope: Scope,
        call: Call,
        payload: Vec<u8>,
    ) -> io::Result<Option<Connection>> {
        if let Call::EgressConnection { id } = call {
            let Some(arrived) = self.take_arrival(id, &scope) else {
                let fault = Fault::NotFound("there is no such connection".to_owned());
                frames::write(&mut connection, &Answer::Fault(fault), &[]).await?;
                return Ok(Some(connection));
            };
            frames::write(&mut connection, &Answer::Begun, &[]).await?;
            carry(connection, arrived.connection).await?;
            return Ok(None);
        }
        let fence = match self.permitted(&scope, &call) {
            Ok(fence) => fence,
            Err(fault) => {
                refused(&fault);
                frames::write(&mut connection, &Answer::Fault(fault), &[]).await?;
                return Ok(Some(connection));
            }
        };
        counter!("sojourn_node_calls_total", "outcome" => "accepted").increment(1);
        let (mut read_half, mut write_half) = split(connection);
        let last = match (call, fence) {
            (call @ (Call::Pack {} | Call::ReadTree { .. }), Some(fence)) => {
                self.send_archive(&mut write_half, fence, call).await?
            }
            (call @ (Call::Unpack {} | Call::WriteTree { .. }), Some(fence)) => {
                let last = self.receive_archive(&mut read_half, &mut write_half, fence, call).await?;
                // A refusal leaves parts unread.
                frames::write(&mut write_half, &last, &[]).await?;
                return Ok(None);
            }
            (Call::EgressSocket {}, Some(fence)) => {
                let opened = self.local.egress_socket(fence, &payload);
                match while_waiting(&mut read_half, &mut write_half, opened).await? {
                    Ok(socket) => return self.announce_all(read_half, write_half, scope, socket).await,
                    Err(fault) => Answer::Fault(fault),
                }
            }
            (Call::Install { rootfs, container }, None) => {
                let begun = self.local.begin_install(&rootfs, container, &payload);
                match while_waiting(&mut read_half, &mut write_half, begun).await? {
                    Ok(Some(install)) => {
                        self.install(&mut read_half, &mut write_half, scope, install).await?
                    }
                    Ok(None) => Answer::Done(Done::Nothing),
                    Err(error) => Answer::NotBuilt(error),
                }
            }
            (call, fence) => {
                let run = self.run(fence, call, payload);
                let (last, payload) = while_waiting(&mut read_half, &mut write_half, run).await?;
                frames::write(&mut write_half, &last, &payload).await?;
                return Ok(Some(read_half.unsplit(write_half)));
            }
        };
        frames::write(&mut write_half, &last, &[]).await?;
        Ok(Some(read_half.unsplit(write_half)))
    }

    async fn send_archive(
        &self,
        write_half: &mut Writer,
        fence: SandboxFence,
        call: Call,
    ) -> io::Result<Answer> {
        let (parts, mut received) = mpsc::channel::<Bytes>(2);
        let packed = async {
            io::Result::Ok(match &call {
                Call::ReadTree { path } => self.local.read_tree(fence, path, parts).await,
                _ => self.local.pack(fence, parts).await,
            })
        };
        let sent = async {
            let mut beats = beats();
            loop {
                tokio::select! {
                    part = received.recv() => match part {
                        Some(part) => frames::write(write_half, &Answer::Part, &part).await?,
                        None => return io::Result::Ok(()),
                    },
                    _ = beats.tick() => frames::write(write_half, &Answer::Waiting, &[]).await?,
                }
            }
        };
        // Ends with a worker that is gone, though parts wait.
        let (packed, ()) = futures::future::try_join(packed, sent).await?;
        Ok(done(packed))
    }

    async fn receive_archive(
        &self,
        read_half: &mut Reader,
        write_half: &mut Writer,
        fence: SandboxFence,
        call: Call,
    ) -> io::Result<Answer> {
        let (parts, given) = mpsc::channel(2);
        let received = async {
            loop {
                let part = match frames::read::<Sent>(read_half).await? {
                    (Sent::Part, part) => Ok(part.into()),
                    (Sent::Fault(fault), _) => Err(fault),
                    (Sent::End, _) => return io::Result::Ok(parts),
                };
                if parts.send(part).await.is_err() {
                    // The answer has the reason.
                    std::future::pending::<()>().await;
                }
            }
        };
        let unpacked = async {
            match &call {
                Call::WriteTree { path } => self.local.write_tree(fence, path, given).await,
                _ => self.local.unpack(fence, given).await,
            }
        };
        tokio::pin!(received, unpacked);
        let mut beats = beats();
        let mut is_complete = false;
        loop {
            tokio::select! {
                unpacked = &mut unpacked => return Ok(done(unpacked)),
                // Dropping `parts` ends the archive.
                ended = &mut received, if !is_complete => {
                    drop(ended?);
                    is_complete = true;
                }
                _ = beats.tick() => frames::write(write_half, &Answer::Waiting, &[]).await?,
            }
        }
    }

    /// Announces the connections of a sandbox until the worker hangs up.
    async fn announce_all(
        &self,
        mut read_half: Reader,
        mut write_half: Writer,
        scope: Scope,
        mut socket: EgressSocket,
    ) -> io::Result<Option<Connection>> {
        frames::write(&mut write_half, &Answer::Begun, &[]).await?;
        let (mut beats, mut announced) = (beats(), Announced::new(self));
        loop {
            tokio::select! {
                arrived = socket.next() => match arrived {
                    Some(Ok(connection)) => announced.add(&scope, connection, &mut write_half).await?,
                    Some(Err(_)) => sleep(ACCEPT_RETRY).await,
                    None => return Ok(None),
                },
                _ = read_half.read_u8() => return Ok(None),
                _ = beats.tick() => frames::write(&mut write_half, &Answer::Waiting, &[]).await?,
            }
        }
    }

    /// Runs an installation, and announces its connections.
    async fn install(
        &self,
        read_half: &mut Reader,
        write_half: &mut Writer,
        scope: Scope,
        Install { mut egress, run }: Install,
    ) -> io::Result<Answer> {
        // It ends by itself: what it publishes must not be interrupted.
        let mut run = self.builds.spawn(run);
        frames::write(write_half, &Answer::Begun, &[]).await?;
        let (mut beats, mut announced) = (beats(), Announced::new(self));
        loop {
            tokio::select! {
                built = &mut run => return Ok(match built.map_err(io::Error::other)? {
                    Ok(()) => Answer::Done(Done::Nothing),
                    Err(error) => Answer::NotBuilt(error),
                }),
                Some(arrived) = egress.next() => match arrived {
                    Ok(connection) => announced.add(&scope, connection, write_half).await?,
                    Err(_) => sleep(ACCEPT_RETRY).await,
                },
                _ = read_half.read_u8() => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ = beats.tick() => frames::write(write_half, &Answer::Waiting, &[]).await?,
            }
        }
    }

    fn take_arrival(&self, id: u64, scope: &Scope) -> Option<Arrival> {
        let mut arrivals = self.arrivals();
        // A grant of another epoch of the same sandbox does not take it.
        if arrivals.get(&id).is_none_or(|arrival| arrival.scope != *scope) {
            return None;
        }
        arrivals.remove(&id)
    }

    fn arrivals(&self) -> MutexGuard<'_, HashMap<u64, Arrival>> {
        self.arrivals.lock().expect("no code panics while it holds the lock of the arrivals")
    }
}

/// Connections that one socket has announced. Those that nobody took over end with it.
struct Announced<'a> {
    agent: &'a Agent,
    ids: Vec<u64>,
    /// Places of connections, also of those that were taken over.
    places: Arc<Semaphore>,
}

impl<'a> Announced<'a> {
    fn new(agent: &'a Agent) -> Self {
        Self { agent, ids: Vec::new(), places: Arc::new(Semaphore::new(EGRESS_CONNECTIONS_MAX)) }
    }

    async fn add(
        &mut self,
        scope: &Scope,
        connection: Connection,
        write_half: &mut Writer,
    ) -> io::Result<()> {
        // Without a place, the sandbox sees that the connection ends.
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Ok(()) };
        let id = self.agent.next_arrival.fetch_add(1, Ordering::Relaxed);
        {
            let mut arrivals = self.agent.arrivals();
            self.ids.retain(|id| arrivals.contains_key(id));
            arrivals.insert(id, Arrival { scope: scope.clone(), connection, _place: place });
        }
        self.ids.push(id);
        frames::write(write_half, &Answer::Connection { id }, &[]).await
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let mut arrivals = self.agent.arrivals();
        for id in &self.ids {
            arrivals.remove(id);
        }
    }
}

/// Carries the bytes of a sandbox's connection. Once the worker sends nothing more, the sandbox has a while to end it.
async fn carry(worker: Connection, sandbox: Connection) -> io::Result<()> {
    let ((mut from_worker, mut to_worker), (mut from_sandbox, mut to_sandbox)) =
        (split(worker), split(sandbox));
    let up = async {
        copy(&mut from_sandbox, &mut to_worker).await?;
        to_worker.shutdown().await
    };
    let down = async {
        copy(&mut from_worker, &mut to_sandbox).await?;
        to_sandbox.shutdown().await
    };
    tokio::pin!(up, down);
    tokio::select! {
        up = &mut up => {
            up?;
            down.await
        }
        down = &mut down => {
            down?;
            timeout(HALF_CLOSED_MAX, up).await.unwrap_or(Ok(()))
        }
    }
}

/// Waits for a call, with signs of life. Gives up when the worker hangs up.
async fn while_waiting<T>(
    read_half: &mut Reader,
    write_half: &mut Writer,
    call: impl Future<Output = T>,
) -> io::Result<T> {
    tokio::pin!(call);
    let mut beats = beats();
    loop {
        tokio::select! {
            biased;
            done = &mut call => return Ok(done),
            _ = read_half.read_u8() => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ = beats.tick() => frames::write(write_half, &Answer::Waiting, &[]).await?,
        }
    }
}

fn refused(fault: &Fault) {
    counter!("sojourn_node_calls_total", "outcome" => "refused").increment(1);
    tracing::warn!(%fault, "a call was refused");
}

fn beats() -> tokio::time::Interval {
    let mut beats =
        tokio::time::interval_at(tokio::time::Instant::now() + WAITING_INTERVAL, WAITING_INTERVAL);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

fn done(result: Result<(), Fault>) -> Answer {
    match result {
        Ok(()) => Answer::Done(Done::Nothing),
        Err(fault) => Answer::Fault(fault),
    }
}
