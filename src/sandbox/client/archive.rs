//! Archives of the session's files to and from a sandbox, their list and their contents: one call with many frames.

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
    sandbox::{Fault, frames, scan},
};

// Init refuses larger files before it reads them. The count of this side holds for an init that does not.
const _: () = assert!(limit::CHECKPOINT_BYTES_MAX == protocol::CHECKPOINT_BYTES_MAX);

impl Init {
    /// Forwards the archive of the session's files, part by part.
    pub(crate) async fn pack(&self, epoch: i64, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.take(&Call::Pack { epoch }, &[], &parts, &mut 0).await
    }

    /// Forwards the archive of a directory, part by part.
    pub(crate) async fn read_tree(&self, path: &str, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.take(&Call::ReadTree { path: path.to_owned() }, &[], &parts, &mut 0).await
    }

    /// Forwards the list of the session's files, part by part.
    pub(crate) async fn scan(&self, entries_max: u64, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.take(&Call::Scan { entries_max }, &[], &parts, &mut 0).await
    }

    /// Forwards the contents of files, part by part.
    pub(crate) async fn fetch(&self, paths: &[Vec<u8>], parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        let mut sent = 0;
        for payload in scan::payloads(paths)? {
            self.take(&Call::Fetch {}, &payload, &parts, &mut sent).await?;
        }
        Ok(())
    }

    /// Forwards the parts of an answer and adds their bytes to `sent`.
    async fn take(
        &self,
        call: &Call,
        payload: &[u8],
        parts: &mpsc::Sender<Bytes>,
        sent: &mut u64,
    ) -> Result<(), Fault> {
        let mut stream = self.call_out(call, payload).await?;
        loop {
            match timeout(limit::ARCHIVE_PART_TIMEOUT, frames::read(&mut stream)).await {
                Ok(Ok((Answer::Part {}, part))) => {
                    *sent += part.len() as u64;
                    if *sent > limit::CHECKPOINT_BYTES_MAX {
                        let max = limit::CHECKPOINT_BYTES_MAX;
                        return Err(Fault::Refused(format!("the sandbox's files exceed {max} bytes")));
                    }
                    let nobody = || Fault::Unavailable("the receiver of the parts is gone".to_owned());
                    parts.send(part.into()).await.map_err(|_| nobody())?;
                }
                Ok(Ok((Answer::Done {}, _))) => return Ok(()),
                Ok(Ok((Answer::Fault { kind, message }, _))) => return Err(fault(kind, &message)),
                Ok(Ok((other, _))) => return Err(unexpected_response(&other)),
                Ok(Err(error)) => return Err(self.connection_fault(call, &error).await),
                Err(_) => return Err(Fault::Unavailable("sending of its files timed out".to_owned())),
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
        let (mut read_half, mut write_half) = self.call_out(call, &[]).await?.into_split();
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
            Err(error) => Err(self.connection_fault(call, &error).await),
        }
    }

    async fn call_out(&self, call: &Call, payload: &[u8]) -> Result<UnixStream, Fault> {
        let off = |error: io::Error| Fault::Unavailable(format!("connection to its init broke off: {error}"));
        let request = frame::encode(call, payload.len()).map_err(off)?;
        let mut stream = match self.connect().await {
            Ok(stream) => stream,
            Err(ConnectError::Gone) => return Err(Fault::Gone),
            Err(ConnectError::Off(error)) => return Err(off(error)),
        };
        stream.write_all(&request).await.map_err(off)?;
        // Init answers a refused call before it reads the payload: then its response has the reason.
        match timeout(limit::ARCHIVE_PART_TIMEOUT, stream.write_all(payload)).await {
            Ok(Ok(()) | Err(_)) => Ok(stream),
            Err(_) => Err(Fault::Unavailable("sending of a call to its init timed out".to_owned())),
        }
    }

    async fn connection_fault(&self, call: &Call, error: &io::Error) -> Fault {
        // An init hangs up on a call that it does not know, like one whose helper is killed. Of this call, every init
        // that knows it refuses no entries at once.
        let is_newer = matches!(call, Call::Scan { .. } | Call::Fetch {});
        let is_unknown = is_newer && self.hangs_up_on(&Call::Scan { entries_max: 0 }).await;
        match self.is_alive().await {
            true if is_unknown => Fault::unsupported(),
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

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sojourn_init::protocol::FaultKind;
    use tokio::net::UnixListener;

    use super::*;

    /// Fault of a scan by an init that hangs up on scans: on all, or only on those of entries.
    async fn scanned(knows_scans: bool) -> Fault {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(protocol::SOCKET_NAME)).unwrap();
        let server = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (call, _) = frames::read::<Value>(&mut stream).await.unwrap();
                let answer = match (call["call"].as_str(), call["entries_max"].as_u64()) {
                    (Some("status"), _) => Answer::Status { epoch: 1, execs: 0, running: 0 },
                    (Some("scan"), Some(0)) if knows_scans => Answer::fault(FaultKind::Refused, "no"),
                    _ => continue,
                };
                frames::write(&mut stream, &answer, &[]).await.unwrap();
            }
        };
        let init = Init::at(directory.path().to_owned());
        let (parts, _received) = mpsc::channel(1);
        tokio::select! {
            scanned = init.scan(10, parts) => scanned.unwrap_err(),
            () = server => unreachable!(),
        }
    }

    #[tokio::test]
    async fn an_older_init_is_told_apart_from_a_helper_that_was_killed() {
        let (older, killed) = (scanned(false).await, scanned(true).await);
        assert!(older.is_unsupported(), "{older:?}");
        assert!(matches!(killed, Fault::Unavailable(_)), "{killed:?}");
    }
}
