//! Connections of workers: calls one after the other, each with signs of life until it is done.

use std::{io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use metrics::{counter, gauge};
use serde_json::Value;
use sojourn_init::scan::decode_paths;
use tokio::{
    io::{AsyncReadExt, ReadHalf, WriteHalf, split},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{MissedTickBehavior, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{
    arrivals::{Arrival, Arrivals, carry},
    keys::Keys,
    listener::Listener,
};
use crate::{
    base::{
        Origin,
        limit::{
            NODE_ACCEPT_RETRY, NODE_CALL_BEAT_INTERVAL, NODE_CONNECTIONS_MAX, NODE_IDLE_TIMEOUT,
            NODE_SILENCE_MAX,
        },
    },
    node::local::Local,
    sandbox::{
        EgressConnection, EgressSocket, Fault, Images, Install, Sandbox, SandboxFence, frames,
        node::{
            grant::Scope,
            protocol::{Answer, Call, Done, Request, Sent},
        },
    },
};

/// Answer to a caller of a newer version.
const UNKNOWN_CALL: &str = "the node agent does not know this call: upgrade the agents before the workers";

/// The agent of one machine.
pub struct Agent {
    pub(super) local: Local,
    pub(super) origin: Origin,
    keys: Keys,
    /// Connections of sandboxes that no worker has taken over yet.
    arrivals: Arrivals,
    /// Builds of images, which go on when their worker hangs up.
    pub(super) builds: TaskTracker,
}

type Connection = Box<dyn EgressConnection>;
type Reader = ReadHalf<Connection>;
type Writer = WriteHalf<Connection>;

impl Agent {
    /// The agent `node`, which makes sandboxes in `local`. `key_file` contains the public key of the deployment's
    /// grants.
    pub fn new(local: Local, node: Uuid, key_file: PathBuf, origin: Origin) -> Self {
        let (keys, arrivals) = (Keys::new(node, key_file), Arrivals::new(&origin));
        Self { local, origin, keys, arrivals, builds: TaskTracker::new() }
    }

    /// Serves workers until `stop`; then interrupts calls in progress, which workers repeat.
    pub async fn serve(self: Arc<Self>, listener: Listener, stop: CancellationToken) {
        let (tasks, places) = (TaskTracker::new(), Arc::new(Semaphore::new(NODE_CONNECTIONS_MAX)));
        loop {
            let accepted = async {
                let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
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
                    sleep(NODE_ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (agent, stop) = (Arc::clone(&self), stop.clone());
            tasks.spawn(async move {
                let attended = async {
                    match timeout(NODE_SILENCE_MAX, handshake).await {
                        Ok(Ok(connection)) => agent.attend(connection, place).await,
                        Ok(Err(error)) => tracing::warn!(%error, "a caller was refused"),
                        Err(_) => tracing::warn!("a caller did not finish its handshake"),
                    }
                };
                gauge!("sojourn_node_connections").increment(1.0);
                stop.run_until_cancelled(attended).await;
                gauge!("sojourn_node_connections").decrement(1.0);
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Carries out the calls of a connection. `place` is its own among those of calls.
    async fn attend(&self, mut connection: Connection, place: OwnedSemaphorePermit) {
        loop {
            let read = timeout(NODE_IDLE_TIMEOUT, frames::read::<Value>(&mut connection)).await;
            let Ok(Ok((request, payload))) = read else { return };
            let Ok(Request { grant, call }) = serde_json::from_value(request) else {
                let fault = Answer::Fault(Fault::Unavailable(UNKNOWN_CALL.to_owned()));
                let _ = frames::write(&mut connection, &fault, &[]).await;
                return;
            };
            let granted = self.keys.check(&grant, self.origin.now()).and_then(|grant| {
                let may_be_unnamed = matches!(call, Call::Status {});
                if grant.node.is_none() && !may_be_unnamed {
                    return Err(Fault::Unavailable("the grant names no node".to_owned()));
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
                Ok(scope) => match call {
                    Call::EgressConnection { id } => match self.take_over(&mut connection, scope, id).await {
                        // It has a place among those of its sandbox.
                        Ok(Some(arrived)) => {
                            drop(place);
                            return carry(connection, arrived).await;
                        }
                        Ok(None) => Ok(Some(connection)),
                        Err(error) => Err(error),
                    },
                    call => self.answer(connection, scope, call, payload).await,
                },
            };
            match answered {
                Ok(Some(next)) => connection = next,
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "a caller is gone"),
            }
        }
    }

    /// Gives a connection of a sandbox to the worker that takes it over, if it is there.
    async fn take_over(
        &self,
        connection: &mut Connection,
        scope: Scope,
        id: u64,
    ) -> io::Result<Option<Arrival>> {
        let arrived = self.arrivals.take(id, &scope);
        let answer = match arrived {
            Some(_) => Answer::Begun,
            None => Answer::Fault(Fault::NotFound("there is no such connection".to_owned())),
        };
        frames::write(connection, &answer, &[]).await?;
        Ok(arrived)
    }

    /// Carries out a call. Returns the connection if it can carry another one.
    async fn answer(
        &self,
        mut connection: Connection,
        scope: Scope,
        call: Call,
        payload: Vec<u8>,
    ) -> io::Result<Option<Connection>> {
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
            (
                call @ (Call::Pack {} | Call::ReadTree { .. } | Call::Scan { .. } | Call::Fetch {}),
                Some(fence),
            ) => self.send_parts(&mut write_half, fence, call, &payload).await?,
            (call @ (Call::Unpack {} | Call::WriteTree { .. } | Call::WriteSkills {}), Some(fence)) => {
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
            (Call::Install { rootfs, container, bytes_max }, None) => {
                let begun = self.local.begin_install(&rootfs, container, &payload, bytes_max);
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

    async fn send_parts(
        &self,
        write_half: &mut Writer,
        fence: SandboxFence,
        call: Call,
        payload: &[u8],
    ) -> io::Result<Answer> {
        let (parts, mut received) = mpsc::channel::<Bytes>(2);
        let packed = async {
            io::Result::Ok(match &call {
                Call::ReadTree { path } => self.local.read_tree(fence, path, parts).await,
                Call::Scan { entries_max } => self.local.scan_parts(fence, *entries_max, parts).await,
                Call::Fetch {} => match decode_paths(payload) {
                    Ok(paths) => self.local.fetch(fence, &paths, parts).await,
                    Err(error) => Err(Fault::Refused(error.to_string())),
                },
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
                Call::WriteSkills {} => self.local.write_skills(fence, given).await,
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
        let (mut beats, mut announced) = (beats(), self.arrivals.of_socket());
        loop {
            tokio::select! {
                arrived = socket.next() => match arrived {
                    Some(Ok(connection)) => announced.add(&scope, connection, &mut write_half).await?,
                    Some(Err(_)) => sleep(NODE_ACCEPT_RETRY).await,
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
        let (mut beats, mut announced) = (beats(), self.arrivals.of_socket());
        loop {
            tokio::select! {
                built = &mut run => return Ok(match built.map_err(io::Error::other)? {
                    Ok(()) => Answer::Done(Done::Nothing),
                    Err(error) => Answer::NotBuilt(error),
                }),
                Some(arrived) = egress.next() => match arrived {
                    Ok(connection) => announced.add(&scope, connection, write_half).await?,
                    Err(_) => sleep(NODE_ACCEPT_RETRY).await,
                },
                _ = read_half.read_u8() => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ = beats.tick() => frames::write(write_half, &Answer::Waiting, &[]).await?,
            }
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
    let mut beats = tokio::time::interval_at(
        tokio::time::Instant::now() + NODE_CALL_BEAT_INTERVAL,
        NODE_CALL_BEAT_INTERVAL,
    );
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

fn done(result: Result<(), Fault>) -> Answer {
    match result {
        Ok(()) => Answer::Done(Done::Nothing),
        Err(fault) => Answer::Fault(fault),
    }
}
