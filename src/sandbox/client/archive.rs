//! Archives of the session's files to and from a sandbox: one call with many frames.

use std::io;

use bytes::Bytes;
use sojourn_init::{
    frame,
    protocol::{self, Answer, Call},
};
use tokio::{
    io::AsyncWriteExt,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::timeout,
};

use super::{ConnectError, Init, fault, unexpected_response};
use crate::{
    base::limit,
    sandbox::{Fault, frames},
};

// Init refuses larger files before it reads them. The count of this side holds for an init that does not.
const _: () = assert!(limit::CHECKPOINT_BYTES_MAX == protocol::CHECKPOINT_BYTES_MAX);

impl Init {
    /// Forwards the archive of the session's files, part by part.
    pub(crate) async fn pack(&self, epoch: i64, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.take(&Call::Pack { epoch }, parts).await
    }

    /// Forwards the archive of a directory, part by part.
    pub(crate) async fn read_tree(&self, path: &str, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.take(&Call::ReadTree { path: path.to_owned() }, parts).await
    }

    async fn take(&self, call: &Call, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        let mut stream = self.call_out(call).await?;
        let mut sent = 0u64;
        loop {
            match timeout(limit::ARCHIVE_PART_TIMEOUT, frames::read(&mut stream)).await {
                Ok(Ok((Answer::Part {}, part))) => {
                    sent += part.len() as u64;
                    if sent > limit::CHECKPOINT_BYTES_MAX {
                        let max = limit::CHECKPOINT_BYTES_MAX;
                        return Err(Fault::Refused(format!("the sandbox's files exceed {max} bytes")));
                    }
                    let nobody = || Fault::Unavailable("the receiver of the archive is gone".to_owned());
                    parts.send(part.into()).await.map_err(|_| nobody())?;
                }
                Ok(Ok((Answer::Done {}, _))) => return Ok(()),
                Ok(Ok((Answer::Fault { kind, message }, _))) => return Err(fault(kind, &message)),
                Ok(Ok((other, _))) => return Err(unexpected_response(&other)),
                Ok(Err(error)) => return Err(self.connection_fault(&error).await),
                Err(_) => return Err(Fault::Unavailable("sending of its archive timed out".to_owned())),
            }
        }
    }

    /// Unpacks an archive of the session's files in the sandbox.
    pub(crate) async fn unpack(
        &self,
        epoch: i64,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.give(&Call::Unpack { epoch }, parts).await
    }

    /// Unpacks an archive into a directory of the sandbox.
    pub(crate) async fn write_tree(
        &self,
        epoch: i64,
        path: &str,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.give(&Call::WriteTree { epoch, path: path.to_owned() }, parts).await
    }

    /// Replaces the skills of the sandbox by those of an archive.
    pub(crate) async fn write_skills(
        &self,
        epoch: i64,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.give(&Call::WriteSkills { epoch }, parts).await
    }

    async fn give(&self, call: &Call, mut parts: mpsc::Receiver<Result<Bytes, Fault>>) -> Result<(), Fault> {
        let (mut read_half, mut write_half) = self.call_out(call).await?.into_split();
        let sending = async {
            while let Some(part) = parts.recv().await {
                if send(&mut write_half, &Answer::Part {}, &part?).await.is_err() {
                    // Init's response carries the reason.
                    return Ok::<_, Fault>(());
                }
            }
            let _ = send(&mut write_half, &Answer::Done {}, &[]).await;
            Ok(())
        };
        let received = read_response(&mut read_half);
        tokio::pin!(sending, received);
        // A response before the end of the archive is a refusal; the remaining parts need not be sent.
        let received = tokio::select! {
            sending = &mut sending => { sending?; received.await }
            received = &mut received => received,
        };
        match received {
            Ok((Answer::Done {}, _)) => Ok(()),
            Ok((Answer::Fault { kind, message }, _)) => Err(fault(kind, &message)),
            Ok((other, _)) => Err(unexpected_response(&other)),
            Err(error) => Err(self.connection_fault(&error).await),
        }
    }

    async fn call_out(&self, call: &Call) -> Result<UnixStream, Fault> {
        let off = |error: io::Error| Fault::Unavailable(format!("connection to its init broke off: {error}"));
        let request = frame::encode(call, 0).map_err(off)?;
        let mut stream = match self.connect().await {
            Ok(stream) => stream,
            Err(ConnectError::Gone) => return Err(Fault::Gone),
            Err(ConnectError::Off(error)) => return Err(off(error)),
        };
        stream.write_all(&request).await.map_err(off)?;
        Ok(stream)
    }

    async fn connection_fault(&self, error: &io::Error) -> Fault {
        match self.is_alive().await {
            true => Fault::Unavailable(format!("connection to its init broke off: {error}")),
            false => Fault::Gone,
        }
    }
}

async fn read_response(read_half: &mut OwnedReadHalf) -> io::Result<(Answer, Vec<u8>)> {
    let unpacked = timeout(limit::ARCHIVE_UNPACK_TIMEOUT, frames::read(read_half)).await;
    unpacked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn send(write_half: &mut OwnedWriteHalf, word: &Answer, part: &[u8]) -> io::Result<()> {
    let taken = timeout(limit::ARCHIVE_PART_TIMEOUT, frames::write(write_half, word, part)).await;
    taken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
