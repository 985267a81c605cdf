//! Follower of a command's output: from a reader's position to the command's end.
//!
//! While the command runs, its output comes from the chunks that its worker stores; afterwards from its
//! result. Both are the same text. A position is an offset in that text, so a reader can resume with
//! another process or after the end.

use tokio::time::sleep;

use super::reader::{Ended, Reader};
use crate::{
    base::{
        limit::{EXEC_OUTPUT_CHUNK_BYTES, STREAM_POLL},
        text,
    },
    domain::{
        OperationId, OrgId, SessionId,
        operation::{Answer, OutputStream, Request},
    },
    store::{
        self, Store,
        notification::{Notifications, Watch},
        operation::OperationRecord,
    },
    wire::operation::{ExecFrame, ExecView},
};

/// A command to follow and the reader's position.
#[derive(Clone, Debug)]
pub struct ExecTail {
    pub org: OrgId,
    pub session: SessionId,
    pub exec: OperationId,
    /// Position from which to continue.
    pub place: ExecPlace,
}

/// A position: bytes of stdout and stderr that a reader has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecPlace {
    pub stdout: u64,
    pub stderr: u64,
}

/// A line for a reader.
#[derive(Clone, Debug)]
pub enum ExecLine {
    /// One frame as JSON, and the reader's position after it.
    Frame { place: ExecPlace, json: String },
    /// Heartbeat, so that proxies do not consider the connection dead.
    Alive,
}

/// State and new output of a command.
struct NewOutput {
    seen: OperationRecord,
    /// Pieces of output with their positions, in order.
    pieces: Vec<(OutputStream, u64, String)>,
}

pub(super) struct Follower {
    store: Store,
    output: Watch,
    /// Archiving a session ends its commands and only notifies about the log.
    log: Watch,
    tail: ExecTail,
    reader: Reader<ExecLine>,
}

impl ExecPlace {
    fn of(&mut self, stream: OutputStream) -> &mut u64 {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

impl std::fmt::Display for ExecPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.stdout, self.stderr)
    }
}

impl std::str::FromStr for ExecPlace {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (stdout, stderr) = text.split_once('-').ok_or(())?;
        Ok(Self { stdout: stdout.parse().map_err(drop)?, stderr: stderr.parse().map_err(drop)? })
    }
}

impl Follower {
    pub(super) fn new(
        store: &Store,
        notifications: &Notifications,
        tail: ExecTail,
        reader: Reader<ExecLine>,
    ) -> Self {
        Self {
            store: store.clone(),
            output: notifications.watch_output(tail.exec),
            log: notifications.watch(tail.session),
            tail,
            reader,
        }
    }

    pub(super) async fn follow(mut self) -> Result<(), Ended> {
        loop {
            self.output.seen();
            self.log.seen();
            let read = self.read_output().await;
            if matches!(read, Err(store::Error::NotFound)) {
                return Err(Ended);
            }
            if let Some(read_output) = self.reader.readable(read)? {
                self.send_output(read_output).await?;
            }
            let due = async {
                tokio::select! {
                    () = self.output.changed() => {}
                    () = self.log.changed() => {}
                    () = sleep(STREAM_POLL) => {}
                }
            };
            self.reader.wait(due).await?;
        }
    }

    async fn read_output(&self) -> store::Result<NewOutput> {
        let ExecTail { org, session, exec, place } = self.tail;
        let mut tx = self.store.begin(org).await?;
        let seen = tx.operation(session, exec).await?;
        let pieces = match &seen.answer {
            Some(Answer::Exec { stdout, stderr, .. }) => {
                vec![(OutputStream::Stdout, 0, stdout.clone()), (OutputStream::Stderr, 0, stderr.clone())]
            }
            Some(_) | None => {
                let chunks = tx.output(session, exec, (place.stdout, place.stderr)).await?;
                chunks.into_iter().map(|chunk| (chunk.stream, chunk.position, chunk.content)).collect()
            }
        };
        Ok(NewOutput { seen, pieces })
    }

    /// Sends the output that the reader does not have yet, and the end of the command.
    async fn send_output(&mut self, NewOutput { seen, pieces }: NewOutput) -> Result<(), Ended> {
        for (stream, position, content) in pieces {
            let from = self.tail.place.of(stream).saturating_sub(position);
            let from = usize::try_from(from).unwrap_or(usize::MAX).min(content.len());
            let mut rest = &content[content.ceil_char_boundary(from)..];
            while !rest.is_empty() {
                let text = text::truncate(rest, EXEC_OUTPUT_CHUNK_BYTES);
                rest = &rest[text.len()..];
                *self.tail.place.of(stream) = position + (content.len() - rest.len()) as u64;
                self.frame(&ExecFrame::Output { stream, text: text.to_owned() }).await?;
            }
        }
        let (Some(answer), Request::Exec { command, .. }) = (seen.answer, seen.request) else {
            return Ok(());
        };
        let view = ExecView::open(seen.id, command, seen.created_at, seen.started_at);
        self.frame(&ExecFrame::ended(&view.answered(answer))).await?;
        Err(Ended)
    }

    async fn frame(&mut self, frame: &ExecFrame) -> Result<(), Ended> {
        let json = serde_json::to_string(frame).expect("frame types serialize to JSON");
        self.reader.send(ExecLine::Frame { place: self.tail.place, json }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = ExecPlace { stdout: 70_000, stderr: 3 };
        assert_eq!(place.to_string().parse(), Ok(place));
        for bad in ["", "7", "1-", "-1", "a-b", "1-2-3", "-1-2"] {
            assert_eq!(bad.parse::<ExecPlace>(), Err(()), "{bad}");
        }
    }
}
