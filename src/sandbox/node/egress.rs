//! Outgoing connections of a sandbox on another node: announced on one connection to the agent, each carried by
//! another.

use std::{io, sync::Arc};

use futures::{StreamExt, stream};
use tokio::time::{sleep, timeout};

use super::{
    caller::{Caller, Connection, answer, unexpected},
    grant::Scope,
    protocol::{Answer, Call},
};
use crate::{
    base::limit::{NODE_REOPEN_DELAY, NODE_SILENCE_MAX},
    sandbox::{EgressSocket, Fault, SandboxFence},
};

/// The socket of a sandbox.
struct Socket {
    caller: Arc<Caller>,
    fence: SandboxFence,
    certificates: Vec<u8>,
    /// None after the connection to the agent was lost.
    announced: Option<Connection>,
}

/// Opens the socket of a sandbox. It is opened again when the connection to the agent is lost.
pub(super) async fn open(
    caller: Arc<Caller>,
    fence: SandboxFence,
    certificates: &[u8],
) -> Result<EgressSocket, Fault> {
    let mut socket = Socket { caller, fence, certificates: certificates.to_vec(), announced: None };
    socket.open().await?;
    let next = async |mut socket: Socket| match socket.next().await {
        Ok(connection) => Some((Ok(connection), socket)),
        // The sandbox is gone, or of another worker.
        Err(Fault::Gone | Fault::Stale) => None,
        Err(fault) => Some((Err(io::Error::other(fault.to_string())), socket)),
    };
    Ok(stream::unfold(socket, next).boxed())
}

impl Socket {
    async fn open(&mut self) -> Result<(), Fault> {
        let mut announced = self.caller.begin(self.fence, Call::EgressSocket {}, &self.certificates).await?;
        match answer(&mut announced).await.map_err(|error| self.caller.lost(&error))? {
            (Answer::Begun, _) => self.announced = Some(announced),
            (Answer::Fault(fault), _) => return Err(fault),
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Connection, Fault> {
        let Some(announced) = &mut self.announced else {
            sleep(NODE_REOPEN_DELAY).await;
            self.open().await?;
            return Err(Fault::Unavailable(
                "the connection to the node agent was lost, and is there again".to_owned(),
            ));
        };
        match answer(announced).await {
            Ok((Answer::Connection { id }, _)) => connected(&self.caller, self.fence, id).await,
            Ok((Answer::Fault(fault), _)) => {
                self.announced = None;
                Err(fault)
            }
            Ok(_) => {
                self.announced = None;
                Err(unexpected())
            }
            Err(error) => {
                self.announced = None;
                Err(self.caller.lost(&error))
            }
        }
    }
}

/// Takes over a connection that was announced.
pub(super) async fn connected(
    caller: &Caller,
    scope: impl Into<Scope>,
    id: u64,
) -> Result<Connection, Fault> {
    let taken = async {
        let mut connection = caller.begin(scope, Call::EgressConnection { id }, &[]).await?;
        match answer(&mut connection).await.map_err(|error| caller.lost(&error))? {
            (Answer::Begun, _) => Ok(connection),
            (Answer::Fault(fault), _) => Err(fault),
            _ => Err(unexpected()),
        }
    };
    let taken = timeout(NODE_SILENCE_MAX, taken).await;
    taken.unwrap_or_else(|_| Err(caller.lost(&io::ErrorKind::TimedOut.into())))
}
