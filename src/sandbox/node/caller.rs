//! Calls to a node agent.

use std::{
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use sojourn_init::frame;
use tokio::{
    io::{AsyncRead, WriteHalf, split},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

use super::{
    grant::{GrantKey, Scope},
    link::Dialer,
    protocol::{Answer, Call, Done, Request, Sent},
};
use crate::{
    base::limit::{
        ARCHIVE_PART_TIMEOUT, NODE_IDLE_CONNECTIONS_MAX, NODE_REPLACEMENT_MAX, NODE_REPLACEMENT_POLL,
        NODE_SILENCE_MAX,
    },
    sandbox::{BuildError, Capabilities, EgressConnection, Fault, SandboxFence, frames},
};

/// Makes the calls of a worker to one agent.
pub(super) struct Caller {
    dialer: Dialer,
    grants: GrantKey,
    /// None until the agent has said it.
    node: Option<Uuid>,
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
        let caller = Self { dialer, grants, node: None, idle: Mutex::default() };
        // Whoever starts a worker is told at once that it waits.
        let request = caller.request(&Scope::Node, &Call::Status {});
        let (connection, answered) =
            caller.attempt(&request, &[]).await.map_err(|error| caller.lost(&error))?;
        match caller.done(connection, answered)? {
            (Done::Status(status, capabilities), _) => {
                Ok((Self { node: Some(status.node), ..caller }, capabilities))
            }
            _ => Err(unexpected()),
        }
    }

    /// The node of the agent.
    pub(super) fn node(&self) -> Uuid {
        self.node.unwrap_or_default()
    }

    fn request(&self, scope: &Scope, call: &Call) -> Request {
        Request { grant: self.grants.sign(self.node, scope.clone()), call: call.clone() }
    }

    /// Makes a call without parts. While the agent is replaced, the call waits for the next one and is repeated.
    pub(super) async fn call(
        &self,
        scope: impl Into<Scope>,
        call: Call,
        payload: &[u8],
    ) -> Result<(Done, Vec<u8>), Failed> {
        let scope = scope.into();
        let mut reconnection = Reconnection::default();
        loop {
            let request = self.request(&scope, &call);
            check_size(&request, payload)?;
            let began = Instant::now();
            match self.attempt(&request, payload).await {
                Ok((connection, answered)) => return self.done(connection, answered),
                // It may have arrived, and would arrive twice.
                Err(error) if matches!(call, Call::Signal { .. }) => return Err(self.lost(&error).into()),
                Err(error) => {
                    reconnection.pause_after(error, began).await.map_err(|error| self.lost(&error))?
                }
            }
        }
    }

    async fn attempt(
        &self,
        request: &Request,
        payload: &[u8],
    ) -> io::Result<(Connection, (Answer, Vec<u8>))> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = if matches!(request.call, Call::Signal { .. }) { None } else { idle().pop() };
        if let Some(mut connection) = kept {
            match self.exchange(&mut connection, request, payload).await {
                Ok(answered) => return Ok((connection, answered)),
                // The agent has closed it, and the others with it.
                Err(error) if is_gone(&error) => idle().clear(),
                Err(error) => return Err(error),
            }
        }
        let mut connection = self.dialer.open().await?;
        let answered = self.exchange(&mut connection, request, payload).await?;
        Ok((connection, answered))
    }

    /// Opens a connection, when the agent is replaced to the next one.
    async fn open(&self) -> Result<Connection, Fault> {
        let mut reconnection = Reconnection::default();
        loop {
            let began = Instant::now();
            match self.dialer.open().await {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    reconnection.pause_after(error, began).await.map_err(|error| self.lost(&error))?
                }
            }
        }
    }

    async fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
        payload: &[u8],
    ) -> io::Result<(Answer, Vec<u8>)> {
        // The agent answers a refused call before it reads the payload.
        let sent = written(connection, request, payload).await;
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
        if idle.len() < NODE_IDLE_CONNECTIONS_MAX {
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
        let request = self.request(&scope.into(), &call);
        check_size(&request, payload)?;
        let mut connection = self.open().await?;
        written(&mut connection, &request, payload).await.map_err(|error| self.lost(&error))?;
        Ok(connection)
    }

    pub(super) fn lost(&self, error: &io::Error) -> Fault {
        self.dialer.lost(error)
    }

    /// Receives an archive, a scan or a fetch.
    pub(super) async fn take(
        &self,
        fence: SandboxFence,
        call: Call,
        payload: &[u8],
        parts: &mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        let mut connection = self.begin(fence, call, payload).await?;
        loop {
            match answer(&mut connection).await.map_err(|error| self.lost(&error))? {
                (Answer::Part, part) => {
                    let nobody = |_| Fault::Unavailable("the receiver of the parts is gone".to_owned());
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

/// Attempts to reach the agent that replaces another one.
#[derive(Default)]
struct Reconnection {
    since: Option<Instant>,
    pause: Duration,
}

impl Reconnection {
    /// Waits before the next attempt; or returns the error, if no other agent will answer soon. `began` is the time of
    /// the attempt that failed.
    async fn pause_after(&mut self, error: io::Error, began: Instant) -> io::Result<()> {
        if began.elapsed() >= NODE_REPLACEMENT_MAX {
            // An agent was there meanwhile.
            self.since = None;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if !is_gone(&error) || since.elapsed() >= NODE_REPLACEMENT_MAX {
            return Err(error);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).clamp(NODE_REPLACEMENT_POLL.0, NODE_REPLACEMENT_POLL.1);
        Ok(())
    }
}

/// Whether an error says that the agent at the other end is not there any more.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}

/// Writes a request within a bounded time.
async fn written(connection: &mut Connection, request: &Request, payload: &[u8]) -> io::Result<()> {
    let written = timeout(NODE_SILENCE_MAX, frames::write(connection, request, payload)).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Refuses a call that is larger than a frame.
fn check_size(request: &Request, payload: &[u8]) -> Result<(), Fault> {
    let refused = |_| Fault::Refused(format!("a call to a sandbox has at most {} bytes", frame::BYTES_MAX));
    frame::encode(request, payload.len()).map(drop).map_err(refused)
}

/// Waits for the next frame that is not a sign of life.
pub(super) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Answer, Vec<u8>)> {
    loop {
        let read = timeout(NODE_SILENCE_MAX, frames::read(stream)).await;
        match read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            (Answer::Waiting, _) => {}
            answered => return Ok(answered),
        }
    }
}

async fn send(stream: &mut WriteHalf<Connection>, sent: &Sent, part: &[u8]) -> io::Result<()> {
    let written = timeout(ARCHIVE_PART_TIMEOUT, frames::write(stream, sent, part)).await;
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
