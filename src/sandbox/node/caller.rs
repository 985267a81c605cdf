//! Calls to a node agent.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use sojourn_init::frame;
use tokio::{
    io::{AsyncRead, WriteHalf, split},
    sync::mpsc,
    time::timeout,
};
use uuid::Uuid;

use super::{
    grant::{GrantKey, Scope},
    link::Dialer,
    protocol::{Answer, Call, Done, Request, SILENCE_MAX, Sent},
};
use crate::{
    base::limit,
    sandbox::{BuildError, Capabilities, EgressConnection, Fault, SandboxFence, frames},
};

/// Connections that are kept open between calls.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// Makes the calls of a worker to one agent.
pub(super) struct Caller {
    dialer: Dialer,
    grants: GrantKey,
    node: Uuid,
    /// Connections between two calls.
    idle: Mutex<Vec<Connection>>,
}

pub(super) type Connection = Box<dyn EgressConnection>;

/// A fault of a call: of the call itself, or of an image.
pub(super) enum Failed {
    Fault(Fault),
    NotBuilt(BuildError),
}

impl Caller {
    /// Asks an agent which node it is and what its sandboxes can do.
    pub(super) async fn connect(dialer: Dialer, grants: GrantKey) -> Result<(Self, Capabilities), Fault> {
        let caller = Self { dialer, grants, node: Uuid::nil(), idle: Mutex::default() };
        let grant = caller.grants.sign(None, Scope::Node);
        match caller.request(&Request { grant, call: Call::Status {} }, &[]).await? {
            (Done::Status(status, capabilities), _) => {
                Ok((Self { node: status.node, ..caller }, capabilities))
            }
            _ => Err(unexpected()),
        }
    }

    /// The node of the agent.
    pub(super) fn node(&self) -> Uuid {
        self.node
    }

    fn request_of(&self, scope: Scope, call: Call) -> Request {
        Request { grant: self.grants.sign(Some(self.node), scope), call }
    }

    /// Makes a call without parts.
    pub(super) async fn call(
        &self,
        scope: impl Into<Scope>,
        call: Call,
        payload: &[u8],
    ) -> Result<(Done, Vec<u8>), Failed> {
        self.request(&self.request_of(scope.into(), call), payload).await
    }

    async fn request(&self, request: &Request, payload: &[u8]) -> Result<(Done, Vec<u8>), Failed> {
        check_size(request, payload)?;
        // The agent may have closed a kept connection; every call without parts can be repeated.
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(mut connection) = kept
            && let Ok(answered) = self.exchange(&mut connection, request, payload).await
        {
            return self.done(connection, answered);
        }
        let mut connection = self.dialer.open().await?;
        let answered =
            self.exchange(&mut connection, request, payload).await.map_err(|error| self.lost(&error))?;
        self.done(connection, answered)
    }

    async fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
        payload: &[u8],
    ) -> io::Result<(Answer, Vec<u8>)> {
        // The agent answers a refused call before it reads the payload.
        let sent = frames::write(connection, request, payload).await;
        answer(connection).await.map_err(|error| sent.err().unwrap_or(error))
    }

    fn done(
        &self,
        connection: Connection,
        (answer, payload): (Answer, Vec<u8>),
    ) -> Result<(Done, Vec<u8>), Failed> {
        let done = match answer {
            Answer::Done(done) => Ok((done, payload)),
            Answer::Fault(fault) => Err(Failed::Fault(fault)),
            Answer::NotBuilt(error) => Err(Failed::NotBuilt(error)),
            Answer::Waiting | Answer::Part | Answer::Begun | Answer::Connection { .. } => {
                return Err(Failed::Fault(unexpected()));
            }
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
        done
    }

    /// Begins a call with parts on a connection of its own.
    pub(super) async fn begin(
        &self,
        scope: impl Into<Scope>,
        call: Call,
        payload: &[u8],
    ) -> Result<Connection, Fault> {
        let request = self.request_of(scope.into(), call);
        check_size(&request, payload)?;
        let mut connection = self.dialer.open().await?;
        frames::write(&mut connection, &request, payload).await.map_err(|error| self.lost(&error))?;
        Ok(connection)
    }

    pub(super) fn lost(&self, error: &io::Error) -> Fault {
        self.dialer.lost(error)
    }

    /// Receives an archive.
    pub(super) async fn take(
        &self,
        fence: SandboxFence,
        call: Call,
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        let mut connection = self.begin(fence, call, &[]).await?;
        loop {
            match answer(&mut connection).await.map_err(|error| self.lost(&error))? {
                (Answer::Part, part) => {
                    let nobody = |_| Fault::Unavailable("the receiver of the archive is gone".to_owned());
                    parts.send(part.into()).await.map_err(nobody)?;
                }
                answered => return self.done(connection, answered).map(drop).map_err(Fault::from),
            }
        }
    }

    /// Sends an archive.
    pub(super) async fn give(
        &self,
        fence: SandboxFence,
        call: Call,
        mut parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        let (mut read_half, mut write_half) = split(self.begin(fence, call, &[]).await?);
        let sending = async {
            while let Some(part) = parts.recv().await {
                let (sent, part) = match &part {
                    Ok(part) => (Sent::Part, part.as_ref()),
                    Err(fault) => (Sent::Fault(fault.clone()), [].as_slice()),
                };
                if send(&mut write_half, &sent, part).await.is_err() || matches!(sent, Sent::Fault(_)) {
                    // The answer has the reason.
                    return;
                }
            }
            let _ = send(&mut write_half, &Sent::End, &[]).await;
        };
        let received = answer(&mut read_half);
        tokio::pin!(sending, received);
        // An answer before the end of the archive is a refusal.
        let received = tokio::select! {
            () = &mut sending => received.await,
            received = &mut received => received,
        };
        match received.map_err(|error| self.lost(&error))? {
            (Answer::Done(_), _) => Ok(()),
            (Answer::Fault(fault), _) => Err(fault),
            _ => Err(unexpected()),
        }
    }
}

/// Refuses a call that is larger than a frame.
fn check_size(request: &Request, payload: &[u8]) -> Result<(), Fault> {
    let refused = |_| Fault::Refused(format!("a call to a sandbox has at most {} bytes", frame::BYTES_MAX));
    frame::encode(request, payload.len()).map(drop).map_err(refused)
}

/// Waits for the next frame that is not a sign of life.
pub(super) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Answer, Vec<u8>)> {
    loop {
        let read = timeout(SILENCE_MAX, frames::read(stream)).await;
        match read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            (Answer::Waiting, _) => {}
            answered => return Ok(answered),
        }
    }
}

async fn send(stream: &mut WriteHalf<Connection>, sent: &Sent, part: &[u8]) -> io::Result<()> {
    let written = timeout(limit::ARCHIVE_PART_TIMEOUT, frames::write(stream, sent, part)).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Fault(fault) => fault,
            Failed::NotBuilt(error) => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<Failed> for BuildError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::NotBuilt(error) => error,
            // A build that the connection to the agent interrupts goes on.
            Failed::Fault(Fault::Unavailable(_)) => Self::Busy,
            Failed::Fault(fault) => Self::Failed(fault.to_string()),
        }
    }
}

pub(super) fn unexpected() -> Fault {
    Fault::Unavailable("the node agent sent an unexpected answer".to_owned())
}
